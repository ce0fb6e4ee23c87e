//! Lists in strategic merge patches. Positions are looked up by the text of the key, so that a long list costs no more
//! than its length.

use std::collections::{HashMap, HashSet};
use std::mem::discriminant;

use serde_json::Value;

use super::{Elements, Error, PATCH, go_type};
use crate::patch::go_words;

/// Merges a list by its key, or replaces it if it has none. `deletes` takes plain values away instead.
pub(super) fn merge(
    elements: Elements,
    original: Vec<Value>,
    patch: Vec<Value>,
    deletes: bool,
) -> Result<Vec<Value>, Error> {
    let key = match elements.merge {
        Some(key) => key,
        None if deletes => "",
        None => return Ok(patch),
    };
    let Some(first) = original.first().or(patch.first()) else { return Ok(original) };
    if first.is_array() {
        return Err(Error::ListOfLists);
    }
    if original.iter().chain(&patch).any(|element| discriminant(element) != discriminant(first)) {
        let all = go_words(&Value::Array(vec![original.into(), patch.into()]));
        return Err(Error::Other(format!("list element types are not identical: {all}")));
    }
    if !first.is_object() {
        return merge_plain(elements, original, patch, deletes);
    }
    if key.is_empty() {
        return Err(Error::Other("cannot merge lists without merge key for string".to_owned()));
    }
    let (original, patch) = special(key, original, patch)?;
    let mut merged = original.clone();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (at, element) in merged.iter().enumerate() {
        if let Some(text) = element.get(key).map(Value::to_string) {
            places.entry(text).or_insert(at);
        }
    }
    for element in &patch {
        let text = text_of(element, key)?;
        match (places.get(&text).copied(), element) {
            (Some(at), Value::Object(change)) => {
                let Value::Object(there) = merged[at].take() else { continue };
                merged[at] = Value::Object(super::merge(elements.within, there, change.clone())?);
            }
            _ => {
                places.insert(text, merged.len());
                merged.push(element.clone());
            }
        }
    }
    arrange(elements, merged, &patch, &original)
}

fn merge_plain(
    elements: Elements,
    original: Vec<Value>,
    patch: Vec<Value>,
    deletes: bool,
) -> Result<Vec<Value>, Error> {
    let given: HashSet<String> = patch.iter().map(Value::to_string).collect();
    if deletes {
        return Ok(original.into_iter().filter(|value| !given.contains(&value.to_string())).collect());
    }
    let mut seen = HashSet::new();
    let both =
        original.iter().chain(&patch).filter(|value| seen.insert(value.to_string())).cloned().collect();
    arrange(elements, both, &patch, &original)
}

/// Elements with `$patch`: those to be deleted go from the list, and after a replacement there is nothing to merge.
fn special(
    key: &str,
    mut original: Vec<Value>,
    patch: Vec<Value>,
) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let (mut gone, mut rest, mut replaced) = (HashSet::new(), Vec::new(), false);
    for element in patch {
        match element.get(PATCH) {
            None => rest.push(element),
            Some(directive) => match directive.as_str() {
                Some("delete") => drop(gone.insert(text_of(&element, key)?)),
                Some("replace") => replaced = true,
                Some("merge") => {
                    return Err(Error::Other(
                        "merging lists cannot yet be specified in the patch".to_owned(),
                    ));
                }
                _ => {
                    let (words, map) = (go_words(directive), go_words(&element));
                    return Err(Error::Other(format!("unknown patch type: {words} in map: {map}")));
                }
            },
        }
    }
    if replaced {
        return Ok((rest, Vec::new()));
    }
    if !gone.is_empty() {
        original.retain(|element| element.get(key).is_none_or(|value| !gone.contains(&value.to_string())));
    }
    Ok((original, rest))
}

