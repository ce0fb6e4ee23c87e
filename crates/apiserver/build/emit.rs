//! Emits schemas as Rust code.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::GroupVersionKind;
use crate::facts::{Fact, Facts, Presence};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

pub(crate) struct Emitter {
    facts: Facts,
    kinds: BTreeMap<String, GroupVersionKind>,
    out: String,
    /// The names of the generated statics, by API group and kind.
    roots: BTreeMap<(String, String), String>,
    /// Names and descriptions of definitions that are not objects.
    leaves: Vec<String>,
    /// The number of anonymous objects within custom kinds.
    nameless: Cell<usize>,
}

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

impl Emitter {
    pub(crate) fn new(facts: Facts, kinds: BTreeMap<String, GroupVersionKind>) -> Self {
        Self {
            facts,
            kinds,
            out: String::new(),
            roots: BTreeMap::new(),
            leaves: Vec::new(),
            nameless: Cell::new(0),
        }
    }

    /// Emits one definition of the built-in API types.
    pub(crate) fn native(&mut self, name: &str, definition: &Value) -> Fallible<()> {
        if leaf(name).is_some() {
            self.leaves.push(format!("({name:?}, {:?})", text(definition, "description")));
            return Ok(());
        }
        // Remove facts when they are used, so that `finish` can report facts about unknown types.
        let facts = self.facts.remove(&short(name)).unwrap_or_default();
        let gvk = self.kinds.get(name).cloned();
        let fields = self.fields(definition, &facts, false, &mut String::new())?;
        self.schema(name, definition, gvk.as_ref(), false, &fields)
    }

    /// Emits a kind that a CustomResourceDefinition defines.
    pub(crate) fn custom(&mut self, gvk: GroupVersionKind, schema: &Value) -> Fallible<()> {
        let group: Vec<&str> = gvk.group.rsplit('.').collect();
        let name = format!("{}.{}.{}", group.join("."), gvk.version, gvk.kind);
        let mut inner = String::new();
        let fields = self.fields(schema, &BTreeMap::new(), true, &mut inner)?;
        self.out.push_str(&inner);
        self.schema(&name, schema, Some(&gvk), true, &fields)
    }

    fn schema(
        &mut self,
        name: &str,
        definition: &Value,
        gvk: Option<&GroupVersionKind>,
        custom: bool,
        fields: &str,
    ) -> Fallible<()> {
        let (group, version, kind) = gvk.map_or(("", "", ""), |gvk| (&gvk.group, &gvk.version, &gvk.kind));
        let doc = text(definition, "description");
        let id = id(name);
        writeln!(
            self.out,
            "static {id}: Schema = Schema {{ name: {name:?}, doc: {doc:?}, group: {group:?}, version: {version:?}, \
             kind: {kind:?}, custom: {custom}, fields: &[{fields}] }};"
        )?;
        if gvk.is_some() && self.roots.insert((group.into(), kind.into()), id).is_some() {
            return Err(format!("duplicate schema for {group}/{kind}").into());
        }
        Ok(())
    }

