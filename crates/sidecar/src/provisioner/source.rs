//! Where the content of a claim's volume comes from: nowhere, a snapshot, another claim's volume, or somebody else
//! who sees to it.
//!
//! Promise: a volume is only ever made from a source that is ready, whole, of our driver, of the claim's own
//! namespace, and not larger than what is asked for. Nothing is looked up in [`resolve`]; [`gather`] reads what no
//! store has.

use wharf_model::claim::{ClaimPhase, DataSource};
use wharf_model::names::{annotation, finalizer};
use wharf_model::snapshot::SnapshotStatus;
use wharf_model::volume::VolumePhase;
use wharf_model::{
    Key, Kind, PersistentVolume, PersistentVolumeClaim, Quantity, StorageClass, VolumeMode, VolumeSnapshot,
    VolumeSnapshotContent,
};

use crate::driver::Capabilities;

mod gather;
#[cfg(test)]
mod tests;

pub(crate) use gather::{GatherError, Gathered, content_of, gather};

/// What is known of a claim and its source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceView<'a> {
    pub(crate) claim: &'a PersistentVolumeClaim,
    pub(crate) class: &'a StorageClass,
    /// The snapshot, if the claim names one and the server has it.
    pub(crate) snapshot: Option<&'a VolumeSnapshot>,
    /// The content that the snapshot is bound to.
    pub(crate) content: Option<&'a VolumeSnapshotContent>,
    /// The claim to clone, if the claim names one.
    pub(crate) source_claim: Option<&'a PersistentVolumeClaim>,
    /// The volume that the claim to clone is bound to.
    pub(crate) source_volume: Option<&'a PersistentVolume>,
    pub(crate) driver: &'a str,
    pub(crate) can: &'a Capabilities,
    /// Restore a snapshot only in the volume mode of its source.
    pub(crate) prevent_mode_conversion: bool,
}

/// Where the content comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The volume is new and empty.
    None,
    /// A snapshot, by the driver's name for it.
    Snapshot {
        handle: String,
        /// The snapshot object.
        snapshot: Key,
        uid: String,
    },
    /// A volume, by the driver's name for it.
    Volume {
        handle: String,
        /// The claim that it is bound to.
        claim: Key,
        uid: String,
    },
    /// A kind that a populator knows: the claim is left alone.
    Foreign,
}

/// What a reference to a source names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Named {
    Snapshot(Key),
    Claim(Key),
    /// Some other kind.
    Foreign,
}

/// Why there is no volume from this source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceError {
    #[error(
        "dataSourceRef names the namespace {0}, but sources of other namespaces are disabled (feature \
         CrossNamespaceVolumeDataSource): leave the namespace out"
    )]
    Namespace(String),
    #[error("the claim's data source has no name")]
    Nameless,
    #[error("the data source is a VolumeSnapshot of the API group {0:?}: its group is {SNAPSHOT_GROUP}")]
    Group(String),
    #[error("the driver cannot restore snapshots: it does not report CREATE_DELETE_SNAPSHOT")]
    CannotRestore,
    #[error("the driver cannot clone volumes: it does not report CLONE_VOLUME")]
    CannotClone,
    /// The source as it is now will not do.
    #[error("data source {kind} {name}: {why}")]
    Unfit { kind: &'static str, name: String, why: Unfit },
}

/// What is the matter with a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("it does not exist in the claim's namespace")]
    Missing,
    #[error("it is being deleted")]
    Deleting,
    #[error("it is not bound yet")]
    Unbound,
    #[error("its VolumeSnapshotContent {0} does not exist")]
    NoContent(String),
    #[error("its VolumeSnapshotContent {0} is another snapshot's")]
    ContentOfAnother(String),
    #[error("it was made by the driver {0:?}, which is not the one of StorageClass {1}")]
    Driver(String, String),
    #[error("it is not ready to use yet")]
    NotReady,
    #[error("the driver has not named it yet")]
    NoHandle,
    #[error("it holds {source_size} bytes and the claim asks for {asked}: ask for as much at least")]
    TooBig { source_size: i64, asked: i64 },
    #[error(
        "its volume mode is {source_mode} and the claim's is {wanted}: an administrator may allow that by the \
         annotation {ALLOW}=true on VolumeSnapshotContent {content}"
    )]
    ModeChange { source_mode: VolumeMode, wanted: VolumeMode, content: String },
    #[error(
        "its volume mode is {source_mode} and the claim's is {wanted}: a clone has the mode of its source"
    )]
    CloneMode { source_mode: VolumeMode, wanted: VolumeMode },
    #[error("{0} has no storageClassName: both claims need one")]
    NoClass(&'static str),
    #[error("its volume {0} does not exist, is no CSI volume or is not bound to it")]
    Volume(String),
}

