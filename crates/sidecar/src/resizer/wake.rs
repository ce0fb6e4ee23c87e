//! Which changes trigger a reconcile of a claim. Our own error reports do not. An unnecessary reconcile costs one
//! decision only: backoffs are stored with their request, not in the queue.

use wharf_cluster::{Change, Priority};
use wharf_model::claim::ClaimPhase;
use wharf_model::names::{annotation, condition};
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass};

use wharf_cluster::work::EnqueueRequest;

/// The index of claims by VolumeAttributesClass.
pub(crate) const BY_ATTRIBUTES_CLASS: &str = "attributes-class";

/// A queue entry for one claim.
pub(crate) fn work_item(key: Key) -> EnqueueRequest<Key> {
    EnqueueRequest { key, priority: Priority::Normal }
}

/// Whether the claim's spec and status require work.
pub(crate) fn needs_work(claim: &PersistentVolumeClaim) -> bool {
    let status = &claim.status;
    let text = |name: &Option<String>| name.clone().unwrap_or_default();
    let bound = status.phase == ClaimPhase::Bound && !claim.spec.volume_name.is_empty();
    bound
        && (claim.requested_storage() > status.capacity.storage
            || status.modify_volume_status.is_some()
            || status.condition(condition::MODIFYING_VOLUME).is_some()
            || text(&claim.spec.volume_attributes_class_name)
                != text(&status.current_volume_attributes_class_name))
}

/// Whether a change of a claim may lead to another decision. `has_state`: the resizer has state for it.
pub(crate) fn claim_needs_reconcile(change: &Change<PersistentVolumeClaim>, has_state: bool) -> bool {
    match (&change.old, &change.new) {
        (_, None) => has_state,
        (None, Some(new)) => needs_work(new),
        (Some(old), Some(new)) => {
            let grown = old.status.capacity != new.status.capacity;
            grown || ((needs_work(new) || has_state) && !is_same(old, new))
        }
    }
}

/// Whether two versions of a claim lead to the same decision. Conditions are for users and decide nothing.
fn is_same(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let resizer = |claim: &PersistentVolumeClaim| {
        claim.metadata.annotation(annotation::STORAGE_RESIZER).map(str::to_owned)
    };
    old.metadata.uid == new.metadata.uid
        && old.requested_storage() == new.requested_storage()
        && old.spec.volume_attributes_class_name == new.spec.volume_attributes_class_name
        && old.spec.volume_name == new.spec.volume_name
        && old.status.phase == new.status.phase
        && old.status.allocated_resources == new.status.allocated_resources
        && old.status.allocated_resource_statuses == new.status.allocated_resource_statuses
        && old.status.modify_volume_status == new.status.modify_volume_status
        && old.status.current_volume_attributes_class_name == new.status.current_volume_attributes_class_name
        && resizer(old) == resizer(new)
}

/// The claim that a change of a volume affects. `needs_work` checks the claim.
pub(crate) fn claim_of_volume(
    change: &Change<PersistentVolume>,
    driver: &str,
    needs_work: impl Fn(&Key) -> bool,
) -> Option<Key> {
    let new = change.new.as_ref()?;
    let key = new.spec.claim_ref.as_ref()?.key();
    if new.spec.csi.is_some() && !new.is_for_driver(driver) {
        return None;
    }
    if let Some(old) = &change.old
        && old.spec == new.spec
        && old.metadata.annotations == new.metadata.annotations
    {
        return None;
    }
    let has_pre_resize_capacity = new.metadata.annotation(annotation::PRE_RESIZE_CAPACITY).is_some();
    (has_pre_resize_capacity || needs_work(&key)).then_some(key)
}

/// The class, if it was created or recreated.
pub(crate) fn added_class(change: &Change<VolumeAttributesClass>) -> Option<&str> {
    let new = change.new.as_ref()?;
    let has_state = change.old.as_ref().is_some_and(|old| old.metadata.uid == new.metadata.uid);
    (!has_state).then_some(new.metadata.name.as_str())
}

/// The classes that a claim names, as index values.
pub(crate) fn classes_of(claim: &PersistentVolumeClaim) -> Vec<String> {
    let requested = claim.spec.volume_attributes_class_name.clone();
    let status = claim.status.modify_volume_status.as_ref();
    let target = status.map(|status| status.target_volume_attributes_class_name.clone());
    let mut names: Vec<String> =
        requested.into_iter().chain(target).filter(|name| !name.is_empty()).collect();
    names.dedup();
    names
}

/// The claims that a pod uses. None once it has terminated.
fn claims_of(pod: &Pod) -> Vec<Key> {
    match pod.has_ended() {
        true => Vec::new(),
        false => pod.claim_keys().collect(),
    }
}

