//! Expansion: to which size a volume is to be expanded now, and what is written about it. The state is in the
//! claim's status, so that a crash, a swap for upstream's resizer, or a user who asks for less after a failure finds
//! the expansion where it stands.
//!
//! Start reading at [`plan`]. What the node writes is in [`node`].

use serde_json::json;

use crate::claim::{ClaimPhase, ResizeStatus};
use crate::names::{annotation, condition};
use crate::patch::{self, Guard, Patch, annotation_map, holds};
use crate::{PersistentVolume, PersistentVolumeClaim, Quantity, Time};

pub mod node;

/// Conditions that are an expansion's; all others are somebody else's and left alone.
pub const CONDITIONS: [&str; 4] = [
    condition::RESIZING,
    condition::FILE_SYSTEM_RESIZE_PENDING,
    condition::CONTROLLER_RESIZE_ERROR,
    condition::NODE_RESIZE_ERROR,
];

/// What upstream tells the user while the node has its part to do.
const NODE_PENDING: &str =
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";

/// What has to be known besides the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Whether the driver expands in the controller; else only on the node (the trivial resizer).
    pub in_controller: bool,
    /// Whether the last attempt of this process ended with a final error: then nothing is under way.
    pub ended: bool,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Nothing(Idle),
    /// Expand to this size.
    Expand {
        /// The size.
        size: Quantity,
        /// Whether it is another size than the one in the claim's status: then what was known of earlier failures
        /// no longer holds, and is cleared.
        fresh: bool,
    },
}

/// Why there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// The claim is not bound.
    NotBound,
    /// The claim asks for no more than it has.
    LargeEnough,
    /// The volume is another driver's.
    NotOurs,
    /// The volume is another claim's.
    NotItsVolume,
    /// The node has its part to do.
    NodesTurn,
}

/// Decides. The size asked for is not always the size to expand to: what is under way, or may be, is finished
/// first, with the size it was begun with.
pub fn plan(claim: &PersistentVolumeClaim, volume: &PersistentVolume, driver: &str, known: Known) -> Plan {
    let status = &claim.status;
    if status.phase != ClaimPhase::Bound || claim.spec.volume_name.is_empty() {
        return Plan::Nothing(Idle::NotBound);
    }
    let asked = claim.requested().unwrap_or(Quantity::ZERO);
    if asked <= status.capacity.storage.unwrap_or(Quantity::ZERO) {
        return Plan::Nothing(Idle::LargeEnough);
    }
    if !volume.is_of(driver) {
        return Plan::Nothing(Idle::NotOurs);
    }
    if !volume.is_bound_to(&claim.metadata) {
        return Plan::Nothing(Idle::NotItsVolume);
    }
    let has = volume.spec.capacity.storage.unwrap_or(Quantity::ZERO);
    let allocated = status.allocated_resources.storage;
    let size = match has < asked {
        true => of_smaller(asked, has, allocated, status.allocated_resource_statuses.storage, known),
        false => of_large_enough(asked, allocated, claim, known),
    };
    match size {
        Some(size) => Plan::Expand { size, fresh: allocated != Some(size) },
        None => Plan::Nothing(Idle::NodesTurn),
    }
}

/// The size, while the volume is smaller than asked for; `None`: it is the node's turn.
fn of_smaller(
    asked: Quantity,
    has: Quantity,
    allocated: Option<Quantity>,
    status: Option<ResizeStatus>,
    known: Known,
) -> Option<Quantity> {
    use ResizeStatus::{
        ControllerResizeInProgress, ControllerResizeInfeasible, NodeResizeInProgress, NodeResizeInfeasible,
        NodeResizePending, Unknown,
    };
    let begun = allocated.unwrap_or(asked);
    match status {
        Some(NodeResizeInfeasible) => Some(begun),
        // The node has not finished what was begun. Only if the volume itself fell short of it, go on here.
        Some(NodeResizePending | NodeResizeInProgress) => (has < begun).then_some(begun),
        // Only a final error proves that nothing is under way: after it, the user's new wish counts.
        Some(ControllerResizeInProgress) if !known.ended => Some(begun),
        Some(ControllerResizeInProgress | ControllerResizeInfeasible | Unknown) | None => Some(asked),
    }
}

/// The size, while the volume has what is asked for and the claim does not know it; `None`: it is the node's turn.
fn of_large_enough(
    asked: Quantity,
    allocated: Option<Quantity>,
    claim: &PersistentVolumeClaim,
    known: Known,
) -> Option<Quantity> {
    use ResizeStatus::{
        ControllerResizeInProgress, ControllerResizeInfeasible, NodeResizeInProgress, NodeResizeInfeasible,
        NodeResizePending, Unknown,
    };
    let begun = allocated.unwrap_or(asked);
    match claim.status.allocated_resource_statuses.storage {
        Some(NodeResizePending | NodeResizeInProgress) => None,
        // The node failed for good: the driver has to agree again before kubelet may try.
        Some(NodeResizeInfeasible) if known.in_controller => Some(begun),
        Some(NodeResizeInfeasible) => Some(asked),
        // It was done and could not be written down; or the user asks for less than was begun.
        Some(ControllerResizeInProgress | ControllerResizeInfeasible) => Some(begun),
        None if allocated.is_some() => allocated,
        Some(Unknown) | None => match is_file_system_pending(claim) {
            true => None,
            false => Some(asked),
        },
    }
}

