//! What a backend author implements. Each trait is one thing a storage system can do; giving it to the
//! `Driver` builder is what declares the capability, so what a driver says and what it
//! serves cannot differ.
//!
//! What the SDK promises a backend: requests are well formed; ids and names are not empty, at most 128
//! bytes (ids) or 1 KiB (names) and without control characters (names may have tabs and line ends, and both
//! may have slashes and dots); sizes are not negative and `required <= limit`; no two
//! operations run at once on one volume, one snapshot or one name; an operation that began runs to its end
//! even if the caller hung up. What a backend promises the SDK: every operation can be repeated, and its
//! errors say of which kind they are: each variant names the code it becomes.

mod errors;
mod types;

pub use errors::{
    BackendError, CreateError, DeleteError, DeviceError, ExpandError, PublishError, SnapshotError,
};
pub use types::{
    AccessMode, BlockRange, BlockRanges, Capability, CapacityAnswer, CapacityQuery, Device, Expanded, Format,
    GroupSnapshot, HealthIssue, HealthStatus, MountSource, NewGroupSnapshot, NewSnapshot, NewVolume, Page,
    Secrets, SizeRange, Snapshot, SnapshotFilter, Source, StageVolume, StorageIssue, StorageStatus, Topology,
    Trace, Volume, VolumeAccess,
};

use std::collections::BTreeMap;

use async_trait::async_trait;

/// Makes and deletes volumes: any driver with a Controller service. A node-only driver has none.
#[async_trait]
pub trait Volumes: Send + Sync + 'static {
    /// Makes a volume. The same name again is the same volume, if what is asked for is compatible with it.
    async fn create(&self, wanted: &NewVolume) -> Result<Volume, CreateError>;
    /// Deletes a volume; gone is success, in use is [`DeleteError::InUse`].
    async fn delete(&self, id: &str, secrets: &Secrets) -> Result<(), DeleteError>;
    /// One volume, `None` if there is no such volume.
    async fn get(&self, id: &str) -> Result<Option<Volume>, BackendError>;
    /// Why this volume cannot be used in this way; `None` if it can. Asked before create (`volume` is `None`,
    /// is such a volume possible at all?), by ValidateVolumeCapabilities, and before publish and stage.
    fn refuses(&self, volume: Option<&Volume>, capability: &Capability) -> Option<String>;
    /// Why these parameters are not acceptable; `None` if they are. Keys that begin with
    /// `csi.storage.k8s.io/` are Kubernetes' own and not among them.
    fn refuses_parameters(&self, parameters: &BTreeMap<String, String>) -> Option<String>;
}

/// LIST_VOLUMES and GET_VOLUME.
#[async_trait]
pub trait Listing: Send + Sync + 'static {
    /// At most `max` volumes whose id is greater than `after`, in the order of their ids.
    async fn list(&self, after: Option<&str>, max: usize) -> Result<Page<Volume>, BackendError>;
}

/// GET_CAPACITY.
#[async_trait]
pub trait Capacity: Send + Sync + 'static {
    /// What could still be provisioned.
    async fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer, BackendError>;
}

/// PUBLISH_UNPUBLISH_VOLUME (with LIST_VOLUMES_PUBLISHED_NODES where there is [`Listing`]).
#[async_trait]
pub trait Publishing: Send + Sync + 'static {
    /// Attaches a volume to a node and answers the publish context.
    async fn publish(
        &self,
        id: &str,
        node: &str,
        capability: &Capability,
        read_only: bool,
    ) -> Result<BTreeMap<String, String>, PublishError>;
    /// Detaches it from one node, or from all; not attached or gone is success.
    async fn unpublish(&self, id: &str, node: Option<&str>) -> Result<(), PublishError>;
    /// PUBLISH_READONLY: whether a volume can be attached so that the node cannot write to it.
    fn read_only(&self) -> bool {
        true
    }
}

/// EXPAND_VOLUME of the controller.
#[async_trait]
pub trait Expansion: Send + Sync + 'static {
    /// Grows a volume to at least `size.required`; large enough already is success. Never shrinks. How it is used
    /// is told by some callers only.
    async fn expand(
        &self,
        id: &str,
        size: SizeRange,
        used_as: Option<&Capability>,
    ) -> Result<Expanded, ExpandError>;
    /// Whether volumes may grow while they are in use (ONLINE), or only while they are not (OFFLINE).
    fn online(&self) -> bool;
}

/// CREATE_DELETE_SNAPSHOT, LIST_SNAPSHOTS, GET_SNAPSHOT, and restoring.
#[async_trait]
pub trait Snapshots: Send + Sync + 'static {
    /// Cuts a snapshot. The same name and source again is the same snapshot.
    async fn create_snapshot(&self, wanted: &NewSnapshot) -> Result<Snapshot, SnapshotError>;
    /// Deletes a snapshot; gone is success.
    async fn delete_snapshot(&self, id: &str) -> Result<(), DeleteError>;
    /// One snapshot, `None` if there is no such snapshot.
    async fn get_snapshot(&self, id: &str) -> Result<Option<Snapshot>, BackendError>;
    /// At most `max` snapshots that pass `filter` and whose id is greater than `after`, by id.
    async fn list_snapshots(
        &self,
        filter: &SnapshotFilter,
        after: Option<&str>,
        max: usize,
    ) -> Result<Page<Snapshot>, BackendError>;
}

