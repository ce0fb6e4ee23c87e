//! The four writes of a binding.

use wharf_model::claim::ClaimPhase;
use wharf_model::names::annotation;
use wharf_model::volume::VolumePhase;
use wharf_model::{AccessMode, PersistentVolume, PersistentVolumeClaim, Quantity};

use super::{Problem, Step};

/// The first of the four that is needed; nothing, if the two are bound. The caller has made sure that the volume is
/// nobody else's.
pub(super) fn bind(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Step {
    let name = || volume.metadata.name.clone();
    let completed = claim.metadata.annotations.contains_key(annotation::BIND_COMPLETED);
    if !volume.is_bound_to(&claim.metadata) {
        Step::BindVolume { volume: name() }
    } else if volume.status.phase != VolumePhase::Bound {
        Step::VolumePhase { volume: name(), phase: VolumePhase::Bound, told: None }
    } else if claim.spec.volume_name != volume.metadata.name || !completed {
        Step::BindClaim { volume: name() }
    } else if claim.status.phase != ClaimPhase::Bound && volume.spec.capacity.storage.is_none() {
        Step::problem(Problem::NoCapacity(name()))
    } else if claim.status.phase != ClaimPhase::Bound || modes(claim, volume).is_some() {
        Step::ClaimBound { volume: name() }
    } else {
        Step::rest()
    }
}

/// The access modes that a claim has to show; `None` if it shows them. Words that we do not know we do not write.
pub(crate) fn modes<'a>(
    claim: &PersistentVolumeClaim,
    volume: &'a PersistentVolume,
) -> Option<&'a [AccessMode]> {
    let modes = &volume.spec.access_modes;
    let known = !modes.contains(&AccessMode::Unknown);
    (known && claim.status.access_modes != *modes).then_some(modes)
}

/// The capacity that a claim has to show when it becomes bound: what its file system has, if an expansion waits for
/// the node.
pub(crate) fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    let before = volume.metadata.annotation(annotation::PRE_RESIZE_CAPACITY);
    before.and_then(|before| before.parse().ok()).or(volume.spec.capacity.storage)
}
