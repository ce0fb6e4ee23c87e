//! Objects as kubectl prints them (`metav1.Table`), and objects of which only the metadata is wanted.
//!
//! Columns and cells are the kind's; here they only get their frame. What the metadata of the whole says
//! (`resourceVersion`, `continue`) is the caller's.

use serde_json::{Map, Value, json};
use wharf_model::Time;

use crate::kinds::{Column, Kind};

/// How much of an object goes with its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    /// Nothing but the cells.
    None,
    /// Its metadata, which is what is sent when nothing is said.
    Metadata,
    /// All of it.
    Object,
}

impl Include {
    /// The query parameter `includeObject`, if it is one of those known.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// A table of objects. Without `columns` it has no heads, as all but the first event of a watch.
pub fn table(
    kind: &Kind,
    objects: &[Value],
    metadata: Value,
    include: Include,
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

/// The table of one object: its metadata are the object's revision.
pub fn table_of_one(kind: &Kind, object: &Value, include: Include, columns: bool, now: Time) -> Value {
    let mut metadata = Map::new();
    if let Some(revision) = object.pointer("/metadata/resourceVersion") {
        metadata.insert("resourceVersion".into(), revision.clone());
    }
    table(kind, std::slice::from_ref(object), metadata.into(), include, columns, now)
}

fn column(column: &Column) -> Value {
    let Column { name, of, format, description, priority } = column;
    json!({"name": name, "type": of, "format": format, "description": description, "priority": priority})
}

fn row(kind: &Kind, object: &Value, include: Include, now: Time) -> Value {
    let mut row = json!({
        "cells": (kind.row)(object, now),
        "object": match include {
            Include::None => Value::Null,
            Include::Metadata => partial(object),
            Include::Object => object.clone(),
        },
    });
    let conditions = (kind.row_conditions)(object);
    if !conditions.is_empty() {
        row["conditions"] = conditions.into();
    }
    row
}

/// `PartialObjectMetadata`.
pub fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// `PartialObjectMetadataList`.
pub fn partial_list(objects: &[Value], metadata: Value) -> Value {
    let items: Vec<Value> = objects.iter().map(partial).collect();
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
    fn a_table_has_the_kinds_columns_and_a_row_for_each_object() {
        let kind = kinds::find("", "v1", "namespaces").unwrap();
        let table = table(
            kind,
            &[namespace()],
            json!({"resourceVersion": "9"}),
            Include::Metadata,
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
    fn what_goes_with_a_row_is_as_asked() {
        let kind = kinds::find("", "v1", "namespaces").unwrap();
        let with = |include| table_of_one(kind, &namespace(), include, false, Time(0));
        assert_eq!(with(Include::None)["rows"][0]["object"], Value::Null);
        assert_eq!(with(Include::Object)["rows"][0]["object"], namespace());
        assert_eq!(with(Include::None)["columnDefinitions"], Value::Null);
        assert_eq!(with(Include::None)["metadata"], json!({"resourceVersion": "7"}));
        for (text, include) in [("", Some(Include::Metadata)), ("None", Some(Include::None)), ("none", None)]
        {
            assert_eq!(Include::parse(text), include, "{text}");
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
    fn a_list_of_metadata() {
        let list = partial_list(&[namespace()], json!({"resourceVersion": "9"}));
        assert_eq!(list["kind"], "PartialObjectMetadataList");
        assert_eq!(list["items"][0]["metadata"]["name"], "a");
    }
}
