//! Which causes a change may resolve, and which changes are irrelevant. Pure; upstream's queueing hints. The pods of a
//! claim are retried on every change of it, elsewhere.

use wharf_cluster::Change;
use wharf_model::{
    CSIDriver, CSINode, CSIStorageCapacity, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
    VolumeAttachment, matching,
};

use super::capacity::max_volume_size;
use super::decide::Cause;
use super::requests;

/// The causes that a change may resolve.
pub(super) type Unblocks = &'static [Cause];

/// The change helps no pod.
const NONE: Unblocks = &[];
/// The change may help any pod.
pub(super) const EVERYTHING: Unblocks =
    &[Cause::Node, Cause::Resources, Cause::Claims, Cause::InUse, Cause::Limits, Cause::Volumes, Cause::Zone];
/// A pod has left its node.
pub(super) const POD_LEFT: Unblocks = &[Cause::Resources, Cause::InUse, Cause::Limits, Cause::Volumes];

/// A node: heartbeats are irrelevant.
pub(super) fn by_node(change: &Change<Node>) -> Unblocks {
    let Some(new) = &change.new else { return NONE };
    let same = |old: &Node| {
        old.spec == new.spec
            && old.metadata.labels == new.metadata.labels
            && old.status.allocatable == new.status.allocatable
    };
    if change.old.as_deref().is_some_and(same) { NONE } else { EVERYTHING }
}

/// A pod that is deleted, terminates, or reduces its requests.
pub(super) fn by_pod(change: &Change<Pod>) -> Unblocks {
    let here = |pod: &&Pod| !pod.node_name.is_empty() && !pod.has_ended();
    let Some(old) = change.old.as_deref().filter(here) else { return NONE };
    let Some(new) = change.new.as_deref().filter(here) else { return POD_LEFT };
    if old.spec == new.spec {
        return NONE;
    }
    let now = requests::of(new);
    let less = |(resource, was): (&String, &i64)| now.get(resource).is_none_or(|is| is < was);
    if requests::of(old).iter().any(less) { &[Cause::Resources] } else { NONE }
}

/// A claim that no longer occupies capacity: it was deleted, has its volume, or lost its selected node. The driver may
/// count its volume before the claim is bound.
pub(super) fn by_claim(change: &Change<PersistentVolumeClaim>) -> Unblocks {
    let unbound = |claim: &&PersistentVolumeClaim| claim.spec.volume_name.is_empty();
    let was = change.old.as_deref().filter(unbound).and_then(|old| old.selected_node());
    let other = |new: &PersistentVolumeClaim| !unbound(&new) || new.selected_node() != was;
    if was.is_some() && change.new.as_deref().is_none_or(other) { &[Cause::Volumes] } else { NONE }
}

/// A volume that is new, available again, or accessible from other nodes than before.
pub(super) fn by_volume(change: &Change<PersistentVolume>) -> Unblocks {
    let Some(new) = &change.new else { return NONE };
    let same = |old: &PersistentVolume| {
        matching::available_class(old) == matching::available_class(new)
            && old.spec == new.spec
            && old.metadata.labels == new.metadata.labels
    };
    match change.old.as_deref().is_some_and(same) {
        true => NONE,
        false => &[Cause::Volumes, Cause::Zone, Cause::Claims],
    }
}

/// A class: of an existing one only the allowed topologies can change.
pub(super) fn by_class(change: &Change<StorageClass>) -> Unblocks {
    let Some(new) = &change.new else { return NONE };
    let same = |old: &StorageClass| old.allowed_topologies == new.allowed_topologies;
    match change.old.as_deref().is_some_and(same) {
        true => NONE,
        false => &[Cause::Volumes, Cause::Zone, Cause::Claims],
    }
}

/// A CSINode: drivers and limits.
pub(super) fn by_csi_node(change: &Change<CSINode>) -> Unblocks {
    let Some(new) = &change.new else { return NONE };
    if change.old.as_ref().is_some_and(|old| old.spec == new.spec) { NONE } else { &[Cause::Limits] }
}

/// A CSIDriver: its capacity is no longer checked, or it was deleted.
pub(super) fn by_driver(change: &Change<CSIDriver>) -> Unblocks {
    let checked = |driver: &CSIDriver| driver.spec.storage_capacity == Some(true);
    let was = change.old.as_deref().is_some_and(checked);
    match &change.new {
        None => &[Cause::Volumes, Cause::Limits],
        Some(new) if was && !checked(new) => &[Cause::Volumes],
        Some(_) => NONE,
    }
}

