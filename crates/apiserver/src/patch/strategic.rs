//! Strategic merge patch: merges objects field by field, and lists by the merge key in the schema. The directives
//! `$patch`, `$retainKeys`, `$setElementOrder/x` and `$deleteFromPrimitiveList/x` change this.

mod list;

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::go_format;
use super::merge::without_nulls;
use crate::schema::{Schema, Shape};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder";
const DELETE: &str = "$deleteFromPrimitiveList";

const BAD_RETAIN_KEYS: Error = Error::Malformed("invalid patch format of retainKeys");
const BAD_ORDER: Error = Error::Malformed("invalid patch format of setElementOrder list");
const BAD_DELETE: Error = Error::Malformed("invalid patch format of primitive list");

/// Why a patch does not apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Error {
    /// The patch is malformed.
    Malformed(&'static str),
    /// A list of lists cannot be merged.
    ListOfLists,
    /// Upstream reports this as a server error, with this message.
    Server(String),
}

type Object = Map<String, Value>;

pub(super) fn apply(schema: &'static Schema, object: &Value, patch: &Value) -> Result<Value, Error> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(Error::Malformed("invalid JSON document"));
    };
    merge(ParentType::Object(schema), object.clone(), patch.clone()).map(Value::Object)
}

/// The schema of an object that is being merged.
#[derive(Clone, Copy)]
enum ParentType {
    /// An object with known fields.
    Object(&'static Schema),
    /// A map, whose values are not merged.
    Map,
}

impl ParentType {
    fn shape(self, field: &str) -> Result<(Shape, Option<crate::schema::MergeStrategy>), Error> {
        match self {
            Self::Map => Err(Error::Server(
                "merging an object in json but data type is not struct, instead is: map".to_owned(),
            )),
            Self::Object(schema) => schema.shape(field).ok_or_else(|| {
                let name = schema.go_name();
                Error::Server(format!(
                    "unable to find api field in struct {name} for the json field {field:?}"
                ))
            }),
        }
    }
}

/// The elements of a list, and the key by which they are merged.
#[derive(Clone, Copy)]
struct Elements {
    within: ParentType,
    /// `None` if the list is replaced.
    merge: Option<&'static str>,
}

impl Elements {
    fn of(within: ParentType, field: &str) -> Result<Self, Error> {
        match within.shape(field)? {
            (Shape::List(Some(schema)), merge) => {
                Ok(Self { within: ParentType::Object(schema), merge: merge.map(|merge| merge.key) })
            }
            (Shape::List(None), merge) => {
                Ok(Self { within: ParentType::Map, merge: merge.map(|merge| merge.key) })
            }
            (Shape::Object(_) | Shape::Free | Shape::Plain, _) => {
                Err(Error::Server("expected slice or array type, but got: struct".to_owned()))
            }
        }
    }
}

fn merge(within: ParentType, mut original: Object, mut patch: Object) -> Result<Object, Error> {
    if let Some(directive) = patch.remove(PATCH) {
        return match directive.as_str() {
            // Replaces the object with the patch as is.
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Object::new()),
            _ => {
                let printed = go_format(&directive);
                patch.insert(PATCH.into(), directive);
                Err(Error::Server(format!(
                    "unknown patch type: {printed} in map: {}",
                    go_format(&Value::Object(patch))
                )))
            }
        };
    }
    retain_keys(&mut original, &mut patch)?;
    set_order(within, &mut original, &mut patch)?;
    for (key, value) in patch {
        let (field, deletes) = match key.starts_with(DELETE) {
            true => (named_by(&key, DELETE).ok_or(BAD_DELETE)?.to_owned(), true),
            false => (key, false),
        };
        if value.is_null() {
            original.remove(&field);
            continue;
        }
        let merged = match (original.remove(&field), value) {
            (Some(Value::Object(existing)), Value::Object(value)) => {
                let within = match within.shape(&field)?.0 {
                    Shape::Object(schema) => ParentType::Object(schema),
                    Shape::Free | Shape::List(_) | Shape::Plain => ParentType::Map,
                };
                Some(Value::Object(merge(within, existing, value)?))
            }
            (Some(Value::Array(existing)), Value::Array(value)) => {
                let elements = Elements::of(within, &field)?;
                Some(Value::Array(list::merge(elements, existing, value, deletes)?))
            }
            (existing, _) if deletes => existing,
            (_, value) => without_directives(without_nulls(&value)),
        };
        if let Some(merged) = merged {
            original.insert(field, merged);
        }
    }
    Ok(original)
}

