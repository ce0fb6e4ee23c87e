//! What each kind looks like: its fields and their types, how Go holds them, and how patches merge them.
//!
//! The tables are written at build time (`build.rs`) and are data of the program: nothing is parsed at the start.
//! [`Schema::conform`] makes of any JSON an object of its kind as upstream would write it, or says what does not fit.

mod base64;
mod conform;
mod duplicates;
mod openapi;
mod protobuf;
mod time;

use std::fmt;

pub use conform::{Conformed, TypeError};
pub use duplicates::duplicates;
pub use openapi::{openapi_v2, openapi_v3, openapi_v3_index};
pub use protobuf::{ProtobufError, from_protobuf};

/// A kind, or an object within one.
pub struct Schema {
    /// As OpenAPI names it: `io.k8s.api.core.v1.Pod`. Empty for an object within a kind that has no name.
    name: &'static str,
    doc: &'static str,
    /// Of a kind; empty for what is within one.
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// From a CustomResourceDefinition: upstream holds it as JSON, and has no strategic merge for it.
    custom: bool,
    /// By name.
    fields: &'static [Field],
}

/// One field of an object.
struct Field {
    name: &'static str,
    doc: &'static str,
    kind: Type,
    held: Held,
    /// By OpenAPI.
    required: bool,
    /// Go's name of the type, where it has one of its own.
    go: &'static str,
    /// All there are, if they are known.
    values: &'static [&'static str],
    /// How patches merge the list; otherwise they replace it.
    merge: Option<Merge>,
    /// The list's type, where the merge does not tell: `map(a|b)`.
    list: Option<&'static str>,
}

/// How a strategic merge patch merges a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Elements are the same if this field is; empty for a list of plain values.
    pub(crate) key: &'static str,
    /// OpenAPI tells clients to send `$retainKeys`.
    retain_keys: bool,
}

/// How Go holds a field, and so what becomes of a zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// By a pointer: written as it was given.
    Kept,
    /// By a pointer, and written as null if it was not given.
    Nullable,
    /// By value: always written.
    Filled,
    /// By value: written unless it is zero.
    Omitted,
}

/// What a field holds.
enum Type {
    Text,
    /// Base64.
    Bytes,
    Bool,
    Int32,
    Int64,
    /// RFC 3339, written in whole seconds.
    Time,
    /// RFC 3339, with six digits after the point.
    MicroTime,
    /// RFC 3339, written as it was given: in custom kinds.
    Stamp,
    Quantity,
    IntOrString,
    /// Any JSON.
    Any,
    List(&'static Type),
    Map(&'static Type),
    Object(&'static Schema),
}

include!(concat!(env!("OUT_DIR"), "/schemas.rs"));

/// The schema of a kind in the version that is served. The core group is empty.
pub fn of(group: &str, kind: &str) -> Option<&'static Schema> {
    let at = KINDS.binary_search_by(|schema| (schema.group, schema.kind).cmp(&(group, kind))).ok()?;
    Some(KINDS[at])
}

/// What is known of one field's value when patches are merged.
pub(crate) enum Shape {
    /// An object with fields.
    Object(&'static Schema),
    /// A map, or anything.
    Free,
    /// A list, and what its elements are.
    List(Option<&'static Schema>),
    /// A plain value.
    Plain,
}

impl fmt::Debug for Schema {
    /// By name: the whole of it is long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({})", self.name)
    }
}

impl Schema {
    /// `PersistentVolumeClaim`; empty for what is no kind.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Its group; empty for the core.
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// `v1`.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// Whether upstream has it from a CustomResourceDefinition.
    pub fn is_custom(&self) -> bool {
        self.custom
    }

    fn field(&self, name: &str) -> Option<&'static Field> {
        let at = self.fields.binary_search_by(|field| field.name.cmp(name)).ok()?;
        Some(&self.fields[at])
    }

    /// What a field is to a strategic merge patch.
    pub(crate) fn shape(&self, name: &str) -> Option<(Shape, Option<Merge>)> {
        let field = self.field(name)?;
        let shape = match &field.kind {
            Type::Object(schema) => Shape::Object(schema),
            Type::List(Type::Object(schema)) => Shape::List(Some(schema)),
            Type::List(_) => Shape::List(None),
            Type::Map(_) | Type::Any => Shape::Free,
            Type::Text | Type::Bytes | Type::Bool | Type::Int32 | Type::Int64 => Shape::Plain,
            Type::Time | Type::MicroTime | Type::Stamp | Type::Quantity | Type::IntOrString => Shape::Plain,
        };
        Some((shape, field.merge))
    }

    /// Go's name of the struct, without its package: `Pod`.
    pub(crate) fn go_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    /// Go's name: `v1.Pod`.
    fn go(&self) -> &'static str {
        let dots = self.name.rmatch_indices('.').nth(1);
        dots.map_or(self.name, |(at, _)| &self.name[at + 1..])
    }
}

#[cfg(test)]
mod tests;
