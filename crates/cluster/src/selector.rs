//! Whether an object belongs to a watch: evaluates label and field selectors, so that an object we wrote is added to
//! the right stores before the watch delivers it.
//!
//! A selector that this module cannot parse matches nothing: then only the watch fills the store.

use serde_json::Value;

/// Whether the raw object matches both selectors.
pub(crate) fn matches(object: &Value, labels: Option<&str>, fields: Option<&str>) -> bool {
    let present = object.pointer("/metadata/labels");
    let label = |key: &str| present.and_then(|labels| labels.get(key)).and_then(Value::as_str);
    labels.is_none_or(|selector| match_labels(label, selector).unwrap_or(false))
        && fields.is_none_or(|selector| match_fields(object, selector).unwrap_or(false))
}

/// Evaluates a label selector; `None` if it cannot be parsed.
pub(crate) fn match_labels<'a>(label: impl Fn(&str) -> Option<&'a str>, selector: &str) -> Option<bool> {
    let label = |key: &str| label(key.trim());
    let mut all = true;
    for term in split_terms(selector) {
        let term = term.trim();
        all &= if let Some((key, wanted)) = term.split_once("!=") {
            label(key) != Some(wanted.trim())
        } else if let Some((key, wanted)) = term.split_once('=') {
            label(key) == Some(wanted.strip_prefix('=').unwrap_or(wanted).trim())
        } else if let Some((key, set)) = term.split_once(" notin ") {
            !in_set(label(key), set)?
        } else if let Some((key, set)) = term.split_once(" in ") {
            in_set(label(key), set)?
        } else if let Some(key) = term.strip_prefix('!') {
            label(key).is_none()
        } else if !term.is_empty() && !term.contains([' ', '(', ')']) {
            label(term).is_some()
        } else {
            return None;
        };
    }
    Some(all)
}

fn in_set(value: Option<&str>, set: &str) -> Option<bool> {
    let set = set.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some(value.is_some_and(|value| set.split(',').any(|member| member.trim() == value)))
}

/// Splits at commas outside parentheses.
fn split_terms(selector: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    selector
        .split(|symbol: char| {
            match symbol {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            symbol == ',' && depth == 0
        })
        .collect()
}

fn match_fields(object: &Value, selector: &str) -> Option<bool> {
    let mut all = true;
    for term in field_terms(selector) {
        let FieldTerm { path, value, negated } = term?;
        let pointer = format!("/{}", path.replace('.', "/"));
        let actual = object.pointer(&pointer).and_then(Value::as_str).unwrap_or("");
        all &= (actual == value) != negated;
    }
    Some(all)
}

/// One term of a field selector, such as `spec.nodeName=n1`.
pub(crate) struct FieldTerm<'a> {
    pub(crate) path: &'a str,
    pub(crate) value: &'a str,
    /// The field must not have the value.
    pub(crate) negated: bool,
}

/// The terms of a field selector; `None` for one that cannot be parsed.
pub(crate) fn field_terms(selector: &str) -> impl Iterator<Item = Option<FieldTerm<'_>>> {
    selector.split(',').filter(move |_| !selector.is_empty()).map(|term| {
        let (path, value, negated) = match term.split_once("!=") {
            Some((path, value)) => (path, value, true),
            None => {
                let (path, value) = term.split_once('=')?;
                (path, value.strip_prefix('=').unwrap_or(value), false)
            }
        };
        Some(FieldTerm { path: path.trim(), value: value.trim(), negated })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn label_selectors_match() {
        let object = json!({"metadata": {"labels": {"a": "1", "csi.storage.k8s.io/drivername": "d"}}});
        let table = [
            ("a=1", true),
            ("a==1", true),
            ("a=2", false),
            ("a!=2", true),
            ("b!=2", true),
            ("a", true),
            ("b", false),
            ("!b", true),
            ("!a", false),
            ("a in (1,2)", true),
            ("a notin (1, 2)", false),
            ("b notin (1)", true),
            ("csi.storage.k8s.io/drivername=d,a in (1),!c", true),
            ("csi.storage.k8s.io/drivername=d,a in (2),!c", false),
            ("a in 1", false),
            ("what is this", false),
        ];
        for (selector, expected) in table {
            assert_eq!(matches(&object, Some(selector), None), expected, "{selector}");
        }
    }

    #[test]
    fn field_selectors_match() {
        let object = json!({"metadata": {"name": "x"}, "spec": {"nodeName": "n"}});
        let table = [
            ("metadata.name=x", true),
            ("metadata.name==y", false),
            ("metadata.name=x,spec.nodeName!=m", true),
            ("status.phase=", true),
            ("nonsense", false),
        ];
        for (selector, expected) in table {
            assert_eq!(matches(&object, None, Some(selector)), expected, "{selector}");
        }
        assert!(matches(&object, None, None));
    }
}
