//! Which changes call for a look at what. Changes that nobody waits for call for none.

use wharf_cluster::Change;
use wharf_model::matching::offered_in;
use wharf_model::whole::Pod;
use wharf_model::{Key, Node, PersistentVolume, StorageClass};

use super::view::{Subject, has_ended};

/// What a change of a volume calls for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VolumeNews {
    /// The volume's own subjects: before and now.
    pub(super) subjects: Vec<Subject>,
    /// Claims that ask for it by name are to look.
    pub(super) asked_for: bool,
}

/// For a volume: its claim of before, its claim of now, and if it is newly to be had, whoever waits for its class.
pub(super) fn by_volume(change: &Change<PersistentVolume>) -> VolumeNews {
    let (old, new) = (change.old.as_deref(), change.new.as_deref());
    let mut subjects: Vec<Subject> = old.into_iter().chain(new).map(Subject::of).collect();
    let offered = |volume: Option<&PersistentVolume>| volume.and_then(offered_in).map(str::to_owned);
    // A class or label that changes may make a volume fit that did not.
    let differs = |old: &PersistentVolume, new: &PersistentVolume| {
        old.spec != new.spec || old.metadata.labels != new.metadata.labels || old.class() != new.class()
    };
    let news = match (offered(old), old.zip(new)) {
        (Some(_), Some((old, new))) => differs(old, new),
        _ => true,
    };
    if let Some(class) = offered(new).filter(|_| news) {
        subjects.push(Subject::Class(class));
    }
    subjects.sort();
    subjects.dedup();
    let asked_for = old.zip(new).is_none_or(|(old, new)| differs(old, new));
    VolumeNews { subjects, asked_for }
}

/// For a class: whether claims of it, and those that name none, are to look.
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

/// For a node: the one that is gone.
pub(super) fn by_node(change: &Change<Node>) -> Option<&str> {
    change.new.is_none().then_some(change.key.name.as_str())
}

/// For a pod: its claims, when it comes, gets its node, ends or goes.
pub(super) fn by_pod(change: &Change<Pod>) -> Vec<Key> {
    let said = |pod: &Pod| (pod.metadata.uid.clone(), pod.spec.node_name.is_empty(), has_ended(pod));
    if change.old.as_deref().map(said) == change.new.as_deref().map(said) {
        return Vec::new();
    }
    let namespace = change.key.namespace.as_deref().unwrap_or_default();
    let pods = change.old.iter().chain(&change.new);
    let mut claims: Vec<Key> =
        pods.flat_map(|pod| pod.claims()).map(|claim| Key::namespaced(namespace, claim)).collect();
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
        let of = |value: Value| -> Option<Arc<K>> {
            (!value.is_null()).then(|| Arc::new(serde_json::from_value(value).unwrap()))
        };
        let (old, new) = (of(old), of(new));
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

    /// kubernetes.md 1.1 "Wake-ups", and kubernetes#95497: what becomes available is
    /// seen at once, not at the next resync.
    #[test]
    fn volumes() {
        let claim = |name: &str| Subject::Claim(Key::namespaced("ns", name));
        let (own, class) = (|| Subject::Volume("v".into()), |name: &str| Subject::Class(name.into()));
        let free = || volume(None, "Available", "c");
        let sized = |mut volume: Value, size: &str| {
            volume["spec"]["capacity"] = json!({"storage": size});
            volume
        };
        for (rule, old, new, subjects, asked_for) in [
            ("new", Value::Null, volume(None, "Pending", "c"), vec![own()], true),
            ("new and to be had", Value::Null, free(), vec![own(), class("c")], true),
            ("to be had now", volume(None, "Pending", "c"), free(), vec![own(), class("c")], false),
            ("nothing new", free(), free(), vec![own()], false),
            (
                "to be had in another class",
                free(),
                volume(None, "Available", "d"),
                vec![own(), class("d")],
                true,
            ),
            ("made larger", free(), sized(free(), "2Gi"), vec![own(), class("c")], true),
            (
                "made larger before it is to be had",
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
            ("gone", volume(Some("a"), "Bound", "c"), Value::Null, vec![claim("a")], true),
        ] {
            assert_eq!(by_volume(&change(old, new)), VolumeNews { subjects, asked_for }, "{rule}");
        }
    }

    /// kubernetes.md 1.1 "Wake-ups", "Default class": seen when a class appears or becomes the default.
    #[test]
    fn classes() {
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
            let row = format!("{old} {new}");
            assert_eq!(by_class(&change(old, new)), expected, "{row}");
        }
    }

    /// kubernetes#100485: a node that is gone is seen at once.
    #[test]
    fn nodes() {
        let node = || json!({"metadata": {"name": "n"}});
        assert_eq!(by_node(&change(node(), Value::Null)), Some("n"));
        assert_eq!(by_node(&change(node(), node())), None);
        assert_eq!(by_node(&change(Value::Null, node())), None);
    }

    /// kubernetes.md 1.1 "First consumer", "Recycle".
    #[test]
    fn pods() {
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
            let row = format!("{old} {new}");
            let woken: Vec<String> = by_pod(&change(old, new)).into_iter().map(|key| key.name).collect();
            assert_eq!(woken, expected, "{row}");
        }
    }
}
