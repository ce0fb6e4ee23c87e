//! An in-memory backend that implements all traits, and a driver that serves it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use async_trait::async_trait;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use wharf_csi::{Client, Endpoint};
use wharf_driver::backend::*;
use wharf_driver::{Driver, DriverBuilder, ServeOptions};

#[derive(Default)]
struct State {
    volumes: BTreeMap<String, Volume>,
    snapshots: BTreeMap<String, Snapshot>,
    groups: BTreeMap<String, GroupSnapshot>,
}

/// The backend. Creating a volume adds a permit to `started` and waits for one of `gate`.
pub(crate) struct Memory {
    state: Mutex<State>,
    started: Semaphore,
    pub(crate) gate: Semaphore,
    /// Added to the id of everything that is created.
    pub(crate) id_suffix: Mutex<String>,
    /// The last request to take a snapshot.
    pub(crate) new_snapshot: Mutex<Option<NewSnapshot>>,
    /// The secrets of the last request to each method.
    pub(crate) secrets: Mutex<BTreeMap<&'static str, Secrets>>,
}

impl Memory {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_permits(Semaphore::MAX_PERMITS)
    }

    /// A backend whose creates wait for permits.
    pub(crate) fn gated() -> Arc<Self> {
        Self::with_permits(0)
    }

    fn with_permits(permits: usize) -> Arc<Self> {
        let (started, gate) = (Semaphore::new(0), Semaphore::new(permits));
        let (state, id_suffix, new_snapshot, secrets) = Default::default();
        Arc::new(Self { state, started, gate, id_suffix, new_snapshot, secrets })
    }

    /// Waits until one more create has started.
    pub(crate) async fn wait_for_create(&self) {
        self.started.acquire().await.unwrap().forget();
    }

    fn note(&self, method: &'static str, secrets: &Secrets) {
        self.secrets.lock().unwrap().insert(method, secrets.clone());
    }

    fn new_id(&self, prefix: &str, name: &str) -> String {
        let name: String = name.escape_default().to_string().chars().take(100).collect();
        format!("{prefix}-{name}{}", self.id_suffix.lock().unwrap())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn insert(&self, id: &str) {
        let volume = Volume { id: id.to_owned(), capacity: 1 << 20, ..Volume::default() };
        self.state().volumes.insert(id.to_owned(), volume);
    }

    pub(crate) fn remove(&self, id: &str) {
        self.state().volumes.remove(id);
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.state().volumes.contains_key(id)
    }

    /// A driver with all traits.
    pub(crate) fn driver(self: &Arc<Self>) -> DriverBuilder {
        Driver::new("memory.test.wharf.dev", "1.2.3")
            .unwrap()
            .volumes(self.clone())
            .listing(self.clone())
            .capacity(self.clone())
            .publishing(self.clone())
            .expansion(self.clone())
            .snapshots(self.clone())
            .clones(self.clone())
            .group_snapshots(self.clone())
            .changed_blocks(self.clone())
            .health(self.clone())
            .mutable(self.clone())
    }
}

/// A driver that is served until it is stopped or dropped.
pub(crate) struct Served {
    pub(crate) client: Client,
    pub(crate) endpoint: Endpoint,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Served {
    pub(crate) async fn start(driver: DriverBuilder, options: ServeOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let endpoint: Endpoint = dir.path().join("csi.sock").to_str().unwrap().parse().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let at = endpoint.clone();
        let server = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
            };
            driver.build().serve(&at, options, stopped).await.unwrap();
        });
        while !endpoint.path().exists() {
            tokio::task::yield_now().await;
        }
        Self { client: Client::new(&endpoint), endpoint, stop: Some(stop), server, _dir: dir }
    }

    /// Signals the driver to stop.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Stops the driver and waits until it has stopped.
    pub(crate) async fn stopped(mut self) {
        self.stop();
        self.server.await.unwrap();
    }
}

fn page<T: Clone>(
    all: &BTreeMap<String, T>,
    after: Option<&str>,
    max: usize,
    keep: impl Fn(&T) -> bool,
) -> ListPage<T> {
    let after = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut rest =
        all.range::<str, _>((after, Bound::Unbounded)).map(|(_, entry)| entry).filter(|entry| keep(entry));
    let entries = rest.by_ref().take(max).cloned().collect();
    ListPage { entries, more: rest.next().is_some() }
}

