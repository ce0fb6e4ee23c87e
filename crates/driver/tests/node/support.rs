//! A driver under test and its client, with directories to mount on.

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
use wharf_driver::backend::Shares;
use wharf_driver::{Driver, NodeInfo, ServeOptions};
use wharf_linux::{BlockDevices as _, Kernel, Linux, Mount, Mounts as _};

use crate::images::Images;

pub(crate) const MIB: u64 = 1 << 20;

/// A running driver; dropping it removes everything that it mounted or attached.
pub(crate) struct Bench {
    pub(crate) images: Arc<Images>,
    shares: Option<Arc<dyn Shares>>,
    endpoint: Endpoint,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    root: PathBuf,
    _dir: TempDir,
}

impl Bench {
    /// With a block backend that has format records.
    pub(crate) async fn new() -> Self {
        Self::start(true, None).await
    }

    /// With a block backend that has no format records.
    pub(crate) async fn without_records() -> Self {
        Self::start(false, None).await
    }

    /// With a share backend.
    pub(crate) async fn with_shares(shares: Arc<dyn Shares>) -> Self {
        Self::start(true, Some(shares)).await
    }

    async fn start(has_records: bool, shares: Option<Arc<dyn Shares>>) -> Self {
        let dir = tempfile::Builder::new().prefix("wharf-node-").tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["images", "stage", "pods"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let images = Arc::new(Images::new(&root.join("images"), has_records));
        let endpoint: Endpoint = format!("unix://{}", root.join("csi.sock").display()).parse().unwrap();
        let mut bench = Self { images, shares, endpoint, running: None, root, _dir: dir };
        bench.run().await;
        bench
    }

    async fn run(&mut self) {
        let kernel: Arc<dyn Kernel> = Arc::new(Linux::new());
        let info = NodeInfo { node_id: "n1".into(), max_volumes: 7 };
        let driver = Driver::new("test.csi.wharf.dev", "0").unwrap();
        let driver = match &self.shares {
            Some(shares) => driver.share_node(kernel, shares.clone(), info),
            None => driver.block_node(kernel, self.images.clone(), info).health(self.images.clone()),
        };
        let (driver, endpoint) = (driver.build(), self.endpoint.clone());
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn staging(&self, id: &str) -> PathBuf {
        self.path("stage").join(id)
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.path("pods").join(name)
    }

    /// What is mounted at a path.
    pub(crate) fn mount_at(&self, path: &Path) -> Option<Mount> {
        Linux::new().mount_table().unwrap().at(path).cloned()
    }

    pub(crate) async fn call<R: Call>(&self, request: R) -> Result<R::Response, Status> {
        request.call(Client::new(&self.endpoint)).await
    }

    pub(crate) async fn stage(&self, id: &str, capability: &VolumeCapability) -> Result<(), Status> {
        let request = v1::NodeStageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: text(&self.staging(id)),
            volume_capability: Some(capability.clone()),
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
        readonly: bool,
    ) -> Result<(), Status> {
        let request = v1::NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: text(&self.staging(id)),
            target_path: text(&self.target(target)),
            volume_capability: Some(capability.clone()),
            readonly,
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
}

impl Drop for Bench {
    fn drop(&mut self) {
        let kernel = Linux::new();
        let mut problems = Vec::new();
        let table = kernel.mount_table().unwrap();
        for mount in table.mounts().iter().rev().filter(|mount| mount.mount_point.starts_with(&self.root)) {
            problems.extend(kernel.unmount(&mount.mount_point).err());
        }
        for entry in std::fs::read_dir(self.path("images")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(device) = self.images.device(&name) {
                problems.extend(kernel.loop_detach(&device.path, Some(device.backing)).err());
            }
        }
        if !std::thread::panicking() {
            assert!(problems.is_empty(), "{problems:?}");
        }
    }
}

/// A request of the Node service and how it is sent.
pub(crate) trait Call {
    type Response;
    fn call(self, client: Client) -> impl Future<Output = Result<Self::Response, Status>>;
}

macro_rules! calls {
    ($($method:ident: $request:ident -> $response:ident;)*) => {
        $(impl Call for v1::$request {
            type Response = v1::$response;
            async fn call(self, client: Client) -> Result<v1::$response, Status> {
                Ok(client.node().$method(self).await?.into_inner())
            }
        })*
    };
}

calls! {
    node_stage_volume: NodeStageVolumeRequest -> NodeStageVolumeResponse;
    node_unstage_volume: NodeUnstageVolumeRequest -> NodeUnstageVolumeResponse;
    node_publish_volume: NodePublishVolumeRequest -> NodePublishVolumeResponse;
    node_unpublish_volume: NodeUnpublishVolumeRequest -> NodeUnpublishVolumeResponse;
    node_get_volume_stats: NodeGetVolumeStatsRequest -> NodeGetVolumeStatsResponse;
    node_get_volume_health: NodeGetVolumeHealthRequest -> NodeGetVolumeHealthResponse;
    node_get_storage_health: NodeGetStorageHealthRequest -> NodeGetStorageHealthResponse;
    node_expand_volume: NodeExpandVolumeRequest -> NodeExpandVolumeResponse;
    node_get_capabilities: NodeGetCapabilitiesRequest -> NodeGetCapabilitiesResponse;
    node_get_info: NodeGetInfoRequest -> NodeGetInfoResponse;
}

/// A mount with this file system type (empty for the default), for writers on one node.
pub(crate) fn mount(fs_type: &str) -> VolumeCapability {
    mount_with(fs_type, &[], Mode::SingleNodeMultiWriter)
}

pub(crate) fn mount_with(fs_type: &str, flags: &[&str], mode: Mode) -> VolumeCapability {
    let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let volume = MountVolume { fs_type: fs_type.into(), mount_flags, ..Default::default() };
    VolumeCapability {
        access_type: Some(AccessType::Mount(volume)),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn block(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Runs a program that must succeed, and returns its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[track_caller]
pub(crate) fn refused(result: Result<(), Status>, code: Code, message: &str) {
    let status = result.expect_err("the call must fail");
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(message), "{:?} is not in {status}", message);
}
