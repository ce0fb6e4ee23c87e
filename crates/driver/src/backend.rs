//! The traits that a backend implements. Each trait is one feature of a storage system. Passing it to the `Driver` builder
//! declares the capability, so a driver always serves exactly what it declares.
//!
//! The SDK guarantees to a backend:
//!
//! - Requests are well formed. Ids and names are not empty, and have at most 128 bytes (ids; more with
//!   [`max_id_length`](crate::DriverBuilder::max_id_length)) or 1 KiB (names). They have no control characters, except
//!   that names can contain tabs and line ends. Both can contain slashes and dots. Sizes are not negative, and
//!   `required <= limit`.
//! - No two operations run at the same time on one volume, one snapshot or one name. A create locks the name, every other
//!   call the id: a create and a delete of one volume can run at the same time.
//! - An operation runs to its end even if the caller disconnects.
//! - A request has every field of the CSI request that a backend may need, secrets among them. Its `Debug` output has no
//!   secrets. An error message of a backend goes to logs and events as it is, so it must not quote a secret.
//!
//! A backend guarantees to the SDK that every operation is idempotent, and that every error has the right variant: each
//! variant documents the gRPC code that it is mapped to.

mod capability;
mod errors;
mod requests;
mod types;

pub use capability::{AccessMode, Capability, MountAccess, VolumeAccess};
pub use errors::{
    BackendError, CreateError, DeleteError, DeviceError, ExpandError, PublishError, SnapshotError,
    TargetError,
};
pub use requests::{
    CapacityQuery, DeleteGroupSnapshot, DeleteSnapshot, DeleteVolume, ExpandVolume, GetAllocatedBlocks,
    GetChangedBlocks, GetGroupSnapshot, GetSnapshot, GetStorageHealth, GetUsage, GetVolume, GetVolumeHealth,
    ListSnapshots, ListVolumes, ModifyVolume, NewGroupSnapshot, NewSnapshot, NewVolume, NodeVolume,
    PublishTarget, PublishVolume, RefreshDevice, UnpublishTarget, UnpublishVolume,
};
pub use types::{
    AdoptionHint, AvailableCapacity, BlockRange, BlockRanges, Device, ExpandedVolume, FormatState,
    GroupSnapshot, HealthIssue, HealthStatus, ListPage, MountSource, Secrets, SizeRange, Snapshot,
    StorageIssue, StorageStatus, Topology, Volume, VolumeContentSource, VolumeContext,
};

pub use wharf_linux::{FsType, FsUsage};

use std::collections::BTreeMap;

use async_trait::async_trait;

/// Creates and deletes volumes (CREATE_DELETE_VOLUME). Required for a Controller service; a node-only driver does not
/// implement it.
#[async_trait]
pub trait Volumes: Send + Sync + 'static {
    /// Creates a volume. A second call with the same name returns the same volume, if the request is compatible with it.
    async fn create(&self, request: &NewVolume) -> Result<Volume, CreateError>;
    /// Deletes a volume. A volume that does not exist is success; one in use is [`DeleteError::InUse`].
    async fn delete(&self, request: &DeleteVolume) -> Result<(), DeleteError>;
    /// Returns one volume; `None` if it does not exist.
    async fn get(&self, request: &GetVolume) -> Result<Option<Volume>, BackendError>;
    /// The reason why this volume cannot be used with this capability; `None` if it can. Called before create (`volume`
    /// is `None`: can such a volume exist at all?), by ValidateVolumeCapabilities, and before publish and stage.
    fn refuses(&self, volume: Option<&Volume>, capability: &Capability) -> Option<String>;
    /// The reason why these parameters are not accepted; `None` if they are. Keys that begin with
    /// `csi.storage.k8s.io/` belong to Kubernetes and are not passed.
    fn refuses_parameters(&self, parameters: &BTreeMap<String, String>) -> Option<String>;
}

/// LIST_VOLUMES and GET_VOLUME.
#[async_trait]
pub trait Listing: Send + Sync + 'static {
    /// Returns at most `max` volumes with an id greater than `after`, sorted by id.
    async fn list(&self, request: &ListVolumes) -> Result<ListPage<Volume>, BackendError>;
}

/// GET_CAPACITY.
#[async_trait]
pub trait Capacity: Send + Sync + 'static {
    /// Returns the capacity that can still be provisioned.
    async fn capacity(&self, query: &CapacityQuery) -> Result<AvailableCapacity, BackendError>;
}

/// PUBLISH_UNPUBLISH_VOLUME (and LIST_VOLUMES_PUBLISHED_NODES together with [`Listing`]).
#[async_trait]
pub trait Publishing: Send + Sync + 'static {
    /// Attaches a volume to a node and returns the publish context.
    async fn publish(&self, request: &PublishVolume) -> Result<BTreeMap<String, String>, PublishError>;
    /// Detaches a volume from one node, or from all nodes. A volume that is not attached or does not exist is success.
    async fn unpublish(&self, request: &UnpublishVolume) -> Result<(), PublishError>;
    /// PUBLISH_READONLY: whether a volume can be attached so that the node cannot write to it.
    fn read_only(&self) -> bool {
        true
    }
}