#[async_trait]
impl Volumes for Memory {
    async fn create(&self, request: &NewVolume) -> Result<Volume, CreateError> {
        self.note("create", &request.secrets);
        self.started.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
        let mut state = self.state();
        let gone = |id: &str| CreateError::NotFound(format!("{id} does not exist"));
        let smallest = match &request.source {
            Some(VolumeContentSource::Snapshot(id)) => state.snapshots.get(id).ok_or_else(|| gone(id))?.size,
            Some(VolumeContentSource::Volume(id)) => state.volumes.get(id).ok_or_else(|| gone(id))?.capacity,
            None => 0,
        };
        let capacity = request.size.choose(smallest.max(1 << 20), 512).filter(|size| *size >= smallest);
        let capacity = capacity.ok_or_else(|| CreateError::OutOfRange("no such size".into()))?;
        let id = self.new_id("v", &request.name);
        let source = request.source.clone();
        let volume = Volume { id: id.clone(), capacity, source, ..Volume::default() };
        Ok(state.volumes.entry(id).or_insert(volume).clone())
    }

    async fn delete(&self, request: &DeleteVolume) -> Result<(), DeleteError> {
        self.note("delete", &request.secrets);
        self.state().volumes.remove(&request.id);
        Ok(())
    }

    async fn get(&self, request: &GetVolume) -> Result<Option<Volume>, BackendError> {
        self.note("get", &request.secrets);
        assert!(request.id != "panic", "on purpose");
        Ok(self.state().volumes.get(&request.id).cloned())
    }

    fn refuses(&self, _: Option<&Volume>, capability: &Capability) -> Option<String> {
        (!capability.mode.is_single_node()).then(|| "one node only".into())
    }

    fn refuses_parameters(&self, parameters: &BTreeMap<String, String>) -> Option<String> {
        parameters.contains_key("bad").then(|| "a bad parameter".into())
    }
}

#[async_trait]
impl Listing for Memory {
    async fn list(&self, request: &ListVolumes) -> Result<ListPage<Volume>, BackendError> {
        Ok(page(&self.state().volumes, request.after.as_deref(), request.max, |_| true))
    }
}

#[async_trait]
impl Capacity for Memory {
    async fn capacity(&self, _: &CapacityQuery) -> Result<AvailableCapacity, BackendError> {
        Ok(AvailableCapacity { available: 1 << 40, maximum_volume: Some(1 << 30), minimum_volume: None })
    }
}

#[async_trait]
impl Publishing for Memory {
    async fn publish(&self, request: &PublishVolume) -> Result<BTreeMap<String, String>, PublishError> {
        self.note("publish", &request.secrets);
        let PublishVolume { id, node, read_only, .. } = request;
        let mut state = self.state();
        let volume = state.volumes.get_mut(id).ok_or_else(|| PublishError::NotFound(id.to_owned()))?;
        match volume.published_nodes.first() {
            Some(other) if other != node => return Err(PublishError::InUse(format!("{id} is on {other}"))),
            Some(_) if *read_only => {
                return Err(PublishError::Incompatible(format!("{id} is writable there")));
            }
            _ => volume.published_nodes = vec![node.to_owned()],
        }
        Ok(BTreeMap::from([("device".to_owned(), "/dev/x".to_owned())]))
    }

    async fn unpublish(&self, request: &UnpublishVolume) -> Result<(), PublishError> {
        self.note("unpublish", &request.secrets);
        if let Some(volume) = self.state().volumes.get_mut(&request.id) {
            volume.published_nodes.retain(|at| request.node.as_ref().is_some_and(|node| at != node));
        }
        Ok(())
    }
}

#[async_trait]
impl Expansion for Memory {
    async fn expand(&self, request: &ExpandVolume) -> Result<ExpandedVolume, ExpandError> {
        self.note("expand", &request.secrets);
        let ExpandVolume { id, size, .. } = request;
        let mut state = self.state();
        let volume = state.volumes.get_mut(id).ok_or_else(|| ExpandError::NotFound(id.to_owned()))?;
        let wanted = SizeRange { required: size.required.max(volume.capacity), ..*size };
        let capacity = wanted.choose(volume.capacity, 512);
        volume.capacity = capacity.ok_or_else(|| ExpandError::OutOfRange("no such size".into()))?;
        Ok(ExpandedVolume { capacity: volume.capacity, node_expansion_required: true })
    }

    fn online(&self) -> bool {
        true
    }
}

fn snapshot_of(id: String, source: &Volume, group: Option<String>) -> Snapshot {
    let (size, created) = (source.capacity, SystemTime::UNIX_EPOCH);
    Snapshot { id, source: source.id.clone(), size, created, ready_to_use: true, group, topology: vec![] }
}

#[async_trait]
impl Snapshots for Memory {
    async fn create_snapshot(&self, request: &NewSnapshot) -> Result<Snapshot, SnapshotError> {
        self.note("create_snapshot", &request.secrets);
        *self.new_snapshot.lock().unwrap() = Some(request.clone());
        let mut state = self.state();
        let source = state.volumes.get(&request.source).cloned();
        let source = source.ok_or_else(|| SnapshotError::NotFound(request.source.clone()))?;
        let id = self.new_id("s", &request.name);
        Ok(state.snapshots.entry(id.clone()).or_insert_with(|| snapshot_of(id, &source, None)).clone())
    }

