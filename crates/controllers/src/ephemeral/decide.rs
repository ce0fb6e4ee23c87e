//! Which claim a pod lacks.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_cluster::Change;
use wharf_model::PersistentVolumeClaim;
use wharf_model::whole::Pod;

use crate::protection::is_made_for;

/// What to do next.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing.
    Rest,
    /// Make this claim.
    Make { volume: String, claim: String, body: Value },
    /// The claim is not the pod's.
    Refuse { volume: String, why: String },
}

/// Whether a pod may want something made for it.
pub(super) fn asks(pod: &Pod) -> bool {
    !pod.metadata.is_deleting() && pod.spec.volumes.iter().any(|volume| volume.ephemeral.is_some())
}

/// The next step for a pod: its volumes in their order, and nothing after one that is refused.
pub(super) fn decide(pod: &Pod, claim: impl Fn(&str) -> Option<Arc<PersistentVolumeClaim>>) -> Step {
    if pod.metadata.is_deleting() {
        return Step::Rest;
    }
    for volume in &pod.spec.volumes {
        let (Some(ephemeral), Some(name)) = (&volume.ephemeral, pod.claim_of(volume)) else { continue };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        match claim(&name) {
            None => {
                let template = ephemeral.volume_claim_template.as_ref();
                let body = body(pod, &name, template.unwrap_or(&Value::Null));
                return Step::Make { volume: volume.name.clone(), claim: name, body };
            }
            Some(claim) if is_made_for(&claim, pod) => {}
            Some(_) => {
                let pod = &pod.metadata.name;
                let why = format!(
                    "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
                );
                return Step::Refuse { volume: volume.name.clone(), why };
            }
        }
    }
    Step::Rest
}

fn body(pod: &Pod, name: &str, template: &Value) -> Value {
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

/// Whether a claim that stood in a pod's way may do so no longer.
pub(super) fn changes_hands(change: &Change<PersistentVolumeClaim>) -> bool {
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

    /// A pod that was refused is looked at again when the claim in its way is another's no longer.
    #[test]
    fn whose_claims() {
        let of = |uid: &str, owner: &str| {
            let owners = json!([{"kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
            let metadata = json!({"name": "p-one", "namespace": "ns", "uid": uid, "ownerReferences": owners});
            Some(Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap()))
        };
        for (rule, old, new, changes) in [
            ("new", None, of("c", "u"), false),
            ("gone", of("c", "x"), None, true),
            ("given to another", of("c", "x"), of("c", "u"), true),
            ("another of its name", of("c", "u"), of("d", "u"), true),
            ("the same", of("c", "u"), of("c", "u"), false),
        ] {
            let change = Change { key: Key::namespaced("ns", "p-one"), old, new };
            assert_eq!(changes_hands(&change), changes, "{rule}");
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

    /// kubernetes.md 1.2 "Ephemeral claim", "Ephemeral namesake"; upstream's create, pod-deleted, no-volumes,
    /// wrong-PVC-owner.
    #[test]
    fn which_claim_is_made() {
        let made = |step: Step| match step {
            Step::Rest => "rest".to_owned(),
            Step::Make { volume, claim, .. } => format!("make {claim} for {volume}"),
            Step::Refuse { volume, why } => format!("refuse {volume}: {why}"),
        };
        let not_ours = "PVC ns/p-one was not created for pod ns/p (pod is not owner)";
        for (owners, expected) in [
            (&[][..], "make p-one for one".to_owned()),
            (&[("p-one", "u")], "make p-two for two".to_owned()),
            (&[("p-one", "u"), ("p-two", "u")], "rest".to_owned()),
            (&[("p-one", "earlier"), ("p-two", "u")], format!("refuse one: {not_ours}")),
        ] {
            assert_eq!(made(decide(&pod(json!({})), claims(owners))), expected, "{owners:?}");
        }
        let going = pod(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(decide(&going, claims(&[])), Step::Rest);
        assert!(asks(&pod(json!({}))) && !asks(&going) && !asks(&Pod::default()));
    }

    /// kubernetes.md 1.2 "Ephemeral claim": its owner, and what it has from the template.
    #[test]
    fn the_claim() {
        let Step::Make { body, .. } = decide(&pod(json!({})), claims(&[])) else { panic!() };
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
