//! Namespace: where names are unique.

use serde_json::{Value, json};

use super::{AGE, BASE, Column, Kind, NAME, Operation, Subresource, age, json, meta, names};
use crate::status::{Cause, Refusal};

/// Where names are unique.
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
        label(namespace);
        json::map(namespace, "spec");
        json::fill(json::map(namespace, "status"), "phase", "Active");
        json::times(namespace, "/status/conditions", &["lastTransitionTime"]);
    },
    on_create: |namespace, _| {
        namespace["status"] = json!({"phase": "Active"});
        let finalizers = json::map(namespace, "spec").entry("finalizers").or_insert_with(|| json!([]));
        if let Value::Array(finalizers) = finalizers
            && !finalizers.iter().any(|finalizer| finalizer == "kubernetes")
        {
            finalizers.push("kubernetes".into());
        }
        label(namespace);
    },
    on_update: |namespace, old, _| {
        let finalizers = old.pointer("/spec/finalizers").cloned();
        let spec = json::map(namespace, "spec");
        match finalizers {
            Some(finalizers) => spec.insert("finalizers".into(), finalizers),
            None => spec.remove("finalizers"),
        };
        json::keep(namespace, old, "status");
        label(namespace);
    },
    on_status: |namespace, old, _| {
        json::keep(namespace, old, "spec");
        label(namespace);
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
    confirm: |namespace, admission| {
        let name = json::text(namespace, "/metadata/name");
        if admission.operation == Operation::Delete
            && ["default", "kube-system", "kube-public"].contains(&name)
        {
            return Err(Refusal::forbidden(NAMESPACE.resource(), name, "this namespace may not be deleted"));
        }
        Ok(())
    },
    fields: &[("status.phase", |namespace| json::text(namespace, "/status/phase").into())],
    columns: &[NAME, Column::text("Status", "Active, or Terminating while it is being emptied."), AGE],
    row: |namespace, now| {
        let of = |pointer: &str| Value::from(json::text(namespace, pointer));
        vec![of("/metadata/name"), of("/status/phase"), age(namespace, now).into()]
    },
    ..BASE
};

/// A namespace can be selected by its name.
fn label(namespace: &mut Value) {
    let name = json::at(namespace, "/metadata/name");
    if name.as_str().is_none_or(str::is_empty) {
        return;
    }
    let metadata = json::map(namespace, "metadata");
    let labels = metadata.entry("labels").or_insert_with(|| json!({}));
    labels["kubernetes.io/metadata.name"] = name;
}

fn validate(namespace: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(namespace, false, names::label);
    causes.extend(finalizers(namespace, |_| "spec.finalizers".into()));
    causes
}

fn finalizers(namespace: &Value, field: impl Fn(usize) -> String) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, finalizer) in json::list(namespace, "/spec/finalizers").iter().enumerate() {
        let text = finalizer.as_str().unwrap_or_default();
        causes.extend(meta::each(&field(index), text, names::qualified(text)));
        causes.extend(meta::standard_finalizer(&field(index), finalizer));
    }
    causes
}

/// The subresource `finalize`: only here do the finalizers of the spec go.
pub fn prepare_finalize(namespace: &mut Value, old: &Value) {
    meta::keep_generation(namespace, old);
    json::keep(namespace, old, "status");
    meta::keep_system_fields(namespace, old);
    label(namespace);
}

/// What is wrong with a write of the subresource `finalize`.
pub fn invalid_on_finalize(namespace: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = meta::validate_common(namespace, old, false);
    causes.extend(meta::validate_update(namespace, old));
    causes.extend(finalizers(namespace, |index| format!("spec.finalizers[{index}]")));
    causes
}

#[cfg(test)]
mod tests {
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{Others, admit, invalid, invalid_change, lines, with};

    fn good() -> Value {
        json!({"metadata": {"name": "team"}})
    }

    fn stored() -> Value {
        let mut namespace = with(&good(), &json!({"metadata": {"resourceVersion": "1", "uid": "u"}}));
        (NAMESPACE.default)(&mut namespace);
        NAMESPACE.prepare_create(&mut namespace, Time(0));
        namespace
    }

    #[test]
    fn what_a_new_one_has() {
        let namespace = stored();
        assert_eq!(namespace["metadata"]["labels"], json!({"kubernetes.io/metadata.name": "team"}));
        assert_eq!(namespace["spec"], json!({"finalizers": ["kubernetes"]}));
        assert_eq!(namespace["status"], json!({"phase": "Active"}));
    }

    #[test]
    fn names_are_labels() {
        assert!(invalid(&NAMESPACE, &good(), &json!({})).is_empty());
        assert_eq!(
            invalid(&NAMESPACE, &good(), &json!({"metadata": {"name": "a.b"}})),
            ["metadata.name: Invalid value: \"a.b\": must not contain dots"]
        );
        assert_eq!(
            invalid(&NAMESPACE, &good(), &json!({"spec": {"finalizers": ["mine"]}})),
            [
                "spec.finalizers: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully \
              qualified"
            ]
        );
        assert!(
            invalid_change(&NAMESPACE, &stored(), &json!({"metadata": {"labels": {"a": "b"}}})).is_empty()
        );
    }

    #[test]
    fn finalizers_and_status_change_only_in_their_place() {
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
    fn some_stay() {
        for (name, expected) in [
            (
                "default",
                Err("namespaces \"default\" is forbidden: this namespace may not be deleted".to_owned()),
            ),
            ("kube-node-lease", Ok(())),
        ] {
            let mut namespace = json!({"metadata": {"name": name}});
            let answer = admit(&NAMESPACE, &mut namespace, Operation::Delete, None, &Others(vec![]));
            assert_eq!(answer.map_err(|refusal| refusal.message), expected);
        }
    }

    #[test]
    fn selected_by() {
        let of = |field: &str| NAMESPACE.field(field).map(|of| of(&stored()));
        assert_eq!(of("metadata.name").as_deref(), Some("team"));
        assert_eq!(of("status.phase").as_deref(), Some("Active"));
        assert_eq!(of("metadata.namespace"), None);
        assert_eq!(of("spec.x"), None);
    }
}
