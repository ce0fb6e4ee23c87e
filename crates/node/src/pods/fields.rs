//! Downward API fields of a pod as text, for the environment and for files.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use wharf_model::pod::ResourceFieldRef;
use wharf_model::{Pod, Quantity, StringMap};

/// Why a downward API reference is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// Unsupported field.
    #[error("unsupported fieldPath: {0}")]
    Unsupported(String),
    /// Unknown container.
    #[error("container {0:?} not found")]
    NoContainer(String),
    /// Unsupported resource.
    #[error("unsupported container resource : {0}")]
    NoResource(String),
}

/// The value of a field. `address` is the node's, which its pods share.
pub(crate) fn field(pod: &Pod, path: &str, address: &str) -> Result<String, FieldError> {
    let meta = &pod.metadata;
    let of = |map: &StringMap, key: &str| map.get(key).unwrap_or("").to_owned();
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Ok(of(&meta.annotations, key));
    }
    if let Some(key) = subscript(path, "metadata.labels") {
        return Ok(of(&meta.labels, key));
    }
    Ok(match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone(),
        "metadata.annotations" => lines(&meta.annotations),
        "metadata.labels" => lines(&meta.labels),
        "spec.nodeName" => pod.node_name.clone(),
        "spec.serviceAccountName" => pod.spec.service_account_name.clone(),
        "status.hostIP" | "status.hostIPs" | "status.podIP" | "status.podIPs" => address.to_owned(),
        _ => return Err(FieldError::Unsupported(path.to_owned())),
    })
}

/// `metadata.labels['key']`.
fn subscript<'a>(path: &'a str, field: &str) -> Option<&'a str> {
    path.strip_prefix(field)?.strip_prefix("['")?.strip_suffix("']")
}

/// One line per entry, values quoted like Go's `%q`.
fn lines(map: &StringMap) -> String {
    let lines: Vec<String> = map.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            // Writing to a string cannot fail.
            control if control.is_ascii_control() => _ = write!(quoted, "\\x{:02x}", u32::from(control)),
            control if control.is_control() => _ = write!(quoted, "\\u{:04x}", u32::from(control)),
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// A resource of a container in units of the divisor, rounded up. An unset limit is the node's allocatable amount.
pub(crate) fn resource(
    pod: &Pod,
    own: Option<&str>,
    wanted: &ResourceFieldRef,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, FieldError> {
    let name = match (wanted.container_name.as_str(), own) {
        ("", Some(own)) => own,
        (name, _) => name,
    };
    let mut containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let container = containers
        .find(|container| container.name == name)
        .ok_or_else(|| FieldError::NoContainer(name.to_owned()))?;
    let unknown = || FieldError::NoResource(wanted.resource.clone());
    let (set, default, resource) = match wanted.resource.split_once('.') {
        Some(("limits", resource)) => {
            (&container.resources.limits, allocatable.get(resource).copied(), resource)
        }
        Some(("requests", resource)) => (&container.resources.requests, None, resource),
        _ => return Err(unknown()),
    };
    if !matches!(resource, "cpu" | "memory" | "ephemeral-storage") && !resource.starts_with("hugepages-") {
        return Err(unknown());
    }
    let amount = set.get(resource).copied().or(default).unwrap_or(Quantity::ZERO);
    Ok(amount.divided_by(wanted.divisor.unwrap_or(Quantity::ZERO)).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": "say \"hi\"\n"},
                "annotations": {"x/y": "z"},
            },
            "spec": {
                "nodeName": "node", "serviceAccountName": "account",
                "containers": [
                    {"name": "c", "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "1025Ki"}}},
                    {"name": "d"},
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn supported_fields_have_values() {
        for (path, expected) in [
            ("metadata.name", "p"),
            ("metadata.namespace", "n"),
            ("metadata.uid", "u"),
            ("metadata.labels['b']", "2"),
            ("metadata.labels['absent']", ""),
            ("metadata.annotations['x/y']", "z"),
            ("metadata.labels", "a=\"say \\\"hi\\\"\\n\"\nb=\"2\""),
            ("metadata.annotations", "x/y=\"z\""),
            ("spec.nodeName", "node"),
            ("spec.serviceAccountName", "account"),
            ("status.hostIP", "10.0.0.1"),
            ("status.podIPs", "10.0.0.1"),
        ] {
            assert_eq!(field(&pod(), path, "10.0.0.1").unwrap(), expected, "{path}");
        }
        let error = field(&pod(), "status.phase", "").unwrap_err();
        assert_eq!(error.to_string(), "unsupported fieldPath: status.phase");
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let node = BTreeMap::from([
            ("cpu".to_owned(), "4".parse().unwrap()),
            ("memory".to_owned(), "1Gi".parse().unwrap()),
        ]);
        for (container, resource_name, divisor, expected) in [
            ("", "limits.cpu", "", "2"),
            ("c", "limits.cpu", "1m", "1500"),
            ("d", "limits.cpu", "0", "4"),
            ("d", "limits.memory", "1Mi", "1024"),
            ("", "requests.memory", "1Mi", "2"),
            ("d", "requests.memory", "1Mi", "0"),
        ] {
            let wanted = ResourceFieldRef {
                container_name: container.into(),
                resource: resource_name.into(),
                divisor: (!divisor.is_empty()).then(|| divisor.parse().unwrap()),
            };
            let got = resource(&pod(), Some("c"), &wanted, &node).unwrap();
            assert_eq!(got, expected, "{container} {resource_name} {divisor}");
        }
        for (container, resource_name) in [("x", "limits.cpu"), ("c", "limits.pods"), ("c", "cpu")] {
            let wanted = ResourceFieldRef {
                container_name: container.into(),
                resource: resource_name.into(),
                divisor: None,
            };
            resource(&pod(), None, &wanted, &node).unwrap_err();
        }
    }
}
