//! The definitions of a document, with all definitions that they refer to.

use serde_json::{Map, Value, json};

use crate::schema::{Field, LEAVES, LIST_META, Presence, Schema, Type};

const MACHINERY: &str = "io.k8s.apimachinery.pkg";

/// The version of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V2,
    V3,
}

/// Definitions, by name.
pub(super) struct Components {
    version: Version,
    schemas: Map<String, Value>,
}

impl Components {
    pub(super) fn new(version: Version) -> Self {
        Self { version, schemas: Map::new() }
    }

    pub(super) fn finish(self) -> Map<String, Value> {
        self.schemas
    }

    /// Adds a schema with all schemas that it refers to, and returns a reference to it.
    pub(super) fn add(&mut self, schema: &'static Schema) -> Value {
        if !self.schemas.contains_key(schema.name) {
            // Inserted first, to end recursion.
            self.schemas.insert(schema.name.to_owned(), Value::Null);
            let mut object = self.object(schema);
            if !schema.kind.is_empty() {
                object["x-kubernetes-group-version-kind"] =
                    json!([group_version_kind(schema.group, schema.version, schema.kind)]);
            }
            self.schemas.insert(schema.name.to_owned(), object);
        }
        self.reference(schema.name)
    }

    /// Adds the list of a kind, and returns a reference to it.
    pub(super) fn add_list(&mut self, schema: &'static Schema) -> Value {
        let name = format!("{}List", schema.name);
        if !self.schemas.contains_key(&name) {
            let items = self.add(schema);
            let meta = self.add(LIST_META);
            let kind = format!("{}List", schema.kind);
            let list = json!({
                "description": format!("{kind} is a list of {}.", schema.kind),
                "type": "object",
                "required": ["items"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "items": {"type": "array", "items": self.wrapped(items, Some(json!({})))},
                    "metadata": self.wrapped(meta, Some(json!({}))),
                },
                "x-kubernetes-group-version-kind": [group_version_kind(schema.group, schema.version, &kind)],
            });
            self.schemas.insert(name.clone(), list);
        }
        self.reference(&name)
    }

    /// Adds the definition of a patch, which is any object, and returns a reference to it.
    pub(super) fn add_patch(&mut self) -> Value {
        let name = format!("{MACHINERY}.apis.meta.v1.Patch");
        self.schemas.entry(name.clone()).or_insert_with(|| json!({"type": "object"}));
        self.reference(&name)
    }

