//! Validation of environment variables, including references to pod fields and container resources.

use serde_json::Value;
use wharf_model::Quantity;

use crate::kinds::{json, meta, names};
use crate::status::Cause;

/// Pod fields that a variable can reference.
const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Pod fields that are valid field labels of the API but that a variable cannot reference.
const OTHER_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"];
/// Container resources that a variable can reference, besides hugepages.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Validates a container's environment variables.
pub(super) fn validate(container: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, variable) in json::list(container, "/env").iter().enumerate() {
        let at = format!("{at}.env[{index}]");
        match json::text(variable, "/name") {
            "" => causes.push(Cause::required(&format!("{at}.name"), "")),
            name => {
                causes.extend(meta::invalid_causes(&format!("{at}.name"), name, variable_name_errors(name)))
            }
        }
        if let Some(Value::Object(from)) = variable.get("valueFrom") {
            let at = format!("{at}.valueFrom");
            for source in ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"] {
                if let Some(reference) = from.get(source) {
                    causes.extend(validate_source(source, reference, &format!("{at}.{source}")));
                }
            }
            let error = if from.is_empty() {
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
            } else if !json::text(variable, "/value").is_empty() {
                "may not be specified when `value` is not empty"
            } else if from.len() > 1 {
                "may not have more than one field specified at a time"
            } else {
                continue;
            };
            causes.push(Cause::invalid(&at, &"".into(), error));
        }
    }
    for (index, source) in json::list(container, "/envFrom").iter().enumerate() {
        let prefix = json::text(source, "/prefix");
        causes.extend(meta::invalid_causes(
            &format!("{at}.envFrom[{index}].prefix"),
            prefix,
            variable_name_errors(prefix),
        ));
        let mut found = 0;
        for kind in ["configMapRef", "secretRef"] {
            let Some(reference) = source.get(kind) else { continue };
            found += 1;
            let name = json::text(reference, "/name");
            let field = format!("{at}.envFrom[{index}].{kind}.name");
            match name {
                "" => causes.push(Cause::required(&field, "")),
                // Upstream validates the name as a prefix, so it may end with a dash.
                name => causes.extend(meta::invalid_causes(&field, name, names::subdomain(name, true))),
            }
        }
        let error = match found {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        causes.push(Cause::invalid(&format!("{at}.envFrom"), &"".into(), error));
    }
    causes
}

fn variable_name_errors(name: &str) -> Vec<String> {
    if name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=') {
        return Vec::new();
    }
    vec![
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
            .into(),
    ]
}

fn validate_source(source: &str, reference: &Value, at: &str) -> Vec<Cause> {
    match source {
        "fieldRef" => validate_field_ref(reference, at),
        "resourceFieldRef" => validate_resource_ref(reference, at),
        _ => {
            let name = json::text(reference, "/name");
            let mut causes: Vec<Cause> =
                meta::invalid_causes(&format!("{at}.name"), name, names::subdomain(name, false)).collect();
            match json::text(reference, "/key") {
                "" => causes.push(Cause::required(&format!("{at}.key"), "")),
                key => causes.extend(meta::invalid_causes(&format!("{at}.key"), key, names::config_key(key))),
            }
            causes
        }
    }
}

/// Validates a reference to a pod field, or to a label or annotation: `metadata.labels['KEY']`.
fn validate_field_ref(reference: &Value, at: &str) -> Vec<Cause> {
    let (version, path) = (json::text(reference, "/apiVersion"), json::text(reference, "/fieldPath"));
    let path_at = format!("{at}.fieldPath");
    for (text, field) in [(version, "apiVersion"), (path, "fieldPath")] {
        if text.is_empty() {
            return vec![Cause::required(&format!("{at}.{field}"), "")];
        }
    }
    let subscripted =
        path.strip_suffix("']").and_then(|path| path.split_once("['")).filter(|(field, _)| !field.is_empty());
    let error = match subscripted {
        _ if version != "v1" => format!("unsupported pod version: {version}"),
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            return meta::invalid_causes(at, &key, names::qualified_name(&key)).collect();
        }
        Some(("metadata.labels", key)) => {
            return meta::invalid_causes(at, key, names::qualified_name(key)).collect();
        }
        Some(_) => format!("field label does not support subscript: {path}"),
        // `spec.host` is the name of `spec.nodeName` in early API versions.
        None if path == "spec.host" || FIELDS.contains(&path) => return Vec::new(),
        None if OTHER_FIELDS.contains(&path) => {
            return vec![Cause::not_supported(&path_at, &path.into(), &FIELDS)];
        }
        None => format!("field label not supported: {path}"),
    };
    vec![Cause::invalid(&path_at, &path.into(), &format!("error converting fieldPath: {error}"))]
}

