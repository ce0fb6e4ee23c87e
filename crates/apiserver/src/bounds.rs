//! How much an object may consist of. Memory and time go by values, not by bytes: `{}` is two bytes of a body, and
//! in a list of containers it is a hundred fields when it is one of its kind.
//!
//! The bounds hold for what is sent, for what a patch makes of an object, and for what is stored: so whoever reads an
//! object can send it back.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::status::Refusal;

/// Values of all sorts in one object: some ten times the largest objects of large clusters.
pub(crate) const VALUES: usize = 100_000;
/// Objects and lists among them, and nulls: in a list, a null becomes an object with all its defaults.
pub(crate) const HOLDERS: usize = 10_000;

/// It consists of more than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("limit is {VALUES} values, {HOLDERS} of them objects and lists")]
pub struct TooMany;

impl From<TooMany> for Refusal {
    fn from(error: TooMany) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: {error}"))
    }
}

/// Why a text is not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    TooMany(#[from] TooMany),
    #[error(transparent)]
    NoJson(#[from] serde_json::Error),
}

/// Reads JSON, and stops where there is too much of it.
pub(crate) fn read(raw: &[u8]) -> Result<Value, ReadError> {
    read_beside(raw, 0)
}

/// The same where so many objects and lists are none of an object's, but say what becomes of one.
pub(crate) fn read_beside(raw: &[u8], beside: usize) -> Result<Value, ReadError> {
    let mut count = Count { beside, ..Count::default() };
    let mut reader = serde_json::Deserializer::from_slice(raw);
    let read = (Reading(&mut count)).deserialize(&mut reader);
    match read.and_then(|value| reader.end().map(|()| value)) {
        Ok(value) => Ok(value),
        Err(_) if count.is_over() => Err(TooMany.into()),
        Err(error) => Err(error.into()),
    }
}

/// That there is not too much of a value which was made and not sent.
pub(crate) fn check(value: &Value) -> Result<(), TooMany> {
    Count::default().all(value)
}

/// What was counted so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    values: usize,
    holders: usize,
    /// So many more of these are fine.
    beside: usize,
}

impl Count {
    /// One more value that holds nothing.
    pub(crate) fn plain(&mut self) -> Result<(), TooMany> {
        self.values += 1;
        if self.is_over() { Err(TooMany) } else { Ok(()) }
    }

    /// One more object, list or null.
    pub(crate) fn holder(&mut self) -> Result<(), TooMany> {
        self.holders += 1;
        self.plain()
    }

    /// All of a value.
    pub(crate) fn all(&mut self, value: &Value) -> Result<(), TooMany> {
        match value {
            Value::Object(map) => {
                self.holder()?;
                map.values().try_for_each(|value| self.all(value))
            }
            Value::Array(list) => {
                self.holder()?;
                list.iter().try_for_each(|value| self.all(value))
            }
            Value::Null => self.holder(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => self.plain(),
        }
    }

    fn is_over(&self) -> bool {
        self.values > VALUES || self.holders > HOLDERS + self.beside
    }
}

/// A value that is counted while it is read.
struct Reading<'a>(&'a mut Count);

impl<'de> DeserializeSeed<'de> for Reading<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.0.holder().map_err(A::Error::custom)?;
        let mut object = Map::new();
        while let Some(key) = map.next_key()? {
            object.insert(key, map.next_value_seed(Reading(self.0))?);
        }
        Ok(object.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.0.holder().map_err(A::Error::custom)?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Reading(self.0))? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        self.0.holder().map_err(E::custom)?;
        Ok(Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        self.0.plain().map_err(E::custom)?;
        Ok(value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.0.plain().map_err(E::custom)?;
        Ok(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.0.plain().map_err(E::custom)?;
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.0.plain().map_err(E::custom)?;
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.visit_string(value.to_owned())
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        self.0.plain().map_err(E::custom)?;
        Ok(value.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(of: &str, times: usize) -> String {
        format!("[{}]", vec![of; times].join(","))
    }

    #[test]
    fn what_is_too_much() {
        for (text, fits) in [
            // The list itself counts too.
            (list("{}", HOLDERS - 1), true),
            (list("{}", HOLDERS), false),
            (list("[]", HOLDERS), false),
            (list("null", HOLDERS), false),
            (list("1", VALUES - 1), true),
            (list("1", VALUES), false),
            (list("\"\"", VALUES), false),
            // However large it is.
            (list(&format!("{:?}", "x".repeat(1 << 20)), 3), true),
        ] {
            let read = read(text.as_bytes());
            assert_eq!(read.is_ok(), fits, "{}", &text[..20]);
            assert_eq!(matches!(read, Err(ReadError::TooMany(_))), !fits, "{}", &text[..20]);
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(check(&value).is_ok(), fits, "{}", &text[..20]);
        }
    }

    #[test]
    fn what_stands_beside_an_object_is_not_of_it() {
        let text = list("{}", HOLDERS + 99);
        assert!(read_beside(text.as_bytes(), 100).is_ok());
        assert!(read_beside(text.as_bytes(), 99).is_err());
    }

    #[test]
    fn what_follows_too_much_is_not_read() {
        let text = format!("[{}", "{},".repeat(HOLDERS + 1));
        assert!(matches!(read(text.as_bytes()), Err(ReadError::TooMany(_))), "it is not even JSON");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 30, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// It reads what any reader of JSON reads, and errors stand where they would stand.
        #[test]
        fn reads_as_usual(value in any_json(), junk: Vec<u8>, at: prop::sample::Index) {
            let text = value.to_string();
            prop_assert_eq!(read(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(&text).unwrap());
            let mut raw = text.into_bytes();
            let at = at.index(raw.len());
            raw.splice(at..at, junk);
            match (read(&raw), serde_json::from_slice::<Value>(&raw)) {
                (Ok(read), Ok(usual)) => prop_assert_eq!(read, usual),
                (Err(ReadError::NoJson(read)), Err(usual)) => prop_assert_eq!(read.to_string(), usual.to_string()),
                (read, usual) => prop_assert!(false, "{:?} {:?}", read, usual),
            }
        }
    }
}