/// The text of an element's merge key, or of the element itself.
fn text_of(element: &Value, key: &str) -> Result<String, Error> {
    if key.is_empty() {
        return Ok(element.to_string());
    }
    if !element.is_object() {
        let found = go_type(element);
        return Err(Error::Other(format!("expected a map[string]interface {{}}, but received a {found}")));
    }
    element.get(key).map(Value::to_string).ok_or_else(|| {
        Error::Other(format!("map: {} does not contain declared merge key: {key}", go_words(element)))
    })
}

fn positions(list: &[Value], key: &str) -> Result<HashMap<String, usize>, Error> {
    let mut positions = HashMap::new();
    for (at, element) in list.iter().enumerate() {
        positions.entry(text_of(element, key)?).or_insert(at);
    }
    Ok(positions)
}

/// Puts the elements that `order` names in that order, and the others in the order that they had; where the two run
/// into each other, the places of old decide, and what is named goes first if they do not tell.
pub(super) fn arrange(
    elements: Elements,
    list: Vec<Value>,
    order: &[Value],
    before: &[Value],
) -> Result<Vec<Value>, Error> {
    let key = elements.merge.unwrap_or_default();
    let (order, before) = (positions(order, key)?, positions(before, key)?);
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for element in list {
        let text = text_of(&element, key)?;
        match order.get(&text) {
            Some(&at) => named.push((at, before.get(&text).copied(), element)),
            None => others.push((before.get(&text).copied(), element)),
        }
    }
    named.sort_by_key(|(at, ..)| *at);
    others.sort_by_key(|(at, _)| *at);
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    let mut arranged = Vec::new();
    loop {
        let other_first = match (named.peek(), others.peek()) {
            (Some((_, Some(named), _)), Some((Some(other), _))) => other < named,
            (Some(_), _) => false,
            (None, Some(_)) => true,
            (None, None) => return Ok(arranged),
        };
        let next = if other_first {
            others.next().map(|(_, element)| element)
        } else {
            named.next().map(|(.., e)| e)
        };
        arranged.extend(next);
    }
}

/// Whether what a patch changes is in the order that it gives, and in that order.
pub(super) fn check_order(elements: Elements, patch: &[Value], order: &[Value]) -> Result<(), Error> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let key = elements.merge.unwrap_or_default();
    let mut rest = order.iter();
    for element in
        patch.iter().filter(|element| element.get(PATCH).is_none_or(|directive| directive != "delete"))
    {
        let found = match element.get(PATCH) {
            // It stands for no element, but upstream wants it before the last one.
            Some(_) => !rest.as_slice().is_empty(),
            None => {
                let (mut found, text) = (false, text_of(element, key)?);
                for wanted in rest.by_ref() {
                    if text_of(wanted, key)? == text {
                        found = true;
                        break;
                    }
                }
                found
            }
        };
        if !found {
            let (patch, order) = (go_words(&patch.into()), go_words(&order.into()));
            return Err(Error::Other(format!(
                "The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n"
            )));
        }
    }
    Ok(())
}

/// The places of old by which a list with `$setElementOrder` is arranged: those that are left after deletions, and in
/// the places that became free the first ones that are new. It is what upstream's slices make of it.
pub(super) fn places(elements: Elements, original: &[Value], patch: &[Value]) -> Vec<Value> {
    let key = elements.merge.unwrap_or_default();
    let text = |element: &Value| element.get(key).map(Value::to_string);
    let (deleted, given): (Vec<&Value>, Vec<&Value>) =
        patch.iter().partition(|element| element.get(PATCH).is_some_and(|directive| directive == "delete"));
    let gone: HashSet<String> = deleted.into_iter().filter_map(text).collect();
    let stays = |element: &&Value| text(element).is_none_or(|text| !gone.contains(&text));
    let left: Vec<Value> = original.iter().filter(stays).cloned().collect();
    let known: HashSet<String> = left.iter().filter_map(text).collect();
    let is_new = |element: &&Value| text(element).is_some_and(|text| !known.contains(&text));
    let free = original.len() - left.len();
    let new =
        given.into_iter().filter(|element| element.get(PATCH).is_none()).filter(is_new).take(free).cloned();
    left.iter().cloned().chain(new).collect()
}
