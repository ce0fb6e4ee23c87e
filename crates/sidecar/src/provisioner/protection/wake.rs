//! Which claims stand for a source, and what a change of them wakes.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_cluster::{Change, Priority};
use wharf_model::claim::ClaimPhase;
use wharf_model::names::finalizer::CLONING_PROTECTION;
use wharf_model::{Key, Kind, PersistentVolumeClaim};

use crate::provisioner::source::{Named, named};
use wharf_cluster::work::Wish;

/// The sources for which a claim stands while it waits, as an index has them.
pub(super) fn values(claim: &PersistentVolumeClaim) -> Vec<String> {
    match waits(claim) {
        true => sources(claim).iter().map(value).collect(),
        false => Vec::new(),
    }
}

/// A source, as an index has it.
pub(super) fn value(source: &Named) -> String {
    match source {
        Named::Claim(key) => format!("claim {key}"),
        Named::Snapshot(key) => format!("snapshot {key}"),
        Named::Foreign => String::new(),
    }
}

/// Whether a claim may still get a volume made for it.
fn waits(claim: &PersistentVolumeClaim) -> bool {
    !matches!(claim.status.phase, ClaimPhase::Bound | ClaimPhase::Lost)
}

/// What a claim may be made from: by either of its fields, since who reads the other one must find it protected too.
fn sources(claim: &PersistentVolumeClaim) -> BTreeSet<Named> {
    let spec = &claim.spec;
    let fields = [&spec.data_source, &spec.data_source_ref];
    let sources = fields.into_iter().flatten().map(|source| named(claim, source));
    sources.filter(|source| *source != Named::Foreign).collect()
}

/// The sources of a claim that waited for its volume and does so no longer.
fn let_go(change: &Change<PersistentVolumeClaim>) -> BTreeSet<Named> {
    match (&change.old, &change.new) {
        (Some(old), new) if waits(old) && !new.as_ref().is_some_and(|new| waits(new)) => sources(old),
        _ => BTreeSet::new(),
    }
}

fn wish(key: Key) -> Wish<Key> {
    Wish { key, priority: Priority::Low }
}

/// The claims whose protection may end by a change; `known` gives a claim as it is now.
pub(super) fn cloned_by(
    change: &Change<PersistentVolumeClaim>,
    known: impl Fn(&Key) -> Option<Arc<PersistentVolumeClaim>>,
) -> Vec<Wish<Key>> {
    let cloned = let_go(change).into_iter().filter_map(|source| match source {
        Named::Claim(key) => known(&key),
        _ => None,
    });
    let ends = |claim: &Arc<PersistentVolumeClaim>| {
        claim.metadata.is_deleting() && claim.metadata.has_finalizer(CLONING_PROTECTION)
    };
    change.new.clone().into_iter().chain(cloned).filter(ends).map(|claim| wish(claim.key())).collect()
}

/// The snapshots whose protection may end by a change. Changes that were missed are the sweep's.
pub(super) fn restored_by(change: &Change<PersistentVolumeClaim>) -> Vec<Wish<Key>> {
    let snapshots = let_go(change).into_iter().filter_map(|source| match source {
        Named::Snapshot(key) => Some(wish(key)),
        _ => None,
    });
    snapshots.collect()
}

#[cfg(test)]
mod tests {
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
            (
                json!({"dataSource": clone, "dataSourceRef": snapshot("s")}),
                vec!["snapshot ns/s", "claim ns/old"],
            ),
            (json!({"dataSourceRef": foreign}), vec![]),
        ] {
            let sources: Vec<_> = values(&claim(spec.clone(), "Pending"));
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

    /// sidecars.md 1.1 "Clone finalizer": removed from a claim that is to be deleted, once nobody is made from it.
    #[test]
    fn claims_whose_protection_may_end() {
        let source = |deleting: bool, finalizer: &str| {
            let mut claim = PersistentVolumeClaim::default();
            claim.metadata.namespace = Some("ns".into());
            claim.metadata.name = "old".into();
            claim.metadata.finalizers = vec![finalizer.to_owned()];
            claim.metadata.deletion_timestamp = deleting.then_some(wharf_model::Time(1));
            Arc::new(claim)
        };
        let clone = |phase: &str| {
            Some(claim(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "old"}}), phase))
        };
        let restored = |phase: &str| Some(claim(json!({"dataSource": snapshot("old")}), phase));
        let old = Key::namespaced("ns", "old");
        for (deleting, finalizer, ends) in
            [(true, CLONING_PROTECTION, true), (true, "x", false), (false, CLONING_PROTECTION, false)]
        {
            let expected: Vec<_> = ends.then(|| wish(old.clone())).into_iter().collect();
            let source = source(deleting, finalizer);
            let woken = |before, after, known: Option<&Arc<PersistentVolumeClaim>>| {
                let change = Change { key: old.clone(), old: before, new: after };
                cloned_by(&change, |key| known.filter(|_| *key == old).cloned())
            };
            let told = format!("{deleting} {finalizer}");
            // By its own change, and by that of the claim that was made from it.
            assert_eq!(woken(None, Some(Arc::clone(&source)), None), expected, "{told}");
            assert_eq!(woken(clone("Pending"), clone("Bound"), Some(&source)), expected, "{told}");
            assert_eq!(woken(clone("Pending"), clone("Pending"), Some(&source)), [], "{told}");
            assert_eq!(woken(clone("Pending"), clone("Bound"), None), [], "{told}");
            assert_eq!(woken(restored("Pending"), restored("Bound"), Some(&source)), [], "{told}");
        }
    }

    /// A claim that has its volume, or has lost it, waits for none.
    #[test]
    fn who_stands_for_a_source() {
        for (phase, stands) in [("", true), ("Pending", true), ("Bound", false), ("Lost", false)] {
            let values = values(&claim(json!({"dataSource": snapshot("s")}), phase));
            assert_eq!(values, if stands { vec!["snapshot ns/s"] } else { vec![] }, "{phase}");
        }
        assert_eq!(value(&Named::Foreign), "");
    }
}
