//! Namespace: the scope of names.

use serde_json::{Value, json};

use super::{AGE, BASE, Column, Kind, NAME, Operation, Subresource, age, json, meta, names};
use crate::status::{Cause, StatusError};

pub(super) static NAMESPACE: Kind = Kind {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    subresources: &[
        Subresource { name: "finalize", group: "", version: "v1", kind: "Namespace", verbs: &["update"] },
        Subresource::status("", "Namespace"),
    ],
    default: |namespace| {
        add_name_label(namespace);
        json::object_mut(namespace, "spec");
        json::set_default(json::object_mut(namespace, "status"), "phase", "Active");
        json::null_missing_times(namespace, "/status/conditions", &["lastTransitionTime"]);
    },
    on_create: |namespace, _| {
        namespace["status"] = json!({"phase": "Active"});
        let finalizers = json::object_mut(namespace, "spec").entry("finalizers").or_insert_with(|| json!([]));
        if let Value::Array(finalizers) = finalizers
            && !finalizers.iter().any(|finalizer| finalizer == "kubernetes")
        {
            finalizers.push("kubernetes".into());
        }
        add_name_label(namespace);
    },
    on_update: |namespace, old, _| {
        let finalizers = old.pointer("/spec/finalizers").cloned();
        let spec = json::object_mut(namespace, "spec");
        match finalizers {
            Some(finalizers) => spec.insert("finalizers".into(), finalizers),
            None => spec.remove("finalizers"),
        };
        json::restore(namespace, old, "status");
        add_name_label(namespace);
    },
    on_status: |namespace, old, _| {
        json::restore(namespace, old, "spec");
        add_name_label(namespace);
    },
    validate,
    validate_update: |namespace, old| {
        let mut causes = validate(namespace);
        causes.extend(meta::validate_update(namespace, old));
        causes
    },
    validate_status: |namespace, old| {
        let mut causes = meta::validate_update(namespace, old);
        let phase = json::at(namespace, "/status/phase");
        let (only, when) = if json::has(namespace, "/metadata/deletionTimestamp") {
            ("Terminating", "not empty")
        } else {
            ("Active", "empty")
        };
        if phase != only {
            let detail = format!("may only be '{only}' if `deletionTimestamp` is {when}");
            causes.push(Cause::invalid("status.Phase", &phase, &detail));
        }
        causes
    },
    validate_admission: |namespace, admission| {
        let name = json::text(namespace, "/metadata/name");
        if admission.operation == Operation::Delete
            && ["default", "kube-system", "kube-public"].contains(&name)
        {
            return Err(StatusError::forbidden(
                NAMESPACE.resource(),
                name,
                "this namespace may not be deleted",
            ));
        }
        Ok(())
    },
    fields: &[("status.phase", |namespace| json::text(namespace, "/status/phase").into())],
    columns: &[
        NAME,
        Column::text("Status", "Active, or Terminating while its content is being deleted."),
        AGE,
    ],
    row: |namespace, now| {
        let cell = |pointer: &str| Value::from(json::text(namespace, pointer));
        vec![cell("/metadata/name"), cell("/status/phase"), age(namespace, now).into()]
    },
    ..BASE
};

/// Adds the label `kubernetes.io/metadata.name`, so that selectors can match namespaces by name.
fn add_name_label(namespace: &mut Value) {
    let name = json::at(namespace, "/metadata/name");
    if name.as_str().is_none_or(str::is_empty) {
        return;
    }
    let metadata = json::object_mut(namespace, "metadata");
    let labels = metadata.entry("labels").or_insert_with(|| json!({}));
    labels["kubernetes.io/metadata.name"] = name;
}

fn validate(namespace: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(namespace, false, names::label);
    causes.extend(validate_finalizers(namespace, |_| "spec.finalizers".into()));
    causes
}

fn validate_finalizers(namespace: &Value, field: impl Fn(usize) -> String) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, finalizer) in json::list(namespace, "/spec/finalizers").iter().enumerate() {
        let text = finalizer.as_str().unwrap_or_default();
        causes.extend(meta::invalid_causes(&field(index), text, names::qualified_name(text)));
        causes.extend(meta::standard_finalizer(&field(index), finalizer));
    }
    causes
}

