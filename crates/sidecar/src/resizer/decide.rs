//! The rules: the next step for one claim. No I/O.
//!
//! One worker handles a claim and does one step at a time, so expansion and modification never overlap. If both could
//! proceed, the expansion goes first: the limits of a class often depend on the size. If one of them waits, for a
//! backoff or for something else, the other proceeds.

use std::fmt;

use wharf_csi::ErrorClass;
use wharf_model::claim::ModifyStatus;
use wharf_model::names::annotation;
use wharf_model::{Monotonic, PersistentVolume, PersistentVolumeClaim, Quantity, modify, resize};

use super::state::{ExpandRequest, Expanded, FailedCall, ModifyRequest, ResizeState};
use super::view::{ExpandOn, PodUse, View};

/// The next step for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResizeStep {
    /// Wait until something changes or a backoff ends.
    Wait(Waiting),
    /// The claim is gone: drop its state.
    DropState,
    /// Remove the annotation with the old size from the volume: the claim has the new size.
    RemovePreResizeCapacity,
    /// Record in the claim that an expansion is in progress, before the call.
    BeginExpansion {
        size: Quantity,
        /// Whether the size differs from the earlier one.
        fresh: bool,
    },
    /// Call ControllerExpandVolume.
    Expand { size: Quantity },
    /// Report the driver's error in the claim.
    ReportExpansion,
    /// Write the new size to the volume.
    UpdateVolumeSize {
        size: Quantity,
        /// Whether the node has to expand the volume, too.
        node_expansion_required: bool,
    },
    /// Record in the claim that node expansion is pending.
    MarkNodeExpansionPending,
    /// Write the new size to the claim.
    FinishExpansion { size: Quantity },
    /// Record an event: the expansion waits until no pod uses the volume.
    ReportInUse,
    /// Record in the claim that the requested class does not exist.
    MarkPending { target: String },
    /// Record an event: the target class does not exist.
    ReportMissingClass { target: String },
    /// Record in the claim that a modification is in progress, before the call.
    BeginModification { target: String },
    /// Call ControllerModifyVolume.
    Modify { target: String },
    /// Report the driver's error in the claim.
    ReportModification,
    /// Write the applied class to the volume.
    RecordClass { target: String },
    /// Write the applied class to the claim.
    CompleteModification { target: String },
    /// Record in the claim that the user cancelled the modification.
    CancelModification,
}

/// Why a claim waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) expansion: WaitReason,
    pub(crate) modification: WaitReason,
}

/// Why an expansion or a modification waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// The driver does not support it.
    Unsupported,
    /// The claim has no volume, or the volume is not in the store.
    NoVolume,
    /// The volume belongs to another node.
    OtherNode,
    /// No expansion is needed.
    NoExpansion(resize::IdleReason),
    /// No modification is needed.
    NoModification(modify::IdleReason),
    /// The driver expands only unused volumes, and pods use it.
    InUse,
    /// The classes cannot be read.
    ClassesUnknown,
    /// The class does not exist.
    ClassMissing(String),
    /// The last attempt failed: retry at this time.
    Backoff(Monotonic),
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str("the driver does not support it"),
            Self::NoVolume => f.write_str("the claim has no volume yet"),
            Self::OtherNode => f.write_str("the volume belongs to another node"),
            Self::NoExpansion(idle) => write!(f, "{idle:?}"),
            Self::NoModification(idle) => write!(f, "{idle:?}"),
            Self::InUse => f.write_str("the volume is in use, and the driver expands only unused volumes"),
            Self::ClassesUnknown => f.write_str("cannot read VolumeAttributesClasses"),
            Self::ClassMissing(class) => write!(f, "VolumeAttributesClass {class:?} does not exist"),
            Self::Backoff(_) => f.write_str("the last attempt failed; it is retried after the backoff"),
        }
    }
}

impl Waiting {
    /// When to reconcile again if nothing changes.
    pub(crate) fn until(&self) -> Option<Monotonic> {
        let backoff_end = |reason: &WaitReason| match reason {
            WaitReason::Backoff(until) => Some(*until),
            _ => None,
        };
        [backoff_end(&self.expansion), backoff_end(&self.modification)].into_iter().flatten().min()
    }
}

