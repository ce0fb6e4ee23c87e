//! The rules for one item: whether an object has to be made, changed or deleted. No I/O.

use wharf_model::{CSIStorageCapacity, OwnerRef, Quantity};

use super::view::{Room, View};

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Nothing; `true`: look again after the poll interval.
    Done { again: bool },
    /// Ask the driver how much room there is.
    Ask,
    /// Make the object.
    Create(Room),
    /// Change the object.
    Update(&'a CSIStorageCapacity, Room),
    /// Delete the object.
    Delete(&'a CSIStorageCapacity),
}

/// What to do for an item.
pub(super) fn decide<'a>(view: &View<'a>) -> Step<'a> {
    let oldest =
        |object: &&&CSIStorageCapacity| (object.metadata.creation_timestamp, object.metadata.uid.clone());
    let kept = view.objects.iter().min_by_key(oldest).copied();
    let surplus = view.objects.iter().copied().find(|object| !view.wanted || Some(*object) != kept);
    match (surplus, view.wanted, view.room, kept) {
        (Some(surplus), ..) => Step::Delete(surplus),
        (None, false, ..) => Step::Done { again: false },
        (None, true, None, _) => Step::Ask,
        (None, true, Some(room), None) => Step::Create(room),
        (None, true, Some(room), Some(object)) if tells(object, room) && is_owned(object, view.owner) => {
            Step::Done { again: true }
        }
        (None, true, Some(room), Some(object)) => Step::Update(object, room),
    }
}

fn tells(object: &CSIStorageCapacity, room: Room) -> bool {
    object.capacity == Some(Quantity::from_bytes(room.capacity))
        && object.maximum_volume_size == room.maximum.map(Quantity::from_bytes)
}

/// Whether the owner controls the object already; without an owner there is nothing to ask for.
pub(super) fn is_owned(object: &CSIStorageCapacity, owner: Option<&OwnerRef>) -> bool {
    let is_it = |owner: &OwnerRef| {
        let mut present = object.metadata.owner_references.iter();
        present.any(|present| present.controller == Some(true) && present.uid == owner.uid)
    };
    owner.is_none_or(is_it)
}

#[cfg(test)]
mod tests;
