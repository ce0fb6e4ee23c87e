//! The SDK's backend traits, implemented by a pool. Each method runs on a thread that is allowed to block.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use wharf_driver::backend::{
    AvailableCapacity, BackendError, BlockRanges, Capability, Capacity, CapacityQuery, ChangedBlocks, Clones,
    CreateError, DeleteError, DeleteGroupSnapshot, DeleteSnapshot, DeleteVolume, Device, DeviceError,
    Devices, ExpandError, ExpandVolume, ExpandedVolume, Expansion, FormatRecords, FormatState,
    GetAllocatedBlocks, GetChangedBlocks, GetGroupSnapshot, GetSnapshot, GetStorageHealth, GetVolume,
    GetVolumeHealth, GroupSnapshot, GroupSnapshots, Health, HealthIssue, ListPage, ListSnapshots,
    ListVolumes, Listing, NewGroupSnapshot, NewSnapshot, NewVolume, NodeVolume, PublishError, PublishVolume,
    Publishing, RefreshDevice, Snapshot, SnapshotError, Snapshots, StorageIssue, UnpublishVolume, Volume,
    Volumes,
};

use crate::{Pool, parameters};

/// A pool behind the SDK's traits.
#[derive(Clone)]
pub struct LocalBackend {
    pool: Arc<Pool>,
}

impl LocalBackend {
    /// Serves `pool`.
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool }
    }

    /// Runs `work` on a blocking thread. Work that has started continues even if the caller is cancelled.
    async fn run<T, E>(&self, work: impl FnOnce(&Pool) -> Result<T, E> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<BackendError> + Send + 'static,
    {
        let pool = Arc::clone(&self.pool);
        match tokio::task::spawn_blocking(move || work(&pool)).await {
            Ok(result) => result,
            Err(error) => {
                Err(BackendError::Internal(format!("the operation did not complete: {error}")).into())
            }
        }
    }
}

#[async_trait]
impl Volumes for LocalBackend {
    async fn create(&self, wanted: &NewVolume) -> Result<Volume, CreateError> {
        let wanted = wanted.clone();
        self.run(move |pool| pool.create(&wanted)).await
    }

    async fn delete(&self, request: &DeleteVolume) -> Result<(), DeleteError> {
        let id = request.id.clone();
        self.run(move |pool| pool.delete(&id)).await
    }

    async fn get(&self, request: &GetVolume) -> Result<Option<Volume>, BackendError> {
        self.pool.get(&request.id)
    }

    fn refuses(&self, volume: Option<&Volume>, capability: &Capability) -> Option<String> {
        self.pool.refuses(volume.map(|volume| volume.id.as_str()), capability)
    }

    fn refuses_parameters(&self, parameters: &BTreeMap<String, String>) -> Option<String> {
        parameters::of_volume(parameters).err().map(|error| error.to_string())
    }
}

#[async_trait]
impl Listing for LocalBackend {
    async fn list(&self, request: &ListVolumes) -> Result<ListPage<Volume>, BackendError> {
        Ok(self.pool.list(request.after.as_deref(), request.max))
    }
}

#[async_trait]
impl Capacity for LocalBackend {
    async fn capacity(&self, query: &CapacityQuery) -> Result<AvailableCapacity, BackendError> {
        let query = query.clone();
        self.run(move |pool| pool.capacity(&query)).await
    }
}

#[async_trait]
impl Publishing for LocalBackend {
    async fn publish(&self, request: &PublishVolume) -> Result<BTreeMap<String, String>, PublishError> {
        let (id, node, read_only) = (request.id.clone(), request.node.clone(), request.read_only);
        self.run(move |pool| pool.publish(&id, &node, read_only)).await
    }

    async fn unpublish(&self, request: &UnpublishVolume) -> Result<(), PublishError> {
        let (id, node) = (request.id.clone(), request.node.clone());
        self.run(move |pool| pool.unpublish(&id, node.as_deref())).await
    }
}

#[async_trait]
impl Expansion for LocalBackend {
    async fn expand(&self, request: &ExpandVolume) -> Result<ExpandedVolume, ExpandError> {
        let (id, size) = (request.id.clone(), request.size);
        self.run(move |pool| pool.expand(&id, size)).await
    }

    fn online(&self) -> bool {
        true
    }
}

#[async_trait]
impl Snapshots for LocalBackend {
    async fn create_snapshot(&self, wanted: &NewSnapshot) -> Result<Snapshot, SnapshotError> {
        let wanted = wanted.clone();
        self.run(move |pool| pool.create_snapshot(&wanted)).await
    }

