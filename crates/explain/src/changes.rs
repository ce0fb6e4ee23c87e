//! What changes about a claim that is bound, whoever uses it: its size, and its attributes class.

use wharf_model::claim::{ClaimPhase, ModifyStatus, ResizeStatus};
use wharf_model::modify::{Plan, plan};
use wharf_model::names::{condition, reason};
use wharf_model::{Kind as _, PersistentVolumeClaim, Time};

use crate::claim::name;
use crate::facts::{ClaimFacts, Facts};
use crate::story::{Said, Step};

/// The steps that are on the way.
pub(crate) fn walk(facts: &ClaimFacts, all: &Facts) -> Vec<Step> {
    let bound = |claim: &&PersistentVolumeClaim| claim.status.phase == ClaimPhase::Bound;
    let Some(claim) = facts.claim.there().filter(bound) else { return Vec::new() };
    let name = name(facts);
    growing(&name, claim, facts, all).into_iter().chain(modifying(&name, claim, facts, all)).collect()
}

/// How far an expansion has come.
fn growing(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Option<Step> {
    let (wanted, there) = (claim.requested()?, claim.status.capacity.storage?);
    if wanted <= there {
        return None;
    }
    let driver =
        facts.volume.there().and_then(|volume| volume.spec.csi.as_ref()).map(|csi| csi.driver.as_str());
    let resizer = format!("the resizer of {}", driver.unwrap_or("its driver"));
    let what = format!("it has {there} and wants {wanted}");
    let attempt = || all.attempt("resizer", &claim.key().to_string());
    let failed = || {
        attempt()
            .or_else(|| said(claim, condition::CONTROLLER_RESIZE_ERROR))
            .or_else(|| all.warning(claim, &[reason::VOLUME_RESIZE_FAILED]))
    };
    let on_node = || said(claim, condition::NODE_RESIZE_ERROR);
    let step = match claim.status.allocated_resource_statuses.storage {
        None | Some(ResizeStatus::Unknown) => Step::waits(name, what, resizer).after(failed()),
        Some(ResizeStatus::ControllerResizeInProgress) => {
            Step::waits(name, format!("{what}: the driver expands it"), resizer).after(failed())
        }
        Some(ResizeStatus::ControllerResizeInfeasible) => {
            Step::waits(name, format!("{what}: the driver says that it never can"), "you: ask for less")
                .after(failed())
        }
        Some(ResizeStatus::NodeResizePending) => {
            let says = format!("{what}: the volume has grown, its file system not yet");
            Step::waits(name, says, "the node of a pod that uses it (kubelet), or you: start one")
                .after(on_node())
        }
        Some(ResizeStatus::NodeResizeInProgress) => {
            Step::waits(name, format!("{what}: its node expands it"), "the node (kubelet)").after(on_node())
        }
        Some(ResizeStatus::NodeResizeInfeasible) => Step::waits(
            name,
            format!("{what}: the driver says on the node that it never can"),
            "you: ask for less",
        )
        .after(on_node()),
    };
    Some(step.since(begun(claim, &[condition::FILE_SYSTEM_RESIZE_PENDING, condition::RESIZING])))
}

/// Since when the first of these conditions that is there is.
fn begun(claim: &PersistentVolumeClaim, conditions: &[&str]) -> Option<Time> {
    conditions.iter().find_map(|kind| claim.status.condition(kind))?.last_transition_time
}

/// What a condition says.
fn said(claim: &PersistentVolumeClaim, kind: &str) -> Option<Said> {
    let condition = claim.status.condition(kind)?;
    let (text, at) = (condition.message.clone(), condition.last_transition_time);
    Some(Said { by: format!("condition {kind}"), text, at })
}

/// How far a change of its attributes class has come, by the resizer's own rules.
fn modifying(name: &str, claim: &PersistentVolumeClaim, facts: &ClaimFacts, all: &Facts) -> Option<Step> {
    let volume = facts.volume.there()?;
    let driver = &volume.spec.csi.as_ref()?.driver;
    // Of a call that is on its way only the resizer knows whether it has ended.
    let exists = |class: &str| facts.attributes_classes.as_ref().is_none_or(|there| there.contains(class));
    let plan = plan(claim, volume, driver, true, exists);
    let resizer = format!("the resizer of {driver}");
    let error = || {
        all.attempt("modifier", &claim.key().to_string())
            .or_else(|| said(claim, condition::MODIFY_VOLUME_ERROR))
            .or_else(|| all.warning(claim, &[reason::VOLUME_MODIFY_FAILED]))
    };
    let step = match plan {
        Plan::Nothing(_) => return None,
        Plan::Cancel => Step::waits(name, "its change to another attributes class was given up", resizer),
        Plan::Begin { target } | Plan::Continue { target } if facts.attributes_classes.is_none() => {
            Step::unknown(
                name,
                format!("it wants attributes class {target}; whether that exists is not known"),
            )
        }
        Plan::Begin { target } if is_infeasible(claim, &target) => {
            let says = format!("it wants attributes class {target}: the driver says that it never can");
            Step::waits(name, says, "you: name another class").after(error())
        }
        Plan::Begin { target } => {
            Step::waits(name, format!("it wants attributes class {target}"), resizer).after(error())
        }
        Plan::Continue { target } => {
            let says = format!("it is being changed to attributes class {target}");
            Step::waits(name, says, resizer).after(error())
        }
        Plan::Pending { target, .. } => {
            let says = format!("it wants attributes class {target}, which does not exist");
            Step::waits(name, says, "you: make the class, or name another").after(error())
        }
        Plan::Stuck { target } => {
            let says = format!("it is being changed to attributes class {target}, which is gone");
            Step::waits(name, says, "you: make the class anew").after(error())
        }
    };
    Some(step.since(begun(claim, &[condition::MODIFYING_VOLUME])))
}

/// Whether the driver has refused this class, finally.
fn is_infeasible(claim: &PersistentVolumeClaim, class: &str) -> bool {
    claim.status.modify_volume_status.as_ref().is_some_and(|status| {
        status.status == ModifyStatus::Infeasible && status.target_volume_attributes_class_name == class
    })
}
