//! Merging of lists in strategic merge patches. Positions are indexed by the text of the merge key, so that the cost is
//! proportional to the length of the list.

use std::collections::{HashMap, HashSet};
use std::mem::discriminant;

use serde_json::Value;

use super::{Elements, Error, PATCH, go_type};
use crate::patch::go_format;

/// Merges a list by its merge key, or replaces it if it has none. With `deletes`, removes scalar values instead.
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
        let all = go_format(&Value::Array(vec![original.into(), patch.into()]));
        return Err(Error::Server(format!("list element types are not identical: {all}")));
    }
    if !first.is_object() {
        return merge_plain(elements, original, patch, deletes);
    }
    if key.is_empty() {
        return Err(Error::Server("cannot merge lists without merge key for string".to_owned()));
    }
    let (original, patch) = apply_element_directives(key, original, patch)?;
    let mut merged = original.clone();
    let mut positions_by_key: HashMap<String, usize> = HashMap::new();
    for (at, element) in merged.iter().enumerate() {
        if let Some(text) = element.get(key).map(Value::to_string) {
            positions_by_key.entry(text).or_insert(at);
        }
    }
    for element in &patch {
        let text = merge_key_text(element, key)?;
        match (positions_by_key.get(&text).copied(), element) {
            (Some(at), Value::Object(change)) => {
                let Value::Object(existing) = merged[at].take() else { continue };
                merged[at] = Value::Object(super::merge(elements.within, existing, change.clone())?);
            }
            _ => {
                positions_by_key.insert(text, merged.len());
                merged.push(element.clone());
            }
        }
    }
    reorder(elements, merged, &patch, &original)
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
    reorder(elements, both, &patch, &original)
}

/// Processes elements with `$patch`: `delete` removes elements from the list, and after `replace` nothing is left to
/// merge.
fn apply_element_directives(
    key: &str,
    mut original: Vec<Value>,
    patch: Vec<Value>,
) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let (mut deleted, mut rest, mut replaced) = (HashSet::new(), Vec::new(), false);
    for element in patch {
        match element.get(PATCH) {
            None => rest.push(element),
            Some(directive) => match directive.as_str() {
                Some("delete") => drop(deleted.insert(merge_key_text(&element, key)?)),
                Some("replace") => replaced = true,
                Some("merge") => {
                    return Err(Error::Server(
                        "merging lists cannot yet be specified in the patch".to_owned(),
                    ));
                }
                _ => {
                    let (printed, map) = (go_format(directive), go_format(&element));
                    return Err(Error::Server(format!("unknown patch type: {printed} in map: {map}")));
                }
            },
        }
    }
    if replaced {
        return Ok((rest, Vec::new()));
    }
    if !deleted.is_empty() {
        original.retain(|element| element.get(key).is_none_or(|value| !deleted.contains(&value.to_string())));
    }
    Ok((original, rest))
}

/// The text of an element's merge key, or of the element itself if it is a scalar.
fn merge_key_text(element: &Value, key: &str) -> Result<String, Error> {
    if key.is_empty() {
        return Ok(element.to_string());
    }
    if !element.is_object() {
        let found = go_type(element);
        return Err(Error::Server(format!("expected a map[string]interface {{}}, but received a {found}")));
    }
    element.get(key).map(Value::to_string).ok_or_else(|| {
        Error::Server(format!("map: {} does not contain declared merge key: {key}", go_format(element)))
    })
}

fn positions(list: &[Value], key: &str) -> Result<HashMap<String, usize>, Error> {
    let mut positions = HashMap::new();
    for (at, element) in list.iter().enumerate() {
        positions.entry(merge_key_text(element, key)?).or_insert(at);
    }
    Ok(positions)
}

/// Reorders a list: elements that `order` contains follow that order, the others keep their previous order. The
/// previous positions decide how the two sequences interleave. An element of `order` without a previous position
/// precedes the next of the others.
pub(super) fn reorder(
    elements: Elements,
    list: Vec<Value>,
    order: &[Value],
    before: &[Value],
) -> Result<Vec<Value>, Error> {
    let key = elements.merge.unwrap_or_default();
    let (order, before) = (positions(order, key)?, positions(before, key)?);
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for element in list {
        let text = merge_key_text(&element, key)?;
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

/// Checks that `$setElementOrder` lists the elements of the patch, in the same order.
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
            // A directive is not an element, but upstream requires that the order list is not exhausted.
            Some(_) => !rest.as_slice().is_empty(),
            None => {
                let (mut found, text) = (false, merge_key_text(element, key)?);
                for wanted in rest.by_ref() {
                    if merge_key_text(wanted, key)? == text {
                        found = true;
                        break;
                    }
                }
                found
            }
        };
        if !found {
            let (patch, order) = (go_format(&patch.into()), go_format(&order.into()));
            return Err(Error::Server(format!(
                "The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n"
            )));
        }
    }
    Ok(())
}

/// The previous order for a list with `$setElementOrder`: the elements that remain after deletions, followed by as many
/// new elements as were deleted. This reproduces how upstream reuses its slices.
pub(super) fn previous_order(elements: Elements, original: &[Value], patch: &[Value]) -> Vec<Value> {
    let key = elements.merge.unwrap_or_default();
    let text = |element: &Value| element.get(key).map(Value::to_string);
    let (deleted, given): (Vec<&Value>, Vec<&Value>) =
        patch.iter().partition(|element| element.get(PATCH).is_some_and(|directive| directive == "delete"));
    let deleted: HashSet<String> = deleted.into_iter().filter_map(text).collect();
    let remains = |element: &&Value| text(element).is_none_or(|text| !deleted.contains(&text));
    let remaining: Vec<Value> = original.iter().filter(remains).cloned().collect();
    let known: HashSet<String> = remaining.iter().filter_map(text).collect();
    let is_new = |element: &&Value| text(element).is_some_and(|text| !known.contains(&text));
    let free = original.len() - remaining.len();
    let new =
        given.into_iter().filter(|element| element.get(PATCH).is_none()).filter(is_new).take(free).cloned();
    remaining.iter().cloned().chain(new).collect()
}
