//! Support for the simulations of roles and controllers; the feature `testing` enables it. Not part of the API.

use serde_json::{Map, Value};

use crate::patch::Patch;

pub use api::{CachedObject, Objects, PatchResult, SimulatedApi, has_finalizer, is_deleting};

mod api;

/// Pseudorandom numbers (splitmix64): the same seed gives the same numbers.
#[derive(Debug, Clone)]
pub struct SeededRng(u64);

impl SeededRng {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// `true` with a probability of one in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A random item of the slice.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| items[self.below(items.len() as u64) as usize].clone())
    }
}

/// The object with the patch applied, by the rules of an API server. `None`: the server would reject it. Supports the
/// operations that [`crate::patch`] creates and panics on others.
pub fn apply_patch(object: &Value, patch: &Patch) -> Option<Value> {
    let mut changed = object.clone();
    match patch {
        Patch::Json(operations) => {
            for operation in operations.as_array().into_iter().flatten() {
                apply(&mut changed, operation)?;
            }
        }
        Patch::Merge(body) | Patch::Strategic(body) => {
            let wanted = text(body, "/metadata/resourceVersion");
            if !wanted.is_empty() && wanted != text(object, "/metadata/resourceVersion") {
                return None;
            }
            merge(&mut changed, body, matches!(patch, Patch::Strategic(_)));
        }
    }
    let added =
        |list: &Vec<Value>| list.iter().any(|f| !finalizers(object).is_some_and(|old| old.contains(f)));
    let refused = is_deleting(object) && finalizers(&changed).is_some_and(added);
    let same = text(object, "/metadata/uid") == text(&changed, "/metadata/uid");
    (same && !refused).then_some(changed)
}

/// A text field of an object; empty if it has none.
pub fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn finalizers(object: &Value) -> Option<&Vec<Value>> {
    object.pointer("/metadata/finalizers").and_then(Value::as_array)
}

fn apply(object: &mut Value, operation: &Value) -> Option<()> {
    let path = text(operation, "/path");
    let (parent, last) = path.rsplit_once('/')?;
    let last = last.replace("~1", "/");
    let value = &operation["value"];
    match (text(operation, "/op"), object.pointer_mut(parent)?) {
        ("test", parent) => {
            let found = match parent {
                Value::Array(list) => list.get(last.parse::<usize>().ok()?).unwrap_or(&Value::Null),
                parent => parent.get(&last).unwrap_or(&Value::Null),
            };
            (found == value).then_some(())
        }
        ("add", Value::Array(list)) => {
            assert_eq!(last, "-", "only appending to a list is supported");
            list.push(value.clone());
            Some(())
        }
        ("add", parent) => {
            parent[last] = value.clone();
            Some(())
        }
        ("remove", Value::Array(list)) => {
            let index = last.parse::<usize>().ok()?;
            (index < list.len()).then(|| drop(list.remove(index)))
        }
        (operation, _) => unimplemented!("operation {operation:?}"),
    }
}

/// Merges like the server. A strategic merge patch merges conditions by their type; other lists are replaced.
fn merge(object: &mut Value, patch: &Value, strategic: bool) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    let mut merged = match object.take() {
        Value::Object(merged) => merged,
        _ => Map::new(),
    };
    for (name, value) in fields {
        match value {
            Value::Null => drop(merged.remove(name)),
            Value::Array(list) if strategic && name == "conditions" => {
                let conditions = merge_conditions(merged.remove(name), list);
                merged.insert(name.clone(), conditions);
            }
            value => merge(merged.entry(name.as_str()).or_insert(Value::Null), value, strategic),
        }
    }
    *object = Value::Object(merged);
}

fn merge_conditions(present: Option<Value>, patch: &[Value]) -> Value {
    let present = present.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
    let kept = present.into_iter().filter(|old| patch.iter().all(|new| new["type"] != old["type"]));
    let set = patch.iter().filter(|new| new.get("$patch").is_none()).map(|new| {
        let mut condition = Value::Null;
        merge(&mut condition, new, true);
        condition
    });
    kept.chain(set).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strategic_merge_patch_merges_conditions_by_type() {
        let object =
            json!({"a": {"b": 1, "c": 2}, "conditions": [{"type": "X", "reason": "r"}, {"type": "Y"}]});
        let patch = json!({
            "a": {"b": null, "d": {"e": null}},
            "conditions": [{"$patch": "delete", "type": "X"}, {"type": "Resizing", "reason": null}],
        });
        let expected = json!({"a": {"c": 2, "d": {}}, "conditions": [{"type": "Y"}, {"type": "Resizing"}]});
        assert_eq!(apply_patch(&object, &Patch::Strategic(patch)), Some(expected));
    }
}
