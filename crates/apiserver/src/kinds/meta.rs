//! Validation of metadata for all kinds, with upstream's messages in upstream's order.
//!
//! Upstream validates metadata twice on an update: once for all kinds and once in the kind's own rules. As a result,
//! its error message contains each error once, but its list of causes contains each error twice. This module does the
//! same.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{json, names};
use crate::status::Cause;

/// Validates a name. The flag is true if the name is a prefix (`generateName`).
pub(super) type NameRule = fn(&str, bool) -> Vec<String>;

/// The standard finalizers: only these need no domain prefix.
const FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
const ANNOTATIONS_BYTES: usize = 256 << 10;

/// Validates an object's metadata.
pub(super) fn validate(object: &Value, namespaced: bool, name: NameRule) -> Vec<Cause> {
    let mut causes = validate_lenient(object, namespaced, name);
    for (index, finalizer) in json::list(object, "/metadata/finalizers").iter().enumerate() {
        causes.extend(standard_finalizer(&format!("metadata.finalizers[{index}]"), finalizer));
    }
    causes
}

/// Validates an object's metadata. Finalizers need no domain prefix: custom kinds allow any name.
pub(super) fn validate_lenient(object: &Value, namespaced: bool, name: NameRule) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (field, is_prefix) in [("generateName", true), ("name", false)] {
        let path = format!("metadata.{field}");
        match json::text(object, &format!("/metadata/{field}")) {
            "" if is_prefix => (),
            "" => causes.push(Cause::required(&path, "name or generateName is required")),
            text => causes.extend(invalid_causes(&path, text, name(text, is_prefix))),
        }
    }
    match (namespaced, json::text(object, "/metadata/namespace")) {
        (true, "") => causes.push(Cause::required("metadata.namespace", "")),
        (true, text) => causes.extend(invalid_causes("metadata.namespace", text, names::label(text, false))),
        (false, "") => (),
        (false, _) => causes.push(Cause::forbidden("metadata.namespace", "not allowed on this type")),
    }
    if let Some(generation @ ..0) = json::number(object, "/metadata/generation") {
        causes.push(Cause::invalid(
            "metadata.generation",
            &generation.into(),
            "must be greater than or equal to 0",
        ));
    }
    causes.extend(labels(object, "/metadata/labels", "metadata.labels"));
    causes.extend(annotations(object, "/metadata/annotations", "metadata.annotations"));
    causes.extend(owner_references(json::list(object, "/metadata/ownerReferences")));
    causes.extend(finalizers(json::list(object, "/metadata/finalizers")));
    causes
}

/// One cause for each error of a text.
pub(super) fn invalid_causes(field: &str, text: &str, errors: Vec<String>) -> impl Iterator<Item = Cause> {
    errors.into_iter().map(move |error| Cause::invalid(field, &text.into(), &error))
}

/// Validates labels.
pub(super) fn labels(object: &Value, pointer: &str, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (key, value) in json::entries(object, pointer) {
        let value = value.as_str().unwrap_or_default();
        causes.extend(invalid_causes(field, key, names::qualified_name(key)));
        causes.extend(invalid_causes(field, value, names::label_value(value)));
    }
    causes
}

/// Validates annotations.
pub(super) fn annotations(object: &Value, pointer: &str, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut bytes = 0;
    for (key, value) in json::entries(object, pointer) {
        causes.extend(invalid_causes(field, key, names::qualified_name(&key.to_lowercase())));
        bytes += key.len() + value.as_str().unwrap_or_default().len();
    }
    if bytes > ANNOTATIONS_BYTES {
        causes.push(Cause::too_long(field, ANNOTATIONS_BYTES));
    }
    causes
}

