//! Rules for one snapshot: given its [`View`], the next step. Pure and exhaustive; start at [`decide`].
//!
//! - A snapshot gets its finalizer before anything is created for it, so that its deletion is observed.
//! - A content is changed only if it references this snapshot by UID, or no snapshot yet.
//! - A snapshot that was created and whose content is gone is not created again: it would be data of another point
//!   in time under the same name.
//! - An object missing from the cache proves nothing: the API server is queried first.
//!
//! Creation is in [`create`], deletion in [`delete`], the status in [`super::mirror`].

use wharf_model::snapshot::{DeletionPolicy, names};
use wharf_model::{SecretRef, VolumeSnapshot, VolumeSnapshotContent};

use super::mirror::{StatusUpdate, status_update};
use super::view::{Lookup, ParentGroup, View};

mod create;
mod delete;
#[cfg(test)]
mod tests;

/// The next step. After each step the snapshot is decided again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The snapshot no longer exists: drop its state.
    DropState,
    /// Nothing to do until something changes.
    Idle,
    /// Wait for something else, whose change will enqueue the snapshot.
    Wait(WaitingFor),
    /// Report the failure and retry with backoff.
    Fail(Failure),
    /// Read the content of this name from the API server.
    FetchContent(String),
    /// Read the claim's volume from the API server.
    FetchVolume(String),
    /// Read the group snapshot from the API server.
    FetchParentGroup,
    /// Add these finalizers.
    AddFinalizers(Vec<&'static str>),
    /// Write the default class into the spec.
    SetDefaultClass(String),
    /// Add the finalizer to the source claim, before a snapshot is created from it.
    ProtectClaim,
    /// Create the content.
    CreateContent(NewContent),
    /// Bind the pre-provisioned content, and set its class if the snapshot names one.
    BindContent {
        /// The class to set.
        class: Option<String>,
    },
    /// Copy the content's status to the snapshot.
    WriteStatus(StatusUpdate),
    /// Set the group snapshot as owner.
    SetOwnerGroup,
    /// Set the being-deleted annotation, which allows the snapshotter to delete.
    MarkContentBeingDeleted,
    /// Delete the content.
    DeleteContent,
    /// Remove these finalizers.
    RemoveFinalizers(Vec<&'static str>),
}

/// The fields of a content to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewContent {
    pub(crate) class: String,
    pub(crate) driver: String,
    pub(crate) policy: DeletionPolicy,
    pub(crate) volume_handle: String,
    pub(crate) volume_mode: Option<&'static str>,
    pub(crate) node: Option<String>,
    pub(crate) secret: Option<SecretRef>,
}

/// What a snapshot waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitingFor {
    /// The group's reconcile binds it to its content.
    Membership,
    /// A claim is being restored from it.
    Restore,
    /// Its group, with this key, has to be deleted first.
    Group(String),
    /// The content is being deleted.
    Content,
}

/// A failure in upstream's words, for status and event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Event reason.
    pub(crate) reason: &'static str,
    /// Message.
    pub(crate) message: String,
    /// Whether to set `readyToUse` to false.
    pub(crate) unready: bool,
    /// A second event that upstream records: reason and note.
    pub(crate) extra_event: Option<(&'static str, String)>,
}

impl Failure {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), unready: true, extra_event: None }
    }

    /// Leaves `readyToUse` unchanged.
    pub(crate) fn without_readiness(self) -> Self {
        Self { unready: false, ..self }
    }

    pub(crate) fn with_extra_event(self, reason: &'static str, note: String) -> Self {
        Self { extra_event: Some((reason, note)), ..self }
    }
}

