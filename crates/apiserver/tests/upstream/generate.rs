//! Generates random test cases. Objects have the shape of their kind, sometimes with one error. Patches are generated
//! for their object, so that most of them apply.

use serde_json::{Map, Value, json};
use wharf_apiserver::schema;

const KINDS: &[(&str, &str)] = &[
    ("", "Namespace"),
    ("", "Node"),
    ("", "Pod"),
    ("", "Pod"),
    ("", "PersistentVolume"),
    ("", "PersistentVolumeClaim"),
    ("", "Secret"),
    ("", "ConfigMap"),
    ("", "Event"),
    ("", "ServiceAccount"),
    ("events.k8s.io", "Event"),
    ("coordination.k8s.io", "Lease"),
    ("storage.k8s.io", "StorageClass"),
    ("storage.k8s.io", "CSIDriver"),
    ("storage.k8s.io", "CSINode"),
    ("storage.k8s.io", "CSIStorageCapacity"),
    ("storage.k8s.io", "VolumeAttachment"),
    ("storage.k8s.io", "VolumeAttributesClass"),
];
/// Kinds that are sent but not stored: conversion is compared, patches are not.
const UNSTORED_KINDS: &[(&str, &str)] = &[
    ("", "Binding"),
    ("policy", "Eviction"),
    ("authentication.k8s.io", "TokenRequest"),
    ("authentication.k8s.io", "TokenReview"),
    ("authentication.k8s.io", "SelfSubjectReview"),
    ("authorization.k8s.io", "SubjectAccessReview"),
    ("authorization.k8s.io", "LocalSubjectAccessReview"),
    ("authorization.k8s.io", "SelfSubjectAccessReview"),
    ("authorization.k8s.io", "SelfSubjectRulesReview"),
];
const QUANTITIES: &[&str] = &[
    "0",
    "1Gi",
    "1024Mi",
    "500m",
    "1.5G",
    "1e3",
    "0.1",
    "-3",
    "100k",
    "12345678901234567890",
    "1E",
    "0Ki",
    "1.5Ki",
    "Gi",
];
const TIMES: &[&str] = &[
    "2026-01-02T03:04:05Z",
    "2026-01-02T03:04:05.7Z",
    "2026-01-02T03:04:05+02:00",
    "1969-12-31T23:59:59.5Z",
    "2026-01-02T03:04:05.1234567891234Z",
    "2026-01-02T03:04:05,7Z",
];
const MICRO_TIMES: &[&str] =
    &["2026-01-02T03:04:05.123456+02:00", "2026-01-02T03:04:05.700000Z", "1969-12-31T23:59:59.000000Z"];
const INVALID_TEXTS: &[&str] = &["x", "", "1x", "1KK", "2026-02-30T00:00:00Z", "2026-01-02", "!!", "YWI"];