    async fn delete_snapshot(&self, request: &DeleteSnapshot) -> Result<(), DeleteError> {
        let id = request.id.clone();
        self.run(move |pool| pool.delete_snapshot(&id)).await
    }

    async fn get_snapshot(&self, request: &GetSnapshot) -> Result<Option<Snapshot>, BackendError> {
        self.pool.get_snapshot(&request.id)
    }

    async fn list_snapshots(&self, request: &ListSnapshots) -> Result<ListPage<Snapshot>, BackendError> {
        Ok(self.pool.list_snapshots(request.source.as_deref(), request.after.as_deref(), request.max))
    }
}

impl Clones for LocalBackend {}

#[async_trait]
impl GroupSnapshots for LocalBackend {
    async fn create_group(&self, wanted: &NewGroupSnapshot) -> Result<GroupSnapshot, SnapshotError> {
        let wanted = wanted.clone();
        self.run(move |pool| pool.create_group(&wanted)).await
    }

    async fn delete_group(&self, request: &DeleteGroupSnapshot) -> Result<(), DeleteError> {
        let id = request.id.clone();
        self.run(move |pool| pool.delete_group(&id)).await
    }

    async fn get_group(&self, request: &GetGroupSnapshot) -> Result<Option<GroupSnapshot>, BackendError> {
        self.pool.get_group(&request.id)
    }
}

#[async_trait]
impl ChangedBlocks for LocalBackend {
    async fn allocated(&self, request: &GetAllocatedBlocks) -> Result<BlockRanges, SnapshotError> {
        let (snapshot, from) = (request.snapshot.clone(), request.starting_offset);
        self.run(move |pool| pool.allocated_blocks(&snapshot, from)).await
    }

    async fn changed(&self, request: &GetChangedBlocks) -> Result<BlockRanges, SnapshotError> {
        let (base, target) = (request.base.clone(), request.target.clone());
        let from = request.starting_offset;
        self.run(move |pool| pool.changed_blocks(&base, &target, from)).await
    }
}

#[async_trait]
impl Health for LocalBackend {
    async fn volume_health(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        let id = request.id.clone();
        self.run(move |pool| pool.volume_health(&id)).await
    }

    async fn storage_health(&self, _: &GetStorageHealth) -> Result<Vec<StorageIssue>, BackendError> {
        self.run(|pool| pool.storage_health()).await
    }
}

#[async_trait]
impl Devices for LocalBackend {
    async fn attach(&self, volume: &NodeVolume) -> Result<Device, DeviceError> {
        let (id, capability) = (volume.id.clone(), volume.capability.clone());
        self.run(move |pool| pool.attach(&id, &capability)).await
    }

    async fn attach_reader(&self, id: &str) -> Result<Option<Device>, DeviceError> {
        let id = id.to_owned();
        self.run(move |pool| pool.attach_reader(&id)).await.map(Some)
    }

    async fn before_publish(&self, volume: &NodeVolume) -> Result<(), DeviceError> {
        let (id, capability) = (volume.id.clone(), volume.capability.clone());
        self.run(move |pool| pool.before_publish(&id, &capability)).await
    }

    async fn find(&self, id: &str) -> Result<Option<Device>, DeviceError> {
        let id = id.to_owned();
        self.run(move |pool| pool.find(&id)).await
    }

    async fn detach(&self, id: &str) -> Result<(), DeviceError> {
        let id = id.to_owned();
        self.run(move |pool| pool.detach(&id)).await
    }

    async fn refresh(&self, request: &RefreshDevice) -> Result<Device, DeviceError> {
        let id = request.id.clone();
        self.run(move |pool| pool.refresh(&id)).await
    }

    fn format_records(&self) -> Option<&dyn FormatRecords> {
        Some(self)
    }
}

#[async_trait]
impl FormatRecords for LocalBackend {
    async fn format(&self, id: &str) -> Result<Option<FormatState>, DeviceError> {
        self.pool.format(id).map(Some)
    }

    async fn set_format(&self, id: &str, format: &FormatState) -> Result<(), DeviceError> {
        let (id, format) = (id.to_owned(), format.clone());
        self.run(move |pool| pool.set_format(&id, &format)).await
    }

    async fn is_growing_offline(&self, id: &str) -> Result<bool, DeviceError> {
        self.pool.is_growing_offline(id)
    }

    async fn set_growing_offline(&self, id: &str, growing: bool) -> Result<(), DeviceError> {
        let id = id.to_owned();
        self.run(move |pool| pool.set_growing_offline(&id, growing)).await
    }
}
