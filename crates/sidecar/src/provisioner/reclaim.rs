//! Reclaim rules: when a PersistentVolume gets or loses the provisioner's finalizer, is retained or is deleted.
//!
//! The order of deletion is the driver's volume, then the object, then the finalizer. After a crash in between, the
//! object still exists and deletion starts again; deleting a volume that is gone succeeds. Guarantees:
//!
//! - An attached volume is waited for, and that is not reported as a failure.
//! - A volume that another PersistentVolume refers to is not deleted.
//! - A volume of another driver, provisioner or node is not touched.

use std::sync::Arc;

use wharf_model::migration::{self, Plugin, TranslationError};
use wharf_model::names::{annotation, finalizer};
use wharf_model::parameters::{ParameterError, provisioner_secret};
use wharf_model::secrets::{DeletionSecret, TemplateError, deletion_secret};
use wharf_model::volume::{CsiVolumeSource, ReclaimPolicy, VolumePhase};
use wharf_model::{Meta, PersistentVolume, SecretRef, StorageClass};

use crate::context::LocalNode;

mod act;
#[cfg(test)]
mod tests;

pub(crate) use act::{ReclaimOutcome, act, secrets};

/// The names of all in-tree plugins begin with it.
const IN_TREE_PREFIX: &str = "kubernetes.io/";

/// A PersistentVolume and everything that its next step depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReclaimView<'a> {
    pub(crate) volume: &'a PersistentVolume,
    /// Its class, if that exists.
    pub(crate) class: Option<&'a StorageClass>,
    pub(crate) driver: &'a str,
    /// The VolumeAttachments that refer to it. Empty if the driver does not attach volumes.
    pub(crate) attached: &'a [String],
    /// The driver's PersistentVolumes that have or may have the same volume: those with the same handle, and those of a
    /// migrated plugin with another handle for what may be the same disk.
    pub(crate) siblings: &'a [Arc<PersistentVolume>],
    /// With node deployment, the node whose volumes this process manages.
    pub(crate) node: Option<&'a LocalNode>,
    pub(crate) state: &'a ReclaimState,
}

/// In-process state of a deletion. It can be lost at any time: then DeleteVolume is called again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReclaimState {
    /// The UID of the PersistentVolume whose volume the driver has deleted.
    pub(crate) deleted: Option<String>,
}

/// The next step for a PersistentVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReclaimStep {
    /// Do nothing until something changes.
    Idle(IdleReason),
    /// Add the finalizer, so that the object stays until the driver's volume is deleted.
    AddFinalizer,
    /// Remove the finalizer: the volume is retained.
    RemoveFinalizer,
    /// Wait until nothing blocks the deletion.
    Wait(BlockedBy),
    /// It cannot be deleted: record why, and retry later.
    Refuse(DeleteProblem),
    /// Call DeleteVolume.
    DeleteVolume { handle: String, secret: Option<SecretRef> },
    /// Delete the PersistentVolume object.
    DeleteObject,
    /// Remove the finalizer from the object that is being deleted.
    Release,
}

/// Why there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleReason {
    /// It belongs to another driver or provisioner.
    NotOurs,
    /// It belongs to another node.
    OtherNode,
    /// Its reclaim policy is not Delete.
    Retained,
    /// It is not released.
    InUse,
    /// Its volume is deleted already.
    AlreadyDeleted,
}

/// What blocks a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BlockedBy {
    /// VolumeAttachments.
    Attachments(Vec<String>),
    /// A PersistentVolume with the same handle that is deleted first.
    Sibling(String),
}

