//! The rules: which claim of an ephemeral volume a pod lacks.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_cluster::Change;
use wharf_model::{PersistentVolumeClaim, Pod};

/// The next step.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Idle,
    CreateClaim {
        volume: String,
        claim: String,
        body: Value,
    },
    /// A claim of that name exists and the pod does not own it.
    Conflict {
        volume: String,
        reason: String,
    },
}

/// Whether a pod may need claims created for it.
pub(super) fn needs_claims(pod: &Pod) -> bool {
    !pod.metadata.is_deleting() && pod.spec.volumes.iter().any(|volume| volume.ephemeral.is_some())
}

/// The next step for a pod: its volumes in order, up to the first conflict.
pub(super) fn decide(pod: &Pod, claim: impl Fn(&str) -> Option<Arc<PersistentVolumeClaim>>) -> Step {
    if pod.metadata.is_deleting() {
        return Step::Idle;
    }
    for volume in &pod.spec.volumes {
        let (Some(ephemeral), Some(name)) = (&volume.ephemeral, pod.claim_name(volume)) else { continue };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        match claim(&name) {
            None => {
                let template = ephemeral.volume_claim_template.as_ref();
                let body = claim_body(pod, &name, template.unwrap_or(&Value::Null));
                return Step::CreateClaim { volume: volume.name.clone(), claim: name, body };
            }
            Some(claim) if pod.owns(&claim.metadata) => {}
            Some(_) => {
                let pod = &pod.metadata.name;
                let reason = format!(
                    "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
                );
                return Step::Conflict { volume: volume.name.clone(), reason };
            }
        }
    }
    Step::Idle
}

fn claim_body(pod: &Pod, name: &str, template: &Value) -> Value {
    let mut metadata = json!({
        "name": name,
        "ownerReferences": [{
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.metadata.name,
            "uid": pod.metadata.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }],
    });
    for field in ["annotations", "labels"] {
        if let Some(value) = template.pointer(&format!("/metadata/{field}")) {
            metadata[field] = value.clone();
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": template.get("spec").cloned().unwrap_or_default(),
    })
}

/// Whether a claim that conflicted with a pod may no longer do so.
pub(super) fn ownership_changed(change: &Change<PersistentVolumeClaim>) -> bool {
    let Some(new) = &change.new else { return true };
    let other = |old: &Arc<PersistentVolumeClaim>| {
        let (old, new) = (&old.metadata, &new.metadata);
        old.uid != new.uid || old.owner_references != new.owner_references
    };
    change.old.as_ref().is_some_and(other)
}

#[cfg(test)]
mod tests {
    use wharf_model::Key;

    use super::*;

    /// A pod with a conflict is enqueued again when the claim's owner changes.
    #[test]
    fn ownership_change_enqueues_pod() {
        let of = |uid: &str, owner: &str| {
            let owners = json!([{"kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
            let metadata = json!({"name": "p-one", "namespace": "ns", "uid": uid, "ownerReferences": owners});
            Some(Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap()))
        };
        for (rule, old, new, changes) in [
            ("new", None, of("c", "u"), false),
            ("deleted", of("c", "x"), None, true),
            ("another owner", of("c", "x"), of("c", "u"), true),
            ("another claim of that name", of("c", "u"), of("d", "u"), true),
            ("unchanged", of("c", "u"), of("c", "u"), false),
        ] {
            let change = Change { key: Key::namespaced("ns", "p-one"), old, new };
            assert_eq!(ownership_changed(&change), changes, "{rule}");
        }
    }

    fn pod(changes: Value) -> Pod {
        let template = json!({
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "name": "ignored"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"volumes": [
                {"name": "plain", "emptyDir": {}},
                {"name": "named", "persistentVolumeClaim": {"claimName": "x"}},
                {"name": "one", "ephemeral": {"volumeClaimTemplate": template}},
                {"name": "two", "ephemeral": {"volumeClaimTemplate": template}},
            ]},
        });
        for (field, value) in changes.as_object().unwrap() {
            pod["metadata"][field] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn claims<'a>(
        owners: &'a [(&'a str, &'a str)],
    ) -> impl Fn(&str) -> Option<Arc<PersistentVolumeClaim>> + 'a {
        |name| {
            let (_, owner) = owners.iter().find(|(claim, _)| *claim == name)?;
            let claim = json!({"metadata": {
                "name": name, "namespace": "ns",
                "ownerReferences": [{"kind": "Pod", "name": "p", "uid": owner, "controller": true}],
            }});
            Some(Arc::new(serde_json::from_value(claim).unwrap()))
        }
    }

    /// kubernetes.md 1.2 "Ephemeral claim", "Ephemeral name conflict"; upstream's create, pod-deleted, no-volumes,
    /// wrong-PVC-owner.
    #[test]
    fn missing_claims_are_created_and_conflicts_reported() {
        let description = |step: Step| match step {
            Step::Idle => "idle".to_owned(),
            Step::CreateClaim { volume, claim, .. } => format!("create {claim} for {volume}"),
            Step::Conflict { volume, reason } => format!("conflict {volume}: {reason}"),
        };
        let not_owner = "PVC ns/p-one was not created for pod ns/p (pod is not owner)";
        for (owners, expected) in [
            (&[][..], "create p-one for one".to_owned()),
            (&[("p-one", "u")], "create p-two for two".to_owned()),
            (&[("p-one", "u"), ("p-two", "u")], "idle".to_owned()),
            (&[("p-one", "earlier"), ("p-two", "u")], format!("conflict one: {not_owner}")),
        ] {
            assert_eq!(description(decide(&pod(json!({})), claims(owners))), expected, "{owners:?}");
        }
        let deleting = pod(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(decide(&deleting, claims(&[])), Step::Idle);
        assert!(needs_claims(&pod(json!({}))) && !needs_claims(&deleting) && !needs_claims(&Pod::default()));
    }

    /// kubernetes.md 1.2 "Ephemeral claim": its owner, and the fields from the template.
    #[test]
    fn claim_body_has_owner_and_template_fields() {
        let Step::CreateClaim { body, .. } = decide(&pod(json!({})), claims(&[])) else { panic!() };
        assert_eq!(
            body,
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "p-one", "labels": {"a": "b"}, "annotations": {"c": "d"},
                    "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true,
                        "blockOwnerDeletion": true,
                    }],
                },
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            })
        );
    }
}
