//! The stored form of objects.
//!
//! Objects are stored without `kind` and `apiVersion`, which follow from the key. Upstream omits both in lists of
//! built-in kinds too, so a list is the concatenation of its stored items. Events of `events.k8s.io` are stored as
//! events of the core group, so both groups serve the same events.

use bytes::Bytes;
use serde_json::{Map, Value};
use wharf_model::Time;

use super::meta;
use crate::kinds::{self, Kind};
use crate::status::StatusError;
use crate::store::{Body, Key};

/// How long an event is kept after its last write.
const EVENT_TTL_MS: i64 = 3_600_000;

/// Whether this kind is a custom resource upstream. Custom resources are treated slightly differently.
pub(crate) fn is_custom(kind: &Kind) -> bool {
    kind.group.ends_with("snapshot.storage.k8s.io")
}

fn is_events_v1(kind: &Kind) -> bool {
    kind.group == "events.k8s.io"
}

/// The prefix of the keys of a kind.
pub(crate) fn prefix(kind: &Kind, namespace: &str) -> String {
    let group = if is_events_v1(kind) { "" } else { kind.group };
    match (kind.namespaced, namespace) {
        (true, "") => format!("{group}/{}/", kind.plural),
        (true, namespace) => format!("{group}/{}/{namespace}/", kind.plural),
        (false, _) => format!("{group}/{}//", kind.plural),
    }
}

/// The key of an object.
pub(crate) fn key(kind: &Kind, namespace: &str, name: &str) -> Key {
    format!("{}{name}", prefix(kind, namespace)).into()
}

/// Decodes a stored object to the form that requests and rules use.
pub(crate) fn decode(kind: &Kind, stored: &[u8]) -> Result<Value, StatusError> {
    let object: Map<String, Value> = serde_json::from_slice(stored).map_err(|error| {
        StatusError::new(
            500,
            "InternalError",
            format!("Internal error occurred: a stored {} is not valid JSON: {error}", kind.kind),
        )
    })?;
    Ok(add_type_meta(kind, object.into()))
}

/// Adds `kind` and `apiVersion`, and converts events of `events.k8s.io`.
fn add_type_meta(kind: &Kind, object: Value) -> Value {
    let mut object = if is_events_v1(kind) { kinds::event_from_core(&object) } else { object };
    object["kind"] = kind.kind.into();
    object["apiVersion"] = kind.api_version().into();
    object
}

fn strip_type_meta(kind: &Kind, object: &Value) -> Map<String, Value> {
    let object = if is_events_v1(kind) { kinds::event_to_core(object) } else { object.clone() };
    match object {
        Value::Object(mut map) => {
            map.remove("kind");
            map.remove("apiVersion");
            map
        }
        _ => Map::new(),
    }
}

/// The stored form, with the object's own `resourceVersion`.
pub(crate) fn stored(kind: &Kind, object: &Value) -> Bytes {
    Value::Object(strip_type_meta(kind, object)).to_string().into()
}

/// The form to be stored, with an empty `resourceVersion` that the store fills in.
pub(crate) fn body(kind: &Kind, object: &Value, now: Time) -> Body {
    let mut map = strip_type_meta(kind, object);
    let mut metadata = match map.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => Map::new(),
    };
    metadata.remove("resourceVersion");
    // The slot is at the front, so its offset is constant.
    const PREFIX: &str = r#"{"metadata":{"resourceVersion":""#;
    let mut json = String::from(PREFIX);
    json.push('"');
    append_members(&mut json, &metadata, true);
    json.push('}');
    append_members(&mut json, &map, true);
    json.push('}');
    let expires = (kind.plural == "events").then(|| now.0.saturating_add(EVENT_TTL_MS));
    Body { json: json.into(), revision_offset: PREFIX.len(), expires }
}

fn append_members(json: &mut String, map: &Map<String, Value>, mut comma: bool) {
    for (name, value) in map {
        if comma {
            json.push(',');
        }
        comma = true;
        json.push_str(&Value::from(name.as_str()).to_string());
        json.push(':');
        json.push_str(&value.to_string());
    }
}