    /// Emits the fields of an object, sorted by name. Objects within a custom kind are emitted to `inner`.
    fn fields(
        &self,
        definition: &Value,
        facts: &BTreeMap<String, Fact>,
        custom: bool,
        inner: &mut String,
    ) -> Fallible<String> {
        let empty = Map::new();
        let properties = definition.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        for name in facts.keys() {
            if !properties.contains_key(name) {
                return Err(format!("fields.txt lists a field {name} that does not exist").into());
            }
        }
        let mut out = String::new();
        for (name, property) in properties {
            let listed =
                definition["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
            // k8s-openapi lists metadata as required in every kind; upstream does not.
            let listed = listed && name != "metadata";
            let fact = facts.get(name).cloned().unwrap_or_default();
            let (kind, is_struct) = self.kind(name, property, custom, inner)?;
            let presence = match fact.presence {
                _ if custom && name != "metadata" => Presence::AsGiven,
                Some(presence) => presence,
                None if listed || custom => Presence::Always,
                None if is_struct => Presence::AsGiven,
                None => Presence::OmitZero,
            };
            let required = listed != fact.required_inverted;
            let presence = match presence {
                Presence::Always => "Always",
                Presence::AsGiven => "AsGiven",
                Presence::NullIfUnset => "NullIfUnset",
                Presence::OmitZero => "OmitZero",
            };
            let merge = match &fact.merge {
                None => "None".to_owned(),
                Some(key) => {
                    format!("Some(MergeStrategy {{ key: {key:?}, retain_keys: {} }})", fact.retain_keys)
                }
            };
            let mut values = fact.values.clone();
            if let Some(known) = property["enum"].as_array() {
                values = known.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            }
            let doc = match text(property, "description") {
                "" if custom => standard(name),
                doc => doc,
            };
            write!(
                out,
                "Field {{ name: {name:?}, doc: {doc:?}, kind: {kind}, presence: Presence::{presence}, required: {required}, \
                 go: {:?}, values: &{values:?}, merge: {merge}, list: {:?} }},",
                fact.go, fact.list
            )?;
        }
        Ok(out)
    }

    /// Returns a type as a Rust expression, and whether the type is a struct in Go.
    fn kind(&self, name: &str, schema: &Value, custom: bool, inner: &mut String) -> Fallible<(String, bool)> {
        if custom && name == "metadata" {
            return Ok((format!("Type::Object(&{})", id(&format!("{META}ObjectMeta"))), true));
        }
        if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
            return Ok((
                leaf(name).map_or_else(|| format!("Type::Object(&{})", id(name)), str::to_owned),
                true,
            ));
        }
        if schema["x-kubernetes-int-or-string"] == true {
            return Ok(("Type::IntOrString".into(), true));
        }
        let plain = |kind: &str| Ok((format!("Type::{kind}"), false));
        match (text(schema, "type"), text(schema, "format")) {
            ("string", "byte") => plain("Bytes"),
            ("string", "date-time") => plain("DateTime"),
            ("string", _) => plain("Text"),
            ("boolean", _) => plain("Bool"),
            ("integer", "int32") => plain("Int32"),
            ("integer", _) => plain("Int64"),
            ("array", _) => {
                let (items, _) = self.kind("", &schema["items"], custom, inner)?;
                Ok((format!("Type::List(&{items})"), false))
            }
            ("object", _) if schema.get("additionalProperties").is_some() => {
                let (values, _) = self.kind("", &schema["additionalProperties"], custom, inner)?;
                Ok((format!("Type::Map(&{values})"), false))
            }
            ("object", _) if schema.get("properties").is_some() => {
                let fields = self.fields(schema, &BTreeMap::new(), custom, inner)?;
                let id = format!("WITHIN_{}", self.nameless.replace(self.nameless.get() + 1));
                let doc = text(schema, "description");
                writeln!(
                    inner,
                    "static {id}: Schema = Schema {{ name: \"\", doc: {doc:?}, group: \"\", version: \"\", kind: \"\", \
                     custom: {custom}, fields: &[{fields}] }};"
                )?;
                Ok((format!("Type::Object(&{id})"), true))
            }
            ("object", _) => Ok(("Type::Any".into(), true)),
            (kind, format) => {
                Err(format!("{name}: unsupported type {kind:?} with format {format:?}: {schema}").into())
            }
        }
    }

    /// Emits the index of kinds, and returns the generated code.
    pub(crate) fn finish(mut self) -> Fallible<String> {
        if let Some(name) = self.facts.keys().next() {
            return Err(format!("fields.txt lists {name}, which no kind uses").into());
        }
        let roots: Vec<String> = self.roots.values().map(|id| format!("&{id}")).collect();
        writeln!(self.out, "/// By group and kind.\nstatic KINDS: &[&Schema] = &[{}];", roots.join(", "))?;
        writeln!(
            self.out,
            "/// Types that are plain values, not objects, with their descriptions.\nstatic LEAVES: &[(&str, &str)] = &[{}];",
            self.leaves.join(", ")
        )?;
        writeln!(
            self.out,
            "/// The metadata of lists.\nstatic LIST_META: &Schema = &{};",
            id(&format!("{META}ListMeta"))
        )?;
        Ok(self.out)
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The type of a definition that is not an object.
fn leaf(name: &str) -> Option<&'static str> {
    match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => Some("Type::Quantity"),
        "io.k8s.apimachinery.pkg.apis.meta.v1.Time" => Some("Type::Time"),
        "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime" => Some("Type::MicroTime"),
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => Some("Type::IntOrString"),
        "io.k8s.apimachinery.pkg.runtime.RawExtension" | "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1" => {
            Some("Type::Any")
        }
        _ => None,
    }
}

/// The name in `fields.txt`: `core.v1.Pod`.
fn short(name: &str) -> String {
    let parts: Vec<&str> = name.rsplitn(4, '.').collect();
    parts.iter().take(3).rev().copied().collect::<Vec<_>>().join(".")
}

/// The name of the Rust static.
fn id(name: &str) -> String {
    name.replace(['.', '-'], "_").to_ascii_uppercase()
}

/// Upstream's description of the standard fields of custom kinds.
fn standard(name: &str) -> &'static str {
    match name {
        "metadata" => {
            "Standard object's metadata. More info: \
             https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
        }
        "apiVersion" => {
            "APIVersion defines the versioned schema of this representation of an object. Servers should convert \
             recognized schemas to the latest internal value, and may reject unrecognized values. More info: \
             https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"
        }
        "kind" => {
            "Kind is a string value representing the REST resource this object represents. Servers may infer this \
             from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
             https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"
        }
        _ => "",
    }
}