    async fn delete_snapshot(&self, request: &DeleteSnapshot) -> Result<(), DeleteError> {
        self.note("delete_snapshot", &request.secrets);
        let id = &request.id;
        let mut state = self.state();
        if state.snapshots.get(id).is_some_and(|snapshot| snapshot.group.is_some()) {
            return Err(DeleteError::GroupMember(format!("{id} belongs to a group")));
        }
        state.snapshots.remove(id);
        Ok(())
    }

    async fn get_snapshot(&self, request: &GetSnapshot) -> Result<Option<Snapshot>, BackendError> {
        self.note("get_snapshot", &request.secrets);
        Ok(self.state().snapshots.get(&request.id).cloned())
    }

    async fn list_snapshots(&self, request: &ListSnapshots) -> Result<ListPage<Snapshot>, BackendError> {
        self.note("list_snapshots", &request.secrets);
        let wanted =
            |snapshot: &Snapshot| request.source.as_ref().is_none_or(|source| *source == snapshot.source);
        Ok(page(&self.state().snapshots, request.after.as_deref(), request.max, wanted))
    }
}

impl Clones for Memory {}

#[async_trait]
impl GroupSnapshots for Memory {
    async fn create_group(&self, request: &NewGroupSnapshot) -> Result<GroupSnapshot, SnapshotError> {
        self.note("create_group", &request.secrets);
        let mut state = self.state();
        let id = self.new_id("g", &request.name);
        if let Some(group) = state.groups.get(&id) {
            return Ok(group.clone());
        }
        let mut snapshots = Vec::new();
        for source in &request.sources {
            let volume = state.volumes.get(source).ok_or_else(|| SnapshotError::NotFound(source.clone()))?;
            snapshots.push(snapshot_of(format!("s-{id}-{}", snapshots.len()), volume, Some(id.clone())));
        }
        state.snapshots.extend(snapshots.iter().map(|snapshot| (snapshot.id.clone(), snapshot.clone())));
        let group = GroupSnapshot { id: id.clone(), created: SystemTime::UNIX_EPOCH, snapshots };
        state.groups.insert(id, group.clone());
        Ok(group)
    }

    async fn delete_group(&self, request: &DeleteGroupSnapshot) -> Result<(), DeleteError> {
        self.note("delete_group", &request.secrets);
        let mut state = self.state();
        state.snapshots.retain(|_, snapshot| snapshot.group.as_ref() != Some(&request.id));
        state.groups.remove(&request.id);
        Ok(())
    }

    async fn get_group(&self, request: &GetGroupSnapshot) -> Result<Option<GroupSnapshot>, BackendError> {
        self.note("get_group", &request.secrets);
        Ok(self.state().groups.get(&request.id).cloned())
    }
}

#[async_trait]
impl ChangedBlocks for Memory {
    async fn allocated(&self, request: &GetAllocatedBlocks) -> Result<BlockRanges, SnapshotError> {
        self.note("allocated", &request.secrets);
        let snapshot = &request.snapshot;
        let size = self.state().snapshots.get(snapshot).map(|snapshot| snapshot.size);
        let volume_size = size.ok_or_else(|| SnapshotError::NotFound(snapshot.to_owned()))?;
        // Every second block of 512 bytes.
        let ranges = (0..volume_size / 1024).map(|n| BlockRange { offset: n * 1024, length: 512 }).collect();
        Ok(BlockRanges { volume_size, ranges })
    }

    async fn changed(&self, request: &GetChangedBlocks) -> Result<BlockRanges, SnapshotError> {
        self.note("changed", &request.secrets);
        self.allocated(&GetAllocatedBlocks::new(request.base.clone())).await?;
        self.allocated(&GetAllocatedBlocks::new(request.target.clone())).await
    }
}

#[async_trait]
impl Health for Memory {
    /// Volumes whose id ends with `7` are degraded.
    async fn volume_health(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        self.note("volume_health", &request.secrets);
        let id = request.id.as_str();
        let issue =
            || HealthIssue { status: HealthStatus::Degraded, reason: "Seven".into(), message: id.into() };
        Ok(self.has(id).then(|| if id.ends_with('7') { vec![issue()] } else { vec![] }))
    }

    async fn storage_health(&self, request: &GetStorageHealth) -> Result<Vec<StorageIssue>, BackendError> {
        self.note("storage_health", &request.secrets);
        Ok(vec![])
    }
}

#[async_trait]
impl Mutable for Memory {
    async fn modify(&self, request: &ModifyVolume) -> Result<(), CreateError> {
        self.note("modify", &request.secrets);
        match request.parameters.contains_key("bad") {
            true => Err(CreateError::Invalid("a bad parameter".into())),
            false => Ok(()),
        }
    }
}