/// Decides the next step.
pub(crate) fn decide(view: &View<'_>) -> Step {
    let Some(snapshot) = view.snapshot else { return Step::DropState };
    if snapshot.metadata.is_deleting() {
        return delete::decide(view, snapshot);
    }
    let source = &snapshot.spec.source;
    if source.persistent_volume_claim_name.is_some() == source.volume_snapshot_content_name.is_some() {
        return Step::Fail(Failure::new(
            "SnapshotValidationError",
            "Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be specified",
        ));
    }
    if let Lookup::Found(content) = view.content
        && let Err(failure) = check_binding(snapshot, content)
    {
        return Step::Fail(failure);
    }
    if let Some(step) = create::check_class(view, snapshot) {
        return step;
    }
    let mut finalizers = missing_finalizers(view, snapshot);
    if finalizers.contains(&names::AS_SOURCE_PROTECTION)
        && create::is_new(view, snapshot)
        && snapshot.pre_provisioned_content().is_none()
        && let Some(class) = view.class
    {
        // In one write, if it is certain that a content will be created that needs both.
        match create::plan_content(view, snapshot, class) {
            step @ Step::FetchVolume(_) => return step,
            Step::CreateContent(NewContent { policy: DeletionPolicy::Delete, .. }) => {
                finalizers.push(names::BOUND_PROTECTION);
            }
            _ => {}
        }
    }
    if !finalizers.is_empty() {
        return Step::AddFinalizers(finalizers);
    }
    match snapshot.is_ready() && snapshot.bound_content().is_some() {
        true => verify_ready(view, snapshot),
        false => advance(view, snapshot),
    }
}

