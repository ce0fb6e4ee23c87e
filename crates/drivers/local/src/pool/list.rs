//! The contents of a pool, for `wharf local list` as a table or JSON.

use std::path::PathBuf;

use serde::Serialize;
use wharf_driver::backend::{FormatState, VolumeContentSource};

use super::PoolCore;
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
    /// Its directory.
    pub path: PathBuf,
    /// Its UUID.
    pub uuid: String,
    /// Size of its file system in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes free.
    pub available_bytes: u64,
    /// Bytes provisioned to volumes.
    pub committed_bytes: u128,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeEntry {
    /// Its handle.
    pub id: String,
    /// The name from the create request.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes allocated to its image; shared extents count in each image.
    pub allocated: u64,
    /// `creating`, `copying` or `ready`.
    pub state: &'static str,
    /// Bytes copied so far, while it is being copied.
    pub copied: Option<u64>,
    /// Thin or thick.
    pub provisioning: Provisioning,
    /// Its recorded format state.
    pub format: FormatState,
    /// The snapshot or volume it was created from.
    pub source: Option<VolumeContentSource>,
    /// Creation time, RFC 3339.
    pub created: String,
    /// The node that ControllerPublish attached it to.
    pub node: Option<String>,
    /// The loop device it is attached to.
    pub device: Option<PathBuf>,
    /// Where the device is mounted or bind-mounted.
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
    /// The source volume.
    pub source: String,
    /// The size of the source volume at the time of the snapshot.
    pub size: u64,
    /// Bytes allocated to its image; shared extents count in each image.
    pub allocated: u64,
    /// `creating`, `copying` or `ready`.
    pub state: &'static str,
    /// Bytes copied so far, while it is being copied.
    pub copied: Option<u64>,
    /// Its recorded format state.
    pub format: FormatState,
    /// The group it belongs to.
    pub group: Option<String>,
    /// Time of the snapshot, RFC 3339.
    pub created: String,
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
        let (volumes, snapshots, groups, committed_bytes) = {
            let index = self.index();
            (
                index.volumes().cloned().collect::<Vec<_>>(),
                index.snapshots().cloned().collect::<Vec<_>>(),
                index.groups().cloned().collect::<Vec<_>>(),
                index.committed(),
            )
        };
        let pool = PoolEntry {
            path: self.store.root.clone(),
            uuid: self.uuid.clone(),
            total_bytes: usage.total_bytes,
            used_bytes: usage.used_bytes,
            available_bytes: usage.available_bytes,
            committed_bytes,
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
        let device = self.loop_devices_of(&record).map_err(|fault| fault.to_string())?.into_iter().next();
        let device = device.map(|device| device.path);
        let mut mounts = Vec::new();
        if let Some(device) = &device {
            let table = self.kernel().mount_table().map_err(|error| error.to_string())?;
            let number = self.kernel().device_number(device).map_err(|error| error.to_string())?;
            let mounted = table.mounts().iter().filter(|mount| is_on(mount, device, number));
            let bound = table.of_device_node(device);
            mounts.extend(mounted.chain(bound).map(|mount| mount.mount_point.clone()));
        }
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

fn state(phase: Phase) -> (&'static str, Option<u64>) {
    match phase {
        Phase::Creating => ("creating", None),
        Phase::Copying { done, .. } => ("copying", Some(done)),
        Phase::Ready => ("ready", None),
    }
}
