//! Conversion of JSON to an object of its kind: the result equals a round trip through Go's structs.
//!
//! Unknown fields are dropped and reported. Null counts as unset. Zero values are kept or omitted as Go declares the
//! field. Times, quantities and bytes are serialized in their canonical form. A value of the wrong type is an error with
//! Go's message. Custom kinds are JSON upstream too: only their unknown fields and nulls are dropped.

use std::borrow::Cow;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};

use super::duplicates::{MAX_REPORTED, quoted};
use super::{Field, Presence, Schema, Type, base64, time};
use crate::status::{Cause, StatusError};
use wharf_model::Quantity;

/// An object that conforms to its schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Conformed {
    /// The object to store.
    pub object: Value,
    /// The dropped fields, as upstream reports them: `unknown field "spec.foo"`.
    pub unknown: Vec<String>,
}

/// A value has the wrong type for its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// In a built-in kind, with Go's message.
    #[error("{0}")]
    Native(String),
    /// In a custom kind.
    #[error("{0}: Invalid value: {1:?}: {0} in body must be of type {2}: {1:?}", .field, .found, .expected)]
    Custom {
        /// The path of the field.
        field: String,
        /// The JSON type of the value: `integer`.
        found: &'static str,
        /// The JSON type of the field.
        expected: &'static str,
    },
}

impl TypeError {
    /// The error response for a request body of this kind.
    pub fn to_status_error(&self, kind: &Schema, name: &str) -> StatusError {
        match self {
            Self::Native(reason) => {
                let (version, kind) = (kind.version, kind.kind);
                StatusError::bad_request(format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: {reason}"
                ))
            }
            Self::Custom { field, found, expected } => {
                let detail = format!("{field} in body must be of type {expected}: {found:?}");
                let cause = Cause {
                    reason: "FieldValueTypeInvalid",
                    ..Cause::invalid(field, &json!(found), &detail)
                };
                StatusError::invalid(kind.group, kind.kind, name, vec![cause])
            }
        }
    }
}

impl Schema {
    /// Converts JSON to an object of this kind.
    pub fn conform(&self, object: Value) -> Result<Conformed, TypeError> {
        let mut conformer = Conformer {
            custom: self.custom,
            path: String::new(),
            fields: Vec::new(),
            within: None,
            unknown: Vec::new(),
        };
        let object = conformer.object(self, object, self.go())?;
        Ok(Conformed { object: Value::Object(object), unknown: conformer.unknown })
    }
}

/// The state of a conversion: the current position in the object.
struct Conformer {
    custom: bool,
    /// The path in reports of unknown fields: `spec.containers[0].name`.
    path: String,
    /// The path in Go's type errors: `spec`, `containers`, `name`.
    fields: Vec<&'static str>,
    /// The Go struct of the innermost field.
    within: Option<&'static str>,
    unknown: Vec<String>,
}

