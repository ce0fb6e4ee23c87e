//! Conversion of protobuf request bodies to JSON. kubectl and upstream's sidecars send them to create objects.
//!
//! Kubernetes' messages identify the fields of its JSON by numbers (`numbers.txt`). The schemas define their types. The
//! result is processed like a JSON body. Responses are never encoded in protobuf.

use std::collections::HashMap;
use std::sync::OnceLock;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};

use super::{Schema, Type};
use crate::bounds::{self, ParseError, TooManyValues, ValueCounter};

/// The maximum depth of messages: more than any kind has.
const MAX_DEPTH: usize = 64;
/// The prefix of a body, followed by an envelope that names the kind.
const MAGIC: &[u8] = b"k8s\0";

/// Why a body could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The body does not have the prefix.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NotProtobuf,
    /// The message is truncated, or its lengths are inconsistent.
    #[error("unexpected EOF")]
    Malformed,
    /// The kind is unknown or not supported in protobuf.
    #[error("no kind {kind:?} is registered for version {version:?}")]
    UnknownKind {
        /// The `apiVersion` in the body.
        version: String,
        /// The `kind` in the body.
        kind: String,
    },
    /// A string is not valid UTF-8.
    #[error("{0} is not valid UTF-8")]
    NotUtf8(String),
    /// The object exceeds the limits on its number of values.
    #[error(transparent)]
    TooMany(#[from] TooManyValues),
    /// The message exceeds the maximum depth.
    #[error("the message has too many levels")]
    TooDeep,
}

/// The JSON field of a field number.
enum FieldTarget {
    Field(&'static str),
    /// The fields of an inline message, which are in the same JSON object.
    Inline(&'static str),
}

type Numbers = HashMap<&'static str, HashMap<u32, FieldTarget>>;

fn field_numbers() -> &'static Numbers {
    static NUMBERS: OnceLock<Numbers> = OnceLock::new();
    NUMBERS.get_or_init(|| {
        let lines = include_str!("numbers.txt").lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| {
                let mut words = line.split(' ');
                let (message, mut next, mut targets) = (words.next()?, 1, HashMap::new());
                for word in words {
                    if let Ok(number) = word.parse() {
                        next = number;
                        continue;
                    }
                    let target = word.strip_prefix('+').map_or(FieldTarget::Field(word), FieldTarget::Inline);
                    targets.insert(next, target);
                    next += 1;
                }
                Some((message, targets))
            })
            .collect()
    })
}

