//! Kinds that a cluster has as custom resources: what their definitions in `deploy/crds` say, and what upstream's
//! server does to all such objects.

use std::collections::BTreeSet;

use serde_json::Value;
use wharf_model::Time;

use super::{BASE, Column, Kind, age, json, meta, names};
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
        if is_blocked && self.rules.is_empty() {
            return;
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

/// What all such kinds have in common.
pub(super) const PLAIN: Kind = Kind {
    unconditional_update: false,
    on_create: |object, _| on_create(object, false),
    on_update: |object, old, _| on_update(object, old, false),
    warnings,
    ..BASE
};

/// And those whose status is written apart from the rest.
pub(super) const WITH_STATUS: Kind = Kind {
    on_create: |object, _| on_create(object, true),
    on_update: |object, old, _| on_update(object, old, true),
    on_status: |object, old, _| on_status(object, old),
    ..PLAIN
};

/// A new object is of the first generation and has no status yet.
fn on_create(object: &mut Value, has_status: bool) {
    if has_status {
        json::remove(object, "status");
    }
    json::map(object, "metadata").insert("generation".into(), 1.into());
}

/// A write of the object leaves the status alone, and is a new generation if it changes more than metadata.
fn on_update(object: &mut Value, old: &Value, has_status: bool) {
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
fn on_status(object: &mut Value, old: &Value) {
    let status = object.get("status").cloned();
    *object = old.clone();
    match status {
        Some(status) => object["status"] = status,
        None => json::remove(object, "status"),
    }
}

/// Finalizers that have no prefix may be somebody else's too.
fn warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let before = old.map(|old| json::list(old, "/metadata/finalizers")).unwrap_or_default().iter();
    let before: BTreeSet<&str> = before.filter_map(Value::as_str).collect();
    let mut added: Vec<&str> = json::list(object, "/metadata/finalizers")
        .iter()
        .filter_map(Value::as_str)
        .filter(|finalizer| !before.contains(finalizer))
        .filter(|finalizer| !finalizer.contains('/'))
        .filter(|finalizer| !["kubernetes", "orphan", "foregroundDeletion"].contains(finalizer))
        .collect();
    added.sort_unstable();
    let words = |finalizer: &str| {
        let path = if finalizer.contains('.') { " including a path (/)" } else { "" };
        format!(
            "metadata.finalizers: {finalizer:?}: prefer a domain-qualified finalizer name{path} to avoid accidental \
             conflicts with other finalizer writers"
        )
    };
    added.into_iter().map(words).collect()
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
    use crate::kinds::{Kind, group_snapshot, snapshot};

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
        let object = json!({"metadata": {"finalizers": ["a/b", "mine", "x.io", "orphan"]}});
        assert_eq!(
            warnings(&object, None),
            [
                "metadata.finalizers: \"mine\": prefer a domain-qualified finalizer name to avoid accidental conflicts with \
             other finalizer writers",
                "metadata.finalizers: \"x.io\": prefer a domain-qualified finalizer name including a path (/) to avoid \
             accidental conflicts with other finalizer writers",
            ]
        );
        assert!(warnings(&object, Some(&object)).is_empty());
    }

    /// Each kind with its definition's file, its rules, and the fields of its columns.
    static DEFINED: [(&Kind, &str, &Rules); 6] = [
        (
            &snapshot::CLASS,
            include_str!("../../../../deploy/crds/volumesnapshotclasses.yaml"),
            &snapshot::CLASS_RULES,
        ),
        (
            &snapshot::CONTENT,
            include_str!("../../../../deploy/crds/volumesnapshotcontents.yaml"),
            &snapshot::CONTENT_RULES,
        ),
        (
            &snapshot::SNAPSHOT,
            include_str!("../../../../deploy/crds/volumesnapshots.yaml"),
            &snapshot::SNAPSHOT_RULES,
        ),
        (
            &group_snapshot::CLASS,
            include_str!("../../../../deploy/crds/volumegroupsnapshotclasses.yaml"),
            &group_snapshot::CLASS_RULES,
        ),
        (
            &group_snapshot::CONTENT,
            include_str!("../../../../deploy/crds/volumegroupsnapshotcontents.yaml"),
            &group_snapshot::CONTENT_RULES,
        ),
        (
            &group_snapshot::SNAPSHOT,
            include_str!("../../../../deploy/crds/volumegroupsnapshots.yaml"),
            &group_snapshot::SNAPSHOT_RULES,
        ),
    ];

    /// What a schema says besides types: where there is a rule and its message, what is required, which words.
    fn said(
        schema: &Value,
        at: &str,
        rules: &mut Vec<String>,
        required: &mut Vec<String>,
        words: &mut Vec<String>,
    ) {
        for rule in json::list(schema, "/x-kubernetes-validations") {
            rules.push(format!("{at} {}: {}", json::text(schema, "/type"), json::text(rule, "/message")));
        }
        for field in json::list(schema, "/required").iter().filter_map(Value::as_str) {
            required.push(format!("{at}/{field}"));
        }
        if schema.get("enum").is_some() {
            words.push(format!("{at}: {}", schema["enum"]));
        }
        for (name, inner) in json::entries(schema, "/properties") {
            said(inner, &format!("{at}/{name}"), rules, required, words);
        }
    }

    #[test]
    fn kinds_are_as_their_definitions_say() {
        for (kind, yaml, rules) in DEFINED {
            let definition: Value = serde_saphyr::from_str(yaml).unwrap();
            let spec = &definition["spec"];
            let names = &spec["names"];
            assert_eq!(spec["group"], kind.group);
            assert_eq!((&names["kind"], &names["plural"]), (&json!(kind.kind), &json!(kind.plural)));
            assert_eq!(
                (&names["singular"], &names["shortNames"]),
                (&json!(kind.singular), &json!(kind.short_names))
            );
            assert_eq!(spec["scope"] == "Namespaced", kind.namespaced, "{}", kind.kind);
            let version =
                spec["versions"].as_array().unwrap().iter().find(|version| version["name"] == "v1").unwrap();
            assert_eq!(version["subresources"].get("status").is_some(), kind.subresource("status").is_some());

            let columns = version["additionalPrinterColumns"].as_array().unwrap();
            assert_eq!(columns.len() + 1, kind.columns.len(), "{}", kind.kind);
            for (column, ours) in columns.iter().zip(&kind.columns[1..]) {
                assert_eq!((&column["name"], &column["type"]), (&json!(ours.name), &json!(ours.of)));
                let path = column["jsonPath"].as_str().unwrap();
                let default = format!("Custom resource definition column (in JSONPath format): {path}");
                assert_eq!(
                    column["description"].as_str().unwrap_or(&default),
                    ours.description,
                    "{}",
                    kind.kind
                );
                // A word at the path comes out in the cell.
                let mut object = json!("a word");
                for field in path.rsplit('.').filter(|field| !field.is_empty()) {
                    object = json!({field: object});
                }
                let at = kind.columns.iter().position(|of| of.name == ours.name).unwrap();
                let cell = &(kind.row)(&object, Time(0))[at];
                assert_eq!(cell, if ours.of == "date" { "<invalid>" } else { "a word" }, "{path}");
            }

            let (mut messages, mut required, mut words) = (Vec::new(), Vec::new(), Vec::new());
            said(&version["schema"]["openAPIV3Schema"], "", &mut messages, &mut required, &mut words);
            let sorted = |mut all: Vec<String>| {
                all.sort();
                all
            };
            let ours =
                rules.rules.iter().map(|(at, of, _, message)| format!("{at} {of}: {message}")).collect();
            assert_eq!(sorted(ours), sorted(messages), "{}", kind.kind);
            let ours = rules
                .required
                .iter()
                .flat_map(|(at, fields)| fields.iter().map(move |field| format!("{at}/{field}")));
            // Those of a selector are a list's, whose items no rule here looks at.
            let required = required.into_iter().filter(|at| !at.contains("matchExpressions")).collect();
            assert_eq!(sorted(ours.collect()), sorted(required), "{}", kind.kind);
            let ours = rules.words.iter().map(|(at, words)| format!("{at}: {}", json!(words))).collect();
            assert_eq!(sorted(ours), sorted(words), "{}", kind.kind);
        }
    }
}
