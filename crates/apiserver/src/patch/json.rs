//! JSON patch (RFC 6902), and what upstream's library takes beyond it: indices from the end (`-1`), `replace` of a key
//! that is not there, `test` for null of one, and `copy` of one as null.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{COPIED, DEPTH, OPERATIONS, SHIFTED, go_kind};
use crate::bounds::{self, ReadError};
use crate::status::Refusal;

/// One step of a patch.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    verb: String,
    path: Option<String>,
    from: Option<String>,
    /// Null too if it is not there: upstream makes no difference.
    value: Value,
}

impl Operation {
    /// The revision that this operation tests or sets.
    pub(super) fn resource_version(&self) -> Option<&str> {
        let named = self.path.as_deref() == Some("/metadata/resourceVersion");
        if named { self.value.as_str() } else { None }
    }
}

/// Does not apply. Why is not told, as upstream does not either.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DoesNotApply;

pub(super) fn parse(body: &[u8]) -> Result<Vec<Operation>, Refusal> {
    let bad = |why: String| Refusal::bad_request(format!("error decoding patch: {why}"));
    // The list of operations, each of them, and one of them too many: that is told by its number.
    let list = match bounds::read_beside(body, OPERATIONS + 2) {
        Ok(Value::Array(list)) => list,
        Ok(value) => {
            let found = go_kind(&value);
            return Err(bad(format!(
                "json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
            )));
        }
        Err(ReadError::TooMany(error)) => return Err(error.into()),
        Err(ReadError::NoJson(error)) => return Err(bad(crate::json_error::words(body, &error))),
    };
    if list.len() > OPERATIONS {
        let count = list.len();
        return Err(Refusal::new(
            413,
            "RequestEntityTooLarge",
            format!(
                "Request entity is too large: The allowed maximum operations in a JSON patch is {OPERATIONS}, got {count}"
            ),
        ));
    }
    list.into_iter().map(|operation| step(operation).map_err(bad)).collect()
}

fn step(operation: Value) -> Result<Operation, String> {
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

/// All of the operations, or none.
pub(super) fn apply(mut document: Value, operations: &[Operation]) -> Result<Value, DoesNotApply> {
    let mut moved = Moved::default();
    for operation in operations {
        let path = operation.path.as_deref().ok_or(DoesNotApply)?;
        let from = || operation.from.as_deref().ok_or(DoesNotApply);
        match operation.verb.as_str() {
            "add" => {
                shallow(path, &operation.value, &mut 0)?;
                add(&mut document, path, operation.value.clone(), &mut moved)?;
            }
            "remove" => drop(take(&mut document, path, &mut moved)?),
            "replace" if path.is_empty() => match &operation.value {
                value @ (Value::Object(_) | Value::Array(_)) => document = value.clone(),
                _ => return Err(DoesNotApply),
            },
            "replace" => replace(&mut document, path, operation.value.clone())?,
            "move" => {
                let value = take(&mut document, from()?, &mut moved)?;
                shallow(path, &value, &mut moved.bytes)?;
                add(&mut document, path, value, &mut moved)?;
            }
            "copy" => {
                let value = get(&document, from()?)?.unwrap_or(&Value::Null);
                shallow(path, value, &mut moved.bytes)?;
                let value = value.clone();
                add(&mut document, path, value, &mut moved)?;
            }
            "test" if path.is_empty() => expect(&document, &operation.value)?,
            "test" => expect(get(&document, path)?.unwrap_or(&Value::Null), &operation.value)?,
            _ => return Err(DoesNotApply),
        }
    }
    Ok(document)
}

/// What one patch has moved about so far: work and memory that its sender does not pay for by sending it.
#[derive(Default)]
struct Moved {
    bytes: usize,
    elements: usize,
}

impl Moved {
    /// So many elements of a list make room, or close up.
    fn shift(&mut self, elements: usize) -> Result<(), DoesNotApply> {
        self.elements = self.elements.saturating_add(elements);
        if self.elements > SHIFTED { Err(DoesNotApply) } else { Ok(()) }
    }
}

fn expect(found: &Value, wanted: &Value) -> Result<(), DoesNotApply> {
    if found == wanted { Ok(()) } else { Err(DoesNotApply) }
}

/// The object or list that holds what a path names, and the key in it. The whole document has none.
fn holder<'a, 'p>(
    document: &'a mut Value,
    path: &'p str,
) -> Result<(&'a mut Value, Cow<'p, str>), DoesNotApply> {
    // What stands before the first slash is not looked at, as upstream does not.
    let (_, path) = path.split_once('/').ok_or(DoesNotApply)?;
    let (parents, key) = match path.rsplit_once('/') {
        Some((parents, key)) => (Some(parents), key),
        None => (None, path),
    };
    let mut holder = document;
    for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
        let part = unescape(part);
        holder = match holder {
            Value::Object(map) => map.get_mut(part.as_ref()).ok_or(DoesNotApply)?,
            Value::Array(list) => {
                let at = index(&part, list.len())?;
                list.get_mut(at).ok_or(DoesNotApply)?
            }
            _ => return Err(DoesNotApply),
        };
    }
    Ok((holder, unescape(key)))
}

fn unescape(part: &str) -> Cow<'_, str> {
    if part.contains('~') { part.replace("~1", "/").replace("~0", "~").into() } else { part.into() }
}

/// Where in a list of so many; negative ones count from its end.
fn index(key: &str, length: usize) -> Result<usize, DoesNotApply> {
    let at: i64 = key.parse().map_err(|_| DoesNotApply)?;
    let length = i64::try_from(length).map_err(|_| DoesNotApply)?;
    usize::try_from(if at < 0 { at + length } else { at }).map_err(|_| DoesNotApply)
}

/// What is at a path; none for a key that is not there, an error for an index that is not.
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

fn take(document: &mut Value, path: &str, moved: &mut Moved) -> Result<Value, DoesNotApply> {
    match holder(document, path)? {
        (Value::Object(map), key) => map.remove(key.as_ref()).ok_or(DoesNotApply),
        (Value::Array(list), key) => {
            let at = index(&key, list.len())?;
            moved.shift(list.len().checked_sub(at + 1).ok_or(DoesNotApply)?)?;
            Ok(list.remove(at))
        }
        _ => Err(DoesNotApply),
    }
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), DoesNotApply> {
    shallow(path, &value, &mut 0)?;
    match holder(document, path)? {
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

fn add(document: &mut Value, path: &str, value: Value, moved: &mut Moved) -> Result<(), DoesNotApply> {
    match holder(document, path)? {
        (Value::Object(map), key) => {
            map.insert(key.into_owned(), value);
        }
        (Value::Array(list), key) if key == "-" => list.push(value),
        (Value::Array(list), key) => {
            let at = index(&key, list.len() + 1)?;
            moved.shift(list.len().checked_sub(at).ok_or(DoesNotApply)?)?;
            list.insert(at, value);
        }
        _ => return Err(DoesNotApply),
    }
    Ok(())
}

/// Refuses what would be too deep to be read again, and too much of what costs the sender nothing.
fn shallow(path: &str, value: &Value, moved: &mut usize) -> Result<(), DoesNotApply> {
    let above = path.bytes().filter(|&byte| byte == b'/').count();
    if above > DEPTH || !measure(value, DEPTH - above, moved) || *moved > COPIED {
        Err(DoesNotApply)
    } else {
        Ok(())
    }
}

/// Whether a value has at most so many levels; adds about its size.
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
