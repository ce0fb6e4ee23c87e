//! The requests that a share serves and their responses: one JSON object each on the worker's pipes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use wharf_driver::backend::VolumeContentSource;

use super::ShareError;
use super::snapshot_record::{JobKey, SnapshotFormat};
use crate::copy::CopyReport;
use crate::parameters::{OnDelete, QuotaMode};
use crate::path::SharePath;

/// One operation on a share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Creates a volume, or finds the one that an earlier request created.
    CreateVolume(CreateVolume),
    /// Deletes a volume.
    DeleteVolume(DeleteVolume),
    /// Reads a volume.
    GetVolume(GetVolume),
    /// Records a new size.
    ExpandVolume(ExpandVolume),
    /// Reads the size of the share.
    Capacity,
    /// Finishes or undoes what a crash left.
    Recover,
    /// Removes deleted data.
    PurgeTrash(PurgeTrash),
    /// Writes the record of a volume that another driver created.
    Adopt(Adopt),
    /// Creates a snapshot, or finds the one that an earlier request created.
    CreateSnapshot(CreateSnapshot),
    /// Deletes a snapshot.
    DeleteSnapshot(DeleteSnapshot),
    /// Reads a snapshot.
    GetSnapshot(GetSnapshot),
    /// Reads all snapshots that have a record.
    ListSnapshots,
    /// Runs a copy to its end: whenever the answer to another request is [`super::ErrorKind::InProgress`].
    RunJob(RunJob),
}

impl Request {
    /// The copy that this request waits for while its answer is [`super::ErrorKind::InProgress`].
    pub fn job(&self) -> Option<JobKey> {
        match self {
            Self::CreateVolume(request) if request.source.is_some() => {
                Some(JobKey::Volume(request.handle.clone()))
            }
            Self::CreateSnapshot(request) => Some(JobKey::Snapshot(request.name.clone())),
            Self::RunJob(request) => Some(request.job.clone()),
            _ => None,
        }
    }
}

/// The result of a [`Request`], with the variant of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Response {
    /// The volume.
    CreateVolume(Result<VolumeInfo, ShareError>),
    /// Whether there was anything to delete.
    DeleteVolume(Result<Deletion, ShareError>),
    /// The volume; `None` if it does not exist.
    GetVolume(Result<Option<VolumeInfo>, ShareError>),
    /// The volume with its new size.
    ExpandVolume(Result<VolumeInfo, ShareError>),
    /// The size of the share.
    Capacity(Result<CapacityInfo, ShareError>),
    /// The number of objects that were finished, undone or removed.
    Recover(Result<u64, ShareError>),
    /// Whether the trash is empty now.
    PurgeTrash(Result<bool, ShareError>),
    /// The volume.
    Adopt(Result<VolumeInfo, ShareError>),
    /// The snapshot, which is ready.
    CreateSnapshot(Result<SnapshotInfo, ShareError>),
    /// Nothing: the snapshot is gone, or was never ours.
    DeleteSnapshot(Result<(), ShareError>),
    /// The snapshot; `None` if it does not exist or is not ready.
    GetSnapshot(Result<Option<SnapshotInfo>, ShareError>),
    /// The snapshots, by handle.
    ListSnapshots(Result<Vec<SnapshotInfo>, ShareError>),
    /// Nothing: the copy is complete, or not needed any more.
    RunJob(Result<(), ShareError>),
}

/// Creates a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateVolume {
    /// The volume handle: the identity of the volume.
    pub handle: String,
    /// The name of the CSI request.
    pub name: String,
    /// The volume's directory.
    pub path: SharePath,
    /// The requested size in bytes; 0 if none was requested.
    pub size: u64,
    /// The largest acceptable size.
    pub limit: Option<u64>,
    /// The volume context. Requests with the same handle must have the same context.
    pub context: BTreeMap<String, String>,
    /// The mount options of the class, for later calls that have none.
    pub options: Vec<String>,
    /// What DeleteVolume does, if the class says it.
    pub on_delete: Option<OnDelete>,
    /// The content source.
    pub source: Option<VolumeContentSource>,
    /// The mode of a new directory.
    pub mode: Option<u32>,
    /// The owner of a new directory.
    pub uid: Option<u32>,
    /// The group of a new directory.
    pub gid: Option<u32>,
    /// Whether the volume must be limited to its size.
    #[serde(default)]
    pub quota: QuotaMode,
}

