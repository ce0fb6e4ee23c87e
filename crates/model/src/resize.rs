//! Expansion: the size to expand a volume to, and the patches that record the progress. The state is in the claim's
//! status, so that the expansion continues after a crash, after a switch to upstream's resizer, or after the user
//! requests a smaller size following a failure.
//!
//! Start reading at [`plan`]. The node's patches are in [`node`].

use serde_json::json;

use crate::claim::{ClaimPhase, ResizeStatus};
use crate::names::{annotation, condition};
use crate::patch::{self, Guard, Patch, annotation_map, condition_true};
use crate::{PersistentVolume, PersistentVolumeClaim, Quantity, Time};

pub mod node;

/// The conditions of an expansion; all others are left unchanged.
pub const CONDITIONS: [&str; 4] = [
    condition::RESIZING,
    condition::FILE_SYSTEM_RESIZE_PENDING,
    condition::CONTROLLER_RESIZE_ERROR,
    condition::NODE_RESIZE_ERROR,
];

/// Upstream's message while the expansion on the node is pending.
const NODE_PENDING: &str =
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";

/// Inputs of [`plan`] that are not in the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResizeInputs {
    /// Whether the driver supports ControllerExpandVolume; otherwise it expands on the node only (trivial resizer).
    pub controller_expands: bool,
    /// Whether the last attempt of this process ended with a final error, so that no expansion is in progress.
    pub failed_finally: bool,
}

/// What the resizer has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Nothing to do.
    Idle(IdleReason),
    /// Expand to this size.
    Expand {
        /// The target size.
        size: Quantity,
        /// Whether the size differs from the one in the claim's status: then the conditions of earlier failures no
        /// longer apply and are removed.
        fresh: bool,
    },
}

/// Why the resizer has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleReason {
    /// The claim is not bound.
    NotBound,
    /// The claim's capacity is at least the requested size.
    LargeEnough,
    /// The volume belongs to another driver.
    OtherDriver,
    /// The volume is not bound to this claim.
    BoundToOtherClaim,
    /// The node has to expand the file system.
    WaitingForNode,
}

/// Decides the next step. The requested size is not always the target: an expansion that is or may be in progress is
/// completed first, with its own size.
pub fn plan(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    driver: &str,
    known: ResizeInputs,
) -> Plan {
    let status = &claim.status;
    if status.phase != ClaimPhase::Bound || claim.spec.volume_name.is_empty() {
        return Plan::Idle(IdleReason::NotBound);
    }
    let requested = claim.requested_storage().unwrap_or(Quantity::ZERO);
    if requested <= status.capacity.storage.unwrap_or(Quantity::ZERO) {
        return Plan::Idle(IdleReason::LargeEnough);
    }
    if !is_expanded_by(claim, volume, driver) {
        return Plan::Idle(IdleReason::OtherDriver);
    }
    if !volume.is_bound_to(&claim.metadata) {
        return Plan::Idle(IdleReason::BoundToOtherClaim);
    }
    let capacity = volume.spec.capacity.storage.unwrap_or(Quantity::ZERO);
    let allocated = status.allocated_resources.storage;
    let size = match capacity < requested {
        true => target_for_smaller_volume(
            requested,
            capacity,
            allocated,
            status.allocated_resource_statuses.storage,
            known,
        ),
        false => target_for_large_volume(requested, allocated, claim, known),
    };
    match size {
        Some(size) => Plan::Expand { size, fresh: allocated != Some(size) },
        None => Plan::Idle(IdleReason::WaitingForNode),
    }
}

/// Whether this driver's resizer expands the volume. For an in-tree volume that is migrated to the driver, the expand
/// controller annotates the claim.
pub fn is_expanded_by(claim: &PersistentVolumeClaim, volume: &PersistentVolume, driver: &str) -> bool {
    let annotated = || claim.metadata.annotation(annotation::STORAGE_RESIZER) == Some(driver);
    volume.is_for_driver(driver) || (volume.is_migrated_to(driver) && annotated())
}

