//! Which work items a change wakes. A change that no work item waits for wakes none.

use wharf_cluster::Change;
use wharf_model::matching::available_class;
use wharf_model::{Key, Node, PersistentVolume, Pod, StorageClass};

use super::view::{WorkItem, is_terminated};

/// The work items that a change of a volume wakes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VolumeWakeups {
    /// The volume's own work items, before and after the change.
    pub(super) items: Vec<WorkItem>,
    /// Whether to wake claims whose `spec.volumeName` is this volume.
    pub(super) wake_claims_by_name: bool,
}

/// For a volume: its previous claim, its current claim, and claims that wait for its class if it became available.
pub(super) fn by_volume(change: &Change<PersistentVolume>) -> VolumeWakeups {
    let (old, new) = (change.old.as_deref(), change.new.as_deref());
    let mut items: Vec<WorkItem> = old.into_iter().chain(new).map(WorkItem::of).collect();
    let available = |volume: Option<&PersistentVolume>| volume.and_then(available_class).map(str::to_owned);
    // A changed spec, class or label may make a volume match a claim.
    let differs = |old: &PersistentVolume, new: &PersistentVolume| {
        old.spec != new.spec || old.metadata.labels != new.metadata.labels || old.class() != new.class()
    };
    let wakes_class = match (available(old), old.zip(new)) {
        (Some(_), Some((old, new))) => differs(old, new),
        _ => true,
    };
    if let Some(class) = available(new).filter(|_| wakes_class) {
        items.push(WorkItem::Class(class));
    }
    items.sort();
    items.dedup();
    let wake_claims_by_name = old.zip(new).is_none_or(|(old, new)| differs(old, new));
    VolumeWakeups { items, wake_claims_by_name }
}

