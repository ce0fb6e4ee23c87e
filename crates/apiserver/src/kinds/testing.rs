//! What the tables of all kinds' tests need.

use serde_json::Value;

use super::{Admission, Kind, Lookup, Operation};
use crate::status::{Cause, Refusal};

/// The words of each cause, a line each.
pub(super) fn lines(causes: Vec<Cause>) -> Vec<String> {
    causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

/// The object with a merge patch on it.
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

/// What is wrong with a new object that is the good one with a patch on it.
pub(super) fn invalid(kind: &Kind, good: &Value, patch: &Value) -> Vec<String> {
    let mut object = with(good, patch);
    (kind.default)(&mut object);
    lines(kind.invalid_on_create(&object))
}

/// What is wrong with a change of the good object by a patch; each fault once.
pub(super) fn invalid_change(kind: &Kind, good: &Value, patch: &Value) -> Vec<String> {
    let mut old = good.clone();
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

/// Other objects: kind's plural, and each object.
pub(super) struct Others(pub(super) Vec<(&'static str, Value)>);

impl Lookup for Others {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value> {
        let is = |object: &&Value| object["metadata"]["name"] == name;
        self.list(kind, namespace).iter().find(is).cloned()
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

/// Both steps of admission.
pub(super) fn admit(
    kind: &Kind,
    object: &mut Value,
    operation: Operation,
    old: Option<&Value>,
    others: &Others,
) -> Result<(), Refusal> {
    let admission = Admission { operation, subresource: "", old, lookup: others };
    (kind.admit)(object, &admission)?;
    (kind.confirm)(object, &admission)
}
