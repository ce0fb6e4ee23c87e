//! The plain data between the SDK and a backend: CSI's messages, checked and without their optional holes.

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

/// How large a volume must be at least and may be at most; checked: `required <= limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SizeRange {
    /// 0 where the caller has no wish.
    pub required: u64,
    /// `None` where the caller sets no limit.
    pub limit: Option<u64>,
}

impl SizeRange {
    /// Whether a volume of this size is what was asked for.
    pub fn fits(self, size: u64) -> bool {
        self.required <= size && self.limit.is_none_or(|limit| size <= limit)
    }

    /// The size to make: what is required, or `default` where nothing is, in whole `unit`s, and within the
    /// limit and what CSI can count. `None` if there is no such size.
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
    /// One node, any number of writers there (kept for older orchestrators).
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
    /// At most one node at a time.
    pub fn is_single_node(self) -> bool {
        !matches!(self, Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter)
    }

    /// Nobody may write.
    pub fn is_reader_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }
}

/// How a volume is seen by a pod.
#[derive(Clone, PartialEq, Eq)]
pub enum VolumeAccess {
    /// As a raw device.
    Block,
    /// As a file system.
    Mount {
        /// The type asked for, empty for the driver's default.
        fs_type: String,
        /// `mount -o` options; may hold secrets: never printed.
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

/// One way in which a volume is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Device or file system.
    pub access: VolumeAccess,
    /// By whom.
    pub mode: AccessMode,
}

/// What a new volume is filled with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// A snapshot, by id.
    Snapshot(String),
    /// Another volume, by id.
    Volume(String),
}

/// A volume to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// The name that makes the request repeatable.
    pub name: String,
    /// Size wanted.
    pub size: SizeRange,
    /// All ways in which it will be used; at least one.
    pub capabilities: Vec<Capability>,
    /// StorageClass parameters, mutable ones laid over them.
    pub parameters: BTreeMap<String, String>,
    /// Secrets.
    pub secrets: Secrets,
    /// What to fill it with.
    pub source: Option<Source>,
    /// It must be reachable from one of these; empty for anywhere.
    pub requisite: Vec<Topology>,
    /// In this order, if possible.
    pub preferred: Vec<Topology>,
}

/// A volume as the backend has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Volume {
    /// Its handle.
    pub id: String,
    /// Its size in bytes; 0 for unknown.
    pub capacity: u64,
    /// Handed back with every node call.
    pub context: BTreeMap<String, String>,
    /// What it was filled with.
    pub source: Option<Source>,
    /// From where it can be reached; empty for anywhere.
    pub topology: Vec<Topology>,
    /// Nodes it is attached to.
    pub published_nodes: Vec<String>,
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries, in the order of their ids.
    pub entries: Vec<T>,
    /// Whether there are entries behind the last one.
    pub more: bool,
}

/// What GetCapacity is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapacityQuery {
    /// StorageClass parameters.
    pub parameters: BTreeMap<String, String>,
    /// Capabilities the volumes would need.
    pub capabilities: Vec<Capability>,
    /// Where; `None` for anywhere.
    pub topology: Option<Topology>,
}

/// What can still be provisioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CapacityAnswer {
    /// Bytes in all.
    pub available: u64,
    /// The largest single volume.
    pub maximum_volume: Option<u64>,
    /// The smallest single volume.
    pub minimum_volume: Option<u64>,
}

/// What an expansion came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expanded {
    /// The size now.
    pub capacity: u64,
    /// Whether the node still has to see it (and grow the file system).
    pub node_expansion: bool,
}

/// A snapshot to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// The name that makes the request repeatable.
    pub name: String,
    /// The volume to snapshot.
    pub source: String,
    /// VolumeSnapshotClass parameters.
    pub parameters: BTreeMap<String, String>,
    /// Secrets.
    pub secrets: Secrets,
    /// Volumes restored from it must be reachable from one of these; empty for anywhere.
    pub requisite: Vec<Topology>,
}

