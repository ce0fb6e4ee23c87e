//! Merge patch (RFC 7396).

use serde_json::Value;

/// Puts what is given in the place of what is there; null takes it away.
pub(super) fn apply(target: &mut Value, patch: &Value) {
    let (target, patch) = match (&mut *target, patch) {
        (Value::Object(target), Value::Object(patch)) => (target, patch),
        // Upstream leaves the nulls in a list that takes an object's place.
        (Value::Object(_), patch) => return *target = patch.clone(),
        (_, patch) => return *target = without_nulls(patch),
    };
    for (key, value) in patch {
        match (value, target.get_mut(key)) {
            (Value::Null, _) => {
                target.remove(key);
            }
            (value, Some(there)) => apply(there, value),
            (value, None) => {
                target.insert(key.clone(), without_nulls(value));
            }
        }
    }
}

/// There is nothing for a null to take away. Within lists there are no patches, and upstream takes the nulls out of
/// the objects in them all the same.
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
