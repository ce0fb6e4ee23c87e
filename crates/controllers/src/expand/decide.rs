//! Which claims wait for somebody to expand them.

use std::sync::Arc;

use wharf_cluster::Change;
use wharf_model::claim::ClaimPhase;
use wharf_model::names::annotation;
use wharf_model::volume::ClaimRef;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Quantity};

use crate::binder::migration::driver_of;

/// What to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Tell this.
    pub(super) tell: Option<String>,
    /// Write that this resizer is to do it.
    pub(super) resizer: Option<&'static str>,
}

fn sizes(claim: &PersistentVolumeClaim) -> (Quantity, Quantity) {
    let size = |size: Option<Quantity>| size.unwrap_or(Quantity::ZERO);
    (size(claim.requested()), size(claim.status.capacity.storage))
}

/// Whether a claim is to be looked at: it is bound, and it is new to us, asks for more, or has more.
pub(super) fn grew(change: &Change<PersistentVolumeClaim>) -> bool {
    let Some(new) = change.new.as_deref().filter(|new| new.status.phase == ClaimPhase::Bound) else {
        return false;
    };
    let (asked, has) = sizes(new);
    change.old.as_deref().map(sizes).is_none_or(|(asked_before, had)| asked > asked_before || has > had)
}

/// The claim that a volume is now for, and was not.
pub(super) fn given(change: &Change<PersistentVolume>) -> Option<Key> {
    let claim = |volume: &Arc<PersistentVolume>| volume.spec.claim_ref.as_ref().map(ClaimRef::key);
    let was = change.old.as_ref().and_then(claim);
    change.new.as_ref().and_then(claim).filter(|new| was.as_ref() != Some(new))
}

/// What to do for a claim and the volume that it names.
pub(super) fn decide(claim: &PersistentVolumeClaim, volume: Option<&PersistentVolume>) -> Step {
    let bound = |volume: &&PersistentVolume| volume.is_bound_to(&claim.metadata);
    let Some(volume) = volume.filter(bound).filter(|_| claim.status.phase == ClaimPhase::Bound) else {
        return Step::default();
    };
    let (asked, has) = sizes(claim);
    let on_node = volume.metadata.annotations.contains_key(annotation::PRE_RESIZE_CAPACITY);
    if asked <= has && !on_node {
        return Step::default();
    }
    let plugin = volume.metadata.annotation(annotation::PROVISIONED_BY).filter(|_| volume.spec.csi.is_none());
    match plugin.and_then(|plugin| driver_of(plugin).map(|driver| (plugin, driver))) {
        Some((plugin, driver)) => {
            let known = claim.metadata.annotation(annotation::STORAGE_RESIZER) == Some(driver);
            Step {
                tell: Some(format!(
                    "CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc"
                )),
                resizer: (!known).then_some(driver),
            }
        }
        None => Step {
            tell: Some("waiting for an external controller to expand this PVC".to_owned()),
            resizer: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(asked: &str, has: &str, phase: &str, annotations: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "annotations": annotations},
            "spec": {"volumeName": "v", "resources": {"requests": {"storage": asked}}},
            "status": {"phase": phase, "capacity": {"storage": has}},
        }))
        .unwrap()
    }

    fn volume(uid: &str, csi: bool, annotations: Value) -> PersistentVolume {
        let csi = csi.then(|| json!({"driver": "d.test", "volumeHandle": "h"}));
        serde_json::from_value(json!({
            "metadata": {"name": "v", "annotations": annotations},
            "spec": {"csi": csi, "claimRef": {"namespace": "ns", "name": "c", "uid": uid}},
        }))
        .unwrap()
    }

    /// kubernetes.md 1.4 "External".
    #[test]
    fn who_waits() {
        let none = || json!({});
        let waiting = "waiting for an external controller to expand this PVC";
        let migrated =
            "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc";
        let ebs = || json!({"pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs"});
        let told = || json!({"volume.kubernetes.io/storage-resizer": "ebs.csi.aws.com"});
        let driver = Some("ebs.csi.aws.com");
        for (rule, claim, volume, tell, resizer) in [
            ("enough", claim("1Gi", "1Gi", "Bound", none()), Some(volume("u", true, none())), None, None),
            (
                "more",
                claim("2Gi", "1Gi", "Bound", none()),
                Some(volume("u", true, none())),
                Some(waiting),
                None,
            ),
            (
                "the node has its part to do",
                claim("1Gi", "1Gi", "Bound", none()),
                Some(volume("u", true, json!({"volume.alpha.kubernetes.io/pre-resize-capacity": "1Gi"}))),
                Some(waiting),
                None,
            ),
            (
                "not CSI",
                claim("2Gi", "1Gi", "Bound", none()),
                Some(volume("u", false, none())),
                Some(waiting),
                None,
            ),
            (
                "migrated",
                claim("2Gi", "1Gi", "Bound", none()),
                Some(volume("u", false, ebs())),
                Some(migrated),
                driver,
            ),
            (
                "migrated, and said so",
                claim("2Gi", "1Gi", "Bound", told()),
                Some(volume("u", false, ebs())),
                Some(migrated),
                None,
            ),
            ("no volume", claim("2Gi", "1Gi", "Bound", none()), None, None, None),
            ("another's", claim("2Gi", "1Gi", "Bound", none()), Some(volume("x", true, none())), None, None),
            ("not bound", claim("2Gi", "1Gi", "Lost", none()), Some(volume("u", true, none())), None, None),
        ] {
            let step = Step { tell: tell.map(str::to_owned), resizer };
            assert_eq!(decide(&claim, volume.as_ref()), step, "{rule}");
        }
    }

    /// A claim may be seen to be bound, and to ask for more, before its volume is seen at all.
    #[test]
    fn volumes_that_come_later() {
        let of = |name: &str| {
            let reference = json!({"namespace": "ns", "name": name, "uid": "u"});
            Some(Arc::new(serde_json::from_value(json!({"spec": {"claimRef": reference}})).unwrap()))
        };
        let free = || Some(Arc::new(PersistentVolume::default()));
        for (rule, old, new, claim) in [
            ("new", None, of("c"), Some("c")),
            ("new, and nobody's", None, free(), None),
            ("given", free(), of("c"), Some("c")),
            ("given to another", of("c"), of("d"), Some("d")),
            ("the same", of("c"), of("c"), None),
            ("taken back", of("c"), free(), None),
            ("gone", of("c"), None, None),
        ] {
            let change = Change { key: Key::cluster("v"), old, new };
            assert_eq!(given(&change), claim.map(|name| Key::namespaced("ns", name)), "{rule}");
        }
    }

    /// Upstream looks when a bound claim is new to it, asks for more, or has grown.
    #[test]
    fn when_to_look() {
        let of = |asked: &str, has: &str| Some(Arc::new(claim(asked, has, "Bound", json!({}))));
        for (old, new, expected) in [
            (None, of("1Gi", "1Gi"), true),
            (of("1Gi", "1Gi"), of("2Gi", "1Gi"), true),
            (of("2Gi", "1Gi"), of("2Gi", "2Gi"), true),
            (of("2Gi", "1Gi"), of("2Gi", "1Gi"), false),
            (of("3Gi", "1Gi"), of("2Gi", "1Gi"), false),
            (None, Some(Arc::new(claim("2Gi", "1Gi", "Pending", json!({})))), false),
            (of("1Gi", "1Gi"), None, false),
        ] {
            let change = Change { key: Key::namespaced("ns", "c"), old, new };
            assert_eq!(grew(&change), expected, "{change:?}");
        }
    }
}
