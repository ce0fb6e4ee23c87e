//! The options of logs and exec, parsed from the query and validated against the pod, with upstream's messages.

use serde_json::Value;
use wharf_model::Time;

use super::{bare_id, text};
use crate::rest::query::Query;
use crate::status::{Cause, StatusError};

/// The options of a log request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Follow the log until the container exits.
    pub follow: bool,
    /// Only lines from this time on.
    pub since: Option<Time>,
    /// Prefix each line with its timestamp.
    pub timestamps: bool,
    /// Only this many of the last existing lines.
    pub tail_lines: Option<u64>,
    /// At most this many bytes.
    pub limit_bytes: Option<u64>,
    /// The output streams to include.
    pub stream: Stream,
}

/// The output streams of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stream {
    /// Standard output and standard error.
    #[default]
    All,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A command to run in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether the client writes to its standard input.
    pub stdin: bool,
    /// Whether the client reads its standard output.
    pub stdout: bool,
    /// Whether the client reads its standard error. Never with a terminal, which merges both.
    pub stderr: bool,
    /// Whether the command gets a terminal.
    pub tty: bool,
}

pub(super) fn log(pod: &Value, query: &Query, now: Time) -> Result<LogOptions, StatusError> {
    let mut causes = Vec::new();
    let mut parse_at_least = |name: &str, min: i64, detail: &str| -> Result<Option<i64>, StatusError> {
        let number = query.number(name)?;
        if let Some(number) = number.filter(|number| *number < min) {
            causes.push(Cause::invalid(name, &number.into(), detail));
        }
        Ok(number)
    };
    let tail = parse_at_least("tailLines", 0, "must be greater than or equal to 0")?;
    let limit = parse_at_least("limitBytes", 1, "must be greater than 0")?;
    let seconds = parse_at_least("sinceSeconds", 1, "must be greater than 0")?;
    let time = match query.text("sinceTime") {
        "" => None,
        text => match serde_json::from_value(text.into()) {
            Ok(time) => Some(time),
            Err(_) => {
                return Err(StatusError::bad_request(format!(
                    "sinceTime {text:?} is not an RFC 3339 timestamp"
                )));
            }
        },
    };
    if seconds.is_some() && time.is_some() {
        let detail = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        causes.push(Cause::forbidden("", detail));
    }
    let stream = match query.text("stream") {
        "" | "All" => Stream::All,
        "Stdout" => Stream::Stdout,
        "Stderr" => Stream::Stderr,
        other => {
            causes.push(Cause::not_supported("stream", &other.into(), &["All", "Stdout", "Stderr"]));
            Stream::All
        }
    };
    if !causes.is_empty() {
        return Err(StatusError::invalid("", "PodLogOptions", text(pod, "/metadata/name"), causes));
    }
    let flag = |name: &str| query.flag(name) == Some(true);
    Ok(LogOptions {
        follow: flag("follow"),
        since: time
            .or_else(|| seconds.map(|seconds| Time(now.0.saturating_sub(seconds.saturating_mul(1000))))),
        timestamps: flag("timestamps"),
        tail_lines: tail.and_then(|lines| u64::try_from(lines).ok()),
        limit_bytes: limit.and_then(|bytes| u64::try_from(bytes).ok()),
        stream,
    })
}

pub(super) fn command(query: &Query) -> Result<Command, StatusError> {
    let flag = |name: &str| query.flag(name) == Some(true);
    let tty = flag("tty");
    let command = Command {
        command: query.all("command").map(str::to_owned).collect(),
        stdin: flag("stdin"),
        stdout: flag("stdout"),
        stderr: flag("stderr") && !tty,
        tty,
    };
    if command.command.is_empty() {
        return Err(StatusError::bad_request("you must specify at least one command for the container"));
    }
    if !(command.stdin || command.stdout || command.stderr) {
        return Err(StatusError::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
    }
    Ok(command)
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
    containers.into_iter().flatten().map(|container| text(container, "/name").to_owned()).collect()
}

/// The name of the requested container: the named one, or the only one.
fn container_name(pod: &Value, query: &Query) -> Result<String, StatusError> {
    let (name, pod_name) = (query.text("container"), text(pod, "/metadata/name"));
    let (containers, init) = (names(pod, "containers"), names(pod, "initContainers"));
    if !name.is_empty() {
        return match containers.iter().chain(&init).any(|known| known == name) {
            true => Ok(name.to_owned()),
            false => {
                Err(StatusError::bad_request(format!("container {name} is not valid for pod {pod_name}")))
            }
        };
    }
    if let [only] = containers.as_slice() {
        return Ok(only.clone());
    }
    let mut message = format!(
        "a container name must be specified for pod {pod_name}, choose one of: [{}]",
        containers.join(" ")
    );
    if !init.is_empty() {
        message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
    }
    Err(StatusError::bad_request(message))
}

fn status<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let statuses = |list: &str| pod.pointer(&format!("/status/{list}")).and_then(Value::as_array);
    let all =
        [statuses("containerStatuses"), statuses("initContainerStatuses")].into_iter().flatten().flatten();
    all.into_iter().find(|status| text(status, "/name") == name)
}