/// The target while the volume is smaller than requested; `None` if the node has to act.
fn target_for_smaller_volume(
    requested: Quantity,
    capacity: Quantity,
    allocated: Option<Quantity>,
    status: Option<ResizeStatus>,
    known: ResizeInputs,
) -> Option<Quantity> {
    use ResizeStatus::{
        ControllerResizeInProgress, ControllerResizeInfeasible, NodeResizeInProgress, NodeResizeInfeasible,
        NodeResizePending, Unknown,
    };
    let started_size = allocated.unwrap_or(requested);
    match status {
        Some(NodeResizeInfeasible) => Some(started_size),
        // The node has not finished the expansion. The controller continues only if the volume is still smaller.
        Some(NodeResizePending | NodeResizeInProgress) => (capacity < started_size).then_some(started_size),
        // Only a final error proves that no expansion is in progress: after it, the user's new size is the target.
        Some(ControllerResizeInProgress) if !known.failed_finally => Some(started_size),
        Some(ControllerResizeInProgress | ControllerResizeInfeasible | Unknown) | None => Some(requested),
    }
}

/// The target while the volume is large enough but the claim's capacity does not reflect it; `None` if the node has to
/// act.
fn target_for_large_volume(
    requested: Quantity,
    allocated: Option<Quantity>,
    claim: &PersistentVolumeClaim,
    known: ResizeInputs,
) -> Option<Quantity> {
    use ResizeStatus::{
        ControllerResizeInProgress, ControllerResizeInfeasible, NodeResizeInProgress, NodeResizeInfeasible,
        NodeResizePending, Unknown,
    };
    let started_size = allocated.unwrap_or(requested);
    match claim.status.allocated_resource_statuses.storage {
        Some(NodeResizePending | NodeResizeInProgress) => None,
        // The expansion is infeasible on the node: ControllerExpandVolume has to succeed again before kubelet retries.
        Some(NodeResizeInfeasible) if known.controller_expands => Some(started_size),
        Some(NodeResizeInfeasible) => Some(requested),
        // The expansion succeeded but was not recorded, or the user has reduced the requested size.
        Some(ControllerResizeInProgress | ControllerResizeInfeasible) => Some(started_size),
        None if allocated.is_some() => allocated,
        Some(Unknown) | None => match is_file_system_pending(claim) {
            true => None,
            false => Some(requested),
        },
    }
}

fn is_node_status(status: Option<ResizeStatus>) -> bool {
    use ResizeStatus::{NodeResizeInProgress, NodeResizeInfeasible, NodeResizePending};
    matches!(status, Some(NodeResizePending | NodeResizeInProgress | NodeResizeInfeasible))
}

fn is_file_system_pending(claim: &PersistentVolumeClaim) -> bool {
    let pending = claim.status.condition(condition::FILE_SYSTEM_RESIZE_PENDING);
    pending.is_some_and(|pending| pending.status == "True")
}

/// Records, before the driver is called, that the controller is expanding and the target size. This replaces an
/// Infeasible status, so that after a crash the earlier result is not taken for the result of this call.
pub fn mark_in_progress(claim: &PersistentVolumeClaim, size: Quantity, fresh: bool, now: Time) -> Patch {
    let resizing = condition_true(condition::RESIZING, "", "", now);
    let removed = if fresh { patch::present_conditions(claim, &CONDITIONS[1..]) } else { Vec::new() };
    let mut status = json!({
        "conditions": patch::conditions(&[resizing], &removed),
        "allocatedResources": {"storage": size.to_string()},
    });
    // A `NodeResize*` status stays until the controller has expanded the volume again.
    if fresh || !is_node_status(claim.status.allocated_resource_statuses.storage) {
        status["allocatedResourceStatuses"] =
            json!({"storage": ResizeStatus::ControllerResizeInProgress.as_str()});
    }
    patch::status(&claim.metadata, Guard::Version, &node_expansion_required(claim), status)
}

