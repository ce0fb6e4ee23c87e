//! Which changes make a claim worth a look. What we write about failures is not among them, and what wakes a claim
//! in vain costs one decision: pauses are kept with the question they belong to, not in the queue.

use wharf_cluster::{Change, Priority};
use wharf_model::claim::ClaimPhase;
use wharf_model::names::{annotation, condition};
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass};

use wharf_cluster::work::Wish;

/// The index of claims by the classes that they name.
pub(crate) const BY_ATTRIBUTES_CLASS: &str = "attributes-class";
/// The index of pods by the claims that they use.
pub(crate) const BY_CLAIM: &str = "claim";

/// A look at one claim.
pub(crate) fn wish(key: Key) -> Wish<Key> {
    Wish { key, priority: Priority::Normal }
}

/// Whether a claim calls for anything, as far as it says itself.
pub(crate) fn wants(claim: &PersistentVolumeClaim) -> bool {
    let status = &claim.status;
    let text = |name: &Option<String>| name.clone().unwrap_or_default();
    let bound = status.phase == ClaimPhase::Bound && !claim.spec.volume_name.is_empty();
    bound
        && (claim.requested() > status.capacity.storage
            || status.modify_volume_status.is_some()
            || status.condition(condition::MODIFYING_VOLUME).is_some()
            || text(&claim.spec.volume_attributes_class_name)
                != text(&status.current_volume_attributes_class_name))
}

/// Whether a change of a claim may lead to another decision. `known`: something is remembered of it.
pub(crate) fn is_of_claim(change: &Change<PersistentVolumeClaim>, known: bool) -> bool {
    match (&change.old, &change.new) {
        (_, None) => known,
        (None, Some(new)) => wants(new),
        (Some(old), Some(new)) => {
            let grown = old.status.capacity != new.status.capacity;
            grown || ((wants(new) || known) && !is_same(old, new))
        }
    }
}

/// Whether two versions of a claim call for the same. Conditions tell people, and decide nothing.
fn is_same(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let resizer = |claim: &PersistentVolumeClaim| {
        claim.metadata.annotation(annotation::STORAGE_RESIZER).map(str::to_owned)
    };
    old.metadata.uid == new.metadata.uid
        && old.requested() == new.requested()
        && old.spec.volume_attributes_class_name == new.spec.volume_attributes_class_name
        && old.spec.volume_name == new.spec.volume_name
        && old.status.phase == new.status.phase
        && old.status.allocated_resources == new.status.allocated_resources
        && old.status.allocated_resource_statuses == new.status.allocated_resource_statuses
        && old.status.modify_volume_status == new.status.modify_volume_status
        && old.status.current_volume_attributes_class_name == new.status.current_volume_attributes_class_name
        && resizer(old) == resizer(new)
}

/// The claim for which a change of a volume matters. `claim` finds it.
pub(crate) fn of_volume(
    change: &Change<PersistentVolume>,
    driver: &str,
    wants: impl Fn(&Key) -> bool,
) -> Option<Key> {
    let new = change.new.as_ref()?;
    let key = new.spec.claim_ref.as_ref()?.key();
    if new.spec.csi.is_some() && !new.is_of(driver) {
        return None;
    }
    if let Some(old) = &change.old
        && old.spec == new.spec
        && old.metadata.annotations == new.metadata.annotations
    {
        return None;
    }
    let noted = new.metadata.annotation(annotation::PRE_RESIZE_CAPACITY).is_some();
    (noted || wants(&key)).then_some(key)
}

/// The class that has come, if one has.
pub(crate) fn of_class(change: &Change<VolumeAttributesClass>) -> Option<&str> {
    let new = change.new.as_ref()?;
    let known = change.old.as_ref().is_some_and(|old| old.metadata.uid == new.metadata.uid);
    (!known).then_some(new.metadata.name.as_str())
}

/// The names under which a claim is found when a class comes.
pub(crate) fn classes_of(claim: &PersistentVolumeClaim) -> Vec<String> {
    let asked = claim.spec.volume_attributes_class_name.clone();
    let status = claim.status.modify_volume_status.as_ref();
    let target = status.map(|status| status.target_volume_attributes_class_name.clone());
    let mut names: Vec<String> = asked.into_iter().chain(target).filter(|name| !name.is_empty()).collect();
    names.dedup();
    names
}

