//! What changes call for: against which causes a change may help, and which changes are none. Pure; upstream's queueing
//! hints. A claim's own pods are told of all its changes, elsewhere.

use wharf_cluster::Change;
use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSIDriver, CSINode, CSIStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass,
    VolumeAttachment, matching,
};

use super::capacity::limit;
use super::decide::Cause;
use super::requests;

/// What helps.
pub(super) type Helps = &'static [Cause];

/// It helps nobody.
const NOBODY: Helps = &[];
/// It may help anybody.
pub(super) const ALL: Helps =
    &[Cause::Node, Cause::Resources, Cause::Claims, Cause::InUse, Cause::Limits, Cause::Volumes, Cause::Zone];
/// A place on a node is to be had again.
pub(super) const LEFT: Helps = &[Cause::Resources, Cause::InUse, Cause::Limits, Cause::Volumes];

/// A node: heartbeats are no news.
pub(super) fn by_node(change: &Change<Node>) -> Helps {
    let Some(new) = &change.new else { return NOBODY };
    let same = |old: &Node| {
        old.spec == new.spec
            && old.metadata.labels == new.metadata.labels
            && old.status.allocatable == new.status.allocatable
    };
    if change.old.as_deref().is_some_and(same) { NOBODY } else { ALL }
}

/// A pod that leaves its node, ends there, or asks less of it.
pub(super) fn by_pod(change: &Change<Pod>) -> Helps {
    let here = |pod: &&Pod| !pod.spec.node_name.is_empty() && !pod.has_ended();
    let Some(old) = change.old.as_deref().filter(here) else { return NOBODY };
    let Some(new) = change.new.as_deref().filter(here) else { return LEFT };
    if old.spec == new.spec {
        return NOBODY;
    }
    let asked = requests::of(new);
    let less = |(resource, was): (&String, &i64)| asked.get(resource).is_none_or(|is| is < was);
    if requests::of(old).iter().any(less) { &[Cause::Resources] } else { NOBODY }
}

/// A claim that room was promised to, and is no more: it is gone, has its volume, or is not to be provisioned on that node.
/// What its volume takes may be counted before the claim says that it has it.
pub(super) fn by_claim(change: &Change<PersistentVolumeClaim>) -> Helps {
    let unbound = |claim: &&PersistentVolumeClaim| claim.spec.volume_name.is_empty();
    let was = change.old.as_deref().filter(unbound).and_then(|old| old.selected_node());
    let other = |new: &PersistentVolumeClaim| !unbound(&new) || new.selected_node() != was;
    if was.is_some() && change.new.as_deref().is_none_or(other) { &[Cause::Volumes] } else { NOBODY }
}

/// A volume that is new, to be had again, or within reach of others than before.
pub(super) fn by_volume(change: &Change<PersistentVolume>) -> Helps {
    let Some(new) = &change.new else { return NOBODY };
    let same = |old: &PersistentVolume| {
        matching::offered_in(old) == matching::offered_in(new)
            && old.spec == new.spec
            && old.metadata.labels == new.metadata.labels
    };
    match change.old.as_deref().is_some_and(same) {
        true => NOBODY,
        false => &[Cause::Volumes, Cause::Zone, Cause::Claims],
    }
}

/// A class: of one that is there only where its volumes may be can change.
pub(super) fn by_class(change: &Change<StorageClass>) -> Helps {
    let Some(new) = &change.new else { return NOBODY };
    let same = |old: &StorageClass| old.allowed_topologies == new.allowed_topologies;
    match change.old.as_deref().is_some_and(same) {
        true => NOBODY,
        false => &[Cause::Volumes, Cause::Zone, Cause::Claims],
    }
}

/// What drivers say of a node.
pub(super) fn by_csi_node(change: &Change<CSINode>) -> Helps {
    let Some(new) = &change.new else { return NOBODY };
    if change.old.as_ref().is_some_and(|old| old.spec == new.spec) { NOBODY } else { &[Cause::Limits] }
}

/// What is said of a driver: that its capacity is not to be asked any more, or that it is no CSI driver at all.
pub(super) fn by_driver(change: &Change<CSIDriver>) -> Helps {
    let asked = |driver: &CSIDriver| driver.spec.storage_capacity == Some(true);
    let was = change.old.as_deref().is_some_and(asked);
    match &change.new {
        None => &[Cause::Volumes, Cause::Limits],
        Some(new) if was && !asked(new) => &[Cause::Volumes],
        Some(_) => NOBODY,
    }
}

