//! Changing a volume's VolumeAttributesClass: the class to apply now, and the patches that record the progress. The
//! state is in the claim's status; the only other input is whether the last call may still be running.
//!
//! Start reading at [`plan`].

use std::collections::BTreeSet;

use serde_json::json;

use crate::claim::{ClaimPhase, ModifyStatus};
use crate::names::{annotation, condition};
use crate::patch::{self, Guard, Patch, condition_true};
use crate::{PersistentVolume, PersistentVolumeClaim, SecretRef, Time};

/// The conditions of a modification; all others are left unchanged.
pub const CONDITIONS: [&str; 2] = [condition::MODIFYING_VOLUME, condition::MODIFY_VOLUME_ERROR];

/// What the resizer has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Idle(IdleReason),
    /// The user cancelled the change, and no call is running: record that once.
    Cancel,
    /// Record that the change is in progress, then call the driver with this class.
    Begin {
        /// The class.
        target: String,
    },
    /// Repeat the call with this class: the last one may still be running, and must end before another class is
    /// applied.
    Continue {
        /// The class.
        target: String,
    },
    /// The class does not exist: record that, if necessary, and wait for it.
    Pending {
        /// The class.
        target: String,
        /// Whether it is not recorded yet.
        unwritten: bool,
    },
    /// The class of a call that may be running no longer exists, so the call cannot be repeated: wait for the class.
    Stuck {
        /// The class.
        target: String,
    },
}

/// Why the resizer has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleReason {
    /// The claim is not bound.
    NotBound,
    /// The volume belongs to another driver.
    OtherDriver,
    /// The volume is not bound to this claim.
    BoundToOtherClaim,
    /// The requested class is applied.
    UpToDate,
    /// No class is requested, and no change is in progress.
    NotRequested,
}

/// Decides the next step. `uncertain`: the last call had no final result, or this process has not made a call since it
/// started. `exists` returns whether a class exists.
pub fn plan(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    driver: &str,
    uncertain: bool,
    exists: impl Fn(&str) -> bool,
) -> Plan {
    if claim.status.phase != ClaimPhase::Bound || claim.spec.volume_name.is_empty() {
        return Plan::Idle(IdleReason::NotBound);
    }
    if !volume.is_for_driver(driver) {
        return Plan::Idle(IdleReason::OtherDriver);
    }
    if !volume.is_bound_to(&claim.metadata) {
        return Plan::Idle(IdleReason::BoundToOtherClaim);
    }
    let requested = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
    let current = claim.status.current_volume_attributes_class_name.as_deref().unwrap_or_default();
    let status = claim.status.modify_volume_status.as_ref();
    if status.is_none() && requested == current {
        return Plan::Idle(IdleReason::UpToDate);
    }
    let in_progress = status.filter(|status| status.status == ModifyStatus::InProgress);
    match in_progress {
        None if requested.is_empty() => match claim.status.condition(condition::MODIFYING_VOLUME) {
            Some(_) => Plan::Cancel,
            None => Plan::Idle(IdleReason::NotRequested),
        },
        Some(status) if uncertain || requested.is_empty() => {
            let target = status.target_volume_attributes_class_name.clone();
            if exists(&target) { Plan::Continue { target } } else { Plan::Stuck { target } }
        }
        _ if exists(requested) => Plan::Begin { target: requested.to_owned() },
        _ => {
            let written = status.is_some_and(|status| status.status == ModifyStatus::Pending);
            Plan::Pending { target: requested.to_owned(), unwritten: !written }
        }
    }
}

/// The classes whose existence [`plan`] may ask for.
pub fn relevant_classes(claim: &PersistentVolumeClaim) -> BTreeSet<&str> {
    let requested = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
    let current = claim.status.current_volume_attributes_class_name.as_deref().unwrap_or_default();
    let target = match &claim.status.modify_volume_status {
        Some(status) => status.target_volume_attributes_class_name.as_str(),
        None if requested == current => return BTreeSet::new(),
        None => "",
    };
    [requested, target].into_iter().filter(|name| !name.is_empty()).collect()
}

/// Records that the class does not exist. Conditions are unchanged.
pub fn mark_pending(claim: &PersistentVolumeClaim) -> Patch {
    let status = json!({"modifyVolumeStatus": {"status": ModifyStatus::Pending.as_str()}});
    patch::status(&claim.metadata, Guard::Version, &[], status)
}

/// Records, before the call, that the change is in progress.
pub fn mark_in_progress(claim: &PersistentVolumeClaim, target: &str, now: Time) -> Patch {
    let message = format!("Modifying volume to {target:?} is in progress.");
    let status = json!({
        "modifyVolumeStatus": {
            "targetVolumeAttributesClassName": target,
            "status": ModifyStatus::InProgress.as_str(),
        },
        "conditions": conditions(claim, &[(condition::MODIFYING_VOLUME, "", &message)], now),
    });
    patch::status(&claim.metadata, Guard::Version, &[], status)
}

