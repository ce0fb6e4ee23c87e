//! Decides which node owns a content when every node runs its own sidecar.
//!
//! - A snapshot controller with `--enable-distributed-snapshotting` labels each content with the node of its volume.
//!   Another one, or a user, does not. Then the node that has the volume, or whose driver knows the snapshot, owns the
//!   content and labels it before it does anything else, since neither may exist when the content is deleted.
//! - A group snapshot is taken by one driver at one point in time, so all of its volumes must be on one node. The node
//!   of the first volume owns the content. A group across nodes is refused.

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
    /// This node if its driver knows the snapshot with this handle.
    Unlocated(String),
    /// Another node.
    OtherNode,
    /// Not known yet: a volume is not in the cache.
    Undetermined,
}

/// Which node owns a content. `is_local` tells whether a volume handle is on this node; `None` if no
/// PersistentVolume has it, which is conclusive only if all volumes are `listed`. `found` tells that this node's driver
/// knows the snapshot.
pub(super) fn ownership(
    object: &Object,
    node: Option<&str>,
    listed: bool,
    is_local: impl Fn(&str) -> Option<bool>,
    found: bool,
) -> Ownership {
    let Some(node) = node else { return Ownership::Ours };
    match object.meta().labels.get(MANAGED_BY) {
        Some(label) if label != node => Ownership::OtherNode,
        Some(_) => labelled(object, listed, is_local),
        None => unlabelled(object, is_local, found),
    }
}

fn labelled(object: &Object, listed: bool, is_local: impl Fn(&str) -> Option<bool>) -> Ownership {
    let (Object::Group(_), Source::Volumes(volumes)) = (object, object.source()) else {
        return Ownership::Ours;
    };
    // A group that was created stays ours, whatever happens to its volumes.
    let created = object.handle().is_some() || object.is_being_created();
    match volumes.iter().find(|handle| is_local(handle) != Some(true)) {
        Some(_) if created => Ownership::Ours,
        Some(other) if is_local(other).is_none() && !listed => Ownership::Undetermined,
        Some(other) => Ownership::SpansNodes((*other).to_owned()),
        None => Ownership::Ours,
    }
}

fn unlabelled(object: &Object, is_local: impl Fn(&str) -> Option<bool>, found: bool) -> Ownership {
    let (first, existing) = match object.source() {
        Source::Volumes(volumes) => (volumes.first().copied(), None),
        Source::Existing { handle, .. } => (None, Some(handle)),
        Source::GroupMember | Source::Unspecified => (None, None),
    };
    match (first.map(is_local), object.handle().or(existing)) {
        (Some(Some(true)), _) => Ownership::Unclaimed,
        (Some(Some(false)), _) => Ownership::OtherNode,
        (_, Some(_)) if found => Ownership::Unclaimed,
        (_, Some(handle)) => Ownership::Unlocated(handle.to_owned()),
        (Some(None), None) => Ownership::Undetermined,
        (None, None) => Ownership::OtherNode,
    }
}
