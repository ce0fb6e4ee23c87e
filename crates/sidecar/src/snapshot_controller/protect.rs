//! Two small rules beside the snapshots': contents get their finalizer, and claims lose theirs.

use wharf_model::snapshot::names;
use wharf_model::{PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotContent};

use super::view::{claim_of, is_ready};

/// What to do next for a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentStep {
    /// Nothing.
    Done,
    /// Tell that its source is not one.
    TellInvalid,
    /// Put the finalizer on it.
    Guard,
}

/// What upstream says of a content with both sources or none.
pub(crate) const INVALID: &str = "Exactly one of VolumeHandle and SnapshotHandle should be specified";

/// A content that a snapshot is bound to must not go unseen. One that waits for its snapshot is its maker's still.
pub(crate) fn content(content: &VolumeSnapshotContent) -> ContentStep {
    let source = &content.spec.source;
    if source.volume_handle.is_some() == source.snapshot_handle.is_some() {
        return ContentStep::TellInvalid;
    }
    let is_bound = !content.spec.volume_snapshot_ref.uid.is_empty();
    let guarded = content.metadata.has_finalizer(names::CONTENT_PROTECTION);
    match is_bound && !guarded && !content.metadata.is_deleting() {
        true => ContentStep::Guard,
        false => ContentStep::Done,
    }
}

/// Whether a claim's finalizer may go: no snapshot is being taken of it. `snapshots` are all that name it as source.
pub(crate) fn may_go<'a>(
    claim: &PersistentVolumeClaim,
    snapshots: impl IntoIterator<Item = &'a VolumeSnapshot>,
) -> bool {
    let needs = |snapshot: &VolumeSnapshot| {
        claim_of(snapshot) == Some(&claim.metadata.name)
            && snapshot.metadata.namespace == claim.metadata.namespace
            && !is_ready(snapshot)
    };
    claim.metadata.has_finalizer(names::CLAIM_PROTECTION) && !snapshots.into_iter().any(needs)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// sidecars.md 1.4 "Finalizers", "Binding".
    #[test]
    fn contents() {
        let of = |source: Value, uid: &str, metadata: Value| {
            let mut metadata = metadata;
            metadata["name"] = json!("c");
            let spec =
                json!({"source": source, "volumeSnapshotRef": {"name": "s", "namespace": "n", "uid": uid}});
            content(&serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
        };
        let volume = || json!({"volumeHandle": "h"});
        let guarded = json!({"finalizers": [names::CONTENT_PROTECTION]});
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (source, uid, metadata, expected) in [
            (volume(), "u", json!({}), ContentStep::Guard),
            (json!({"snapshotHandle": "h"}), "u", json!({}), ContentStep::Guard),
            (volume(), "u", guarded, ContentStep::Done),
            (volume(), "u", going, ContentStep::Done),
            (volume(), "", json!({}), ContentStep::Done),
            (json!({}), "u", json!({}), ContentStep::TellInvalid),
            (json!({"volumeHandle": "h", "snapshotHandle": "s"}), "u", json!({}), ContentStep::TellInvalid),
        ] {
            let row = format!("{source} {uid} {metadata}");
            assert_eq!(of(source, uid, metadata), expected, "{row}");
        }
    }

    /// sidecars.md 1.4 "Create": the claim's finalizer, and when it goes.
    #[test]
    fn claims() {
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
            assert_eq!(may_go(&claim, &snapshots), expected, "{snapshots:?}");
        }
    }
}