/// For a class: whether to wake its claims and those without a class.
pub(super) fn by_class(change: &Change<StorageClass>) -> bool {
    let same = |old: &StorageClass, new: &StorageClass| {
        (old.is_default(), &old.provisioner, old.volume_binding_mode)
            == (new.is_default(), &new.provisioner, new.volume_binding_mode)
    };
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => !same(old, new),
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

/// For a node: its name, if it was deleted.
pub(super) fn by_node(change: &Change<Node>) -> Option<&str> {
    change.new.is_none().then_some(change.key.name.as_str())
}

/// For a pod: its claims, when it is created, scheduled, terminated or deleted.
pub(super) fn by_pod(change: &Change<Pod>) -> Vec<Key> {
    let relevant = |pod: &Pod| (pod.metadata.uid.clone(), pod.node_name.is_empty(), is_terminated(pod));
    if change.old.as_deref().map(relevant) == change.new.as_deref().map(relevant) {
        return Vec::new();
    }
    let namespace = change.key.namespace.as_deref().unwrap_or_default();
    let pods = change.old.iter().chain(&change.new);
    let mut claims: Vec<Key> =
        pods.flat_map(|pod| pod.claims.iter()).map(|claim| Key::namespaced(namespace, claim)).collect();
    claims.sort();
    claims.dedup();
    claims
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use wharf_model::Kind;

    use super::*;

    fn change<K: Kind + DeserializeOwned>(old: Value, new: Value) -> Change<K> {
        let object = |value: Value| -> Option<Arc<K>> {
            (!value.is_null()).then(|| Arc::new(serde_json::from_value(value).unwrap()))
        };
        let (old, new) = (object(old), object(new));
        let key = old.as_ref().or(new.as_ref()).unwrap().key();
        Change { key, old, new }
    }

    fn volume(claim: Option<&str>, phase: &str, class: &str) -> Value {
        let claim = claim.map(|name| json!({"namespace": "ns", "name": name, "uid": "u"}));
        json!({
            "metadata": {"name": "v"},
            "spec": {"claimRef": claim, "storageClassName": class},
            "status": {"phase": phase},
        })
    }

    /// kubernetes.md 1.1 "Wake-ups", and kubernetes#95497: a volume that becomes available wakes claims at once, not at
    /// the next resync.
    #[test]
    fn volume_changes_wake_claims_and_classes() {
        let claim = |name: &str| WorkItem::Claim(Key::namespaced("ns", name));
        let (own, class) = (|| WorkItem::Volume("v".into()), |name: &str| WorkItem::Class(name.into()));
        let free = || volume(None, "Available", "c");
        let sized = |mut volume: Value, size: &str| {
            volume["spec"]["capacity"] = json!({"storage": size});
            volume
        };
        for (case, old, new, items, wake_claims_by_name) in [
            ("new", Value::Null, volume(None, "Pending", "c"), vec![own()], true),
            ("new and available", Value::Null, free(), vec![own(), class("c")], true),
            ("available now", volume(None, "Pending", "c"), free(), vec![own(), class("c")], false),
            ("unchanged", free(), free(), vec![own()], false),
            (
                "available in another class",
                free(),
                volume(None, "Available", "d"),
                vec![own(), class("d")],
                true,
            ),
            ("larger", free(), sized(free(), "2Gi"), vec![own(), class("c")], true),
            (
                "larger, before it is available",
                volume(None, "Pending", "c"),
                sized(volume(None, "Pending", "c"), "2Gi"),
                vec![own()],
                true,
            ),
            ("claimed", free(), volume(Some("a"), "Available", "c"), vec![claim("a"), own()], true),
            (
                "claimed by another",
                volume(Some("a"), "Bound", "c"),
                volume(Some("b"), "Bound", "c"),
                vec![claim("a"), claim("b")],
                true,
            ),
            (
                "released",
                volume(Some("a"), "Bound", "c"),
                volume(Some("a"), "Released", "c"),
                vec![claim("a")],
                false,
            ),
            ("deleted", volume(Some("a"), "Bound", "c"), Value::Null, vec![claim("a")], true),
        ] {
            assert_eq!(by_volume(&change(old, new)), VolumeWakeups { items, wake_claims_by_name }, "{case}");
        }
    }

    /// kubernetes.md 1.1 "Wake-ups", "Default class": a class that appears or becomes the default wakes claims.
    #[test]
    fn class_changes_wake_waiting_claims() {
        let class = |default: &str, provisioner: &str| {
            json!({
                "metadata": {"name": "c", "annotations": {"storageclass.kubernetes.io/is-default-class": default}},
                "provisioner": provisioner,
            })
        };
        for (old, new, expected) in [
            (Value::Null, class("", "d"), true),
            (class("", "d"), class("true", "d"), true),
            (class("", "d"), class("", "e"), true),
            (class("true", "d"), class("true", "d"), false),
            (class("true", "d"), Value::Null, false),
        ] {
            let case = format!("{old} {new}");
            assert_eq!(by_class(&change(old, new)), expected, "{case}");
        }
    }

    /// kubernetes#100485: the deletion of a node wakes claims at once.
    #[test]
    fn deleted_node_wakes_its_claims() {
        let node = || json!({"metadata": {"name": "n"}});
        assert_eq!(by_node(&change(node(), Value::Null)), Some("n"));
        assert_eq!(by_node(&change(node(), node())), None);
        assert_eq!(by_node(&change(Value::Null, node())), None);
    }

    /// kubernetes.md 1.1 "First consumer", "Recycle".
    #[test]
    fn pod_changes_wake_their_claims() {
        let pod = |uid: &str, node: &str, phase: &str, claim: &str| {
            json!({
                "metadata": {"name": "p", "namespace": "ns", "uid": uid},
                "spec": {"nodeName": node, "volumes": [
                    {"name": "a", "persistentVolumeClaim": {"claimName": claim}}, {"name": "b", "ephemeral": {}},
                ]},
                "status": {"phase": phase},
            })
        };
        let waiting = || pod("1", "", "Pending", "c");
        for (old, new, expected) in [
            (Value::Null, waiting(), vec!["c", "p-b"]),
            (waiting(), waiting(), vec![]),
            (waiting(), pod("1", "n", "Pending", "c"), vec!["c", "p-b"]),
            (pod("1", "n", "Pending", "c"), pod("1", "n", "Running", "c"), vec![]),
            (pod("1", "n", "Running", "c"), pod("1", "n", "Failed", "c"), vec!["c", "p-b"]),
            (pod("1", "n", "Failed", "c"), Value::Null, vec!["c", "p-b"]),
            (pod("1", "n", "Running", "c"), pod("2", "n", "Running", "d"), vec!["c", "d", "p-b"]),
        ] {
            let case = format!("{old} {new}");
            let woken: Vec<String> = by_pod(&change(old, new)).into_iter().map(|key| key.name).collect();
            assert_eq!(woken, expected, "{case}");
        }
    }
}
