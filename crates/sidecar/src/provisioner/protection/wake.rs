//! Indexes pending claims by data source, and finds the sources that a changed claim no longer needs.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_cluster::{Change, Priority};
use wharf_model::claim::ClaimPhase;
use wharf_model::names::finalizer::CLONING_PROTECTION;
use wharf_model::{Key, Kind, PersistentVolumeClaim};

use crate::provisioner::source::{SourceRef, source_ref};
use wharf_cluster::work::EnqueueRequest;

/// The index values of a claim: its sources while it is pending.
pub(super) fn index_values(claim: &PersistentVolumeClaim) -> Vec<String> {
    match is_pending(claim) {
        true => sources(claim).iter().map(index_value).collect(),
        false => Vec::new(),
    }
}

/// The index value of a source.
pub(super) fn index_value(source: &SourceRef) -> String {
    match source {
        SourceRef::Claim(key) => format!("claim {key}"),
        SourceRef::Snapshot(key) => format!("snapshot {key}"),
        SourceRef::Foreign => String::new(),
    }
}

/// Whether a volume may still be created for the claim.
fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    !matches!(claim.status.phase, ClaimPhase::Bound | ClaimPhase::Lost)
}

/// The sources in either field of a claim: a provisioner that reads the other field must find its source protected,
/// too.
fn sources(claim: &PersistentVolumeClaim) -> BTreeSet<SourceRef> {
    let spec = &claim.spec;
    let fields = [&spec.data_source, &spec.data_source_ref];
    let sources = fields.into_iter().flatten().map(|source| source_ref(claim, source));
    sources.filter(|source| *source != SourceRef::Foreign).collect()
}

/// The sources of a claim that was pending and no longer is.
fn released_sources(change: &Change<PersistentVolumeClaim>) -> BTreeSet<SourceRef> {
    match (&change.old, &change.new) {
        (Some(old), new) if is_pending(old) && !new.as_ref().is_some_and(|new| is_pending(new)) => {
            sources(old)
        }
        _ => BTreeSet::new(),
    }
}

fn work_item(key: Key) -> EnqueueRequest<Key> {
    EnqueueRequest { key, priority: Priority::Low }
}

/// The cloned claims whose protection may end with a change. `known` looks up a claim.
pub(super) fn clone_sources_released_by(
    change: &Change<PersistentVolumeClaim>,
    known: impl Fn(&Key) -> Option<Arc<PersistentVolumeClaim>>,
) -> Vec<EnqueueRequest<Key>> {
    let cloned = released_sources(change).into_iter().filter_map(|source| match source {
        SourceRef::Claim(key) => known(&key),
        _ => None,
    });
    let released = change.new.clone().into_iter().chain(cloned).filter(|claim| may_be_released(claim));
    released.map(|claim| work_item(claim.key())).collect()
}

/// Whether a claim is in deletion and still has the finalizer of a clone's source.
pub(super) fn may_be_released(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.is_deleting() && claim.metadata.has_finalizer(CLONING_PROTECTION)
}

/// The snapshots whose protection may end with a change. The sweep handles missed changes.
pub(super) fn snapshots_released_by(change: &Change<PersistentVolumeClaim>) -> Vec<EnqueueRequest<Key>> {
    let snapshots = released_sources(change).into_iter().filter_map(|source| match source {
        SourceRef::Snapshot(key) => Some(work_item(key)),
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

    /// sidecars.md 1.1 "Clone finalizer", "Snapshot finalizer": by either field, in any namespace.
    #[test]
    fn sources_come_from_both_fields() {
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
            let sources: Vec<_> = index_values(&claim(spec.clone(), "Pending"));
            assert_eq!(sources, expected, "{spec}");
        }
    }

    /// sidecars.md 1.1 "Snapshot finalizer": removed after the PV exists, which is when the claim is no longer pending.
    #[test]
    fn claim_releases_snapshot_when_no_longer_pending() {
        let spec = || json!({"dataSource": snapshot("s")});
        let of = |phase: &str| Some(claim(spec(), phase));
        let woken = [Key::namespaced("ns", "s")].map(work_item).to_vec();
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
            // Observed for the first time: the sweep handles it.
            (None, of("Bound"), vec![]),
        ] {
            let change = Change { key: Key::namespaced("ns", "new"), old, new };
            assert_eq!(snapshots_released_by(&change), expected, "{change:?}");
        }
    }

    /// sidecars.md 1.1 "Clone finalizer": removed from a claim in deletion once nothing clones it.
    #[test]
    fn only_protected_claims_in_deletion_are_woken() {
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
            let expected: Vec<_> = ends.then(|| work_item(old.clone())).into_iter().collect();
            let source = source(deleting, finalizer);
            let woken = |before, after, known: Option<&Arc<PersistentVolumeClaim>>| {
                let change = Change { key: old.clone(), old: before, new: after };
                clone_sources_released_by(&change, |key| known.filter(|_| *key == old).cloned())
            };
            let case = format!("{deleting} {finalizer}");
            // By its own change, and by that of its clone.
            assert_eq!(woken(None, Some(Arc::clone(&source)), None), expected, "{case}");
            assert_eq!(woken(clone("Pending"), clone("Bound"), Some(&source)), expected, "{case}");
            assert_eq!(woken(clone("Pending"), clone("Pending"), Some(&source)), [], "{case}");
            assert_eq!(woken(clone("Pending"), clone("Bound"), None), [], "{case}");
            assert_eq!(woken(restored("Pending"), restored("Bound"), Some(&source)), [], "{case}");
        }
    }

    /// A claim that is bound or lost needs no volume.
    #[test]
    fn only_pending_claims_are_indexed() {
        for (phase, indexed) in [("", true), ("Pending", true), ("Bound", false), ("Lost", false)] {
            let values = index_values(&claim(json!({"dataSource": snapshot("s")}), phase));
            assert_eq!(values, if indexed { vec!["snapshot ns/s"] } else { vec![] }, "{phase}");
        }
        assert_eq!(index_value(&SourceRef::Foreign), "");
    }
}
