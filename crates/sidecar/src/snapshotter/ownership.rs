//! Decides which node owns a content when every node runs its own sidecar. A group snapshot is taken by one driver
//! at one point in time, so all of its volumes must be on one node. The node of the first volume owns the content
//! and labels it before it does anything else, since the volumes may no longer exist when the group is deleted. A
//! group across nodes is refused.

use wharf_model::snapshot::names::MANAGED_BY;

use super::view::{Object, Source};

/// Which node owns a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ownership {
    /// This node.
    Ours,
    /// This node, but this volume is on another one.
    SpansNodes(String),
    /// This node, once the content is labelled.
    Unclaimed,
    /// Another node.
    OtherNode,
    /// Not known yet: a volume of the group is not in the cache.
    Undetermined,
}

/// Which node owns a content. `is_local` tells whether a volume handle is on this node; `None` if no
/// PersistentVolume has it, which is conclusive only if all volumes are `listed`.
pub(super) fn ownership(
    object: &Object,
    node: Option<&str>,
    listed: bool,
    is_local: impl Fn(&str) -> Option<bool>,
) -> Ownership {
    let Some(node) = node else { return Ownership::Ours };
    let label = object.meta().labels.get(MANAGED_BY);
    if label.is_some_and(|label| label != node) {
        return Ownership::OtherNode;
    }
    let Object::Group(_) = object else {
        // The snapshot controller labels single snapshots when it creates their content.
        return if label.is_some() { Ownership::Ours } else { Ownership::OtherNode };
    };
    let volumes = match object.source() {
        Source::Volumes(volumes) => volumes,
        Source::Existing { .. } | Source::GroupMember | Source::Unspecified => {
            return if label.is_some() { Ownership::Ours } else { Ownership::OtherNode };
        }
    };
    if label.is_none() {
        return match volumes.first().map(|first| is_local(first)) {
            Some(Some(true)) => Ownership::Unclaimed,
            Some(None) => Ownership::Undetermined,
            Some(Some(false)) | None => Ownership::OtherNode,
        };
    }
    // A group that was created stays ours, whatever happens to its volumes.
    let created = object.handle().is_some() || object.is_being_created();
    match volumes.iter().find(|handle| is_local(handle) != Some(true)) {
        Some(_) if created => Ownership::Ours,
        Some(other) if is_local(other).is_none() && !listed => Ownership::Undetermined,
        Some(other) => Ownership::SpansNodes((*other).to_owned()),
        None => Ownership::Ours,
    }
}