/// Decodes the object in a protobuf body, including its kind and apiVersion.
pub fn from_protobuf(body: &[u8]) -> Result<Value, ProtobufError> {
    let mut envelope = WireReader(body.strip_prefix(MAGIC).ok_or(ProtobufError::NotProtobuf)?);
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    while let Some((number, wire)) = envelope.next()? {
        match (number, wire) {
            (1, WireValue::Bytes(bytes)) => {
                let mut type_meta = WireReader(bytes);
                while let Some((number, wire)) = type_meta.next()? {
                    match number {
                        1 => version = wire.text("apiVersion")?,
                        2 => kind = wire.text("kind")?,
                        _ => {}
                    }
                }
            }
            (2, WireValue::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let group = match (kind.as_str(), version.split_once('/')) {
        // DeleteOptions has the group of the object to delete.
        ("DeleteOptions", _) | (_, None) => "",
        (_, Some((group, _))) => group,
    };
    let schema = super::find(group, &kind).filter(|schema| !schema.custom);
    let Some(schema) = schema else { return Err(ProtobufError::UnknownKind { version, kind }) };
    let mut object = Map::new();
    let mut decoder = Decoder::default();
    decoder.message(schema, short_name(schema.name), raw, 0, &mut object)?;
    object.insert("apiVersion".into(), version.into());
    object.insert("kind".into(), kind.into());
    Ok(object.into())
}

/// Returns `core.v1.Pod` for `io.k8s.api.core.v1.Pod`.
fn short_name(name: &'static str) -> &'static str {
    name.strip_prefix("io.k8s.api.")
        .or_else(|| name.strip_prefix("io.k8s.apimachinery.pkg.apis."))
        .unwrap_or(name)
}

fn push(out: &mut Map<String, Value>, name: &str, item: Value) {
    match out.entry(name).or_insert_with(|| json!([])) {
        Value::Array(list) => list.push(item),
        other => *other = json!([item]),
    }
}

/// Decodes one body, and counts its values.
#[derive(Default)]
struct Decoder {
    count: ValueCounter,
}

impl Decoder {
    fn message(
        &mut self,
        schema: &'static Schema,
        name: &str,
        bytes: &[u8],
        depth: usize,
        out: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        if depth > MAX_DEPTH {
            return Err(ProtobufError::TooDeep);
        }
        let Some(targets) = field_numbers().get(name) else { return Ok(()) };
        let mut reader = WireReader(bytes);
        while let Some((number, wire)) = reader.next()? {
            match targets.get(&number) {
                None => {}
                Some(FieldTarget::Inline(inner)) => {
                    self.message(schema, inner, wire.bytes()?, depth + 1, out)?
                }
                Some(FieldTarget::Field(field)) => {
                    let Some(field) = schema.fields.iter().find(|candidate| candidate.name == *field) else {
                        continue;
                    };
                    match field.kind {
                        Type::List(item_type) => {
                            let item = self.value(item_type, field.name, wire, depth)?;
                            push(out, field.name, item);
                        }
                        Type::Map(item_type) => {
                            let (key, item) = self.entry(item_type, field.name, wire, depth)?;
                            let map = out.entry(field.name).or_insert_with(|| json!({}));
                            map[key] = item;
                        }
                        ref kind => {
                            let item = self.value(kind, field.name, wire, depth)?;
                            out.insert(field.name.into(), item);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Decodes an entry of a map: a message with a key and a value.
    fn entry(
        &mut self,
        value_type: &'static Type,
        name: &str,
        wire: WireValue<'_>,
        depth: usize,
    ) -> Result<(String, Value), ProtobufError> {
        let (mut key, mut item) = (String::new(), Value::Null);
        let mut reader = WireReader(wire.bytes()?);
        while let Some((number, wire)) = reader.next()? {
            match number {
                1 => key = wire.text(name)?,
                // Protobuf has no maps of lists: the value is a message whose only field is the list.
                2 => {
                    item = match value_type {
                        Type::List(value_type) => {
                            let mut list = Map::new();
                            let mut items = WireReader(wire.bytes()?);
                            while let Some((_, wire)) = items.next()? {
                                push(&mut list, "items", self.value(value_type, name, wire, depth + 1)?);
                            }
                            list.remove("items").unwrap_or_else(|| json!([]))
                        }
                        value_type => self.value(value_type, name, wire, depth + 1)?,
                    };
                }
                _ => {}
            }
        }
        // Zero values may be omitted.
        if item.is_null() {
            self.count.add_scalar()?;
            if matches!(value_type, Type::Text | Type::Bytes) {
                item = "".into();
            }
        }
        Ok((key, item))
    }

    fn value(
        &mut self,
        value_type: &'static Type,
        name: &str,
        wire: WireValue<'_>,
        depth: usize,
    ) -> Result<Value, ProtobufError> {
        match value_type {
            Type::Object(_) | Type::List(_) | Type::Map(_) | Type::Time | Type::MicroTime => {
                self.count.add_composite()?
            }
            // Its content is counted below.
            Type::Any => {}
            _ => self.count.add_scalar()?,
        }
        Ok(match value_type {
            Type::Text => wire.text(name)?.into(),
            Type::Bytes => BASE64.encode(wire.bytes()?).into(),
            Type::Bool => (wire.number()? != 0).into(),
            Type::Int32 | Type::Int64 => wire.number()?.into(),
            // JSON requires six fractional digits, even if they are zero.
            Type::MicroTime => time(wire.bytes()?)?.map(|time| format!("{time:.6}")).into(),
            Type::Time | Type::DateTime => time(wire.bytes()?)?.map(|time| time.to_string()).into(),
            Type::Quantity => {
                let mut text = String::from("0");
                let mut reader = WireReader(wire.bytes()?);
                while let Some((number, wire)) = reader.next()? {
                    if number == 1 {
                        text = wire.text(name)?;
                    }
                }
                text.into()
            }
            Type::IntOrString => {
                let (mut is_text, mut number, mut text) = (false, 0, String::new());
                let mut reader = WireReader(wire.bytes()?);
                while let Some((target, wire)) = reader.next()? {
                    match target {
                        1 => is_text = wire.number()? != 0,
                        2 => number = wire.number()?,
                        3 => text = wire.text(name)?,
                        _ => {}
                    }
                }
                if is_text { text.into() } else { number.into() }
            }
            Type::Any => {
                let mut raw = Value::Null;
                let mut reader = WireReader(wire.bytes()?);
                while let Some((number, wire)) = reader.next()? {
                    if number == 1 {
                        raw = match bounds::parse(wire.bytes()?) {
                            Ok(value) => value,
                            Err(ParseError::TooMany(error)) => return Err(error.into()),
                            Err(ParseError::Syntax(_)) => Value::Null,
                        };
                    }
                }
                self.count.add_all(&raw)?;
                raw
            }
            Type::Object(schema) => {
                let mut object = Map::new();
                self.message(schema, short_name(schema.name), wire.bytes()?, depth + 1, &mut object)?;
                object.into()
            }
            // Kubernetes has no nested lists or maps.
            Type::List(_) | Type::Map(_) => Value::Null,
        })
    }
}

/// Decodes a time of seconds and nanoseconds; `None` for an empty message.
fn time(bytes: &[u8]) -> Result<Option<jiff::Timestamp>, ProtobufError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = WireReader(bytes);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => seconds = wire.number()?,
            2 => nanos = wire.number()?,
            _ => {}
        }
    }
    let nanos = i32::try_from(nanos).map_err(|_| ProtobufError::Malformed)?;
    jiff::Timestamp::new(seconds, nanos).map(Some).map_err(|_| ProtobufError::Malformed)
}

/// The value of a field on the wire.
#[derive(Clone, Copy)]
enum WireValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> WireValue<'a> {
    fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(ProtobufError::Malformed),
        }
    }

    fn number(self) -> Result<i64, ProtobufError> {
        match self {
            Self::Number(number) => Ok(number.cast_signed()),
            Self::Bytes(_) => Err(ProtobufError::Malformed),
        }
    }

    fn text(self, name: &str) -> Result<String, ProtobufError> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| ProtobufError::NotUtf8(name.into()))
    }
}

/// Reads the fields of a message in sequence.
struct WireReader<'a>(&'a [u8]);

impl<'a> WireReader<'a> {
    fn next(&mut self) -> Result<Option<(u32, WireValue<'a>)>, ProtobufError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Malformed)?;
        let wire = match tag & 7 {
            0 => WireValue::Number(self.varint()?),
            1 => WireValue::Bytes(self.take(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Malformed)?;
                WireValue::Bytes(self.take(length)?)
            }
            5 => WireValue::Bytes(self.take(4)?),
            _ => return Err(ProtobufError::Malformed),
        };
        Ok(Some((number, wire)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(ProtobufError::Malformed)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(ProtobufError::Malformed)
    }
}

#[cfg(test)]
mod tests;
