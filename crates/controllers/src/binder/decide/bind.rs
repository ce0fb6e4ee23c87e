//! The four writes of a binding.

use wharf_model::claim::ClaimPhase;
use wharf_model::names::annotation;
use wharf_model::volume::VolumePhase;
use wharf_model::{AccessMode, PersistentVolume, PersistentVolumeClaim, Quantity};

use super::{Problem, Step};

/// The first of the four writes that is needed; idle if claim and volume are bound. The caller has checked that the
/// volume does not belong to another claim.
pub(super) fn bind(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Step {
    let name = || volume.metadata.name.clone();
    let completed = claim.metadata.annotations.contains_key(annotation::BIND_COMPLETED);
    if !volume.is_bound_to(&claim.metadata) {
        Step::BindVolume { volume: name() }
    } else if volume.status.phase != VolumePhase::Bound {
        Step::SetVolumePhase { volume: name(), phase: VolumePhase::Bound, event: None }
    } else if claim.spec.volume_name != volume.metadata.name || !completed {
        Step::BindClaim { volume: name() }
    } else if claim.status.phase != ClaimPhase::Bound && volume.spec.capacity.storage.is_none() {
        Step::problem(Problem::NoCapacity(name()))
    } else if claim.status.phase != ClaimPhase::Bound || access_modes_to_report(claim, volume).is_some() {
        Step::MarkClaimBound { volume: name() }
    } else {
        Step::idle()
    }
}

/// The access modes to write into a claim's status; `None` if they are there. Unknown modes are never written.
pub(crate) fn access_modes_to_report<'a>(
    claim: &PersistentVolumeClaim,
    volume: &'a PersistentVolume,
) -> Option<&'a [AccessMode]> {
    let modes = &volume.spec.access_modes;
    let known = !modes.contains(&AccessMode::Unknown);
    (known && claim.status.access_modes != *modes).then_some(modes)
}

/// The capacity to write into a claim's status when it becomes bound. If an expansion waits for the node, that is the
/// size before the expansion.
pub(crate) fn capacity_to_report(volume: &PersistentVolume) -> Option<Quantity> {
    let before = volume.metadata.annotation(annotation::PRE_RESIZE_CAPACITY);
    before.and_then(|before| before.parse().ok()).or(volume.spec.capacity.storage)
}
