//! Rules of the snapshotter: given one content, the next step. Pure functions; start at [`decide`].
//!
//! - Before CreateSnapshot is called, the content has our finalizer and the being-created annotation. The
//!   annotation is removed once the content has the snapshot handle, or once the driver reported, for this
//!   resourceVersion, that it created nothing. While it is set, nothing is deleted or released: for a content in
//!   deletion the same CreateSnapshot call is repeated, under the same name, to learn what there is to delete. That
//!   repetition is bounded: in the end what may exist is recorded as a suspect, and the annotation is removed.
//! - CreateSnapshot is never called based on the cache alone. The cache may be stale, and a snapshot created
//!   for a deleted content would leak. A content that was read once, and has our finalizer and a handle, is polled
//!   without being read again while the lease is held: only we remove the finalizer.
//! - "Not ready yet" is not a failure. It is polled with its own interval.
//! - Nothing is written that is already there.

use std::time::Duration;

use wharf_model::patch::Patch;
use wharf_model::snapshot::DeletionPolicy;
use wharf_model::{Key, Monotonic};

use super::ownership::Ownership;
use super::patches;
use super::request::{self, Call, CallRequest, DeleteCall, Refusal};
use super::state::{Action, Failure, remaining};
use super::view::{Class, ContentKind, Object, Source, View};
use crate::suspects::{Suspect, SuspectKind};

/// Retry interval while classes, or the volumes of a content, are not in the cache yet.
const NOT_LISTED_RETRY: Duration = Duration::from_secs(5);
/// Retry interval for a snapshot that the driver of this node does not know. It most likely is on another node.
const LOCATE_RETRY: Duration = Duration::from_secs(60);

/// The next step for a content.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Nothing to do until something changes.
    Idle,
    /// Nothing to do for this long.
    Wait(Duration),
    /// Ask the driver whether it knows the snapshot.
    LocateSnapshot { request: CallRequest<Call> },
    /// Label the content with this node.
    ClaimForNode { patch: Patch },
    /// Set finalizer and being-created annotation, provided that the secret of the call exists.
    MarkBeingCreated { patch: Patch, request: CallRequest<Call> },
    /// Read the content from the API server, to confirm that it still exists in the cached state.
    ReadContent,
    /// Call the driver to create the snapshot or to read its state.
    CallDriver { action: Action, request: CallRequest<Call> },
    /// Write the driver's response to the status.
    WriteStatus { patch: Patch },
    /// Remove the being-created annotation.
    UnmarkBeingCreated { patch: Patch },
    /// Record what may exist, then remove the being-created annotation.
    Abandon { patch: Patch, suspect: Box<Suspect> },
    /// Call DeleteSnapshot or DeleteVolumeGroupSnapshot.
    DeleteSnapshot { request: CallRequest<DeleteCall> },
    /// Remove the deleted snapshot from the status.
    ClearStatus { patch: Patch },
    /// Remove our finalizer.
    RemoveFinalizer { patch: Patch },
    /// The driver cannot be called in the current state.
    Refuse { action: Action, refusal: Refusal },
    /// Report a failure in the status and as an event.
    ReportFailure { patch: Option<Patch> },
}

/// Decides the next step for a content.
pub(super) fn decide(view: &View<'_>, now: Monotonic) -> Step {
    let object = view.object;
    if !view.is_of_driver() {
        return Step::Idle;
    }
    if view.class == Class::NotListed {
        return Step::Wait(NOT_LISTED_RETRY);
    }
    match &view.ownership {
        Ownership::Ours | Ownership::SpansNodes(_) => {}
        // No node has claimed it, so no driver was called for it: any node may release it.
        Ownership::Unclaimed | Ownership::Unlocated(_) | Ownership::OtherNode | Ownership::Undetermined
            if is_unclaimed_deletion(object) =>
        {
            return remove_finalizer(object);
        }
        Ownership::Unclaimed => return claim_for_node(view),
        Ownership::Unlocated(handle) => return locate(view, handle, now),
        Ownership::OtherNode => return Step::Idle,
        Ownership::Undetermined => return Step::Wait(NOT_LISTED_RETRY),
    }
    if object.should_delete() { delete(view, now) } else { create_or_check(view, now) }
}