fn is_nodes(status: Option<ResizeStatus>) -> bool {
    use ResizeStatus::{NodeResizeInProgress, NodeResizeInfeasible, NodeResizePending};
    matches!(status, Some(NodeResizePending | NodeResizeInProgress | NodeResizeInfeasible))
}

fn is_file_system_pending(claim: &PersistentVolumeClaim) -> bool {
    let pending = claim.status.condition(condition::FILE_SYSTEM_RESIZE_PENDING);
    pending.is_some_and(|pending| pending.status == "True")
}

/// Says in the claim's status that the controller expands it, and to which size. Before the call. A size that was
/// infeasible is in progress again: who finds it after a crash must not take the earlier answer for this call's.
pub fn begin(claim: &PersistentVolumeClaim, size: Quantity, fresh: bool, now: Time) -> Patch {
    let resizing = holds(condition::RESIZING, "", "", now);
    let removed = if fresh { patch::present(claim, &CONDITIONS[1..]) } else { Vec::new() };
    let mut status = json!({
        "conditions": patch::conditions(&[resizing], &removed),
        "allocatedResources": {"storage": size.to_string()},
    });
    // What the node says of its part stays, until the controller's part is done again.
    if fresh || !is_nodes(claim.status.allocated_resource_statuses.storage) {
        status["allocatedResourceStatuses"] =
            json!({"storage": ResizeStatus::ControllerResizeInProgress.as_str()});
    }
    patch::status(&claim.metadata, Guard::Version, &needed_again(claim), status)
}

/// Writes the volume's new size. While the node has its part to do, the claim's size from before is kept beside it,
/// unless one is kept already.
pub fn grown(
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

/// Hands over to the node.
pub fn pending_on_node(claim: &PersistentVolumeClaim, now: Time) -> Patch {
    let pending = holds(condition::FILE_SYSTEM_RESIZE_PENDING, "", NODE_PENDING, now);
    let status = json!({
        "conditions": patch::conditions(&[pending], &[]),
        "allocatedResourceStatuses": {"storage": ResizeStatus::NodeResizePending.as_str()},
    });
    patch::status(&claim.metadata, Guard::Version, &needed_again(claim), status)
}

/// Nothing is left for the node: the claim has its size.
pub fn finished(claim: &PersistentVolumeClaim, size: Quantity) -> Patch {
    let status = json!({
        "capacity": {"storage": size.to_string()},
        "conditions": patch::conditions(&[], &patch::present(claim, &CONDITIONS)),
        "allocatedResourceStatuses": {"storage": null},
    });
    let done = [(annotation::NODE_EXPANSION_NOT_REQUIRED, Some("true"))];
    patch::status(&claim.metadata, Guard::Version, &done, status)
}

/// Whether the claim says already what [`failed`] would make it say.
pub fn says(claim: &PersistentVolumeClaim, error: &str, infeasible: bool) -> bool {
    let marked =
        claim.status.allocated_resource_statuses.storage == Some(ResizeStatus::ControllerResizeInfeasible);
    let said = claim.status.condition(condition::CONTROLLER_RESIZE_ERROR);
    (marked || !infeasible)
        && said.is_some_and(|said| said.status == "True" && said.message == refusal(error))
}

fn refusal(error: &str) -> String {
    format!("failed to expand pvc with {error}")
}

/// The driver refused, finally. That is true of any version of the claim, so it is written over any.
pub fn failed(claim: &PersistentVolumeClaim, error: &str, infeasible: bool, now: Time) -> Patch {
    let failed = holds(condition::CONTROLLER_RESIZE_ERROR, "", &refusal(error), now);
    let mut status = json!({"conditions": patch::conditions(&[failed], &[])});
    if infeasible {
        status["allocatedResourceStatuses"] =
            json!({"storage": ResizeStatus::ControllerResizeInfeasible.as_str()});
    }
    patch::status(&claim.metadata, Guard::Identity, &[], status)
}

/// Removes the size from before once the claim has caught up with its volume; `None` if there is none to remove.
pub fn caught_up(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Patch> {
    let caught_up = claim.status.capacity.storage.unwrap_or(Quantity::ZERO)
        >= volume.spec.capacity.storage.unwrap_or(Quantity::ZERO);
    let noted = volume.metadata.annotation(annotation::PRE_RESIZE_CAPACITY).is_some();
    (caught_up && noted)
        .then(|| patch::annotate(&volume.metadata, &[(annotation::PRE_RESIZE_CAPACITY, None)]))
}

/// An earlier expansion may have told kubelet that the node has nothing to do.
fn needed_again(claim: &PersistentVolumeClaim) -> Vec<(&'static str, Option<&'static str>)> {
    match claim.metadata.annotation(annotation::NODE_EXPANSION_NOT_REQUIRED) {
        Some(_) => vec![(annotation::NODE_EXPANSION_NOT_REQUIRED, None)],
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
