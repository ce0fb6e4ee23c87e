//! Which volume a claim is bound to. Binder and scheduler both use this module, so that they apply the same rules.
//!
//! Guarantees: a volume that does not match is never chosen, and unknown values match nothing. The result does not
//! depend on the order of the volumes: the one with the fewest access modes (binder), then the smallest, then by name.
//!
//! A cluster may have thousands of volumes. `claim_index_key` and `available_class` are the values to index them by:
//! the candidates for a claim are those found under its key and those under its class.

use std::collections::{BTreeMap, BTreeSet};

use crate::topology::is_accessible_from;
use crate::volume::VolumePhase;
use crate::{AccessMode, Key, PersistentVolume, PersistentVolumeClaim, Quantity, VolumeMode};

/// The component that looks for a volume.
#[derive(Debug, Clone, Copy)]
pub enum MatchFor<'a> {
    /// The binder.
    Binder {
        /// The claim waits for its first consumer: only a volume that is reserved for it matches.
        delayed: bool,
    },
    /// The scheduler, for a pod that is considered for a node.
    Scheduler {
        /// The node.
        node: &'a str,
        /// The node's labels.
        labels: &'a BTreeMap<String, String>,
        /// Volumes that were chosen for other claims of the pod.
        taken: &'a BTreeSet<String>,
    },
}

/// The index value for volumes that are reserved for or bound to a claim: the claim's key.
pub fn claim_index_key(volume: &PersistentVolume) -> Option<String> {
    volume.spec.claim_ref.as_ref().map(|reference| reference.key().to_string())
}

/// The index value for available volumes: their class. `None` if the volume is not available.
pub fn available_class(volume: &PersistentVolume) -> Option<&str> {
    let available = volume.spec.claim_ref.is_none()
        && volume.status.phase == VolumePhase::Available
        && !volume.metadata.is_deleting();
    available.then(|| volume.class())
}

/// Whether a volume is reserved for this claim or bound to it: by name and, if the claimRef has one, by UID.
pub fn is_reserved_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.name == claim.metadata.name
            && Some(&reference.namespace) == claim.metadata.namespace.as_ref()
            && (reference.uid.is_empty() || reference.uid == claim.metadata.uid)
    })
}

/// The best of these volumes for a claim (upstream's FindMatchingVolume).
pub fn find_matching_volume<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    match_for: MatchFor<'_>,
) -> Option<&'a PersistentVolume> {
    let mut candidates: Vec<&PersistentVolume> =
        volumes.into_iter().filter(|volume| could_be(volume, claim, match_for)).collect();
    candidates.sort_by_cached_key(|volume| rank(volume, claim, match_for));
    for volume in candidates {
        let reached = match match_for {
            MatchFor::Binder { .. } => true,
            MatchFor::Scheduler { node, labels, .. } => {
                is_accessible_from(volume.spec.node_affinity.as_ref(), node, labels)
            }
        };
        match (is_reserved_for(volume, claim), reached) {
            (_, true) => return Some(volume),
            // It is reserved for this claim but not accessible from the node: no other volume matches.
            (true, false) => return None,
            (false, false) => {}
        }
    }
    None
}

/// All requirements that do not depend on the node.
fn could_be(volume: &PersistentVolume, claim: &PersistentVolumeClaim, match_for: MatchFor<'_>) -> bool {
    let reserved = is_reserved_for(volume, claim);
    let offered = || available_class(volume) == Some(class_or_empty(claim));
    let selected = || {
        claim
            .spec
            .selector
            .as_ref()
            .is_none_or(|selector| selector.matches(|key| volume.metadata.labels.get(key)))
    };
    let (delayed, considered) = match match_for {
        // Upstream's binder ignores volumes that lack an access mode, whatever their class. Its scheduler ignores
        // volumes of another class, but not the access modes of reserved ones.
        MatchFor::Binder { delayed } => (delayed, has_modes(volume, claim)),
        MatchFor::Scheduler { taken, .. } => {
            let modes = reserved || has_modes(volume, claim);
            (
                false,
                modes && volume.class() == class_or_empty(claim) && !taken.contains(&volume.metadata.name),
            )
        }
    };
    considered
        && size(volume) >= claim.requested_storage().unwrap_or(Quantity::ZERO)
        && volume_modes_match(volume, claim)
        && same_attributes(volume, claim)
        && !volume.metadata.is_deleting()
        && (reserved || (!delayed && offered() && selected()))
}

