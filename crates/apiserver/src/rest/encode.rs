//! Objects on their way into the store and out of it.
//!
//! What is stored is the object without its `kind` and `apiVersion`: the key tells them, and in the lists of
//! built-in kinds upstream leaves them out too, so that a list is its entries put side by side. Events of the
//! newer group are stored as those of the core group: there is one store of events.

use bytes::Bytes;
use serde_json::{Map, Value};
use wharf_model::Time;

use super::meta;
use crate::kinds::{self, Kind};
use crate::status::Refusal;
use crate::store::{Body, Key};

/// How long an event is kept after it was last written.
const EVENTS_KEPT_MS: i64 = 3_600_000;

/// Whether it is a kind that a cluster has only by a definition of its own: upstream treats these a little otherwise.
pub(crate) fn is_custom(kind: &Kind) -> bool {
    kind.group.ends_with("snapshot.storage.k8s.io")
}

fn is_new_event(kind: &Kind) -> bool {
    kind.group == "events.k8s.io"
}

/// What the keys of a kind begin with.
pub(crate) fn prefix(kind: &Kind, namespace: &str) -> String {
    let group = if is_new_event(kind) { "" } else { kind.group };
    match (kind.namespaced, namespace) {
        (true, "") => format!("{group}/{}/", kind.plural),
        (true, namespace) => format!("{group}/{}/{namespace}/", kind.plural),
        (false, _) => format!("{group}/{}//", kind.plural),
    }
}

/// Where an object is.
pub(crate) fn key(kind: &Kind, namespace: &str, name: &str) -> Key {
    format!("{}{name}", prefix(kind, namespace)).into()
}

/// The object of a kind, as requests and rules see it.
pub(crate) fn decode(kind: &Kind, stored: &[u8]) -> Result<Value, Refusal> {
    let object: Map<String, Value> = serde_json::from_slice(stored).map_err(|error| {
        Refusal::new(
            500,
            "InternalError",
            format!("Internal error occurred: a stored {} is no JSON: {error}", kind.kind),
        )
    })?;
    Ok(dress(kind, object.into()))
}

/// Gives a stored object its type, and the shape of it.
fn dress(kind: &Kind, object: Value) -> Value {
    let mut object = if is_new_event(kind) { kinds::event_from_core(&object) } else { object };
    object["kind"] = kind.kind.into();
    object["apiVersion"] = kind.api_version().into();
    object
}

fn undress(kind: &Kind, object: &Value) -> Map<String, Value> {
    let object = if is_new_event(kind) { kinds::event_to_core(object) } else { object.clone() };
    match object {
        Value::Object(mut map) => {
            map.remove("kind");
            map.remove("apiVersion");
            map
        }
        _ => Map::new(),
    }
}

/// As it is stored, with the `resourceVersion` that it has.
pub(crate) fn stored(kind: &Kind, object: &Value) -> Bytes {
    Value::Object(undress(kind, object)).to_string().into()
}

/// As it is to be stored, with a place for its next `resourceVersion`.
pub(crate) fn body(kind: &Kind, object: &Value, now: Time) -> Body {
    let mut map = undress(kind, object);
    let mut metadata = match map.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => Map::new(),
    };
    metadata.remove("resourceVersion");
    // The place is at the front, where it is found without looking for it.
    const FRONT: &str = r#"{"metadata":{"resourceVersion":""#;
    let mut json = String::from(FRONT);
    json.push('"');
    append(&mut json, &metadata, true);
    json.push('}');
    append(&mut json, &map, true);
    json.push('}');
    let expires = (kind.plural == "events").then(|| now.0.saturating_add(EVENTS_KEPT_MS));
    Body { json: json.into(), at: FRONT.len(), expires }
}

fn append(json: &mut String, map: &Map<String, Value>, mut comma: bool) {
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

/// Writes a stored object as clients see it.
pub(crate) fn write(kind: &Kind, stored: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
    if is_new_event(kind) {
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
pub(crate) fn write_item(kind: &Kind, stored: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
    if is_custom(kind) {
        return write(kind, stored, out);
    }
    if is_new_event(kind) {
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

/// A stored object with another `resourceVersion`: what a watcher is told when an object leaves its selection.
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
    fn keys() {
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
    fn there_and_back() {
        let kind = kinds::find("", "v1", "configmaps").unwrap();
        let object = json!({
            "kind": "ConfigMap", "apiVersion": "v1", "data": {"a\"b": "\u{1}"},
            "metadata": {"name": "x", "namespace": "a", "resourceVersion": "3", "labels": {"l": "m"}},
        });
        let body = body(kind, &object, Time(0));
        assert_eq!(body.expires, None);
        let mut json = body.json.to_vec();
        assert_eq!(&json[body.at - 1..=body.at], b"\"\"");
        json.splice(body.at..body.at, *b"42");
        let mut expected = object.clone();
        expected["metadata"]["resourceVersion"] = "42".into();
        assert_eq!(decode(kind, &json).unwrap(), expected);
        let mut shown = Vec::new();
        write(kind, &json, &mut shown).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&shown).unwrap(), expected);
        let again = at_version(&json, 43);
        assert_eq!(decode(kind, &again).unwrap()["metadata"]["resourceVersion"], "43");
    }

    #[test]
    fn items_have_a_type_only_where_upstream_gives_them_one() {
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
