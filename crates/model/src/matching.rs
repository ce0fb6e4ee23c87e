//! Which volume a claim gets. Binder and scheduler ask alike, so that they never choose by different rules.
//!
//! Promise: what does not fit is never chosen, and words that we do not know fit nothing. The same claim and volumes
//! give the same answer, whatever the order in which volumes are told: the fewest access modes that will do (binder),
//! then the smallest, then by name.
//!
//! A cluster may have thousands of volumes that are nobody's choice. [`reserved_for`] and [`offered_in`] are the two
//! values to index volumes by: the candidates for a claim are those found under its key and those under its class.

use std::collections::{BTreeMap, BTreeSet};

use crate::topology::reaches;
use crate::volume::VolumePhase;
use crate::{AccessMode, Key, PersistentVolume, PersistentVolumeClaim, Quantity, VolumeMode};

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub enum Seeker<'a> {
    /// The binder.
    Binder {
        /// The claim waits for its first consumer: only what is reserved for it will do.
        delayed: bool,
    },
    /// The scheduler, for a pod that may be placed on a node.
    Scheduler {
        /// The node.
        node: &'a str,
        /// The node's labels.
        labels: &'a BTreeMap<String, String>,
        /// Volumes that were chosen for others of the pod's claims.
        taken: &'a BTreeSet<String>,
    },
}

/// Under what a volume is found by the claim it is reserved for or bound to: the claim's key.
pub fn reserved_for(volume: &PersistentVolume) -> Option<String> {
    volume.spec.claim_ref.as_ref().map(|reference| reference.key().to_string())
}

/// Under what a volume is found by any claim that looks for one: its class. `None` if it is not to be had.
pub fn offered_in(volume: &PersistentVolume) -> Option<&str> {
    let to_be_had = volume.spec.claim_ref.is_none()
        && volume.status.phase == VolumePhase::Available
        && !volume.metadata.is_deleting();
    to_be_had.then(|| volume.class())
}

/// Whether a volume is reserved for this claim or bound to it: of its name and, where one is said, of its identity.
pub fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.name == claim.metadata.name
            && Some(&reference.namespace) == claim.metadata.namespace.as_ref()
            && (reference.uid.is_empty() || reference.uid == claim.metadata.uid)
    })
}

/// The best of these volumes for a claim (upstream's FindMatchingVolume).
pub fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    seeker: Seeker<'_>,
) -> Option<&'a PersistentVolume> {
    let mut candidates: Vec<&PersistentVolume> =
        volumes.into_iter().filter(|volume| could_be(volume, claim, seeker)).collect();
    candidates.sort_by_cached_key(|volume| rank(volume, claim, seeker));
    for volume in candidates {
        let reached = match seeker {
            Seeker::Binder { .. } => true,
            Seeker::Scheduler { node, labels, .. } => {
                reaches(volume.spec.node_affinity.as_ref(), node, labels)
            }
        };
        match (is_for(volume, claim), reached) {
            (_, true) => return Some(volume),
            // It is this claim's, and the node does not reach it: no other will do.
            (true, false) => return None,
            (false, false) => {}
        }
    }
    None
}

/// All that needs no look at the node.
fn could_be(volume: &PersistentVolume, claim: &PersistentVolumeClaim, seeker: Seeker<'_>) -> bool {
    let reserved = is_for(volume, claim);
    let offered = || offered_in(volume) == Some(class(claim));
    let selected = || {
        claim
            .spec
            .selector
            .as_ref()
            .is_none_or(|selector| selector.matches(|key| volume.metadata.labels.get(key)))
    };
    let (delayed, considered) = match seeker {
        // Upstream's binder looks at nothing that lacks a mode, whatever its class; its scheduler at nothing of another
        // class, whatever the modes of what is reserved.
        Seeker::Binder { delayed } => (delayed, has_modes(volume, claim)),
        Seeker::Scheduler { taken, .. } => {
            let modes = reserved || has_modes(volume, claim);
            (false, modes && volume.class() == class(claim) && !taken.contains(&volume.metadata.name))
        }
    };
    considered
        && size(volume) >= claim.requested().unwrap_or(Quantity::ZERO)
        && same_mode(volume, claim)
        && same_attributes(volume, claim)
        && !volume.metadata.is_deleting()
        && (reserved || (!delayed && offered() && selected()))
}

/// What comes first is chosen.
fn rank<'a>(
    volume: &'a PersistentVolume,
    claim: &PersistentVolumeClaim,
    seeker: Seeker<'_>,
) -> (usize, bool, Quantity, &'a str) {
    let modes = match seeker {
        Seeker::Binder { .. } => volume.spec.access_modes.iter().collect::<BTreeSet<_>>().len(),
        Seeker::Scheduler { .. } => 0,
    };
    (modes, !is_for(volume, claim), size(volume), &volume.metadata.name)
}

/// Why a volume that a claim asks for by name is not for it, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// It is going.
    #[error("the volume is marked for deletion {0:?}")]
    Deleting(String),
    /// It is too small.
    #[error("requested PV is too small")]
    TooSmall,
    /// It is of another class.
    #[error("storageClassName does not match")]
    Class,
    /// It has another mutable class.
    #[error("volumeAttributesClassName does not match")]
    AttributesClass,
    /// One is a device, the other a file system.
    #[error("incompatible volumeMode")]
    VolumeMode,
    /// It may not be used so.
    #[error("incompatible accessMode")]
    AccessMode,
}

/// Whether a volume that a claim asks for by name will do. The claim's selector is not asked, as upstream does not.
pub fn check(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), Mismatch> {
    if volume.metadata.is_deleting() {
        Err(Mismatch::Deleting(volume.metadata.name.clone()))
    } else if size(volume).bytes() < claim.requested().unwrap_or(Quantity::ZERO).bytes() {
        Err(Mismatch::TooSmall)
    } else if volume.class() != class(claim) {
        Err(Mismatch::Class)
    } else if !same_attributes(volume, claim) {
        Err(Mismatch::AttributesClass)
    } else if !same_mode(volume, claim) {
        Err(Mismatch::VolumeMode)
    } else if !has_modes(volume, claim) {
        Err(Mismatch::AccessMode)
    } else {
        Ok(())
    }
}

/// The class of volumes that a claim looks among: to name none is to ask for those without.
pub fn class(claim: &PersistentVolumeClaim) -> &str {
    claim.class().unwrap_or("")
}

/// Whether both are devices, or both file systems.
pub fn same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
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

/// The order in which claims of a pod are given volumes: the smallest first, so that a large volume is left for who
/// needs it.
pub fn by_size(a: &PersistentVolumeClaim, b: &PersistentVolumeClaim) -> std::cmp::Ordering {
    let key = |claim: &PersistentVolumeClaim| -> (Quantity, Key) {
        (claim.requested().unwrap_or(Quantity::ZERO), claim.metadata.key())
    };
    key(a).cmp(&key(b))
}

#[cfg(test)]
mod tests;
