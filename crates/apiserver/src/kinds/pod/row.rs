//! The table row of a pod, with the aggregate state of its containers.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wharf_model::Time;

use crate::kinds::{age, json};

/// The cells of a pod's row, one for each column.
pub(super) fn row(pod: &Value, now: Time) -> Vec<Value> {
    let summary = summary(pod);
    let restarts = match summary.last_restart {
        Some(then) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, age::human_duration(now.0 - then.0))
        }
        _ => summary.restarts.to_string(),
    };
    let or_none = |pointer: &str| match json::text(pod, pointer) {
        "" => Value::from("<none>"),
        text => text.into(),
    };
    let gates = json::list(pod, "/spec/readinessGates");
    // Of several conditions with the same type, the first counts.
    let conditions: BTreeMap<&str, bool> = json::list(pod, "/status/conditions")
        .iter()
        .rev()
        .map(|condition| (json::text(condition, "/type"), json::text(condition, "/status") == "True"))
        .collect();
    let holds = |gate: &&Value| conditions.get(json::text(gate, "/conditionType")) == Some(&true);
    let gates = match gates.len() {
        0 => "<none>".into(),
        all => format!("{}/{all}", gates.iter().filter(holds).count()),
    };
    vec![
        json::text(pod, "/metadata/name").into(),
        format!("{}/{}", summary.ready, summary.containers).into(),
        summary.reason.into(),
        restarts.into(),
        age::age(pod, now).into(),
        or_none("/status/podIPs/0/ip"),
        or_none("/spec/nodeName"),
        or_none("/status/nominatedNodeName"),
        gates.into(),
    ]
}

/// The conditions of a pod's row.
pub(super) fn conditions(pod: &Value) -> Vec<Value> {
    let message = match json::text(pod, "/status/phase") {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return Vec::new(),
    };
    let reason = json::at(pod, "/status/phase");
    vec![json!({"type": "Completed", "status": "True", "reason": reason, "message": message})]
}

struct Summary {
    containers: usize,
    ready: usize,
    reason: String,
    restarts: i64,
    last_restart: Option<Time>,
}

impl Summary {
    fn count_restarts(&mut self, status: &Value) {
        self.restarts += json::number(status, "/restartCount").unwrap_or_default();
        self.last_restart = self.last_restart.max(age::timestamp(status, "/lastState/terminated/finishedAt"));
    }
}

/// Whether an init container is a sidecar: it keeps running alongside the other containers.
fn is_sidecar(pod: &Value, name: &str) -> bool {
    json::list(pod, "/spec/initContainers").iter().any(|container| {
        json::text(container, "/name") == name && json::text(container, "/restartPolicy") == "Always"
    })
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    json::list(pod, "/status/conditions").iter().find(|condition| json::text(condition, "/type") == kind)
}

/// The reason why a container terminated.
fn termination_reason(terminated: &Value) -> String {
    match (json::text(terminated, "/reason"), json::number(terminated, "/signal").unwrap_or_default()) {
        ("", 0) => format!("ExitCode:{}", json::number(terminated, "/exitCode").unwrap_or_default()),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.into(),
    }
}

