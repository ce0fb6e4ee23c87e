//! Kinds that are custom resources in a cluster: the validation rules of their CustomResourceDefinitions in `deploy/crds`,
//! and the defaulting, generation and warnings that kube-apiserver applies to all custom resources.

use std::collections::BTreeSet;

use serde_json::Value;
use wharf_model::Time;

use super::{BASE, Column, Kind, age, json, meta, names};
use crate::status::Cause;

/// The validation rules of a CustomResourceDefinition, apart from field types.
pub(super) struct Rules {
    /// Pointers to objects, and the required fields of each object that exists.
    pub(super) required: &'static [(&'static str, &'static [&'static str])],
    /// Pointers to enum fields, and their allowed values.
    pub(super) enums: &'static [(&'static str, &'static [&'static str])],
    /// The definition's `x-kubernetes-validations`. Rules of an object precede rules of its fields.
    pub(super) rules: &'static [Rule],
}

/// A validation rule: pointer, type of the value there, check, and message if the check fails.
pub(super) type Rule = (&'static str, &'static str, Check, &'static str);

/// The condition of a validation rule.
pub(super) enum Check {
    /// Exactly one of two fields is set.
    ExactlyOneOf(&'static str, &'static str),
    /// All of these fields are set.
    AllSet(&'static [&'static str]),
    /// A string is not empty.
    NotEmpty,
    /// A value that is set before and after the update is unchanged.
    Unchanged,
    /// These fields are unchanged.
    FieldsUnchanged(&'static [&'static str]),
    /// A field that was set is still set.
    RemainsSet(&'static str),
    /// A field that was set is still set and unchanged.
    UnchangedOnceSet(&'static str),
}

impl Check {
    /// Whether the condition holds. Conditions that compare with the old value hold if there is none.
    fn holds(&self, value: &Value, old: Option<&Value>) -> bool {
        let has = |object: &Value, field: &str| object.get(field).is_some();
        match (self, old) {
            (Self::ExactlyOneOf(a, b), _) => has(value, a) != has(value, b),
            (Self::AllSet(fields), _) => fields.iter().all(|field| has(value, field)),
            (Self::NotEmpty, _) => value.as_str().is_none_or(|text| !text.is_empty()),
            (_, None) => true,
            (Self::Unchanged, Some(old)) => value == old,
            (Self::FieldsUnchanged(fields), Some(old)) => {
                fields.iter().all(|field| value.get(field) == old.get(field))
            }
            (Self::RemainsSet(field), Some(old)) => !has(old, field) || has(value, field),
            (Self::UnchangedOnceSet(field), Some(old)) => {
                !has(old, field) || value.get(field) == old.get(field)
            }
        }
    }

    /// Whether the check is skipped for unchanged values (validation ratcheting).
    fn can_be_ratcheted(&self) -> bool {
        matches!(self, Self::ExactlyOneOf(..) | Self::AllSet(_) | Self::NotEmpty)
    }
}

impl Rules {
    /// Validates a new object.
    pub(super) fn validate(&self, object: &Value, namespaced: bool) -> Vec<Cause> {
        let mut causes = meta::validate_lenient(object, namespaced, names::subdomain);
        self.check(object, None, &mut causes);
        causes
    }

    /// Validates an update.
    pub(super) fn validate_update(&self, object: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = meta::validate_update_lenient(object, old);
        self.check(object, Some(old), &mut causes);
        causes
    }

    fn check(&self, object: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
        let before = |pointer: &str| old.and_then(|old| old.pointer(pointer));
        let field = |pointer: &str| pointer.trim_start_matches('/').replace('/', ".");
        let mut skip_rules = false;
        for (pointer, fields) in self.required {
            let Some(value) = object.pointer(pointer) else { continue };
            for missing in fields.iter().filter(|field| value.get(field).is_none()) {
                causes.push(Cause::required(&field(&format!("{pointer}/{missing}")), ""));
                skip_rules = true;
            }
        }
        for (pointer, values) in self.enums {
            let Some(value) = object.pointer(pointer).filter(|value| before(pointer) != Some(value)) else {
                continue;
            };
            if !value.as_str().is_some_and(|value| values.contains(&value)) {
                causes.push(Cause::not_supported(&field(pointer), value, values));
                skip_rules = true;
            }
        }
        if skip_rules && self.rules.is_empty() {
            return;
        }
        if skip_rules {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing \
                          errors to complete validation";
            causes.push(Cause::invalid("<nil>", &Value::Null, detail));
            return;
        }
        for (pointer, value_type, check, message) in self.rules {
            let Some(value) = object.pointer(pointer) else { continue };
            let old = before(pointer);
            let is_ratcheted = check.can_be_ratcheted() && old == Some(value);
            if !is_ratcheted && !check.holds(value, old) {
                causes.push(Cause::invalid(&field(pointer), &(*value_type).into(), message));
            }
        }
    }
}

/// Base of custom kinds without a status subresource.
pub(super) const WITHOUT_STATUS: Kind = Kind {
    unconditional_update: false,
    on_create: |object, _| on_create(object, false),
    on_update: |object, old, _| on_update(object, old, false),
    warnings,
    ..BASE
};

/// Base of custom kinds with a status subresource.
pub(super) const WITH_STATUS: Kind = Kind {
    on_create: |object, _| on_create(object, true),
    on_update: |object, old, _| on_update(object, old, true),
    on_status: |object, old, _| on_status(object, old),
    ..WITHOUT_STATUS
};

/// A new object has generation 1 and no status.
fn on_create(object: &mut Value, has_status: bool) {
    if has_status {
        json::remove(object, "status");
    }
    json::object_mut(object, "metadata").insert("generation".into(), 1.into());
}

/// An update of the object preserves the status, and increments the generation if it changes more than metadata.
fn on_update(object: &mut Value, old: &Value, has_status: bool) {
    if has_status {
        json::restore(object, old, "status");
    }
    let same = |(key, value): (&String, &Value)| key == "metadata" || old.get(key) == Some(value);
    let is_same = object.as_object().is_some_and(|map| map.iter().all(same))
        && old.as_object().is_some_and(|map| map.keys().all(|key| object.get(key).is_some()));
    if !is_same {
        meta::increment_generation(object, old);
    }
}

/// A status update changes only the status.
fn on_status(object: &mut Value, old: &Value) {
    let status = object.get("status").cloned();
    *object = old.clone();
    match status {
        Some(status) => object["status"] = status,
        None => json::remove(object, "status"),
    }
}

/// Warns about new finalizers without a domain prefix: other controllers may use the same name.
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
    let warning = |finalizer: &str| {
        let path = if finalizer.contains('.') { " including a path (/)" } else { "" };
        format!(
            "metadata.finalizers: {finalizer:?}: prefer a domain-qualified finalizer name{path} to avoid accidental \
             conflicts with other finalizer writers"
        )
    };
    added.into_iter().map(warning).collect()
}

