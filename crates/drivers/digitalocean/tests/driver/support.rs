//! A fake API, a driver on it, and helpers for CSI calls.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::{Code, Status};
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};
use wharf_csi::v1::{self, VolumeCapability};
use wharf_csi::{Client, Endpoint};
use wharf_driver::ServeOptions;
use wharf_driver_digitalocean::actions::PollingOptions;
use wharf_driver_digitalocean::{
    Account, ClientOptions, Config, ControllerBackend, DRIVER_NAME, Token, driver,
};
use wharf_fake_digitalocean::{FakeDigitalOcean, FakeOptions};
use wharf_linux::{Linux, Mounts as _};

pub(crate) const GIB: i64 = 1 << 30;
pub(crate) const REGION: &str = "nyc3";
pub(crate) const TOKEN: &str = "dop_v1_of_a_test";
/// The droplet that the driver is on.
pub(crate) const HERE: u64 = 101;
/// Another one.
pub(crate) const THERE: u64 = 102;

/// A running driver; dropping it removes all its mounts.
pub(crate) struct Bench {
    pub(crate) fake: FakeDigitalOcean,
    pub(crate) config: Config,
    endpoint: Endpoint,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    root: PathBuf,
    _dir: TempDir,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    /// With a changed driver configuration.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut bench = Self::without_driver().await;
        change(&mut bench.config);
        bench.run().await;
        bench
    }

    /// With only the fake API.
    pub(crate) async fn without_driver() -> Self {
        let dir = tempfile::Builder::new().prefix("wharf-do-").tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        // Kubelet's directory.
        for name in ["stage", "pods"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let mut options = FakeOptions::new().droplet(HERE, REGION).droplet(THERE, REGION).token(TOKEN);
        options.state = Some(root.join("cloud"));
        options.attach_real = Some(root.join("links"));
        let options = options.settings(|settings| {
            settings.action_delay_ms = 100;
            settings.device_delay_ms = 100;
            settings.snapshot_interval_ms = 0;
            settings.requests_per_minute = 0;
            settings.requests_per_hour = 0;
        });
        let fake = FakeDigitalOcean::start(options).await.unwrap();
        Self { fake, config: config(&root), endpoint: endpoint(&root), running: None, root, _dir: dir }
    }

    pub(crate) fn client(&self) -> wharf_driver_digitalocean::Client {
        cloud(&self.fake.url()).client
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    async fn run(&mut self) {
        let cloud = cloud(&self.fake.url());
        let driver = driver(Arc::new(Linux::new()), Some(cloud), self.config.clone()).unwrap();
        let endpoint = self.endpoint.clone();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let until = async {
                stopped.await.ok();
            };
            driver.serve(&endpoint, ServeOptions::default(), until).await.unwrap();
        });
        self.running = Some((stop, task));
        while self.call(v1::NodeGetInfoRequest {}).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the driver and starts another one.
    pub(crate) async fn restart(&mut self) {
        let (stop, task) = self.running.take().unwrap();
        stop.send(()).unwrap();
        task.await.unwrap();
        self.run().await;
    }

    pub(crate) fn staging(&self, id: &str) -> PathBuf {
        self.root.join("stage").join(id)
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.root.join("pods").join(name)
    }

    /// The number of volume records on this node.
    pub(crate) fn record_count(&self) -> usize {
        std::fs::read_dir(&self.config.state_dir).unwrap().count()
    }

    pub(crate) async fn call<R: Call>(&self, request: R) -> Result<R::Response, Status> {
        request.call(Client::new(&self.endpoint)).await
    }

    pub(crate) async fn create(&self, name: &str, bytes: i64) -> Result<v1::Volume, Status> {
        Ok(self.call(new_volume(name, bytes)).await?.volume.unwrap())
    }

    pub(crate) async fn delete(&self, id: &str) -> Result<(), Status> {
        self.call(v1::DeleteVolumeRequest { volume_id: id.into(), ..Default::default() }).await.map(drop)
    }

    pub(crate) async fn attach(&self, id: &str, node: &str) -> Result<BTreeMap<String, String>, Status> {
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: id.into(),
            node_id: node.into(),
            volume_capability: Some(mount("")),
            ..Default::default()
        };
        Ok(self.call(request).await?.publish_context)
    }

    pub(crate) async fn detach(&self, id: &str, node: &str) -> Result<(), Status> {
        let (volume_id, node_id) = (id.into(), node.into());
        let request = v1::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        self.call(request).await.map(drop)
    }

    pub(crate) async fn expand(&self, id: &str, bytes: i64) -> Result<i64, Status> {
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: id.into(),
            capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        Ok(self.call(request).await?.capacity_bytes)
    }

    pub(crate) async fn expand_on_node(&self, id: &str, bytes: i64) -> Result<i64, Status> {
        let request = v1::NodeExpandVolumeRequest {
            volume_id: id.into(),
            volume_path: text(&self.staging(id)),
            capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        Ok(self.call(request).await?.capacity_bytes)
    }

    pub(crate) async fn snapshot(&self, name: &str, source: &str) -> Result<v1::Snapshot, Status> {
        let (name, source_volume_id) = (name.into(), source.into());
        let request = v1::CreateSnapshotRequest { name, source_volume_id, ..Default::default() };
        Ok(self.call(request).await?.snapshot.unwrap())
    }

    pub(crate) async fn delete_snapshot(&self, id: &str) -> Result<(), Status> {
        self.call(v1::DeleteSnapshotRequest { snapshot_id: id.into(), ..Default::default() }).await.map(drop)
    }

    pub(crate) async fn stage(
        &self,
        id: &str,
        capability: &VolumeCapability,
        publish_context: BTreeMap<String, String>,
    ) -> Result<(), Status> {
        self.stage_with(id, capability, publish_context, BTreeMap::new()).await
    }

    pub(crate) async fn stage_with(
        &self,
        id: &str,
        capability: &VolumeCapability,
        publish_context: BTreeMap<String, String>,
        volume_context: BTreeMap<String, String>,
    ) -> Result<(), Status> {
        let request = v1::NodeStageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: text(&self.staging(id)),
            volume_capability: Some(capability.clone()),
            publish_context,
            volume_context,
            ..Default::default()
        };
        self.call(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self, id: &str) -> Result<(), Status> {
        let staging_target_path = text(&self.staging(id));
        self.call(v1::NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path }).await.map(drop)
    }

    pub(crate) async fn publish(
        &self,
        id: &str,
        target: &str,
        capability: &VolumeCapability,
        publish_context: BTreeMap<String, String>,
    ) -> Result<(), Status> {
        let request = v1::NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: text(&self.staging(id)),
            target_path: text(&self.target(target)),
            volume_capability: Some(capability.clone()),
            publish_context,
            ..Default::default()
        };
        self.call(request).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, id: &str, target: &str) -> Result<(), Status> {
        let target_path = text(&self.target(target));
        self.call(v1::NodeUnpublishVolumeRequest { volume_id: id.into(), target_path }).await.map(drop)
    }

    pub(crate) async fn stats(&self, id: &str, path: &Path) -> Result<Vec<v1::VolumeUsage>, Status> {
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: id.into(),
            volume_path: text(path),
            ..Default::default()
        };
        Ok(self.call(request).await?.usage)
    }

    /// Waits for a volume's device and returns it.
    pub(crate) async fn device(&self, name: &str) -> PathBuf {
        let link = self.config.device_dir.join(format!("scsi-0DO_Volume_{name}"));
        for _ in 0..500 {
            if let Ok(device) = link.canonicalize() {
                return device;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{} did not appear", link.display());
    }

    /// The number of matching requests.
    pub(crate) fn request_count(&self, method: &str, path: &str) -> usize {
        let fits = |path_seen: &str| match path.split_once('*') {
            Some((head, tail)) => path_seen.starts_with(head) && path_seen.ends_with(tail),
            None => path_seen == path,
        };
        self.fake.requests().iter().filter(|seen| seen.method == method && fits(&seen.path)).count()
    }

    /// Asserts that nothing is left in the API or on the node.
    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        let state = self.fake.state();
        assert!(state.volumes.is_empty(), "{:?}", state.volumes);
        assert!(state.snapshots.is_empty(), "{:?}", state.snapshots);
        assert_eq!(self.record_count(), 0, "records of deleted volumes remain");
        let table = Linux::new().mount_table().unwrap();
        let left: Vec<_> =
            table.mounts().iter().filter(|mount| mount.mount_point.starts_with(&self.root)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let kernel = Linux::new();
        let table = kernel.mount_table().unwrap();
        for mount in table.mounts().iter().rev().filter(|mount| mount.mount_point.starts_with(&self.root)) {
            let unmounted = kernel.unmount(&mount.mount_point);
            if !std::thread::panicking() {
                unmounted.unwrap();
            }
        }
        // The fake, which is dropped next, detaches the devices.
    }
}

/// The driver's endpoint.
pub(crate) fn endpoint(root: &Path) -> Endpoint {
    format!("unix://{}", root.join("csi.sock").display()).parse().unwrap()
}

/// The driver's configuration.
pub(crate) fn config(root: &Path) -> Config {
    Config {
        driver_name: DRIVER_NAME.to_owned(),
        region: REGION.to_owned(),
        droplet: Some(HERE),
        volume_limit: 7,
        tag: None,
        device_dir: root.join("links").join(HERE.to_string()),
        state_dir: root.join("records"),
    }
}

/// API access with shorter intervals and timeouts than for DigitalOcean.
pub(crate) fn cloud(url: &str) -> ControllerBackend {
    let mut options = ClientOptions::new(url, Token::fixed(TOKEN).unwrap());
    options.timeout = Duration::from_secs(5);
    options.requests_per_minute = 1_000_000;
    let client = wharf_driver_digitalocean::Client::new(options).unwrap();
    let polling = PollingOptions {
        timeout: Duration::from_secs(30),
        initial_interval: Duration::from_millis(50),
        max_interval: Duration::from_millis(200),
    };
    ControllerBackend { account: Account::new(client.clone()), client, polling }
}

/// A request and how it is sent.
pub(crate) trait Call {
    type Response;
    fn call(self, client: Client) -> impl Future<Output = Result<Self::Response, Status>>;
}

macro_rules! calls {
    ($($service:ident.$method:ident: $request:ident -> $response:ident;)*) => {
        $(impl Call for v1::$request {
            type Response = v1::$response;
            async fn call(self, client: Client) -> Result<v1::$response, Status> {
                Ok(client.$service().$method(self).await?.into_inner())
            }
        })*
    };
}

calls! {
    controller.create_volume: CreateVolumeRequest -> CreateVolumeResponse;
    controller.delete_volume: DeleteVolumeRequest -> DeleteVolumeResponse;
    controller.controller_publish_volume: ControllerPublishVolumeRequest -> ControllerPublishVolumeResponse;
    controller.controller_unpublish_volume: ControllerUnpublishVolumeRequest -> ControllerUnpublishVolumeResponse;
    controller.controller_expand_volume: ControllerExpandVolumeRequest -> ControllerExpandVolumeResponse;
    controller.create_snapshot: CreateSnapshotRequest -> CreateSnapshotResponse;
    controller.delete_snapshot: DeleteSnapshotRequest -> DeleteSnapshotResponse;
    controller.controller_list_volume_health: ControllerListVolumeHealthRequest -> ControllerListVolumeHealthResponse;
    controller.list_volumes: ListVolumesRequest -> ListVolumesResponse;
    controller.list_snapshots: ListSnapshotsRequest -> ListSnapshotsResponse;
    node.node_stage_volume: NodeStageVolumeRequest -> NodeStageVolumeResponse;
    node.node_unstage_volume: NodeUnstageVolumeRequest -> NodeUnstageVolumeResponse;
    node.node_publish_volume: NodePublishVolumeRequest -> NodePublishVolumeResponse;
    node.node_unpublish_volume: NodeUnpublishVolumeRequest -> NodeUnpublishVolumeResponse;
    node.node_get_volume_stats: NodeGetVolumeStatsRequest -> NodeGetVolumeStatsResponse;
    node.node_expand_volume: NodeExpandVolumeRequest -> NodeExpandVolumeResponse;
    node.node_get_info: NodeGetInfoRequest -> NodeGetInfoResponse;
}

pub(crate) fn new_volume(name: &str, bytes: i64) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![mount("")],
        ..Default::default()
    }
}

pub(crate) fn restored(name: &str, bytes: i64, snapshot: &str) -> v1::CreateVolumeRequest {
    use v1::volume_content_source::{SnapshotSource, Type};

    let source = Type::Snapshot(SnapshotSource { snapshot_id: snapshot.into() });
    let volume_content_source = Some(v1::VolumeContentSource { r#type: Some(source) });
    v1::CreateVolumeRequest { volume_content_source, ..new_volume(name, bytes) }
}

pub(crate) fn mount(fs_type: &str) -> VolumeCapability {
    let volume = MountVolume { fs_type: fs_type.into(), ..Default::default() };
    VolumeCapability {
        access_type: Some(AccessType::Mount(volume)),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

pub(crate) fn block() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(response: Result<T, Status>, code: Code, message: &str) {
    let status = response.expect_err("the call should have been refused");
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(message), "expected {message:?} in {status}");
}
