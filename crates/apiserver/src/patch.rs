//! Patches: JSON patch (RFC 6902), merge patch (RFC 7396) and Kubernetes' strategic merge patch, with the words and
//! codes of upstream where they cannot be applied, and with what upstream allows beyond the RFCs.
//!
//! What comes out is JSON, not yet an object of its kind: [`Schema::conform`] judges that. No patch makes it deeper
//! than [`DEPTH`] or larger than any object may be ([`bounds`]), or moves more than [`COPIED`] bytes and [`SHIFTED`]
//! elements about within it.

mod json;
mod merge;
mod strategic;

use std::fmt;

use serde_json::Value;

use crate::bounds::{self, ReadError};
use crate::json_error;
use crate::schema::Schema;
use crate::status::{Cause, Refusal};

/// Operations in one JSON patch, as upstream has it.
const OPERATIONS: usize = 10_000;
/// Levels of an object: less than what a reader of JSON takes.
const DEPTH: usize = 100;
/// Bytes that one JSON patch copies or moves deeper, as upstream has it for copies.
const COPIED: usize = 3 << 20;
/// Elements that make room in lists, or close up, for one JSON patch.
const SHIFTED: usize = 20_000_000;

/// The media types, in upstream's order.
const ACCEPTED: &str =
    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";

/// A change to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// One operation after the other, or none of them.
    Json(Vec<json::Operation>),
    /// What is given replaces what is there, null removes it.
    Merge(Value),
    /// The same, but lists with a merge key are merged too, and there are directives.
    Strategic(Value),
}

impl Patch {
    /// Reads a patch. What it would do to an object is found out when it is applied.
    pub fn parse(content_type: &str, body: &[u8]) -> Result<Self, Refusal> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        match media_type {
            "application/json-patch+json" => json::parse(body).map(Self::Json),
            "application/merge-patch+json" => object(body, "error decoding patch: ").map(Self::Merge),
            "application/strategic-merge-patch+json" => object(body, "").map(Self::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+cbor" => Err(unsupported(format!(
                "server-side apply is not supported here: use kubectl apply without --server-side, or one of {ACCEPTED}"
            ))),
            _ => Err(unsupported(format!(
                "the body of the request was in an unknown format - accepted media types include: {ACCEPTED}"
            ))),
        }
    }

    /// What it does first to `metadata.resourceVersion`, if anything: a patch that names one is not tried again after
    /// a conflict.
    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Json(operations) => operations.iter().find_map(json::Operation::resource_version),
            Self::Merge(patch) | Self::Strategic(patch) => {
                patch.pointer("/metadata/resourceVersion").and_then(Value::as_str)
            }
        }
    }
}

/// An object with a patch applied to it.
pub fn apply(kind: &'static Schema, object: &Value, patch: &Patch) -> Result<Value, Refusal> {
    let patched = applied(kind, object, patch)?;
    bounds::check(&patched)?;
    Ok(patched)
}

fn applied(kind: &'static Schema, object: &Value, patch: &Patch) -> Result<Value, Refusal> {
    match patch {
        Patch::Json(operations) => json::apply(object.clone(), operations).map_err(|_| unprocessable()),
        Patch::Merge(patch) => {
            let mut patched = object.clone();
            merge::apply(&mut patched, patch);
            Ok(patched)
        }
        Patch::Strategic(_) if kind.is_custom() => Err(unsupported(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json",
        )),
        Patch::Strategic(patch) => strategic::apply(kind, object, patch).map_err(|error| match error {
            strategic::Error::Format(why) => Refusal::bad_request(why),
            strategic::Error::ListOfLists => unprocessable(),
            strategic::Error::Other(why) => Refusal::new(500, "", why),
        }),
    }
}

/// The refusal of a patch after which an object is none of its kind: `why` is a [`TypeError`](crate::schema::TypeError),
/// or `strict decoding error: ` and the fields.
pub fn unfit(patch: &Patch, patched: &Value, why: impl fmt::Display) -> Refusal {
    let value = match patch {
        Patch::Json(_) | Patch::Merge(_) => patched.to_string(),
        Patch::Strategic(patch) => go_words(&strategic::left(patch)),
    };
    Refusal::invalid("", "", "", vec![Cause::invalid("patch", &value.into(), &why.to_string())])
}

/// A body that has to be an object, or Go's words for what it is, after ours.
fn object(body: &[u8], before: &str) -> Result<Value, Refusal> {
    let why = match bounds::read(body) {
        Ok(value @ Value::Object(_)) => return Ok(value),
        Ok(value) => {
            let found = go_kind(&value);
            format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}")
        }
        Err(ReadError::TooMany(error)) => return Err(error.into()),
        Err(ReadError::NoJson(error)) => json_error::words(body, &error),
    };
    Err(Refusal::bad_request(format!("{before}{why}")))
}

fn unsupported(message: impl Into<String>) -> Refusal {
    Refusal::new(415, "UnsupportedMediaType", message)
}

/// Upstream does not tell more.
fn unprocessable() -> Refusal {
    Refusal::generic(422, "Invalid", "the server rejected our request due to an error in our request")
}

/// What Go calls a JSON value.
fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A value as Go prints it, which is how it stands in upstream's messages.
fn go_words(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(list) => format!("[{}]", list.iter().map(go_words).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", go_words(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
    }
}

#[cfg(test)]
mod tests;
