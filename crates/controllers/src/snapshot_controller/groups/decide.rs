//! Rules for one group snapshot: given its [`View`], the next step. Pure and exhaustive; start at [`decide`].
//!
//! - The group gets its finalizer before anything is created for it or bound to it, but not before there is
//!   something to protect: a group that cannot be created can always be deleted by its user, even if no controller
//!   runs.
//! - For each member the snapshot is created before its content, so that every content has a snapshot.
//! - Members are deleted with their group and not before. The driver deletes their snapshots with the group's
//!   content.

use wharf_model::SecretRef;
use wharf_model::group_snapshot::VolumeSnapshotInfo;
use wharf_model::snapshot::{DeletionPolicy, names};
use wharf_model::{Key, VolumeGroupSnapshot, VolumeGroupSnapshotContent};

use super::super::decide::Failure;
use super::super::mirror::StatusUpdate;
use super::super::view::Lookup;
use super::members;
use super::mirror::status_update;
use super::view::{
    View, bound_content, expected_content_name, is_bound_to, is_created, is_ready, pre_provisioned,
    references_name,
};

mod create;
#[cfg(test)]
mod tests;

/// The next step. After each step the group is decided again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The group no longer exists: drop its state.
    DropState,
    /// Nothing to do until something changes.
    Idle,
    /// Wait: a claim is being restored from this member.
    WaitForRestore(Key),
    /// Wait until the content is deleted.
    WaitForContent,
    /// Report the failure and retry with backoff.
    Fail(Failure),
    /// Read the content of this name from the API server.
    FetchContent(String),
    /// Read the selected claims and their volumes from the API server.
    FetchSources,
    /// Add the finalizer.
    AddFinalizer,
    /// Write the default class into the spec.
    SetDefaultClass(String),
    /// Create the content.
    CreateContent(NewGroupContent),
    /// Bind the pre-provisioned content, and set its class if the group names one.
    BindContent {
        /// The class to set.
        class: Option<String>,
    },
    /// Create the snapshot of a member.
    CreateMember {
        /// The member as reported by the driver.
        info: VolumeSnapshotInfo,
        /// The source claim; empty if unknown.
        claim: String,
    },
    /// Create the content of a member.
    CreateMemberContent {
        /// The member as reported by the driver.
        info: VolumeSnapshotInfo,
        /// The volume mode of the source volume.
        volume_mode: Option<&'static str>,
        /// UID of the member's snapshot.
        snapshot: String,
    },
    /// Bind a member's content, created before a crash, to its snapshot.
    BindMemberContent {
        /// Name of the content.
        content: String,
        /// UID of the member's snapshot.
        snapshot: String,
    },
    /// Write the driver's report to the status of a member's content.
    WriteMemberStatus(VolumeSnapshotInfo),
    /// Bind a member's snapshot to its content.
    BindMember(VolumeSnapshotInfo),
    /// Copy the content's status to the group.
    WriteStatus(StatusUpdate),
    /// Set the being-deleted annotation, which allows the snapshotter to delete.
    MarkContentBeingDeleted,
    /// Delete the content.
    DeleteContent,
    /// Delete a member's snapshot.
    DeleteMember(Key),
    /// Remove the finalizer.
    RemoveFinalizer,
}

/// The fields of a content to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewGroupContent {
    pub(crate) class: String,
    pub(crate) driver: String,
    pub(crate) policy: DeletionPolicy,
    pub(crate) volume_handles: Vec<String>,
    pub(crate) node: Option<String>,
    pub(crate) secret: Option<SecretRef>,
}

/// Decides the next step.
pub(crate) fn decide(view: &View<'_>) -> Step {
    let Some(group) = view.group else { return Step::DropState };
    if group.metadata.is_deleting() {
        return delete(view, group);
    }
    let source = &group.spec.source;
    if source.selector.is_some() == source.volume_group_snapshot_content_name.is_some() {
        return Step::Fail(Failure::new(
            "GroupSnapshotValidationError",
            "Exactly one of Selector and VolumeGroupSnapshotContentName should be specified",
        ));
    }
    if let Lookup::Found(content) = view.content
        && let Err(failure) = check_binding(group, content)
    {
        return Step::Fail(failure);
    }
    let is_guarded = group.metadata.has_finalizer(names::GROUP_PROTECTION);
    match (view.content, is_ready(group) && bound_content(group).is_some()) {
        (Lookup::NotCached, _) => Step::FetchContent(expected_content_name(group)),
        (Lookup::Found(_), _) if !is_guarded => Step::AddFinalizer,
        (Lookup::Found(_), true) => Step::Idle,
        (Lookup::NotFound, true) => Step::Fail(missing()),
        (Lookup::NotFound, false) if pre_provisioned(group).is_some() || is_created(group) => {
            Step::Fail(missing())
        }
        (Lookup::NotFound, false) => match create::decide(view, group) {
            Step::CreateContent(_) if !is_guarded => Step::AddFinalizer,
            step => step,
        },
        (Lookup::Found(content), false) => advance(view, group, content),
    }
}

fn missing() -> Failure {
    Failure::new("GroupSnapshotContentMissing", "VolumeGroupSnapshotContent is missing")
}

