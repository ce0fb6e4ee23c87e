//! Two small rules: contents get their finalizer, and claims lose theirs.

use wharf_model::snapshot::names;
use wharf_model::{PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotContent};

/// The next step for a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentStep {
    /// Nothing to do.
    Done,
    /// Report that the source is invalid.
    ReportInvalid,
    /// Add the finalizer.
    AddFinalizer,
}

/// Upstream's message for a content with both sources or none.
pub(crate) const INVALID_SOURCE: &str = "Exactly one of VolumeHandle and SnapshotHandle should be specified";

/// Protects a content that is bound to a snapshot. An unbound one still belongs to its creator.
pub(crate) fn content_step(content: &VolumeSnapshotContent) -> ContentStep {
    let source = &content.spec.source;
    if source.volume_handle.is_some() == source.snapshot_handle.is_some() {
        return ContentStep::ReportInvalid;
    }
    let is_bound = !content.spec.volume_snapshot_ref.uid.is_empty();
    let guarded = content.metadata.has_finalizer(names::CONTENT_PROTECTION);
    match is_bound && !guarded && !content.metadata.is_deleting() {
        true => ContentStep::AddFinalizer,
        false => ContentStep::Done,
    }
}

/// Whether a claim's finalizer can be removed: no snapshot is being created from it. `snapshots` are all that name
/// it as their source.
pub(crate) fn can_release_claim<'a>(
    claim: &PersistentVolumeClaim,
    snapshots: impl IntoIterator<Item = &'a VolumeSnapshot>,
) -> bool {
    let needs = |snapshot: &VolumeSnapshot| {
        snapshot.source_claim_name() == Some(&claim.metadata.name)
            && snapshot.metadata.namespace == claim.metadata.namespace
            && !snapshot.is_ready()
    };
    claim.metadata.has_finalizer(names::CLAIM_PROTECTION) && !snapshots.into_iter().any(needs)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// sidecars.md 1.4 "Finalizers", "Binding".
    #[test]
    fn bound_contents_get_finalizer() {
        let of = |source: Value, uid: &str, metadata: Value| {
            let mut metadata = metadata;
            metadata["name"] = json!("c");
            let spec =
                json!({"source": source, "volumeSnapshotRef": {"name": "s", "namespace": "n", "uid": uid}});
            content_step(&serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
        };
        let volume = || json!({"volumeHandle": "h"});
        let guarded = json!({"finalizers": [names::CONTENT_PROTECTION]});
        let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (source, uid, metadata, expected) in [
            (volume(), "u", json!({}), ContentStep::AddFinalizer),
            (json!({"snapshotHandle": "h"}), "u", json!({}), ContentStep::AddFinalizer),
            (volume(), "u", guarded, ContentStep::Done),
            (volume(), "u", deleting, ContentStep::Done),
            (volume(), "", json!({}), ContentStep::Done),
            (json!({}), "u", json!({}), ContentStep::ReportInvalid),
            (json!({"volumeHandle": "h", "snapshotHandle": "s"}), "u", json!({}), ContentStep::ReportInvalid),
        ] {
            let row = format!("{source} {uid} {metadata}");
            assert_eq!(of(source, uid, metadata), expected, "{row}");
        }
    }

    /// sidecars.md 1.4 "Create": when the claim's finalizer is removed.
    #[test]
    fn claim_is_released_when_all_its_snapshots_are_ready() {
        let claim = |finalizers: Value| -> PersistentVolumeClaim {
            let metadata = json!({"name": "data", "namespace": "n", "finalizers": finalizers});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let snapshot = |namespace: &str, source: &str, ready: bool| -> VolumeSnapshot {
            serde_json::from_value(json!({
                "metadata": {"name": "s", "namespace": namespace},
                "spec": {"source": {"persistentVolumeClaimName": source}}, "status": {"readyToUse": ready},
            }))
            .unwrap()
        };
        let protected = || claim(json!([names::CLAIM_PROTECTION]));
        for (claim, snapshots, expected) in [
            (protected(), vec![], true),
            (claim(json!([])), vec![], false),
            (protected(), vec![snapshot("n", "data", true)], true),
            (protected(), vec![snapshot("n", "data", true), snapshot("n", "data", false)], false),
            (protected(), vec![snapshot("n", "other", false), snapshot("other", "data", false)], true),
        ] {
            assert_eq!(can_release_claim(&claim, &snapshots), expected, "{snapshots:?}");
        }
    }
}
