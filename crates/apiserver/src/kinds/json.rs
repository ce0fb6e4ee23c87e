//! Accessors for JSON objects. A missing value, or a value of the wrong type, reads as empty: types are checked before
//! any rule sees an object.

use serde_json::{Map, Value};
use wharf_model::Quantity;

/// The string at a pointer; empty if there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A copy of the value at a pointer; null if there is none.
pub(super) fn at(object: &Value, pointer: &str) -> Value {
    object.pointer(pointer).cloned().unwrap_or_default()
}

/// The list at a pointer; empty if there is none.
pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Key and value of each entry of the map at a pointer.
pub(super) fn entries<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    object
        .pointer(pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value))
}

/// Whether the value at a pointer is set and not null.
pub(super) fn has(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).is_some_and(|value| !value.is_null())
}

/// The boolean at a pointer; false if there is none.
pub(super) fn flag(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

/// The integer at a pointer.
pub(super) fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// The quantity at a pointer.
pub(super) fn quantity(object: &Value, pointer: &str) -> Option<Quantity> {
    match object.pointer(pointer)? {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

/// The object in a field, created if it is missing.
pub(super) fn object_mut<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if !object[field].is_object() {
        object[field] = Value::Object(Map::new());
    }
    match &mut object[field] {
        Value::Object(map) => map,
        _ => unreachable!("the field was set to an object above"),
    }
}

/// Sets a field of an object unless it is already set.
pub(super) fn set_default(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    if map.get(field).is_none_or(Value::is_null) {
        map.insert(field.into(), value.into());
    }
}

/// Restores a field from the old object, or removes it if the old object does not have it.
pub(super) fn restore(object: &mut Value, old: &Value, field: &str) {
    let Value::Object(map) = object else { return };
    match old.get(field) {
        Some(value) => map.insert(field.into(), value.clone()),
        None => map.remove(field),
    };
}

/// Removes a field.
pub(super) fn remove(object: &mut Value, field: &str) {
    if let Value::Object(map) = object {
        map.remove(field);
    }
}

/// An annotation of an object.
pub(super) fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

/// Sets missing times to null in each object of the list at a pointer, as Go serializes them.
pub(super) fn null_missing_times(object: &mut Value, pointer: &str, fields: &[&str]) {
    let Some(Value::Array(list)) = object.pointer_mut(pointer) else { return };
    for object in list.iter_mut().filter_map(Value::as_object_mut) {
        for field in fields {
            object.entry(*field).or_insert(Value::Null);
        }
    }
}
