//! Helpers for the tests of all kinds.

use serde_json::Value;

use super::{Admission, Kind, Lookup, Operation};
use crate::status::{Cause, StatusError};

/// The field and message of each cause, one line each.
pub(super) fn lines(causes: Vec<Cause>) -> Vec<String> {
    causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

/// The object with a merge patch applied.
pub(super) fn with(object: &Value, patch: &Value) -> Value {
    let mut object = object.clone();
    merge(&mut object, patch);
    object
}

fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(serde_json::Map::new());
    }
    let map = object.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The validation errors on create of a valid object with a patch applied.
pub(super) fn invalid(kind: &Kind, valid: &Value, patch: &Value) -> Vec<String> {
    let mut object = with(valid, patch);
    (kind.default)(&mut object);
    lines(kind.invalid_on_create(&object))
}

/// The validation errors when a valid object is updated by a patch. Each error is returned once.
pub(super) fn invalid_update(kind: &Kind, valid: &Value, patch: &Value) -> Vec<String> {
    let mut old = valid.clone();
    (kind.default)(&mut old);
    old["metadata"]["resourceVersion"] = "1".into();
    old["metadata"]["uid"] = "u".into();
    let mut new = with(&old, patch);
    (kind.default)(&mut new);
    kind.prepare_update(&mut new, &old, wharf_model::Time(0));
    let mut all = Vec::new();
    for line in lines(kind.invalid_on_update(&new, &old)) {
        if !all.contains(&line) {
            all.push(line);
        }
    }
    all
}

/// A lookup in a fixed list of objects, each with the plural name of its kind.
pub(super) struct FakeLookup(pub(super) Vec<(&'static str, Value)>);

impl Lookup for FakeLookup {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value> {
        self.list(kind, namespace).into_iter().find(|object| object["metadata"]["name"] == name)
    }

    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Value> {
        self.0
            .iter()
            .filter(|(plural, object)| {
                *plural == kind.plural
                    && object["metadata"]["namespace"].as_str().unwrap_or_default() == namespace
            })
            .map(|(_, object)| object.clone())
            .collect()
    }
}

/// Runs mutating and validating admission.
pub(super) fn admit(
    kind: &Kind,
    object: &mut Value,
    operation: Operation,
    old: Option<&Value>,
    others: &FakeLookup,
) -> Result<(), StatusError> {
    let admission = Admission { operation, subresource: "", old, lookup: others };
    (kind.admit)(object, &admission)?;
    (kind.validate_admission)(object, &admission)
}
