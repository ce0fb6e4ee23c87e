//! Keys that stand twice in one object of a JSON text. Readers keep the last; clients may ask to be told.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// As many as upstream tells of.
pub(super) const MOST: usize = 100;

/// A path in quotes. A key may be as long as the whole request: what is told of it may not.
pub(super) fn quoted(path: &str) -> String {
    format!("{:?}", &path[..path.floor_char_boundary(1024)])
}

/// What is there twice, in upstream's words: `duplicate field "spec.nodeName"`. Nothing if it is no JSON.
pub fn duplicates(raw: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(raw);
    match (Walk { path: &mut String::new(), found: &mut found }).deserialize(&mut deserializer) {
        Ok(()) => found,
        Err(_) => Vec::new(),
    }
}

/// A value, at a path.
struct Walk<'a> {
    path: &'a mut String,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let length = self.path.len();
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(&key);
            if !keys.insert(key) && self.found.len() < MOST {
                self.found.push(format!("duplicate field {}", quoted(self.path)));
            }
            map.next_value_seed(Walk { path: self.path, found: self.found })?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let length = self.path.len();
        for at in 0.. {
            self.path.push_str(&format!("[{at}]"));
            let more = list.next_element_seed(Walk { path: self.path, found: self.found })?;
            self.path.truncate(length);
            if more.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}
