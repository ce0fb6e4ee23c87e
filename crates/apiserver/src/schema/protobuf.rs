//! Protobuf bodies, which kubectl and upstream's sidecars send for what they make, read into JSON.
//!
//! Kubernetes' messages have the fields of its JSON under numbers (`numbers.txt`); the schemas tell their types. What
//! comes out is JSON as if it had been sent, and is judged as such. Nothing is written in protobuf.

use std::collections::HashMap;
use std::sync::OnceLock;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};

use super::{Schema, Type};
use crate::bounds::{self, Count, ReadError, TooMany};

/// Levels of messages: more than any kind has.
const DEPTH: usize = 64;
/// What such a body begins with; then comes an envelope that names the kind.
const MAGIC: &[u8] = b"k8s\0";

/// Why a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// It does not begin as one.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NotProtobuf,
    /// It breaks off, or its lengths do not fit.
    #[error("unexpected EOF")]
    Broken,
    /// It is of a kind that is not read in protobuf.
    #[error("no kind {kind:?} is registered for version {version:?}")]
    NoKind {
        /// As it says.
        version: String,
        /// As it says.
        kind: String,
    },
    /// Text that is none.
    #[error("{0} is not valid UTF-8")]
    NotText(String),
    /// There is too much in it.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// It goes too deep.
    #[error("the message has too many levels")]
    Deep,
}

/// Where a number leads.
enum Place {
    Field(&'static str),
    /// Another message's fields, in the same JSON object.
    Inline(&'static str),
}

type Numbers = HashMap<&'static str, HashMap<u32, Place>>;

fn numbers() -> &'static Numbers {
    static NUMBERS: OnceLock<Numbers> = OnceLock::new();
    NUMBERS.get_or_init(|| {
        let lines = include_str!("numbers.txt").lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| {
                let mut words = line.split(' ');
                let (message, mut next, mut places) = (words.next()?, 1, HashMap::new());
                for word in words {
                    if let Ok(number) = word.parse() {
                        next = number;
                        continue;
                    }
                    let place = word.strip_prefix('+').map_or(Place::Field(word), Place::Inline);
                    places.insert(next, place);
                    next += 1;
                }
                Some((message, places))
            })
            .collect()
    })
}

