//! The rules for a volume (upstream's syncVolume), including reclaim once its claim is deleted.
//!
//! External provisioners delete volumes when they reach phase Released. So that phase is written only after the API
//! server itself reported that the claim does not exist or is bound to another volume.

use wharf_model::names::{annotation, reason};
use wharf_model::volume::{ReclaimPolicy, VolumePhase};
use wharf_model::{PersistentVolume, matching};

use super::super::migration::{self, IN_TREE_PREFIX};
use super::super::view::{LiveObject, View};
use super::{EventRecord, EventTarget, Idle, Step};

/// The next step for a volume that references no claim.
pub(crate) fn decide_unclaimed(volume: &PersistentVolume) -> Step {
    migrate(volume).unwrap_or_else(|| set_phase(volume, VolumePhase::Available))
}

/// The next step for a volume that references the claim.
pub(super) fn decide(view: &View, volume: &PersistentVolume) -> Step {
    if let Some(step) = migrate(volume) {
        return step;
    }
    let Some(reference) = volume.spec.claim_ref.as_ref().filter(|reference| !reference.uid.is_empty()) else {
        // Reserved but not bound. If the claim exists, its own rules did not choose this volume.
        return set_phase(volume, VolumePhase::Available);
    };
    let Some(claim) = view.claim.as_ref().filter(|claim| volume.references_uid_of(&claim.metadata)) else {
        let proven = view
            .live
            .claim
            .as_ref()
            .is_some_and(|found| *found != LiveObject::Present(reference.uid.clone()));
        return release(view, volume, proven);
    };
    let requested = &claim.spec.volume_name;
    if requested.is_empty() {
        // The claim's own rules did not choose this volume: the claim waits, or the two do not match.
        return match matching::volume_modes_match(volume, claim) {
            true => Step::idle(),
            false => Step::Idle(Idle {
                events: mode_mismatch_events(&volume.metadata.name, &claim.metadata.name),
                problem: None,
            }),
        };
    }
    if *requested == volume.metadata.name {
        return set_phase(volume, VolumePhase::Bound);
    }
    let provisioned = volume.metadata.annotations.contains_key(annotation::PROVISIONED_BY);
    if provisioned && volume.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete {
        // Provisioned for the claim, which has another volume by now.
        let proven = view.live.claim == Some(LiveObject::Present(reference.uid.clone()));
        return release(view, volume, proven);
    }
    Step::Unbind { volume: volume.metadata.name.clone() }
}

fn migrate(volume: &PersistentVolume) -> Option<Step> {
    let name = || volume.metadata.name.clone();
    if let Some(to) = migration::volume_change(volume) {
        return Some(Step::MigrateVolume { volume: name(), to });
    }
    migration::has_stale_in_tree_finalizer(volume).then(|| Step::RemoveInTreeFinalizer { volume: name() })
}

fn set_phase(volume: &PersistentVolume, phase: VolumePhase) -> Step {
    match volume.status.phase == phase {
        true => Step::idle(),
        false => Step::SetVolumePhase { volume: volume.metadata.name.clone(), phase, event: None },
    }
}

fn mode_mismatch_events(volume: &str, claim: &str) -> Vec<EventRecord> {
    let reason = reason::VOLUME_MISMATCH;
    let of_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim:?} due to incompatible volumeMode."
    );
    let of_claim = format!(
        "Cannot bind PersistentVolume {volume:?} to requested PersistentVolumeClaim due to incompatible volumeMode."
    );
    vec![
        EventRecord::warning(EventTarget::Volume(volume.to_owned()), reason, of_volume),
        EventRecord::warning(EventTarget::Claim, reason, of_claim),
    ]
}

/// The claim no longer needs the volume. Phase Failed stays, as the record of a failed reclaim.
fn release(view: &View, volume: &PersistentVolume, proven: bool) -> Step {
    match volume.status.phase {
        VolumePhase::Released | VolumePhase::Failed => reclaim(view, volume),
        _ if proven => set_phase(volume, VolumePhase::Released),
        _ => Step::FetchClaim,
    }
}

fn reclaim(view: &View, volume: &PersistentVolume) -> Step {
    let name = &volume.metadata.name;
    if is_migrated(volume) {
        return Step::idle();
    }
    let failed = |reason, note: String| match volume.status.phase {
        VolumePhase::Failed => Step::idle(),
        _ => Step::SetVolumePhase {
            volume: name.clone(),
            phase: VolumePhase::Failed,
            event: Some(EventRecord::warning(EventTarget::Volume(name.clone()), reason, note)),
        },
    };
    match volume.spec.persistent_volume_reclaim_policy {
        ReclaimPolicy::Retain => Step::idle(),
        ReclaimPolicy::Delete => match missing_deleter_message(volume) {
            None => Step::idle(),
            Some(note) => failed(reason::VOLUME_FAILED_DELETE, note),
        },
        ReclaimPolicy::Recycle if view.claim.is_none() && !view.users.is_empty() => {
            let note = format!("Volume is used by pods: {}", view.users.join(","));
            Step::event(EventRecord::normal(
                EventTarget::Volume(name.clone()),
                reason::VOLUME_FAILED_RECYCLE,
                note,
            ))
        }
        ReclaimPolicy::Recycle => {
            failed(reason::VOLUME_FAILED_RECYCLE, "No recycler plugin found for the volume!".to_owned())
        }
        ReclaimPolicy::Unknown => failed(
            reason::VOLUME_UNKNOWN_RECLAIM_POLICY,
            "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned(),
        ),
    }
}

/// Whether a CSI driver manages the volume in place of an in-tree plugin.
fn is_migrated(volume: &PersistentVolume) -> bool {
    volume.metadata.annotation(annotation::MIGRATED_TO).is_some_and(|driver| !driver.is_empty())
}

/// The error for a volume that nothing will delete, because it belongs to an in-tree plugin and there are none here.
/// `None` if a CSI driver owns the volume.
pub fn missing_deleter_message(volume: &PersistentVolume) -> Option<String> {
    if is_migrated(volume) {
        return None;
    }
    match volume.metadata.annotation(annotation::PROVISIONED_BY).filter(|by| !by.is_empty()) {
        Some(by) if by.starts_with(IN_TREE_PREFIX) => Some(format!("no volume plugin matched name: {by}")),
        Some(_) => None,
        None if volume.spec.csi.is_some() => None,
        None => Some(format!(
            "error getting deleter volume plugin for volume {:?}: no volume plugin matched",
            volume.metadata.name
        )),
    }
}
