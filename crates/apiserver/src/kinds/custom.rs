//! Kinds that a cluster has as custom resources: what their definitions in `deploy/crds` say, and what upstream's
//! server does to all such objects.

use serde_json::Value;
use wharf_model::Time;

use super::{Column, age, json, meta, names};
use crate::status::Cause;

/// What a definition says of its objects besides the types of their fields.
pub(super) struct Rules {
    /// An object, and what it has to have if it is there.
    pub(super) required: &'static [(&'static str, &'static [&'static str])],
    /// Where only certain words are allowed.
    pub(super) words: &'static [(&'static str, &'static [&'static str])],
    /// The definition's rules, those of an object before those of its fields.
    pub(super) rules: &'static [Rule],
}

/// Where, the type there, what is checked, and what is said if it does not hold.
pub(super) type Rule = (&'static str, &'static str, Check, &'static str);

/// What is checked.
pub(super) enum Check {
    /// One of two fields is there, not both.
    One(&'static str, &'static str),
    /// All of these fields are there.
    All(&'static [&'static str]),
    /// A text has characters.
    NotEmpty,
    /// A value that was there and is there is the same.
    Same,
    /// These fields are the same as before.
    SameFields(&'static [&'static str]),
    /// A field that was there is there.
    StaysSet(&'static str),
    /// A field that was there is there and is the same.
    StaysSame(&'static str),
}

impl Check {
    /// Whether it holds. Checks that look at what was before hold for new values.
    fn holds(&self, value: &Value, old: Option<&Value>) -> bool {
        let has = |of: &Value, field: &str| of.get(field).is_some();
        match (self, old) {
            (Self::One(a, b), _) => has(value, a) != has(value, b),
            (Self::All(fields), _) => fields.iter().all(|field| has(value, field)),
            (Self::NotEmpty, _) => value.as_str().is_none_or(|text| !text.is_empty()),
            (_, None) => true,
            (Self::Same, Some(old)) => value == old,
            (Self::SameFields(fields), Some(old)) => {
                fields.iter().all(|field| value.get(field) == old.get(field))
            }
            (Self::StaysSet(field), Some(old)) => !has(old, field) || has(value, field),
            (Self::StaysSame(field), Some(old)) => !has(old, field) || value.get(field) == old.get(field),
        }
    }

    /// Whether it is left alone where nothing changes.
    fn is_about_now(&self) -> bool {
        matches!(self, Self::One(..) | Self::All(_) | Self::NotEmpty)
    }
}

impl Rules {
    /// What is wrong with a new object.
    pub(super) fn validate(&self, object: &Value, namespaced: bool) -> Vec<Cause> {
        let mut causes = meta::validate_any(object, namespaced, names::subdomain);
        self.check(object, None, &mut causes);
        causes
    }

    /// What is wrong with a change.
    pub(super) fn validate_update(&self, object: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = meta::validate_update_any(object, old);
        self.check(object, Some(old), &mut causes);
        causes
    }

    fn check(&self, object: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
        let before = |pointer: &str| old.and_then(|old| old.pointer(pointer));
        let field = |pointer: &str| pointer.trim_start_matches('/').replace('/', ".");
        let mut is_blocked = false;
        for (pointer, fields) in self.required {
            let Some(value) = object.pointer(pointer) else { continue };
            for missing in fields.iter().filter(|field| value.get(field).is_none()) {
                causes.push(Cause::required(&field(&format!("{pointer}/{missing}")), ""));
                is_blocked = true;
            }
        }
        for (pointer, words) in self.words {
            let Some(value) = object.pointer(pointer).filter(|value| before(pointer) != Some(value)) else {
                continue;
            };
            if !value.as_str().is_some_and(|value| words.contains(&value)) {
                causes.push(Cause::not_supported(&field(pointer), value, words));
                is_blocked = true;
            }
        }
        if is_blocked {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing \
                          errors to complete validation";
            causes.push(Cause::invalid("<nil>", &Value::Null, detail));
            return;
        }
        for (pointer, of, check, message) in self.rules {
            let Some(value) = object.pointer(pointer) else { continue };
            let old = before(pointer);
            let is_left_alone = check.is_about_now() && old == Some(value);
            if !is_left_alone && !check.holds(value, old) {
                causes.push(Cause::invalid(&field(pointer), &(*of).into(), message));
            }
        }
    }
}

/// A new object is of the first generation and has no status yet.
pub(super) fn on_create(object: &mut Value, has_status: bool) {
    if has_status {
        json::remove(object, "status");
    }
    json::map(object, "metadata").insert("generation".into(), 1.into());
}

/// A write of the object leaves the status alone, and is a new generation if it changes more than metadata.
pub(super) fn on_update(object: &mut Value, old: &Value, has_status: bool) {
    if has_status {
        json::keep(object, old, "status");
    }
    let same = |(key, value): (&String, &Value)| key == "metadata" || old.get(key) == Some(value);
    let is_same = object.as_object().is_some_and(|map| map.iter().all(same))
        && old.as_object().is_some_and(|map| map.keys().all(|key| object.get(key).is_some()));
    if !is_same {
        meta::next_generation(object, old);
    }
}

/// A write of the status changes nothing else.
pub(super) fn on_status(object: &mut Value, old: &Value) {
    let status = object.get("status").cloned();
    *object = old.clone();
    match status {
        Some(status) => object["status"] = status,
        None => json::remove(object, "status"),
    }
}

/// Finalizers that have no prefix may be somebody else's too.
pub(super) fn warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let before = old.map(|old| json::list(old, "/metadata/finalizers")).unwrap_or_default();
    let mut added: Vec<&str> = json::list(object, "/metadata/finalizers")
        .iter()
        .filter(|finalizer| !before.contains(finalizer))
        .filter_map(Value::as_str)
        .filter(|finalizer| !finalizer.contains('/'))
        .filter(|finalizer| !["kubernetes", "orphan", "foregroundDeletion"].contains(finalizer))
        .collect();
    added.sort_unstable();
    let words = "prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other \
                 finalizer writers";
    added.iter().map(|finalizer| format!("metadata.finalizers: {finalizer:?}: {words}")).collect()
}

