//! The data source of a claim's volume: none, a snapshot, another claim's volume, or a kind that a volume populator
//! handles.
//!
//! Guarantee: a volume is created only from a source that is ready, belongs to this driver, is in the claim's namespace
//! and is not larger than the request, and whose binding both of its objects confirm. [`resolve`] does no I/O;
//! [`fetch_snapshot`] reads snapshots from the API server, because no store caches them.

use wharf_model::claim::{ClaimPhase, DataSource};
use wharf_model::names::{annotation, finalizer};
use wharf_model::volume::VolumePhase;
use wharf_model::{
    Key, Kind, PersistentVolume, PersistentVolumeClaim, Quantity, StorageClass, VolumeMode, VolumeSnapshot,
    VolumeSnapshotContent,
};

use crate::driver::Capabilities;

mod fetch;
#[cfg(test)]
mod tests;

pub(crate) use fetch::{FetchError, FetchedSnapshot, fetch_content, fetch_snapshot};

/// A claim and the objects of its source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceView<'a> {
    pub(crate) claim: &'a PersistentVolumeClaim,
    pub(crate) class: &'a StorageClass,
    /// The snapshot, if the claim names one and it exists.
    pub(crate) snapshot: Option<&'a VolumeSnapshot>,
    /// The content that the snapshot is bound to.
    pub(crate) content: Option<&'a VolumeSnapshotContent>,
    /// The claim to clone, if the claim names one.
    pub(crate) source_claim: Option<&'a PersistentVolumeClaim>,
    /// The volume that the claim to clone is bound to.
    pub(crate) source_volume: Option<&'a PersistentVolume>,
    pub(crate) driver: &'a str,
    pub(crate) capabilities: &'a Capabilities,
    /// Restore a snapshot only in the volume mode of its source.
    pub(crate) prevent_mode_conversion: bool,
}

/// Where the content of a volume comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The volume starts empty.
    None,
    /// A snapshot, by its handle.
    Snapshot {
        handle: String,
        /// The snapshot object.
        snapshot: Key,
        uid: String,
    },
    /// A volume, by its handle.
    Volume {
        handle: String,
        /// The claim that the volume is bound to.
        claim: Key,
        uid: String,
    },
    /// A kind that a volume populator handles: the provisioner creates no volume for the claim.
    Foreign,
}

/// The object that a data source refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SourceRef {
    Snapshot(Key),
    Claim(Key),
    /// Any other kind.
    Foreign,
}

/// Why no volume can be created from a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceError {
    #[error(
        "dataSourceRef names the namespace {0}, but data sources in other namespaces are disabled (feature \
         CrossNamespaceVolumeDataSource): remove the namespace"
    )]
    CrossNamespace(String),
    #[error("the claim's data source has no name")]
    Nameless,
    #[error("the data source is a VolumeSnapshot of API group {0:?}: the group must be {SNAPSHOT_GROUP}")]
    WrongGroup(String),
    #[error("the driver cannot restore snapshots: it does not report CREATE_DELETE_SNAPSHOT")]
    CannotRestore,
    #[error("the driver cannot clone volumes: it does not report CLONE_VOLUME")]
    CannotClone,
    /// The source cannot be used in its current state.
    #[error("data source {kind} {name}: {problem}")]
    SourceProblem { kind: &'static str, name: String, problem: SourceProblem },
}

