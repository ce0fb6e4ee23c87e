//! Merge patch (RFC 7396).

use serde_json::Value;

/// Applies a merge patch: fields replace existing ones; null removes them.
pub(super) fn apply(target: &mut Value, patch: &Value) {
    let (target, patch) = match (&mut *target, patch) {
        (Value::Object(target), Value::Object(patch)) => (target, patch),
        // Upstream keeps nulls in a list that replaces an object.
        (Value::Object(_), patch) => return *target = patch.clone(),
        (_, patch) => return *target = without_nulls(patch),
    };
    for (key, value) in patch {
        match (value, target.get_mut(key)) {
            (Value::Null, _) => {
                target.remove(key);
            }
            (value, Some(existing)) => apply(existing, value),
            (value, None) => {
                target.insert(key.clone(), without_nulls(value));
            }
        }
    }
}

/// Removes nulls from a new value, where they have nothing to remove. Lists are not patched, but upstream still removes
/// nulls from the objects in them.
pub(super) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_nulls(value)))
            .collect(),
        Value::Array(list) => list.iter().map(without_nulls).collect(),
        plain => plain.clone(),
    }
}
