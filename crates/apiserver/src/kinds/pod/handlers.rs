//! Validation of probes and lifecycle hooks.

use serde_json::Value;

use super::ports;
use crate::kinds::{json, meta, names};
use crate::status::Cause;

/// Handlers of probes and hooks, in the order of validation. The schema has no `sleep` in probes and no `grpc` in
/// hooks.
const HANDLERS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

/// Validates a container's hooks and probes. A hook can sleep at most for the termination grace period.
pub(super) fn validate(container: &Value, at: &str, grace: Option<i64>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for hook in ["postStart", "preStop"] {
        if let Some(object) = container.pointer(&format!("/lifecycle/{hook}")) {
            causes.extend(handler(object, &format!("{at}.lifecycle.{hook}"), grace));
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get(name) else { continue };
        let at = format!("{at}.{name}");
        causes.extend(validate_probe(probe, &at, grace));
        if name == "readinessProbe" {
            if let Some(seconds) = probe.get("terminationGracePeriodSeconds") {
                let detail = "must not be set for readinessProbes";
                causes.push(Cause::invalid(&format!("{at}.terminationGracePeriodSeconds"), seconds, detail));
            }
        } else {
            let times = json::number(probe, "/successThreshold").unwrap_or_default();
            if times != 1 {
                causes.push(Cause::invalid(&format!("{at}.successThreshold"), &times.into(), "must be 1"));
            }
        }
    }
    causes
}

fn validate_probe(probe: &Value, at: &str, grace: Option<i64>) -> Vec<Cause> {
    let mut causes = handler(probe, at, grace);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        if let Some(number) = json::number(probe, &format!("/{field}")).filter(|number| *number < 0) {
            let detail = "must be greater than or equal to 0";
            causes.push(Cause::invalid(&format!("{at}.{field}"), &number.into(), detail));
        }
    }
    if let Some(seconds) =
        json::number(probe, "/terminationGracePeriodSeconds").filter(|seconds| *seconds <= 0)
    {
        let field = format!("{at}.terminationGracePeriodSeconds");
        causes.push(Cause::invalid(&field, &seconds.into(), "must be greater than 0"));
    }
    causes
}

fn handler(object: &Value, at: &str, grace: Option<i64>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut handlers = HANDLERS.iter().filter_map(|name| Some((*name, object.get(name)?)));
    match handlers.next() {
        Some((name, action)) => causes.extend(validate_action(name, action, &format!("{at}.{name}"), grace)),
        None => causes.push(Cause::required(at, "must specify a handler type")),
    }
    for (name, _) in handlers {
        let detail = "may not specify more than 1 handler type";
        causes.push(Cause::forbidden(&format!("{at}.{name}"), detail));
    }
    causes
}

fn validate_action(name: &str, action: &Value, at: &str, grace: Option<i64>) -> Vec<Cause> {
    let mut causes = Vec::new();
    match name {
        "exec" if json::list(action, "/command").is_empty() => {
            causes.push(Cause::required(&format!("{at}.command"), ""));
        }
        "httpGet" => {
            if json::text(action, "/path").is_empty() {
                causes.push(Cause::required(&format!("{at}.path"), ""));
            }
            causes.extend(port(action, at));
            let (scheme, known) = (json::text(action, "/scheme"), ["HTTP", "HTTPS"]);
            if !known.contains(&scheme) {
                causes.push(Cause::not_supported(&format!("{at}.scheme"), &scheme.into(), &known));
            }
            for header in json::list(action, "/httpHeaders") {
                let name = json::text(header, "/name");
                causes.extend(meta::invalid_causes(
                    &format!("{at}.httpHeaders"),
                    name,
                    names::http_header_name(name),
                ));
            }
        }
        "tcpSocket" | "grpc" => causes.extend(port(action, at)),
        "sleep" => {
            let seconds = json::number(action, "/seconds").unwrap_or_default();
            if let Some(max) = grace.filter(|max| !(0..=*max).contains(&seconds)) {
                let detail =
                    format!("must be non-negative and less than terminationGracePeriodSeconds ({max})");
                causes.push(Cause::invalid(at, &seconds.into(), &detail));
            }
        }
        _ => (),
    }
    causes
}

/// Validates a port number or port name.
fn port(action: &Value, at: &str) -> Vec<Cause> {
    let at = format!("{at}.port");
    match action.get("port") {
        Some(Value::String(name)) => meta::invalid_causes(&at, name, ports::name(name)).collect(),
        number => {
            let number = number.and_then(Value::as_i64).unwrap_or_default();
            let detail = "must be between 1 and 65535, inclusive";
            let is_good = (1..=65535).contains(&number);
            (!is_good).then(|| Cause::invalid(&at, &number.into(), detail)).into_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::testing::lines;

    #[test]
    fn hooks_and_probes_are_validated() {
        let good = json!({
            "lifecycle": {"postStart": {"exec": {"command": ["a"]}}, "preStop": {"sleep": {"seconds": 30}}},
            "livenessProbe": {"tcpSocket": {"port": "web"}, "successThreshold": 1},
            "readinessProbe": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "successThreshold": 2},
        });
        assert!(validate(&good, "c", Some(30)).is_empty());
        for (container, expected) in [
            (
                json!({"livenessProbe": {"successThreshold": 1}}),
                vec!["c.livenessProbe: Required value: must specify a handler type"],
            ),
            (
                json!({"readinessProbe": {"exec": {}, "grpc": {"port": 1}, "terminationGracePeriodSeconds": 0}}),
                vec![
                    "c.readinessProbe.exec.command: Required value",
                    "c.readinessProbe.grpc: Forbidden: may not specify more than 1 handler type",
                    "c.readinessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
                    "c.readinessProbe.terminationGracePeriodSeconds: Invalid value: 0: must not be set for readinessProbes",
                ],
            ),
            (
                json!({"startupProbe": {"grpc": {"port": 0}, "periodSeconds": -1, "successThreshold": 2}}),
                vec![
                    "c.startupProbe.grpc.port: Invalid value: 0: must be between 1 and 65535, inclusive",
                    "c.startupProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
                    "c.startupProbe.successThreshold: Invalid value: 2: must be 1",
                ],
            ),
            (
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}),
                vec![
                    "c.lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than \
                     terminationGracePeriodSeconds (30)",
                ],
            ),
            (
                json!({"lifecycle": {"postStart": {"httpGet": {
                    "port": "", "scheme": "FTP", "path": "/", "httpHeaders": [{"name": "a b"}],
                }}}}),
                vec![
                    "c.lifecycle.postStart.httpGet.port: Invalid value: \"\": must contain only alpha-numeric characters \
                     (a-z, 0-9), and hyphens (-)",
                    "c.lifecycle.postStart.httpGet.port: Invalid value: \"\": must contain at least one letter (a-z)",
                    "c.lifecycle.postStart.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"",
                    "c.lifecycle.postStart.httpGet.httpHeaders: Invalid value: \"a b\": a valid HTTP header must consist of \
                     alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
                ],
            ),
        ] {
            assert_eq!(lines(validate(&container, "c", Some(30))), expected, "{container}");
        }
    }
}