/// Checks that the content belongs to this group snapshot.
fn check_binding(group: &VolumeGroupSnapshot, content: &VolumeGroupSnapshotContent) -> Result<(), Failure> {
    let (key, name) = (group.metadata.key(), &content.metadata.name);
    let has_handles = content.spec.source.group_snapshot_handles.is_some();
    // Upstream detects this when it adds its finalizer to the group, and records an event for that, too.
    let failed = |failure: Failure, error: String| {
        let note = format!("Failed to check and update group snapshot: {error}");
        failure.with_extra_event("GroupSnapshotFinalizerError", note)
    };
    let misplaced = || {
        let message = format!("VolumeGroupSnapshotContent [{name}] is bound to a different group snapshot");
        failed(Failure::new("GroupSnapshotContentMisbound", &*message), message)
    };
    let ours = is_bound_to(content, &group.metadata);
    match (pre_provisioned(group).is_some(), has_handles) {
        (false, true) => {
            let message = format!(
                "VolumeGroupSnapshotContent {name} is pre-provisioned while expecting a dynamically provisioned one"
            );
            let error = format!(
                "group snapshot {key} expects a dynamically provisioned VolumeGroupSnapshotContent {name} but gets a pre-provisioned one"
            );
            Err(failed(Failure::new("GroupSnapshotContentMismatch", message), error))
        }
        (true, false) => {
            let message =
                "VolumeGroupSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
            let error = format!(
                "group snapshot {key} expects a pre-provisioned VolumeGroupSnapshotContent {name} but gets a dynamically provisioned one"
            );
            Err(failed(Failure::new("GroupSnapshotContentMismatch", message), error))
        }
        (false, false) if ours => Ok(()),
        (false, false) => Err(misplaced()),
        (true, true) => {
            let free = content.spec.volume_group_snapshot_ref.uid.is_empty()
                && references_name(content, &group.metadata);
            match (ours, free, is_ready(group)) {
                (true, _, _) | (_, true, false) => Ok(()),
                (false, true, true) => Err(Failure::new(
                    "GroupSnapshotMisbound",
                    "VolumeGroupSnapshotContent is not bound to the VolumeGroupSnapshot correctly",
                )),
                (false, false, _) => Err(misplaced()),
            }
        }
    }
}

/// For a group that has a content and is not ready yet.
fn advance(view: &View<'_>, group: &VolumeGroupSnapshot, content: &VolumeGroupSnapshotContent) -> Step {
    if pre_provisioned(group).is_some() {
        let class = &group.spec.volume_group_snapshot_class_name;
        let is_free = content.spec.volume_group_snapshot_ref.uid.is_empty();
        if is_free || (content.spec.volume_group_snapshot_class_name.is_none() && class.is_some()) {
            return match (class, view.class) {
                (Some(name), None) => Step::Fail(create::class_not_found(name)),
                (Some(name), Some(class)) if class.driver != content.spec.driver => {
                    let (content, of, driver) = (&content.metadata.name, &content.spec.driver, &class.driver);
                    let message = format!(
                        "GroupSnapshot failed to bind VolumeGroupSnapshotContent, content {content} belongs to driver {of} and class {name} to driver {driver}: use a class of the content's driver, or none"
                    );
                    Step::Fail(Failure::new("GroupSnapshotBindFailed", message))
                }
                (class, _) => Step::BindContent { class: class.clone() },
            };
        }
    } else if let Some(step) = view.members.iter().find_map(|member| members::next_step(group, member)) {
        return step;
    }
    match status_update(group, content) {
        Some(update) => Step::WriteStatus(update),
        None => Step::Idle,
    }
}

/// Deletion of a group. Class and claims are not needed: they may no longer exist.
fn delete(view: &View<'_>, group: &VolumeGroupSnapshot) -> Step {
    if !group.metadata.has_finalizer(names::GROUP_PROTECTION) {
        return Step::Idle;
    }
    let content = match view.content {
        Lookup::NotCached => return Step::FetchContent(expected_content_name(group)),
        Lookup::Found(content) if is_bound_to(content, &group.metadata) => Some(content),
        // It may have just been bound, by a process that crashed.
        Lookup::Found(_) if !view.content_fetched => return Step::FetchContent(expected_content_name(group)),
        Lookup::NotFound | Lookup::Found(_) => None,
    };
    if let Some(member) = view.restoring {
        return Step::WaitForRestore(member.clone());
    }
    let deletes =
        |content: &VolumeGroupSnapshotContent| content.spec.deletion_policy == DeletionPolicy::Delete;
    if let Some(content) = content {
        if content.metadata.annotation(names::GROUP_BEING_DELETED).is_none() {
            return Step::MarkContentBeingDeleted;
        }
        if deletes(content) && !content.metadata.is_deleting() {
            return Step::DeleteContent;
        }
    }
    if let Some(member) = view.member_snapshots.iter().find(|member| !member.metadata.is_deleting()) {
        return Step::DeleteMember(member.metadata.key());
    }
    match content {
        Some(content) if deletes(content) => Step::WaitForContent,
        _ => Step::RemoveFinalizer,
    }
}
