//! The schema of each kind: fields and their types, how Go declares them, and how patches merge them.
//!
//! `build.rs` generates the tables as static data, so nothing is parsed at startup. [`Schema::conform`] converts JSON to
//! an object of its kind as upstream would serialize it, or reports what does not fit.

mod base64;
mod conform;
mod duplicates;
mod openapi;
mod protobuf;
mod time;

use std::fmt;

pub use conform::{Conformed, TypeError};
pub use duplicates::duplicate_fields;
pub use openapi::{openapi_v2, openapi_v3, openapi_v3_index};
pub use protobuf::{ProtobufError, from_protobuf};

/// The schema of a kind, or of an object within one.
pub struct Schema {
    /// The name in OpenAPI: `io.k8s.api.core.v1.Pod`. Empty for anonymous objects within a kind.
    name: &'static str,
    doc: &'static str,
    /// Empty for an object within a kind.
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// From a CustomResourceDefinition: upstream stores it as JSON and does not support strategic merge.
    custom: bool,
    /// Sorted by name.
    fields: &'static [Field],
}

/// One field of an object.
struct Field {
    name: &'static str,
    doc: &'static str,
    kind: Type,
    presence: Presence,
    /// Required in OpenAPI.
    required: bool,
    /// Go's name of the type, if it is a named type.
    go: &'static str,
    /// The enum values, if there are any.
    values: &'static [&'static str],
    /// How strategic merge patches merge the list; `None` if they replace it.
    merge: Option<MergeStrategy>,
    /// The list type, if it does not follow from the merge key: `map(a|b)`.
    list: Option<&'static str>,
}

/// How a strategic merge patch merges a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MergeStrategy {
    /// The merge key, a field of the elements; empty for a list of scalars.
    pub(crate) key: &'static str,
    /// The patch strategy in OpenAPI includes `retainKeys`.
    retain_keys: bool,
}

/// How Go declares a field, which determines whether a zero value is serialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// A pointer with `omitempty`: serialized as given.
    AsGiven,
    /// A pointer without `omitempty`: null if unset.
    NullIfUnset,
    /// A value without `omitempty`: always serialized.
    Always,
    /// A value with `omitempty`: omitted if it is zero.
    OmitZero,
}

/// The type of a field.
enum Type {
    Text,
    /// Base64.
    Bytes,
    Bool,
    Int32,
    Int64,
    /// RFC 3339, serialized in whole seconds.
    Time,
    /// RFC 3339, with exactly six fractional digits.
    MicroTime,
    /// RFC 3339, serialized as given: in custom kinds.
    DateTime,
    Quantity,
    IntOrString,
    /// Any JSON.
    Any,
    List(&'static Type),
    Map(&'static Type),
    Object(&'static Schema),
}

include!(concat!(env!("OUT_DIR"), "/schemas.rs"));

/// Returns the schema of a kind in its served version. The core group is empty.
pub fn find(group: &str, kind: &str) -> Option<&'static Schema> {
    let at = KINDS.binary_search_by(|schema| (schema.group, schema.kind).cmp(&(group, kind))).ok()?;
    Some(KINDS[at])
}

/// The shape of a field's value, for strategic merge.
pub(crate) enum Shape {
    /// An object with fields.
    Object(&'static Schema),
    /// A map or any JSON.
    Free,
    /// A list, with the schema of its elements if they are objects.
    List(Option<&'static Schema>),
    /// A scalar.
    Plain,
}

impl fmt::Debug for Schema {
    /// Prints only the name: the full schema is long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({})", self.name)
    }
}

impl Schema {
    /// The kind, as in `PersistentVolumeClaim`; empty for an object within a kind.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The API group; empty for the core group.
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// The API version: `v1`.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// Whether the kind is a custom resource upstream.
    pub fn is_custom(&self) -> bool {
        self.custom
    }

    fn field(&self, name: &str) -> Option<&'static Field> {
        let at = self.fields.binary_search_by(|field| field.name.cmp(name)).ok()?;
        Some(&self.fields[at])
    }

    /// The shape of a field, and how a strategic merge patch merges it.
    pub(crate) fn shape(&self, name: &str) -> Option<(Shape, Option<MergeStrategy>)> {
        let field = self.field(name)?;
        let shape = match &field.kind {
            Type::Object(schema) => Shape::Object(schema),
            Type::List(Type::Object(schema)) => Shape::List(Some(schema)),
            Type::List(_) => Shape::List(None),
            Type::Map(_) | Type::Any => Shape::Free,
            Type::Text | Type::Bytes | Type::Bool | Type::Int32 | Type::Int64 => Shape::Plain,
            Type::Time | Type::MicroTime | Type::DateTime | Type::Quantity | Type::IntOrString => {
                Shape::Plain
            }
        };
        Some((shape, field.merge))
    }

    /// The name of the Go struct without its package: `Pod`.
    pub(crate) fn go_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    /// The name of the Go struct with its package: `v1.Pod`.
    fn go(&self) -> &'static str {
        let dots = self.name.rmatch_indices('.').nth(1);
        dots.map_or(self.name, |(at, _)| &self.name[at + 1..])
    }
}

#[cfg(test)]
mod tests;
