//! Strategic merge patch: objects are merged field by field and lists by their merge key, as the schema says; the
//! directives `$patch`, `$retainKeys`, `$setElementOrder/x` and `$deleteFromPrimitiveList/x` say otherwise.

mod list;

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::go_words;
use super::merge::without_nulls;
use crate::schema::{Schema, Shape};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder";
const DELETE: &str = "$deleteFromPrimitiveList";

const BAD_RETAIN_KEYS: Error = Error::Format("invalid patch format of retainKeys");
const BAD_ORDER: Error = Error::Format("invalid patch format of setElementOrder list");
const BAD_DELETE: Error = Error::Format("invalid patch format of primitive list");

/// Why a patch does not apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Error {
    /// It is none.
    Format(&'static str),
    /// Those are never merged.
    ListOfLists,
    /// Upstream calls this an error of the server's, in these words.
    Other(String),
}

type Object = Map<String, Value>;

pub(super) fn apply(schema: &'static Schema, object: &Value, patch: &Value) -> Result<Value, Error> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(Error::Format("invalid JSON document"));
    };
    merge(Within::Object(schema), object.clone(), patch.clone()).map(Value::Object)
}

/// What is known of the fields of an object that is being merged.
#[derive(Clone, Copy)]
enum Within {
    /// All of them.
    Object(&'static Schema),
    /// Nothing: it is a map. Its values are not merged.
    Map,
}

impl Within {
    fn shape(self, field: &str) -> Result<(Shape, Option<crate::schema::Merge>), Error> {
        match self {
            Self::Map => Err(Error::Other(
                "merging an object in json but data type is not struct, instead is: map".to_owned(),
            )),
            Self::Object(schema) => schema.shape(field).ok_or_else(|| {
                let name = schema.go_name();
                Error::Other(format!(
                    "unable to find api field in struct {name} for the json field {field:?}"
                ))
            }),
        }
    }
}

/// What the elements of a list are, and by which key they are merged.
#[derive(Clone, Copy)]
struct Elements {
    within: Within,
    /// None: the list is replaced.
    merge: Option<&'static str>,
}

impl Elements {
    fn of(within: Within, field: &str) -> Result<Self, Error> {
        match within.shape(field)? {
            (Shape::List(Some(schema)), merge) => {
                Ok(Self { within: Within::Object(schema), merge: merge.map(|merge| merge.key) })
            }
            (Shape::List(None), merge) => {
                Ok(Self { within: Within::Map, merge: merge.map(|merge| merge.key) })
            }
            (Shape::Object(_) | Shape::Free | Shape::Plain, _) => {
                Err(Error::Other("expected slice or array type, but got: struct".to_owned()))
            }
        }
    }
}

fn merge(within: Within, mut original: Object, mut patch: Object) -> Result<Object, Error> {
    if let Some(directive) = patch.remove(PATCH) {
        return match directive.as_str() {
            // As it stands, with whatever else is in it.
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Object::new()),
            _ => {
                let words = go_words(&directive);
                patch.insert(PATCH.into(), directive);
                Err(Error::Other(format!(
                    "unknown patch type: {words} in map: {}",
                    go_words(&Value::Object(patch))
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
            (Some(Value::Object(there)), Value::Object(value)) => {
                let within = match within.shape(&field)?.0 {
                    Shape::Object(schema) => Within::Object(schema),
                    Shape::Free | Shape::List(_) | Shape::Plain => Within::Map,
                };
                Some(Value::Object(merge(within, there, value)?))
            }
            (Some(Value::Array(there)), Value::Array(value)) => {
                let elements = Elements::of(within, &field)?;
                Some(Value::Array(list::merge(elements, there, value, deletes)?))
            }
            (there, _) if deletes => there,
            (_, value) => without_directives(without_nulls(&value)),
        };
        if let Some(merged) = merged {
            original.insert(field, merged);
        }
    }
    Ok(original)
}

/// `x` of `$directive/x`.
fn named_by<'a>(key: &'a str, directive: &str) -> Option<&'a str> {
    key.strip_prefix(directive)?.strip_prefix('/')
}

/// `$retainKeys`: what it does not name goes, and the patch may not name anything else.
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

/// `$setElementOrder/x`: merges that list, and puts it in the order that is given. Elements that are not in the order
/// keep their places among their neighbours.
fn set_order(within: Within, original: &mut Object, patch: &mut Object) -> Result<(), Error> {
    let orders: Vec<String> = patch.keys().filter(|key| key.starts_with(ORDER)).cloned().collect();
    for key in orders {
        let array = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => {
                let found = go_type(&other);
                Err(Error::Other(format!("expected a []interface {{}}, but received a {found}")))
            }
        };
        let order = array(patch.remove(&key))?.unwrap_or_default();
        let field = named_by(&key, ORDER).ok_or(BAD_ORDER)?;
        let there = array(original.remove(field))?;
        let change = array(patch.remove(field))?;
        let elements = Elements::of(within, field)?;
        list::check_order(elements, change.as_deref().unwrap_or_default(), &order)?;
        let is_empty = there.as_ref().is_none_or(Vec::is_empty) && change.as_ref().is_none_or(Vec::is_empty);
        let before = list::places(
            elements,
            there.as_deref().unwrap_or_default(),
            change.as_deref().unwrap_or_default(),
        );
        let merged = match (there, change) {
            (None, None) => continue,
            _ if is_empty => return Err(Error::Other("no elements in any of the given slices".to_owned())),
            (Some(there), None) => there,
            (None, Some(change)) => match without_directives(Value::Array(change)) {
                Some(Value::Array(list)) => list,
                _ => continue,
            },
            (Some(there), Some(change)) => list::merge(elements, there, change, false)?,
        };
        let ordered = list::arrange(elements, merged, &order, &before)?;
        original.insert(field.to_owned(), Value::Array(ordered));
    }
    Ok(())
}

/// What upstream has left of a patch when it has merged it, and prints in its messages: without the directives that it
/// has followed, and the lists that had an order.
pub(super) fn left(patch: &Value) -> Value {
    let Value::Object(map) = patch else { return patch.clone() };
    let ordered = |key: &str| map.contains_key(&format!("{ORDER}/{key}"));
    let stays = |key: &str| key != RETAIN_KEYS && !key.starts_with(ORDER) && !ordered(key);
    map.iter().filter(|(key, _)| stays(key)).map(|(key, value)| (key.clone(), left(value))).collect()
}

/// What is new has nothing to be merged with: an object with a directive is not there at all.
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

/// What Go holds a JSON value in.
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
