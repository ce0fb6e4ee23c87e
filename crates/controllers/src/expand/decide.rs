//! The rules: which claims need an expansion, and which resizer performs it.

use std::sync::Arc;

use wharf_cluster::Change;
use wharf_model::claim::ClaimPhase;
use wharf_model::names::annotation;
use wharf_model::volume::ClaimRef;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Quantity};

use crate::binder::migration::csi_driver_for;

/// What to do for a claim.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// The message of the event to record.
    pub(super) event: Option<String>,
    /// The resizer to annotate the claim with.
    pub(super) resizer: Option<&'static str>,
}

/// The requested size and the capacity.
fn sizes(claim: &PersistentVolumeClaim) -> (Quantity, Quantity) {
    let size = |size: Option<Quantity>| size.unwrap_or(Quantity::ZERO);
    (size(claim.requested_storage()), size(claim.status.capacity.storage))
}

/// Whether a changed claim has to be reconciled: it is bound, and it is new, requests more, or has grown.
pub(super) fn needs_check(change: &Change<PersistentVolumeClaim>) -> bool {
    let Some(new) = change.new.as_deref().filter(|new| new.status.phase == ClaimPhase::Bound) else {
        return false;
    };
    let (requested, capacity) = sizes(new);
    change
        .old
        .as_deref()
        .map(sizes)
        .is_none_or(|(old_requested, old_capacity)| requested > old_requested || capacity > old_capacity)
}

/// Whether a claim requests more than its capacity.
pub(super) fn waits_for_expansion(claim: &PersistentVolumeClaim) -> bool {
    let (requested, capacity) = sizes(claim);
    claim.status.phase == ClaimPhase::Bound && requested > capacity
}

/// The claim that a volume references now and did not before.
pub(super) fn newly_bound_claim(change: &Change<PersistentVolume>) -> Option<Key> {
    let claim = |volume: &Arc<PersistentVolume>| volume.spec.claim_ref.as_ref().map(ClaimRef::key);
    let old = change.old.as_ref().and_then(claim);
    change.new.as_ref().and_then(claim).filter(|new| old.as_ref() != Some(new))
}

/// The step for a claim and the volume it names.
pub(super) fn decide(claim: &PersistentVolumeClaim, volume: Option<&PersistentVolume>) -> Step {
    let bound = |volume: &&PersistentVolume| volume.is_bound_to(&claim.metadata);
    let Some(volume) = volume.filter(bound).filter(|_| claim.status.phase == ClaimPhase::Bound) else {
        return Step::default();
    };
    let (requested, capacity) = sizes(claim);
    let node_expansion_pending = volume.metadata.annotations.contains_key(annotation::PRE_RESIZE_CAPACITY);
    if requested <= capacity && !node_expansion_pending {
        return Step::default();
    }
    let plugin = volume.metadata.annotation(annotation::PROVISIONED_BY).filter(|_| volume.spec.csi.is_none());
    match plugin.and_then(|plugin| csi_driver_for(plugin).map(|driver| (plugin, driver))) {
        Some((plugin, driver)) => {
            let annotated = claim.metadata.annotation(annotation::STORAGE_RESIZER) == Some(driver);
            Step {
                event: Some(format!(
                    "CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc"
                )),
                resizer: (!annotated).then_some(driver),
            }
        }
        None => Step {
            event: Some("waiting for an external controller to expand this PVC".to_owned()),
            resizer: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(requested: &str, capacity: &str, phase: &str, annotations: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "annotations": annotations},
            "spec": {"volumeName": "v", "resources": {"requests": {"storage": requested}}},
            "status": {"phase": phase, "capacity": {"storage": capacity}},
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

    /// kubernetes.md 1.4 "External resizer".
    #[test]
    fn expansion_records_event_and_annotates_resizer() {
        let none = || json!({});
        let waiting = "waiting for an external controller to expand this PVC";
        let migrated =
            "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc";
        let ebs = || json!({"pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs"});
        let annotated = || json!({"volume.kubernetes.io/storage-resizer": "ebs.csi.aws.com"});
        let driver = Some("ebs.csi.aws.com");
        for (case, claim, volume, event, resizer) in [
            (
                "large enough",
                claim("1Gi", "1Gi", "Bound", none()),
                Some(volume("u", true, none())),
                None,
                None,
            ),
            (
                "requests more",
                claim("2Gi", "1Gi", "Bound", none()),
                Some(volume("u", true, none())),
                Some(waiting),
                None,
            ),
            (
                "node expansion pending",
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
                "migrated, and annotated",
                claim("2Gi", "1Gi", "Bound", annotated()),
                Some(volume("u", false, ebs())),
                Some(migrated),
                None,
            ),
            ("no volume", claim("2Gi", "1Gi", "Bound", none()), None, None, None),
            (
                "volume of another claim",
                claim("2Gi", "1Gi", "Bound", none()),
                Some(volume("x", true, none())),
                None,
                None,
            ),
            ("not bound", claim("2Gi", "1Gi", "Lost", none()), Some(volume("u", true, none())), None, None),
        ] {
            let step = Step { event: event.map(str::to_owned), resizer };
            assert_eq!(decide(&claim, volume.as_ref()), step, "{case}");
        }
    }

    /// The watch may report a bound claim that requests more before it reports its volume.
    #[test]
    fn late_volume_enqueues_its_claim() {
        let volume_of = |name: &str| {
            let reference = json!({"namespace": "ns", "name": name, "uid": "u"});
            Some(Arc::new(serde_json::from_value(json!({"spec": {"claimRef": reference}})).unwrap()))
        };
        let free = || Some(Arc::new(PersistentVolume::default()));
        for (case, old, new, claim) in [
            ("new", None, volume_of("c"), Some("c")),
            ("new, without claimRef", None, free(), None),
            ("claimRef set", free(), volume_of("c"), Some("c")),
            ("claimRef of another claim", volume_of("c"), volume_of("d"), Some("d")),
            ("unchanged", volume_of("c"), volume_of("c"), None),
            ("claimRef removed", volume_of("c"), free(), None),
            ("deleted", volume_of("c"), None, None),
        ] {
            let change = Change { key: Key::cluster("v"), old, new };
            assert_eq!(newly_bound_claim(&change), claim.map(|name| Key::namespaced("ns", name)), "{case}");
        }
    }

    /// As upstream, a bound claim is checked when it is new, requests more, or has grown.
    #[test]
    fn bound_claim_is_checked_when_it_grows() {
        let bound =
            |requested: &str, capacity: &str| Some(Arc::new(claim(requested, capacity, "Bound", json!({}))));
        for (old, new, expected) in [
            (None, bound("1Gi", "1Gi"), true),
            (bound("1Gi", "1Gi"), bound("2Gi", "1Gi"), true),
            (bound("2Gi", "1Gi"), bound("2Gi", "2Gi"), true),
            (bound("2Gi", "1Gi"), bound("2Gi", "1Gi"), false),
            (bound("3Gi", "1Gi"), bound("2Gi", "1Gi"), false),
            (None, Some(Arc::new(claim("2Gi", "1Gi", "Pending", json!({})))), false),
            (bound("1Gi", "1Gi"), None, false),
        ] {
            let change = Change { key: Key::namespaced("ns", "c"), old, new };
            assert_eq!(needs_check(&change), expected, "{change:?}");
        }
    }
}
