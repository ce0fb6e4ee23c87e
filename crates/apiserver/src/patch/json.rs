//! JSON patch (RFC 6902), with the extensions of upstream's library: negative indices count from the end (`-1`); for a
//! missing key, `replace` adds it, `test` finds null, and `copy` copies null.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{MAX_COPIED_BYTES, MAX_DEPTH, MAX_OPERATIONS, MAX_SHIFTED_ELEMENTS, go_kind};
use crate::bounds::{self, ParseError};
use crate::status::StatusError;

/// One operation of a JSON patch.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    verb: String,
    path: Option<String>,
    from: Option<String>,
    /// Null if it is missing: upstream does not distinguish these cases.
    value: Value,
}

impl Operation {
    /// The resourceVersion that this operation tests or sets.
    pub(super) fn resource_version(&self) -> Option<&str> {
        let named = self.path.as_deref() == Some("/metadata/resourceVersion");
        if named { self.value.as_str() } else { None }
    }
}

/// The patch does not apply. Like upstream, the error has no further information.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DoesNotApply;

pub(super) fn parse(body: &[u8]) -> Result<Vec<Operation>, StatusError> {
    let bad = |reason: String| StatusError::bad_request(format!("error decoding patch: {reason}"));
    // The allowance covers the list, the maximum number of operations, and one more, so that the error below can report
    // the number of operations.
    let list = match bounds::read_with_allowance(body, MAX_OPERATIONS + 2) {
        Ok(Value::Array(list)) => list,
        Ok(value) => {
            let found = go_kind(&value);
            return Err(bad(format!(
                "json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
            )));
        }
        Err(ParseError::TooMany(error)) => return Err(error.into()),
        Err(ParseError::Syntax(error)) => return Err(bad(crate::json_error::go_message(body, &error))),
    };
    if list.len() > MAX_OPERATIONS {
        let count = list.len();
        return Err(StatusError::new(
            413,
            "RequestEntityTooLarge",
            format!(
                "Request entity is too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
            ),
        ));
    }
    list.into_iter().map(|operation| parse_operation(operation).map_err(bad)).collect()
}

fn parse_operation(operation: Value) -> Result<Operation, String> {
    let mut map = match operation {
        Value::Object(map) => map,
        Value::Null => Map::new(),
        other => {
            let found = go_kind(&other);
            return Err(format!("json: cannot unmarshal {found} into Go value of type handlers.jsonPatchOp"));
        }
    };
    let mut text = |key: &str| match map.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!(
            "json: cannot unmarshal {} into Go struct field jsonPatchOp.{key} of type string",
            go_kind(&other)
        )),
    };
    let (verb, path, from) = (text("op")?.unwrap_or_default(), text("path")?, text("from")?);
    Ok(Operation { verb, path, from, value: map.remove("value").unwrap_or_default() })
}

/// Applies all operations, or none.
pub(super) fn apply(mut document: Value, operations: &[Operation]) -> Result<Value, DoesNotApply> {
    let mut cost = MoveCost::default();
    for operation in operations {
        let path = operation.path.as_deref().ok_or(DoesNotApply)?;
        let from = || operation.from.as_deref().ok_or(DoesNotApply);
        match operation.verb.as_str() {
            "add" => {
                check_size(path, &operation.value, &mut 0)?;
                add(&mut document, path, operation.value.clone(), &mut cost)?;
            }
            "remove" => drop(remove(&mut document, path, &mut cost)?),
            "replace" if path.is_empty() => match &operation.value {
                value @ (Value::Object(_) | Value::Array(_)) => document = value.clone(),
                _ => return Err(DoesNotApply),
            },
            "replace" => replace(&mut document, path, operation.value.clone())?,
            "move" => {
                let value = remove(&mut document, from()?, &mut cost)?;
                check_size(path, &value, &mut cost.bytes)?;
                add(&mut document, path, value, &mut cost)?;
            }
            "copy" => {
                let value = get(&document, from()?)?.unwrap_or(&Value::Null);
                check_size(path, value, &mut cost.bytes)?;
                let value = value.clone();
                add(&mut document, path, value, &mut cost)?;
            }
            "test" if path.is_empty() => expect(&document, &operation.value)?,
            "test" => expect(get(&document, path)?.unwrap_or(&Value::Null), &operation.value)?,
            _ => return Err(DoesNotApply),
        }
    }
    Ok(document)
}

/// The copied bytes and shifted list elements of a patch so far. A small patch can cause a lot of both, so they are
/// limited.
#[derive(Default)]
struct MoveCost {
    bytes: usize,
    elements: usize,
}

impl MoveCost {
    /// Counts list elements that are shifted.
    fn shift(&mut self, elements: usize) -> Result<(), DoesNotApply> {
        self.elements = self.elements.saturating_add(elements);
        if self.elements > MAX_SHIFTED_ELEMENTS { Err(DoesNotApply) } else { Ok(()) }
    }
}

