//! What a snapshot in deletion waits for, by the rules of the controller. For `wharf explain`, which has read all objects
//! from the API server.

use wharf_model::{Meta, VolumeSnapshot, VolumeSnapshotContent};

use super::decide::{Step, WaitingFor, decide};
use super::view::{Lookup, NodeChoice, ParentGroup, View};

/// What a snapshot in deletion waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletionStatus {
    /// It has no finalizer of the snapshot controller.
    NotHeld,
    /// A claim is being restored from it.
    Restoring,
    /// Its group snapshot has to be deleted first.
    HeldByGroup,
    /// The controller has to act next.
    Pending,
    /// Its content is being deleted.
    ContentDeleting,
}

/// What a snapshot in deletion waits for. `content` is the content of its expected name, `restoring` whether a claim is
/// being restored from it, and `group` the group snapshot that it belongs to.
pub fn deletion_status(
    snapshot: &VolumeSnapshot,
    content: Option<&VolumeSnapshotContent>,
    restoring: bool,
    group: Option<&Meta>,
) -> DeletionStatus {
    let view = View {
        snapshot: Some(snapshot),
        content: Lookup::new(content, true),
        content_fetched: true,
        class: None,
        defaults: &[],
        claim: None,
        volume: Lookup::NotFound,
        node: NodeChoice::Any,
        restoring,
        parent: group.map_or(ParentGroup::None, ParentGroup::Found),
        group_name: None,
        record_volume_mode: false,
    };
    match decide(&view) {
        Step::Idle => DeletionStatus::NotHeld,
        Step::Wait(WaitingFor::Restore) => DeletionStatus::Restoring,
        Step::Wait(WaitingFor::Group(_)) => DeletionStatus::HeldByGroup,
        Step::Wait(WaitingFor::Content) => DeletionStatus::ContentDeleting,
        _ => DeletionStatus::Pending,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wharf_model::snapshot::names;

    use super::*;

    /// sidecars.md 1.4 "Delete".
    #[test]
    fn deletion_status_follows_the_controllers_order() {
        let snapshot = |finalizer: &str| -> VolumeSnapshot {
            serde_json::from_value(json!({"metadata": {
                "name": "s", "namespace": "n", "uid": "u", "finalizers": [finalizer],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            }}))
            .unwrap()
        };
        let content = |uid: &str, deleted: Value| -> VolumeSnapshotContent {
            serde_json::from_value(json!({
                "metadata": {
                    "name": "c", "deletionTimestamp": deleted, "annotations": {names::BEING_DELETED: "yes"},
                },
                "spec": {
                    "deletionPolicy": "Delete", "volumeSnapshotRef": {"name": "s", "namespace": "n", "uid": uid},
                },
            }))
            .unwrap()
        };
        let (ours, group) = (snapshot(names::BOUND_PROTECTION), Meta::default());
        let deleted = content("u", json!("2026-01-01T00:00:00Z"));
        let (remaining, other) = (content("u", Value::Null), content("other", Value::Null));
        for (snapshot, content, restoring, group, expected) in [
            (&snapshot("example.com/f"), Some(&remaining), true, Some(&group), DeletionStatus::NotHeld),
            (&ours, Some(&remaining), true, Some(&group), DeletionStatus::Restoring),
            (&ours, Some(&remaining), false, Some(&group), DeletionStatus::HeldByGroup),
            // Without a content of its own, a restore cannot be affected.
            (&ours, Some(&other), true, None, DeletionStatus::Pending),
            (&ours, None, true, Some(&group), DeletionStatus::HeldByGroup),
            (&ours, Some(&remaining), false, None, DeletionStatus::Pending),
            (&ours, Some(&deleted), false, None, DeletionStatus::ContentDeleting),
        ] {
            assert_eq!(
                deletion_status(snapshot, content, restoring, group),
                expected,
                "{content:?} {restoring} {group:?}"
            );
        }
    }
}
