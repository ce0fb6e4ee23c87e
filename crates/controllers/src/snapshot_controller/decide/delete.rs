//! Deletion of a snapshot. Class and claim are not needed: they may no longer exist.
//!
//! A content is deleted only here, while its snapshot is observed in deletion. A content whose snapshot is missing
//! may have been imported from another cluster, together with its data.

use wharf_model::VolumeSnapshot;
use wharf_model::snapshot::{DeletionPolicy, names};

use super::super::view::{Lookup, ParentGroup, View};
use super::{Step, WaitingFor};

/// The finalizers that we put on snapshots.
const FINALIZERS: [&str; 3] =
    [names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION, names::IN_GROUP_PROTECTION];

pub(super) fn decide(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    let present = |finalizers: &[&'static str]| -> Vec<&'static str> {
        finalizers.iter().copied().filter(|finalizer| snapshot.metadata.has_finalizer(finalizer)).collect()
    };
    if present(&FINALIZERS).is_empty() {
        return Step::Idle;
    }
    let content = match view.content {
        // It may have just been created, by us or by a process that crashed.
        Lookup::NotCached => return Step::FetchContent(snapshot.expected_content_name()),
        Lookup::Found(content) if content.is_bound_to(&snapshot.metadata) => Some(content),
        // It may have just been bound, by a process that crashed.
        Lookup::Found(_) if !view.content_fetched => {
            return Step::FetchContent(snapshot.expected_content_name());
        }
        Lookup::NotFound | Lookup::Found(_) => None,
    };
    if content.is_some() && view.restoring {
        return Step::Wait(WaitingFor::Restore);
    }
    match view.parent {
        ParentGroup::NotCached => return Step::FetchParentGroup,
        ParentGroup::Found(group) => return Step::Wait(WaitingFor::Group(group.key().to_string())),
        ParentGroup::None | ParentGroup::NotFound => {}
    }
    let Some(content) = content else { return Step::RemoveFinalizers(present(&FINALIZERS)) };
    if content.metadata.annotation(names::BEING_DELETED).is_none() {
        return Step::MarkContentBeingDeleted;
    }
    if content.spec.deletion_policy != DeletionPolicy::Delete {
        return Step::RemoveFinalizers(present(&FINALIZERS));
    }
    if !content.metadata.is_deleting() {
        return Step::DeleteContent;
    }
    match present(&[names::AS_SOURCE_PROTECTION, names::IN_GROUP_PROTECTION]) {
        finalizers if finalizers.is_empty() => Step::Wait(WaitingFor::Content),
        finalizers => Step::RemoveFinalizers(finalizers),
    }
}
