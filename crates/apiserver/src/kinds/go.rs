//! Values in error messages, as upstream prints them: Go structs of its internal types. Their fields have other names
//! than in the API, are in the order of declaration, and are printed even if they are empty. `go/types.txt` lists the
//! types.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

use serde_json::Value;

type Types = HashMap<&'static str, Type>;

#[derive(Default)]
struct Type {
    /// A type of the API: only fields that are set are printed.
    is_api: bool,
    fields: Vec<Field>,
}

enum Field {
    /// An embedded type, whose fields are promoted.
    Inline(&'static str),
    Named {
        name: &'static str,
        api: String,
        /// In the API, the field is in the parent object.
        from_parent: bool,
        field_type: FieldType,
    },
}

#[derive(Clone, Copy)]
enum FieldType {
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
        let current = types.entry(name).or_default();
        for word in words {
            match (word.strip_prefix('+'), word) {
                (Some(inner), _) => current.fields.push(Field::Inline(inner)),
                (None, "!") => current.is_api = true,
                (None, word) => current.fields.extend(parse_field(word)),
            }
        }
    }
    types
});

fn parse_field(word: &'static str) -> Option<Field> {
    let (names, kind) = word.split_once(':')?;
    let (name, api) = match names.split_once('=') {
        Some((name, api)) => (name, api.to_owned()),
        None => (names, names[..1].to_lowercase() + &names[1..]),
    };
    let field_type = match kind {
        "t" => FieldType::Text,
        "b" => FieldType::Flag,
        "n" => FieldType::Number,
        "q" => FieldType::Quantity,
        "a" => FieldType::Any,
        kind => match (kind.strip_prefix('*'), kind.strip_prefix('[')) {
            (Some(inner), _) => FieldType::Pointer(inner),
            (None, Some(inner)) => FieldType::List(inner),
            (None, None) => FieldType::Struct(kind),
        },
    };
    let from_parent = api.starts_with('^');
    Some(Field::Named { name, api: api.trim_start_matches('^').to_owned(), from_parent, field_type })
}

/// Prints a value on one line. `kind` is a type in `types.txt`, with a leading `*` if the value may be null.
pub(super) fn compact(value: &Value, kind: &'static str) -> String {
    Printer { text: String::new(), level: None }.print(value, kind)
}

/// Prints a value with one line for each field, indented by one space for each level.
pub(super) fn pretty(value: &Value, kind: &'static str) -> String {
    Printer { text: String::new(), level: Some(0) }.print(value, kind)
}

/// The diff between two values, as upstream's errors about immutable fields end.
pub(super) fn difference(old: &Value, new: &Value, kind: &'static str) -> String {
    super::diff::unified(&pretty(old, kind), &pretty(new, kind))
}

struct Printer {
    text: String,
    /// The indentation; `None` for one line.
    level: Option<usize>,
}

impl Printer {
    fn print(mut self, value: &Value, kind: &'static str) -> String {
        let field_type = kind.strip_prefix('*').map_or(FieldType::Struct(kind), FieldType::Pointer);
        self.put(Some(value), None, field_type);
        self.text
    }