/// Why a volume cannot be deleted now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DeleteProblem {
    #[error(
        "failed to translate in tree pv to CSI: {0}; to keep the volume and release the object, set \
         persistentVolumeReclaimPolicy to Retain"
    )]
    NotTranslatable(TranslationError),
    #[error(
        "it is marked as migrated to the driver, but its source is none that can be translated for a CSI driver; to \
         keep the volume and release the object, set persistentVolumeReclaimPolicy to Retain"
    )]
    NoSource,
    #[error("failed to translate StorageClass {class} for the driver: {source}")]
    Class { class: String, source: TranslationError },
    #[error("it has no volume handle, so there is no volume that the driver could delete")]
    NoHandle,
    #[error(
        "the volume with handle {handle:?} is or may be that of PersistentVolume {by}, too, which would lose its data: \
         delete that object first, or set this one's persistentVolumeReclaimPolicy to Retain"
    )]
    Shared { handle: String, by: String },
    #[error("cannot determine the deletion secret from StorageClass {class}: {source}")]
    Parameters { class: String, source: ParameterError },
    #[error("cannot determine the deletion secret from StorageClass {class}: {source}")]
    Secret { class: String, source: TemplateError },
}

/// Decides the next step for a PersistentVolume.
pub(crate) fn decide(view: &ReclaimView<'_>) -> ReclaimStep {
    let volume = view.volume;
    let meta = &volume.metadata;
    if !is_own(volume, view.driver) {
        return ReclaimStep::Idle(IdleReason::NotOurs);
    }
    if view.node.is_some_and(|node| !node.owns(volume)) {
        return ReclaimStep::Idle(IdleReason::OtherNode);
    }
    let has_finalizer = meta.has_finalizer(finalizer::PROVISIONER);
    match volume.spec.persistent_volume_reclaim_policy {
        ReclaimPolicy::Delete => {}
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle if has_finalizer => {
            return ReclaimStep::RemoveFinalizer;
        }
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle | ReclaimPolicy::Unknown => {
            return ReclaimStep::Idle(IdleReason::Retained);
        }
    }
    match volume.status.phase {
        VolumePhase::Bound if !has_finalizer && !meta.is_deleting() => ReclaimStep::AddFinalizer,
        VolumePhase::Released if meta.is_deleting() && !has_finalizer => {
            ReclaimStep::Idle(IdleReason::AlreadyDeleted)
        }
        VolumePhase::Released => match volume.csi_source() {
            Some(csi) => delete(view, csi),
            None => ReclaimStep::Refuse(match volume.translation_error() {
                Some(error) => DeleteProblem::NotTranslatable(error.clone()),
                None => DeleteProblem::NoSource,
            }),
        },
        _ => ReclaimStep::Idle(IdleReason::InUse),
    }
}

/// Whether this driver provisioned the volume or may delete it. A volume that an in-tree plugin provisioned has to be
/// marked as migrated to this driver, which the volume binder does, and its source and its provisioner have to be those
/// of the plugin that this driver replaces: annotations alone prove nothing, since users may write them.
fn is_own(volume: &PersistentVolume, driver: &str) -> bool {
    let annotation_value = |key| volume.metadata.annotation(key);
    let provisioned_by = annotation_value(annotation::PROVISIONED_BY);
    let migrated = annotation_value(annotation::MIGRATED_TO) == Some(driver);
    let provisioned_by_other =
        provisioned_by.is_some_and(|provisioned_by| provisioned_by != driver) && !migrated;
    match (&volume.spec.csi, &volume.spec.migrated) {
        (Some(csi), _) => csi.driver == driver && !provisioned_by_other,
        (None, Some(source)) => {
            let by_plugin = migrated && provisioned_by == Some(source.plugin.in_tree_name());
            source.plugin.driver() == driver && (by_plugin || provisioned_by == Some(driver))
        }
        // No source that the driver could delete: the volume is only reported.
        (None, None) => {
            let in_tree = provisioned_by.filter(|name| name.starts_with(IN_TREE_PREFIX));
            let plugin = |name| Plugin::named(name).is_none_or(|plugin| plugin.driver() == driver);
            migrated && in_tree.is_some_and(plugin)
        }
    }
}