/// Prepares a write to the `finalize` subresource. Only such a write can remove finalizers from the spec.
pub fn prepare_finalize(namespace: &mut Value, old: &Value) {
    meta::preserve_generation(namespace, old);
    json::restore(namespace, old, "status");
    meta::preserve_system_fields(namespace, old);
    add_name_label(namespace);
}

/// Validates a write to the `finalize` subresource.
pub fn invalid_on_finalize(namespace: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = meta::validate_common(namespace, old, false);
    causes.extend(meta::validate_update(namespace, old));
    causes.extend(validate_finalizers(namespace, |index| format!("spec.finalizers[{index}]")));
    causes
}

#[cfg(test)]
mod tests {
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{FakeLookup, admit, invalid, invalid_update, lines, with};

    fn valid() -> Value {
        json!({"metadata": {"name": "team"}})
    }

    fn stored() -> Value {
        let mut namespace = with(&valid(), &json!({"metadata": {"resourceVersion": "1", "uid": "u"}}));
        (NAMESPACE.default)(&mut namespace);
        NAMESPACE.prepare_create(&mut namespace, Time(0));
        namespace
    }

    #[test]
    fn create_sets_label_finalizer_and_phase() {
        let namespace = stored();
        assert_eq!(namespace["metadata"]["labels"], json!({"kubernetes.io/metadata.name": "team"}));
        assert_eq!(namespace["spec"], json!({"finalizers": ["kubernetes"]}));
        assert_eq!(namespace["status"], json!({"phase": "Active"}));
    }

    #[test]
    fn name_must_be_dns_label() {
        assert!(invalid(&NAMESPACE, &valid(), &json!({})).is_empty());
        assert_eq!(
            invalid(&NAMESPACE, &valid(), &json!({"metadata": {"name": "a.b"}})),
            ["metadata.name: Invalid value: \"a.b\": must not contain dots"]
        );
        assert_eq!(
            invalid(&NAMESPACE, &valid(), &json!({"spec": {"finalizers": ["mine"]}})),
            [
                "spec.finalizers: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully \
              qualified"
            ]
        );
        assert!(
            invalid_update(&NAMESPACE, &stored(), &json!({"metadata": {"labels": {"a": "b"}}})).is_empty()
        );
    }

    #[test]
    fn finalizers_and_status_change_only_through_their_subresources() {
        let old = stored();
        let change = json!({"spec": {"finalizers": []}, "status": {"phase": "Terminating"}});
        let mut update = with(&old, &change);
        NAMESPACE.prepare_update(&mut update, &old, Time(0));
        assert_eq!(update, old);
        let mut finalize = with(&old, &change);
        prepare_finalize(&mut finalize, &old);
        assert_eq!(finalize["spec"]["finalizers"], json!([]));
        assert_eq!(finalize["status"], old["status"]);
        assert!(lines(invalid_on_finalize(&finalize, &old)).is_empty());
        let mut status = with(&old, &change);
        NAMESPACE.prepare_status(&mut status, &old, Time(0));
        assert_eq!(status["spec"], old["spec"]);
        assert_eq!(
            lines(NAMESPACE.invalid_on_status(&status, &old)),
            [
                "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty",
            ]
        );
    }

    #[test]
    fn system_namespaces_cannot_be_deleted() {
        for (name, expected) in [
            (
                "default",
                Err("namespaces \"default\" is forbidden: this namespace may not be deleted".to_owned()),
            ),
            ("kube-node-lease", Ok(())),
        ] {
            let mut namespace = json!({"metadata": {"name": name}});
            let result = admit(&NAMESPACE, &mut namespace, Operation::Delete, None, &FakeLookup(vec![]));
            assert_eq!(result.map_err(|error| error.message), expected);
        }
    }

    #[test]
    fn field_selectors_read_supported_fields() {
        let value = |field: &str| NAMESPACE.field(field).map(|value| value(&stored()));
        assert_eq!(value("metadata.name").as_deref(), Some("team"));
        assert_eq!(value("status.phase").as_deref(), Some("Active"));
        assert_eq!(value("metadata.namespace"), None);
        assert_eq!(value("spec.x"), None);
    }
}
