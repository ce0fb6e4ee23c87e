//! Lists the contents of a pool, for `wharf local list`.

use std::path::PathBuf;

use serde::Serialize;
use wharf_driver::backend::{FormatState, VolumeContentSource};

use super::PoolCore;
use super::loops::to_device;
use super::reflink::is_on;
use crate::Provisioning;
use crate::record::{Phase, VolumeRecord};

/// All objects in a pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolContents {
    /// The pool itself.
    pub pool: PoolEntry,
    /// Ordered by id.
    pub volumes: Vec<VolumeEntry>,
    /// Ordered by id.
    pub snapshots: Vec<SnapshotEntry>,
    /// Ordered by id.
    pub groups: Vec<GroupEntry>,
}

/// A pool and its space usage.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolEntry {
    /// The pool's directory.
    pub path: PathBuf,
    /// The pool's UUID.
    pub uuid: String,
    /// Size of the pool's file system in bytes.
    pub total_bytes: u64,
    /// Used bytes of the file system.
    pub used_bytes: u64,
    /// Free bytes of the file system.
    pub available_bytes: u64,
    /// Bytes allocated to images. Shared blocks count in each image.
    pub allocated_bytes: u64,
    /// The sum of the sizes of all volumes.
    pub promised_bytes: u128,
    /// What the volumes can still take from the free bytes.
    pub outstanding_bytes: u128,
    /// The part of `outstanding_bytes` that is needed because volumes share blocks with snapshots or clones.
    pub reserved_for_snapshots_bytes: u128,
    /// Free bytes that are never promised: for records and metadata of the file system.
    pub reserved_for_records_bytes: u64,
    /// Free bytes of the disk beneath a pool in a sparse file, which limit the pool.
    pub free_beneath_bytes: Option<u64>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeEntry {
    /// Its handle.
    pub id: String,
    /// The name from the create request.
    pub name: String,
    /// The provisioned size in bytes.
    pub size: u64,
    /// Bytes allocated to its image; shared extents count in each image.
    pub allocated: u64,
    /// `creating`, `copying` or `ready`.
    pub state: &'static str,
    /// Bytes copied so far; set in state `copying`.
    pub copied: Option<u64>,
    /// Thin or thick.
    pub provisioning: Provisioning,
    /// Its recorded format state.
    pub format: FormatState,
    /// The snapshot or volume it was created from.
    pub source: Option<VolumeContentSource>,
    /// Creation time, RFC 3339.
    pub created: String,
    /// The node to which ControllerPublishVolume attached the volume.
    pub node: Option<String>,
    /// The volume's loop device, if it has one on this node.
    pub device: Option<PathBuf>,
    /// The mount points of the device's file system and the bind mounts of its device node.
    pub mounts: Vec<PathBuf>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotEntry {
    /// Its handle.
    pub id: String,
    /// The name from the create request.
    pub name: String,
    /// The handle of the source volume.
    pub source: String,
    /// The size of the source volume at the time of the snapshot.
    pub size: u64,
    /// Bytes allocated to its image; shared extents count in each image.
    pub allocated: u64,
    /// `creating`, `copying` or `ready`.
    pub state: &'static str,
    /// Bytes copied so far; set in state `copying`.
    pub copied: Option<u64>,
    /// Its recorded format state.
    pub format: FormatState,
    /// The group it belongs to.
    pub group: Option<String>,
    /// Time of the snapshot, RFC 3339.
    pub created: String,
    /// The freeze expired before the copy was complete: it has what a disk has after a power failure.
    pub crash_consistent: bool,
}

/// A group snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupEntry {
    /// Its handle.
    pub id: String,
    /// The name from the create request.
    pub name: String,
    /// Ids of its member snapshots.
    pub snapshots: Vec<String>,
    /// Time of the snapshot, RFC 3339.
    pub created: String,
}

impl PoolCore {
    /// All objects in the pool.
    pub fn contents(&self) -> Result<PoolContents, String> {
        let usage = self.usage().map_err(|fault| fault.to_string())?;
        let account = self.account().map_err(|fault| fault.to_string())?;
        let (volumes, snapshots, groups) = {
            let index = self.index();
            (
                index.volumes().cloned().collect::<Vec<_>>(),
                index.snapshots().cloned().collect::<Vec<_>>(),
                index.groups().cloned().collect::<Vec<_>>(),
            )
        };
        let pool = PoolEntry {
            path: self.store.root.clone(),
            uuid: self.uuid.clone(),
            total_bytes: usage.total_bytes,
            used_bytes: usage.used_bytes,
            available_bytes: usage.available_bytes,
            allocated_bytes: account.allocated,
            promised_bytes: account.promised,
            outstanding_bytes: account.outstanding,
            reserved_for_snapshots_bytes: account.reserved_for_snapshots,
            reserved_for_records_bytes: account.reserved_for_records,
            free_beneath_bytes: account.free_beneath,
        };
        let volumes =
            volumes.into_iter().map(|record| self.volume_entry(record)).collect::<Result<_, _>>()?;
        let snapshots = snapshots.into_iter().map(|record| SnapshotEntry {
            allocated: self.allocated(&record.id).unwrap_or(0),
            state: state(record.state).0,
            copied: state(record.state).1,
            created: record.created.to_string(),
            id: record.id,
            name: record.name,
            source: record.source,
            size: record.size,
            format: record.format,
            group: record.group,
            crash_consistent: record.crash_consistent,
        });
        let groups = groups.into_iter().map(|record| GroupEntry {
            id: record.id,
            name: record.name,
            snapshots: record.members.into_iter().map(|member| member.snapshot).collect(),
            created: record.created.to_string(),
        });
        Ok(PoolContents { pool, volumes, snapshots: snapshots.collect(), groups: groups.collect() })
    }

    fn volume_entry(&self, record: VolumeRecord) -> Result<VolumeEntry, String> {
        let loops = self.loops_of(&record).map_err(|fault| fault.to_string())?;
        let mut mounts = Vec::new();
        if !loops.devices.is_empty() {
            let table = self.kernel().mount_table().map_err(|error| error.to_string())?;
            for device in loops.devices.iter().map(|device| &device.path) {
                let number = self.kernel().device_number(device).map_err(|error| error.to_string())?;
                let mounted = table.mounts().iter().filter(|mount| is_on(mount, device, number));
                let bind_mounts = table.of_device_node(device);
                mounts.extend(mounted.chain(bind_mounts).map(|mount| mount.mount_point.clone()));
            }
        }
        let device = to_device(&record, &loops).map(|device| device.path);
        Ok(VolumeEntry {
            allocated: self.allocated(&record.id).unwrap_or(0),
            state: state(record.state).0,
            copied: state(record.state).1,
            created: record.created.to_string(),
            id: record.id,
            name: record.name,
            size: record.size,
            provisioning: record.provisioning,
            format: record.format,
            source: record.source,
            node: record.attached.map(|attachment| attachment.node),
            device,
            mounts,
        })
    }
}

/// The name of a phase, and the bytes copied so far.
fn state(phase: Phase) -> (&'static str, Option<u64>) {
    match phase {
        Phase::Creating => ("creating", None),
        Phase::Copying { done, .. } => ("copying", Some(done)),
        Phase::Ready => ("ready", None),
    }
}
