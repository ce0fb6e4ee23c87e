//! Patches: JSON patch (RFC 6902), merge patch (RFC 7396) and Kubernetes' strategic merge patch, with upstream's error
//! messages and codes, and with upstream's extensions of the RFCs.
//!
//! The result of a patch is JSON; [`Schema::conform`] then checks it against its kind. A patch cannot make an object
//! deeper than `MAX_DEPTH` or larger than the limits in `bounds`, copy more than `MAX_COPIED_BYTES` bytes, or
//! shift more than `MAX_SHIFTED_ELEMENTS` list elements.

mod json;
mod merge;
mod strategic;

use std::fmt;

use serde_json::Value;

use crate::bounds::{self, ParseError};
use crate::json_error;
use crate::schema::Schema;
use crate::status::{Cause, StatusError};

/// The maximum number of operations in a JSON patch. Upstream has the same limit.
const MAX_OPERATIONS: usize = 10_000;
/// The maximum depth of an object: less than JSON parsers accept.
const MAX_DEPTH: usize = 100;
/// The maximum number of bytes that a JSON patch copies or moves. Upstream has the same limit for copies.
const MAX_COPIED_BYTES: usize = 3 << 20;
/// The maximum number of list elements that a JSON patch shifts by inserting or removing others.
const MAX_SHIFTED_ELEMENTS: usize = 20_000_000;

/// The supported media types, in upstream's order.
const ACCEPTED_MEDIA_TYPES: &str =
    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";

/// A change to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// JSON patch: operations that are all applied in order, or not at all.
    Json(Vec<json::Operation>),
    /// Merge patch: fields replace existing ones; null removes them.
    Merge(Value),
    /// Strategic merge patch: also merges lists by their merge key, and supports directives.
    Strategic(Value),
}

impl Patch {
    /// Parses a patch without applying it.
    pub fn parse(content_type: &str, body: &[u8]) -> Result<Self, StatusError> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        match media_type {
            "application/json-patch+json" => json::parse(body).map(Self::Json),
            "application/merge-patch+json" => parse_object(body, "error decoding patch: ").map(Self::Merge),
            "application/strategic-merge-patch+json" => parse_object(body, "").map(Self::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+cbor" => Err(unsupported(format!(
                "server-side apply is not supported here: use kubectl apply without --server-side, or one of {ACCEPTED_MEDIA_TYPES}"
            ))),
            _ => Err(unsupported(format!(
                "the body of the request was in an unknown format - accepted media types include: {ACCEPTED_MEDIA_TYPES}"
            ))),
        }
    }

    /// The first `metadata.resourceVersion` in the patch, if any. A patch with a resourceVersion is not retried after a
    /// conflict.
    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Json(operations) => operations.iter().find_map(json::Operation::resource_version),
            Self::Merge(patch) | Self::Strategic(patch) => {
                patch.pointer("/metadata/resourceVersion").and_then(Value::as_str)
            }
        }
    }
}

/// Applies a patch to an object.
pub fn apply(kind: &'static Schema, object: &Value, patch: &Patch) -> Result<Value, StatusError> {
    let patched = apply_unchecked(kind, object, patch)?;
    bounds::check(&patched)?;
    Ok(patched)
}

fn apply_unchecked(kind: &'static Schema, object: &Value, patch: &Patch) -> Result<Value, StatusError> {
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
            strategic::Error::Malformed(reason) => StatusError::bad_request(reason),
            strategic::Error::ListOfLists => unprocessable(),
            strategic::Error::Server(reason) => StatusError::new(500, "", reason),
        }),
    }
}

/// The error for a patch whose result does not conform to its kind. `reason` is a
/// [`TypeError`](crate::schema::TypeError), or `strict decoding error: ` and the fields.
pub fn invalid_result_error(patch: &Patch, patched: &Value, reason: impl fmt::Display) -> StatusError {
    let value = match patch {
        Patch::Json(_) | Patch::Merge(_) => patched.to_string(),
        Patch::Strategic(patch) => go_format(&strategic::without_processed_directives(patch)),
    };
    StatusError::invalid("", "", "", vec![Cause::invalid("patch", &value.into(), &reason.to_string())])
}

/// Parses a body that must be an object. On failure, `before` precedes Go's error message.
fn parse_object(body: &[u8], before: &str) -> Result<Value, StatusError> {
    let reason = match bounds::parse(body) {
        Ok(value @ Value::Object(_)) => return Ok(value),
        Ok(value) => {
            let found = go_kind(&value);
            format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}")
        }
        Err(ParseError::TooMany(error)) => return Err(error.into()),
        Err(ParseError::Syntax(error)) => json_error::go_message(body, &error),
    };
    Err(StatusError::bad_request(format!("{before}{reason}")))
}

fn unsupported(message: impl Into<String>) -> StatusError {
    StatusError::new(415, "UnsupportedMediaType", message)
}

/// Upstream's error contains no further information.
fn unprocessable() -> StatusError {
    StatusError::generic(422, "Invalid", "the server rejected our request due to an error in our request")
}

/// Go's name for the type of a JSON value.
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

/// Formats a value as Go does in upstream's messages.
fn go_format(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(list) => format!("[{}]", list.iter().map(go_format).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", go_format(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
    }
}

#[cfg(test)]
mod tests;
