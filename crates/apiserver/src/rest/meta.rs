//! The parts of an object that all kinds have, read and written in its JSON.

use serde_json::{Map, Value, json};

/// The text at a JSON pointer; empty if there is none.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// `metadata.name`.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// `metadata.uid`.
pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// `metadata.resourceVersion`.
pub(crate) fn version(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}

/// Whether its deletion was asked for.
pub(crate) fn is_deleting(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// The texts in the list at a pointer.
pub(crate) fn texts<'a>(object: &'a Value, pointer: &str) -> Vec<&'a str> {
    let list = object.pointer(pointer).and_then(Value::as_array);
    list.map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

/// `metadata.finalizers`.
pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    texts(object, "/metadata/finalizers")
}

/// `metadata.deletionGracePeriodSeconds`.
pub(crate) fn grace(object: &Value) -> Option<i64> {
    object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64)
}

/// The map of that name, which is made if there is none: `metadata`, `status`.
pub(crate) fn map<'a>(object: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let slot = &mut object[name];
    if !slot.is_object() {
        *slot = json!({});
    }
    match slot {
        Value::Object(map) => map,
        // It was made one above.
        _ => unreachable!("a map was just put here"),
    }
}

/// Sets a field of `metadata`, or takes it away: null, an empty text and an empty list are none.
pub(crate) fn set(object: &mut Value, field: &str, value: Value) {
    let none = match &value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    let metadata = map(object, "metadata");
    if none {
        metadata.remove(field);
    } else {
        metadata.insert(field.into(), value);
    }
}

/// Gives `metadata` fields the values that they have in another object, or takes them away.
pub(crate) fn keep(object: &mut Value, from: &Value, fields: &[&str]) {
    for field in fields {
        let value = from.get("metadata").and_then(|metadata| metadata.get(field)).cloned();
        set(object, field, value.unwrap_or(Value::Null));
    }
}

/// Whether the object may go for good at the end of a write that leaves it so: its deletion was asked for, nobody
/// holds it any more, and no node has it in its hands.
pub(crate) fn is_released(new: &Value, old: &Value) -> bool {
    is_deleting(old)
        && finalizers(new).is_empty()
        && matches!(grace(old), None | Some(0))
        // Only namespaces have these: their content goes first.
        && (text(new, "/kind") != "Namespace" || texts(new, "/spec/finalizers").is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released() {
        let deleting = |more: Value| {
            let mut object =
                json!({"kind": "Pod", "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
            let metadata = map(&mut object, "metadata");
            metadata.extend(more.as_object().unwrap().clone());
            object
        };
        let free = deleting(json!({}));
        let held = deleting(json!({"finalizers": ["a/b"], "deletionGracePeriodSeconds": 0}));
        let on_a_node = deleting(json!({"deletionGracePeriodSeconds": 30}));
        let alive = json!({"metadata": {}});
        assert!(is_released(&free, &held));
        assert!(!is_released(&held, &held));
        assert!(!is_released(&free, &on_a_node));
        assert!(!is_released(&alive, &alive));
        let mut namespace = free.clone();
        namespace["kind"] = "Namespace".into();
        assert!(is_released(&namespace, &free));
        namespace["spec"] = json!({"finalizers": ["kubernetes"]});
        assert!(!is_released(&namespace, &free));
    }

    #[test]
    fn fields_of_metadata() {
        let mut object = json!({"metadata": {"uid": "u", "finalizers": ["a"]}});
        set(&mut object, "finalizers", json!([]));
        set(&mut object, "name", "x".into());
        assert_eq!(object, json!({"metadata": {"uid": "u", "name": "x"}}));
        keep(&mut object, &json!({"metadata": {"name": "y"}}), &["uid", "name"]);
        assert_eq!(object, json!({"metadata": {"name": "y"}}));
        let mut nothing = Value::Null;
        set(&mut nothing, "name", "x".into());
        assert_eq!(name(&nothing), "x");
    }
}