/// Why a source cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceProblem {
    #[error("it does not exist in the claim's namespace")]
    Missing,
    #[error("it is being deleted")]
    Deleting,
    #[error("it is not bound yet")]
    Unbound,
    #[error("its VolumeSnapshotContent {0} does not exist")]
    NoContent(String),
    #[error("its VolumeSnapshotContent {0} belongs to another snapshot")]
    ContentOfOtherSnapshot(String),
    #[error("it belongs to driver {0:?}, which is not the provisioner of StorageClass {1}")]
    Driver(String, String),
    #[error("it is not ready to use yet")]
    NotReady,
    #[error("it has no handle from the driver yet")]
    NoHandle,
    #[error(
        "it has {source_size} bytes and the claim requests {requested}: request at least the size of the source"
    )]
    TooBig { source_size: i64, requested: i64 },
    #[error(
        "its volume mode is {source_mode} and the claim's is {wanted}: an administrator can allow the change with the \
         annotation {ALLOW}=true on VolumeSnapshotContent {content}"
    )]
    ModeChange { source_mode: VolumeMode, wanted: VolumeMode, content: String },
    #[error(
        "its volume mode is {source_mode} and the claim's is {wanted}: a clone must have the mode of its source"
    )]
    CloneMode { source_mode: VolumeMode, wanted: VolumeMode },
    #[error("{0} has no storageClassName: both claims need one")]
    NoClass(&'static str),
    #[error("its volume {0} does not exist, is not a CSI volume or is not bound to it")]
    Volume(String),
}

const SNAPSHOT_GROUP: &str = VolumeSnapshot::API.group;
const ALLOW: &str = annotation::ALLOW_VOLUME_MODE_CHANGE;

/// The object that a claim's data source refers to. The default namespace is the claim's.
pub(crate) fn source_ref(claim: &PersistentVolumeClaim, source: &DataSource) -> SourceRef {
    let namespace = source.namespace.clone().filter(|namespace| !namespace.is_empty());
    let key = Key { namespace: namespace.or(claim.metadata.namespace.clone()), name: source.name.clone() };
    match (source.api_group.as_deref().unwrap_or_default(), source.kind.as_str()) {
        (SNAPSHOT_GROUP, "VolumeSnapshot") => SourceRef::Snapshot(key),
        ("", "PersistentVolumeClaim") => SourceRef::Claim(key),
        _ => SourceRef::Foreign,
    }
}

/// The data source in the claim's spec, without checking that it exists.
pub(crate) fn requested_source(claim: &PersistentVolumeClaim) -> Result<Option<SourceRef>, SourceError> {
    let Some(source) = claim.data_source() else { return Ok(None) };
    if let Some(namespace) = source.namespace.as_ref().filter(|namespace| !namespace.is_empty()) {
        return Err(SourceError::CrossNamespace(namespace.clone()));
    }
    if source.name.is_empty() {
        return Err(SourceError::Nameless);
    }
    let group = source.api_group.as_deref().unwrap_or_default();
    if source.kind == "VolumeSnapshot" && group != SNAPSHOT_GROUP {
        return Err(SourceError::WrongGroup(group.to_owned()));
    }
    Ok(Some(source_ref(claim, source)))
}

/// Resolves and validates the claim's data source.
pub(crate) fn resolve(view: &SourceView<'_>) -> Result<Source, SourceError> {
    let with_problem = |kind, key: &Key| {
        let name = key.name.clone();
        move |problem| SourceError::SourceProblem { kind, name, problem }
    };
    match requested_source(view.claim)? {
        None => Ok(Source::None),
        Some(SourceRef::Foreign) => Ok(Source::Foreign),
        Some(SourceRef::Snapshot(_)) if !view.capabilities.create_delete_snapshot => {
            Err(SourceError::CannotRestore)
        }
        Some(SourceRef::Claim(_)) if !view.capabilities.clone_volume => Err(SourceError::CannotClone),
        Some(SourceRef::Snapshot(key)) => {
            from_snapshot(view, &key).map_err(with_problem("VolumeSnapshot", &key))
        }
        Some(SourceRef::Claim(key)) => {
            from_claim(view, &key).map_err(with_problem("PersistentVolumeClaim", &key))
        }
    }
}