impl Conformer {
    fn object(&mut self, schema: &Schema, value: Value, go: &str) -> Result<Map<String, Value>, TypeError> {
        let given = match value {
            Value::Object(given) => given,
            other => return Err(self.type_error(&other, go, "object")),
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
                None if self.unknown.len() < MAX_REPORTED => {
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
                    // managedFields is not stored.
                    if let (Some(value), false) = (value, key == "managedFields") {
                        object.insert(key, value);
                    }
                }
            }
            self.path.truncate(length);
        }
        self.custom = custom;
        add_always_written(schema, &mut object);
        Ok(object)
    }

    /// The value of a field, or `None` if it is not serialized.
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
        Ok(match (field.presence, &field.kind) {
            (Presence::OmitZero, _) if is_empty => None,
            (_, Type::Time | Type::MicroTime) if value.is_null() => None,
            // Upstream returns it as null from storage; `add_always_written` adds the null.
            (Presence::Always, Type::List(_) | Type::Map(_)) if is_empty => None,
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
            // Go also accepts a list of bytes.
            (Type::Bytes, Value::Array(list)) if !self.custom => {
                let byte = |value: Value| match value.as_u64().and_then(|byte| u8::try_from(byte).ok()) {
                    Some(byte) => Ok(byte),
                    None if value.is_null() => Ok(0),
                    None => Err(self.type_error(&value, "uint8", "integer")),
                };
                let bytes: Vec<u8> = list.into_iter().map(byte).collect::<Result<_, _>>()?;
                Ok(BASE64.encode(bytes).into())
            }
            (Type::Int32, Value::Number(number)) => match number.as_i64() {
                Some(whole) if i32::try_from(whole).is_ok() => Ok(whole.into()),
                _ => Err(self.type_error(&Value::Number(number), go, "integer")),
            },
            (Type::Int64, Value::Number(number)) => match number.as_i64() {
                Some(whole) => Ok(whole.into()),
                None => Err(self.type_error(&Value::Number(number), go, "integer")),
            },
            (Type::Time, Value::String(text)) => {
                time::seconds(&text).map(Value::from).map_err(TypeError::Native)
            }
            (Type::MicroTime, Value::String(text)) => {
                time::micros(&text).map(Value::from).map_err(TypeError::Native)
            }
            (Type::Time | Type::MicroTime, other) => Err(self.type_error(&other, "string", "string")),
            (Type::DateTime, Value::String(text)) => {
                if time::is_rfc3339(&text) {
                    Ok(text.into())
                } else {
                    Err(self.type_error(&Value::String(text), go, "date-time"))
                }
            }
            (Type::Quantity, Value::String(text)) => quantity(text.trim()),
            (Type::Quantity, other) => quantity(&other.to_string()),
            (Type::IntOrString, value @ Value::String(_)) => Ok(value),
            (Type::IntOrString, Value::Number(number)) => match number.as_i64() {
                Some(whole) if self.custom || i32::try_from(whole).is_ok() => Ok(whole.into()),
                _ => Err(self.type_error(&Value::Number(number), "int32", "integer")),
            },
            (Type::IntOrString, other) => Err(self.type_error(&other, "int32", "integer")),
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
            (kind, other) => Err(self.type_error(&other, go, json_type(kind))),
        }
    }

    /// A value in a list or a map, where null is a zero value.
    fn element(&mut self, kind: &Type, value: Value, go: &str) -> Result<Value, TypeError> {
        if value.is_null() && !self.custom { Ok(zero_value(kind)) } else { self.value(kind, value, go) }
    }

    fn type_error(&self, value: &Value, go: &str, expected: &'static str) -> TypeError {
        if self.custom {
            return TypeError::Custom { field: self.path.clone(), found: json_kind(value), expected };
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

/// Adds the fields that Go always serializes.
fn add_always_written(schema: &Schema, object: &mut Map<String, Value>) {
    for field in schema.fields {
        let value = match field.presence {
            Presence::AsGiven | Presence::OmitZero => continue,
            Presence::NullIfUnset => Value::Null,
            Presence::Always => zero_value(&field.kind),
        };
        if !object.contains_key(field.name) {
            object.insert(field.name.to_owned(), value);
        }
    }
}

/// The zero value of a field, as Go serializes it.
fn zero_value(kind: &Type) -> Value {
    match kind {
        Type::Text | Type::Bytes | Type::DateTime => "".into(),
        Type::Bool => false.into(),
        Type::Int32 | Type::Int64 | Type::IntOrString => 0.into(),
        Type::Quantity => "0".into(),
        Type::Time | Type::MicroTime | Type::Any | Type::List(_) | Type::Map(_) => Value::Null,
        Type::Object(schema) => {
            let mut object = Map::new();
            add_always_written(schema, &mut object);
            object.into()
        }
    }
}

/// Converts a quantity to its canonical form. Errors have Go's message.
fn quantity(text: &str) -> Result<Value, TypeError> {
    if let Ok(quantity) = text.parse::<Quantity>() {
        return Ok(quantity.to_string().into());
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    // Go parses a unit without a number as zero.
    if !unsigned.is_empty() && format!("0{unsigned}").parse::<Quantity>().is_ok() {
        return Ok("0".into());
    }
    let suffix = unsigned.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &unsigned[..unsigned.len() - suffix.len()];
    let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let reason = if text.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    } else if number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() < 2 {
        "unable to parse quantity's suffix"
    } else {
        "unable to parse numeric part of quantity"
    };
    Err(TypeError::Native(reason.to_owned()))
}

/// Go's name for a JSON value that does not fit a type. The number is included if it is only out of range.
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

/// The OpenAPI type of a JSON value.
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

/// The OpenAPI name of a type.
fn json_type(kind: &Type) -> &'static str {
    match kind {
        Type::Text | Type::Bytes | Type::Time | Type::MicroTime | Type::DateTime | Type::Quantity => "string",
        Type::Bool => "boolean",
        Type::Int32 | Type::Int64 | Type::IntOrString => "integer",
        Type::List(_) => "array",
        Type::Any | Type::Map(_) | Type::Object(_) => "object",
    }
}

/// Go's name of an unnamed type.
fn go_type(kind: &Type) -> Cow<'static, str> {
    match kind {
        Type::Text | Type::DateTime => "string".into(),
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