/// A capacity: only an increase helps.
pub(super) fn by_capacity(change: &Change<CSIStorageCapacity>) -> Unblocks {
    let Some(new) = &change.new else { return NONE };
    let more =
        |old: &CSIStorageCapacity| max_volume_size(new) > max_volume_size(old) || new.capacity > old.capacity;
    if change.old.as_deref().is_none_or(more) { &[Cause::Volumes] } else { NONE }
}

/// A volume that was detached.
pub(super) fn by_attachment(change: &Change<VolumeAttachment>) -> Unblocks {
    if change.new.is_none() { &[Cause::Limits] } else { NONE }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use wharf_model::{Key, Kind};

    use super::super::testing::{claim, class, csi_node, node, over, pod, volume};
    use super::*;

    fn change<K: Kind>(old: Option<Arc<K>>, new: Option<Arc<K>>) -> Change<K> {
        Change { key: Key::cluster("x"), old, new }
    }

    fn read<K: DeserializeOwned>(value: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    /// kubernetes.md 1.5 "Requeue": labels of nodes.
    #[test]
    fn node_changes_may_help_any_pod() {
        let base = || node(json!({}));
        let table = [
            ("new", None, Some(base()), true),
            ("deleted", Some(base()), None, false),
            (
                "a heartbeat",
                Some(base()),
                Some(node(json!({"status": {"conditions": [{"type": "Ready"}]}}))),
                false,
            ),
            ("a label", Some(base()), Some(node(json!({"metadata": {"labels": {"a": "b"}}}))), true),
            ("uncordoned", Some(node(json!({"spec": {"unschedulable": true}}))), Some(base()), true),
            (
                "a taint is removed",
                Some(node(json!({"spec": {"taints": [{"key": "k"}]}}))),
                Some(base()),
                true,
            ),
            (
                "more allocatable",
                Some(base()),
                Some(node(json!({"status": {"allocatable": {"cpu": "8"}}}))),
                true,
            ),
        ];
        for (rule, old, new, unblocks) in table {
            assert_eq!(by_node(&change(old, new)), if unblocks { EVERYTHING } else { NONE }, "{rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue", "Limits": pods that leave free resources.
    #[test]
    fn pods_that_leave_or_shrink_help() {
        let on = |phase: &str| pod(json!({"spec": {"nodeName": "n"}, "status": {"phase": phase}}));
        let pending = || pod(json!({}));
        for (rule, old, new, unblocks) in [
            ("scheduled", Some(pending()), Some(on("Pending")), false),
            ("starts", Some(on("Pending")), Some(on("Running")), false),
            ("terminates", Some(on("Running")), Some(on("Succeeded")), true),
            ("deleted", Some(on("Running")), None, true),
            ("deleted after it terminated", Some(on("Failed")), None, false),
            ("never had a node", Some(pending()), None, false),
        ] {
            assert_eq!(by_pod(&change(old, new)), if unblocks { POD_LEFT } else { NONE }, "{rule}");
        }
        let requesting = |cpu: &str| {
            let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
            Some(pod(json!({"spec": {"nodeName": "n", "containers": [container]}})))
        };
        for (rule, old, new, wanted) in [
            ("requests less", requesting("2"), requesting("1"), &[Cause::Resources][..]),
            ("requests nothing", requesting("2"), Some(on("Running")), &[Cause::Resources]),
            ("requests more", requesting("1"), requesting("2"), NONE),
        ] {
            assert_eq!(by_pod(&change(old, new)), wanted, "{rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue", "Capacity": claims in flight occupy capacity, until they do not.
    #[test]
    fn claims_that_free_capacity_help() {
        let chosen =
            |node: &str| json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
        let (idle, on) = (|| claim("c", json!({})), |node: &str| claim("c", chosen(node)));
        let served = || claim("c", over(chosen("n"), json!({"spec": {"volumeName": "v"}})));
        for (rule, old, new, unblocks) in [
            ("new", None, Some(idle()), false),
            ("a node is selected", Some(idle()), Some(on("n")), false),
            ("unchanged", Some(on("n")), Some(on("n")), false),
            ("its node is cleared", Some(on("n")), Some(idle()), true),
            ("another node", Some(on("n")), Some(on("m")), true),
            ("deleted", Some(on("n")), None, true),
            ("it is bound", Some(on("n")), Some(served()), true),
            ("deleted without a selected node", Some(idle()), None, false),
            ("deleted while bound", Some(served()), None, false),
        ] {
            let wanted = if unblocks { &[Cause::Volumes][..] } else { NONE };
            assert_eq!(by_claim(&change(old, new)), wanted, "{rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue": volumes and classes.
    #[test]
    fn new_or_changed_volumes_and_classes_help() {
        let phase = |phase: &str| volume("v", json!({"status": {"phase": phase}}));
        let labelled = volume("v", json!({"metadata": {"labels": {"a": "b"}}}));
        for (rule, old, new, unblocks) in [
            ("new", None, Some(phase("Pending")), true),
            ("available", Some(phase("Pending")), Some(phase("Available")), true),
            ("unchanged", Some(phase("Available")), Some(phase("Available")), false),
            ("labelled", Some(phase("Available")), Some(labelled), true),
            ("deleted", Some(phase("Available")), None, false),
        ] {
            assert_eq!(!by_volume(&change(old, new)).is_empty(), unblocks, "volume: {rule}");
        }
        let there = |zone: &str| {
            let expression = json!({"key": "zone", "values": [zone]});
            class("c", json!({"allowedTopologies": [{"matchLabelExpressions": [expression]}]}))
        };
        for (rule, old, new, unblocks) in [
            ("new", None, Some(there("a")), true),
            ("other topologies", Some(there("a")), Some(there("b")), true),
            ("unchanged", Some(there("a")), Some(there("a")), false),
            ("deleted", Some(there("a")), None, false),
        ] {
            assert_eq!(!by_class(&change(old, new)).is_empty(), unblocks, "class: {rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue": CSINodes and CSIDrivers.
    #[test]
    fn csi_node_and_driver_changes_help() {
        let limited = |count: i32| csi_node(json!([{"name": "d", "allocatable": {"count": count}}]));
        for (rule, old, new, unblocks) in [
            ("new", None, Some(limited(1)), true),
            ("a driver is registered", Some(csi_node(json!([]))), Some(limited(1)), true),
            ("a higher limit", Some(limited(1)), Some(limited(2)), true),
            ("unchanged", Some(limited(1)), Some(limited(1)), false),
        ] {
            assert_eq!(!by_csi_node(&change(old, new)).is_empty(), unblocks, "CSINode: {rule}");
        }
        let driver = |capacity: Value| read::<CSIDriver>(json!({"spec": {"storageCapacity": capacity}}));
        for (rule, old, new, unblocks) in [
            ("on before, off now", Some(driver(json!(true))), Some(driver(json!(false))), true),
            ("on before, unset now", Some(driver(json!(true))), Some(driver(json!(null))), true),
            ("stays on", Some(driver(json!(true))), Some(driver(json!(true))), false),
            ("off before", Some(driver(json!(false))), Some(driver(json!(true))), false),
            ("unset before", Some(driver(json!(null))), Some(driver(json!(false))), false),
            ("new", None, Some(driver(json!(true))), false),
            ("deleted", Some(driver(json!(false))), None, true),
        ] {
            assert_eq!(!by_driver(&change(old, new)).is_empty(), unblocks, "CSIDriver: {rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue": capacities.
    #[test]
    fn more_capacity_and_detached_volumes_help() {
        let capacity_of = |capacity: Value, most: Value| {
            let base = json!({"storageClassName": "c"});
            read::<CSIStorageCapacity>(over(base, json!({"capacity": capacity, "maximumVolumeSize": most})))
        };
        let null = || json!(null);
        for (rule, old, new, unblocks) in [
            ("new", None, Some(capacity_of(null(), null())), true),
            ("set", Some(capacity_of(null(), null())), Some(capacity_of(json!("1Gi"), null())), true),
            ("more", Some(capacity_of(json!("1Gi"), null())), Some(capacity_of(json!("2Gi"), null())), true),
            (
                "larger",
                Some(capacity_of(json!("1Gi"), json!("1Gi"))),
                Some(capacity_of(json!("1Gi"), json!("2Gi"))),
                true,
            ),
            (
                "the same",
                Some(capacity_of(json!("1Gi"), json!("1Gi"))),
                Some(capacity_of(json!("1Gi"), json!("1Gi"))),
                false,
            ),
            ("less", Some(capacity_of(json!("2Gi"), null())), Some(capacity_of(json!("1Gi"), null())), false),
            (
                "smaller",
                Some(capacity_of(json!("2Gi"), json!("2Gi"))),
                Some(capacity_of(json!("2Gi"), json!("1Gi"))),
                false,
            ),
            ("deleted", Some(capacity_of(json!("2Gi"), null())), None, false),
        ] {
            assert_eq!(!by_capacity(&change(old, new)).is_empty(), unblocks, "{rule}");
        }
        let attachment = || read::<VolumeAttachment>(json!({"spec": {"nodeName": "n"}}));
        assert_eq!(by_attachment(&change(Some(attachment()), None)), [Cause::Limits]);
        assert_eq!(by_attachment(&change(None, Some(attachment()))), NONE);
    }
}