/// Checks that the content belongs to this snapshot.
fn check_binding(snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Result<(), Failure> {
    let (key, name) = (snapshot.metadata.key(), &content.metadata.name);
    let failed = |failure: Failure, error: String| {
        failure.with_extra_event(
            "SnapshotFinalizerError",
            format!("Failed to check and update snapshot: {error}"),
        )
    };
    let source = &content.spec.source;
    if snapshot.owning_group().is_some() {
        // The group's reconcile binds the two.
        return match content.is_bound_to(&snapshot.metadata) || !snapshot.is_ready() {
            true => Ok(()),
            false => Err(misbound()),
        };
    }
    let misplaced = || {
        let message = format!("VolumeSnapshotContent [{name}] is bound to a different snapshot");
        failed(Failure::new("SnapshotContentMisbound", &*message), message)
    };
    if snapshot.pre_provisioned_content().is_none() {
        if source.volume_handle.is_none() {
            let message = format!(
                "VolumeSnapshotContent {name} is pre-provisioned while expecting a dynamically provisioned one"
            );
            let error = format!(
                "snapshot {key} expects a dynamically provisioned VolumeSnapshotContent {name} but gets a pre-provisioned one"
            );
            return Err(failed(Failure::new("SnapshotContentMismatch", message), error));
        }
        return match content.is_bound_to(&snapshot.metadata) {
            true => Ok(()),
            false => Err(misplaced()),
        };
    }
    if source.snapshot_handle.is_none() {
        let message =
            "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
        let error = format!(
            "snapshot {key} expects a pre-provisioned VolumeSnapshotContent {name} but gets a dynamically provisioned one"
        );
        return Err(failed(Failure::new("SnapshotContentMismatch", message), error));
    }
    let free = content.is_reserved_for(&snapshot.metadata);
    match (content.is_bound_to(&snapshot.metadata), free, snapshot.is_ready()) {
        (true, _, _) | (_, true, false) => Ok(()),
        (false, true, true) => Err(misbound()),
        (false, false, _) => Err(misplaced()),
    }
}

fn misbound() -> Failure {
    let message = "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly";
    Failure::new("SnapshotMisbound", message)
}

/// The finalizers that are missing.
fn missing_finalizers(view: &View<'_>, snapshot: &VolumeSnapshot) -> Vec<&'static str> {
    let mut finalizers = vec![names::AS_SOURCE_PROTECTION];
    if let Lookup::Found(content) = view.content
        // A member is deleted with its group, which waits for the group's content.
        && (snapshot.owning_group().is_none() || snapshot.pre_provisioned_content().is_some())
        && snapshot.bound_content().is_some()
        && content.spec.deletion_policy == DeletionPolicy::Delete
    {
        finalizers.push(names::BOUND_PROTECTION);
    }
    finalizers.retain(|finalizer| !snapshot.metadata.has_finalizer(finalizer));
    finalizers
}

/// For a ready snapshot: checks that its content still exists.
fn verify_ready(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    match view.content {
        Lookup::NotCached => return Step::FetchContent(snapshot.expected_content_name()),
        Lookup::NotFound => return Step::Fail(missing()),
        Lookup::Found(_) => {}
    }
    // Pre-provisioned members existed before the group snapshot: they get their owner now.
    match (snapshot.owning_group(), view.parent) {
        (Some(_), _) | (None, ParentGroup::None) => Step::Idle,
        (None, ParentGroup::NotCached) => Step::FetchParentGroup,
        (None, ParentGroup::NotFound) => Step::Idle,
        (None, ParentGroup::Found(_)) => Step::SetOwnerGroup,
    }
}

fn missing() -> Failure {
    Failure::new("SnapshotContentMissing", "VolumeSnapshotContent is missing")
}

/// For a snapshot that is not ready yet.
fn advance(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    let is_member = snapshot.owning_group().is_some() && snapshot.pre_provisioned_content().is_none();
    if is_member && snapshot.bound_content().is_none() {
        return Step::Wait(WaitingFor::Membership);
    }
    let is_new = snapshot.pre_provisioned_content().is_none() && create::is_new(view, snapshot);
    match view.content {
        // No query needed: creating a content that exists fails with AlreadyExists.
        Lookup::NotCached if is_new => create::decide(view, snapshot),
        Lookup::NotCached => Step::FetchContent(snapshot.expected_content_name()),
        Lookup::NotFound
            if is_member || snapshot.pre_provisioned_content().is_some() || snapshot.is_created() =>
        {
            Step::Fail(missing())
        }
        Lookup::NotFound => create::decide(view, snapshot),
        Lookup::Found(content) if is_member && !content.is_bound_to(&snapshot.metadata) => {
            Step::Wait(WaitingFor::Membership)
        }
        Lookup::Found(content) => bind(view, snapshot, content),
    }
}

/// With a class of another driver no snapshotter would handle the content.
fn driver_mismatch(content: &VolumeSnapshotContent, class: &str, driver: &str) -> Failure {
    let (name, of) = (&content.metadata.name, &content.spec.driver);
    let message = format!(
        "Snapshot failed to bind VolumeSnapshotContent, content {name} belongs to driver {of} and class {class} to driver {driver}: use a class of the content's driver, or none"
    );
    Failure::new("SnapshotBindFailed", message)
}

fn bind(view: &View<'_>, snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Step {
    if snapshot.pre_provisioned_content().is_some() {
        let class = &snapshot.spec.volume_snapshot_class_name;
        let is_free = content.spec.volume_snapshot_ref.uid.is_empty();
        if is_free || (content.spec.volume_snapshot_class_name.is_none() && class.is_some()) {
            if let Some(class) = view.class.filter(|class| class.driver != content.spec.driver) {
                return Step::Fail(driver_mismatch(content, &class.metadata.name, &class.driver));
            }
            return Step::BindContent { class: class.clone() };
        }
    }
    let handle = content.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.as_ref());
    if handle.is_some() && view.group_name.is_none() {
        let key = snapshot.metadata.key();
        let message = format!(
            "Snapshot status update failed, updateSnapshotStatus: cannot find the group snapshot for VolumeSnapshot [{key}], will not update snapshot status"
        );
        return Step::Fail(Failure::new("SnapshotStatusUpdateFailed", message).without_readiness());
    }
    match status_update(snapshot, content, view.group_name) {
        Some(update) => Step::WriteStatus(update),
        None => Step::Idle,
    }
}
