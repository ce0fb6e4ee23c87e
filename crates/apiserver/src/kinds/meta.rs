//! Metadata: the rules that all kinds have.

use serde_json::Value;

use super::Kind;
use crate::status::Cause;

/// What is wrong with the metadata of a new object.
pub(super) fn validate(_kind: &Kind, _object: &Value) -> Vec<Cause> {
    Vec::new()
}

/// What is wrong with a change of metadata.
pub(super) fn validate_update(_kind: &Kind, _object: &Value, _old: &Value) -> Vec<Cause> {
    Vec::new()
}
