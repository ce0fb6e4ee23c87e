//! The data types between the SDK and a backend: validated CSI messages without unset required fields.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use wharf_linux::FsType;

/// Topology segments, such as `local.csi.wharf.dev/node: n1`.
pub type Topology = BTreeMap<String, String>;

/// Secrets of a request. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(pub BTreeMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
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

/// CSI's access modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// One node, any number of writers on it (for older orchestrators).
    SingleNodeWriter,
    /// One node, readers only.
    SingleNodeReaderOnly,
    /// Many nodes, readers only.
    MultiNodeReaderOnly,
    /// Many nodes, one writer.
    MultiNodeSingleWriter,
    /// Many nodes, many writers.
    MultiNodeMultiWriter,
    /// One node, one pod: ReadWriteOncePod.
    SingleNodeSingleWriter,
    /// One node, many pods.
    SingleNodeMultiWriter,
}

impl AccessMode {
    /// Whether the volume is used by at most one node at a time.
    pub fn is_single_node(self) -> bool {
        !matches!(self, Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter)
    }

    /// Whether the mode allows no writes.
    pub fn is_reader_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }
}

/// How a pod accesses a volume: CSI's access type.
#[derive(Clone, PartialEq, Eq)]
pub enum VolumeAccess {
    /// As a raw block device.
    Block,
    /// As a mounted file system.
    Mount {
        /// The requested file system type; empty for the driver's default.
        fs_type: String,
        /// `mount -o` options; can contain secrets, so they are never printed.
        flags: Vec<String>,
    },
}

impl fmt::Debug for VolumeAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.write_str("Block"),
            Self::Mount { fs_type, flags } => write!(f, "Mount({fs_type:?}, {} flags)", flags.len()),
        }
    }
}

/// One way in which a volume is used: CSI's VolumeCapability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Block device or file system.
    pub access: VolumeAccess,
    /// The access mode: how many nodes and pods use the volume.
    pub mode: AccessMode,
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

/// A request to create a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// The name that identifies the request: repeated calls have the same name.
    pub name: String,
    /// The requested size.
    pub size: SizeRange,
    /// All capabilities that the volume must support; at least one.
    pub capabilities: Vec<Capability>,
    /// StorageClass parameters, overridden by mutable parameters.
    pub parameters: BTreeMap<String, String>,
    /// Secrets of the request.
    pub secrets: Secrets,
    /// The content source; `None` for an empty volume.
    pub source: Option<VolumeContentSource>,
    /// The volume must be accessible from one of these topologies; empty for any.
    pub requisite: Vec<Topology>,
    /// Preferred topologies, in this order.
    pub preferred: Vec<Topology>,
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

/// A GetCapacity request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapacityQuery {
    /// StorageClass parameters.
    pub parameters: BTreeMap<String, String>,
    /// Capabilities that the volumes must support.
    pub capabilities: Vec<Capability>,
    /// The topology to report on; `None` for all.
    pub topology: Option<Topology>,
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

/// A request to create a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// The name that identifies the request: repeated calls have the same name.
    pub name: String,
    /// The ID of the source volume.
    pub source: String,
    /// VolumeSnapshotClass parameters.
    pub parameters: BTreeMap<String, String>,
    /// Secrets of the request.
    pub secrets: Secrets,
    /// The snapshot must be accessible from one of these topologies; empty for any.
    pub requisite: Vec<Topology>,
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

/// Selects the snapshots of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotFilter {
    /// Only snapshots of this volume.
    pub source: Option<String>,
}

/// A request to create a group snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGroupSnapshot {
    /// The name that identifies the request: repeated calls have the same name.
    pub name: String,
    /// The IDs of the source volumes: sorted, without duplicates, at least one.
    pub sources: Vec<String>,
    /// VolumeGroupSnapshotClass parameters.
    pub parameters: BTreeMap<String, String>,
    /// Secrets of the request.
    pub secrets: Secrets,
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

/// A volume that is staged or published on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageVolume {
    /// The volume ID.
    pub id: String,
    /// How the volume is used.
    pub capability: Capability,
    /// The publish context from ControllerPublishVolume.
    pub publish_context: BTreeMap<String, String>,
    /// The volume context from CreateVolume.
    pub volume_context: BTreeMap<String, String>,
    /// Secrets of the request.
    pub secrets: Secrets,
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
}

/// What the SDK knows of a volume on this node besides its id; see [`crate::backend::Devices::adopt`].
#[derive(Debug, Clone, Copy)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSource {
    /// `tmpfs`, `server:/export`, or a directory to bind-mount.
    pub source: String,
    /// The kernel's name of the file system type; empty to bind-mount the directory `source`.
    pub fs_type: String,
    /// Mount options; those of the request are appended.
    pub options: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
