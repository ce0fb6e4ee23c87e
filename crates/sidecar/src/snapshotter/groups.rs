//! Whose a group's content is, where each node has a sidecar of its own. A group is cut by one driver at one moment,
//! so its volumes have to be on one node: the node of the first of them takes the content, and says so on it before
//! anything else, since the volumes may be gone when the group is deleted. A group across nodes it refuses.

use wharf_model::snapshot::names::MANAGED_BY;

use super::view::{Object, Source};

/// Whose a content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Ours.
    Ours,
    /// Ours, and this volume of it is not on this node.
    Across(String),
    /// Ours, as soon as it says so.
    Unclaimed,
    /// Somebody else's.
    Elsewhere,
    /// Nobody can say yet: a volume of it is not known.
    Unknown,
}

/// Whose a content is. `is_here` says of a volume, by its handle, whether it is on this node; `None` if nobody knows it, which
/// proves something only where all volumes are `listed`.
pub(super) fn place(
    object: &Object,
    node: Option<&str>,
    listed: bool,
    is_here: impl Fn(&str) -> Option<bool>,
) -> Place {
    let Some(node) = node else { return Place::Ours };
    let named = object.meta().labels.get(MANAGED_BY);
    if named.is_some_and(|named| named != node) {
        return Place::Elsewhere;
    }
    let Object::Group(_) = object else {
        // Snapshots have the label from the start, from the controller.
        return if named.is_some() { Place::Ours } else { Place::Elsewhere };
    };
    let volumes = match object.source() {
        Source::Take(volumes) => volumes,
        Source::There { .. } | Source::InGroup | Source::Nowhere => {
            return if named.is_some() { Place::Ours } else { Place::Elsewhere };
        }
    };
    if named.is_none() {
        return match volumes.first().map(|first| is_here(first)) {
            Some(Some(true)) => Place::Unclaimed,
            Some(None) => Place::Unknown,
            Some(Some(false)) | None => Place::Elsewhere,
        };
    }
    // What was made stays ours, whatever has become of the volumes.
    let made = object.handle().is_some() || object.is_marked();
    match volumes.iter().find(|handle| is_here(handle) != Some(true)) {
        Some(_) if made => Place::Ours,
        Some(other) if is_here(other).is_none() && !listed => Place::Unknown,
        Some(other) => Place::Across((*other).to_owned()),
        None => Place::Ours,
    }
}
