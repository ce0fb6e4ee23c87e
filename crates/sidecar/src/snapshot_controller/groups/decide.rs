//! What to do next for a group snapshot: pure and exhaustive.
//!
//! - It gets its finalizer before anything is made for it or bound to it, and not while there is nothing to protect: a
//!   group that cannot be taken goes when its user deletes it, whoever runs then.
//! - For each member a snapshot is made first and its content after it, so that no content is without a snapshot.
//! - Its members go with it and not before; what the driver has of them goes with the group's content.

use wharf_model::SecretRef;
use wharf_model::group_snapshot::MemberInfo;
use wharf_model::snapshot::{DeletionPolicy, names};
use wharf_model::{Key, VolumeGroupSnapshot, VolumeGroupSnapshotContent};

use super::super::decide::Fault;
use super::super::mirror::Mirrored;
use super::super::view::Found;
use super::members;
use super::mirror::mirror;
use super::view::{View, bound, content_of, is_created, is_named, is_ready, points_back, pre_provisioned};

mod create;
#[cfg(test)]
mod tests;

/// What to do next. After each step the group comes round again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is gone: nothing is to be remembered.
    Forget,
    /// Nothing more until something changes.
    Done,
    /// A claim is being restored from this member.
    WaitRestore(Key),
    /// The content goes.
    WaitContent,
    /// It cannot go on: tell, and try again later.
    Fail(Fault),
    /// Ask the server for the content of this name.
    AskContent(String),
    /// Ask the server for the claims and their volumes.
    AskSources,
    /// Put the finalizer on it.
    Guard,
    /// Write down the default class.
    SetClass(String),
    /// Make the content.
    CreateContent(GroupCreation),
    /// Let the content that there was already point to it, and give it the class if it is named.
    BindContent {
        /// The class.
        class: Option<String>,
    },
    /// Make the snapshot of a member.
    CreateMember {
        /// What the driver told of it.
        info: MemberInfo,
        /// The claim that it is of; empty if nobody knows.
        claim: String,
    },
    /// Make the content of a member, for the snapshot of this identity.
    CreateMemberContent {
        /// What the driver told of it.
        info: MemberInfo,
        /// The mode of its volume.
        volume_mode: Option<&'static str>,
        /// The snapshot's identity.
        snapshot: String,
    },
    /// Let a member's content, made by somebody who died, point to its snapshot.
    BindMemberContent {
        /// The content.
        content: String,
        /// The snapshot's identity.
        snapshot: String,
    },
    /// Write what the driver told into a member's content.
    TellMember(MemberInfo),
    /// Let a member's snapshot point to its content.
    BindMember(MemberInfo),
    /// Write the content's status into it.
    Mirror(Mirrored),
    /// Tell the snapshotter that the content may go.
    MarkContent,
    /// Delete the content.
    DeleteContent,
    /// Delete a member's snapshot.
    DeleteMember(Key),
    /// Take the finalizer off it.
    Release,
}

/// What a new content is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupCreation {
    pub(crate) class: String,
    pub(crate) driver: String,
    pub(crate) policy: DeletionPolicy,
    pub(crate) volume_handles: Vec<String>,
    pub(crate) node: Option<String>,
    pub(crate) secret: Option<SecretRef>,
}

/// What to do next.
pub(crate) fn decide(view: &View<'_>) -> Step {
    let Some(group) = view.group else { return Step::Forget };
    if group.metadata.is_deleting() {
        return delete(view, group);
    }
    let source = &group.spec.source;
    if source.selector.is_some() == source.volume_group_snapshot_content_name.is_some() {
        return Step::Fail(Fault::new(
            "GroupSnapshotValidationError",
            "Exactly one of Selector and VolumeGroupSnapshotContentName should be specified",
        ));
    }
    if let Found::Here(content) = view.content
        && let Err(fault) = belongs(group, content)
    {
        return Step::Fail(fault);
    }
    let is_guarded = group.metadata.has_finalizer(names::GROUP_PROTECTION);
    match (view.content, is_ready(group) && bound(group).is_some()) {
        (Found::NotSeen, _) => Step::AskContent(content_of(group)),
        (Found::Here(_), _) if !is_guarded => Step::Guard,
        (Found::Here(_), true) => Step::Done,
        (Found::Gone, true) => Step::Fail(missing()),
        (Found::Gone, false) if pre_provisioned(group).is_some() || is_created(group) => {
            Step::Fail(missing())
        }
        (Found::Gone, false) => match create::decide(view, group) {
            Step::CreateContent(_) if !is_guarded => Step::Guard,
            step => step,
        },
        (Found::Here(content), false) => advance(view, group, content),
    }
}

fn missing() -> Fault {
    Fault::new("GroupSnapshotContentMissing", "VolumeGroupSnapshotContent is missing")
}

