//! The rules: which objects are in use, and what to do with their finalizers.

use std::collections::BTreeSet;

use wharf_model::names::finalizer;
use wharf_model::volume::VolumePhase;
use wharf_model::{Meta, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass};

/// What to do with a finalizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinalizerAction {
    /// Nothing: it is present, or no longer needed.
    Keep,
    /// Add it.
    Add,
    /// Remove it if the object is proven unused.
    RemoveIfUnused,
}

fn finalizer_action(meta: &Meta, finalizer: &str, used: bool) -> FinalizerAction {
    match (meta.is_deleting(), meta.has_finalizer(finalizer)) {
        (true, true) if !used => FinalizerAction::RemoveIfUnused,
        (false, false) => FinalizerAction::Add,
        _ => FinalizerAction::Keep,
    }
}

/// For a claim. Its users are determined once it is being deleted.
pub(super) fn claim_action(claim: &PersistentVolumeClaim) -> FinalizerAction {
    finalizer_action(&claim.metadata, finalizer::CLAIM_PROTECTION, false)
}

/// For a volume: it is in use while it is bound; nothing else counts.
pub(super) fn volume_action(volume: &PersistentVolume) -> FinalizerAction {
    finalizer_action(
        &volume.metadata,
        finalizer::VOLUME_PROTECTION,
        volume.status.phase == VolumePhase::Bound,
    )
}

/// For a VolumeAttributesClass. Its users are determined once it is being deleted.
pub(super) fn class_action(class: &VolumeAttributesClass) -> FinalizerAction {
    finalizer_action(&class.metadata, finalizer::ATTRIBUTES_CLASS_PROTECTION, false)
}

/// Whether a pod uses a claim: it has a node, and names the claim. A terminated pod still does, since its node may not
/// have unmounted the volume. A claim that was created for the pod is unused as soon as the node has reported that the
/// pod is stopped.
pub fn pod_uses_claim(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod.node_name.is_empty() || pod.metadata.namespace != claim.metadata.namespace {
        return false;
    }
    pod.spec.volumes.iter().any(|volume| match &volume.persistent_volume_claim {
        Some(named) => named.claim_name == claim.metadata.name,
        None => {
            !is_stopped(pod)
                && pod.claim_name(volume).is_some_and(|name| name == claim.metadata.name)
                && pod.owns(&claim.metadata)
        }
    })
}

/// Whether a pod is being deleted and its node has stopped it.
pub(super) fn is_stopped(pod: &Pod) -> bool {
    pod.metadata.is_deleting() && pod.metadata.deletion_grace_period_seconds == Some(0)
}

/// The VolumeAttributesClasses that a claim names: the requested, the current and the target one.
pub(super) fn classes_of_claim(claim: &PersistentVolumeClaim) -> BTreeSet<String> {
    let status = &claim.status;
    let target =
        status.modify_volume_status.as_ref().map(|status| &status.target_volume_attributes_class_name);
    let wanted = claim.spec.volume_attributes_class_name.as_ref();
    let current = status.current_volume_attributes_class_name.as_ref();
    [wanted, current, target].into_iter().flatten().filter(|name| !name.is_empty()).cloned().collect()
}