/// Validates a label selector.
pub(super) fn label_selector(
    object: &Value,
    pointer: &str,
    field: &str,
    allow_invalid_values: bool,
) -> Vec<Cause> {
    let mut causes = labels(object, &format!("{pointer}/matchLabels"), &format!("{field}.matchLabels"));
    for (index, requirement) in json::list(object, &format!("{pointer}/matchExpressions")).iter().enumerate()
    {
        let field = format!("{field}.matchExpressions[{index}]");
        let values = json::list(requirement, "/values");
        match json::text(requirement, "/operator") {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                causes.push(Cause::required(&format!("{field}.values"), detail));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                causes.push(Cause::forbidden(&format!("{field}.values"), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => (),
            other => {
                let detail = "not a valid selector operator";
                causes.push(Cause::invalid(&format!("{field}.operator"), &other.into(), detail));
            }
        }
        let key = json::text(requirement, "/key");
        causes.extend(invalid_causes(&format!("{field}.key"), key, names::qualified_name(key)));
        for (index, value) in values.iter().enumerate().filter(|_| !allow_invalid_values) {
            let value = value.as_str().unwrap_or_default();
            causes.extend(invalid_causes(
                &format!("{field}.values[{index}]"),
                value,
                names::label_value(value),
            ));
        }
    }
    causes
}

fn owner_references(owners: &[Value]) -> Vec<Cause> {
    const FIELD: &str = "metadata.ownerReferences";
    let mut causes = Vec::new();
    // With more owners, the full list is reported only once: repeated in each cause, it could take gigabytes.
    const MAX_LISTED_OWNERS: usize = 50;
    let mut controller: Option<String> = None;
    let mut shown = false;
    for owner in owners {
        let text = |field: &str| json::text(owner, &format!("/{field}"));
        let api_version = text("apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if version.is_empty() {
            let detail = "version must not be empty";
            causes.push(Cause::invalid(&format!("{FIELD}.apiVersion"), &api_version.into(), detail));
        }
        for field in ["kind", "name", "uid"] {
            if text(field).is_empty() {
                causes.push(Cause::invalid(&format!("{FIELD}.{field}"), &"".into(), "must not be empty"));
            }
        }
        if (group, version, text("kind")) == ("", "v1", "Event") {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            causes.push(invalid_raw(FIELD, &owner_json(owner), detail));
        }
        if json::flag(owner, "/controller") {
            let this = format!("{}/{}", text("kind"), text("name"));
            if let Some(first) = &controller {
                // Like upstream, each cause lists all owners; a very long list is reported once.
                if owners.len() > MAX_LISTED_OWNERS && std::mem::replace(&mut shown, true) {
                    continue;
                }
                let all: Vec<String> = owners.iter().map(owner_json).collect();
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                );
                causes.push(invalid_raw(FIELD, &format!("[{}]", all.join(",")), &detail));
            } else {
                controller = Some(this);
            }
        }
    }
    causes
}

/// An owner reference as JSON, with its fields in upstream's order.
fn owner_json(owner: &Value) -> String {
    let mut fields = Vec::new();
    for field in ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"] {
        match owner.get(field) {
            Some(value) => fields.push(format!("\"{field}\":{value}")),
            None if matches!(field, "apiVersion" | "kind" | "name" | "uid") => {
                fields.push(format!("\"{field}\":\"\""))
            }
            None => (),
        }
    }
    format!("{{{}}}", fields.join(","))
}

/// A cause for an invalid value that is already formatted as text.
pub(super) fn invalid_raw(field: &str, value: &str, detail: &str) -> Cause {
    Cause {
        reason: "FieldValueInvalid",
        field: field.into(),
        message: format!("Invalid value: {value}: {detail}"),
    }
}

fn finalizers(finalizers: &[Value]) -> Vec<Cause> {
    let mut causes = Vec::new();
    for finalizer in finalizers {
        let finalizer = finalizer.as_str().unwrap_or_default();
        causes.extend(invalid_causes("metadata.finalizers", finalizer, names::qualified_name(finalizer)));
    }
    if finalizers.contains(&json!("orphan")) && finalizers.contains(&json!("foregroundDeletion")) {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.push(Cause::invalid("metadata.finalizers", &finalizers.to_vec().into(), detail));
    }
    causes
}