/// Whether the content is one for this group snapshot.
fn belongs(group: &VolumeGroupSnapshot, content: &VolumeGroupSnapshotContent) -> Result<(), Fault> {
    let (key, name) = (group.metadata.key(), &content.metadata.name);
    let has_handles = content.spec.source.group_snapshot_handles.is_some();
    // Upstream finds it out when it is about to put its finalizer on the group, and tells of that too.
    let failed = |fault: Fault, error: String| {
        let note = format!("Failed to check and update group snapshot: {error}");
        fault.beside("GroupSnapshotFinalizerError", note)
    };
    let misplaced = || {
        let message = format!("VolumeGroupSnapshotContent [{name}] is bound to a different group snapshot");
        failed(Fault::new("GroupSnapshotContentMisbound", &*message), message)
    };
    let ours = points_back(content, &group.metadata);
    match (pre_provisioned(group).is_some(), has_handles) {
        (false, true) => {
            let message = format!(
                "VolumeGroupSnapshotContent {name} is pre-provisioned while expecting a dynamically provisioned one"
            );
            let error = format!(
                "group snapshot {key} expects a dynamically provisioned VolumeGroupSnapshotContent {name} but gets a pre-provisioned one"
            );
            Err(failed(Fault::new("GroupSnapshotContentMismatch", message), error))
        }
        (true, false) => {
            let message =
                "VolumeGroupSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
            let error = format!(
                "group snapshot {key} expects a pre-provisioned VolumeGroupSnapshotContent {name} but gets a dynamically provisioned one"
            );
            Err(failed(Fault::new("GroupSnapshotContentMismatch", message), error))
        }
        (false, false) if ours => Ok(()),
        (false, false) => Err(misplaced()),
        (true, true) => {
            let free =
                content.spec.volume_group_snapshot_ref.uid.is_empty() && is_named(content, &group.metadata);
            match (ours, free, is_ready(group)) {
                (true, _, _) | (_, true, false) => Ok(()),
                (false, true, true) => Err(Fault::new(
                    "GroupSnapshotMisbound",
                    "VolumeGroupSnapshotContent is not bound to the VolumeGroupSnapshot correctly",
                )),
                (false, false, _) => Err(misplaced()),
            }
        }
    }
}

/// One that is not ready yet and has a content.
fn advance(view: &View<'_>, group: &VolumeGroupSnapshot, content: &VolumeGroupSnapshotContent) -> Step {
    if pre_provisioned(group).is_some() {
        let class = &group.spec.volume_group_snapshot_class_name;
        let is_free = content.spec.volume_group_snapshot_ref.uid.is_empty();
        if is_free || (content.spec.volume_group_snapshot_class_name.is_none() && class.is_some()) {
            return match (class, view.class) {
                (Some(name), None) => Step::Fail(create::no_class(name)),
                (Some(name), Some(class)) if class.driver != content.spec.driver => {
                    let (content, of, driver) = (&content.metadata.name, &content.spec.driver, &class.driver);
                    let message = format!(
                        "GroupSnapshot failed to bind VolumeGroupSnapshotContent, content {content} is of driver {of} and class {name} of driver {driver}: name a class of the content's driver, or none"
                    );
                    Step::Fail(Fault::new("GroupSnapshotBindFailed", message))
                }
                (class, _) => Step::BindContent { class: class.clone() },
            };
        }
    } else if let Some(step) = view.members.iter().find_map(|member| members::next(group, member)) {
        return step;
    }
    match mirror(group, content) {
        Some(mirrored) => Step::Mirror(mirrored),
        None => Step::Done,
    }
}

/// The end of a group. Neither class nor claims have a part in it: they may be gone.
fn delete(view: &View<'_>, group: &VolumeGroupSnapshot) -> Step {
    if !group.metadata.has_finalizer(names::GROUP_PROTECTION) {
        return Step::Done;
    }
    let content = match view.content {
        Found::NotSeen => return Step::AskContent(content_of(group)),
        Found::Here(content) if points_back(content, &group.metadata) => Some(content),
        // It may have been bound a moment ago, by somebody who died.
        Found::Here(_) if !view.asked => return Step::AskContent(content_of(group)),
        Found::Gone | Found::Here(_) => None,
    };
    if let Some(member) = view.restoring {
        return Step::WaitRestore(member.clone());
    }
    let deletes =
        |content: &VolumeGroupSnapshotContent| content.spec.deletion_policy == DeletionPolicy::Delete;
    if let Some(content) = content {
        if content.metadata.annotation(names::GROUP_BEING_DELETED).is_none() {
            return Step::MarkContent;
        }
        if deletes(content) && !content.metadata.is_deleting() {
            return Step::DeleteContent;
        }
    }
    if let Some(member) = view.owned.iter().find(|member| !member.metadata.is_deleting()) {
        return Step::DeleteMember(member.metadata.key());
    }
    match content {
        Some(content) if deletes(content) => Step::WaitContent,
        _ => Step::Release,
    }
}