/// EXPAND_VOLUME of the controller.
#[async_trait]
pub trait Expansion: Send + Sync + 'static {
    /// Grows a volume to at least `size.required`. A volume that is large enough is success. Never shrinks a volume.
    async fn expand(&self, request: &ExpandVolume) -> Result<ExpandedVolume, ExpandError>;
    /// Whether volumes can grow while they are in use (ONLINE), or only while they are not (OFFLINE).
    fn online(&self) -> bool;
}

/// CREATE_DELETE_SNAPSHOT, LIST_SNAPSHOTS and GET_SNAPSHOT; [`NewVolume::source`] can be a snapshot.
#[async_trait]
pub trait Snapshots: Send + Sync + 'static {
    /// Takes a snapshot. A second call with the same name and source returns the same snapshot.
    async fn create_snapshot(&self, request: &NewSnapshot) -> Result<Snapshot, SnapshotError>;
    /// Deletes a snapshot; one that does not exist is success.
    async fn delete_snapshot(&self, request: &DeleteSnapshot) -> Result<(), DeleteError>;
    /// Returns one snapshot; `None` if it does not exist.
    async fn get_snapshot(&self, request: &GetSnapshot) -> Result<Option<Snapshot>, BackendError>;
    /// Returns at most `max` snapshots with an id greater than `after`, sorted by id; only those of `source`, if it is set.
    async fn list_snapshots(&self, request: &ListSnapshots) -> Result<ListPage<Snapshot>, BackendError>;
}

/// CLONE_VOLUME: [`NewVolume::source`] can be a volume.
pub trait Clones: Send + Sync + 'static {}

/// The GroupController service.
#[async_trait]
pub trait GroupSnapshots: Send + Sync + 'static {
    /// Takes snapshots of all volumes at the same point in time. A second call with the same name and volumes returns the
    /// same group.
    async fn create_group(&self, request: &NewGroupSnapshot) -> Result<GroupSnapshot, SnapshotError>;
    /// Deletes the group and its snapshots; a group that does not exist is success.
    async fn delete_group(&self, request: &DeleteGroupSnapshot) -> Result<(), DeleteError>;
    /// Returns one group; `None` if it does not exist.
    async fn get_group(&self, request: &GetGroupSnapshot) -> Result<Option<GroupSnapshot>, BackendError>;
}

/// The SnapshotMetadata service.
#[async_trait]
pub trait ChangedBlocks: Send + Sync + 'static {
    /// Returns the blocks of the snapshot that hold data, from `starting_offset` on, sorted.
    async fn allocated(&self, request: &GetAllocatedBlocks) -> Result<BlockRanges, SnapshotError>;
    /// Returns the blocks of `target` that may differ from `base`, from `starting_offset` on, sorted.
    async fn changed(&self, request: &GetChangedBlocks) -> Result<BlockRanges, SnapshotError>;
}

/// GET_VOLUME_HEALTH and LIST_VOLUME_HEALTH of the controller; GET_VOLUME_HEALTH and GET_STORAGE_HEALTH of the node, where
/// the SDK adds issues of the mount.
#[async_trait]
pub trait Health: Send + Sync + 'static {
    /// Returns the issues of a volume: an empty list if it is healthy, `None` if it does not exist.
    async fn volume_health(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError>;
    /// Returns the issues of the storage system behind all volumes.
    async fn storage_health(&self, request: &GetStorageHealth) -> Result<Vec<StorageIssue>, BackendError>;
}

/// MODIFY_VOLUME.
#[async_trait]
pub trait Mutable: Send + Sync + 'static {
    /// Applies mutable parameters; applying the same parameters again is success.
    async fn modify(&self, request: &ModifyVolume) -> Result<(), CreateError>;
}