const SNAPSHOT_GROUP: &str = VolumeSnapshot::API.group;
const ALLOW: &str = annotation::ALLOW_VOLUME_MODE_CHANGE;

/// What a reference of a claim names. The namespace is the claim's where the reference has none.
pub(crate) fn named(claim: &PersistentVolumeClaim, source: &DataSource) -> Named {
    let namespace = source.namespace.clone().filter(|namespace| !namespace.is_empty());
    let key = Key { namespace: namespace.or(claim.metadata.namespace.clone()), name: source.name.clone() };
    match (source.api_group.as_deref().unwrap_or_default(), source.kind.as_str()) {
        (SNAPSHOT_GROUP, "VolumeSnapshot") => Named::Snapshot(key),
        ("", "PersistentVolumeClaim") => Named::Claim(key),
        _ => Named::Foreign,
    }
}

/// What the claim is to be made from, as far as the claim itself tells.
pub(crate) fn wanted(claim: &PersistentVolumeClaim) -> Result<Option<Named>, SourceError> {
    let Some(source) = claim.source() else { return Ok(None) };
    if let Some(namespace) = source.namespace.as_ref().filter(|namespace| !namespace.is_empty()) {
        return Err(SourceError::Namespace(namespace.clone()));
    }
    if source.name.is_empty() {
        return Err(SourceError::Nameless);
    }
    let group = source.api_group.as_deref().unwrap_or_default();
    if source.kind == "VolumeSnapshot" && group != SNAPSHOT_GROUP {
        return Err(SourceError::Group(group.to_owned()));
    }
    Ok(Some(named(claim, source)))
}

/// Where the content of a claim's volume comes from.
pub(crate) fn resolve(view: &SourceView<'_>) -> Result<Source, SourceError> {
    let unfit = |kind, key: &Key| {
        let name = key.name.clone();
        move |why| SourceError::Unfit { kind, name, why }
    };
    match wanted(view.claim)? {
        None => Ok(Source::None),
        Some(Named::Foreign) => Ok(Source::Foreign),
        Some(Named::Snapshot(_)) if !view.can.create_delete_snapshot => Err(SourceError::CannotRestore),
        Some(Named::Claim(_)) if !view.can.clone_volume => Err(SourceError::CannotClone),
        Some(Named::Snapshot(key)) => from_snapshot(view, &key).map_err(unfit("VolumeSnapshot", &key)),
        Some(Named::Claim(key)) => from_claim(view, &key).map_err(unfit("PersistentVolumeClaim", &key)),
    }
}

