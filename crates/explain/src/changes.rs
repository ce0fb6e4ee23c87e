//! Changes of a bound claim: its expansion, and its VolumeAttributesClass.

use wharf_model::claim::{ClaimPhase, ModifyStatus, ResizeStatus};
use wharf_model::modify::{Plan, plan};
use wharf_model::names::{condition, reason};
use wharf_model::{Kind as _, PersistentVolumeClaim, Time};

use crate::claim::name;
use crate::explanation::{ReportedError, Step};
use crate::facts::{ClaimFacts, Facts};

const SMALLER_SIZE: &str = "you to request a smaller size";

/// The pending changes.
pub(crate) fn steps(facts: &ClaimFacts, all: &Facts) -> Vec<Step> {
    let bound = |claim: &&PersistentVolumeClaim| claim.status.phase == ClaimPhase::Bound;
    let Some(claim) = facts.claim.found().filter(bound) else { return Vec::new() };
    let name = name(facts);
    expanding(&name, claim, facts, all).into_iter().chain(modifying(&name, claim, facts, all)).collect()
}

/// The state of an expansion.
fn expanding(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Option<Step> {
    let (requested, capacity) = (claim.requested_storage()?, claim.status.capacity.storage?);
    if requested <= capacity {
        return None;
    }
    let driver =
        facts.volume.found().and_then(|volume| volume.spec.csi.as_ref()).map(|csi| csi.driver.as_str());
    let resizer = format!("the resizer of {}", driver.unwrap_or("its driver"));
    let sizes = format!("capacity is {capacity}, {requested} requested");
    let attempt = || all.attempt_error("resizer", &claim.key().to_string());
    let failed = || {
        attempt()
            .or_else(|| condition_error(claim, condition::CONTROLLER_RESIZE_ERROR))
            .or_else(|| all.last_warning(claim, &[reason::VOLUME_RESIZE_FAILED]))
    };
    let on_node = || condition_error(claim, condition::NODE_RESIZE_ERROR);
    let step = match claim.status.allocated_resource_statuses.storage {
        None | Some(ResizeStatus::Unknown) => Step::waits(name, sizes, resizer).with_error(failed()),
        Some(ResizeStatus::ControllerResizeInProgress) => {
            Step::waits(name, format!("{sizes}: the driver is expanding the volume"), resizer)
                .with_error(failed())
        }
        Some(ResizeStatus::ControllerResizeInfeasible) => {
            let message = format!("{sizes}: the driver cannot expand the volume to this size");
            Step::waits(name, message, SMALLER_SIZE).with_error(failed())
        }
        Some(ResizeStatus::NodeResizePending) => {
            let message = format!("{sizes}: the volume is expanded, its file system is not yet");
            let waiting_for = "kubelet on the node of a pod that uses it, or you to start such a pod";
            Step::waits(name, message, waiting_for).with_error(on_node())
        }
        Some(ResizeStatus::NodeResizeInProgress) => {
            let message = format!("{sizes}: the node is expanding the file system");
            Step::waits(name, message, "kubelet on the node").with_error(on_node())
        }
        Some(ResizeStatus::NodeResizeInfeasible) => {
            let message = format!("{sizes}: the driver cannot expand the volume to this size on the node");
            Step::waits(name, message, SMALLER_SIZE).with_error(on_node())
        }
    };
    Some(step.since(since_condition(claim, &[condition::FILE_SYSTEM_RESIZE_PENDING, condition::RESIZING])))
}

/// The last transition of the first of these conditions that the claim has.
fn since_condition(claim: &PersistentVolumeClaim, conditions: &[&str]) -> Option<Time> {
    conditions.iter().find_map(|kind| claim.status.condition(kind))?.last_transition_time
}

/// The message of a condition.
fn condition_error(claim: &PersistentVolumeClaim, kind: &str) -> Option<ReportedError> {
    let condition = claim.status.condition(kind)?;
    let (text, at) = (condition.message.clone(), condition.last_transition_time);
    Some(ReportedError { source: format!("condition {kind}"), text, at })
}

/// The state of a change of the VolumeAttributesClass, by the resizer's rules.
fn modifying(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Option<Step> {
    let volume = facts.volume.found()?;
    let driver = &volume.spec.csi.as_ref()?.driver;
    // Only the resizer knows whether its last call has ended.
    let exists =
        |class: &str| facts.attributes_classes.as_ref().is_none_or(|existing| existing.contains(class));
    let plan = plan(claim, volume, driver, true, exists);
    let resizer = format!("the resizer of {driver}");
    let error = || {
        all.attempt_error("modifier", &claim.key().to_string())
            .or_else(|| condition_error(claim, condition::MODIFY_VOLUME_ERROR))
            .or_else(|| all.last_warning(claim, &[reason::VOLUME_MODIFY_FAILED]))
    };
    let step = match plan {
        Plan::Idle(_) => return None,
        Plan::Cancel => Step::waits(name, "change to another VolumeAttributesClass was cancelled", resizer),
        Plan::Begin { target } | Plan::Continue { target } if facts.attributes_classes.is_none() => {
            Step::unknown(
                name,
                format!("requests VolumeAttributesClass {target}; whether it exists is unknown"),
            )
        }
        Plan::Begin { target } if is_infeasible(claim, &target) => {
            let message = format!("requests VolumeAttributesClass {target}: the driver cannot apply it");
            Step::waits(name, message, "you to name another class").with_error(error())
        }
        Plan::Begin { target } => {
            Step::waits(name, format!("requests VolumeAttributesClass {target}"), resizer).with_error(error())
        }
        Plan::Continue { target } => {
            let message = format!("changing to VolumeAttributesClass {target}");
            Step::waits(name, message, resizer).with_error(error())
        }
        Plan::Pending { target, .. } => {
            let message = format!("requests VolumeAttributesClass {target}, which does not exist");
            Step::waits(name, message, "you to create the class, or name another").with_error(error())
        }
        Plan::Stuck { target } => {
            let message = format!("changing to VolumeAttributesClass {target}, which no longer exists");
            Step::waits(name, message, "you to recreate the class").with_error(error())
        }
    };
    Some(step.since(since_condition(claim, &[condition::MODIFYING_VOLUME])))
}

/// Whether the driver has rejected this class for good.
fn is_infeasible(claim: &PersistentVolumeClaim, class: &str) -> bool {
    claim.status.modify_volume_status.as_ref().is_some_and(|status| {
        status.status == ModifyStatus::Infeasible && status.target_volume_attributes_class_name == class
    })
}
