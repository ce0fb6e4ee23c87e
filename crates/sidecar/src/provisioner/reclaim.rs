//! What becomes of a volume when its claim goes: the rules by which it is guarded, kept or deleted.
//!
//! The order is the driver's volume, then the object, then our finalizer, so that whoever dies in between finds the
//! object still there and begins again; deleting what is gone is success. Promises:
//!
//! - A volume that is still attached is waited for, without a word of failure.
//! - A volume that another PersistentVolume stands for as well is not deleted.
//! - What is not plainly ours (driver, maker, node) is not touched.

use std::sync::Arc;

use wharf_model::names::{annotation, finalizer};
use wharf_model::parameters::{ParameterError, provisioner_secret};
use wharf_model::secrets::{DeletionSecret, TemplateError, for_deletion};
use wharf_model::volume::{CsiSource, ReclaimPolicy, VolumePhase};
use wharf_model::{Meta, PersistentVolume, SecretRef, StorageClass};

use crate::context::OwnNode;

mod act;
#[cfg(test)]
mod tests;

pub(crate) use act::{Acted, act, secrets};

/// What is known of a volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReclaimView<'a> {
    pub(crate) volume: &'a PersistentVolume,
    /// The class that it names, if there is one.
    pub(crate) class: Option<&'a StorageClass>,
    pub(crate) driver: &'a str,
    /// The attachments that reference it; none where the driver attaches nothing.
    pub(crate) attached: &'a [String],
    /// Other volumes of the driver with the same handle.
    pub(crate) siblings: &'a [Arc<PersistentVolume>],
    /// The node whose volumes alone are ours.
    pub(crate) own: Option<&'a OwnNode>,
    pub(crate) memory: &'a ReclaimMemory,
}

/// What this process remembers of a volume. Nothing in it is needed for safety: who has forgotten asks the driver
/// to delete once more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReclaimMemory {
    /// The identity of the PersistentVolume whose volume the driver has deleted.
    pub(crate) deleted: Option<String>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReclaimStep {
    /// Nothing, until something changes.
    Nothing(Why),
    /// Put our finalizer on it, so that it is not forgotten before it is deleted.
    Guard,
    /// Take our finalizer off: it is kept.
    Unguard,
    /// Wait for others to let go of it.
    Wait(Hold),
    /// It cannot be deleted: say so, and try again later.
    Refuse(Fault),
    /// Ask the driver to delete it.
    DeleteVolume { handle: String, secret: Option<SecretRef> },
    /// Delete the object.
    DeleteObject,
    /// Take our finalizer off the object in deletion.
    Release,
}

/// Why there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Another driver's, or made by somebody else.
    NotOurs,
    /// It is another node's.
    AnotherNode,
    /// Its policy is not Delete.
    Kept,
    /// It is not released.
    InUse,
    /// All is done, or was done by somebody else.
    Gone,
}

/// Who has to let go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Attachments.
    Attached(Vec<String>),
    /// A PersistentVolume with the same handle that goes first.
    Sibling(String),
}

/// Why a volume cannot be deleted as things are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("it has no volume handle, so there is nothing that the driver could be asked to delete")]
    NoHandle,
    #[error(
        "PersistentVolume {by} has the same volume handle {handle:?} and would lose its data: delete it first, or \
         set this one's persistentVolumeReclaimPolicy to Retain"
    )]
    Shared { handle: String, by: String },
    #[error("StorageClass {class} does not say which secret to delete it with: {source}")]
    Parameters { class: String, source: ParameterError },
    #[error("StorageClass {class} does not say which secret to delete it with: {source}")]
    Secret { class: String, source: TemplateError },
}

/// What to do next with a volume.
pub(crate) fn decide(view: &ReclaimView<'_>) -> ReclaimStep {
    let volume = view.volume;
    let meta = &volume.metadata;
    let Some(csi) = ours(volume, view.driver) else { return ReclaimStep::Nothing(Why::NotOurs) };
    if view.own.is_some_and(|own| !own.has(volume)) {
        return ReclaimStep::Nothing(Why::AnotherNode);
    }
    let guarded = meta.has_finalizer(finalizer::PROVISIONER);
    match volume.spec.persistent_volume_reclaim_policy {
        ReclaimPolicy::Delete => {}
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle if guarded => return ReclaimStep::Unguard,
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle | ReclaimPolicy::Unknown => {
            return ReclaimStep::Nothing(Why::Kept);
        }
    }
    match volume.status.phase {
        VolumePhase::Bound if !guarded && !meta.is_deleting() => ReclaimStep::Guard,
        VolumePhase::Released if meta.is_deleting() && !guarded => ReclaimStep::Nothing(Why::Gone),
        VolumePhase::Released => delete(view, csi),
        _ => ReclaimStep::Nothing(Why::InUse),
    }
}