fn expect(found: &Value, expected: &Value) -> Result<(), DoesNotApply> {
    if found == expected { Ok(()) } else { Err(DoesNotApply) }
}

/// The parent object or list of a path, and the key in it. The root of the document has no parent.
fn parent<'a, 'p>(
    document: &'a mut Value,
    path: &'p str,
) -> Result<(&'a mut Value, Cow<'p, str>), DoesNotApply> {
    // Like upstream, ignores the text before the first slash.
    let (_, path) = path.split_once('/').ok_or(DoesNotApply)?;
    let (parents, key) = match path.rsplit_once('/') {
        Some((parents, key)) => (Some(parents), key),
        None => (None, path),
    };
    let mut parent = document;
    for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
        let part = unescape(part);
        parent = match parent {
            Value::Object(map) => map.get_mut(part.as_ref()).ok_or(DoesNotApply)?,
            Value::Array(list) => {
                let at = index(&part, list.len())?;
                list.get_mut(at).ok_or(DoesNotApply)?
            }
            _ => return Err(DoesNotApply),
        };
    }
    Ok((parent, unescape(key)))
}

fn unescape(part: &str) -> Cow<'_, str> {
    if part.contains('~') { part.replace("~1", "/").replace("~0", "~").into() } else { part.into() }
}

/// Parses an index into a list. Negative indices count from the end.
fn index(key: &str, length: usize) -> Result<usize, DoesNotApply> {
    let at: i64 = key.parse().map_err(|_| DoesNotApply)?;
    let length = i64::try_from(length).map_err(|_| DoesNotApply)?;
    usize::try_from(if at < 0 { at + length } else { at }).map_err(|_| DoesNotApply)
}

/// The value at a path; `None` for a missing key, an error for an index out of range.
fn get<'a>(document: &'a Value, path: &str) -> Result<Option<&'a Value>, DoesNotApply> {
    let (_, path) = path.split_once('/').ok_or(DoesNotApply)?;
    let mut found = Some(document);
    for part in path.split('/') {
        let part = unescape(part);
        found = match found {
            Some(Value::Object(map)) => map.get(part.as_ref()),
            Some(Value::Array(list)) => Some(list.get(index(&part, list.len())?).ok_or(DoesNotApply)?),
            _ => return Err(DoesNotApply),
        };
    }
    Ok(found)
}

fn remove(document: &mut Value, path: &str, cost: &mut MoveCost) -> Result<Value, DoesNotApply> {
    match parent(document, path)? {
        (Value::Object(map), key) => map.remove(key.as_ref()).ok_or(DoesNotApply),
        (Value::Array(list), key) => {
            let at = index(&key, list.len())?;
            cost.shift(list.len().checked_sub(at + 1).ok_or(DoesNotApply)?)?;
            Ok(list.remove(at))
        }
        _ => Err(DoesNotApply),
    }
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), DoesNotApply> {
    check_size(path, &value, &mut 0)?;
    match parent(document, path)? {
        (Value::Object(map), key) => {
            map.insert(key.into_owned(), value);
        }
        (Value::Array(list), key) => {
            let at = index(&key, list.len())?;
            *list.get_mut(at).ok_or(DoesNotApply)? = value;
        }
        _ => return Err(DoesNotApply),
    }
    Ok(())
}

fn add(document: &mut Value, path: &str, value: Value, cost: &mut MoveCost) -> Result<(), DoesNotApply> {
    match parent(document, path)? {
        (Value::Object(map), key) => {
            map.insert(key.into_owned(), value);
        }
        (Value::Array(list), key) if key == "-" => list.push(value),
        (Value::Array(list), key) => {
            let at = index(&key, list.len() + 1)?;
            cost.shift(list.len().checked_sub(at).ok_or(DoesNotApply)?)?;
            list.insert(at, value);
        }
        _ => return Err(DoesNotApply),
    }
    Ok(())
}

/// Rejects a value that would nest the object too deeply to parse, or that exceeds the limit of copied bytes.
fn check_size(path: &str, value: &Value, cost: &mut usize) -> Result<(), DoesNotApply> {
    let above = path.bytes().filter(|&byte| byte == b'/').count();
    if above > MAX_DEPTH || !measure(value, MAX_DEPTH - above, cost) || *cost > MAX_COPIED_BYTES {
        Err(DoesNotApply)
    } else {
        Ok(())
    }
}

/// Whether a value has at most `levels` levels. Adds its approximate size to `size`.
fn measure(value: &Value, levels: usize, size: &mut usize) -> bool {
    *size += match value {
        Value::String(text) => text.len() + 2,
        _ => 4,
    };
    match value {
        Value::Object(map) => {
            levels > 0
                && map.iter().all(|(key, value)| {
                    *size += key.len() + 3;
                    measure(value, levels - 1, size)
                })
        }
        Value::Array(list) => levels > 0 && list.iter().all(|value| measure(value, levels - 1, size)),
        _ => true,
    }
}