/// The next step for a released volume that has to be deleted.
fn delete(view: &ReclaimView<'_>, csi: &CsiVolumeSource) -> ReclaimStep {
    let meta = &view.volume.metadata;
    // The driver's volume is deleted: complete the deletion, whatever else has changed.
    if view.state.deleted.as_ref() == Some(&meta.uid) {
        return remove_object(meta);
    }
    if !view.attached.is_empty() {
        return ReclaimStep::Wait(BlockedBy::Attachments(view.attached.to_vec()));
    }
    if csi.volume_handle.is_empty() {
        return ReclaimStep::Refuse(DeleteProblem::NoHandle);
    }
    let others = view.siblings.iter().filter(|other| other.metadata.name != meta.name);
    let (deleting, retained): (Vec<_>, Vec<_>) =
        others.partition(|other| will_be_deleted(other, view.driver));
    if let Some(other) = retained.first() {
        let (handle, by) = (csi.volume_handle.clone(), other.metadata.name.clone());
        return ReclaimStep::Refuse(DeleteProblem::Shared { handle, by });
    }
    // If several PersistentVolumes with the same handle all have to be deleted, the last one by name deletes the
    // driver's volume, after the others are gone; they skip DeleteVolume. So each waits for its own attachments, and
    // the volume for all of them. If the handles differ, they may be of different volumes: none is skipped, and
    // deleting a volume that is gone succeeds.
    let has_same_handle = |other: &&Arc<PersistentVolume>| {
        other.csi_source().is_some_and(|other| other.volume_handle == csi.volume_handle)
    };
    match deleting.iter().map(|other| &other.metadata.name).min() {
        Some(first) if *first < meta.name => return ReclaimStep::Wait(BlockedBy::Sibling(first.clone())),
        Some(_) if deleting.iter().any(has_same_handle) => return remove_object(meta),
        _ => {}
    }
    match secret(view) {
        Ok(secret) => ReclaimStep::DeleteVolume { handle: csi.volume_handle.clone(), secret },
        Err(problem) => ReclaimStep::Refuse(problem),
    }
}

/// The driver's volume is deleted, or another PersistentVolume will delete it: remove the object.
fn remove_object(meta: &Meta) -> ReclaimStep {
    // Only an object with our finalizer gets here with a deletion timestamp.
    if meta.is_deleting() { ReclaimStep::Release } else { ReclaimStep::DeleteObject }
}

/// Whether these rules will delete the volume, too, as soon as nothing blocks it.
fn will_be_deleted(volume: &PersistentVolume, driver: &str) -> bool {
    let meta = &volume.metadata;
    is_own(volume, driver)
        && volume.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete
        && volume.status.phase == VolumePhase::Released
        && (meta.has_finalizer(finalizer::PROVISIONER) || !meta.is_deleting())
}

/// The secret for DeleteVolume: from the volume's annotations, else from its class. A missing class has none.
fn secret(view: &ReclaimView<'_>) -> Result<Option<SecretRef>, DeleteProblem> {
    match deletion_secret(view.volume) {
        DeletionSecret::Named(secret) => return Ok(Some(secret)),
        DeletionSecret::None => return Ok(None),
        DeletionSecret::FromStorageClass => {}
    }
    let (Some(class), Some(claim)) = (view.class, &view.volume.spec.claim_ref) else { return Ok(None) };
    let name = || class.metadata.name.clone();
    let class = migration::class_for_driver(class, view.driver)
        .map_err(|source| DeleteProblem::Class { class: name(), source })?;
    let template = provisioner_secret(&class.parameters)
        .map_err(|source| DeleteProblem::Parameters { class: name(), source })?;
    let Some(template) = template else { return Ok(None) };
    // The claim is gone; only its name and namespace are known.
    let claim =
        Meta { name: claim.name.clone(), namespace: Some(claim.namespace.clone()), ..Meta::default() };
    let secret = template.resolve(&view.volume.metadata.name, Some(&claim));
    secret.map(Some).map_err(|source| DeleteProblem::Secret { class: name(), source })
}