/// The volume, if it is one of the driver's and not somebody else's to delete.
fn ours<'a>(volume: &'a PersistentVolume, driver: &str) -> Option<&'a CsiSource> {
    let says = |key| volume.metadata.annotation(key);
    let maker = says(annotation::PROVISIONED_BY);
    let migrated = says(annotation::MIGRATED_TO) == Some(driver);
    let made_by_others = maker.is_some_and(|maker| maker != driver) && !migrated;
    volume.spec.csi.as_ref().filter(|csi| csi.driver == driver && !made_by_others)
}

/// A released volume, to be deleted.
fn delete(view: &ReclaimView<'_>, csi: &CsiSource) -> ReclaimStep {
    let meta = &view.volume.metadata;
    // The driver's part is done: so is what follows, whatever else has changed.
    if view.memory.deleted.as_ref() == Some(&meta.uid) {
        return end(meta);
    }
    if !view.attached.is_empty() {
        return ReclaimStep::Wait(Hold::Attached(view.attached.to_vec()));
    }
    if csi.volume_handle.is_empty() {
        return ReclaimStep::Refuse(Fault::NoHandle);
    }
    let others = view.siblings.iter().filter(|other| other.metadata.name != meta.name);
    let (doomed, kept): (Vec<_>, Vec<_>) = others.partition(|other| is_doomed(other, view.driver));
    if let Some(other) = kept.first() {
        let (handle, by) = (csi.volume_handle.clone(), other.metadata.name.clone());
        return ReclaimStep::Refuse(Fault::Shared { handle, by });
    }
    // Of several that all are to be deleted, the last by name has the driver's volume deleted, when the others are
    // gone; they go without. So each waits for its own attachments, and the volume for all of them.
    match doomed.iter().map(|other| &other.metadata.name).min() {
        Some(first) if *first < meta.name => return ReclaimStep::Wait(Hold::Sibling(first.clone())),
        Some(_) => return end(meta),
        None => {}
    }
    match secret(view) {
        Ok(secret) => ReclaimStep::DeleteVolume { handle: csi.volume_handle.clone(), secret },
        Err(fault) => ReclaimStep::Refuse(fault),
    }
}

/// The volume is no more, or in other hands: the object goes.
fn end(meta: &Meta) -> ReclaimStep {
    // A guarded object in deletion is the only one that comes here with a deletion mark.
    if meta.is_deleting() { ReclaimStep::Release } else { ReclaimStep::DeleteObject }
}

/// Whether a volume will be deleted by these rules too, as soon as nobody holds it.
fn is_doomed(volume: &PersistentVolume, driver: &str) -> bool {
    let meta = &volume.metadata;
    ours(volume, driver).is_some()
        && volume.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete
        && volume.status.phase == VolumePhase::Released
        && (meta.has_finalizer(finalizer::PROVISIONER) || !meta.is_deleting())
}

/// The secret to delete the volume with: as its maker noted it, else as its class has it now. A class that is gone
/// has none.
fn secret(view: &ReclaimView<'_>) -> Result<Option<SecretRef>, Fault> {
    match for_deletion(view.volume) {
        DeletionSecret::Named(secret) => return Ok(Some(secret)),
        DeletionSecret::None => return Ok(None),
        DeletionSecret::AskClass => {}
    }
    let (Some(class), Some(claim)) = (view.class, &view.volume.spec.claim_ref) else { return Ok(None) };
    let name = || class.metadata.name.clone();
    let template = provisioner_secret(&class.parameters)
        .map_err(|source| Fault::Parameters { class: name(), source })?;
    let Some(template) = template else { return Ok(None) };
    // Of the claim only this is left.
    let claim =
        Meta { name: claim.name.clone(), namespace: Some(claim.namespace.clone()), ..Meta::default() };
    let secret = template.resolve(&view.volume.metadata.name, Some(&claim));
    secret.map(Some).map_err(|source| Fault::Secret { class: name(), source })
}
