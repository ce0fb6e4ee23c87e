//! Normalizes outcomes to what two runs can have in common: objects as lines of `kind/name pointer = value`,
//! without versions, times, UIDs and generated names; events without counts and messages; calls without what
//! depends only on timing. Pure functions.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::scripted::Entry;

/// Fields that carry only times, versions or counts.
const DROPPED: [&str; 9] = [
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "deletionGracePeriodSeconds",
    "lastTransitionTime",
    "lastProbeTime",
    "lastPhaseTransitionTime",
    "observedGeneration",
];

/// Controllers of Kubernetes itself, which report events on the same objects.
const OTHERS: [&str; 4] =
    ["persistentvolume-controller", "volume_expand", "attachdetach-controller", "default-scheduler"];

/// Generated names of a run and their placeholders, longest first, so that no name is replaced in part.
pub(super) struct Names(Vec<(String, String)>);

impl Names {
    pub(super) fn new(mut names: Vec<(String, String)>) -> Self {
        names.sort_by_key(|(generated, _)| std::cmp::Reverse(generated.len()));
        Self(names)
    }

    pub(super) fn normalize(&self, text: &str) -> String {
        if is_time(text) {
            return "TIME".to_owned();
        }
        self.0.iter().fold(text.to_owned(), |text, (generated, name)| text.replace(generated, name))
    }
}

/// Whether the text is an RFC 3339 time, as the API writes it.
fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 20 && bytes[4] == b'-' && bytes[7] == b'-' && bytes[10] == b'T' && bytes[13] == b':'
}

/// Whether the text is a UID, as the API generates it.
fn is_uid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// An object as sorted lines.
pub(super) fn object(names: &Names, object: &Value) -> Vec<String> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let head = format!("{kind}/{}", names.normalize(object["metadata"]["name"].as_str().unwrap_or_default()));
    let mut lines = Vec::new();
    for (part, value) in object.as_object().into_iter().flatten() {
        if !["kind", "apiVersion"].contains(&part.as_str()) {
            flatten(names, &head, &format!("/{part}"), value, &mut lines);
        }
    }
    lines.sort();
    // The object itself.
    lines.insert(0, head);
    lines
}

fn flatten(names: &Names, head: &str, at: &str, value: &Value, lines: &mut Vec<String>) {
    let last = at.rsplit('/').next().unwrap_or_default();
    if DROPPED.contains(&last) || at == "/metadata/uid" || at == "/metadata/name" {
        return;
    }
    match value {
        Value::Object(fields) if fields.is_empty() => lines.push(format!("{head} {at} = {{}}")),
        Value::Object(fields) => {
            for (key, value) in fields {
                flatten(
                    names,
                    head,
                    &format!("{at}/{}", names.normalize(&key.replace('/', "~1"))),
                    value,
                    lines,
                );
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                // A set or a keyed list: the order does not matter.
                let key = match (last, item) {
                    ("finalizers" | "accessModes", _) => "*".to_owned(),
                    ("conditions", item) => item["type"].as_str().unwrap_or_default().to_owned(),
                    _ => index.to_string(),
                };
                flatten(names, head, &format!("{at}/{key}"), item, lines);
            }
        }
        Value::String(text) => {
            let text = match last {
                // Contains the time, a random number and the driver's name.
                "storage.kubernetes.io~1csiProvisionerIdentity" => "IDENTITY".to_owned(),
                // The UID of an object that a controller created; the test does not know it.
                "uid" if is_uid(&names.normalize(text)) => "UID".to_owned(),
                _ => names.normalize(text),
            };
            lines.push(format!("{head} {at} = {text:?}"));
        }
        Value::Number(_) if last == "creationTime" => lines.push(format!("{head} {at} = TIME")),
        other => lines.push(format!("{head} {at} = {other}")),
    }
}

/// The events of the sidecars, deduplicated and without their messages.
pub(super) fn events(names: &Names, events: &[Value]) -> Vec<String> {
    let relevant = events.iter().filter(|event| {
        let by = [&event["source"]["component"], &event["reportingComponent"]];
        !by.iter().any(|by| by.as_str().is_some_and(|by| OTHERS.contains(&by)))
    });
    let lines: BTreeSet<String> = relevant
        .map(|event| {
            let text = |value: &Value| names.normalize(value.as_str().unwrap_or_default());
            let about = &event["involvedObject"];
            format!(
                "{}/{} {} {}",
                text(&about["kind"]),
                text(&about["name"]),
                text(&event["type"]),
                text(&event["reason"])
            )
        })
        .collect();
    lines.into_iter().collect()
}