/// The claims that a pod uses, as keys; none once it has ended.
pub(crate) fn claims_of(pod: &Pod) -> Vec<Key> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    match pod.is_terminated() {
        true => Vec::new(),
        false => pod.claims.iter().map(|claim| Key::namespaced(namespace, claim)).collect(),
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

    /// sidecars.md 1.3 "Trigger": a claim that asks for more, less or another class; sidecars.md 3, item 20: not our
    /// own words about failures.
    #[test]
    fn changes_of_claims() {
        let has = || json!({"capacity": {"storage": "5Gi"}});
        let content = || claim("5Gi", has());
        let asks = || claim("10Gi", has());
        let mut told = asks();
        told["status"]["conditions"] = json!([{"type": "ControllerResizeError", "status": "True"}]);
        let mut labelled = asks();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        let mut begun = asks();
        begun["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizeInfeasible"});
        let mut gold = content();
        gold["spec"]["volumeAttributesClassName"] = json!("gold");
        let mut unbound = asks();
        unbound["status"]["phase"] = json!("Pending");
        let mut handed = asks();
        handed["metadata"]["annotations"] = json!({annotation::STORAGE_RESIZER: "d"});
        for (old, new, known, expected) in [
            (None, Some(content()), false, false),
            (None, Some(asks()), false, true),
            (None, Some(unbound.clone()), false, false),
            (Some(unbound), Some(asks()), false, true),
            (Some(content()), Some(asks()), false, true),
            (Some(asks()), Some(claim("8Gi", has())), false, true),
            (Some(asks()), Some(content()), false, false),
            (Some(asks()), Some(content()), true, true),
            (Some(asks()), Some(claim("10Gi", json!({"capacity": {"storage": "10Gi"}}))), false, true),
            (Some(asks()), Some(told), true, false),
            (Some(asks()), Some(labelled), true, false),
            (Some(asks()), Some(begun), false, true),
            (Some(asks()), Some(handed), false, true),
            (Some(content()), Some(gold.clone()), false, true),
            (None, Some(gold), false, true),
            (Some(asks()), None, false, false),
            (Some(asks()), None, true, true),
        ] {
            let row = format!("{old:?} {new:?} {known}");
            assert_eq!(is_of_claim(&change(old, new), known), expected, "{row}");
        }
    }

    #[test]
    fn changes_of_volumes() {
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
        let mut noted = volume("5Gi", "d");
        noted["metadata"]["annotations"] = json!({annotation::PRE_RESIZE_CAPACITY: "5Gi"});
        let mut free = volume("5Gi", "d");
        free["spec"]["claimRef"] = json!(null);
        for (old, new, wants, expected) in [
            (None, ours("5Gi"), true, true),
            (None, ours("5Gi"), false, false),
            (None, Some(volume("5Gi", "e")), true, false),
            (None, Some(noted), false, true),
            (None, Some(free), true, false),
            (ours("5Gi"), ours("5Gi"), true, false),
            (ours("5Gi"), ours("6Gi"), true, true),
            (ours("5Gi"), None, true, false),
        ] {
            let row = format!("{old:?} {new:?} {wants}");
            let expected = expected.then(|| Key::namespaced("shop", "data"));
            assert_eq!(of_volume(&change(old, new), "d", |_| wants), expected, "{row}");
        }
    }

    /// sidecars.md 1.3 "Modify": a class that comes after the claim.
    #[test]
    fn classes_that_come() {
        let class = |uid: &str| Some(json!({"metadata": {"name": "gold", "uid": uid}}));
        assert_eq!(of_class(&change(None, class("1"))), Some("gold"));
        assert_eq!(of_class(&change(class("1"), class("2"))), Some("gold"));
        assert_eq!(of_class(&change(class("1"), class("1"))), None);
        assert_eq!(of_class(&change(class("1"), None)), None);
        let mut named =
            claim("5Gi", json!({"modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold"}}));
        named["spec"]["volumeAttributesClassName"] = json!("tin");
        assert_eq!(classes_of(&serde_json::from_value(named).unwrap()), ["tin", "gold"]);
        assert!(classes_of(&serde_json::from_value(claim("5Gi", json!({}))).unwrap()).is_empty());
    }

    /// sidecars.md 1.3 "Errors": in use until no pod that has not ended uses the claim.
    #[test]
    fn pods_that_end() {
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
