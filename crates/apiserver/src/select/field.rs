//! Field selectors: `=`, `==` and `!=`, with `\` before a comma, an equals sign or itself.

use crate::status::Refusal;

/// Objects by the values of some fields. The empty one takes all.
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
    /// Reads a selector. Whether a kind has its fields is [`check`](Self::check)'s.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let mut terms = Vec::new();
        let mut parts = split(text);
        // So that of several mistakes the same one is told as upstream tells.
        parts.sort_unstable();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let (field, equal, value) = operator(part).ok_or_else(|| {
                Refusal::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"))
            })?;
            let term = Term { field: field.to_owned(), value: unescape(value)?, equal };
            // Nothing compared with nothing takes all, whichever way.
            if !term.field.is_empty() || !term.value.is_empty() {
                terms.push(term);
            }
        }
        Ok(Self { terms })
    }

    /// Refuses fields that a kind cannot be selected by. `custom` kinds have words of their own for it.
    pub fn check<'a>(&self, known: impl IntoIterator<Item = &'a str>, custom: bool) -> Result<(), Refusal> {
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
        Err(Refusal::bad_request(if plain && !custom {
            format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        } else {
            format!("field label not supported: {field}")
        }))
    }

    /// Whether it takes all.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The one value that a field must have, if there is one: so a list by name is a get.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.field == field).map(|term| &*term.value)
    }

    /// Whether an object is taken. A field that it does not have is empty.
    pub fn matches(&self, value_of: impl Fn(&str) -> Option<String>) -> bool {
        self.terms.iter().all(|term| (value_of(&term.field).unwrap_or_default() == term.value) == term.equal)
    }
}

/// At the commas that are not escaped.
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

/// At the first operator: the field, whether it is to be equal, and the value.
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

fn unescape(value: &str) -> Result<String, Refusal> {
    let bad = |sequence: &str| {
        Refusal::bad_request(format!("invalid field selector: invalid escape sequence: {sequence}"))
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
                // Go prints the number of the character.
                let number = u32::from(c);
                return Err(Refusal::bad_request(format!(
                    "invalid field selector: unescaped character in value: {number}"
                )));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}