fn from_snapshot(view: &SourceView<'_>, key: &Key) -> Result<Source, Unfit> {
    let snapshot = view.snapshot.filter(|snapshot| snapshot.key() == *key).ok_or(Unfit::Missing)?;
    let meta = &snapshot.metadata;
    // With the finalizer, a restore from it had begun before; what that has made must be found again.
    if meta.is_deleting() && !meta.has_finalizer(finalizer::SNAPSHOT_SOURCE_PROTECTION) {
        return Err(Unfit::Deleting);
    }
    let (status, bound) = bound_content(snapshot).ok_or(Unfit::Unbound)?;
    let content = view.content.filter(|content| content.metadata.name == bound);
    let content = content.ok_or_else(|| Unfit::NoContent(bound.to_owned()))?;
    let back = &content.spec.volume_snapshot_ref;
    if back.uid != meta.uid || back.name != meta.name || Some(&back.namespace) != meta.namespace.as_ref() {
        return Err(Unfit::ContentOfAnother(bound.to_owned()));
    }
    is_ours(view, &content.spec.driver)?;
    if status.ready_to_use != Some(true) {
        return Err(Unfit::NotReady);
    }
    let handle = content.status.as_ref().and_then(|status| status.snapshot_handle.as_ref());
    let handle = handle.filter(|handle| !handle.is_empty()).ok_or(Unfit::NoHandle)?;
    fits(view.claim, status.restore_size)?;
    let modes = (content.spec.source_volume_mode, view.claim.spec.volume_mode);
    if let (true, (Some(source_mode), Some(wanted))) = (view.prevent_mode_conversion, modes)
        && (source_mode != wanted || source_mode == VolumeMode::Unknown)
        && !content.metadata.annotation(ALLOW).is_some_and(is_true)
    {
        return Err(Unfit::ModeChange { source_mode, wanted, content: bound.to_owned() });
    }
    Ok(Source::Snapshot { handle: handle.clone(), snapshot: key.clone(), uid: meta.uid.clone() })
}

/// The content that a snapshot says it is bound to.
fn bound_content(snapshot: &VolumeSnapshot) -> Option<(&SnapshotStatus, &str)> {
    let status = snapshot.status.as_ref()?;
    Some((status, status.bound_volume_snapshot_content_name.as_deref().filter(|name| !name.is_empty())?))
}

fn from_claim(view: &SourceView<'_>, key: &Key) -> Result<Source, Unfit> {
    let source = view.source_claim.filter(|source| source.key() == *key).ok_or(Unfit::Missing)?;
    if source.status.phase != ClaimPhase::Bound {
        return Err(Unfit::Unbound);
    }
    if source.metadata.is_deleting() {
        return Err(Unfit::Deleting);
    }
    for (whose, claim) in [("the source", source), ("the claim", view.claim)] {
        if claim.spec.storage_class_name.is_none() {
            return Err(Unfit::NoClass(whose));
        }
    }
    fits(view.claim, source.requested())?;
    let name = &source.spec.volume_name;
    let volume = view.source_volume.filter(|volume| {
        let named = !name.is_empty() && volume.metadata.name == *name;
        named && volume.is_bound_to(&source.metadata) && volume.status.phase == VolumePhase::Bound
    });
    let (volume, csi) = volume
        .and_then(|volume| volume.spec.csi.as_ref().map(|csi| (volume, csi)))
        .ok_or_else(|| Unfit::Volume(name.clone()))?;
    is_ours(view, &csi.driver)?;
    let (source_mode, wanted) = (volume.spec.volume_mode(), view.claim.volume_mode());
    if source_mode != wanted || source_mode == VolumeMode::Unknown {
        return Err(Unfit::CloneMode { source_mode, wanted });
    }
    if csi.volume_handle.is_empty() {
        return Err(Unfit::NoHandle);
    }
    let uid = source.metadata.uid.clone();
    Ok(Source::Volume { handle: csi.volume_handle.clone(), claim: key.clone(), uid })
}

/// The source's driver, the class's and ours are one.
fn is_ours(view: &SourceView<'_>, driver: &str) -> Result<(), Unfit> {
    match driver == view.class.provisioner && driver == view.driver {
        true => Ok(()),
        false => Err(Unfit::Driver(driver.to_owned(), view.class.metadata.name.clone())),
    }
}

/// The claim asks for as much as the source holds, as far as that is known.
fn fits(claim: &PersistentVolumeClaim, holds: Option<Quantity>) -> Result<(), Unfit> {
    let (source_size, asked) =
        (holds.map_or(0, Quantity::bytes), claim.requested().map_or(0, Quantity::bytes));
    match asked < source_size {
        true => Err(Unfit::TooBig { source_size, asked }),
        false => Ok(()),
    }
}

/// True, as Go's `strconv.ParseBool` reads it.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "TRUE" | "true" | "True")
}