/// The next step of an expansion or a modification, or why it waits.
type Next = Result<ResizeStep, WaitReason>;

/// Decides the next step for a claim.
pub(crate) fn decide(view: &View<'_>, now: Monotonic) -> ResizeStep {
    let wait =
        |reason: WaitReason| ResizeStep::Wait(Waiting { expansion: reason.clone(), modification: reason });
    let Some(claim) = view.claim else { return ResizeStep::DropState };
    let Some(volume) = view.volume else { return wait(WaitReason::NoVolume) };
    if !view.is_local {
        return wait(WaitReason::OtherNode);
    }
    let ours = resize::is_expanded_by(claim, volume, view.driver) && volume.is_bound_to(&claim.metadata);
    if ours && resize::clear_pre_resize_capacity(claim, volume).is_some() {
        return ResizeStep::RemovePreResizeCapacity;
    }
    match (expansion(view, claim, volume, now), modification(view, claim, volume, now)) {
        (Ok(step), _) | (Err(_), Ok(step)) => step,
        (Err(expansion), Err(modification)) => ResizeStep::Wait(Waiting { expansion, modification }),
    }
}

fn expansion(
    view: &View<'_>,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    now: Monotonic,
) -> Next {
    let place = view.capabilities.expand.ok_or(WaitReason::Unsupported)?;
    let state = &view.state.expansion;
    if state.failed.as_ref().is_some_and(|failed| expansion_needs_report(claim, failed)) {
        return Ok(ResizeStep::ReportExpansion);
    }
    let known = resize::ResizeInputs {
        controller_expands: place == ExpandOn::Controller,
        failed_finally: state.failed_finally,
    };
    let (size, fresh) = match resize::plan(claim, volume, view.driver, known) {
        resize::Plan::Expand { size, fresh } => (size, fresh),
        resize::Plan::Idle(idle) => return Err(WaitReason::NoExpansion(idle)),
    };
    if let Some(expanded) = state.expanded.filter(|expanded| expanded.requested == size) {
        return Ok(record_expansion(volume, expanded));
    }
    if let Some(failed) = &state.failed {
        if failed.failure.is_in_use() && view.pod_use == PodUse::InUse {
            return if state.in_use_reported { Err(WaitReason::InUse) } else { Ok(ResizeStep::ReportInUse) };
        }
        let requested = claim.requested_storage().unwrap_or(Quantity::ZERO);
        if let Some(until) =
            failed.backoff_end(&ExpandRequest { requested, size, pod_use: view.pod_use }, now)
        {
            return Err(WaitReason::Backoff(until));
        }
    }
    let status = claim.status.allocated_resource_statuses.storage;
    let infeasible = status == Some(wharf_model::claim::ResizeStatus::ControllerResizeInfeasible);
    // An expansion that another process started is recorded again. So is a size that was infeasible: after a crash, the
    // earlier error must not be taken for the result of this call.
    match state.in_progress == Some(size) && !infeasible {
        true => Ok(ResizeStep::Expand { size }),
        false => Ok(ResizeStep::BeginExpansion { size, fresh }),
    }
}

/// Only final errors are reported: other calls may still succeed.
fn expansion_needs_report(claim: &PersistentVolumeClaim, failed: &FailedCall<ExpandRequest>) -> bool {
    let infeasible = match failed.failure.class {
        Some(ErrorClass::Final) => false,
        Some(ErrorClass::Infeasible) => true,
        Some(ErrorClass::StillRunning) | None => return false,
    };
    !failed.reported && !resize::already_reports(claim, &failed.failure.text(), infeasible)
}

/// Writes the volume before the claim, so that the claim never shows a larger size.
fn record_expansion(volume: &PersistentVolume, expanded: Expanded) -> ResizeStep {
    let Expanded { size, node_expansion_required, .. } = expanded;
    let lacks_annotation =
        node_expansion_required && volume.metadata.annotation(annotation::PRE_RESIZE_CAPACITY).is_none();
    match volume.spec.capacity.storage == Some(size) && !lacks_annotation {
        false => ResizeStep::UpdateVolumeSize { size, node_expansion_required },
        true if node_expansion_required => ResizeStep::MarkNodeExpansionPending,
        true => ResizeStep::FinishExpansion { size },
    }
}