pub(crate) struct Generator {
    state: u64,
    schemas: Map<String, Value>,
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        let mut schemas = Map::new();
        let index = schema::openapi_v3_index();
        for path in index["paths"].as_object().into_iter().flat_map(Map::keys) {
            let document: Value =
                serde_json::from_slice(&schema::openapi_v3(path).unwrap_or_default()).expect("JSON");
            schemas.extend(document["components"]["schemas"].as_object().cloned().unwrap_or_default());
        }
        Self { state: seed, schemas }
    }

    pub(crate) fn case(&mut self) -> Value {
        match self.below(20) {
            0..8 => {
                let kinds = if self.chance(80) { KINDS } else { UNSTORED_KINDS };
                let (group, kind) = *self.pick(kinds);
                let mut object = self.object(&name(group, kind), 0);
                if self.chance(30) {
                    self.add_error(&mut object);
                }
                json!({"What": "conform", "Group": group, "Kind": kind, "Object": object})
            }
            8..14 => {
                let (group, kind) = *self.pick(KINDS);
                let object = self.object(&name(group, kind), 0);
                let patch = self.patch(&name(group, kind), &object, 0);
                json!({"What": "strategic", "Group": group, "Kind": kind, "Object": object, "Patch": patch})
            }
            14..16 => json!({"What": "json", "Object": self.map(), "Patch": self.operations()}),
            16 => json!({"What": "merge", "Object": self.map(), "Patch": self.map()}),
            17 | 18 => {
                let words = [
                    "a",
                    "b",
                    "a=b",
                    "=",
                    "==",
                    "!=",
                    "!",
                    "a in (b,c)",
                    "b notin (a,)",
                    ",",
                    ",",
                    "(",
                    ")",
                    " ",
                    "1",
                    "-",
                ];
                json!({"What": "labels", "Text": self.text(&words), "Labels": self.labels()})
            }
            _ => {
                let words = ["a", "b", "=", "==", "!=", ",", "\\", "a=b", "b=", "b!=a"];
                json!({"What": "fields", "Text": self.text(&words), "Labels": self.labels()})
            }
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) as usize) % bound
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    fn text(&mut self, words: &[&str]) -> String {
        (0..=self.below(4)).map(|_| *self.pick(words)).collect()
    }

    fn labels(&mut self) -> Value {
        let mut labels = Map::new();
        for key in ["a", "b"] {
            if self.chance(60) {
                labels.insert(key.into(), (*self.pick(&["a", "b", "", "1"])).into());
            }
        }
        labels.into()
    }

    /// An object of a definition. Deeper objects have fewer fields.
    fn object(&mut self, name: &str, depth: usize) -> Value {
        let properties = self.schemas[name]["properties"].as_object().cloned().unwrap_or_default();
        let likely = if properties.len() > 25 {
            15
        } else {
            [75, 75, 35, 35][depth.min(3)].min(75 - 10 * depth.min(5))
        };
        let mut object = Map::new();
        for (key, property) in &properties {
            // managedFields is never stored.
            if key != "managedFields" && self.chance(likely) {
                let mut value = self.value(property, depth);
                // The merge of a list with duplicate names depends on Go's memory layout.
                if property["items"]["type"] == "string"
                    && property["x-kubernetes-patch-strategy"].is_string()
                {
                    let list = value.as_array_mut().expect("a list");
                    list.sort_by_key(Value::to_string);
                    list.dedup();
                }
                object.insert(key.clone(), value);
            }
        }
        object.into()
    }

    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        if let Some(name) = reference(schema) {
            return match name.rsplit('.').next().unwrap_or_default() {
                "Quantity" => (*self.pick(QUANTITIES)).into(),
                "Time" => (*self.pick(TIMES)).into(),
                "MicroTime" => (*self.pick(MICRO_TIMES)).into(),
                "IntOrString" => [json!(0), json!(80), json!("a"), json!("")][self.below(4)].clone(),
                "RawExtension" => json!({"a": 1}),
                _ => self.object(name, depth + 1),
            };
        }
        match schema["type"].as_str().unwrap_or_default() {
            "string" if schema["format"] == "byte" => (*self.pick(&["YQ==", "", "YR==", "YW\nJj"])).into(),
            "string" => match schema["enum"].as_array() {
                Some(values) if self.chance(80) => self.pick(values).clone(),
                _ => (*self.pick(&["a", "b", "c", ""])).into(),
            },
            "boolean" => self.chance(50).into(),
            "integer" => [0, 1, 7][self.below(3)].into(),
            "array" => (0..self.below(4)).map(|_| self.value(&schema["items"], depth)).collect(),
            _ => {
                let (keys, values) = (["x", "y", "z"], &schema["additionalProperties"]);
                (0..self.below(3))
                    .map(|_| ((*self.pick(&keys)).to_owned(), self.value(values, depth)))
                    .collect()
            }
        }
    }

    /// Adds exactly one error.
    fn add_error(&mut self, value: &mut Value) {
        let inside = match value {
            Value::Object(map) => map.len(),
            Value::Array(list) => list.len(),
            _ => 0,
        };
        if inside == 0 || self.chance(15) {
            let others = [
                json!(1),
                json!("s"),
                json!(true),
                json!([]),
                json!({"zzz": 1}),
                json!(1.5),
                json!(1u64 << 63),
            ];
            *value =
                if self.chance(40) { (*self.pick(INVALID_TEXTS)).into() } else { self.pick(&others).clone() };
            return;
        }
        let at = self.below(inside);
        match value {
            Value::Object(map) if self.chance(10) => drop(map.insert("zzz".into(), 1.into())),
            Value::Object(map) => {
                map.values_mut().nth(at).into_iter().for_each(|value| self.add_error(value))
            }
            Value::Array(list) => self.add_error(&mut list[at]),
            _ => {}
        }
    }

    /// A strategic merge patch for an object.
    fn patch(&mut self, name: &str, object: &Value, depth: usize) -> Value {
        let properties = self.schemas[name]["properties"].as_object().cloned().unwrap_or_default();
        let mut patch = Map::new();
        for (key, property) in &properties {
            let (existing, likely) = (&object[key], if object[key].is_null() { 5 } else { 40 });
            if !self.chance(likely) {
                continue;
            }
            let merge = property["x-kubernetes-patch-strategy"].is_string();
            let merge_key = property["x-kubernetes-patch-merge-key"].as_str();
            match (reference(property), reference(&property["items"])) {
                _ if self.chance(8) => drop(patch.insert(key.clone(), Value::Null)),
                (Some(inner), _) if self.schemas[inner].get("properties").is_some() => {
                    let inner = self.patch(inner, existing, depth + 1);
                    patch.insert(key.clone(), inner);
                }
                (_, Some(inner)) if merge_key.is_some() => {
                    self.elements(&mut patch, key, inner, merge_key.unwrap_or_default(), existing);
                }
                _ if merge => self.names(&mut patch, key, existing),
                _ => {
                    let value = self.value(property, depth);
                    patch.insert(key.clone(), value);
                }
            }
        }
        if depth > 0 && self.chance(3) {
            patch.insert("$patch".into(), (*self.pick(&["replace", "delete", "merge"])).into());
        }
        if self.chance(2) {
            let keys: Vec<&String> = patch.keys().filter(|key| !key.starts_with('$')).collect();
            patch.insert("$retainKeys".into(), json!(keys));
        }
        patch.into()
    }

    /// A list that is merged by a key: changed, deleted and new elements, with or without `$setElementOrder`.
    fn elements(
        &mut self,
        patch: &mut Map<String, Value>,
        field: &str,
        definition: &str,
        key: &str,
        existing: &Value,
    ) {
        let existing = existing.as_array().cloned().unwrap_or_default();
        let mut elements = Vec::new();
        for element in existing.iter().filter(|element| element.get(key).is_some()) {
            if !self.chance(60) {
                continue;
            }
            let mut change = match self.below(10) {
                0 | 1 => json!({"$patch": "delete"}),
                _ => self.patch(definition, element, 3),
            };
            change[key] = element[key].clone();
            elements.push(change);
        }
        for _ in 0..self.below(3) {
            let mut new = self.object(definition, 4);
            new[key] = (*self.pick(&["a", "b", "c", "d", "e"])).into();
            let at = self.below(elements.len() + 1);
            elements.insert(at, new);
        }
        if self.chance(40) {
            let named = |element: &Value| json!({key: element[key]});
            let mut order: Vec<Value> =
                elements.iter().filter(|element| element.get("$patch").is_none()).map(named).collect();
            for element in existing.iter().filter(|element| element.get(key).is_some()).map(named) {
                if self.chance(60) && !order.contains(&element) {
                    let at = self.below(order.len() + 1);
                    order.insert(at, element);
                }
            }
            patch.insert(format!("$setElementOrder/{field}"), order.into());
        }
        if self.chance(90) {
            patch.insert(field.into(), elements.into());
        }
    }

    /// A list of names that is merged. No name is both added and deleted: Go's order is undefined.
    fn names(&mut self, patch: &mut Map<String, Value>, field: &str, existing: &Value) {
        let given: Vec<&str> = (0..self.below(4)).map(|_| *self.pick(&["a", "b", "c", "d"])).collect();
        if self.chance(40) {
            patch.insert(format!("$deleteFromPrimitiveList/{field}"), json!(["e", self.pick(&["f", ""])]));
        }
        if self.chance(30) {
            let mut order: Vec<Value> = Vec::new();
            for name in
                given.iter().map(|name| json!(name)).chain(existing.as_array().cloned().unwrap_or_default())
            {
                if !order.contains(&name) {
                    order.push(name);
                }
            }
            patch.insert(format!("$setElementOrder/{field}"), order.into());
        }
        patch.insert(field.into(), json!(given));
    }

    fn any(&mut self, depth: usize) -> Value {
        match self.below(if depth > 3 { 4 } else { 10 }) {
            0 => Value::Null,
            1 => json!(1),
            2 => json!("a"),
            3 => json!({}),
            4..7 => (0..self.below(4)).map(|_| self.any(depth + 1)).collect(),
            _ => self.map_at(depth + 1),
        }
    }

    fn map(&mut self) -> Value {
        self.map_at(0)
    }

    fn map_at(&mut self, depth: usize) -> Value {
        let keys = ["a", "b", "c", "d"];
        (0..=self.below(3)).map(|_| ((*self.pick(&keys)).to_owned(), self.any(depth))).collect()
    }

    fn pointer(&mut self) -> String {
        let parts = ["a", "b", "c", "0", "1", "-1", "-", "2"];
        (0..=self.below(3)).map(|_| format!("/{}", self.pick(&parts))).collect()
    }

    fn operations(&mut self) -> Value {
        let verbs = ["add", "add", "add", "remove", "replace", "move", "copy", "test"];
        (0..=self.below(2))
            .map(|_| json!({"op": self.pick(&verbs), "path": self.pointer(), "from": self.pointer(), "value": self.any(2)}))
            .collect()
    }
}

fn name(group: &str, kind: &str) -> String {
    let group = group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
    format!("io.k8s.api.{group}.v1.{kind}")
}

/// The name of the definition that a schema refers to.
fn reference(schema: &Value) -> Option<&str> {
    let reference = schema.get("$ref").or(schema.pointer("/allOf/0/$ref"))?.as_str()?;
    reference.rsplit('/').next()
}