/// How a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It may still be running.
    StillRunning,
    /// It has ended and will be retried.
    Final,
    /// It has ended, and the same request will fail again.
    Infeasible,
}

/// Whether the claim already has the status that `mark_failed` would write.
pub fn already_reports(claim: &PersistentVolumeClaim, failure: Failure, code: &str, error: &str) -> bool {
    let (status, message) = failure_report(claim, failure);
    let reported = |kind: &str, reason: &str, message: &str| {
        claim
            .status
            .condition(kind)
            .is_some_and(|found| found.status == "True" && found.reason == reason && found.message == message)
    };
    claim.status.modify_volume_status.as_ref().is_some_and(|written| written.status == status)
        && reported(condition::MODIFYING_VOLUME, "", &message)
        && reported(condition::MODIFY_VOLUME_ERROR, code, error)
}

/// The status and message after a failure.
fn failure_report(claim: &PersistentVolumeClaim, failure: Failure) -> (ModifyStatus, String) {
    let target =
        claim.status.modify_volume_status.as_ref().map(|status| &status.target_volume_attributes_class_name);
    let target = target.map_or("", String::as_str);
    match failure {
        Failure::StillRunning => {
            (ModifyStatus::InProgress, format!("Modifying volume to {target:?} is still in progress."))
        }
        Failure::Final => {
            (ModifyStatus::InProgress, format!("Modifying volume to {target:?} failed. Waiting for retry."))
        }
        Failure::Infeasible => {
            (ModifyStatus::Infeasible, format!("Modifying volume to {target:?} failed. Waiting for retry."))
        }
    }
}

/// Records a failed call: the name of the gRPC code as reason, and its message unchanged.
pub fn mark_failed(
    claim: &PersistentVolumeClaim,
    failure: Failure,
    code: &str,
    error: &str,
    now: Time,
) -> Patch {
    let (status, message) = failure_report(claim, failure);
    let set =
        [(condition::MODIFYING_VOLUME, "", message.as_str()), (condition::MODIFY_VOLUME_ERROR, code, error)];
    let status = json!({
        "modifyVolumeStatus": {"status": status.as_str()},
        "conditions": conditions(claim, &set, now),
    });
    patch::status(&claim.metadata, Guard::Version, &[], status)
}

/// Sets the class of the volume. Written before `mark_completed`, so that the claim is never ahead of the volume.
pub fn set_volume_class(volume: &PersistentVolume, target: &str) -> Patch {
    Patch::Merge(
        json!({"metadata": {"uid": volume.metadata.uid}, "spec": {"volumeAttributesClassName": target}}),
    )
}

/// Records in the claim that the class is applied.
pub fn mark_completed(claim: &PersistentVolumeClaim, target: &str) -> Patch {
    let status = json!({
        "modifyVolumeStatus": null,
        "currentVolumeAttributesClassName": target,
        "conditions": patch::conditions(&[], &patch::present_conditions(claim, &CONDITIONS)),
    });
    patch::status(&claim.metadata, Guard::Identity, &[], status)
}

/// Records that no change is in progress. The result of the last attempt is kept.
pub fn mark_cancelled(claim: &PersistentVolumeClaim) -> Patch {
    let status = json!({"conditions": patch::conditions(&[], &[condition::MODIFYING_VOLUME])});
    patch::status(&claim.metadata, Guard::Identity, &[], status)
}

/// The secret for ControllerModifyVolume: from the volume's annotations, or else the one for expansion.
pub fn modify_secret(volume: &PersistentVolume) -> Option<SecretRef> {
    let noted = |key| volume.metadata.annotation(key).filter(|value| !value.is_empty());
    match (noted(annotation::MODIFY_SECRET_NAME), noted(annotation::MODIFY_SECRET_NAMESPACE)) {
        (Some(name), Some(namespace)) => {
            Some(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() })
        }
        _ => volume.spec.csi.as_ref().and_then(|csi| csi.controller_expand_secret_ref.clone()),
    }
}

/// Conditions with status True. The transition time is kept if status and reason are unchanged.
fn conditions(claim: &PersistentVolumeClaim, set: &[(&str, &str, &str)], now: Time) -> serde_json::Value {
    let since = |kind: &str, reason: &str| {
        let old = claim.status.condition(kind).filter(|old| old.status == "True" && old.reason == reason);
        old.and_then(|old| old.last_transition_time).unwrap_or(now)
    };
    let set: Vec<_> = set
        .iter()
        .map(|&(kind, reason, message)| condition_true(kind, reason, message, since(kind, reason)))
        .collect();
    patch::conditions(&set, &[])
}

#[cfg(test)]
mod tests;
