//! JSON to an object of its kind: what Go would make of it by reading it into its structs and writing it again.
//!
//! Fields that the kind does not have are dropped and told of. A null is the same as nothing. Zeroes go or stay as Go
//! holds the field. Times, quantities and bytes are written in their one form. A value of the wrong type is an error in
//! Go's words. Custom kinds are JSON upstream too: of them only unknown fields and nulls go.

use std::borrow::Cow;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};

use super::duplicates::{MOST, quoted};
use super::{Field, Held, Schema, Type, base64, time};
use crate::status::{Cause, Refusal};
use wharf_model::Quantity;

/// An object of its kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Conformed {
    /// As it is to be stored.
    pub object: Value,
    /// What was dropped, in upstream's words: `unknown field "spec.foo"`.
    pub unknown: Vec<String>,
}

/// A value that does not fit its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// In a kind of Kubernetes' own; the words are Go's.
    #[error("{0}")]
    Native(String),
    /// In a custom kind.
    #[error("{0}: Invalid value: {1:?}: {0} in body must be of type {2}: {1:?}", .field, .found, .wanted)]
    Custom {
        /// Where.
        field: String,
        /// `integer` and the like.
        found: &'static str,
        /// The same.
        wanted: &'static str,
    },
}

impl TypeError {
    /// The refusal of an object that was sent as this kind.
    pub fn refusal(&self, kind: &Schema, name: &str) -> Refusal {
        match self {
            Self::Native(why) => {
                let (version, kind) = (kind.version, kind.kind);
                Refusal::bad_request(format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
                ))
            }
            Self::Custom { field, found, wanted } => {
                let detail = format!("{field} in body must be of type {wanted}: {found:?}");
                let cause = Cause {
                    reason: "FieldValueTypeInvalid",
                    ..Cause::invalid(field, &json!(found), &detail)
                };
                Refusal::invalid(kind.group, kind.kind, name, vec![cause])
            }
        }
    }
}

impl Schema {
    /// Makes an object of this kind of any JSON.
    pub fn conform(&self, object: Value) -> Result<Conformed, TypeError> {
        let mut conforming = Conforming {
            custom: self.custom,
            path: String::new(),
            fields: Vec::new(),
            within: None,
            unknown: Vec::new(),
        };
        let object = conforming.object(self, object, self.go())?;
        Ok(Conformed { object: Value::Object(object), unknown: conforming.unknown })
    }
}

/// Where we are.
struct Conforming {
    custom: bool,
    /// As upstream tells of unknown fields: `spec.containers[0].name`.
    path: String,
    /// As Go tells of wrong types: `spec`, `containers`, `name`.
    fields: Vec<&'static str>,
    /// The struct that the innermost field is of.
    within: Option<&'static str>,
    unknown: Vec<String>,
}

impl Conforming {
    fn object(&mut self, schema: &Schema, value: Value, go: &str) -> Result<Map<String, Value>, TypeError> {
        let given = match value {
            Value::Object(given) => given,
            other => return Err(self.wrong(&other, go, "object")),
        };
        let custom = std::mem::replace(&mut self.custom, schema.custom);
        let length = self.path.len();
        let mut object = Map::new();
        for (key, value) in given {
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(&key);
            match schema.field(&key) {
                None if self.unknown.len() < MOST => {
                    self.unknown.push(format!("unknown field {}", quoted(&self.path)));
                }
                None => {}
                Some(_) if value.is_null() => {}
                Some(field) => {
                    let within = self.within.replace(schema.go_name());
                    self.fields.push(field.name);
                    let value = self.field(field, value)?;
                    self.fields.pop();
                    self.within = within;
                    // Who applies what to which field is not kept.
                    if let (Some(value), false) = (value, key == "managedFields") {
                        object.insert(key, value);
                    }
                }
            }
            self.path.truncate(length);
        }
        self.custom = custom;
        fill(schema, &mut object);
        Ok(object)
    }