/// Sets the volume's new capacity. If the node has to expand as well, the claim's previous capacity is recorded in an
/// annotation, unless the annotation exists.
pub fn record_volume_size(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    size: Quantity,
    on_node: bool,
) -> Patch {
    let mut metadata = json!({"uid": volume.metadata.uid});
    if on_node && volume.metadata.annotation(annotation::PRE_RESIZE_CAPACITY).is_none() {
        let before = claim.status.capacity.storage.unwrap_or(Quantity::ZERO).to_string();
        metadata["annotations"] = annotation_map(&[(annotation::PRE_RESIZE_CAPACITY, Some(&before))]);
    }
    Patch::Merge(json!({"metadata": metadata, "spec": {"capacity": {"storage": size.to_string()}}}))
}

/// Records that the node has to expand the file system.
pub fn mark_node_pending(claim: &PersistentVolumeClaim, now: Time) -> Patch {
    let pending = condition_true(condition::FILE_SYSTEM_RESIZE_PENDING, "", NODE_PENDING, now);
    let status = json!({
        "conditions": patch::conditions(&[pending], &[]),
        "allocatedResourceStatuses": {"storage": ResizeStatus::NodeResizePending.as_str()},
    });
    patch::status(&claim.metadata, Guard::Version, &node_expansion_required(claim), status)
}

/// Records that the expansion is finished and the node has nothing to do.
pub fn mark_finished(claim: &PersistentVolumeClaim, size: Quantity) -> Patch {
    let status = json!({
        "capacity": {"storage": size.to_string()},
        "conditions": patch::conditions(&[], &patch::present_conditions(claim, &CONDITIONS)),
        "allocatedResourceStatuses": {"storage": null},
    });
    let done = [(annotation::NODE_EXPANSION_NOT_REQUIRED, Some("true"))];
    patch::status(&claim.metadata, Guard::Version, &done, status)
}

/// Whether the claim already has the status that `mark_failed` would write.
pub fn already_reports(claim: &PersistentVolumeClaim, error: &str, infeasible: bool) -> bool {
    let marked =
        claim.status.allocated_resource_statuses.storage == Some(ResizeStatus::ControllerResizeInfeasible);
    let reported = claim.status.condition(condition::CONTROLLER_RESIZE_ERROR);
    (marked || !infeasible)
        && reported
            .is_some_and(|reported| reported.status == "True" && reported.message == error_message(error))
}

fn error_message(error: &str) -> String {
    format!("failed to expand pvc with {error}")
}

/// Records a final error of the driver. It applies to any version of the claim, so the patch requires no
/// resourceVersion.
pub fn mark_failed(claim: &PersistentVolumeClaim, error: &str, infeasible: bool, now: Time) -> Patch {
    let failed = condition_true(condition::CONTROLLER_RESIZE_ERROR, "", &error_message(error), now);
    let mut status = json!({"conditions": patch::conditions(&[failed], &[])});
    if infeasible {
        status["allocatedResourceStatuses"] =
            json!({"storage": ResizeStatus::ControllerResizeInfeasible.as_str()});
    }
    patch::status(&claim.metadata, Guard::Identity, &[], status)
}

/// Removes the pre-resize capacity once the claim's capacity has reached the volume's; `None` if there is nothing to
/// remove.
pub fn clear_pre_resize_capacity(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Patch> {
    let caught_up = claim.status.capacity.storage.unwrap_or(Quantity::ZERO)
        >= volume.spec.capacity.storage.unwrap_or(Quantity::ZERO);
    let noted = volume.metadata.annotation(annotation::PRE_RESIZE_CAPACITY).is_some();
    (caught_up && noted)
        .then(|| patch::annotate(&volume.metadata, &[(annotation::PRE_RESIZE_CAPACITY, None)]))
}

/// The change that removes the annotation with which an earlier expansion made kubelet skip the expansion on the node.
fn node_expansion_required(claim: &PersistentVolumeClaim) -> Vec<(&'static str, Option<&'static str>)> {
    match claim.metadata.annotation(annotation::NODE_EXPANSION_NOT_REQUIRED) {
        Some(_) => vec![(annotation::NODE_EXPANSION_NOT_REQUIRED, None)],
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