/// The ID of the container whose log is requested; none if the pod is not scheduled yet.
pub(super) fn log_container_id(pod: &Value, query: &Query) -> Result<Option<String>, StatusError> {
    let name = container_name(pod, query)?;
    if text(pod, "/spec/nodeName").is_empty() {
        return Ok(None);
    }
    let pod_name = text(pod, "/metadata/name");
    let reject = |reason: String| Err(StatusError::bad_request(reason));
    let not_available = || reject(format!("container {name:?} in pod {pod_name:?} is not available"));
    let Some(status) = status(pod, &name) else { return not_available() };
    let last = bare_id(text(status, "/lastState/terminated/containerID"));
    if query.flag("previous") == Some(true) {
        return match last {
            Some(id) => Ok(Some(id.to_owned())),
            None => reject(format!("previous terminated container {name:?} in pod {pod_name:?} not found")),
        };
    }
    let ended = status.pointer("/state/terminated").is_some();
    let current = match () {
        () if status.pointer("/state/running").is_some() => bare_id(text(status, "/containerID")),
        () if ended => bare_id(text(status, "/state/terminated/containerID")).or(last),
        () => last,
    };
    match current {
        Some(id) => Ok(Some(id.to_owned())),
        None if ended => reject(format!("container {name:?} in pod {pod_name:?} is terminated")),
        None => match text(status, "/state/waiting/reason") {
            "" => reject(format!("container {name:?} in pod {pod_name:?} is waiting to start - no logs yet")),
            reason => reject(format!("container {name:?} in pod {pod_name:?} is waiting to start: {reason}")),
        },
    }
}