/// A finalizer of a built-in kind has a domain prefix or is a standard finalizer.
pub(super) fn standard_finalizer(field: &str, finalizer: &Value) -> Option<Cause> {
    let text = finalizer.as_str().unwrap_or_default();
    let known = text.contains('/') || FINALIZERS.contains(&text);
    let detail = "name is neither a standard finalizer name nor is it fully qualified";
    (!known).then(|| Cause::invalid(field, finalizer, detail))
}

/// Validates an update of metadata.
pub(super) fn validate_update(object: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = validate_update_lenient(object, old);
    for (index, finalizer) in json::list(object, "/metadata/finalizers").iter().enumerate() {
        causes.extend(standard_finalizer(&format!("metadata.finalizers[{index}]"), finalizer));
    }
    causes
}

/// Validates an update of metadata. Finalizers need no domain prefix: custom kinds allow any name.
pub(super) fn validate_update_lenient(object: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if json::has(old, "/metadata/deletionTimestamp") {
        let before = json::list(old, "/metadata/finalizers").iter();
        let before: BTreeSet<&str> = before.filter_map(Value::as_str).collect();
        let mut added: Vec<&str> = json::list(object, "/metadata/finalizers")
            .iter()
            .filter_map(Value::as_str)
            .filter(|finalizer| !before.contains(finalizer))
            .collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let added: Vec<String> = added.iter().map(|finalizer| format!("{finalizer:?}")).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            causes.push(Cause::forbidden("metadata.finalizers", &detail));
        }
    }
    if json::text(object, "/metadata/resourceVersion").is_empty() {
        let detail = "must be specified for an update";
        causes.push(Cause::invalid("metadata.resourceVersion", &"".into(), detail));
    }
    let generation = |object: &Value| json::number(object, "/metadata/generation").unwrap_or_default();
    if generation(object) < generation(old) {
        causes.push(Cause::invalid(
            "metadata.generation",
            &generation(object).into(),
            "must not be decremented",
        ));
    }
    for field in ["name", "namespace", "uid"] {
        let pointer = format!("/metadata/{field}");
        if json::text(object, &pointer) != json::text(old, &pointer) {
            let value = json::text(object, &pointer).into();
            causes.push(Cause::invalid(&format!("metadata.{field}"), &value, "field is immutable"));
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        causes.extend(immutable(object, old, &format!("/metadata/{field}"), &format!("metadata.{field}")));
    }
    causes.extend(labels(object, "/metadata/labels", "metadata.labels"));
    causes.extend(annotations(object, "/metadata/annotations", "metadata.annotations"));
    causes.extend(owner_references(json::list(object, "/metadata/ownerReferences")));
    causes
}

/// Returns a cause if an immutable value changed.
pub(super) fn immutable(object: &Value, old: &Value, pointer: &str, field: &str) -> Option<Cause> {
    let value = json::at(object, pointer);
    (value != json::at(old, pointer)).then(|| Cause::invalid(field, &value, "field is immutable"))
}

/// Validates an update of any kind, before the kind's own rules.
pub(super) fn validate_common(object: &Value, old: &Value, namespaced: bool) -> Vec<Cause> {
    let mut causes = validate_lenient(object, namespaced, names::path_segment);
    causes.extend(validate_update_lenient(object, old));
    causes
}

/// Restores the generation, which clients cannot set.
pub(super) fn preserve_generation(object: &mut Value, old: &Value) {
    if let (Some(metadata), Some(old)) = (object.get_mut("metadata"), old.get("metadata")) {
        json::restore(metadata, old, "generation");
    }
}