/// Whether this is a content in deletion that no node has started to work on, and of which nothing has to be deleted in
/// a driver.
fn is_unclaimed_deletion(object: &Object) -> bool {
    let unlabelled = !object.meta().labels.contains_key(wharf_model::snapshot::names::MANAGED_BY);
    let never_created = matches!(object.source(), Source::Volumes(_)) && object.handle().is_none();
    // The members of a group are deleted with their group.
    let kept = *object.policy() == DeletionPolicy::Retain || object.group_handle().is_some();
    unlabelled && object.should_delete() && (never_created || kept)
}

/// Asks the driver whether it knows the snapshot. One that does not may know it later: a snapshot can be imported.
fn locate(view: &View<'_>, handle: &str, now: Monotonic) -> Step {
    if let Some(pause) = view.state.not_found.and_then(|at| remaining(at, LOCATE_RETRY, now)) {
        return Step::Wait(pause);
    }
    match request::check(view, handle) {
        // Without a call there is no answer.
        Ok(CallRequest { call: Call::AssumeReady(_), .. }) => Step::Idle,
        Ok(request) => Step::LocateSnapshot { request },
        // The class or its secret may be created later.
        Err(_) => Step::Wait(LOCATE_RETRY),
    }
}

fn claim_for_node(view: &View<'_>) -> Step {
    match &view.rules.node {
        Some(node) => Step::ClaimForNode { patch: patches::claim(view.object, node) },
        None => Step::Idle,
    }
}

/// sidecars.md 1.5 "Delete".
fn delete(view: &View<'_>, now: Monotonic) -> Step {
    let (object, state) = (view.object, view.state);
    let deletes = *object.policy() == DeletionPolicy::Delete && object.group_handle().is_none();
    if let Some(handle) = object.handle().filter(|_| deletes && !state.deleted) {
        if let Some(pause) = remaining_backoff(view, Action::Delete, now) {
            return Step::Wait(pause);
        }
        return match request::delete(object, handle) {
            Ok(request) => Step::DeleteSnapshot { request },
            Err(refusal) => Step::Refuse { action: Action::Delete, refusal },
        };
    }
    if state.deleted && object.meta().finalizers.len() > 1 {
        // Other finalizers hold the content: its status must not name a snapshot that no longer exists.
        if let Some(patch) = patches::clear_status(object) {
            return Step::ClearStatus { patch };
        }
    }
    remove_finalizer(object)
}

fn remove_finalizer(object: &Object) -> Step {
    patches::release(object).map_or(Step::Idle, |patch| Step::RemoveFinalizer { patch })
}

/// sidecars.md 1.5 "Create", "Pre-provisioned / group member".
fn create_or_check(view: &View<'_>, now: Monotonic) -> Step {
    let (object, state) = (view.object, view.state);
    if let Some(patch) = state.info.as_ref().and_then(|info| patches::status(object, info)) {
        return Step::WriteStatus { patch };
    }
    let failure = state.failure.as_ref().filter(|failure| failure.action != Action::Delete);
    if object.is_being_created() {
        if object.handle().is_some() {
            return Step::UnmarkBeingCreated { patch: patches::unmark(object, false) };
        }
        if failure.is_some_and(|failure| is_final_failure(object, failure)) {
            return Step::UnmarkBeingCreated { patch: patches::unmark(object, true) };
        }
        if state.unknown && object.is_being_deleted() {
            let suspect = Box::new(suspect(view));
            return Step::Abandon { patch: patches::unmark(object, true), suspect };
        }
    }
    if object.is_ready() {
        return Step::Idle;
    }
    if let Some(failure) = failure.filter(|failure| !failure.reported) {
        return Step::ReportFailure { patch: patches::error(object, failure) };
    }
    if let Some(pause) = remaining_backoff(view, Action::Check, now) {
        return Step::Wait(pause);
    }
    if let Some(pause) = state.polls.and_then(|polls| polls.remaining(view.rules.poll_interval_max, now)) {
        return Step::Wait(pause);
    }
    let action = if object.has_status() { Action::Check } else { Action::Create };
    match driver_request(view) {
        Ok(None) => Step::Idle,
        Ok(Some(DriverRequest::Check(request))) => Step::CallDriver { action: Action::Check, request },
        Ok(Some(DriverRequest::Create(request)))
            if object.is_being_created() || object.handle().is_some() =>
        {
            if view.confirmed || is_held(view) {
                Step::CallDriver { action, request }
            } else {
                Step::ReadContent
            }
        }
        Ok(Some(DriverRequest::Create(request))) => {
            let finalizer = object.meta().has_finalizer(object.constants().finalizer);
            match object.meta().is_deleting() && !finalizer {
                // Nothing would hold the content until the created snapshot is deleted.
                true => Step::Idle,
                false => Step::MarkBeingCreated { patch: patches::mark(object), request },
            }
        }
        Err(refusal) => Step::Refuse { action, refusal },
    }
}