/// Validates a reference to a container resource and its divisor, the unit of the value.
fn validate_resource_ref(reference: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let resource = json::text(reference, "/resource");
    let (_, name) = resource.split_once('.').unwrap_or_default();
    let is_hugepages =
        ["limits.hugepages-", "requests.hugepages-"].iter().any(|start| resource.starts_with(start));
    if resource.is_empty() {
        causes.push(Cause::required(&format!("{at}.resource"), ""));
    } else if !RESOURCES.contains(&resource) && !is_hugepages {
        causes.push(Cause::not_supported(&format!("{at}.resource"), &resource.into(), &RESOURCES));
    }
    if json::quantity(reference, "/divisor").is_none_or(|divisor| divisor == Quantity::ZERO) {
        return causes;
    }
    const BYTES: &str = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";
    let (allowed, listed, name) = match name {
        "cpu" => ("1m, 1", "1m and 1", "cpu"),
        "memory" => (BYTES, BYTES, "memory"),
        "ephemeral-storage" => (BYTES, BYTES, "local ephemeral storage"),
        _ if is_hugepages => (BYTES, BYTES, "hugepages"),
        _ => return causes,
    };
    if !allowed.split(", ").any(|allowed| allowed == json::text(reference, "/divisor")) {
        let detail = format!("only divisor's values {listed} are supported with the {name} resource");
        causes.push(Cause::invalid(&format!("{at}.divisor"), &resource.into(), &detail));
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::testing::lines;

    #[test]
    fn names_of_env_from_sources_are_validated() {
        for (kind, name, expected) in [
            ("configMapRef", "a", ""),
            ("secretRef", "a-", ""),
            ("configMapRef", "", "c.envFrom[0].configMapRef.name: Required value"),
            ("secretRef", "A_B", "c.envFrom[0].secretRef.name: Invalid value: \"A_B\""),
        ] {
            let causes = lines(validate(&json!({"envFrom": [{kind: {"name": name}}]}), "c"));
            let matches = match expected {
                "" => causes.is_empty(),
                expected => causes.len() == 1 && causes[0].starts_with(expected),
            };
            assert!(matches, "{kind} {name:?}: {causes:?}");
        }
    }

    #[test]
    fn variable_sources_are_validated() {
        let errors = |from: Value| {
            let causes = lines(validate(&json!({"env": [{"name": "A", "valueFrom": from}]}), "c"));
            causes.into_iter().map(|line| line.replace("c.env[0].valueFrom", "")).collect::<Vec<_>>()
        };
        let field = |path: &str| errors(json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}}));
        for path in ["metadata.name", "status.podIPs", "spec.host", "metadata.labels['a.b/c']"] {
            assert!(field(path).is_empty(), "{path}");
        }
        for (path, expected) in [
            ("", ".fieldRef.fieldPath: Required value"),
            (
                "spec.image",
                ".fieldRef.fieldPath: Invalid value: \"spec.image\": error converting fieldPath: field label not \
                 supported: spec.image",
            ),
            (
                "spec.nodeName['a']",
                ".fieldRef.fieldPath: Invalid value: \"spec.nodeName['a']\": error converting fieldPath: field label does \
                 not support subscript: spec.nodeName['a']",
            ),
            (
                "status.phase",
                ".fieldRef.fieldPath: Unsupported value: \"status.phase\": supported values: \"metadata.name\", \
                 \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \
                 \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\"",
            ),
        ] {
            assert_eq!(field(path), [expected]);
        }
        assert_eq!(field("metadata.annotations['']").len(), 2);
        let resource = |resource: &str, divisor: &str| {
            errors(json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}}))
        };
        for (name, divisor) in
            [("limits.cpu", "1m"), ("requests.memory", "1Mi"), ("limits.hugepages-2Mi", "0")]
        {
            assert!(resource(name, divisor).is_empty(), "{name}");
        }
        assert_eq!(resource("", "0"), [".resourceFieldRef.resource: Required value"]);
        assert_eq!(
            resource("limits.cpu", "1Mi"),
            [
                ".resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported \
                 with the cpu resource"
            ]
        );
        assert!(resource("limits.disk", "0")[0].starts_with(".resourceFieldRef.resource: Unsupported value"));
        assert_eq!(
            errors(json!({})),
            [
                ": Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or \
                 `secretKeyRef`"
            ]
        );
    }
}