    fn reference(&self, name: &str) -> Value {
        match self.version {
            Version::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Version::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }

    /// Wraps a reference, so that other properties can accompany it.
    fn wrapped(&self, reference: Value, default: Option<Value>) -> Value {
        match (self.version, default) {
            (Version::V2, _) => reference,
            (Version::V3, Some(default)) => json!({"allOf": [reference], "default": default}),
            (Version::V3, None) => json!({"allOf": [reference]}),
        }
    }

    fn object(&mut self, schema: &Schema) -> Value {
        let mut object = json!({"type": "object"});
        if !schema.doc.is_empty() {
            object["description"] = schema.doc.into();
        }
        let required: Vec<&str> =
            schema.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
        if !required.is_empty() {
            object["required"] = required.into();
        }
        let properties: Map<String, Value> =
            schema.fields.iter().map(|field| (field.name.to_owned(), self.property(schema, field))).collect();
        if !properties.is_empty() {
            object["properties"] = properties.into();
        }
        object
    }

    fn property(&mut self, schema: &Schema, field: &'static Field) -> Value {
        let by_value = field.presence == Presence::Always && !schema.custom;
        let mut out = self.value(&field.kind, by_value, schema.custom, field);
        let mut doc = field.doc.to_owned();
        if let (Type::Text, false, false) = (&field.kind, schema.custom, field.values.is_empty()) {
            let values: Vec<String> = field.values.iter().map(|value| format!(" - `{value:?}`")).collect();
            doc = format!("{doc}\n\nPossible enum values:\n{}", values.join("\n"));
        }
        if !doc.is_empty() {
            out["description"] = doc.into();
        }
        if let (Type::List(_), false) = (&field.kind, schema.custom) {
            let (list, keys): (&str, Vec<&str>) = match (field.list, field.merge) {
                (Some(list), _) => match list.trim_end_matches(')').split_once('(') {
                    Some((list, keys)) => (list, keys.split('|').collect()),
                    None => (list, Vec::new()),
                },
                (None, Some(merge)) if merge.key.is_empty() => ("set", Vec::new()),
                (None, Some(merge)) => ("map", vec![merge.key]),
                (None, None) => ("atomic", Vec::new()),
            };
            out["x-kubernetes-list-type"] = list.into();
            if !keys.is_empty() {
                out["x-kubernetes-list-map-keys"] = keys.into();
            }
        }
        if let Some(merge) = field.merge {
            out["x-kubernetes-patch-strategy"] =
                if merge.retain_keys { "merge,retainKeys" } else { "merge" }.into();
            if !merge.key.is_empty() {
                out["x-kubernetes-patch-merge-key"] = merge.key.into();
            }
        }
        out
    }

    /// The schema of a type. Fields that Go declares by value have a default.
    fn value(&mut self, kind: &'static Type, by_value: bool, custom: bool, field: &Field) -> Value {
        let plain = |mut schema: Value, zero: Value| {
            if by_value {
                schema["default"] = zero;
            }
            if !field.values.is_empty() {
                schema["enum"] = field.values.into();
            }
            schema
        };
        match kind {
            Type::Text => plain(json!({"type": "string"}), json!("")),
            Type::Bytes => json!({"type": "string", "format": "byte"}),
            Type::DateTime => json!({"type": "string", "format": "date-time"}),
            Type::Bool => plain(json!({"type": "boolean"}), json!(false)),
            Type::Int32 => plain(json!({"type": "integer", "format": "int32"}), json!(0)),
            Type::Int64 => plain(json!({"type": "integer", "format": "int64"}), json!(0)),
            Type::IntOrString if custom => json!({"x-kubernetes-int-or-string": true}),
            Type::Time => self.leaf("apis.meta.v1.Time", field),
            Type::MicroTime => self.leaf("apis.meta.v1.MicroTime", field),
            Type::Quantity => self.leaf("api.resource.Quantity", field),
            Type::IntOrString => self.leaf("util.intstr.IntOrString", field),
            Type::Any if field.name == "fieldsV1" => self.leaf("apis.meta.v1.FieldsV1", field),
            Type::Any if custom => json!({"type": "object"}),
            Type::Any => self.leaf("runtime.RawExtension", field),
            Type::List(kind) => json!({"type": "array", "items": self.value(kind, !custom, custom, field)}),
            Type::Map(kind) => {
                json!({"type": "object", "additionalProperties": self.value(kind, !custom, custom, field)})
            }
            Type::Object(schema) if schema.name.is_empty() => self.object(schema),
            Type::Object(schema) => {
                let reference = self.add(schema);
                self.wrapped(reference, by_value.then(|| json!({})))
            }
        }
    }

    /// Adds the definition of a type that is not an object, and returns a reference to it.
    fn leaf(&mut self, name: &str, field: &Field) -> Value {
        let name = format!("{MACHINERY}.{name}");
        if !self.schemas.contains_key(&name) {
            let mut schema = match (name.rsplit('.').next().unwrap_or_default(), self.version) {
                ("Time" | "MicroTime", _) => json!({"type": "string", "format": "date-time"}),
                ("Quantity", Version::V2) => json!({"type": "string"}),
                ("Quantity", Version::V3) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
                ("IntOrString", Version::V2) => json!({"type": "string", "format": "int-or-string"}),
                ("IntOrString", Version::V3) => {
                    json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
                }
                _ => json!({"type": "object"}),
            };
            if let Some((_, doc)) = LEAVES.iter().find(|(leaf, _)| *leaf == name) {
                schema["description"] = (*doc).into();
            }
            self.schemas.insert(name.clone(), schema);
        }
        let reference = self.reference(&name);
        // Items of lists and maps have no other properties.
        if matches!(field.kind, Type::Map(_) | Type::List(_)) {
            reference
        } else {
            self.wrapped(reference, None)
        }
    }
}

/// A kind in the `x-kubernetes-group-version-kind` extension.
pub(super) fn group_version_kind(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}
