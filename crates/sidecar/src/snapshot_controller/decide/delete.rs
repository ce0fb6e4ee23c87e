//! The end of a snapshot. Neither class nor claim has a part in it: they may be gone.
//!
//! A content is deleted only here, where its snapshot is seen going: a content whose snapshot is missing may have been
//! brought here from elsewhere, and its data with it.

use wharf_model::VolumeSnapshot;
use wharf_model::snapshot::{DeletionPolicy, names};

use super::super::view::{Found, Parent, View, content_of, points_back};
use super::{Step, Waiting};

/// Those that we put on snapshots.
const OURS: [&str; 3] = [names::AS_SOURCE_PROTECTION, names::BOUND_PROTECTION, names::IN_GROUP_PROTECTION];

pub(super) fn decide(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    let on = |guards: &[&'static str]| -> Vec<&'static str> {
        guards.iter().copied().filter(|guard| snapshot.metadata.has_finalizer(guard)).collect()
    };
    if on(&OURS).is_empty() {
        return Step::Done;
    }
    let content = match view.content {
        // It may have been made a moment ago, by us or by somebody who died.
        Found::NotSeen => return Step::AskContent(content_of(snapshot)),
        Found::Here(content) if points_back(content, &snapshot.metadata) => Some(content),
        // It may have been bound a moment ago, by somebody who died.
        Found::Here(_) if !view.asked => return Step::AskContent(content_of(snapshot)),
        Found::Gone | Found::Here(_) => None,
    };
    if content.is_some() && view.restoring {
        return Step::Wait(Waiting::Restore);
    }
    match view.parent {
        Parent::NotSeen => return Step::AskParent,
        Parent::Here(group) => return Step::Wait(Waiting::Group(group.key().to_string())),
        Parent::None | Parent::Gone => {}
    }
    let Some(content) = content else { return Step::Release(on(&OURS)) };
    if content.metadata.annotation(names::BEING_DELETED).is_none() {
        return Step::MarkContent;
    }
    if content.spec.deletion_policy != DeletionPolicy::Delete {
        return Step::Release(on(&OURS));
    }
    if !content.metadata.is_deleting() {
        return Step::DeleteContent;
    }
    match on(&[names::AS_SOURCE_PROTECTION, names::IN_GROUP_PROTECTION]) {
        guards if guards.is_empty() => Step::Wait(Waiting::Content),
        guards => Step::Release(guards),
    }
}
