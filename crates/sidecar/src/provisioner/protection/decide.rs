//! When a source is no longer needed: pure rules.

use std::sync::Arc;

use wharf_model::names::finalizer::{CLONING_PROTECTION, SNAPSHOT_SOURCE_PROTECTION};
use wharf_model::{
    Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotContent, topology,
};

use crate::context::OwnNode;
use crate::provisioner::intent::{ContentSource, Intent};

/// What is known of a claim that may have been cloned.
#[derive(Clone, Copy)]
pub(crate) struct CloneView<'a> {
    pub(crate) claim: &'a PersistentVolumeClaim,
    /// The volume that it names.
    pub(crate) volume: Option<&'a PersistentVolume>,
    /// Claims that wait to be made from it.
    pub(crate) waiting: &'a [Arc<PersistentVolumeClaim>],
    /// All that is under way.
    pub(crate) intents: &'a [Arc<Intent>],
    pub(crate) driver: &'a str,
    pub(crate) own: Option<&'a OwnNode>,
}

/// What is known of a snapshot that may have been restored from.
#[derive(Clone, Copy)]
pub(crate) struct SnapshotView<'a> {
    pub(crate) snapshot: &'a VolumeSnapshot,
    /// The content that it is bound to, if there is one.
    pub(crate) content: Option<&'a VolumeSnapshotContent>,
    /// Claims that wait to be made from it.
    pub(crate) waiting: &'a [Arc<PersistentVolumeClaim>],
    /// All that is under way.
    pub(crate) intents: &'a [Arc<Intent>],
    pub(crate) driver: &'a str,
}

/// What to do with a source's finalizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is not there, not ours, or not to go yet.
    Nothing,
    /// Somebody needs the source.
    Wait(Hold),
    /// Nobody does.
    Remove,
}

/// Who needs the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hold {
    /// A claim that waits.
    Claim(Key),
    /// An intent, by its volume; its claim may be gone.
    Intent(String),
}

/// A claim that may have been cloned: its finalizer goes when it is to be deleted and nobody clones it.
pub(crate) fn cloned(view: &CloneView<'_>) -> Step {
    let meta = &view.claim.metadata;
    if !meta.is_deleting() || !meta.has_finalizer(CLONING_PROTECTION) {
        return Step::Nothing;
    }
    let volume = view.volume.filter(|volume| volume.is_bound_to(meta));
    // Another driver's sidecar has its own journal, and another node's too: they know what is under way there.
    let ours = match volume {
        Some(volume) => {
            let affinity = volume.spec.node_affinity.as_ref();
            let near = |own: &OwnNode| topology::reaches(affinity, &own.name, &own.place);
            volume.is_of(view.driver) && view.own.is_none_or(near)
        }
        None => view.claim.provisioner().is_none_or(|driver| driver == view.driver),
    };
    if !ours {
        return Step::Nothing;
    }
    let handle = volume.and_then(|volume| volume.spec.csi.as_ref()).map(|csi| csi.volume_handle.as_str());
    let names = |source: &ContentSource| match source {
        ContentSource::Volume(source) => Some(source.clone()),
        ContentSource::Snapshot(_) => None,
    };
    needed(view.waiting, view.intents, meta.namespace.as_deref(), handle, names)
}

/// A snapshot that may have been restored from: its finalizer goes when nobody restores from it.
pub(crate) fn restored(view: &SnapshotView<'_>) -> Step {
    let meta = &view.snapshot.metadata;
    if !meta.has_finalizer(SNAPSHOT_SOURCE_PROTECTION) {
        return Step::Nothing;
    }
    if view.content.is_some_and(|content| content.spec.driver != view.driver) {
        return Step::Nothing;
    }
    let handle = view.content.and_then(|content| content.status.as_ref()?.snapshot_handle.as_deref());
    let names = |source: &ContentSource| match source {
        ContentSource::Snapshot(source) => Some(source.clone()),
        ContentSource::Volume(_) => None,
    };
    needed(view.waiting, view.intents, meta.namespace.as_deref(), handle, names)
}

/// Whether somebody needs a source with this handle. Where the handle is not known, every intent of the namespace
/// that is made from something of the kind may be one of this source.
fn needed(
    waiting: &[Arc<PersistentVolumeClaim>],
    intents: &[Arc<Intent>],
    namespace: Option<&str>,
    handle: Option<&str>,
    names: impl Fn(&ContentSource) -> Option<String>,
) -> Step {
    if let Some(claim) = waiting.first() {
        return Step::Wait(Hold::Claim(claim.key()));
    }
    let uses = |intent: &&Arc<Intent>| {
        let named = intent.request.source.as_ref().and_then(&names);
        named.is_some_and(|named| match handle {
            Some(handle) => named == handle,
            None => Some(intent.claim.namespace.as_str()) == namespace,
        })
    };
    match intents.iter().find(uses) {
        Some(intent) => Step::Wait(Hold::Intent(intent.volume.clone())),
        None => Step::Remove,
    }
}

#[cfg(test)]
mod tests;
