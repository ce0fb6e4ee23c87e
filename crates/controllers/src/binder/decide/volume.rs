//! What to do for a volume (upstream's syncVolume), and what becomes of it when its claim is gone.
//!
//! Volumes are deleted by whoever made them, outside: to them, phase Released is the sign. So it is written only if the
//! server itself said that the claim is gone, or bound to another volume.

use wharf_model::names::{annotation, reason};
use wharf_model::volume::{ReclaimPolicy, VolumePhase};
use wharf_model::{PersistentVolume, matching};

use super::super::migration::{self, IN_TREE};
use super::super::view::{Found, View};
use super::claim::owns;
use super::{About, Rest, Step, Told};

/// The next step for a volume that names no claim.
pub(crate) fn free(volume: &PersistentVolume) -> Step {
    migrate(volume).unwrap_or_else(|| phase(volume, VolumePhase::Available))
}

/// The next step for a volume that names the claim.
pub(super) fn decide(view: &View, volume: &PersistentVolume) -> Step {
    if let Some(step) = migrate(volume) {
        return step;
    }
    let Some(reference) = volume.spec.claim_ref.as_ref().filter(|reference| !reference.uid.is_empty()) else {
        // Reserved, and not bound: the claim, if there is one, had its turn.
        return phase(volume, VolumePhase::Available);
    };
    let Some(claim) = view.claim.as_ref().filter(|claim| owns(claim, volume)) else {
        let proven =
            view.live.claim.as_ref().is_some_and(|found| *found != Found::There(reference.uid.clone()));
        return released(view, volume, proven);
    };
    let wants = &claim.spec.volume_name;
    if wants.is_empty() {
        // The claim had its turn and did not choose this volume: it waits, or the two do not fit.
        return match matching::same_mode(volume, claim) {
            true => Step::rest(),
            false => Step::Rest(Rest {
                told: mismatch(&volume.metadata.name, &claim.metadata.name),
                problem: None,
            }),
        };
    }
    if *wants == volume.metadata.name {
        return phase(volume, VolumePhase::Bound);
    }
    let made_for_it = volume.metadata.annotations.contains_key(annotation::PROVISIONED_BY);
    if made_for_it && volume.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete {
        // Made for the claim, which has another one by now.
        let proven = view.live.claim == Some(Found::There(reference.uid.clone()));
        return released(view, volume, proven);
    }
    Step::Unbind { volume: volume.metadata.name.clone() }
}

fn migrate(volume: &PersistentVolume) -> Option<Step> {
    let name = || volume.metadata.name.clone();
    if let Some(to) = migration::of_volume(volume) {
        return Some(Step::MigrateVolume { volume: name(), to });
    }
    migration::frees(volume).then(|| Step::FreeVolume { volume: name() })
}

fn phase(volume: &PersistentVolume, phase: VolumePhase) -> Step {
    match volume.status.phase == phase {
        true => Step::rest(),
        false => Step::VolumePhase { volume: volume.metadata.name.clone(), phase, told: None },
    }
}

fn mismatch(volume: &str, claim: &str) -> Vec<Told> {
    let reason = reason::VOLUME_MISMATCH;
    let of_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim:?} due to incompatible volumeMode."
    );
    let of_claim = format!(
        "Cannot bind PersistentVolume {volume:?} to requested PersistentVolumeClaim due to incompatible volumeMode."
    );
    vec![
        Told::warning(About::Volume(volume.to_owned()), reason, of_volume),
        Told::warning(About::Claim, reason, of_claim),
    ]
}

/// Its claim needs it no longer. That a reclaim failed stays to be seen.
fn released(view: &View, volume: &PersistentVolume, proven: bool) -> Step {
    match volume.status.phase {
        VolumePhase::Released | VolumePhase::Failed => reclaim(view, volume),
        _ if proven => phase(volume, VolumePhase::Released),
        _ => Step::AskClaim,
    }
}

fn reclaim(view: &View, volume: &PersistentVolume) -> Step {
    let name = &volume.metadata.name;
    if is_migrated(volume) {
        return Step::rest();
    }
    let failed = |reason, note: String| match volume.status.phase {
        VolumePhase::Failed => Step::rest(),
        _ => Step::VolumePhase {
            volume: name.clone(),
            phase: VolumePhase::Failed,
            told: Some(Told::warning(About::Volume(name.clone()), reason, note)),
        },
    };
    match volume.spec.persistent_volume_reclaim_policy {
        ReclaimPolicy::Retain => Step::rest(),
        ReclaimPolicy::Delete => match no_deleter(volume) {
            None => Step::rest(),
            Some(note) => failed(reason::VOLUME_FAILED_DELETE, note),
        },
        ReclaimPolicy::Recycle if view.claim.is_none() && !view.users.is_empty() => {
            let note = format!("Volume is used by pods: {}", view.users.join(","));
            Step::tell(Told::normal(About::Volume(name.clone()), reason::VOLUME_FAILED_RECYCLE, note))
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

/// Whether a driver sees to it in the place of an in-tree plugin.
fn is_migrated(volume: &PersistentVolume) -> bool {
    volume.metadata.annotation(annotation::MIGRATED_TO).is_some_and(|driver| !driver.is_empty())
}

/// Why nobody will delete the volume: it is an in-tree plugin's, and we have none. `None` if it is a driver's.
pub fn no_deleter(volume: &PersistentVolume) -> Option<String> {
    if is_migrated(volume) {
        return None;
    }
    match volume.metadata.annotation(annotation::PROVISIONED_BY).filter(|by| !by.is_empty()) {
        Some(by) if by.starts_with(IN_TREE) => Some(format!("no volume plugin matched name: {by}")),
        Some(_) => None,
        None if volume.spec.csi.is_some() => None,
        None => Some(format!(
            "error getting deleter volume plugin for volume {:?}: no volume plugin matched",
            volume.metadata.name
        )),
    }
}
