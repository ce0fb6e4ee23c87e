//! Field selectors: `=`, `==` and `!=`. `\` escapes a comma, an equals sign and itself.

use crate::status::StatusError;

/// Selects objects by the values of fields. The empty selector matches all objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    field: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Parses a selector. `check_supported` checks whether a kind supports its fields.
    pub fn parse(text: &str) -> Result<Self, StatusError> {
        let mut terms = Vec::new();
        let mut parts = split(text);
        // Of several errors, upstream reports the first one in this order.
        parts.sort_unstable();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let (field, equal, value) = operator(part).ok_or_else(|| {
                StatusError::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"))
            })?;
            let term = Term { field: field.to_owned(), value: unescape(value)?, equal };
            // An empty field compared with an empty value matches everything, with any operator.
            if !term.field.is_empty() || !term.value.is_empty() {
                terms.push(term);
            }
        }
        Ok(Self { terms })
    }

    /// Rejects fields that a kind does not support. `custom` kinds have a different message.
    pub fn check_supported<'a>(
        &self,
        known: impl IntoIterator<Item = &'a str>,
        custom: bool,
    ) -> Result<(), StatusError> {
        const EVERYWHERE: [&str; 2] = ["metadata.name", "metadata.namespace"];
        let known: Vec<&str> = known.into_iter().collect();
        let Some(Term { field, .. }) = self
            .terms
            .iter()
            .find(|term| !known.contains(&&*term.field) && !EVERYWHERE.contains(&&*term.field))
        else {
            return Ok(());
        };
        let plain = known.iter().all(|field| EVERYWHERE.contains(field));
        Err(StatusError::bad_request(if plain && !custom {
            format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        } else {
            format!("field label not supported: {field}")
        }))
    }

    /// Whether the selector matches all objects.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The exact value that a field must have, if the selector requires one: a list by name is authorized as a get.
    pub fn requires_exact_match(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.field == field).map(|term| &*term.value)
    }

    /// Whether an object matches. A missing field is empty.
    pub fn matches(&self, value_of: impl Fn(&str) -> Option<String>) -> bool {
        self.terms.iter().all(|term| (value_of(&term.field).unwrap_or_default() == term.value) == term.equal)
    }
}

/// Splits a selector at the commas that are not escaped.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Splits a term at the first operator: the field, whether it must be equal, and the value.
fn operator(term: &str) -> Option<(&str, bool, &str)> {
    for (at, _) in term.char_indices() {
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some(value) = term[at..].strip_prefix(operator) {
                return Some((&term[..at], equal, value));
            }
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, StatusError> {
    let bad = |sequence: &str| {
        StatusError::bad_request(format!("invalid field selector: invalid escape sequence: {sequence}"))
    };
    let (mut out, mut chars) = (String::with_capacity(value.len()), value.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => return Err(bad(&format!("\\{c}"))),
                None => return Err(bad("\\")),
            },
            ',' | '=' => {
                // Go prints the code point of the character.
                let number = u32::from(c);
                return Err(StatusError::bad_request(format!(
                    "invalid field selector: unescaped character in value: {number}"
                )));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}