/// A snapshot as the backend has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its handle.
    pub id: String,
    /// The volume it was taken of.
    pub source: String,
    /// The smallest volume that can be restored from it.
    pub size: u64,
    /// When it was cut.
    pub created: SystemTime,
    /// Whether volumes can be restored from it now.
    pub ready: bool,
    /// The group it belongs to.
    pub group: Option<String>,
    /// From where it can be reached; empty for anywhere.
    pub topology: Vec<Topology>,
}

/// Which snapshots to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotFilter {
    /// Only those of this volume.
    pub source: Option<String>,
}

/// A group snapshot to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGroupSnapshot {
    /// The name that makes the request repeatable.
    pub name: String,
    /// The volumes to snapshot; sorted, no doubles, at least one.
    pub sources: Vec<String>,
    /// VolumeGroupSnapshotClass parameters.
    pub parameters: BTreeMap<String, String>,
    /// Secrets.
    pub secrets: Secrets,
}

/// A group snapshot as the backend has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// Its handle.
    pub id: String,
    /// When it was cut.
    pub created: SystemTime,
    /// Its members; the group is ready when all of them are.
    pub snapshots: Vec<Snapshot>,
}

/// A run of bytes of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Runs of bytes of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRanges {
    /// Size of the volume the snapshot was taken of.
    pub volume_size: u64,
    /// Sorted, not overlapping.
    pub ranges: Vec<BlockRange>,
}

/// How bad a volume's state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthStatus {
    /// Works, but somebody should look.
    Degraded,
    /// Cannot be used.
    Inaccessible,
    /// Data is gone.
    DataLoss,
}

/// One thing that is wrong with a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthIssue {
    /// How bad.
    pub status: HealthStatus,
    /// One CamelCase word, stable.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// How bad the storage's state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageStatus {
    /// Works, but somebody should look.
    Degraded,
    /// Cannot be reached.
    Unreachable,
}

/// One thing that is wrong with the storage behind all volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageIssue {
    /// How bad.
    pub status: StorageStatus,
    /// One CamelCase word, stable.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A volume on its way to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageVolume {
    /// Its handle.
    pub id: String,
    /// How it will be used.
    pub capability: Capability,
    /// From ControllerPublish.
    pub publish_context: BTreeMap<String, String>,
    /// From CreateVolume.
    pub volume_context: BTreeMap<String, String>,
    /// Secrets.
    pub secrets: Secrets,
}

/// A volume's device on this node, proven to be its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The device node.
    pub path: PathBuf,
    /// How large the volume is by the backend's record; the SDK compares it with the device.
    pub size: u64,
    /// No writes possible.
    pub read_only: bool,
}

/// What is known of a volume on this node besides its id.
#[derive(Debug, Clone, Copy)]
pub enum Trace<'a> {
    /// The orchestrator says that the volume is at a path, and this device is what is mounted there.
    Mounted(&'a Path),
    /// It is being published, with this publish context.
    Published(&'a BTreeMap<String, String>),
}

/// What a volume's bytes are, by the backend's own durable record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Format {
    /// Made of zeroes, and nobody has written to it.
    Blank,
    /// mkfs may have begun; nobody can have mounted it.
    Formatting {
        /// Which file system.
        fs: FsType,
        /// Its UUID, chosen before mkfs and given to it.
        uuid: String,
    },
    /// Holds our file system.
    Formatted {
        /// Which file system.
        fs: FsType,
        /// Its UUID.
        uuid: String,
    },
    /// A copy of a volume with a file system, which must get a UUID of its own before its first mount.
    Copied {
        /// Which file system.
        fs: FsType,
        /// The UUID it is to get, chosen beforehand.
        uuid: String,
    },
    /// Handed out as a raw device: what is on it is the user's business. Never formatted.
    Raw,
}

/// What to mount for a share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSource {
    /// `tmpfs`, `server:/export`, or a directory (with `bind`).
    pub source: String,
    /// File system type as the kernel names it; empty to bind-mount the directory `source`.
    pub fs_type: String,
    /// Options, before the request's own.
    pub options: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
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