/// Room: less of it helps nobody.
pub(super) fn by_capacity(change: &Change<CSIStorageCapacity>) -> Helps {
    let Some(new) = &change.new else { return NOBODY };
    let more = |old: &CSIStorageCapacity| limit(new) > limit(old) || new.capacity > old.capacity;
    if change.old.as_deref().is_none_or(more) { &[Cause::Volumes] } else { NOBODY }
}

/// A volume that is detached.
pub(super) fn by_attachment(change: &Change<VolumeAttachment>) -> Helps {
    if change.new.is_none() { &[Cause::Limits] } else { NOBODY }
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
    fn nodes() {
        let base = || node(json!({}));
        let table = [
            ("new", None, Some(base()), true),
            ("gone", Some(base()), None, false),
            (
                "a heartbeat",
                Some(base()),
                Some(node(json!({"status": {"conditions": [{"type": "Ready"}]}}))),
                false,
            ),
            ("a label", Some(base()), Some(node(json!({"metadata": {"labels": {"a": "b"}}}))), true),
            ("uncordoned", Some(node(json!({"spec": {"unschedulable": true}}))), Some(base()), true),
            ("a taint goes", Some(node(json!({"spec": {"taints": [{"key": "k"}]}}))), Some(base()), true),
            ("more room", Some(base()), Some(node(json!({"status": {"allocatable": {"cpu": "8"}}}))), true),
        ];
        for (rule, old, new, helps) in table {
            assert_eq!(by_node(&change(old, new)), if helps { ALL } else { NOBODY }, "{rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue", "Limits": pods that leave make room.
    #[test]
    fn pods() {
        let on = |phase: &str| pod(json!({"spec": {"nodeName": "n"}, "status": {"phase": phase}}));
        let pending = || pod(json!({}));
        for (rule, old, new, helps) in [
            ("placed", Some(pending()), Some(on("Pending")), false),
            ("goes on", Some(on("Pending")), Some(on("Running")), false),
            ("ends", Some(on("Running")), Some(on("Succeeded")), true),
            ("is deleted", Some(on("Running")), None, true),
            ("is deleted after its end", Some(on("Failed")), None, false),
            ("never had a node", Some(pending()), None, false),
        ] {
            assert_eq!(by_pod(&change(old, new)), if helps { LEFT } else { NOBODY }, "{rule}");
        }
        let asks = |cpu: &str| {
            let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
            Some(pod(json!({"spec": {"nodeName": "n", "containers": [container]}})))
        };
        for (rule, old, new, wanted) in [
            ("asks for less", asks("2"), asks("1"), &[Cause::Resources][..]),
            ("asks for nothing", asks("2"), Some(on("Running")), &[Cause::Resources]),
            ("asks for more", asks("1"), asks("2"), NOBODY),
        ] {
            assert_eq!(by_pod(&change(old, new)), wanted, "{rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue", "Capacity": claims under way are counted, until they are not.
    #[test]
    fn claims() {
        let chosen =
            |node: &str| json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
        let (idle, on) = (|| claim("c", json!({})), |node: &str| claim("c", chosen(node)));
        let served = || claim("c", over(chosen("n"), json!({"spec": {"volumeName": "v"}})));
        for (rule, old, new, helps) in [
            ("new", None, Some(idle()), false),
            ("a node is chosen", Some(idle()), Some(on("n")), false),
            ("the same", Some(on("n")), Some(on("n")), false),
            ("its node is taken off", Some(on("n")), Some(idle()), true),
            ("another node", Some(on("n")), Some(on("m")), true),
            ("gone", Some(on("n")), None, true),
            ("it has its volume", Some(on("n")), Some(served()), true),
            ("gone, and had none under way", Some(idle()), None, false),
            ("gone with its volume", Some(served()), None, false),
        ] {
            let wanted = if helps { &[Cause::Volumes][..] } else { NOBODY };
            assert_eq!(by_claim(&change(old, new)), wanted, "{rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue": volumes and classes.
    #[test]
    fn volumes_and_classes() {
        let phase = |phase: &str| volume("v", json!({"status": {"phase": phase}}));
        let labelled = volume("v", json!({"metadata": {"labels": {"a": "b"}}}));
        for (rule, old, new, helps) in [
            ("new", None, Some(phase("Pending")), true),
            ("to be had", Some(phase("Pending")), Some(phase("Available")), true),
            ("the same", Some(phase("Available")), Some(phase("Available")), false),
            ("labelled", Some(phase("Available")), Some(labelled), true),
            ("gone", Some(phase("Available")), None, false),
        ] {
            assert_eq!(!by_volume(&change(old, new)).is_empty(), helps, "volume: {rule}");
        }
        let there = |zone: &str| {
            let expression = json!({"key": "zone", "values": [zone]});
            class("c", json!({"allowedTopologies": [{"matchLabelExpressions": [expression]}]}))
        };
        for (rule, old, new, helps) in [
            ("new", None, Some(there("a")), true),
            ("elsewhere", Some(there("a")), Some(there("b")), true),
            ("the same", Some(there("a")), Some(there("a")), false),
            ("gone", Some(there("a")), None, false),
        ] {
            assert_eq!(!by_class(&change(old, new)).is_empty(), helps, "class: {rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue": CSINodes and CSIDrivers.
    #[test]
    fn drivers() {
        let limited = |count: i32| csi_node(json!([{"name": "d", "allocatable": {"count": count}}]));
        for (rule, old, new, helps) in [
            ("new", None, Some(limited(1)), true),
            ("a driver comes", Some(csi_node(json!([]))), Some(limited(1)), true),
            ("a higher limit", Some(limited(1)), Some(limited(2)), true),
            ("the same", Some(limited(1)), Some(limited(1)), false),
        ] {
            assert_eq!(!by_csi_node(&change(old, new)).is_empty(), helps, "CSINode: {rule}");
        }
        let driver = |capacity: Value| read::<CSIDriver>(json!({"spec": {"storageCapacity": capacity}}));
        for (rule, old, new, helps) in [
            ("on before, off now", Some(driver(json!(true))), Some(driver(json!(false))), true),
            ("on before, unsaid now", Some(driver(json!(true))), Some(driver(json!(null))), true),
            ("stays on", Some(driver(json!(true))), Some(driver(json!(true))), false),
            ("off before", Some(driver(json!(false))), Some(driver(json!(true))), false),
            ("unsaid before", Some(driver(json!(null))), Some(driver(json!(false))), false),
            ("new", None, Some(driver(json!(true))), false),
            ("gone", Some(driver(json!(false))), None, true),
        ] {
            assert_eq!(!by_driver(&change(old, new)).is_empty(), helps, "CSIDriver: {rule}");
        }
    }

    /// kubernetes.md 1.5 "Requeue": capacities.
    #[test]
    fn room() {
        let room = |capacity: Value, most: Value| {
            let base = json!({"storageClassName": "c"});
            read::<CSIStorageCapacity>(over(base, json!({"capacity": capacity, "maximumVolumeSize": most})))
        };
        let null = || json!(null);
        for (rule, old, new, helps) in [
            ("new", None, Some(room(null(), null())), true),
            ("set", Some(room(null(), null())), Some(room(json!("1Gi"), null())), true),
            ("more", Some(room(json!("1Gi"), null())), Some(room(json!("2Gi"), null())), true),
            ("larger", Some(room(json!("1Gi"), json!("1Gi"))), Some(room(json!("1Gi"), json!("2Gi"))), true),
            (
                "the same",
                Some(room(json!("1Gi"), json!("1Gi"))),
                Some(room(json!("1Gi"), json!("1Gi"))),
                false,
            ),
            ("less", Some(room(json!("2Gi"), null())), Some(room(json!("1Gi"), null())), false),
            (
                "smaller",
                Some(room(json!("2Gi"), json!("2Gi"))),
                Some(room(json!("2Gi"), json!("1Gi"))),
                false,
            ),
            ("gone", Some(room(json!("2Gi"), null())), None, false),
        ] {
            assert_eq!(!by_capacity(&change(old, new)).is_empty(), helps, "{rule}");
        }
        let attachment = || read::<VolumeAttachment>(json!({"spec": {"nodeName": "n"}}));
        assert_eq!(by_attachment(&change(Some(attachment()), None)), [Cause::Limits]);
        assert_eq!(by_attachment(&change(None, Some(attachment()))), NOBODY);
    }
}