/// The ID of the running container for a command.
pub(super) fn running_container_id(pod: &Value, query: &Query) -> Result<String, StatusError> {
    let name = container_name(pod, query)?;
    if text(pod, "/spec/nodeName").is_empty() {
        let pod_name = text(pod, "/metadata/name");
        return Err(StatusError::bad_request(format!("pod {pod_name} does not have a host assigned")));
    }
    let runs = status(pod, &name).filter(|status| status.pointer("/state/running").is_some());
    match runs.and_then(|status| bare_id(text(status, "/containerID"))) {
        Some(id) => Ok(id.to_owned()),
        None => Err(StatusError::new(404, "NotFound", format!("container not found ({name:?})"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(statuses: Value) -> Value {
        json!({
            "metadata": {"name": "p"},
            "spec": {"nodeName": "n", "containers": [{"name": "a"}]},
            "status": {"containerStatuses": statuses},
        })
    }

    /// The log that kubelet selects, and its errors if there is none.
    #[test]
    fn log_request_selects_the_container_instance() {
        let running = json!({"running": {}});
        let ended = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": id}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        for (state, last, id, previous, expected) in [
            (running.clone(), json!({}), "wharf://2", false, Ok("2")),
            (running.clone(), ended("wharf://1"), "wharf://2", false, Ok("2")),
            (running.clone(), ended("wharf://1"), "wharf://2", true, Ok("1")),
            (
                running,
                json!({}),
                "wharf://2",
                true,
                Err("previous terminated container \"a\" in pod \"p\" not found"),
            ),
            (ended("wharf://2"), json!({}), "", false, Ok("2")),
            (ended(""), ended("wharf://1"), "", false, Ok("1")),
            (ended(""), json!({}), "", false, Err("container \"a\" in pod \"p\" is terminated")),
            (waiting("CrashLoopBackOff"), ended("wharf://1"), "", false, Ok("1")),
            (
                waiting("ContainerCreating"),
                json!({}),
                "",
                false,
                Err("container \"a\" in pod \"p\" is waiting to start: ContainerCreating"),
            ),
            (
                json!({}),
                json!({}),
                "",
                false,
                Err("container \"a\" in pod \"p\" is waiting to start - no logs yet"),
            ),
        ] {
            let pod = pod(json!([{"name": "a", "state": state, "lastState": last, "containerID": id}]));
            let query = Query::parse(if previous { "previous=true" } else { "" });
            let got = log_container_id(&pod, &query)
                .map(Option::unwrap)
                .map_err(|status_error| (status_error.code, status_error.message));
            assert_eq!(got, expected.map(str::to_owned).map_err(|reason| (400, reason.to_owned())), "{pod}");
        }
        let status_error = log_container_id(&pod(json!([])), &Query::parse("")).unwrap_err();
        assert_eq!(status_error.message, "container \"a\" in pod \"p\" is not available");
        let mut unplaced = pod(json!([]));
        unplaced["spec"]["nodeName"] = "".into();
        assert_eq!(log_container_id(&unplaced, &Query::parse("")).unwrap(), None);
    }

    #[test]
    fn container_is_selected_by_name() {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]},
        });
        for (query, expected) in [
            ("container=a", Ok("a")),
            ("container=i", Ok("i")),
            ("container=x", Err("container x is not valid for pod p")),
            (
                "",
                Err("a container name must be specified for pod p, choose one of: [a b] or one of the init \
                     containers: [i]"),
            ),
        ] {
            let got = container_name(&pod, &Query::parse(query)).map_err(|status_error| status_error.message);
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{query}");
        }
    }

    #[test]
    fn command_needs_a_running_container() {
        let query = Query::parse("");
        let runs = pod(json!([{"name": "a", "state": {"running": {}}, "containerID": "wharf://7"}]));
        assert_eq!(running_container_id(&runs, &query).unwrap(), "7");
        let ended = pod(json!([{"name": "a", "state": {"terminated": {}}, "containerID": "wharf://7"}]));
        assert_eq!(running_container_id(&ended, &query).unwrap_err().message, "container not found (\"a\")");
    }

    #[test]
    fn log_options_are_parsed_or_rejected() {
        let read =
            |query: &str| log(&json!({"metadata": {"name": "p"}}), &Query::parse(query), Time(100_000));
        let all =
            read("follow=true&timestamps=1&tailLines=0&limitBytes=7&sinceSeconds=60&stream=Stderr").unwrap();
        assert_eq!(
            all,
            LogOptions {
                follow: true,
                since: Some(Time(40_000)),
                timestamps: true,
                tail_lines: Some(0),
                limit_bytes: Some(7),
                stream: Stream::Stderr,
            }
        );
        assert_eq!(read("sinceTime=1970-01-01T00:00:01Z").unwrap().since, Some(Time(1000)));
        for (query, message) in [
            (
                "tailLines=-1",
                "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "limitBytes=0",
                "PodLogOptions \"p\" is invalid: limitBytes: Invalid value: 0: must be greater than 0",
            ),
            ("sinceTime=never", "sinceTime \"never\" is not an RFC 3339 timestamp"),
            ("tailLines=x", "strconv.ParseInt: parsing \"x\": invalid syntax"),
        ] {
            assert_eq!(read(query).unwrap_err().message, message);
        }
    }

    #[test]
    fn command_options_are_parsed_or_rejected() {
        let read = |query: &str| command(&Query::parse(query)).map_err(|status_error| status_error.message);
        let terminal =
            read("command=sh&command=-c&command=ls+%2F&stdin=true&stdout=true&stderr=true&tty=true");
        assert_eq!(
            terminal.unwrap(),
            Command {
                command: vec!["sh".into(), "-c".into(), "ls /".into()],
                stdin: true,
                stdout: true,
                stderr: false,
                tty: true,
            }
        );
        assert!(read("stdout=true").unwrap_err().contains("at least one command"));
        assert_eq!(read("command=ls").unwrap_err(), "you must specify at least 1 of stdin, stdout, stderr");
    }
}
