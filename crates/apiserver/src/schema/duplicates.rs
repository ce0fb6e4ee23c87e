//! Duplicate keys in JSON objects. Parsers use the last one; clients can request warnings or errors.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// The maximum number of fields that are reported. Upstream has the same limit.
pub(super) const MAX_REPORTED: usize = 100;

/// Quotes a path. A key can be as long as the whole request, so the path is truncated.
pub(super) fn quoted(path: &str) -> String {
    format!("{:?}", &path[..path.floor_char_boundary(1024)])
}

/// Reports duplicate keys with upstream's message: `duplicate field "spec.nodeName"`. Returns nothing for invalid JSON.
pub fn duplicate_fields(raw: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(raw);
    match (DuplicateFinder { path: &mut String::new(), found: &mut found }).deserialize(&mut deserializer) {
        Ok(()) => found,
        Err(_) => Vec::new(),
    }
}

/// Visits the value at a path.
struct DuplicateFinder<'a> {
    path: &'a mut String,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for DuplicateFinder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DuplicateFinder<'_> {
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
            if !keys.insert(key) && self.found.len() < MAX_REPORTED {
                self.found.push(format!("duplicate field {}", quoted(self.path)));
            }
            map.next_value_seed(DuplicateFinder { path: self.path, found: self.found })?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let length = self.path.len();
        for at in 0.. {
            self.path.push_str(&format!("[{at}]"));
            let more = list.next_element_seed(DuplicateFinder { path: self.path, found: self.found })?;
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