/// The cells of a table row: the name, then the value at each pointer.
pub(super) fn row(object: &Value, columns: &[Column], pointers: &[&str], now: Time) -> Vec<Value> {
    let mut cells = vec![json::text(object, "/metadata/name").into()];
    for (column, pointer) in columns.iter().skip(1).zip(pointers) {
        cells.push(match (column.data_type, object.pointer(pointer)) {
            (_, None) => Value::Null,
            ("date", Some(_)) => match age::timestamp(object, pointer) {
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
    fn changes_beyond_metadata_and_status_increment_generation() {
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
    fn status_update_changes_only_status() {
        let old = json!({"metadata": {"name": "a"}, "spec": {"a": 1}});
        let mut new = json!({"metadata": {"name": "b"}, "spec": {"a": 2}, "status": {"x": 1}});
        on_status(&mut new, &old);
        assert_eq!(new, json!({"metadata": {"name": "a"}, "spec": {"a": 1}, "status": {"x": 1}}));
        on_status(&mut new, &json!({"status": {"x": 2}}));
        assert_eq!(new, json!({"status": {"x": 1}}));
    }

    #[test]
    fn finalizers_without_prefix_cause_warnings() {
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

    /// Each kind with its CustomResourceDefinition and its rules.
    static DEFINITIONS: [(&Kind, &str, &Rules); 6] = [
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

    /// Collects what a schema requires apart from types: rules with their messages, required fields and enums.
    fn collect_rules(
        schema: &Value,
        at: &str,
        rules: &mut Vec<String>,
        required: &mut Vec<String>,
        enums: &mut Vec<String>,
    ) {
        for rule in json::list(schema, "/x-kubernetes-validations") {
            rules.push(format!("{at} {}: {}", json::text(schema, "/type"), json::text(rule, "/message")));
        }
        for field in json::list(schema, "/required").iter().filter_map(Value::as_str) {
            required.push(format!("{at}/{field}"));
        }
        if schema.get("enum").is_some() {
            enums.push(format!("{at}: {}", schema["enum"]));
        }
        for (name, inner) in json::entries(schema, "/properties") {
            collect_rules(inner, &format!("{at}/{name}"), rules, required, enums);
        }
    }

    #[test]
    fn kinds_match_their_definitions() {
        for (kind, yaml, rules) in DEFINITIONS {
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
                assert_eq!((&column["name"], &column["type"]), (&json!(ours.name), &json!(ours.data_type)));
                let path = column["jsonPath"].as_str().unwrap();
                let default = format!("Custom resource definition column (in JSONPath format): {path}");
                assert_eq!(
                    column["description"].as_str().unwrap_or(&default),
                    ours.description,
                    "{}",
                    kind.kind
                );
                // A string at the path appears in the cell.
                let mut object = json!("text");
                for field in path.rsplit('.').filter(|field| !field.is_empty()) {
                    object = json!({field: object});
                }
                let at = kind.columns.iter().position(|column| column.name == ours.name).unwrap();
                let cell = &(kind.row)(&object, Time(0))[at];
                assert_eq!(cell, if ours.data_type == "date" { "<invalid>" } else { "text" }, "{path}");
            }

            let (mut messages, mut required, mut enums) = (Vec::new(), Vec::new(), Vec::new());
            collect_rules(
                &version["schema"]["openAPIV3Schema"],
                "",
                &mut messages,
                &mut required,
                &mut enums,
            );
            let sorted = |mut all: Vec<String>| {
                all.sort();
                all
            };
            let ours = rules
                .rules
                .iter()
                .map(|(at, value_type, _, message)| format!("{at} {value_type}: {message}"))
                .collect();
            assert_eq!(sorted(ours), sorted(messages), "{}", kind.kind);
            let ours = rules
                .required
                .iter()
                .flat_map(|(at, fields)| fields.iter().map(move |field| format!("{at}/{field}")));
            // matchExpressions is a list, and the rules do not check list elements.
            let required = required.into_iter().filter(|at| !at.contains("matchExpressions")).collect();
            assert_eq!(sorted(ours.collect()), sorted(required), "{}", kind.kind);
            let ours = rules.enums.iter().map(|(at, values)| format!("{at}: {}", json!(values))).collect();
            assert_eq!(sorted(ours), sorted(enums), "{}", kind.kind);
        }
    }
}