/// Restores the metadata that an update cannot change. A uid in the request is kept, so that validation can compare it.
pub(super) fn preserve_system_fields(object: &mut Value, old: &Value) {
    let (Some(metadata), Some(old)) = (object.get_mut("metadata"), old.get("metadata")) else { return };
    if metadata.get("uid").and_then(Value::as_str).unwrap_or_default().is_empty() {
        json::restore(metadata, old, "uid");
    }
    if old.get("creationTimestamp").is_some() {
        json::restore(metadata, old, "creationTimestamp");
    }
    if old.get("deletionTimestamp").is_some() {
        json::restore(metadata, old, "deletionTimestamp");
    }
    if metadata.get("deletionGracePeriodSeconds").is_none() {
        json::restore(metadata, old, "deletionGracePeriodSeconds");
    }
}

/// Increments the generation, after a change of the spec.
pub(super) fn increment_generation(object: &mut Value, old: &Value) {
    let generation = json::number(old, "/metadata/generation").unwrap_or_default().saturating_add(1);
    json::object_mut(object, "metadata").insert("generation".into(), generation.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The field and message of each cause, one line each.
    fn lines(causes: Vec<Cause>) -> Vec<String> {
        causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
    }

    #[test]
    fn create_is_validated() {
        let ok = json!({"name": "a", "namespace": "ns"});
        let owner = |kind: &str, controller: bool| json!({"apiVersion": "v1", "kind": kind, "name": "n", "uid": "u", "controller": controller});
        for (change, expected) in [
            (json!({}), vec![]),
            (json!({"name": null}), vec!["metadata.name: Required value: name or generateName is required"]),
            (json!({"namespace": null}), vec!["metadata.namespace: Required value"]),
            (
                json!({"namespace": "a.b"}),
                vec!["metadata.namespace: Invalid value: \"a.b\": must not contain dots"],
            ),
            (
                json!({"generation": -1}),
                vec!["metadata.generation: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                json!({"labels": {"/a": "b"}}),
                vec!["metadata.labels: Invalid value: \"/a\": prefix part must be non-empty"],
            ),
            (
                json!({"labels": {"a": "x".repeat(64)}}),
                vec![
                    "metadata.labels: Invalid value: \
                 \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\": must be no more than 63 characters",
                ],
            ),
            (json!({"annotations": {"A.io/b": "any thing\n"}}), vec![]),
            (
                json!({"annotations": {"/b": ""}}),
                vec!["metadata.annotations: Invalid value: \"/b\": prefix part must be non-empty"],
            ),
            (
                json!({"annotations": {"a": "x".repeat(256 << 10)}}),
                vec!["metadata.annotations: Too long: may not be more than 262144 bytes"],
            ),
            (json!({"finalizers": ["kubernetes", "a/b"]}), vec![]),
            (
                json!({"finalizers": ["mine"]}),
                vec![
                    "metadata.finalizers[0]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it \
                 fully qualified",
                ],
            ),
            (
                json!({"finalizers": ["orphan", "foregroundDeletion"]}),
                vec![
                    "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and \
                 foregroundDeletion cannot be both set",
                ],
            ),
            (
                json!({"ownerReferences": [{"apiVersion": "apps/", "kind": "", "name": "", "uid": ""}]}),
                vec![
                    "metadata.ownerReferences.apiVersion: Invalid value: \"apps/\": version must not be empty",
                    "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
                    "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
                    "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
                ],
            ),
            (
                json!({"ownerReferences": [owner("Event", false)]}),
                vec![
                    "metadata.ownerReferences: Invalid value: {\"apiVersion\":\"v1\",\"kind\":\"Event\",\"name\":\"n\",\
                 \"uid\":\"u\",\"controller\":false}: /v1, Kind=Event is disallowed from being an owner",
                ],
            ),
            (
                json!({"ownerReferences": [owner("A", true), owner("B", true)]}),
                vec![
                    "metadata.ownerReferences: Invalid value: [{\"apiVersion\":\"v1\",\"kind\":\"A\",\"name\":\"n\",\
                 \"uid\":\"u\",\"controller\":true},{\"apiVersion\":\"v1\",\"kind\":\"B\",\"name\":\"n\",\"uid\":\"u\",\
                 \"controller\":true}]: Only one reference can have Controller set to true. Found \"true\" in \
                 references for A/n and B/n",
                ],
            ),
        ] {
            let mut metadata = ok.clone();
            for (key, value) in change.as_object().unwrap() {
                metadata[key] = value.clone();
            }
            let object = json!({"metadata": metadata});
            assert_eq!(lines(validate(&object, true, names::subdomain)), expected, "{change}");
        }
        let object = json!({"metadata": ok});
        let forbidden = ["metadata.namespace: Forbidden: not allowed on this type"];
        assert_eq!(lines(validate(&object, false, names::subdomain)), forbidden);
    }

    #[test]
    fn update_is_validated() {
        let old = json!({
            "name": "a", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-02T00:00:00Z", "finalizers": ["x/y"], "generation": 2,
        });
        for (change, expected) in [
            (json!({}), vec![]),
            (json!({"finalizers": []}), vec![]),
            (
                json!({"finalizers": ["x/z", "x/y", "x/a"]}),
                vec![
                    "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found \
                 new finalizers []string{\"x/a\", \"x/z\"}",
                ],
            ),
            (
                json!({"resourceVersion": null}),
                vec!["metadata.resourceVersion: Invalid value: \"\": must be specified for an update"],
            ),
            (
                json!({"generation": 1}),
                vec!["metadata.generation: Invalid value: 1: must not be decremented"],
            ),
            (json!({"name": "b"}), vec!["metadata.name: Invalid value: \"b\": field is immutable"]),
            (json!({"uid": "v"}), vec!["metadata.uid: Invalid value: \"v\": field is immutable"]),
            (
                json!({"deletionGracePeriodSeconds": 3}),
                vec!["metadata.deletionGracePeriodSeconds: Invalid value: 3: field is immutable"],
            ),
            (
                json!({"labels": {"": "x"}}),
                vec![
                    "metadata.labels: Invalid value: \"\": name part must be non-empty",
                    "metadata.labels: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or \
                 '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
                 '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
                ],
            ),
        ] {
            let mut new = old.clone();
            for (key, value) in change.as_object().unwrap() {
                new[key] = value.clone();
            }
            let causes = validate_update(&json!({"metadata": new}), &json!({"metadata": old}));
            assert_eq!(lines(causes), expected, "{change}");
        }
    }

    #[test]
    fn clients_cannot_change_system_fields() {
        let old = json!({"metadata": {
            "uid": "u", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 5,
        }});
        let mut new = json!({"metadata": {"generation": 9, "creationTimestamp": "1999-01-01T00:00:00Z"}});
        preserve_generation(&mut new, &old);
        preserve_system_fields(&mut new, &old);
        assert_eq!(new, old);
        let mut new = json!({"metadata": {"uid": "other", "generation": 9}});
        let old = json!({"metadata": {"uid": "u"}});
        preserve_generation(&mut new, &old);
        preserve_system_fields(&mut new, &old);
        assert_eq!(new, json!({"metadata": {"uid": "other"}}));
    }

    #[test]
    fn label_selectors_are_validated() {
        let errors =
            |selector: Value| lines(label_selector(&json!({"s": selector}), "/s", "spec.selector", false));
        let one = |operator: &str, values: Value| {
            errors(json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]}))
        };
        assert!(errors(json!({"matchLabels": {"a": "b"}})).is_empty());
        assert!(one("In", json!(["x"])).is_empty());
        for (operator, values, expected) in [
            ("In", json!([]), "values: Required value: must be specified when `operator` is 'In' or 'NotIn'"),
            (
                "Exists",
                json!(["a"]),
                "values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            ("Gt", json!(["1"]), "operator: Invalid value: \"Gt\": not a valid selector operator"),
        ] {
            assert_eq!(one(operator, values), [format!("spec.selector.matchExpressions[0].{expected}")]);
        }
        assert!(one("In", json!(["a b"]))[0].starts_with(
            "spec.selector.matchExpressions[0].values[0]: Invalid value: \"a b\": a valid label must be"
        ));
    }
}
