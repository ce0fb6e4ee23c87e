//! The rules for one subject: whether its object has to be created, updated or deleted. No I/O.

use wharf_model::{CSIStorageCapacity, OwnerRef, Quantity};

use super::view::{Capacity, View};

/// The next step for a subject.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Nothing. `poll_again`: check again after the poll interval.
    Done { poll_again: bool },
    /// Call GetCapacity.
    GetCapacity,
    /// Create the object.
    Create(Capacity),
    /// Update the object.
    Update(&'a CSIStorageCapacity, Capacity),
    /// Delete the object.
    Delete(&'a CSIStorageCapacity),
}

/// Decides the next step for a subject.
pub(super) fn decide<'a>(view: &View<'a>) -> Step<'a> {
    let oldest =
        |object: &&&CSIStorageCapacity| (object.metadata.creation_timestamp, object.metadata.uid.clone());
    let kept = view.objects.iter().min_by_key(oldest).copied();
    let surplus = view.objects.iter().copied().find(|object| !view.wanted || Some(*object) != kept);
    match (surplus, view.wanted, view.capacity, kept) {
        (Some(surplus), ..) => Step::Delete(surplus),
        (None, false, ..) => Step::Done { poll_again: false },
        (None, true, None, _) => Step::GetCapacity,
        (None, true, Some(capacity), None) => Step::Create(capacity),
        (None, true, Some(capacity), Some(object))
            if is_current(object, capacity) && is_owned(object, view.owner) =>
        {
            Step::Done { poll_again: true }
        }
        (None, true, Some(capacity), Some(object)) => Step::Update(object, capacity),
    }
}

fn is_current(object: &CSIStorageCapacity, capacity: Capacity) -> bool {
    object.capacity == Some(Quantity::from_bytes(capacity.available))
        && object.maximum_volume_size == capacity.maximum.map(Quantity::from_bytes)
}

/// Whether the owner controls the object already. Without an owner, always.
pub(super) fn is_owned(object: &CSIStorageCapacity, owner: Option<&OwnerRef>) -> bool {
    let is_it = |owner: &OwnerRef| {
        let mut present = object.metadata.owner_references.iter();
        present.any(|present| present.controller == Some(true) && present.uid == owner.uid)
    };
    owner.is_none_or(is_it)
}

#[cfg(test)]
mod tests;