/// CLONE_VOLUME: [`NewVolume::source`] may be a volume.
pub trait Clones: Send + Sync + 'static {}

/// The GroupController service.
#[async_trait]
pub trait GroupSnapshots: Send + Sync + 'static {
    /// Cuts all members at one moment. Same name and members again is the same group.
    async fn create_group(&self, wanted: &NewGroupSnapshot) -> Result<GroupSnapshot, SnapshotError>;
    /// Deletes the group and its members; gone is success.
    async fn delete_group(&self, id: &str) -> Result<(), DeleteError>;
    /// One group, `None` if there is no such group.
    async fn get_group(&self, id: &str) -> Result<Option<GroupSnapshot>, BackendError>;
}

/// The SnapshotMetadata service.
#[async_trait]
pub trait ChangedBlocks: Send + Sync + 'static {
    /// Blocks of the snapshot that hold data, from `from` on, sorted.
    async fn allocated(&self, snapshot: &str, from: u64) -> Result<BlockRanges, SnapshotError>;
    /// Blocks of `target` that may differ from `base`, from `from` on, sorted.
    async fn changed(&self, base: &str, target: &str, from: u64) -> Result<BlockRanges, SnapshotError>;
}

/// GET_VOLUME_HEALTH and LIST_VOLUME_HEALTH of the controller; GET_VOLUME_HEALTH and GET_STORAGE_HEALTH of
/// the node, where the SDK adds what it sees of the mount.
#[async_trait]
pub trait Health: Send + Sync + 'static {
    /// What is wrong with a volume; empty is healthy; `None` if there is no such volume.
    async fn volume_health(&self, id: &str) -> Result<Option<Vec<HealthIssue>>, BackendError>;
    /// What is wrong with the storage behind all of them.
    async fn storage_health(&self) -> Result<Vec<StorageIssue>, BackendError>;
}

/// MODIFY_VOLUME.
#[async_trait]
pub trait Mutable: Send + Sync + 'static {
    /// Applies mutable parameters; repeating it is success.
    async fn modify(&self, id: &str, parameters: &BTreeMap<String, String>) -> Result<(), CreateError>;
}

/// The node half of a block backend: where the bytes are on this node. The rest (safe format, check, mount,
/// bind, grow, statistics, unmount) is the SDK's.
#[async_trait]
pub trait Devices: Send + Sync + 'static {
    /// Makes the volume's device appear and proves that it is the volume's own: identity and size. Attached
    /// already is success.
    async fn attach(&self, volume: &StageVolume) -> Result<Device, DeviceError>;
    /// The device if it is attached now; changes nothing.
    async fn find(&self, id: &str) -> Result<Option<Device>, DeviceError>;
    /// The device of a volume that [`Self::find`] does not know, by another trace of it. For backends that take
    /// over from a driver which left no notes of what it had staged. It may take a note of its own.
    async fn adopt(&self, id: &str, trace: Trace<'_>) -> Result<Option<Device>, DeviceError> {
        let _ = (id, trace);
        Ok(None)
    }
    /// Lets go of the device; not attached or gone is success.
    async fn detach(&self, id: &str) -> Result<(), DeviceError>;
    /// Makes the device on this node see the volume's present size (after a controller expansion), and
    /// answers it. Where the news of it takes its time, `at_least` is what is to be waited for.
    async fn refresh(&self, id: &str, at_least: u64) -> Result<Device, DeviceError>;
    /// How large a device must be at the least for an expansion on the node to `required` bytes. Less than that only
    /// where volumes are taken over from a driver that rounded down, and said that it had not.
    fn least_for(&self, required: u64) -> u64 {
        required
    }
    /// Whether the user said that no file system is ever to be made on this volume: what is there is mounted.
    fn never_formats(&self, volume: &StageVolume) -> bool {
        let _ = volume;
        false
    }
    /// The record of what was ever done to the volume's bytes, where the backend can keep one.
    fn records(&self) -> Option<&dyn FormatRecords> {
        None
    }
}

/// A durable record per volume of what its bytes are: the second proof before a format.
#[async_trait]
pub trait FormatRecords: Send + Sync {
    /// The record; `None` where nothing is recorded of this volume, and the zero proof stands alone.
    async fn format(&self, id: &str) -> Result<Option<Format>, DeviceError>;
    /// Replaces the record; durable when it returns.
    async fn set_format(&self, id: &str, format: &Format) -> Result<(), DeviceError>;
}

/// The node half of a share backend: a mount source (tmpfs, a directory, an export) instead of a device.
#[async_trait]
pub trait Shares: Send + Sync + 'static {
    /// What to mount for this volume.
    async fn source(&self, volume: &StageVolume) -> Result<MountSource, DeviceError>;
}
