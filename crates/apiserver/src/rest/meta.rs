//! Accessors for the metadata that all kinds have, on their JSON.

use serde_json::{Map, Value, json};

/// The string at a JSON pointer; empty if there is none.
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

/// Whether the object is being deleted.
pub(crate) fn is_deleting(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// The strings in the array at a JSON pointer.
pub(crate) fn strings<'a>(object: &'a Value, pointer: &str) -> Vec<&'a str> {
    let list = object.pointer(pointer).and_then(Value::as_array);
    list.map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

/// `metadata.finalizers`.
pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    strings(object, "/metadata/finalizers")
}

/// `metadata.deletionGracePeriodSeconds`.
pub(crate) fn grace(object: &Value) -> Option<i64> {
    object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64)
}

/// The top-level field of that name (`metadata`, `status`) as a map, created if it does not exist.
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
        // Created above.
        _ => unreachable!("a map was just created here"),
    }
}

/// Sets a field of `metadata`, or removes it: null, an empty string and an empty list remove it.
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

/// Copies `metadata` fields from another object, removing those that it lacks.
pub(crate) fn copy_fields(object: &mut Value, from: &Value, fields: &[&str]) {
    for field in fields {
        let value = from.get("metadata").and_then(|metadata| metadata.get(field)).cloned();
        set(object, field, value.unwrap_or(Value::Null));
    }
}

/// Whether an update from `old` to `new` must remove the object: it is being deleted, has no finalizers left, and no
/// grace period is running.
pub(crate) fn can_be_removed(new: &Value, old: &Value) -> bool {
    is_deleting(old)
        && finalizers(new).is_empty()
        && matches!(grace(old), None | Some(0))
        // Only namespaces have `spec.finalizers`: their content must be deleted first.
        && (text(new, "/kind") != "Namespace" || strings(new, "/spec/finalizers").is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_object_can_be_removed_without_finalizers_and_grace_period() {
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
        assert!(can_be_removed(&free, &held));
        assert!(!can_be_removed(&held, &held));
        assert!(!can_be_removed(&free, &on_a_node));
        assert!(!can_be_removed(&alive, &alive));
        let mut namespace = free.clone();
        namespace["kind"] = "Namespace".into();
        assert!(can_be_removed(&namespace, &free));
        namespace["spec"] = json!({"finalizers": ["kubernetes"]});
        assert!(!can_be_removed(&namespace, &free));
    }

    #[test]
    fn empty_metadata_fields_are_removed() {
        let mut object = json!({"metadata": {"uid": "u", "finalizers": ["a"]}});
        set(&mut object, "finalizers", json!([]));
        set(&mut object, "name", "x".into());
        assert_eq!(object, json!({"metadata": {"uid": "u", "name": "x"}}));
        copy_fields(&mut object, &json!({"metadata": {"name": "y"}}), &["uid", "name"]);
        assert_eq!(object, json!({"metadata": {"name": "y"}}));
        let mut nothing = Value::Null;
        set(&mut nothing, "name", "x".into());
        assert_eq!(name(&nothing), "x");
    }
}
