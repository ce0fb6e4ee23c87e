//! Parses `fields.txt`. Its header describes the format.

use std::collections::BTreeMap;

/// How a field is declared in Go, which determines how it is serialized.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// A value that is always serialized.
    Always,
    /// A pointer that is serialized as given.
    AsGiven,
    /// A pointer that is serialized as null if unset.
    NullIfUnset,
    /// A value that is omitted if it is zero.
    OmitZero,
}

/// What `fields.txt` specifies about one field.
#[derive(Clone, Default)]
pub(crate) struct Fact {
    pub(crate) presence: Option<Presence>,
    /// Whether k8s-openapi's `required` is wrong for this field and has to be inverted.
    pub(crate) required_inverted: bool,
    /// The name of the Go type.
    pub(crate) go: String,
    pub(crate) values: Vec<String>,
    /// The key by which patches merge the list; empty for a list of scalars.
    pub(crate) merge: Option<String>,
    pub(crate) retain_keys: bool,
    /// The list type and its keys: `map(a|b)`.
    pub(crate) list: Option<String>,
}

/// Facts by type (`core.v1.Pod`) and field.
pub(crate) type Facts = BTreeMap<String, BTreeMap<String, Fact>>;

pub(crate) fn read(text: &str) -> Result<Facts, String> {
    let mut facts = Facts::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let fields = words.map(fact).collect::<Result<BTreeMap<_, _>, _>>()?;
        if facts.insert(name.clone(), fields).is_some() {
            return Err(format!("fields.txt lists {name} twice"));
        }
    }
    Ok(facts)
}

fn fact(word: &str) -> Result<(String, Fact), String> {
    let mut fact = Fact::default();
    let presence = match word.as_bytes().first() {
        Some(b'=') => Some(Presence::Always),
        Some(b'*') => Some(Presence::AsGiven),
        Some(b'?') => Some(Presence::NullIfUnset),
        Some(b'~') => Some(Presence::OmitZero),
        _ => None,
    };
    let rest = if presence.is_some() { &word[1..] } else { word };
    fact.presence = presence;
    // The last part is split off first: the text before a separator never contains that separator.
    let rest = match rest.split_once('#') {
        Some((rest, list)) => {
            fact.list = Some(list.to_owned());
            rest
        }
        None => rest,
    };
    let rest = match rest.split_once('{') {
        Some((rest, values)) => {
            let values =
                values.strip_suffix('}').ok_or_else(|| format!("fields.txt: {word}: missing '}}'"))?;
            fact.values = values.split(',').map(str::to_owned).collect();
            rest
        }
        None => rest,
    };
    let rest = match rest.split_once('@') {
        Some((rest, key)) => {
            fact.retain_keys = key.ends_with('+');
            fact.merge = Some(key.trim_end_matches('+').to_owned());
            rest
        }
        None => rest,
    };
    let name = match rest.split_once(':') {
        Some((name, go)) => {
            fact.go = go.to_owned();
            name
        }
        None => rest,
    };
    fact.required_inverted = name.ends_with('!');
    Ok((name.trim_end_matches('!').to_owned(), fact))
}