/// The claims that a pod no longer uses.
pub(crate) fn released(change: &Change<Pod>) -> Vec<Key> {
    let now = change.new.as_deref().map(claims_of).unwrap_or_default();
    let before = change.old.as_deref().map(claims_of).unwrap_or_default();
    before.into_iter().filter(|key| !now.contains(key)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use wharf_model::Kind;

    use super::*;

    fn change<K: Kind>(old: Option<Value>, new: Option<Value>) -> Change<K> {
        let decoded = |value: Value| Arc::new(serde_json::from_value::<K>(value).unwrap());
        let (old, new) = (old.map(decoded), new.map(decoded));
        let key = new.as_ref().or(old.as_ref()).unwrap().key();
        Change { key, old, new }
    }

    fn claim(request: &str, status: Value) -> Value {
        let mut status = status;
        status["phase"] = json!("Bound");
        json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u"},
            "spec": {"volumeName": "pv1", "resources": {"requests": {"storage": request}}},
            "status": status,
        })
    }

    /// sidecars.md 1.3 "Trigger": a claim that requests more, less or another class; sidecars.md 3, item 20: not our
    /// own error reports.
    #[test]
    fn claim_is_reconciled_when_decision_may_change() {
        let has = || json!({"capacity": {"storage": "5Gi"}});
        let content = || claim("5Gi", has());
        let expanding = || claim("10Gi", has());
        let mut with_condition = expanding();
        with_condition["status"]["conditions"] = json!([{"type": "ControllerResizeError", "status": "True"}]);
        let mut labelled = expanding();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        let mut started = expanding();
        started["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizeInfeasible"});
        let mut gold = content();
        gold["spec"]["volumeAttributesClassName"] = json!("gold");
        let mut unbound = expanding();
        unbound["status"]["phase"] = json!("Pending");
        let mut migrated = expanding();
        migrated["metadata"]["annotations"] = json!({annotation::STORAGE_RESIZER: "d"});
        for (old, new, has_state, expected) in [
            (None, Some(content()), false, false),
            (None, Some(expanding()), false, true),
            (None, Some(unbound.clone()), false, false),
            (Some(unbound), Some(expanding()), false, true),
            (Some(content()), Some(expanding()), false, true),
            (Some(expanding()), Some(claim("8Gi", has())), false, true),
            (Some(expanding()), Some(content()), false, false),
            (Some(expanding()), Some(content()), true, true),
            (Some(expanding()), Some(claim("10Gi", json!({"capacity": {"storage": "10Gi"}}))), false, true),
            (Some(expanding()), Some(with_condition), true, false),
            (Some(expanding()), Some(labelled), true, false),
            (Some(expanding()), Some(started), false, true),
            (Some(expanding()), Some(migrated), false, true),
            (Some(content()), Some(gold.clone()), false, true),
            (None, Some(gold), false, true),
            (Some(expanding()), None, false, false),
            (Some(expanding()), None, true, true),
        ] {
            let row = format!("{old:?} {new:?} {has_state}");
            assert_eq!(claim_needs_reconcile(&change(old, new), has_state), expected, "{row}");
        }
    }

    #[test]
    fn volume_wakes_claim_that_needs_work() {
        let volume = |size: &str, driver: &str| {
            json!({
                "metadata": {"name": "pv1", "uid": "v"},
                "spec": {
                    "capacity": {"storage": size}, "csi": {"driver": driver, "volumeHandle": "h"},
                    "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
                },
            })
        };
        let ours = |size| Some(volume(size, "d"));
        let mut has_pre_resize_capacity = volume("5Gi", "d");
        has_pre_resize_capacity["metadata"]["annotations"] = json!({annotation::PRE_RESIZE_CAPACITY: "5Gi"});
        let mut free = volume("5Gi", "d");
        free["spec"]["claimRef"] = json!(null);
        for (old, new, wants, expected) in [
            (None, ours("5Gi"), true, true),
            (None, ours("5Gi"), false, false),
            (None, Some(volume("5Gi", "e")), true, false),
            (None, Some(has_pre_resize_capacity), false, true),
            (None, Some(free), true, false),
            (ours("5Gi"), ours("5Gi"), true, false),
            (ours("5Gi"), ours("6Gi"), true, true),
            (ours("5Gi"), None, true, false),
        ] {
            let row = format!("{old:?} {new:?} {wants}");
            let expected = expected.then(|| Key::namespaced("shop", "data"));
            assert_eq!(claim_of_volume(&change(old, new), "d", |_| wants), expected, "{row}");
        }
    }

    /// sidecars.md 1.3 "Modify": a class that is created after the claim.
    #[test]
    fn created_class_wakes_claims_that_name_it() {
        let class = |uid: &str| Some(json!({"metadata": {"name": "gold", "uid": uid}}));
        assert_eq!(added_class(&change(None, class("1"))), Some("gold"));
        assert_eq!(added_class(&change(class("1"), class("2"))), Some("gold"));
        assert_eq!(added_class(&change(class("1"), class("1"))), None);
        assert_eq!(added_class(&change(class("1"), None)), None);
        let mut named =
            claim("5Gi", json!({"modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold"}}));
        named["spec"]["volumeAttributesClassName"] = json!("tin");
        assert_eq!(classes_of(&serde_json::from_value(named).unwrap()), ["tin", "gold"]);
        assert!(classes_of(&serde_json::from_value(claim("5Gi", json!({}))).unwrap()).is_empty());
    }

    /// sidecars.md 1.3 "Errors": in use until every pod that uses the claim has terminated.
    #[test]
    fn terminated_or_deleted_pod_releases_claims() {
        let pod = |phase: &str| {
            Some(json!({
                "metadata": {"name": "p", "namespace": "shop", "uid": "p"},
                "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
                "status": {"phase": phase},
            }))
        };
        let data = [Key::namespaced("shop", "data")];
        for (old, new, expected) in [
            (None, pod("Running"), &[][..]),
            (pod("Pending"), pod("Running"), &[]),
            (pod("Running"), pod("Succeeded"), &data),
            (pod("Running"), pod("Failed"), &data),
            (pod("Running"), None, &data),
            (pod("Succeeded"), None, &[]),
        ] {
            let row = format!("{old:?} {new:?}");
            assert_eq!(released(&change(old, new)), expected, "{row}");
        }
    }
}
