//! Tables, as kubectl prints them (`metav1.Table`), and metadata-only responses (`PartialObjectMetadata`).
//!
//! The kind defines columns and cells. The caller sets the list metadata (`resourceVersion`, `continue`).

use serde_json::{Map, Value, json};
use wharf_model::Time;

use crate::kinds::{Column, Kind};

/// How much of an object a table row contains (`metav1.IncludeObjectPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncludeObject {
    /// Only the cells.
    None,
    /// The object's metadata, the default.
    Metadata,
    /// The whole object.
    Object,
}

impl IncludeObject {
    /// Parses the query parameter `includeObject`; `None` for an unknown value.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// Creates a table of objects. `columns` is false for all but the first event of a watch: their tables have no column
/// definitions.
pub fn table(
    kind: &Kind,
    objects: &[Value],
    metadata: Value,
    include: IncludeObject,
    columns: bool,
    now: Time,
) -> Value {
    let rows: Vec<Value> = objects.iter().map(|object| row(kind, object, include, now)).collect();
    let columns = if columns { kind.columns.iter().map(column).collect() } else { Value::Null };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}

/// Creates the table of one object, whose `resourceVersion` is the object's.
pub fn single_object_table(
    kind: &Kind,
    object: &Value,
    include: IncludeObject,
    columns: bool,
    now: Time,
) -> Value {
    let mut metadata = Map::new();
    if let Some(revision) = object.pointer("/metadata/resourceVersion") {
        metadata.insert("resourceVersion".into(), revision.clone());
    }
    table(kind, std::slice::from_ref(object), metadata.into(), include, columns, now)
}

fn column(column: &Column) -> Value {
    let Column { name, data_type, format, description, priority } = column;
    json!({"name": name, "type": data_type, "format": format, "description": description, "priority": priority})
}

fn row(kind: &Kind, object: &Value, include: IncludeObject, now: Time) -> Value {
    let mut row = json!({
        "cells": (kind.row)(object, now),
        "object": match include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial_metadata(object),
            IncludeObject::Object => object.clone(),
        },
    });
    let conditions = (kind.row_conditions)(object);
    if !conditions.is_empty() {
        row["conditions"] = conditions.into();
    }
    row
}

/// Reduces an object to a `PartialObjectMetadata`.
pub fn partial_metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// Creates a `PartialObjectMetadataList`.
pub fn partial_metadata_list(objects: &[Value], metadata: Value) -> Value {
    let items: Vec<Value> = objects.iter().map(partial_metadata).collect();
    json!({
        "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    fn namespace() -> Value {
        json!({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "creationTimestamp": "1970-01-01T00:00:00Z"},
            "status": {"phase": "Active"},
        })
    }

    #[test]
    fn table_has_columns_of_kind_and_row_for_each_object() {
        let kind = kinds::find("", "v1", "namespaces").unwrap();
        let table = table(
            kind,
            &[namespace()],
            json!({"resourceVersion": "9"}),
            IncludeObject::Metadata,
            true,
            Time(5_000),
        );
        assert_eq!(table["kind"], "Table");
        assert_eq!(table["metadata"]["resourceVersion"], "9");
        let heads: Vec<&str> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|column| column["name"].as_str().unwrap())
            .collect();
        assert_eq!(heads, ["Name", "Status", "Age"]);
        assert_eq!(table["columnDefinitions"][0]["format"], "name");
        assert_eq!(table["rows"][0]["cells"], json!(["a", "Active", "5s"]));
        let object = &table["rows"][0]["object"];
        assert_eq!(object["kind"], "PartialObjectMetadata");
        assert_eq!(object["apiVersion"], "meta.k8s.io/v1");
        assert_eq!(object["metadata"]["uid"], "u");
        assert_eq!(object.get("status"), None);
    }

    #[test]
    fn rows_include_requested_part_of_object() {
        let kind = kinds::find("", "v1", "namespaces").unwrap();
        let with = |include| single_object_table(kind, &namespace(), include, false, Time(0));
        assert_eq!(with(IncludeObject::None)["rows"][0]["object"], Value::Null);
        assert_eq!(with(IncludeObject::Object)["rows"][0]["object"], namespace());
        assert_eq!(with(IncludeObject::None)["columnDefinitions"], Value::Null);
        assert_eq!(with(IncludeObject::None)["metadata"], json!({"resourceVersion": "7"}));
        for (text, include) in
            [("", Some(IncludeObject::Metadata)), ("None", Some(IncludeObject::None)), ("none", None)]
        {
            assert_eq!(IncludeObject::parse(text), include, "{text}");
        }
    }

    #[test]
    fn every_row_has_a_cell_for_each_column() {
        for kind in kinds::KINDS {
            let cells = (kind.row)(&json!({"metadata": {"name": "x"}}), Time(0));
            assert_eq!(cells.len(), kind.columns.len(), "{}", kind.plural);
            assert!(kind.columns.iter().any(|column| column.format == "name"), "{}", kind.plural);
        }
    }

    #[test]
    fn partial_list_contains_metadata() {
        let list = partial_metadata_list(&[namespace()], json!({"resourceVersion": "9"}));
        assert_eq!(list["kind"], "PartialObjectMetadataList");
        assert_eq!(list["items"][0]["metadata"]["name"], "a");
    }
}