/// Writes a stored object as clients receive it.
pub(crate) fn write(kind: &Kind, stored: &[u8], out: &mut Vec<u8>) -> Result<(), StatusError> {
    if is_events_v1(kind) {
        let object = decode(kind, stored)?;
        out.extend_from_slice(object.to_string().as_bytes());
        return Ok(());
    }
    out.extend_from_slice(b"{\"kind\":\"");
    out.extend_from_slice(kind.kind.as_bytes());
    out.extend_from_slice(b"\",\"apiVersion\":\"");
    out.extend_from_slice(kind.api_version().as_bytes());
    out.push(b'"');
    let rest = stored.get(1..).unwrap_or(b"}");
    if rest != b"}" {
        out.push(b',');
    }
    out.extend_from_slice(rest);
    Ok(())
}

/// Writes a stored object as an item of a list.
pub(crate) fn write_item(kind: &Kind, stored: &[u8], out: &mut Vec<u8>) -> Result<(), StatusError> {
    if is_custom(kind) {
        return write(kind, stored, out);
    }
    if is_events_v1(kind) {
        let mut object = decode(kind, stored)?;
        if let Value::Object(map) = &mut object {
            map.remove("kind");
            map.remove("apiVersion");
        }
        out.extend_from_slice(object.to_string().as_bytes());
        return Ok(());
    }
    out.extend_from_slice(stored);
    Ok(())
}

/// A stored object with another `resourceVersion`: what a watcher receives when an object leaves its selection.
pub(crate) fn at_version(stored: &[u8], version: u64) -> Bytes {
    match serde_json::from_slice::<Value>(stored) {
        Ok(mut object) => {
            meta::set(&mut object, "resourceVersion", version.to_string().into());
            object.to_string().into()
        }
        Err(_) => Bytes::copy_from_slice(stored),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use serde_json::json;

    #[test]
    fn keys_have_group_plural_namespace_and_name() {
        for (group, plural, namespace, name, expected) in [
            ("", "pods", "a", "x", "/pods/a/x"),
            ("", "nodes", "", "n", "/nodes//n"),
            ("storage.k8s.io", "storageclasses", "", "fast", "storage.k8s.io/storageclasses//fast"),
            ("", "events", "a", "e", "/events/a/e"),
            ("events.k8s.io", "events", "a", "e", "/events/a/e"),
        ] {
            let kind = kinds::find(group, "v1", plural).unwrap();
            assert_eq!(&*key(kind, namespace, name), expected);
        }
        let pods = kinds::find("", "v1", "pods").unwrap();
        assert_eq!(prefix(pods, ""), "/pods/");
        assert_eq!(prefix(pods, "a"), "/pods/a/");
    }

    #[test]
    fn object_survives_encoding_and_decoding() {
        let kind = kinds::find("", "v1", "configmaps").unwrap();
        let object = json!({
            "kind": "ConfigMap", "apiVersion": "v1", "data": {"a\"b": "\u{1}"},
            "metadata": {"name": "x", "namespace": "a", "resourceVersion": "3", "labels": {"l": "m"}},
        });
        let body = body(kind, &object, Time(0));
        assert_eq!(body.expires, None);
        let mut json = body.json.to_vec();
        assert_eq!(&json[body.revision_offset - 1..=body.revision_offset], b"\"\"");
        json.splice(body.revision_offset..body.revision_offset, *b"42");
        let mut expected = object.clone();
        expected["metadata"]["resourceVersion"] = "42".into();
        assert_eq!(decode(kind, &json).unwrap(), expected);
        let mut output = Vec::new();
        write(kind, &json, &mut output).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&output).unwrap(), expected);
        let again = at_version(&json, 43);
        assert_eq!(decode(kind, &again).unwrap()["metadata"]["resourceVersion"], "43");
    }

    #[test]
    fn list_items_have_a_type_only_where_upstream_sets_it() {
        for (group, plural, typed) in [
            ("", "pods", false),
            ("snapshot.storage.k8s.io", "volumesnapshots", true),
            ("events.k8s.io", "events", false),
        ] {
            let kind = kinds::find(group, "v1", plural).unwrap();
            let mut item = Vec::new();
            write_item(kind, br#"{"metadata":{"name":"x"}}"#, &mut item).unwrap();
            let item: Value = serde_json::from_slice(&item).unwrap();
            assert_eq!(item.get("kind").is_some(), typed, "{plural}.{group}");
        }
    }

    #[test]
    fn events_expire() {
        for group in ["", "events.k8s.io"] {
            let kind = kinds::find(group, "v1", "events").unwrap();
            assert_eq!(body(kind, &json!({"metadata": {}}), Time(5)).expires, Some(3_600_005));
        }
    }
}