/// Returns `x` of `$directive/x`.
fn named_by<'a>(key: &'a str, directive: &str) -> Option<&'a str> {
    key.strip_prefix(directive)?.strip_prefix('/')
}

/// `$retainKeys`: removes all keys that it does not list. The patch must not set other keys.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), Error> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let keys = keys.as_array().ok_or(BAD_RETAIN_KEYS)?;
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let retained = |key: &str| keys.contains(key);
    for (key, value) in &*patch {
        if !value.is_null() && !key.starts_with(DELETE) && !key.starts_with(ORDER) && !retained(key) {
            return Err(BAD_RETAIN_KEYS);
        }
    }
    original.retain(|key, _| retained(key));
    Ok(())
}

/// `$setElementOrder/x`: merges the list and sorts it in the given order. Elements that the order does not list keep
/// their position relative to their neighbours.
fn set_order(within: ParentType, original: &mut Object, patch: &mut Object) -> Result<(), Error> {
    let orders: Vec<String> = patch.keys().filter(|key| key.starts_with(ORDER)).cloned().collect();
    for key in orders {
        let array = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => {
                let found = go_type(&other);
                Err(Error::Server(format!("expected a []interface {{}}, but received a {found}")))
            }
        };
        let order = array(patch.remove(&key))?.unwrap_or_default();
        let field = named_by(&key, ORDER).ok_or(BAD_ORDER)?;
        let existing = array(original.remove(field))?;
        let change = array(patch.remove(field))?;
        let elements = Elements::of(within, field)?;
        list::check_order(elements, change.as_deref().unwrap_or_default(), &order)?;
        let is_empty =
            existing.as_ref().is_none_or(Vec::is_empty) && change.as_ref().is_none_or(Vec::is_empty);
        let before = list::previous_order(
            elements,
            existing.as_deref().unwrap_or_default(),
            change.as_deref().unwrap_or_default(),
        );
        let merged = match (existing, change) {
            (None, None) => continue,
            _ if is_empty => return Err(Error::Server("no elements in any of the given slices".to_owned())),
            (Some(existing), None) => existing,
            (None, Some(change)) => match without_directives(Value::Array(change)) {
                Some(Value::Array(list)) => list,
                _ => continue,
            },
            (Some(existing), Some(change)) => list::merge(elements, existing, change, false)?,
        };
        let ordered = list::reorder(elements, merged, &order, &before)?;
        original.insert(field.to_owned(), Value::Array(ordered));
    }
    Ok(())
}

/// The patch as upstream prints it in error messages after merging: without the processed directives, and without the
/// lists that had an order.
pub(super) fn without_processed_directives(patch: &Value) -> Value {
    let Value::Object(map) = patch else { return patch.clone() };
    let ordered = |key: &str| map.contains_key(&format!("{ORDER}/{key}"));
    let stays = |key: &str| key != RETAIN_KEYS && !key.starts_with(ORDER) && !ordered(key);
    map.iter()
        .filter(|(key, _)| stays(key))
        .map(|(key, value)| (key.clone(), without_processed_directives(value)))
        .collect()
}

/// Removes objects with a directive from a new value, which has nothing to merge with.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(PATCH) => None,
        Value::Object(map) => {
            Some(map.into_iter().filter_map(|(key, value)| Some((key, without_directives(value)?))).collect())
        }
        Value::Array(list) => Some(list.into_iter().filter_map(without_directives).collect()),
        plain => Some(plain),
    }
}

/// The Go type of a JSON value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