/// The sort key; the first volume is chosen.
fn rank<'a>(
    volume: &'a PersistentVolume,
    claim: &PersistentVolumeClaim,
    match_for: MatchFor<'_>,
) -> (usize, bool, Quantity, &'a str) {
    let modes = match match_for {
        MatchFor::Binder { .. } => volume.spec.access_modes.iter().collect::<BTreeSet<_>>().len(),
        MatchFor::Scheduler { .. } => 0,
    };
    (modes, !is_reserved_for(volume, claim), size(volume), &volume.metadata.name)
}

/// Why a volume that a claim requests by name does not match, in upstream's wording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// It is being deleted.
    #[error("the volume is marked for deletion {0:?}")]
    Deleting(String),
    /// It is too small.
    #[error("requested PV is too small")]
    TooSmall,
    /// It has another StorageClass.
    #[error("storageClassName does not match")]
    Class,
    /// It has another VolumeAttributesClass.
    #[error("volumeAttributesClassName does not match")]
    AttributesClass,
    /// It has another volume mode.
    #[error("incompatible volumeMode")]
    VolumeMode,
    /// It lacks an access mode.
    #[error("incompatible accessMode")]
    AccessMode,
}

/// Whether a volume that a claim requests by name matches. The claim's selector is ignored, as upstream does.
pub fn check_requested_volume(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<(), Mismatch> {
    if volume.metadata.is_deleting() {
        Err(Mismatch::Deleting(volume.metadata.name.clone()))
    } else if size(volume).bytes() < claim.requested_storage().unwrap_or(Quantity::ZERO).bytes() {
        Err(Mismatch::TooSmall)
    } else if volume.class() != class_or_empty(claim) {
        Err(Mismatch::Class)
    } else if !same_attributes(volume, claim) {
        Err(Mismatch::AttributesClass)
    } else if !volume_modes_match(volume, claim) {
        Err(Mismatch::VolumeMode)
    } else if !has_modes(volume, claim) {
        Err(Mismatch::AccessMode)
    } else {
        Ok(())
    }
}

/// The class of the volumes that match a claim: a claim without a class matches volumes without one.
pub fn class_or_empty(claim: &PersistentVolumeClaim) -> &str {
    claim.class().unwrap_or("")
}

/// Whether volume and claim have the same volume mode.
pub fn volume_modes_match(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let mode = claim.volume_mode();
    mode != VolumeMode::Unknown && mode == volume.spec.volume_mode()
}

fn size(volume: &PersistentVolume) -> Quantity {
    volume.spec.capacity.storage.unwrap_or(Quantity::ZERO)
}

fn same_attributes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    name(&volume.spec.volume_attributes_class_name) == name(&claim.spec.volume_attributes_class_name)
}

fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let has = |mode: &AccessMode| *mode != AccessMode::Unknown && volume.spec.access_modes.contains(mode);
    claim.spec.access_modes.iter().all(has)
}

/// The order in which a pod's claims are matched: the smallest first, so that large volumes are left for large claims.
pub fn compare_by_size(a: &PersistentVolumeClaim, b: &PersistentVolumeClaim) -> std::cmp::Ordering {
    let key = |claim: &PersistentVolumeClaim| -> (Quantity, Key) {
        (claim.requested_storage().unwrap_or(Quantity::ZERO), claim.metadata.key())
    };
    key(a).cmp(&key(b))
}

#[cfg(test)]
mod tests;
