//! Rules for removing a source's protection finalizer. No I/O.

use std::sync::Arc;

use wharf_model::names::finalizer::{CLONING_PROTECTION, SNAPSHOT_SOURCE_PROTECTION};
use wharf_model::{
    Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotContent, topology,
};

use crate::context::LocalNode;
use crate::provisioner::intent::{ContentSource, Intent};

/// A claim that may have been cloned.
#[derive(Clone, Copy)]
pub(crate) struct CloneView<'a> {
    pub(crate) claim: &'a PersistentVolumeClaim,
    /// The volume that the claim names.
    pub(crate) volume: Option<&'a PersistentVolume>,
    /// Pending claims that name it as data source.
    pub(crate) waiting: &'a [Arc<PersistentVolumeClaim>],
    /// All open intents.
    pub(crate) intents: &'a [Arc<Intent>],
    pub(crate) driver: &'a str,
    pub(crate) node: Option<&'a LocalNode>,
}

/// A snapshot that may have been restored.
#[derive(Clone, Copy)]
pub(crate) struct SnapshotView<'a> {
    pub(crate) snapshot: &'a VolumeSnapshot,
    /// The content that the snapshot is bound to, if it exists.
    pub(crate) content: Option<&'a VolumeSnapshotContent>,
    /// Pending claims that name it as data source.
    pub(crate) waiting: &'a [Arc<PersistentVolumeClaim>],
    /// All open intents.
    pub(crate) intents: &'a [Arc<Intent>],
    pub(crate) driver: &'a str,
}

/// The next step for a source's finalizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Do nothing: it is not set, not ours, or must stay for now.
    Idle,
    /// Wait: something uses the source.
    Wait(HeldBy),
    /// Remove the finalizer.
    Remove,
}

/// What uses the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HeldBy {
    /// A pending claim.
    Claim(Key),
    /// An intent, by its volume. Its claim may be gone.
    Intent(String),
}

/// A cloned claim loses its finalizer when it is being deleted and nothing clones it.
pub(crate) fn decide_clone(view: &CloneView<'_>) -> Step {
    let meta = &view.claim.metadata;
    if !meta.is_deleting() || !meta.has_finalizer(CLONING_PROTECTION) {
        return Step::Idle;
    }
    let volume = view.volume.filter(|volume| volume.is_bound_to(meta));
    // Sidecars of other drivers and other nodes have their own journals, so they decide about their sources.
    let ours = match volume {
        Some(volume) => {
            let affinity = volume.spec.node_affinity.as_ref();
            let reachable =
                |node: &LocalNode| topology::is_accessible_from(affinity, &node.name, &node.topology);
            volume.is_for_driver(view.driver) && view.node.is_none_or(reachable)
        }
        None => view.claim.provisioner().is_none_or(|driver| driver == view.driver),
    };
    if !ours {
        return Step::Idle;
    }
    let handle = volume.and_then(|volume| volume.spec.csi.as_ref()).map(|csi| csi.volume_handle.as_str());
    let names = |source: &ContentSource| match source {
        ContentSource::Volume(source) => Some(source.clone()),
        ContentSource::Snapshot(_) => None,
    };
    remove_unless_used(view.waiting, view.intents, meta.namespace.as_deref(), handle, names)
}

/// A restored snapshot loses its finalizer when nothing restores it.
pub(crate) fn decide_snapshot(view: &SnapshotView<'_>) -> Step {
    let meta = &view.snapshot.metadata;
    if !meta.has_finalizer(SNAPSHOT_SOURCE_PROTECTION) {
        return Step::Idle;
    }
    if view.content.is_some_and(|content| content.spec.driver != view.driver) {
        return Step::Idle;
    }
    let handle = view.content.and_then(|content| content.status.as_ref()?.snapshot_handle.as_deref());
    let names = |source: &ContentSource| match source {
        ContentSource::Snapshot(source) => Some(source.clone()),
        ContentSource::Volume(_) => None,
    };
    remove_unless_used(view.waiting, view.intents, meta.namespace.as_deref(), handle, names)
}

/// Removes the finalizer unless a claim or an intent uses a source with this handle. If the handle is unknown, every
/// intent in the namespace with a source of this kind may use it.
fn remove_unless_used(
    waiting: &[Arc<PersistentVolumeClaim>],
    intents: &[Arc<Intent>],
    namespace: Option<&str>,
    handle: Option<&str>,
    names: impl Fn(&ContentSource) -> Option<String>,
) -> Step {
    if let Some(claim) = waiting.first() {
        return Step::Wait(HeldBy::Claim(claim.key()));
    }
    let uses = |intent: &&Arc<Intent>| {
        let named = intent.request.source.as_ref().and_then(&names);
        named.is_some_and(|named| match handle {
            Some(handle) => named == handle,
            None => Some(intent.claim.namespace.as_str()) == namespace,
        })
    };
    match intents.iter().find(uses) {
        Some(intent) => Step::Wait(HeldBy::Intent(intent.volume.clone())),
        None => Step::Remove,
    }
}

#[cfg(test)]
mod tests;