/// The node part of a block backend: attaches the volume's device on this node. The SDK does the rest (safe format, check,
/// mount, bind, grow, statistics, unmount).
#[async_trait]
pub trait Devices: Send + Sync + 'static {
    /// Attaches the volume's device and verifies that it belongs to the volume: identity and size. A device that is
    /// attached already is success.
    async fn attach(&self, volume: &NodeVolume) -> Result<Device, DeviceError>;
    /// Called by NodePublishVolume before the staged volume is bound at a pod's target, with the node-publish secrets and
    /// the information about the pod. An error rejects the request.
    async fn before_publish(&self, volume: &NodeVolume) -> Result<(), DeviceError> {
        let _ = volume;
        Ok(())
    }
    /// Attaches a second device of an attached raw volume that rejects writes, and returns the volume's device with
    /// [`Device::reader`] set. For a pod that only reads a volume that is staged for writing, since a bind mount cannot
    /// make a device node read-only. `None`: the backend has no such device, so the orchestrator has to restrict the
    /// pod's access to the device, as kubelet does with device rules.
    async fn attach_reader(&self, id: &str) -> Result<Option<Device>, DeviceError> {
        let _ = id;
        Ok(None)
    }
    /// Returns the device if it is attached now; changes nothing.
    async fn find(&self, id: &str) -> Result<Option<Device>, DeviceError>;
    /// Returns the device of a volume that [`Self::find`] does not know, identified by a hint. For backends that take over
    /// from a driver without records of what it staged. The backend may record the result.
    async fn adopt(&self, id: &str, hint: AdoptionHint<'_>) -> Result<Option<Device>, DeviceError> {
        let _ = (id, hint);
        Ok(None)
    }
    /// Detaches the device; one that is not attached or does not exist is success.
    async fn detach(&self, id: &str) -> Result<(), DeviceError>;
    /// Updates the device on this node to the volume's current size (after a controller expansion), and returns it. If the
    /// new size takes time to arrive, waits until the device has `at_least` bytes.
    async fn refresh(&self, request: &RefreshDevice) -> Result<Device, DeviceError>;
    /// The minimum size of a device after a node expansion to `required` bytes. Less than `required` only for volumes
    /// taken over from a driver that rounded sizes down but reported the requested size.
    fn minimum_device_size(&self, required: u64) -> u64 {
        required
    }
    /// Whether the user disabled formatting for this volume: only an existing file system is mounted.
    fn formatting_disabled(&self, volume: &NodeVolume) -> bool {
        let _ = volume;
        false
    }
    /// The format records of the volumes, if the backend can store them.
    fn format_records(&self) -> Option<&dyn FormatRecords> {
        None
    }
}

/// A durable record per volume of its format state: the second proof before a format.
#[async_trait]
pub trait FormatRecords: Send + Sync {
    /// Returns the record; `None` if the volume has no record, so that only the zero proof decides.
    async fn format(&self, id: &str) -> Result<Option<FormatState>, DeviceError>;
    /// Replaces the record. The change is durable when this returns.
    async fn set_format(&self, id: &str, format: &FormatState) -> Result<(), DeviceError>;
    /// Whether the file system of this volume was being grown offline when the last operation on it ended; see
    /// [`Self::set_growing_offline`].
    async fn is_growing_offline(&self, id: &str) -> Result<bool, DeviceError> {
        let _ = id;
        Ok(false)
    }
    /// Records that an offline growth of the file system of this volume starts, or that its result was checked. The change is
    /// durable when this returns. An interrupted resize2fs can leave damage that a check repairs only if it may discard data:
    /// the SDK allows that only with this record. Until it is cleared, the content of the volume must not be copied. By
    /// default nothing is recorded, and such a volume is refused.
    async fn set_growing_offline(&self, id: &str, growing: bool) -> Result<(), DeviceError> {
        let _ = (id, growing);
        Ok(())
    }
}

/// The node part of a share backend: a mount source (tmpfs, a directory, an NFS export) instead of a device.
#[async_trait]
pub trait Shares: Send + Sync + 'static {
    /// Returns the mount source of this volume. Called by NodeStageVolume, which mounts it, and by NodePublishVolume, which
    /// looks for the mount at the staging path and binds it. An error rejects the request.
    async fn source(&self, volume: &NodeVolume) -> Result<MountSource, DeviceError>;
    /// VOLUME_MOUNT_GROUP: whether this backend makes a volume usable for the group in
    /// [`MountAccess::mount_group`], usually with a `gid=` option of the mount source. Kubelet then passes the pod's
    /// fsGroup to the driver and does not change the owners of files itself. If this returns false, a request with a mount
    /// group is rejected.
    fn mount_group(&self) -> bool {
        false
    }
}

/// The node part of a backend that mounts each volume at the pods' targets itself, without staging. For storage on which a
/// file operation can block without end, such as NFS: the SDK makes no kernel call and runs no thread for such a backend, which
/// must end every call by a deadline of its own.
///
/// The SDK does not query [`Volumes`] in node calls: volumes that were created by hand, and inline volumes, are unknown
/// there. So the backend decides by the request alone. STAGE_UNSTAGE_VOLUME and EXPAND_VOLUME are not declared;
/// GET_VOLUME_HEALTH and GET_STORAGE_HEALTH are.
#[async_trait]
pub trait TargetMounts: Send + Sync + 'static {
    /// Mounts the volume at [`NodeVolume::target`], which is always set. A volume that is mounted there as requested is
    /// success.
    async fn publish(&self, volume: &NodeVolume) -> Result<(), TargetError>;
    /// Unmounts what is at the target and removes it; a missing target is success.
    async fn unpublish(&self, request: &UnpublishTarget) -> Result<(), TargetError>;
    /// Bytes and inodes of the volume at a path; [`TargetError::NotFound`] if no volume is mounted there.
    async fn usage(&self, request: &GetUsage) -> Result<FsUsage, TargetError>;
    /// Returns the issues of a volume on this node: an empty list if it is healthy, `None` if it is not on this node.
    async fn volume_health(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError>;
    /// Returns the issues of the storage system, as this node sees it.
    async fn storage_health(&self, request: &GetStorageHealth) -> Result<Vec<StorageIssue>, BackendError>;
}