    /// A field's value, if it is to be written as it is.
    fn field(&mut self, field: &Field, value: Value) -> Result<Option<Value>, TypeError> {
        let go = if field.go.is_empty() { go_type(&field.kind) } else { field.go.into() };
        let value = self.value(&field.kind, value, &go)?;
        let is_empty = match &value {
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty() && matches!(field.kind, Type::Map(_)),
            Value::String(text) => text.is_empty(),
            Value::Number(number) => number.as_i64() == Some(0),
            Value::Bool(yes) => !yes,
            Value::Null => true,
        };
        Ok(match (field.held, &field.kind) {
            (Held::Omitted, _) if is_empty => None,
            (_, Type::Time | Type::MicroTime) if value.is_null() => None,
            // As it comes back from where upstream stores it; `fill` writes the null.
            (Held::Filled, Type::List(_) | Type::Map(_)) if is_empty => None,
            _ => Some(value),
        })
    }

    /// A value that is not null.
    fn value(&mut self, kind: &Type, value: Value, go: &str) -> Result<Value, TypeError> {
        match (kind, value) {
            (Type::Text, value @ Value::String(_))
            | (Type::Bool, value @ Value::Bool(_))
            | (Type::Any, value @ Value::Object(_)) => Ok(value),
            (Type::Any, value) if !self.custom => Ok(value),
            (Type::Bytes, Value::String(text)) => match base64::canonical(&text) {
                Ok(text) => Ok(text.into()),
                Err(at) => Err(TypeError::Native(format!("illegal base64 data at input byte {at}"))),
            },
            // Go takes the bytes one by one too.
            (Type::Bytes, Value::Array(list)) if !self.custom => {
                let byte = |value: Value| match value.as_u64().and_then(|byte| u8::try_from(byte).ok()) {
                    Some(byte) => Ok(byte),
                    None if value.is_null() => Ok(0),
                    None => Err(self.wrong(&value, "uint8", "integer")),
                };
                let bytes: Vec<u8> = list.into_iter().map(byte).collect::<Result<_, _>>()?;
                Ok(BASE64.encode(bytes).into())
            }
            (Type::Int32, Value::Number(number)) => match number.as_i64() {
                Some(whole) if i32::try_from(whole).is_ok() => Ok(whole.into()),
                _ => Err(self.wrong(&Value::Number(number), go, "integer")),
            },
            (Type::Int64, Value::Number(number)) => match number.as_i64() {
                Some(whole) => Ok(whole.into()),
                None => Err(self.wrong(&Value::Number(number), go, "integer")),
            },
            (Type::Time, Value::String(text)) => {
                time::seconds(&text).map(Value::from).map_err(TypeError::Native)
            }
            (Type::MicroTime, Value::String(text)) => {
                time::micros(&text).map(Value::from).map_err(TypeError::Native)
            }
            (Type::Time | Type::MicroTime, other) => Err(self.wrong(&other, "string", "string")),
            (Type::Stamp, Value::String(text)) => {
                if time::is_stamp(&text) {
                    Ok(text.into())
                } else {
                    Err(self.wrong(&Value::String(text), go, "date-time"))
                }
            }
            (Type::Quantity, Value::String(text)) => quantity(text.trim()),
            (Type::Quantity, other) => quantity(&other.to_string()),
            (Type::IntOrString, value @ Value::String(_)) => Ok(value),
            (Type::IntOrString, Value::Number(number)) => match number.as_i64() {
                Some(whole) if self.custom || i32::try_from(whole).is_ok() => Ok(whole.into()),
                _ => Err(self.wrong(&Value::Number(number), "int32", "integer")),
            },
            (Type::IntOrString, other) => Err(self.wrong(&other, "int32", "integer")),
            (Type::List(kind), Value::Array(list)) => {
                let go = go.strip_prefix("[]").map_or_else(|| go_type(kind), Cow::Borrowed);
                let length = self.path.len();
                let mut out = Vec::with_capacity(list.len());
                for (at, value) in list.into_iter().enumerate() {
                    self.path.push_str(&format!("[{at}]"));
                    out.push(self.element(kind, value, &go)?);
                    self.path.truncate(length);
                }
                Ok(out.into())
            }
            (Type::Map(kind), Value::Object(map)) => {
                let go = match go.strip_prefix("map[").and_then(|go| go.split_once(']')) {
                    Some((_, go)) => go.into(),
                    None => go_type(kind),
                };
                let length = self.path.len();
                let mut out = Map::new();
                for (key, value) in map {
                    self.path.push('.');
                    self.path.push_str(&key);
                    out.insert(key, self.element(kind, value, &go)?);
                    self.path.truncate(length);
                }
                Ok(out.into())
            }
            (Type::Object(schema), value) => self.object(schema, value, go).map(Value::Object),
            (kind, other) => Err(self.wrong(&other, go, json_type(kind))),
        }
    }

