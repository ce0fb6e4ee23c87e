//! Values in messages, as upstream prints them: its inner types, whose fields have other names than in the API, stand
//! in the order of their declaration and are there even when they are empty.

use std::fmt::Write;

use serde_json::Value;

/// What a value is upstream.
pub(super) enum Shape {
    /// A string: empty when it is not there.
    Text,
    /// A flag: false when it is not there.
    Flag,
    /// A number: 0 when it is not there.
    Number,
    /// As in the API: null when it is not there.
    Any,
    /// Null when it is not there.
    Pointer(&'static Shape),
    /// Null when it is not there.
    List(&'static Shape),
    /// Name in the message, name in the API. Without names: a type within this one, whose fields are this one's.
    Struct(&'static [Field]),
    /// A type of the API itself: names as there, and only what is there.
    Api(&'static [(&'static str, Shape)]),
}

/// Name in the message, name in the API, what it is.
pub(super) type Field = (&'static str, &'static str, Shape);

fn flatten(fields: &'static [Field], flat: &mut Vec<(&'static str, &'static str, &'static Shape)>) {
    for (name, of, shape) in fields {
        match shape {
            Shape::Struct(inner) if name.is_empty() => flatten(inner, flat),
            shape => flat.push((name, of, shape)),
        }
    }
}

/// A label selector.
pub(super) const LABEL_SELECTOR: Shape = Shape::Pointer(&Shape::Api(&[
    ("matchLabels", Shape::Any),
    (
        "matchExpressions",
        Shape::List(&Shape::Api(&[("key", Shape::Text), ("operator", Shape::Text), ("values", Shape::Any)])),
    ),
]));

/// On one line.
pub(super) fn compact(value: &Value, shape: &Shape) -> String {
    let mut text = String::new();
    write(&mut text, Some(value), shape, None);
    text
}

/// A line for each value, with one space for each level.
pub(super) fn pretty(value: &Value, shape: &Shape) -> String {
    let mut text = String::new();
    write(&mut text, Some(value), shape, Some(0));
    text
}

/// What differs between two values, as upstream's messages about fixed fields end. The message goes on after it.
pub(super) fn difference(old: &Value, new: &Value, shape: &Shape) -> String {
    super::diff::unified(&pretty(old, shape), &pretty(new, shape))
}

fn write(text: &mut String, value: Option<&Value>, shape: &Shape, level: Option<usize>) {
    let there = value.filter(|value| !value.is_null());
    match (shape, there) {
        (Shape::Text, None) => text.push_str("\"\""),
        (Shape::Flag, None) => text.push_str("false"),
        (Shape::Number, None) => text.push('0'),
        (Shape::Any | Shape::Pointer(_) | Shape::List(_), None) => text.push_str("null"),
        (Shape::Text | Shape::Flag | Shape::Number, Some(value)) => scalar(text, value),
        (Shape::Any, Some(value)) => any(text, value, level),
        (Shape::Pointer(shape), Some(value)) => write(text, Some(value), shape, level),
        (Shape::List(shape), Some(value)) => {
            let items = value.as_array().map_or(&[][..], Vec::as_slice).iter();
            let items = items
                .map(|item| (None, move |text: &mut String, level| write(text, Some(item), shape, level)));
            frame(text, '[', ']', items, level);
        }
        (Shape::Struct(fields), value) => {
            let mut flat = Vec::new();
            flatten(fields, &mut flat);
            let fields = flat.into_iter().map(|(name, of, shape)| {
                let value = value.and_then(|value| value.get(of));
                (Some(name), move |text: &mut String, level| write(text, value, shape, level))
            });
            frame(text, '{', '}', fields, level);
        }
        (Shape::Api(fields), value) => {
            let fields = fields.iter().filter_map(|(name, shape)| {
                let value = value?.get(name)?;
                Some((Some(*name), move |text: &mut String, level| write(text, Some(value), shape, level)))
            });
            frame(text, '{', '}', fields, level);
        }
    }
}

fn any(text: &mut String, value: &Value, level: Option<usize>) {
    match value {
        Value::Array(items) => {
            let items =
                items.iter().map(|item| (None, move |text: &mut String, level| any(text, item, level)));
            frame(text, '[', ']', items, level);
        }
        Value::Object(map) => {
            let fields = map.iter().map(|(key, value)| {
                (Some(key.as_str()), move |text: &mut String, level| any(text, value, level))
            });
            frame(text, '{', '}', fields, level);
        }
        value => scalar(text, value),
    }
}

/// Go's JSON writes what HTML would misread as numbers.
fn scalar(text: &mut String, value: &Value) {
    for character in value.to_string().chars() {
        match character {
            '<' | '>' | '&' => {
                // Into a String it cannot fail.
                let _ = write!(text, "\\u{:04x}", u32::from(character));
            }
            character => text.push(character),
        }
    }
}

fn frame<'a>(
    text: &mut String,
    open: char,
    close: char,
    items: impl Iterator<Item = (Option<&'a str>, impl FnOnce(&mut String, Option<usize>))>,
    level: Option<usize>,
) {
    let inner = level.map(|level| level + 1);
    let line = |text: &mut String, level: Option<usize>| {
        if let Some(level) = level {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', level));
        }
    };
    text.push(open);
    let mut is_empty = true;
    for (name, item) in items {
        if !is_empty {
            text.push(',');
        }
        is_empty = false;
        line(text, inner);
        if let Some(name) = name {
            scalar(text, &name.into());
            text.push_str(if level.is_some() { ": " } else { ":" });
        }
        item(text, inner);
    }
    if !is_empty {
        line(text, level);
    }
    text.push(close);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SHAPE: Shape = Shape::Struct(&[
        ("Name", "name", Shape::Text),
        ("Count", "count", Shape::Number),
        ("On", "on", Shape::Flag),
        ("Labels", "labels", Shape::Any),
        ("Selector", "selector", LABEL_SELECTOR),
        ("Inner", "inner", Shape::Pointer(&Shape::Struct(&[("A", "a", Shape::Text)]))),
        ("All", "all", Shape::List(&Shape::Struct(&[("B", "b", Shape::Flag)]))),
    ]);

    #[test]
    fn empty_fields_are_there() {
        assert_eq!(
            compact(&json!({}), &SHAPE),
            r#"{"Name":"","Count":0,"On":false,"Labels":null,"Selector":null,"Inner":null,"All":null}"#
        );
    }

    #[test]
    fn names_and_order_are_upstreams() {
        let value = json!({
            "name": "a<b", "count": 2, "on": true, "labels": {"y": "1", "x": "2"}, "inner": {}, "all": [{}, {"b": true}],
            "selector": {"matchExpressions": [{"operator": "In", "key": "k"}]},
        });
        assert_eq!(
            compact(&value, &SHAPE),
            "{\"Name\":\"a\\u003cb\",\"Count\":2,\"On\":true,\"Labels\":{\"x\":\"2\",\"y\":\"1\"},\
             \"Selector\":{\"matchExpressions\":[{\"key\":\"k\",\"operator\":\"In\"}]},\"Inner\":{\"A\":\"\"},\
             \"All\":[{\"B\":false},{\"B\":true}]}"
        );
    }

    #[test]
    fn with_lines() {
        let shape = Shape::Struct(&[("A", "a", Shape::Any), ("B", "b", Shape::Any)]);
        assert_eq!(
            pretty(&json!({"a": {"x": [1, 2]}, "b": {}}), &shape),
            "{\n \"A\": {\n  \"x\": [\n   1,\n   2\n  ]\n },\n \"B\": {}\n}"
        );
    }
}