fn summary(pod: &Value) -> Summary {
    let init = json::list(pod, "/spec/initContainers");
    let sidecars =
        init.iter().filter(|container| json::text(container, "/restartPolicy") == "Always").count();
    let phase = json::text(pod, "/status/phase");
    let mut reason = match json::text(pod, "/status/reason") {
        "" => phase.to_owned(),
        reason => reason.to_owned(),
    };
    let gated = |condition: &Value| json::text(condition, "/reason") == "SchedulingGated";
    if condition(pod, "PodScheduled").is_some_and(gated) {
        reason = "SchedulingGated".into();
    }
    let containers = json::list(pod, "/spec/containers").len() + sidecars;
    let mut all = Summary { containers, ready: 0, reason, restarts: 0, last_restart: None };
    // Restarts of sidecars. Other init containers count only while the pod is initializing.
    let mut sidecar_summary =
        Summary { containers: 0, ready: 0, reason: String::new(), restarts: 0, last_restart: None };
    let mut is_initializing = false;
    for (index, status) in json::list(pod, "/status/initContainerStatuses").iter().enumerate() {
        all.count_restarts(status);
        let is_sidecar = is_sidecar(pod, json::text(status, "/name"));
        if is_sidecar {
            sidecar_summary.count_restarts(status);
        }
        let waiting = json::text(status, "/state/waiting/reason");
        all.reason = match status.pointer("/state/terminated") {
            Some(terminated) if json::number(terminated, "/exitCode").unwrap_or_default() == 0 => continue,
            _ if is_sidecar && json::flag(status, "/started") => {
                all.ready += usize::from(json::flag(status, "/ready"));
                continue;
            }
            Some(terminated) => format!("Init:{}", termination_reason(terminated)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{index}/{}", init.len()),
        };
        is_initializing = true;
        break;
    }
    let is_initialized =
        condition(pod, "Initialized").is_some_and(|condition| json::text(condition, "/status") == "True");
    if !is_initializing || is_initialized {
        (all.restarts, all.last_restart) = (sidecar_summary.restarts, sidecar_summary.last_restart);
        let mut is_running = false;
        for status in json::list(pod, "/status/containerStatuses").iter().rev() {
            all.count_restarts(status);
            let waiting = json::text(status, "/state/waiting/reason");
            if !waiting.is_empty() {
                all.reason = waiting.into();
            } else if let Some(terminated) = status.pointer("/state/terminated") {
                all.reason = termination_reason(terminated);
            } else if json::flag(status, "/ready") && json::has(status, "/state/running") {
                is_running = true;
                all.ready += 1;
            }
        }
        if all.reason == "Completed" && is_running {
            let is_ready = condition(pod, "Ready").is_some_and(|one| json::text(one, "/status") == "True");
            all.reason = if is_ready { "Running" } else { "NotReady" }.into();
        }
    }
    if json::has(pod, "/metadata/deletionTimestamp") {
        if json::text(pod, "/status/reason") == "NodeLost" {
            all.reason = "Unknown".into();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            all.reason = "Terminating".into();
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(spec: Value, status: Value) -> Vec<Value> {
        let metadata = json!({"name": "p", "creationTimestamp": "1970-01-01T00:00:00Z"});
        row(&json!({"metadata": metadata, "spec": spec, "status": status}), Time(60_000))
    }

    #[test]
    fn ready_and_status_summarize_containers() {
        let two = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        let running = json!({"name": "a", "ready": true, "state": {"running": {}}});
        let done = json!({"name": "b", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}});
        let init = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "j"}]});
        let sidecar = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i", "restartPolicy": "Always"}]});
        for (spec, status, ready, reason) in [
            (&two, json!({"phase": "Pending"}), "0/2", "Pending"),
            (&two, json!({"phase": "Failed", "reason": "Evicted"}), "0/2", "Evicted"),
            (&two, json!({"phase": "Running", "containerStatuses": [running, running]}), "2/2", "Running"),
            (&two, json!({"phase": "Running", "containerStatuses": [running, done]}), "1/2", "NotReady"),
            (
                &two,
                json!({"phase": "Running", "containerStatuses": [
                    {"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}, running,
                ]}),
                "1/2",
                "CrashLoopBackOff",
            ),
            (
                &two,
                json!({"phase": "Failed", "containerStatuses": [
                    {"name": "a", "state": {"terminated": {"signal": 9, "exitCode": 137}}},
                ]}),
                "0/2",
                "Signal:9",
            ),
            (
                &two,
                json!({"phase": "Failed", "containerStatuses": [
                    {"name": "a", "state": {"terminated": {"exitCode": 2}}},
                ]}),
                "0/2",
                "ExitCode:2",
            ),
            (
                &init,
                json!({"phase": "Pending", "initContainerStatuses": [
                    {"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "j", "state": {"running": {}}},
                ]}),
                "0/1",
                "Init:1/2",
            ),
            (
                &init,
                json!({"phase": "Pending", "initContainerStatuses": [
                    {"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}},
                ]}),
                "0/1",
                "Init:ErrImagePull",
            ),
            (
                &init,
                json!({"phase": "Pending", "initContainerStatuses": [
                    {"name": "i", "state": {"terminated": {"exitCode": 3}}},
                ]}),
                "0/1",
                "Init:ExitCode:3",
            ),
            (
                &sidecar,
                json!({
                    "phase": "Running", "containerStatuses": [running],
                    "initContainerStatuses": [{"name": "i", "started": true, "ready": true, "state": {"running": {}}}],
                }),
                "2/2",
                "Running",
            ),
            (
                &two,
                json!({"phase": "Pending", "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"},
                ]}),
                "0/2",
                "SchedulingGated",
            ),
        ] {
            let cells = cells(spec.clone(), status.clone());
            assert_eq!((cells[1].as_str(), cells[2].as_str()), (Some(ready), Some(reason)), "{status}");
        }
    }

    #[test]
    fn restarts_node_and_readiness_gates() {
        let spec = json!({"containers": [{"name": "a"}], "nodeName": "n1", "readinessGates": [{"conditionType": "x/y"}]});
        let status = json!({
            "phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "x/y", "status": "True"}],
            "containerStatuses": [{
                "name": "a", "restartCount": 2, "lastState": {"terminated": {"finishedAt": "1970-01-01T00:00:30Z"}},
            }],
        });
        assert_eq!(
            Value::from(cells(spec, status)),
            json!(["p", "0/1", "Running", "2 (30s ago)", "60s", "10.0.0.1", "n1", "<none>", "1/1"])
        );
        let bare = cells(json!({}), json!({}));
        assert_eq!(
            bare[3..],
            json!(["0", "60s", "<none>", "<none>", "<none>", "<none>"]).as_array().unwrap()[..]
        );
    }

    #[test]
    fn deleted_pod_is_terminating() {
        let terminating = json!({
            "metadata": {"name": "p", "deletionTimestamp": "1970-01-01T00:00:00Z"}, "status": {"phase": "Running"},
        });
        assert_eq!(row(&terminating, Time(0))[2], "Terminating");
        let done = json!({
            "metadata": {"name": "p", "deletionTimestamp": "1970-01-01T00:00:00Z"}, "status": {"phase": "Succeeded"},
        });
        assert_eq!(row(&done, Time(0))[2], "Succeeded");
        assert_eq!(conditions(&done)[0]["reason"], "Succeeded");
        assert!(conditions(&terminating).is_empty());
    }
}