    fn put(&mut self, value: Option<&Value>, parent: Option<&Value>, field_type: FieldType) {
        let set_value = value.filter(|value| !value.is_null());
        match (field_type, set_value) {
            (FieldType::Text, None) => self.text.push_str("\"\""),
            (FieldType::Flag, None) => self.text.push_str("false"),
            (FieldType::Number, None) => self.text.push('0'),
            (FieldType::Quantity, None) => self.text.push_str("\"0\""),
            (FieldType::Any | FieldType::Pointer(_) | FieldType::List(_), None) => self.text.push_str("null"),
            (FieldType::Text | FieldType::Flag | FieldType::Number | FieldType::Quantity, Some(value)) => {
                self.scalar(value)
            }
            (FieldType::Any, Some(value)) => self.any(value),
            (FieldType::Pointer(kind) | FieldType::Struct(kind), value) => {
                let Some(kind) = TYPES.get(kind) else { return };
                self.text.push('{');
                self.indent(1);
                let mut is_first = true;
                self.fields(kind, value, parent, &mut is_first);
                self.indent(-1);
                self.close('}', is_first);
            }
            (FieldType::List(kind), Some(value)) => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                self.text.push('[');
                self.indent(1);
                let mut is_first = true;
                for item in items {
                    self.separator(&mut is_first);
                    self.put(Some(item), None, FieldType::Struct(kind));
                }
                self.indent(-1);
                self.close(']', is_first);
            }
        }
    }

    fn fields(&mut self, kind: &Type, value: Option<&Value>, parent: Option<&Value>, is_first: &mut bool) {
        for field in &kind.fields {
            match field {
                Field::Inline(inner) => {
                    if let Some(inner) = TYPES.get(inner) {
                        // In the API, metadata is a field of its own.
                        let value =
                            if inner.is_api { value.and_then(|value| value.get("metadata")) } else { value };
                        self.fields(inner, value, parent, is_first);
                    }
                }
                Field::Named { name, api, from_parent, field_type } => {
                    let from = if *from_parent { parent } else { value };
                    let inner = from.and_then(|from| from.get(api));
                    if kind.is_api && inner.is_none() {
                        continue;
                    }
                    self.separator(is_first);
                    self.name(name);
                    self.put(inner, value, *field_type);
                }
            }
        }
    }

    fn any(&mut self, value: &Value) {
        match value {
            Value::Array(items) => {
                self.text.push('[');
                self.indent(1);
                let mut is_first = true;
                for item in items {
                    self.separator(&mut is_first);
                    self.any(item);
                }
                self.indent(-1);
                self.close(']', is_first);
            }
            Value::Object(map) => {
                self.text.push('{');
                self.indent(1);
                let mut is_first = true;
                for (key, value) in map {
                    self.separator(&mut is_first);
                    self.name(key);
                    self.any(value);
                }
                self.indent(-1);
                self.close('}', is_first);
            }
            value => self.scalar(value),
        }
    }

    fn name(&mut self, name: &str) {
        self.scalar(&name.into());
        self.text.push_str(if self.level.is_some() { ": " } else { ":" });
    }

    /// Go's JSON encoder escapes the characters that are special in HTML.
    fn scalar(&mut self, value: &Value) {
        for character in value.to_string().chars() {
            match character {
                '<' | '>' | '&' => {
                    // Writing to a String cannot fail.
                    let _ = write!(self.text, "\\u{:04x}", u32::from(character));
                }
                character => self.text.push(character),
            }
        }
    }

    fn indent(&mut self, by: isize) {
        self.level = self.level.map(|level| level.saturating_add_signed(by));
    }

    fn separator(&mut self, is_first: &mut bool) {
        if !std::mem::take(is_first) {
            self.text.push(',');
        }
        self.newline();
    }

    fn close(&mut self, with: char, is_empty: bool) {
        if !is_empty {
            self.newline();
        }
        self.text.push(with);
    }

    fn newline(&mut self) {
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
    fn all_referenced_types_exist() {
        for (name, kind) in TYPES.iter() {
            assert!(!kind.fields.is_empty(), "{name}");
            for field in &kind.fields {
                let inner = match field {
                    Field::Inline(inner) => *inner,
                    Field::Named {
                        field_type:
                            FieldType::Struct(inner) | FieldType::Pointer(inner) | FieldType::List(inner),
                        ..
                    } => *inner,
                    Field::Named { .. } => continue,
                };
                assert!(TYPES.contains_key(inner), "{name} has {inner}");
            }
        }
    }

    #[test]
    fn empty_fields_are_printed() {
        assert_eq!(
            compact(&json!({}), "PersistentVolumeClaimSpec"),
            "{\"AccessModes\":null,\"Selector\":null,\"Resources\":{\"Limits\":null,\"Requests\":null},\
             \"VolumeName\":\"\",\"StorageClassName\":null,\"VolumeMode\":null,\"DataSource\":null,\
             \"DataSourceRef\":null,\"VolumeAttributesClassName\":null}"
        );
        assert_eq!(compact(&Value::Null, "*VolumeNodeAffinity"), "null");
    }

    #[test]
    fn names_and_order_match_upstream() {
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
    fn pretty_prints_one_field_per_line() {
        assert_eq!(
            pretty(&json!({"name": "d", "topologyKeys": ["a", "b"], "allocatable": {}}), "CSINodeDriver"),
            "{\n \"Name\": \"d\",\n \"NodeID\": \"\",\n \"TopologyKeys\": [\n  \"a\",\n  \"b\"\n ],\n \
             \"Allocatable\": {\n  \"Count\": null\n }\n}"
        );
    }
}