/// The object in a protobuf body, with its kind and apiVersion.
pub fn from_protobuf(body: &[u8]) -> Result<Value, ProtobufError> {
    let mut envelope = Reader(body.strip_prefix(MAGIC).ok_or(ProtobufError::NotProtobuf)?);
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    while let Some((number, wire)) = envelope.next()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => {
                let mut of = Reader(bytes);
                while let Some((number, wire)) = of.next()? {
                    match number {
                        1 => version = wire.text("apiVersion")?,
                        2 => kind = wire.text("kind")?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let group = match (kind.as_str(), version.split_once('/')) {
        // It goes with objects of all groups, and then says theirs.
        ("DeleteOptions", _) | (_, None) => "",
        (_, Some((group, _))) => group,
    };
    let schema = super::of(group, &kind).filter(|schema| !schema.custom);
    let Some(schema) = schema else { return Err(ProtobufError::NoKind { version, kind }) };
    let mut object = Map::new();
    let mut reading = Reading::default();
    reading.message(schema, short(schema.name), raw, 0, &mut object)?;
    object.insert("apiVersion".into(), version.into());
    object.insert("kind".into(), kind.into());
    Ok(object.into())
}

/// `core.v1.Pod` of `io.k8s.api.core.v1.Pod`.
fn short(name: &'static str) -> &'static str {
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

/// A body under way.
#[derive(Default)]
struct Reading {
    count: Count,
}

impl Reading {
    fn message(
        &mut self,
        schema: &'static Schema,
        name: &str,
        bytes: &[u8],
        depth: usize,
        out: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        if depth > DEPTH {
            return Err(ProtobufError::Deep);
        }
        let Some(places) = numbers().get(name) else { return Ok(()) };
        let mut reader = Reader(bytes);
        while let Some((number, wire)) = reader.next()? {
            match places.get(&number) {
                None => {}
                Some(Place::Inline(inner)) => self.message(schema, inner, wire.bytes()?, depth + 1, out)?,
                Some(Place::Field(field)) => {
                    let Some(field) = schema.fields.iter().find(|of| of.name == *field) else { continue };
                    match field.kind {
                        Type::List(of) => {
                            let item = self.value(of, field.name, wire, depth)?;
                            push(out, field.name, item);
                        }
                        Type::Map(of) => {
                            let (key, item) = self.entry(of, field.name, wire, depth)?;
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

    /// One entry of a map, which is a message of a key and a value.
    fn entry(
        &mut self,
        of: &'static Type,
        name: &str,
        wire: Wire<'_>,
        depth: usize,
    ) -> Result<(String, Value), ProtobufError> {
        let (mut key, mut item) = (String::new(), Value::Null);
        let mut reader = Reader(wire.bytes()?);
        while let Some((number, wire)) = reader.next()? {
            match number {
                1 => key = wire.text(name)?,
                // Protobuf has no maps of lists: the list is a message's only field.
                2 => {
                    item = match of {
                        Type::List(of) => {
                            let mut list = Map::new();
                            let mut items = Reader(wire.bytes()?);
                            while let Some((_, wire)) = items.next()? {
                                push(&mut list, "items", self.value(of, name, wire, depth + 1)?);
                            }
                            list.remove("items").unwrap_or_else(|| json!([]))
                        }
                        of => self.value(of, name, wire, depth + 1)?,
                    };
                }
                _ => {}
            }
        }
        // Values that are zero may be left out.
        if item.is_null() {
            self.count.plain()?;
            if matches!(of, Type::Text | Type::Bytes) {
                item = "".into();
            }
        }
        Ok((key, item))
    }

    fn value(
        &mut self,
        of: &'static Type,
        name: &str,
        wire: Wire<'_>,
        depth: usize,
    ) -> Result<Value, ProtobufError> {
        match of {
            Type::Object(_) | Type::List(_) | Type::Map(_) | Type::Time | Type::MicroTime => {
                self.count.holder()?
            }
            // What is in it counts when it is read.
            Type::Any => {}
            _ => self.count.plain()?,
        }
        Ok(match of {
            Type::Text => wire.text(name)?.into(),
            Type::Bytes => BASE64.encode(wire.bytes()?).into(),
            Type::Bool => (wire.number()? != 0).into(),
            Type::Int32 | Type::Int64 => wire.number()?.into(),
            // JSON has to have six digits, also when they are zeroes.
            Type::MicroTime => time(wire.bytes()?)?.map(|time| format!("{time:.6}")).into(),
            Type::Time | Type::Stamp => time(wire.bytes()?)?.map(|time| time.to_string()).into(),
            Type::Quantity => {
                let mut text = String::from("0");
                let mut reader = Reader(wire.bytes()?);
                while let Some((number, wire)) = reader.next()? {
                    if number == 1 {
                        text = wire.text(name)?;
                    }
                }
                text.into()
            }
            Type::IntOrString => {
                let (mut is_text, mut number, mut text) = (false, 0, String::new());
                let mut reader = Reader(wire.bytes()?);
                while let Some((place, wire)) = reader.next()? {
                    match place {
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
                let mut reader = Reader(wire.bytes()?);
                while let Some((number, wire)) = reader.next()? {
                    if number == 1 {
                        raw = match bounds::read(wire.bytes()?) {
                            Ok(value) => value,
                            Err(ReadError::TooMany(error)) => return Err(error.into()),
                            Err(ReadError::NoJson(_)) => Value::Null,
                        };
                    }
                }
                self.count.all(&raw)?;
                raw
            }
            Type::Object(schema) => {
                let mut object = Map::new();
                self.message(schema, short(schema.name), wire.bytes()?, depth + 1, &mut object)?;
                object.into()
            }
            // Kubernetes has none of these within another.
            Type::List(_) | Type::Map(_) => Value::Null,
        })
    }
}

/// Seconds and nanoseconds; an empty message is no time.
fn time(bytes: &[u8]) -> Result<Option<jiff::Timestamp>, ProtobufError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => seconds = wire.number()?,
            2 => nanos = wire.number()?,
            _ => {}
        }
    }
    let nanos = i32::try_from(nanos).map_err(|_| ProtobufError::Broken)?;
    jiff::Timestamp::new(seconds, nanos).map(Some).map_err(|_| ProtobufError::Broken)
}

/// What stands behind a number.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(ProtobufError::Broken),
        }
    }

    fn number(self) -> Result<i64, ProtobufError> {
        match self {
            Self::Number(number) => Ok(number.cast_signed()),
            Self::Bytes(_) => Err(ProtobufError::Broken),
        }
    }

    fn text(self, name: &str) -> Result<String, ProtobufError> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| ProtobufError::NotText(name.into()))
    }
}

/// The fields of a message, one after the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, ProtobufError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Broken)?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Bytes(self.take(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Broken)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Bytes(self.take(4)?),
            _ => return Err(ProtobufError::Broken),
        };
        Ok(Some((number, wire)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Broken)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(ProtobufError::Broken)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(ProtobufError::Broken)
    }
}

#[cfg(test)]
mod tests;