    /// A value in a list or a map, where a null is a zero.
    fn element(&mut self, kind: &Type, value: Value, go: &str) -> Result<Value, TypeError> {
        if value.is_null() && !self.custom { Ok(zero(kind)) } else { self.value(kind, value, go) }
    }

    fn wrong(&self, value: &Value, go: &str, wanted: &'static str) -> TypeError {
        if self.custom {
            return TypeError::Custom { field: self.path.clone(), found: json_kind(value), wanted };
        }
        let found = go_kind(value, go);
        TypeError::Native(match self.within {
            Some(within) => {
                let path = self.fields.join(".");
                format!("json: cannot unmarshal {found} into Go struct field {within}.{path} of type {go}")
            }
            None => format!("json: cannot unmarshal {found} into Go value of type {go}"),
        })
    }
}

/// Adds what Go writes in any case.
fn fill(schema: &Schema, object: &mut Map<String, Value>) {
    for field in schema.fields {
        let value = match field.held {
            Held::Kept | Held::Omitted => continue,
            Held::Nullable => Value::Null,
            Held::Filled => zero(&field.kind),
        };
        if !object.contains_key(field.name) {
            object.insert(field.name.to_owned(), value);
        }
    }
}

/// A field that is held by value and was not set, as Go writes it.
fn zero(kind: &Type) -> Value {
    match kind {
        Type::Text | Type::Bytes | Type::Stamp => "".into(),
        Type::Bool => false.into(),
        Type::Int32 | Type::Int64 | Type::IntOrString => 0.into(),
        Type::Quantity => "0".into(),
        Type::Time | Type::MicroTime | Type::Any | Type::List(_) | Type::Map(_) => Value::Null,
        Type::Object(schema) => {
            let mut object = Map::new();
            fill(schema, &mut object);
            object.into()
        }
    }
}

/// In its canonical form. The error is Go's.
fn quantity(text: &str) -> Result<Value, TypeError> {
    if let Ok(quantity) = text.parse::<Quantity>() {
        return Ok(quantity.to_string().into());
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    // To Go a unit alone is none of it.
    if !unsigned.is_empty() && format!("0{unsigned}").parse::<Quantity>().is_ok() {
        return Ok("0".into());
    }
    let suffix = unsigned.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &unsigned[..unsigned.len() - suffix.len()];
    let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let why = if text.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    } else if number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() < 2 {
        "unable to parse quantity's suffix"
    } else {
        "unable to parse numeric part of quantity"
    };
    Err(TypeError::Native(why.to_owned()))
}

/// What Go calls a JSON value that does not fit this type; numbers are told where only their size is wrong.
fn go_kind(value: &Value, go: &str) -> Cow<'static, str> {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(number) if matches!(go, "uint8" | "int32" | "int64") => {
            format!("number {number}").into()
        }
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(_) => "array".into(),
        Value::Object(_) => "object".into(),
    }
}

/// What OpenAPI calls a JSON value.
fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// What OpenAPI calls a type.
fn json_type(kind: &Type) -> &'static str {
    match kind {
        Type::Text | Type::Bytes | Type::Time | Type::MicroTime | Type::Stamp | Type::Quantity => "string",
        Type::Bool => "boolean",
        Type::Int32 | Type::Int64 | Type::IntOrString => "integer",
        Type::List(_) => "array",
        Type::Any | Type::Map(_) | Type::Object(_) => "object",
    }
}

/// What Go calls a type that has no name of its own.
fn go_type(kind: &Type) -> Cow<'static, str> {
    match kind {
        Type::Text | Type::Stamp => "string".into(),
        Type::Bytes => "[]uint8".into(),
        Type::Bool => "bool".into(),
        Type::Int32 => "int32".into(),
        Type::Int64 => "int64".into(),
        Type::Time => "v1.Time".into(),
        Type::MicroTime => "v1.MicroTime".into(),
        Type::Quantity => "resource.Quantity".into(),
        Type::IntOrString => "intstr.IntOrString".into(),
        Type::Any => "runtime.RawExtension".into(),
        Type::List(kind) => format!("[]{}", go_type(kind)).into(),
        Type::Map(kind) => format!("map[string]{}", go_type(kind)).into(),
        Type::Object(schema) => schema.go().into(),
    }
}