/// Deletes a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteVolume {
    /// The volume handle.
    pub handle: String,
    /// What to do with a volume whose class does not say it.
    pub default_on_delete: OnDelete,
}

/// What a deletion found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Deletion {
    /// A record: the volume is gone now, or was deleted a short time ago.
    Done,
    /// No record, so nothing was touched: a volume of csi-driver-nfs that was not adopted, a static one, or one that was deleted
    /// long ago.
    NoRecord,
}

/// Reads a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GetVolume {
    /// The volume handle.
    pub handle: String,
    /// The directory that the handle names: a volume without a record exists if this directory does.
    pub path: Option<SharePath>,
}

/// Records a new size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpandVolume {
    /// The volume handle.
    pub handle: String,
    /// The new size in bytes; a smaller one than the current size changes nothing.
    pub size: u64,
}

/// Removes deleted data, up to a number of entries, so that one call ends by its deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PurgeTrash {
    /// The maximum number of files and directories to remove.
    pub max_entries: u64,
}

/// Writes the record of a volume that csi-driver-nfs or nfs-subdir-external-provisioner created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Adopt {
    /// The volume handle, as in the PersistentVolume.
    pub handle: String,
    /// The name of the PersistentVolume.
    pub name: String,
    /// The volume's directory. It must exist.
    pub path: SharePath,
    /// The size of the PersistentVolume in bytes.
    pub size: u64,
    /// The volume attributes of the PersistentVolume.
    pub context: BTreeMap<String, String>,
    /// The mount options of the PersistentVolume.
    pub options: Vec<String>,
    /// What DeleteVolume does; `None` for the driver's default.
    pub on_delete: Option<OnDelete>,
    /// The handles of other volumes with the same directory that are adopted in the same run.
    #[serde(default)]
    pub shared_with: BTreeSet<String>,
    /// Whether the directory is never deleted: something that is not adopted uses it, too.
    #[serde(default)]
    pub keep: bool,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeInfo {
    /// The volume handle.
    pub handle: String,
    /// The volume's directory.
    pub path: SharePath,
    /// The recorded size in bytes; 0 if none was requested.
    pub size: u64,
    /// Whether the server enforces the size.
    pub limited: bool,
    /// Bytes in use, of a volume whose size is enforced; only from [`Request::GetVolume`].
    pub used: Option<u64>,
    /// The volume context.
    pub context: BTreeMap<String, String>,
    /// The mount options of its class.
    pub options: Vec<String>,
    /// The content source.
    pub source: Option<VolumeContentSource>,
    /// Whether the recorded directory is at its path.
    pub present: bool,
    /// Whether the volume has a record. Without one it is used, but never deleted.
    pub recorded: bool,
}

/// The size of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CapacityInfo {
    /// Total bytes.
    pub total: u64,
    /// Bytes available to unprivileged users.
    pub available: u64,
}

/// Creates a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateSnapshot {
    /// The name of the CSI request: the identity of the snapshot.
    pub name: String,
    /// The snapshot handle.
    pub handle: String,
    /// The handle of the source volume, which is in this share.
    pub source: String,
    /// How to store it.
    pub format: SnapshotFormat,
}

/// Deletes a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteSnapshot {
    /// The snapshot handle.
    pub handle: String,
}

/// Reads a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GetSnapshot {
    /// The snapshot handle.
    pub handle: String,
}

/// Runs a copy to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunJob {
    /// What the copy is for.
    pub job: JobKey,
}

/// A snapshot that is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInfo {
    /// The snapshot handle.
    pub handle: String,
    /// The handle of the source volume; `None` for a snapshot of csi-driver-nfs, whose handle has only a part of it.
    pub source: Option<String>,
    /// The smallest size of a volume that it can be restored to; for a snapshot of csi-driver-nfs the size of the archive.
    pub size: u64,
    /// When it was complete, by the server's clock: seconds since 1970.
    pub created: u64,
    /// What it contains, and what changed while it was created.
    pub report: CopyReport,
}
