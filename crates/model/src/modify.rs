//! Changing a volume's VolumeAttributesClass: which class it is to be brought to now, and what is written about it.
//! The state is in the claim's status; only whether the last call may still be running has to be known besides.
//!
//! Start reading at [`plan`].

use serde_json::json;

use crate::claim::{ClaimPhase, ModifyStatus};
use crate::names::{annotation, condition};
use crate::patch::{self, Guard, Patch, holds};
use crate::{PersistentVolume, PersistentVolumeClaim, SecretRef, Time};

/// Conditions that are a modification's; all others are somebody else's and left alone.
pub const CONDITIONS: [&str; 2] = [condition::MODIFYING_VOLUME, condition::MODIFY_VOLUME_ERROR];

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Nothing(Idle),
    /// The user gave it up, and nothing is under way: say so, once.
    Cancel,
    /// Write that it is in progress, then call the driver with this class.
    Begin {
        /// The class.
        target: String,
    },
    /// Repeat the call with this class: the last one may still be running, and nothing else may be asked before it
    /// has ended.
    Continue {
        /// The class.
        target: String,
    },
    /// The class does not exist: write that, unless it is written, and wait for it.
    Pending {
        /// The class.
        target: String,
        /// Whether it is still to be written.
        unwritten: bool,
    },
    /// The class that may still be on its way no longer exists, so the call cannot be repeated: wait for it.
    Stuck {
        /// The class.
        target: String,
    },
}

/// Why there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// The claim is not bound.
    NotBound,
    /// The volume is another driver's.
    NotOurs,
    /// The volume is another claim's.
    NotItsVolume,
    /// The class asked for is in force.
    InForce,
    /// No class is asked for, and nothing is under way.
    GivenUp,
}

/// Decides. `uncertain`: the last call gave no final answer, or this process has made none since it started.
/// `exists` tells whether there is a class of this name.
pub fn plan(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    driver: &str,
    uncertain: bool,
    exists: impl Fn(&str) -> bool,
) -> Plan {
    if claim.status.phase != ClaimPhase::Bound || claim.spec.volume_name.is_empty() {
        return Plan::Nothing(Idle::NotBound);
    }
    if !volume.is_of(driver) {
        return Plan::Nothing(Idle::NotOurs);
    }
    if !volume.is_bound_to(&claim.metadata) {
        return Plan::Nothing(Idle::NotItsVolume);
    }
    let asked = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
    let current = claim.status.current_volume_attributes_class_name.as_deref().unwrap_or_default();
    let status = claim.status.modify_volume_status.as_ref();
    if status.is_none() && asked == current {
        return Plan::Nothing(Idle::InForce);
    }
    let under_way = status.filter(|status| status.status == ModifyStatus::InProgress);
    match under_way {
        None if asked.is_empty() => match claim.status.condition(condition::MODIFYING_VOLUME) {
            Some(_) => Plan::Cancel,
            None => Plan::Nothing(Idle::GivenUp),
        },
        Some(status) if uncertain || asked.is_empty() => {
            let target = status.target_volume_attributes_class_name.clone();
            if exists(&target) { Plan::Continue { target } } else { Plan::Stuck { target } }
        }
        _ if exists(asked) => Plan::Begin { target: asked.to_owned() },
        _ => {
            let written = status.is_some_and(|status| status.status == ModifyStatus::Pending);
            Plan::Pending { target: asked.to_owned(), unwritten: !written }
        }
    }
}

/// Says that the class does not exist. Conditions stay as they are.
pub fn pending(claim: &PersistentVolumeClaim) -> Patch {
    let status = json!({"modifyVolumeStatus": {"status": ModifyStatus::Pending.as_str()}});
    patch::status(&claim.metadata, Guard::Version, &[], status)
}

/// Says that the driver is being asked. Before the call.
pub fn begin(claim: &PersistentVolumeClaim, target: &str, now: Time) -> Patch {
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
    /// It has ended and will be tried again.
    Final,
    /// It has ended, and the same request will fail again.
    Infeasible,
}

/// Whether the claim says already what [`failed`] would make it say.
pub fn says(claim: &PersistentVolumeClaim, failure: Failure, code: &str, error: &str) -> bool {
    let (status, message) = told(claim, failure);
    let said = |kind: &str, reason: &str, message: &str| {
        claim
            .status
            .condition(kind)
            .is_some_and(|said| said.status == "True" && said.reason == reason && said.message == message)
    };
    claim.status.modify_volume_status.as_ref().is_some_and(|written| written.status == status)
        && said(condition::MODIFYING_VOLUME, "", &message)
        && said(condition::MODIFY_VOLUME_ERROR, code, error)
}

/// The state after a failure, and the sentence about it.
fn told(claim: &PersistentVolumeClaim, failure: Failure) -> (ModifyStatus, String) {
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

/// Says how the call failed: the gRPC code by name as reason, its message as it came.
pub fn failed(claim: &PersistentVolumeClaim, failure: Failure, code: &str, error: &str, now: Time) -> Patch {
    let (status, message) = told(claim, failure);
    let set =
        [(condition::MODIFYING_VOLUME, "", message.as_str()), (condition::MODIFY_VOLUME_ERROR, code, error)];
    let status = json!({
        "modifyVolumeStatus": {"status": status.as_str()},
        "conditions": conditions(claim, &set, now),
    });
    patch::status(&claim.metadata, Guard::Version, &[], status)
}

/// Says in the volume that the class is in force. Before [`completed`], so that the claim never says more.
pub fn in_force(volume: &PersistentVolume, target: &str) -> Patch {
    Patch::Merge(
        json!({"metadata": {"uid": volume.metadata.uid}, "spec": {"volumeAttributesClassName": target}}),
    )
}

/// Says in the claim that the class is in force.
pub fn completed(claim: &PersistentVolumeClaim, target: &str) -> Patch {
    let status = json!({
        "modifyVolumeStatus": null,
        "currentVolumeAttributesClassName": target,
        "conditions": patch::conditions(&[], &patch::present(claim, &CONDITIONS)),
    });
    patch::status(&claim.metadata, Guard::Identity, &[], status)
}

/// Says that nothing is under way any more. The result of the last attempt stays to be seen.
pub fn cancelled(claim: &PersistentVolumeClaim) -> Patch {
    let status = json!({"conditions": patch::conditions(&[], &[condition::MODIFYING_VOLUME])});
    patch::status(&claim.metadata, Guard::Identity, &[], status)
}

/// The secret for modifying a volume: its own, else the one for expanding.
pub fn secret(volume: &PersistentVolume) -> Option<SecretRef> {
    let noted = |key| volume.metadata.annotation(key).filter(|value| !value.is_empty());
    match (noted(annotation::MODIFY_SECRET_NAME), noted(annotation::MODIFY_SECRET_NAMESPACE)) {
        (Some(name), Some(namespace)) => {
            Some(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() })
        }
        _ => volume.spec.csi.as_ref().and_then(|csi| csi.controller_expand_secret_ref.clone()),
    }
}

/// Conditions that hold; they hold since when they have held for the same reason.
fn conditions(claim: &PersistentVolumeClaim, set: &[(&str, &str, &str)], now: Time) -> serde_json::Value {
    let since = |kind: &str, reason: &str| {
        let old = claim.status.condition(kind).filter(|old| old.status == "True" && old.reason == reason);
        old.and_then(|old| old.last_transition_time).unwrap_or(now)
    };
    let set: Vec<_> = set
        .iter()
        .map(|&(kind, reason, message)| holds(kind, reason, message, since(kind, reason)))
        .collect();
    patch::conditions(&set, &[])
}

#[cfg(test)]
mod tests;
