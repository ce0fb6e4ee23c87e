//! Reads `fields.txt`; its head says what the signs mean.

use std::collections::BTreeMap;

/// How Go holds a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// By value, and written always.
    Filled,
    /// By a pointer.
    Kept,
    /// By a pointer that is written as null.
    Nullable,
    /// By value, and written when it is not zero.
    Omitted,
}

/// What is told of one field.
#[derive(Clone, Default)]
pub(crate) struct Fact {
    pub(crate) held: Option<Held>,
    /// Required or not, otherwise than k8s-openapi has it.
    pub(crate) required_otherwise: bool,
    /// Go's name of the type.
    pub(crate) go: String,
    pub(crate) values: Vec<String>,
    /// The key by which patches merge the list; empty for a list of plain values.
    pub(crate) merge: Option<String>,
    pub(crate) retain_keys: bool,
    /// The list's type and keys as they stand there: `map(a|b)`.
    pub(crate) list: Option<String>,
}

/// By type (`core.v1.Pod`) and field.
pub(crate) type Facts = BTreeMap<String, BTreeMap<String, Fact>>;

pub(crate) fn read(text: &str) -> Result<Facts, String> {
    let mut facts = Facts::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let fields = words.map(fact).collect::<Result<BTreeMap<_, _>, _>>()?;
        if facts.insert(name.clone(), fields).is_some() {
            return Err(format!("fields.txt tells of {name} twice"));
        }
    }
    Ok(facts)
}

fn fact(word: &str) -> Result<(String, Fact), String> {
    let mut fact = Fact::default();
    let held = match word.as_bytes().first() {
        Some(b'=') => Some(Held::Filled),
        Some(b'*') => Some(Held::Kept),
        Some(b'?') => Some(Held::Nullable),
        Some(b'~') => Some(Held::Omitted),
        _ => None,
    };
    let rest = if held.is_some() { &word[1..] } else { word };
    fact.held = held;
    // From the back: none of the signs is in what stands before it.
    let rest = match rest.split_once('#') {
        Some((rest, list)) => {
            fact.list = Some(list.to_owned());
            rest
        }
        None => rest,
    };
    let rest = match rest.split_once('{') {
        Some((rest, values)) => {
            let values = values.strip_suffix('}').ok_or_else(|| format!("fields.txt: {word} has no end"))?;
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
    fact.required_otherwise = name.ends_with('!');
    Ok((name.trim_end_matches('!').to_owned(), fact))
}
