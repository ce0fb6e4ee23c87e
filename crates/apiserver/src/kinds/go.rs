//! Values in messages, as upstream prints them: its inner types, whose fields have other names than in the API, stand
//! in the order of their declaration and are there even when they are empty. `go/types.txt` has the names.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

use serde_json::Value;

type Types = HashMap<&'static str, Type>;

#[derive(Default)]
struct Type {
    /// A type of the API: only what is there is printed.
    is_api: bool,
    fields: Vec<Field>,
}

enum Field {
    /// A type whose fields are this one's.
    Inline(&'static str),
    Named {
        name: &'static str,
        api: String,
        /// It stands in the object around this one.
        is_outside: bool,
        of: Of,
    },
}

#[derive(Clone, Copy)]
enum Of {
    Text,
    Flag,
    Number,
    Quantity,
    Any,
    Struct(&'static str),
    Pointer(&'static str),
    List(&'static str),
}

static TYPES: LazyLock<Types> = LazyLock::new(|| {
    let mut types = Types::new();
    let mut name = "";
    let lines = include_str!("go/types.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        if !line.starts_with(' ') {
            name = words.next().unwrap_or_default();
        }
        let of = types.entry(name).or_default();
        for word in words {
            match (word.strip_prefix('+'), word) {
                (Some(inner), _) => of.fields.push(Field::Inline(inner)),
                (None, "!") => of.is_api = true,
                (None, word) => of.fields.extend(named(word)),
            }
        }
    }
    types
});

fn named(word: &'static str) -> Option<Field> {
    let (names, kind) = word.split_once(':')?;
    let (name, api) = match names.split_once('=') {
        Some((name, api)) => (name, api.to_owned()),
        None => (names, names[..1].to_lowercase() + &names[1..]),
    };
    let of = match kind {
        "t" => Of::Text,
        "b" => Of::Flag,
        "n" => Of::Number,
        "q" => Of::Quantity,
        "a" => Of::Any,
        kind => match (kind.strip_prefix('*'), kind.strip_prefix('[')) {
            (Some(inner), _) => Of::Pointer(inner),
            (None, Some(inner)) => Of::List(inner),
            (None, None) => Of::Struct(kind),
        },
    };
    let is_outside = api.starts_with('^');
    Some(Field::Named { name, api: api.trim_start_matches('^').to_owned(), is_outside, of })
}

/// On one line. `kind` is a type of the table, with `*` before it if null is an answer.
pub(super) fn compact(value: &Value, kind: &'static str) -> String {
    Printer { text: String::new(), level: None }.print(value, kind)
}

/// A line for each value, with one space for each level.
pub(super) fn pretty(value: &Value, kind: &'static str) -> String {
    Printer { text: String::new(), level: Some(0) }.print(value, kind)
}

/// What differs between two values, as upstream's messages about fixed fields end.
pub(super) fn difference(old: &Value, new: &Value, kind: &'static str) -> String {
    super::diff::unified(&pretty(old, kind), &pretty(new, kind))
}

struct Printer {
    text: String,
    /// None for all on one line.
    level: Option<usize>,
}

impl Printer {
    fn print(mut self, value: &Value, kind: &'static str) -> String {
        let of = kind.strip_prefix('*').map_or(Of::Struct(kind), Of::Pointer);
        self.put(Some(value), None, of);
        self.text
    }

    fn put(&mut self, value: Option<&Value>, around: Option<&Value>, of: Of) {
        let there = value.filter(|value| !value.is_null());
        match (of, there) {
            (Of::Text, None) => self.text.push_str("\"\""),
            (Of::Flag, None) => self.text.push_str("false"),
            (Of::Number, None) => self.text.push('0'),
            (Of::Quantity, None) => self.text.push_str("\"0\""),
            (Of::Any | Of::Pointer(_) | Of::List(_), None) => self.text.push_str("null"),
            (Of::Text | Of::Flag | Of::Number | Of::Quantity, Some(value)) => self.scalar(value),
            (Of::Any, Some(value)) => self.any(value),
            (Of::Pointer(kind) | Of::Struct(kind), value) => {
                let Some(kind) = TYPES.get(kind) else { return };
                self.text.push('{');
                self.deeper(1);
                let mut is_first = true;
                self.fields(kind, value, around, &mut is_first);
                self.deeper(-1);
                self.close('}', is_first);
            }
            (Of::List(kind), Some(value)) => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                self.text.push('[');
                self.deeper(1);
                let mut is_first = true;
                for item in items {
                    self.next(&mut is_first);
                    self.put(Some(item), None, Of::Struct(kind));
                }
                self.deeper(-1);
                self.close(']', is_first);
            }
        }
    }

    fn fields(&mut self, kind: &Type, value: Option<&Value>, around: Option<&Value>, is_first: &mut bool) {
        for field in &kind.fields {
            match field {
                Field::Inline(inner) => {
                    if let Some(inner) = TYPES.get(inner) {
                        // Metadata stand in a field of their own in the API.
                        let value =
                            if inner.is_api { value.and_then(|value| value.get("metadata")) } else { value };
                        self.fields(inner, value, around, is_first);
                    }
                }
                Field::Named { name, api, is_outside, of } => {
                    let from = if *is_outside { around } else { value };
                    let inner = from.and_then(|from| from.get(api));
                    if kind.is_api && inner.is_none() {
                        continue;
                    }
                    self.next(is_first);
                    self.name(name);
                    self.put(inner, value, *of);
                }
            }
        }
    }

    fn any(&mut self, value: &Value) {
        match value {
            Value::Array(items) => {
                self.text.push('[');
                self.deeper(1);
                let mut is_first = true;
                for item in items {
                    self.next(&mut is_first);
                    self.any(item);
                }
                self.deeper(-1);
                self.close(']', is_first);
            }
            Value::Object(map) => {
                self.text.push('{');
                self.deeper(1);
                let mut is_first = true;
                for (key, value) in map {
                    self.next(&mut is_first);
                    self.name(key);
                    self.any(value);
                }
                self.deeper(-1);
                self.close('}', is_first);
            }
            value => self.scalar(value),
        }
    }

    fn name(&mut self, name: &str) {
        self.scalar(&name.into());
        self.text.push_str(if self.level.is_some() { ": " } else { ":" });
    }

    /// Go's JSON writes what HTML would misread as numbers.
    fn scalar(&mut self, value: &Value) {
        for character in value.to_string().chars() {
            match character {
                '<' | '>' | '&' => {
                    // Into a String it cannot fail.
                    let _ = write!(self.text, "\\u{:04x}", u32::from(character));
                }
                character => self.text.push(character),
            }
        }
    }

    fn deeper(&mut self, by: isize) {
        self.level = self.level.map(|level| level.saturating_add_signed(by));
    }

    fn next(&mut self, is_first: &mut bool) {
        if !std::mem::take(is_first) {
            self.text.push(',');
        }
        self.line();
    }

    fn close(&mut self, with: char, is_empty: bool) {
        if !is_empty {
            self.line();
        }
        self.text.push(with);
    }

    fn line(&mut self) {
        if let Some(level) = self.level {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', level));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_type_that_is_named_is_there() {
        for (name, kind) in TYPES.iter() {
            assert!(!kind.fields.is_empty(), "{name}");
            for field in &kind.fields {
                let inner = match field {
                    Field::Inline(inner) => *inner,
                    Field::Named { of: Of::Struct(inner) | Of::Pointer(inner) | Of::List(inner), .. } => {
                        *inner
                    }
                    Field::Named { .. } => continue,
                };
                assert!(TYPES.contains_key(inner), "{name} has {inner}");
            }
        }
    }

    #[test]
    fn empty_fields_are_there() {
        assert_eq!(
            compact(&json!({}), "PersistentVolumeClaimSpec"),
            "{\"AccessModes\":null,\"Selector\":null,\"Resources\":{\"Limits\":null,\"Requests\":null},\
             \"VolumeName\":\"\",\"StorageClassName\":null,\"VolumeMode\":null,\"DataSource\":null,\
             \"DataSourceRef\":null,\"VolumeAttributesClassName\":null}"
        );
        assert_eq!(compact(&Value::Null, "*VolumeNodeAffinity"), "null");
    }

    #[test]
    fn names_and_order_are_upstreams() {
        let claim = json!({
            "accessModes": ["ReadWriteOnce"], "dataSource": {"name": "a<b", "kind": "K"},
            "selector": {"matchExpressions": [{"operator": "In", "key": "k"}]},
        });
        let text = compact(&claim, "PersistentVolumeClaimSpec");
        assert!(text.starts_with("{\"AccessModes\":[\"ReadWriteOnce\"],"), "{text}");
        assert!(
            text.contains("\"Selector\":{\"matchExpressions\":[{\"key\":\"k\",\"operator\":\"In\"}]},"),
            "{text}"
        );
        assert!(
            text.contains("\"DataSource\":{\"APIGroup\":null,\"Kind\":\"K\",\"Name\":\"a\\u003cb\"},"),
            "{text}"
        );
        let pod = compact(&json!({"hostNetwork": true, "securityContext": {}}), "PodSpec");
        assert!(pod.contains("\"SecurityContext\":{\"HostNetwork\":true,\"HostPID\":false,"), "{pod}");
        let volume = compact(&json!({"name": "v", "emptyDir": {}}), "Volume");
        assert!(volume.contains(
            "{\"Name\":\"v\",\"HostPath\":null,\"EmptyDir\":{\"Medium\":\"\",\"SizeLimit\":null},"
        ));
    }

    #[test]
    fn with_lines() {
        assert_eq!(
            pretty(&json!({"name": "d", "topologyKeys": ["a", "b"], "allocatable": {}}), "CSINodeDriver"),
            "{\n \"Name\": \"d\",\n \"NodeID\": \"\",\n \"TopologyKeys\": [\n  \"a\",\n  \"b\"\n ],\n \
             \"Allocatable\": {\n  \"Count\": null\n }\n}"
        );
    }
}