fn modification(
    view: &View<'_>,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    now: Monotonic,
) -> Next {
    if !view.capabilities.modify {
        return Err(WaitReason::Unsupported);
    }
    let state = &view.state.modification;
    let status = claim.status.modify_volume_status.as_ref();
    let recorded_target = status
        .filter(|status| status.status == ModifyStatus::InProgress)
        .map(|status| status.target_volume_attributes_class_name.as_str());
    // The driver's result is recorded first, whatever the user requests by now.
    if let Some(applied) = state.applied.as_deref().filter(|applied| recorded_target == Some(applied)) {
        let target = applied.to_owned();
        let recorded = volume.spec.volume_attributes_class_name.as_deref() == Some(applied);
        return Ok(if recorded {
            ResizeStep::CompleteModification { target }
        } else {
            ResizeStep::RecordClass { target }
        });
    }
    if let Some(failed) = &state.failed
        && recorded_target == Some(&failed.request.target)
        && modification_needs_report(claim, failed)
    {
        return Ok(ResizeStep::ReportModification);
    }
    let exists = |class: &str| view.classes.get(class).is_some();
    let reported = |target: &str| state.missing_class_reported.as_deref() == Some(target);
    let target = match modify::plan(claim, volume, view.driver, !state.call_ended, exists) {
        modify::Plan::Idle(idle) => return Err(WaitReason::NoModification(idle)),
        modify::Plan::Cancel => return Ok(ResizeStep::CancelModification),
        modify::Plan::Pending { .. } | modify::Plan::Stuck { .. } if !view.classes.known => {
            return Err(WaitReason::ClassesUnknown);
        }
        modify::Plan::Pending { target, unwritten: true } => return Ok(ResizeStep::MarkPending { target }),
        modify::Plan::Pending { target, unwritten: false } | modify::Plan::Stuck { target } => {
            return if reported(&target) {
                Err(WaitReason::ClassMissing(target))
            } else {
                Ok(ResizeStep::ReportMissingClass { target })
            };
        }
        modify::Plan::Begin { target } | modify::Plan::Continue { target } => target,
    };
    if let Some(failed) = &state.failed {
        let requested = claim.spec.volume_attributes_class_name.clone();
        if let Some(until) = failed.backoff_end(&ModifyRequest { requested, target: target.clone() }, now) {
            return Err(WaitReason::Backoff(until));
        }
    }
    // A modification that another process started is recorded again: if the write succeeds, no other was started since.
    match recorded_target == Some(&target) && state.in_progress.as_ref() == Some(&target) {
        true => Ok(ResizeStep::Modify { target }),
        false => Ok(ResizeStep::BeginModification { target }),
    }
}

/// The write to the volume that is still missing after the claim was deleted during the call. No later step would do
/// it, and the next user of the volume would see an outdated size or class.
pub(crate) fn orphaned_volume_write(state: &ResizeState, volume: &PersistentVolume) -> Option<ResizeStep> {
    let smaller = |size: Quantity| volume.spec.capacity.storage.is_none_or(|now| now < size);
    if let Some(Expanded { size, node_expansion_required, .. }) = state.expansion.expanded
        && smaller(size)
    {
        return Some(ResizeStep::UpdateVolumeSize { size, node_expansion_required });
    }
    let target = state.modification.applied.clone()?;
    let recorded = volume.spec.volume_attributes_class_name.as_ref() == Some(&target);
    (!recorded).then_some(ResizeStep::RecordClass { target })
}

/// How a failure is reported in the claim's status. `None`: the driver was not called, so nothing is reported.
pub(crate) fn modify_failure(class: Option<ErrorClass>) -> Option<modify::Failure> {
    Some(match class? {
        ErrorClass::StillRunning => modify::Failure::StillRunning,
        ErrorClass::Final => modify::Failure::Final,
        ErrorClass::Infeasible => modify::Failure::Infeasible,
    })
}

fn modification_needs_report(claim: &PersistentVolumeClaim, failed: &FailedCall<ModifyRequest>) -> bool {
    let Some(modify_failure) = modify_failure(failed.failure.class) else { return false };
    let code = wharf_csi::go_code_name(failed.failure.code);
    !failed.reported && !modify::already_reports(claim, modify_failure, code, &failed.failure.message)
}

#[cfg(test)]
mod tests;