fn from_snapshot(view: &SourceView<'_>, key: &Key) -> Result<Source, SourceProblem> {
    let snapshot = view.snapshot.filter(|snapshot| snapshot.key() == *key).ok_or(SourceProblem::Missing)?;
    let meta = &snapshot.metadata;
    // The finalizer shows that a restore began before the deletion. The restore must continue, so that a volume that it
    // has already created is found.
    if meta.is_deleting() && !meta.has_finalizer(finalizer::SNAPSHOT_SOURCE_PROTECTION) {
        return Err(SourceProblem::Deleting);
    }
    let (Some(status), Some(bound)) = (&snapshot.status, snapshot.bound_content()) else {
        return Err(SourceProblem::Unbound);
    };
    let content = view.content.filter(|content| content.metadata.name == bound);
    let content = content.ok_or_else(|| SourceProblem::NoContent(bound.to_owned()))?;
    if !content.is_bound_to(meta) {
        return Err(SourceProblem::ContentOfOtherSnapshot(bound.to_owned()));
    }
    check_driver(view, &content.spec.driver)?;
    if !snapshot.is_ready() {
        return Err(SourceProblem::NotReady);
    }
    let handle = content.status.as_ref().and_then(|status| status.snapshot_handle.as_ref());
    let handle = handle.filter(|handle| !handle.is_empty()).ok_or(SourceProblem::NoHandle)?;
    check_size(view.claim, status.restore_size)?;
    let modes = (content.spec.source_volume_mode, view.claim.spec.volume_mode);
    if let (true, (Some(source_mode), Some(wanted))) = (view.prevent_mode_conversion, modes)
        && (source_mode != wanted || source_mode == VolumeMode::Unknown)
        && !content.metadata.annotation(ALLOW).is_some_and(is_true)
    {
        return Err(SourceProblem::ModeChange { source_mode, wanted, content: bound.to_owned() });
    }
    Ok(Source::Snapshot { handle: handle.clone(), snapshot: key.clone(), uid: meta.uid.clone() })
}

fn from_claim(view: &SourceView<'_>, key: &Key) -> Result<Source, SourceProblem> {
    let source = view.source_claim.filter(|source| source.key() == *key).ok_or(SourceProblem::Missing)?;
    if source.status.phase != ClaimPhase::Bound {
        return Err(SourceProblem::Unbound);
    }
    if source.metadata.is_deleting() {
        return Err(SourceProblem::Deleting);
    }
    for (which, claim) in [("the source", source), ("the claim", view.claim)] {
        if claim.spec.storage_class_name.is_none() {
            return Err(SourceProblem::NoClass(which));
        }
    }
    check_size(view.claim, source.requested_storage())?;
    let name = &source.spec.volume_name;
    let volume = view.source_volume.filter(|volume| {
        let named = !name.is_empty() && volume.metadata.name == *name;
        named && volume.is_bound_to(&source.metadata) && volume.status.phase == VolumePhase::Bound
    });
    let (volume, csi) = volume
        .and_then(|volume| volume.spec.csi.as_ref().map(|csi| (volume, csi)))
        .ok_or_else(|| SourceProblem::Volume(name.clone()))?;
    check_driver(view, &csi.driver)?;
    let (source_mode, wanted) = (volume.spec.volume_mode(), view.claim.volume_mode());
    if source_mode != wanted || source_mode == VolumeMode::Unknown {
        return Err(SourceProblem::CloneMode { source_mode, wanted });
    }
    if csi.volume_handle.is_empty() {
        return Err(SourceProblem::NoHandle);
    }
    let uid = source.metadata.uid.clone();
    Ok(Source::Volume { handle: csi.volume_handle.clone(), claim: key.clone(), uid })
}

/// Checks that the source, the class and this process have the same driver.
fn check_driver(view: &SourceView<'_>, driver: &str) -> Result<(), SourceProblem> {
    match driver == view.class.provisioner && driver == view.driver {
        true => Ok(()),
        false => Err(SourceProblem::Driver(driver.to_owned(), view.class.metadata.name.clone())),
    }
}

/// Checks that the claim requests at least the size of the source, if that is known.
fn check_size(claim: &PersistentVolumeClaim, source: Option<Quantity>) -> Result<(), SourceProblem> {
    let (source_size, requested) =
        (source.map_or(0, Quantity::bytes), claim.requested_storage().map_or(0, Quantity::bytes));
    match requested < source_size {
        true => Err(SourceProblem::TooBig { source_size, requested }),
        false => Ok(()),
    }
}

/// Whether Go's `strconv.ParseBool` reads the text as true.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "TRUE" | "true" | "True")
}