/// The calls in order, grouped by volume or snapshot. A call repeated with the same result is one line: the number
/// of repetitions depends on timing.
pub(super) fn calls(names: &Names, calls: &[Entry]) -> Vec<String> {
    let mut lines: Vec<(String, String)> = Vec::new();
    for call in calls.iter().filter(|call| call.method != "Probe") {
        let subject = ["name", "volume", "snapshot", "group"].iter().find_map(|field| call.field(field));
        let subject = names.normalize(subject.unwrap_or_default());
        let fields = call.fields.iter().map(|(name, value)| {
            let mut line = Vec::new();
            flatten(names, "", name, value, &mut line);
            line.concat()
        });
        let fields: Vec<String> = fields.collect();
        let wrong = if call.violation.is_some() { " VIOLATION" } else { "" };
        let line = format!("{}{} -> {}{wrong}", call.method, fields.concat(), call.code);
        let before = lines.iter().rev().find(|(of, _)| *of == subject);
        if before.is_none_or(|(_, before)| *before != line) {
            lines.push((subject, line));
        }
    }
    lines.sort_by(|one, other| one.0.cmp(&other.0));
    lines.into_iter().map(|(_, line)| line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names() -> Names {
        Names::new(vec![("u-007".to_owned(), "ID".to_owned()), ("6a1f".to_owned(), "UID(claim)".to_owned())])
    }

    #[test]
    fn object_loses_run_specific_values() {
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": "pvc-6a1f", "uid": "77", "resourceVersion": "5", "finalizers": ["b", "a"],
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"csi": {"driver": "u-007.test", "volumeAttributes":
                {"storage.kubernetes.io/csiProvisionerIdentity": "1731-77-u-007.test"}}, "claimRef": {"uid": "6a1f"},
                "volumeSnapshotRef": {"uid": "0b1c2d3e-0000-4000-8000-00000000abcd"}},
            "status": {"conditions": [{"type": "Resizing", "lastProbeTime": null, "status": "True"}]},
        });
        assert_eq!(
            object(&names(), &volume),
            [
                "PersistentVolume/pvc-UID(claim)",
                "PersistentVolume/pvc-UID(claim) /metadata/deletionTimestamp = \"TIME\"",
                "PersistentVolume/pvc-UID(claim) /metadata/finalizers/* = \"a\"",
                "PersistentVolume/pvc-UID(claim) /metadata/finalizers/* = \"b\"",
                "PersistentVolume/pvc-UID(claim) /spec/claimRef/uid = \"UID(claim)\"",
                "PersistentVolume/pvc-UID(claim) /spec/csi/driver = \"ID.test\"",
                "PersistentVolume/pvc-UID(claim) /spec/csi/volumeAttributes/\
                 storage.kubernetes.io~1csiProvisionerIdentity = \"IDENTITY\"",
                "PersistentVolume/pvc-UID(claim) /spec/volumeSnapshotRef/uid = \"UID\"",
                "PersistentVolume/pvc-UID(claim) /status/conditions/Resizing/status = \"True\"",
                "PersistentVolume/pvc-UID(claim) /status/conditions/Resizing/type = \"Resizing\"",
            ]
        );
    }

    #[test]
    fn events_are_deduplicated_and_other_controllers_ignored() {
        let event = |by: &str, reason: &str| {
            json!({"source": {"component": by}, "type": "Normal", "reason": reason,
                "involvedObject": {"kind": "PersistentVolumeClaim", "name": "claim"}})
        };
        let all = [
            event("u-007.test_host", "Provisioning"),
            event("persistentvolume-controller", "ExternalProvisioning"),
            event("u-007.test_host", "Provisioning"),
        ];
        assert_eq!(events(&names(), &all), ["PersistentVolumeClaim/claim Normal Provisioning"]);
    }

    #[test]
    fn repeated_calls_collapse_and_calls_are_grouped_by_volume() {
        let call = |method: &str, name: &str, code: &str| -> Entry {
            serde_json::from_value(
                json!({"time_ms": 1, "took_ms": 1, "method": method, "code": code, "name": name}),
            )
            .unwrap()
        };
        let log = [
            call("Probe", "", "Ok"),
            call("CreateVolume", "pvc-6a1f", "Aborted"),
            call("CreateVolume", "other", "Ok"),
            call("CreateVolume", "pvc-6a1f", "Aborted"),
            call("CreateVolume", "pvc-6a1f", "Ok"),
        ];
        assert_eq!(
            calls(&names(), &log),
            [
                "CreateVolume name = \"other\" -> Ok",
                "CreateVolume name = \"pvc-UID(claim)\" -> Aborted",
                "CreateVolume name = \"pvc-UID(claim)\" -> Ok",
            ]
        );
    }
}