/// The VolumeAttributesClass that a volume names.
pub(super) fn classes_of_volume(volume: &PersistentVolume) -> BTreeSet<String> {
    let name = volume.spec.volume_attributes_class_name.as_ref();
    name.filter(|name| !name.is_empty()).cloned().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DELETED: &str = "2026-01-01T00:00:00Z";

    fn object<T: serde::de::DeserializeOwned>(deleting: bool, finalizers: &[&str], rest: Value) -> T {
        let mut object = rest;
        object["metadata"] = json!({"name": "o", "namespace": "ns", "uid": "u", "finalizers": finalizers});
        if deleting {
            object["metadata"]["deletionTimestamp"] = json!(DELETED);
        }
        serde_json::from_value(object).unwrap()
    }

    /// kubernetes.md 1.2 "Finalizers", "Volume in use".
    #[test]
    fn finalizer_action_follows_deletion_and_use() {
        let (pvc, pv, vac) =
            ("kubernetes.io/pvc-protection", "kubernetes.io/pv-protection", "kubernetes.io/vac-protection");
        let bound = json!({"status": {"phase": "Bound"}});
        for (deleting, present, action, of_bound) in [
            (false, false, FinalizerAction::Add, FinalizerAction::Add),
            (false, true, FinalizerAction::Keep, FinalizerAction::Keep),
            (true, true, FinalizerAction::RemoveIfUnused, FinalizerAction::Keep),
            (true, false, FinalizerAction::Keep, FinalizerAction::Keep),
        ] {
            let with = |finalizer| if present { vec!["other", finalizer] } else { vec!["other"] };
            let row = format!("deleting {deleting}, finalizer {present}");
            assert_eq!(claim_action(&object(deleting, &with(pvc), json!({}))), action, "{row}");
            assert_eq!(class_action(&object(deleting, &with(vac), json!({}))), action, "{row}");
            for phase in ["Pending", "Available", "Released", "Failed"] {
                let status = json!({"status": {"phase": phase}});
                assert_eq!(volume_action(&object(deleting, &with(pv), status)), action, "{row}, {phase}");
            }
            assert_eq!(volume_action(&object(deleting, &with(pv), bound.clone())), of_bound, "{row}, bound");
        }
    }

    /// kubernetes.md 1.2 "Claim in use": which pods use a claim.
    #[test]
    fn scheduled_pods_that_name_a_claim_use_it() {
        let owner = |uid: &str, controller: bool| {
            json!({"metadata": {
                "name": "pod-scratch", "namespace": "ns",
                "ownerReferences": [{"kind": "Pod", "name": "pod", "uid": uid, "controller": controller}],
            }})
        };
        let named = json!({"metadata": {"name": "data", "namespace": "ns"}});
        let pod = |changes: Value| {
            let mut pod = json!({
                "metadata": {"name": "pod", "namespace": "ns", "uid": "p"},
                "spec": {"nodeName": "n", "volumes": [
                    {"name": "a", "emptyDir": {}},
                    {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "scratch", "ephemeral": {}},
                ]},
                "status": {"phase": "Running"},
            });
            for (path, value) in changes.as_object().unwrap() {
                let (part, field) = path.split_once('.').unwrap();
                pod[part][field] = value.clone();
            }
            pod
        };
        let stopped =
            json!({"metadata.deletionTimestamp": DELETED, "metadata.deletionGracePeriodSeconds": 0});
        for (rule, claim, changes, expected) in [
            ("names it", named.clone(), json!({}), true),
            ("terminated", named.clone(), json!({"status.phase": "Succeeded"}), true),
            ("deleted and stopped", named.clone(), stopped.clone(), true),
            ("has no node", named.clone(), json!({"spec.nodeName": ""}), false),
            ("in another namespace", named.clone(), json!({"metadata.namespace": "other"}), false),
            (
                "names another",
                named,
                json!({"spec.volumes": [{"name": "b", "persistentVolumeClaim": {"claimName": "x"}}]}),
                false,
            ),
            ("created for the pod", owner("p", true), json!({}), true),
            ("created for the pod, terminated", owner("p", true), json!({"status.phase": "Failed"}), true),
            ("created for the pod, stopped", owner("p", true), stopped, false),
            (
                "created for the pod, still stopping",
                owner("p", true),
                json!({"metadata.deletionTimestamp": DELETED, "metadata.deletionGracePeriodSeconds": 30}),
                true,
            ),
            ("created for another pod of that name", owner("earlier", true), json!({}), false),
            ("owned, not controlled", owner("p", false), json!({}), false),
        ] {
            let claim = serde_json::from_value(claim).unwrap();
            let pod = serde_json::from_value(pod(changes)).unwrap();
            assert_eq!(pod_uses_claim(&pod, &claim), expected, "{rule}");
        }
    }

    /// kubernetes.md 1.2 "Attributes class in use": all three fields of a claim, and that of a volume.
    #[test]
    fn attributes_classes_of_claims_and_volumes() {
        for (claim, expected) in [
            (json!({}), &[][..]),
            (json!({"spec": {"volumeAttributesClassName": ""}}), &[]),
            (json!({"spec": {"volumeAttributesClassName": "a"}}), &["a"]),
            (
                json!({
                    "spec": {"volumeAttributesClassName": "a"},
                    "status": {
                        "currentVolumeAttributesClassName": "b",
                        "modifyVolumeStatus": {"targetVolumeAttributesClassName": "c", "status": "InProgress"},
                    },
                }),
                &["a", "b", "c"],
            ),
            (
                json!({
                    "spec": {"volumeAttributesClassName": "a"},
                    "status": {"currentVolumeAttributesClassName": "a"},
                }),
                &["a"],
            ),
        ] {
            let row = claim.to_string();
            let classes = classes_of_claim(&serde_json::from_value(claim).unwrap());
            assert_eq!(classes.into_iter().collect::<Vec<_>>(), expected, "{row}");
        }
        let volume = json!({"spec": {"volumeAttributesClassName": "a"}});
        assert_eq!(classes_of_volume(&serde_json::from_value(volume).unwrap()).len(), 1);
        assert!(classes_of_volume(&PersistentVolume::default()).is_empty());
    }
}
