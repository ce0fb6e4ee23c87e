//! Which claims stand for a source, and what a change of them wakes.

use serde_json::{Value, json};

use super::*;

fn claim(spec: Value, phase: &str) -> Arc<PersistentVolumeClaim> {
    let value =
        json!({"metadata": {"namespace": "ns", "name": "new"}, "spec": spec, "status": {"phase": phase}});
    Arc::new(serde_json::from_value(value).unwrap())
}

fn snapshot(name: &str) -> Value {
    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name})
}

/// sidecars.md 1.1 "Clone finalizer", "Snapshot finalizer": by either field, of whatever namespace.
#[test]
fn what_a_claim_may_be_made_from() {
    let clone = json!({"kind": "PersistentVolumeClaim", "name": "old"});
    let elsewhere = json!({"kind": "PersistentVolumeClaim", "name": "old", "namespace": "other"});
    let foreign = json!({"apiGroup": "x.dev", "kind": "Backup", "name": "old"});
    for (spec, expected) in [
        (json!({}), vec![]),
        (json!({"dataSource": clone}), vec!["claim ns/old"]),
        (json!({"dataSourceRef": clone}), vec!["claim ns/old"]),
        (json!({"dataSource": clone, "dataSourceRef": clone}), vec!["claim ns/old"]),
        (json!({"dataSourceRef": elsewhere}), vec!["claim other/old"]),
        (json!({"dataSource": clone, "dataSourceRef": snapshot("s")}), vec!["snapshot ns/s", "claim ns/old"]),
        (json!({"dataSourceRef": foreign}), vec![]),
    ] {
        let sources: Vec<_> = sources(&claim(spec.clone(), "Pending")).iter().map(index_value).collect();
        assert_eq!(sources, expected, "{spec}");
    }
}

/// sidecars.md 1.1 "Snapshot finalizer": removed after PV, which is when the claim no longer waits.
#[test]
fn a_claim_lets_go_of_its_source_once() {
    let spec = || json!({"dataSource": snapshot("s")});
    let of = |phase: &str| Some(claim(spec(), phase));
    let woken = [Key::namespaced("ns", "s")].map(wish).to_vec();
    for (old, new, expected) in [
        (None, of("Pending"), vec![]),
        (of("Pending"), of("Pending"), vec![]),
        (of(""), of("Pending"), vec![]),
        (of("Pending"), of("Bound"), woken.clone()),
        (of(""), of("Bound"), woken.clone()),
        (of("Pending"), of("Lost"), woken.clone()),
        (of("Pending"), None, woken.clone()),
        (of("Bound"), of("Bound"), vec![]),
        (of("Bound"), None, vec![]),
        // Just seen for the first time: the sweep sees to it.
        (None, of("Bound"), vec![]),
    ] {
        let change = Change { key: Key::namespaced("ns", "new"), old, new };
        assert_eq!(restored_by(&change), expected, "{change:?}");
    }
}