/// The cells of a row: the name, then what stands at each pointer.
pub(super) fn row(object: &Value, columns: &[Column], pointers: &[&str], now: Time) -> Vec<Value> {
    let mut cells = vec![json::text(object, "/metadata/name").into()];
    for (column, pointer) in columns.iter().skip(1).zip(pointers) {
        cells.push(match (column.of, object.pointer(pointer)) {
            (_, None) => Value::Null,
            ("date", Some(_)) => match age::moment(object, pointer) {
                Some(_) => age::since(object, pointer, now).into(),
                None => "<invalid>".into(),
            },
            ("string", Some(Value::Number(number))) => number.to_string().into(),
            (_, Some(value)) => value.clone(),
        });
    }
    cells
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn generations() {
        let old = json!({"metadata": {"generation": 3}, "spec": {"a": 1}, "status": {"x": 1}});
        for (change, expected) in [
            (json!({"metadata": {"generation": 3, "labels": {"a": "b"}}}), 3),
            (json!({"status": {"x": 2}}), 3),
            (json!({"spec": {"a": 2}}), 4),
            (json!({"spec": null}), 4),
        ] {
            let mut new = crate::kinds::testing::with(&old, &change);
            on_update(&mut new, &old, true);
            assert_eq!(new["metadata"]["generation"], expected, "{change}");
            assert_eq!(new["status"], old["status"], "{change}");
        }
    }

    #[test]
    fn a_status_is_written_apart() {
        let old = json!({"metadata": {"name": "a"}, "spec": {"a": 1}});
        let mut new = json!({"metadata": {"name": "b"}, "spec": {"a": 2}, "status": {"x": 1}});
        on_status(&mut new, &old);
        assert_eq!(new, json!({"metadata": {"name": "a"}, "spec": {"a": 1}, "status": {"x": 1}}));
        on_status(&mut new, &json!({"status": {"x": 2}}));
        assert_eq!(new, json!({"status": {"x": 1}}));
    }

    #[test]
    fn finalizers_without_a_prefix_are_warned_of() {
        let object = json!({"metadata": {"finalizers": ["a/b", "mine", "orphan"]}});
        assert_eq!(
            warnings(&object, None),
            [
                "metadata.finalizers: \"mine\": prefer a domain-qualified finalizer name including a path (/) to avoid \
             accidental conflicts with other finalizer writers",
            ]
        );
        assert!(warnings(&object, Some(&object)).is_empty());
    }
}