/// Whether the content certainly exists, and with it the snapshot that the call would otherwise create.
fn is_held(view: &View<'_>) -> bool {
    let (object, meta) = (view.object, view.object.meta());
    let protected = meta.has_finalizer(object.constants().finalizer) && !meta.is_deleting();
    view.state.held && protected && object.handle().is_some()
}

/// What an earlier call may have created.
fn suspect(view: &View<'_>) -> Suspect {
    let (object, reference) = (view.object, view.object.reference());
    let sources = match object.source() {
        Source::Volumes(volumes) => volumes.into_iter().map(str::to_owned).collect(),
        Source::Existing { .. } | Source::GroupMember | Source::Unspecified => Vec::new(),
    };
    Suspect {
        kind: match object.kind() {
            ContentKind::Snapshot => SuspectKind::Snapshot,
            ContentKind::Group => SuspectKind::GroupSnapshot,
        },
        // Without a valid name the driver was never called.
        name: request::name(view).unwrap_or_else(|_| object.meta().name.clone()),
        object: Key::namespaced(&reference.namespace, &reference.name),
        uid: reference.uid.clone(),
        sources,
    }
}

enum DriverRequest {
    Create(CallRequest<Call>),
    Check(CallRequest<Call>),
}

fn driver_request(view: &View<'_>) -> Result<Option<DriverRequest>, Refusal> {
    let (object, rules) = (view.object, view.rules);
    if object.kind() == ContentKind::Group && !rules.capabilities.group_snapshot {
        return Err(Refusal::GroupsUnsupported { driver: rules.driver.clone() });
    }
    if let Ownership::SpansNodes(volume) = &view.ownership {
        let node = rules.node.clone().unwrap_or_default();
        return Err(Refusal::SpansNodes { volume: volume.clone(), node });
    }
    match object.source() {
        Source::Existing { handle, .. } => {
            let handle = object.handle().unwrap_or(handle);
            Ok(Some(DriverRequest::Check(request::check(view, handle)?)))
        }
        Source::Volumes(_) | Source::GroupMember if object.group_handle().is_some() => {
            match object.handle() {
                Some(handle) => Ok(Some(DriverRequest::Check(request::check(view, handle)?))),
                None => Ok(None),
            }
        }
        Source::Volumes(_) => Ok(Some(DriverRequest::Create(request::create(view)?))),
        Source::GroupMember | Source::Unspecified => Ok(None),
    }
}

/// Whether the driver reported, for this resourceVersion, that nothing was created and nothing is in progress.
fn is_final_failure(object: &Object, failure: &Failure) -> bool {
    failure.final_at_version.as_ref() == Some(&object.meta().resource_version)
}

fn remaining_backoff(view: &View<'_>, action: Action, now: Monotonic) -> Option<Duration> {
    let failure = view.state.failure.as_ref()?;
    let same = (failure.action == Action::Delete) == (action == Action::Delete);
    failure.remaining(now).filter(|_| same)
}

#[cfg(test)]
mod tests;
