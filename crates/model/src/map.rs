//! A compact map of strings: annotations, labels and contexts of many thousand objects.
//!
//! Guarantees: it behaves like a `BTreeMap<String, String>` and uses two allocations however many entries it has, none
//! if it is empty. (A BTreeMap allocates half a kilobyte for its first entry.) In return, lookups are linear and every
//! change copies the map. Views have few entries, and are rarely changed.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer};

/// Keys and their values, ordered by key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StringMap {
    /// Key, value, key, value, with nothing between them.
    text: Box<str>,
    /// The end offsets of each key and its value.
    ends: Box<[(usize, usize)]>,
}

impl StringMap {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|&(present, _)| present == key).map(|(_, value)| value)
    }

    /// Whether the map has this key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Keys and values, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        self.ends.iter().map(move |&(key, value)| {
            let entry = (&self.text[start..key], &self.text[key..value]);
            start = value;
            entry
        })
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: &str, value: &str) {
        *self = self.iter().chain([(key, value)]).collect();
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) {
        *self = self.iter().filter(|&(present, _)| present != key).collect();
    }

    fn of<K: AsRef<str>, V: AsRef<str>>(sorted: &BTreeMap<K, V>) -> Self {
        let (mut text, mut ends) = (String::new(), Vec::with_capacity(sorted.len()));
        for (key, value) in sorted {
            text.push_str(key.as_ref());
            let key = text.len();
            text.push_str(value.as_ref());
            ends.push((key, text.len()));
        }
        Self { text: text.into(), ends: ends.into() }
    }
}

/// The last of several values for a key is used.
impl<K: AsRef<str> + Ord, V: AsRef<str>> FromIterator<(K, V)> for StringMap {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self::of(&entries.into_iter().collect())
    }
}

impl From<&StringMap> for BTreeMap<String, String> {
    fn from(map: &StringMap) -> Self {
        map.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

impl fmt::Debug for StringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<String, String>::deserialize(deserializer).map(|sorted| Self::of(&sorted))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn json_objects_are_decoded() {
        for (json, entries) in [
            ("{}", &[][..]),
            (r#"{"a": ""}"#, &[("a", "")]),
            (r#"{"b": "2", "a": "1"}"#, &[("a", "1"), ("b", "2")]),
            (r#"{"a": "1", "b": "2", "a": "3"}"#, &[("a", "3"), ("b", "2")]),
            (r#"{"": "empty", "ä\n": "\u0000ß"}"#, &[("", "empty"), ("ä\n", "\0ß")]),
        ] {
            let map: StringMap = serde_json::from_str(json).unwrap();
            assert_eq!(map.iter().collect::<Vec<_>>(), entries, "{json}");
            assert_eq!(map, entries.iter().copied().collect(), "{json}");
        }
        for json in ["[]", "null", r#"{"a": 1}"#, r#"{"a": null}"#] {
            assert!(serde_json::from_str::<StringMap>(json).is_err(), "{json}");
        }
    }

    /// Maps with the same concatenated text but other entries differ.
    #[test]
    fn entry_boundaries_matter_for_equality() {
        let map = |entries: &[(&str, &str)]| entries.iter().copied().collect::<StringMap>();
        assert_ne!(map(&[("ab", "c")]), map(&[("a", "bc")]));
        assert_ne!(map(&[("a", "b"), ("c", "d")]), map(&[("a", "bcd")]));
    }

    fn entries() -> impl Strategy<Value = Vec<(String, String)>> {
        prop::collection::vec(("[abä]{0,2}", "[xß\0]{0,3}"), 0..6)
    }

    proptest! {
        #[test]
        fn behaves_like_a_btreemap(entries in entries(), more in entries(), removed in "[abä]{0,2}") {
            let mut expected: BTreeMap<String, String> = entries.iter().cloned().collect();
            let mut map: StringMap = entries.into_iter().collect();
            for (key, value) in more {
                map.insert(&key, &value);
                expected.insert(key, value);
            }
            prop_assert_eq!(&BTreeMap::from(&map), &expected);
            prop_assert_eq!(format!("{map:?}"), format!("{expected:?}"));

            map.remove(&removed);
            expected.remove(&removed);
            prop_assert_eq!(map.get(&removed), None);
            prop_assert!(!map.contains_key(&removed));
            prop_assert_eq!(map.len(), expected.len());
            prop_assert_eq!(map.is_empty(), expected.is_empty());
            prop_assert!(map.keys().eq(expected.keys()));
            for (key, value) in &expected {
                prop_assert!(map.contains_key(key));
                prop_assert_eq!(map.get(key), Some(value.as_str()));
            }
            prop_assert_eq!(map, expected.iter().collect::<StringMap>());
        }
    }
}
