//! Limits on the number of values in an object. Memory and time depend on values, not on bytes: `{}` takes two bytes of
//! a body, but in a list of containers it becomes an object with a hundred fields.
//!
//! The limits apply to request bodies, to the results of patches and to stored objects. So a client can always send
//! back an object that it has read.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::status::StatusError;

/// The maximum number of values in an object: about ten times the largest objects of large clusters.
pub(crate) const MAX_VALUES: usize = 100_000;
/// The maximum number of objects, lists and nulls among them. In a list, a null becomes an object with all defaults.
pub(crate) const MAX_COMPOSITES: usize = 10_000;

/// The object exceeds the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("limit is {MAX_VALUES} values, {MAX_COMPOSITES} of them objects and lists")]
pub struct TooManyValues;

impl From<TooManyValues> for StatusError {
    fn from(error: TooManyValues) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: {error}"))
    }
}

/// Why JSON could not be parsed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseError {
    #[error(transparent)]
    TooMany(#[from] TooManyValues),
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
}

/// Parses JSON, and stops when it exceeds the limits.
pub(crate) fn parse(raw: &[u8]) -> Result<Value, ParseError> {
    read_with_allowance(raw, 0)
}

/// Parses JSON that may exceed [`MAX_COMPOSITES`] by `allowance`: each operation of a JSON patch is itself an object.
pub(crate) fn read_with_allowance(raw: &[u8], allowance: usize) -> Result<Value, ParseError> {
    let mut count = ValueCounter { allowance, ..ValueCounter::default() };
    let mut reader = serde_json::Deserializer::from_slice(raw);
    let read = (CountingVisitor(&mut count)).deserialize(&mut reader);
    match read.and_then(|value| reader.end().map(|()| value)) {
        Ok(value) => Ok(value),
        Err(_) if count.is_over() => Err(TooManyValues.into()),
        Err(error) => Err(error.into()),
    }
}

/// Checks a value that was not parsed from a request.
pub(crate) fn check(value: &Value) -> Result<(), TooManyValues> {
    ValueCounter::default().add_all(value)
}

/// Counts values against the limits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueCounter {
    values: usize,
    composites: usize,
    /// How many composites are allowed in addition to the limit.
    allowance: usize,
}

impl ValueCounter {
    /// Counts a scalar.
    pub(crate) fn add_scalar(&mut self) -> Result<(), TooManyValues> {
        self.values += 1;
        if self.is_over() { Err(TooManyValues) } else { Ok(()) }
    }

    /// Counts an object, list or null.
    pub(crate) fn add_composite(&mut self) -> Result<(), TooManyValues> {
        self.composites += 1;
        self.add_scalar()
    }

    /// Counts a value and everything nested in it.
    pub(crate) fn add_all(&mut self, value: &Value) -> Result<(), TooManyValues> {
        match value {
            Value::Object(map) => {
                self.add_composite()?;
                map.values().try_for_each(|value| self.add_all(value))
            }
            Value::Array(list) => {
                self.add_composite()?;
                list.iter().try_for_each(|value| self.add_all(value))
            }
            Value::Null => self.add_composite(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => self.add_scalar(),
        }
    }

    fn is_over(&self) -> bool {
        self.values > MAX_VALUES || self.composites > MAX_COMPOSITES + self.allowance
    }
}

/// Counts values while they are parsed.
struct CountingVisitor<'a>(&'a mut ValueCounter);

impl<'de> DeserializeSeed<'de> for CountingVisitor<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CountingVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.0.add_composite().map_err(A::Error::custom)?;
        let mut object = Map::new();
        while let Some(key) = map.next_key()? {
            object.insert(key, map.next_value_seed(CountingVisitor(self.0))?);
        }
        Ok(object.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.0.add_composite().map_err(A::Error::custom)?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(CountingVisitor(self.0))? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        self.0.add_composite().map_err(E::custom)?;
        Ok(Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        self.0.add_scalar().map_err(E::custom)?;
        Ok(value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.0.add_scalar().map_err(E::custom)?;
        Ok(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.0.add_scalar().map_err(E::custom)?;
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.0.add_scalar().map_err(E::custom)?;
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.visit_string(value.to_owned())
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        self.0.add_scalar().map_err(E::custom)?;
        Ok(value.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(item: &str, times: usize) -> String {
        format!("[{}]", vec![item; times].join(","))
    }

    #[test]
    fn limits_apply_to_values_and_composites() {
        for (text, fits) in [
            // The list itself counts.
            (list("{}", MAX_COMPOSITES - 1), true),
            (list("{}", MAX_COMPOSITES), false),
            (list("[]", MAX_COMPOSITES), false),
            (list("null", MAX_COMPOSITES), false),
            (list("1", MAX_VALUES - 1), true),
            (list("1", MAX_VALUES), false),
            (list("\"\"", MAX_VALUES), false),
            // The size in bytes does not matter.
            (list(&format!("{:?}", "x".repeat(1 << 20)), 3), true),
        ] {
            let read = parse(text.as_bytes());
            assert_eq!(read.is_ok(), fits, "{}", &text[..20]);
            assert_eq!(matches!(read, Err(ParseError::TooMany(_))), !fits, "{}", &text[..20]);
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(check(&value).is_ok(), fits, "{}", &text[..20]);
        }
    }

    #[test]
    fn allowance_raises_composite_limit() {
        let text = list("{}", MAX_COMPOSITES + 99);
        assert!(read_with_allowance(text.as_bytes(), 100).is_ok());
        assert!(read_with_allowance(text.as_bytes(), 99).is_err());
    }

    #[test]
    fn parsing_stops_at_limit() {
        let text = format!("[{}", "{},".repeat(MAX_COMPOSITES + 1));
        assert!(
            matches!(parse(text.as_bytes()), Err(ParseError::TooMany(_))),
            "the rest, which is not JSON, is not parsed"
        );
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
        /// Results and errors are the same as serde_json's.
        #[test]
        fn parses_like_serde_json(value in any_json(), junk: Vec<u8>, at: prop::sample::Index) {
            let text = value.to_string();
            prop_assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(&text).unwrap());
            let mut raw = text.into_bytes();
            let at = at.index(raw.len());
            raw.splice(at..at, junk);
            match (parse(&raw), serde_json::from_slice::<Value>(&raw)) {
                (Ok(read), Ok(usual)) => prop_assert_eq!(read, usual),
                (Err(ParseError::Syntax(read)), Err(usual)) => prop_assert_eq!(read.to_string(), usual.to_string()),
                (read, usual) => prop_assert!(false, "{:?} {:?}", read, usual),
            }
        }
    }
}
