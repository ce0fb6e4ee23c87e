//! What a backend returns, and the types that requests consist of.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use wharf_linux::FsType;

/// Topology segments, such as `local.csi.wharf.dev/node: n1`.
pub type Topology = BTreeMap<String, String>;

/// Secrets of a request, by key. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl From<BTreeMap<String, String>> for Secrets {
    fn from(secrets: BTreeMap<String, String>) -> Self {
        Self(secrets)
    }
}

impl Deref for Secrets {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The volume context of a request: what CreateVolume returned, or `volumeAttributes` of a volume created by hand. Only its
/// keys are printed: in NodePublishVolume it can hold the tokens of a pod's service account.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct VolumeContext(BTreeMap<String, String>);

impl fmt::Debug for VolumeContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl From<BTreeMap<String, String>> for VolumeContext {
    fn from(context: BTreeMap<String, String>) -> Self {
        Self(context)
    }
}

impl Deref for VolumeContext {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The minimum and maximum size of a volume; validated: `required <= limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SizeRange {
    /// The minimum size; 0 if the caller sets none.
    pub required: u64,
    /// The maximum size; `None` if the caller sets none.
    pub limit: Option<u64>,
}

impl SizeRange {
    /// Whether a volume of this size is within the range.
    pub fn fits(self, size: u64) -> bool {
        self.required <= size && self.limit.is_none_or(|limit| size <= limit)
    }

    /// Chooses the size of a new volume: the required size, or `default` if none is required, rounded up to a multiple of
    /// `unit`, within the limit and the range of CSI's sizes. `None` if no size fits.
    pub fn choose(self, default: u64, unit: u64) -> Option<u64> {
        let largest = self.limit.unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs()) / unit * unit;
        let smallest = self.required.max(1).checked_next_multiple_of(unit)?;
        let wanted = if self.required > 0 { smallest } else { default.checked_next_multiple_of(unit)? };
        Some(wanted.min(largest)).filter(|size| *size >= smallest)
    }
}

/// The source of a new volume's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeContentSource {
    /// A snapshot, by id.
    Snapshot(String),
    /// Another volume, by id.
    Volume(String),
}

/// An existing volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Volume {
    /// The volume ID; Kubernetes calls it the volume handle.
    pub id: String,
    /// The size in bytes; 0 if unknown.
    pub capacity: u64,
    /// The volume context, which callers pass to every node call.
    pub context: BTreeMap<String, String>,
    /// The content source it was created from.
    pub source: Option<VolumeContentSource>,
    /// The topologies from which it is accessible; empty for any.
    pub topology: Vec<Topology>,
    /// IDs of the nodes it is attached to.
    pub published_nodes: Vec<String>,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage<T> {
    /// The entries, sorted by id.
    pub entries: Vec<T>,
    /// Whether there are entries after the last one.
    pub more: bool,
}

/// The capacity that can still be provisioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AvailableCapacity {
    /// Total available bytes.
    pub available: u64,
    /// The maximum size of one volume.
    pub maximum_volume: Option<u64>,
    /// The minimum size of one volume.
    pub minimum_volume: Option<u64>,
}

/// The result of a controller expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpandedVolume {
    /// The new size in bytes.
    pub capacity: u64,
    /// Whether NodeExpandVolume must follow, to update the device and grow the file system.
    pub node_expansion_required: bool,
}

/// An existing snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The snapshot ID; Kubernetes calls it the snapshot handle.
    pub id: String,
    /// The ID of the source volume.
    pub source: String,
    /// The minimum size of a volume restored from it.
    pub size: u64,
    /// The point in time at which it was taken.
    pub created: SystemTime,
    /// Whether volumes can be restored from it now.
    pub ready_to_use: bool,
    /// The ID of the group snapshot it belongs to.
    pub group: Option<String>,
    /// The topologies from which it is accessible; empty for any.
    pub topology: Vec<Topology>,
}

/// An existing group snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// The group snapshot ID.
    pub id: String,
    /// The point in time at which it was taken.
    pub created: SystemTime,
    /// The member snapshots; the group is ready when all of them are.
    pub snapshots: Vec<Snapshot>,
}

/// A contiguous range of bytes of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Ranges of bytes of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRanges {
    /// Size of the source volume.
    pub volume_size: u64,
    /// The ranges: sorted, not overlapping.
    pub ranges: Vec<BlockRange>,
}

/// The severity of a volume's issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthStatus {
    /// The volume works, but needs attention.
    Degraded,
    /// The volume cannot be used.
    Inaccessible,
    /// Data was lost.
    DataLoss,
}

/// An issue of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthIssue {
    /// The severity.
    pub status: HealthStatus,
    /// A stable CamelCase word for programs.
    pub reason: String,
    /// A description for people.
    pub message: String,
}

/// The severity of a storage system's issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageStatus {
    /// The storage works, but needs attention.
    Degraded,
    /// The storage cannot be reached.
    Unreachable,
}

/// An issue of the storage system behind all volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageIssue {
    /// The severity.
    pub status: StorageStatus,
    /// A stable CamelCase word for programs.
    pub reason: String,
    /// A description for people.
    pub message: String,
}

/// A volume's device on this node, verified by the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The path of the device node.
    pub path: PathBuf,
    /// The volume's size in the backend's records; the SDK compares it with the device.
    pub size: u64,
    /// Whether the device rejects writes.
    pub read_only: bool,
    /// A second device of the volume that rejects writes; see [`crate::backend::Devices::attach_reader`].
    pub reader: Option<PathBuf>,
}

/// What the SDK knows of a volume on this node besides its id; see [`crate::backend::Devices::adopt`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum AdoptionHint<'a> {
    /// This device is mounted at the path where the orchestrator expects the volume.
    Mounted(&'a Path),
    /// The volume is being published with this publish context.
    Published(&'a BTreeMap<String, String>),
}

/// The content of a volume according to the backend's durable record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum FormatState {
    /// Created with zeroes and never written.
    Blank,
    /// mkfs may have started; the file system was never mounted.
    Formatting {
        /// The type of the file system.
        fs: FsType,
        /// Its UUID, chosen before mkfs and passed to it.
        uuid: String,
    },
    /// Holds a file system that the SDK created.
    Formatted {
        /// The type of the file system.
        fs: FsType,
        /// Its UUID.
        uuid: String,
    },
    /// A copy of a volume with a file system; it must get a new UUID before its first mount.
    Copied {
        /// The type of the file system.
        fs: FsType,
        /// The new UUID, chosen when the copy was created.
        uuid: String,
    },
    /// Published as a raw block device: its content belongs to the user. Never formatted.
    Raw,
}

/// The mount source of a share.
#[derive(Clone, PartialEq, Eq)]
pub struct MountSource {
    /// `tmpfs`, `server:/export`, or a directory to bind-mount.
    pub source: String,
    /// The kernel's name of the file system type; empty to bind-mount the directory `source`.
    pub fs_type: String,
    /// Mount options; those of the request are appended. They can contain secrets, so they are never printed.
    pub options: Vec<String>,
}

impl fmt::Debug for MountSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, fs_type, options } = self;
        f.debug_struct("MountSource")
            .field("source", source)
            .field("fs_type", fs_type)
            .field("options", &format_args!("{} options", options.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_of_a_mount_source_has_no_options() {
        let options = vec!["password=hunter2".to_owned()];
        let source = MountSource { source: "//server/share".into(), fs_type: "cifs".into(), options };
        let text = format!("{source:?}");
        assert!(text.contains("//server/share") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn chosen_size_is_rounded_and_within_the_range() {
        const DEFAULT: u64 = 1000;
        const UNIT: u64 = 100;
        for (required, limit, chosen) in [
            (0, None, Some(1000)),
            (0, Some(250), Some(200)),
            (0, Some(99), None),
            (1, None, Some(100)),
            (100, Some(100), Some(100)),
            (101, Some(199), None),
            (101, Some(200), Some(200)),
            (5000, None, Some(5000)),
            (u64::MAX, None, None),
            (i64::MAX.unsigned_abs(), None, None),
            (0, Some(u64::MAX), Some(1000)),
        ] {
            let range = SizeRange { required, limit };
            assert_eq!(range.choose(DEFAULT, UNIT), chosen, "{range:?}");
            assert!(chosen.is_none_or(|size| range.fits(size)), "{range:?}");
        }
        assert!(!SizeRange { required: 2, limit: Some(3) }.fits(1));
        assert!(!SizeRange { required: 2, limit: Some(3) }.fits(4));
    }
}
