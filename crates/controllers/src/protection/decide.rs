//! What is in use, and what its finalizer needs.

use std::collections::BTreeSet;

use wharf_model::names::finalizer;
use wharf_model::volume::VolumePhase;
use wharf_model::whole::Pod;
use wharf_model::{Meta, PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass};

/// What a finalizer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It is there, or not our business any more.
    Nothing,
    /// To be added.
    Add,
    /// To be removed, if it is proven that nobody uses the object.
    MayGo,
}

fn need(meta: &Meta, finalizer: &str, used: bool) -> Need {
    match (meta.is_deleting(), meta.has_finalizer(finalizer)) {
        (true, true) if !used => Need::MayGo,
        (false, false) => Need::Add,
        _ => Need::Nothing,
    }
}

/// For a claim. Who uses it is asked once it is to go.
pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> Need {
    need(&claim.metadata, finalizer::CLAIM_PROTECTION, false)
}

/// For a volume: it is in use while it is bound, and nothing more is asked.
pub(super) fn of_volume(volume: &PersistentVolume) -> Need {
    need(&volume.metadata, finalizer::VOLUME_PROTECTION, volume.status.phase == VolumePhase::Bound)
}

/// For a mutable class. Who names it is asked once it is to go.
pub(super) fn of_class(class: &VolumeAttributesClass) -> Need {
    need(&class.metadata, finalizer::ATTRIBUTES_CLASS_PROTECTION, false)
}

/// Whether a pod uses a claim: it has a node, and names the claim. One that has ended still does, since its node may
/// not be done with the volume. A claim that was made for the pod is let go as soon as the node said that all is over.
pub fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod.spec.node_name.is_empty() || pod.metadata.namespace != claim.metadata.namespace {
        return false;
    }
    pod.spec.volumes.iter().any(|volume| match &volume.persistent_volume_claim {
        Some(named) => named.claim_name == claim.metadata.name,
        None => {
            !is_over(pod)
                && pod.claim_of(volume).is_some_and(|name| name == claim.metadata.name)
                && is_made_for(claim, pod)
        }
    })
}

/// Whether a pod is being deleted and its node has nothing more to do for it.
pub(super) fn is_over(pod: &Pod) -> bool {
    pod.metadata.is_deleting() && pod.metadata.deletion_grace_period_seconds == Some(0)
}

/// Whether a claim was made for a pod: the pod is its controller.
pub(crate) fn is_made_for(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = &claim.metadata.owner_references;
    let controller = owners.iter().find(|owner| owner.controller == Some(true));
    claim.metadata.namespace == pod.metadata.namespace
        && controller.is_some_and(|owner| owner.uid == pod.metadata.uid)
}

/// The mutable classes that a claim names: the one it wants, the one in force, the one on the way.
pub(super) fn classes_of_claim(claim: &PersistentVolumeClaim) -> BTreeSet<String> {
    let status = &claim.status;
    let target =
        status.modify_volume_status.as_ref().map(|status| &status.target_volume_attributes_class_name);
    let wanted = claim.spec.volume_attributes_class_name.as_ref();
    let current = status.current_volume_attributes_class_name.as_ref();
    [wanted, current, target].into_iter().flatten().filter(|name| !name.is_empty()).cloned().collect()
}

/// The mutable class that a volume names.
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
    fn needs() {
        let (pvc, pv, vac) =
            ("kubernetes.io/pvc-protection", "kubernetes.io/pv-protection", "kubernetes.io/vac-protection");
        let bound = json!({"status": {"phase": "Bound"}});
        for (deleting, ours, need, of_bound) in [
            (false, false, Need::Add, Need::Add),
            (false, true, Need::Nothing, Need::Nothing),
            (true, true, Need::MayGo, Need::Nothing),
            (true, false, Need::Nothing, Need::Nothing),
        ] {
            let with = |finalizer| if ours { vec!["other", finalizer] } else { vec!["other"] };
            let row = format!("deleting {deleting}, finalizer {ours}");
            assert_eq!(of_claim(&object(deleting, &with(pvc), json!({}))), need, "{row}");
            assert_eq!(of_class(&object(deleting, &with(vac), json!({}))), need, "{row}");
            for phase in ["Pending", "Available", "Released", "Failed"] {
                let status = json!({"status": {"phase": phase}});
                assert_eq!(of_volume(&object(deleting, &with(pv), status)), need, "{row}, {phase}");
            }
            assert_eq!(of_volume(&object(deleting, &with(pv), bound.clone())), of_bound, "{row}, bound");
        }
    }

    /// kubernetes.md 1.2 "Claim in use": which pods use a claim.
    #[test]
    fn users() {
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
        let over = json!({"metadata.deletionTimestamp": DELETED, "metadata.deletionGracePeriodSeconds": 0});
        for (rule, claim, changes, expected) in [
            ("names it", named.clone(), json!({}), true),
            ("has ended", named.clone(), json!({"status.phase": "Succeeded"}), true),
            ("is being deleted and over", named.clone(), over.clone(), true),
            ("has no node", named.clone(), json!({"spec.nodeName": ""}), false),
            ("in another namespace", named.clone(), json!({"metadata.namespace": "other"}), false),
            (
                "names another",
                named,
                json!({"spec.volumes": [{"name": "b", "persistentVolumeClaim": {"claimName": "x"}}]}),
                false,
            ),
            ("it was made for it", owner("p", true), json!({}), true),
            ("made for it, ended", owner("p", true), json!({"status.phase": "Failed"}), true),
            ("made for it, over", owner("p", true), over, false),
            (
                "made for it, still stopping",
                owner("p", true),
                json!({"metadata.deletionTimestamp": DELETED, "metadata.deletionGracePeriodSeconds": 30}),
                true,
            ),
            ("made for a namesake", owner("earlier", true), json!({}), false),
            ("owned, not controlled", owner("p", false), json!({}), false),
        ] {
            let claim = serde_json::from_value(claim).unwrap();
            let pod = serde_json::from_value(pod(changes)).unwrap();
            assert_eq!(uses(&pod, &claim), expected, "{rule}");
        }
    }

    /// kubernetes.md 1.2 "Attributes class in use": all three places of a claim, and the volume's.
    #[test]
    fn classes() {
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
