//! A minimal orchestrator: calls a driver as kubelet and the sidecars do, with kubelet's kind of paths. Like them
//! it retries a call until it succeeds, even if the driver crashes meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tonic::{Code, Status};
use wharf_csi::v1::volume_capability::MountVolume;
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_csi::v1::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};
use wharf_csi::v1::*;
use wharf_csi::{Client, Endpoint, volume_capability};

use crate::driver::{DriverOptions, TestDriver};

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// A driver under test and its caller.
pub struct Orchestrator {
    /// The driver.
    pub driver: TestDriver,
    /// The options for a restart after a crash.
    pub restart_with: DriverOptions,
    /// The number of crashes so far.
    pub crashes: usize,
    client: Client,
    work: PathBuf,
}

/// A volume capability: `""` is raw block, anything else the file system type.
pub fn capability(fs_type: &str, mode: Mode) -> VolumeCapability {
    let mount = MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
    volume_capability(mode, (!fs_type.is_empty()).then_some(mount))
}

/// A content source, by snapshot or volume ID.
pub fn source(id: &str) -> VolumeContentSource {
    let id = id.to_owned();
    let source = match id.starts_with("snap-") {
        true => SourceType::Snapshot(SnapshotSource { snapshot_id: id }),
        false => SourceType::Volume(VolumeSource { volume_id: id }),
    };
    VolumeContentSource { r#type: Some(source) }
}

impl Orchestrator {
    /// Starts a driver on `pool`; sockets, staging and target paths lie in `work`.
    pub fn start(program: &Path, pool: &Path, work: &Path, options: &DriverOptions) -> Self {
        let driver = TestDriver::start(program, pool, work, options);
        let endpoint: Endpoint = format!("unix://{}", driver.socket().display())
            .parse()
            .expect("the socket path is a valid endpoint");
        let client = Client::new(&endpoint).with_deadline(Duration::from_secs(60));
        let restart_with = DriverOptions { crash_after: None, ..options.clone() };
        Self { driver, restart_with, crashes: 0, client, work: work.to_owned() }
    }

    /// The client, for calls that are allowed to fail.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Retries a call for at most a minute: restarts an exited driver, and repeats the call on ABORTED and
    /// UNAVAILABLE. Any other error fails the test.
    pub async fn retry_until_ok<R: Clone, T>(
        &mut self,
        what: &str,
        request: R,
        call: impl AsyncFn(Client, R) -> Result<tonic::Response<T>, Status>,
    ) -> T {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let status = match call(self.client.clone(), request.clone()).await {
                Ok(response) => return response.into_inner(),
                Err(status) => status,
            };
            assert!(Instant::now() < until, "{what}: {status} after a minute\n{}", self.driver.log());
            match status.code() {
                Code::Aborted => tokio::time::sleep(Duration::from_millis(20)).await,
                _ if self.driver.has_exited() => self.restart_driver(),
                // A connection breaks before its process exits; the next call notices the exit.
                Code::Unavailable => tokio::time::sleep(Duration::from_millis(2)).await,
                code => panic!("{what}: {code:?}: {}\n{}", status.message(), self.driver.log()),
            }
        }
    }

    /// Restarts a driver that has exited.
    pub fn restart_driver(&mut self) {
        self.crashes += 1;
        let options = self.restart_with.clone();
        self.driver.restart(&options);
    }

    /// CreateVolume; returns the volume ID.
    pub async fn create(&mut self, name: &str, size: u64, fs_type: &str, from: Option<&str>) -> String {
        self.create_with(name, size, fs_type, from, &[]).await
    }

    /// CreateVolume with parameters; returns the volume ID.
    pub async fn create_with(
        &mut self,
        name: &str,
        size: u64,
        fs_type: &str,
        from: Option<&str>,
        parameters: &[(&str, &str)],
    ) -> String {
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: size as i64, limit_bytes: 0 }),
            volume_capabilities: vec![capability(fs_type, Mode::SingleNodeWriter)],
            parameters: parameters.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            volume_content_source: from.map(source),
            ..Default::default()
        };
        let what = format!("create {name}");
        let created = self
            .retry_until_ok(&what, request.clone(), async |c, r| c.controller().create_volume(r).await)
            .await;
        created.volume.expect("CreateVolume returned no volume").volume_id
    }

    /// DeleteVolume.
    pub async fn delete(&mut self, id: &str) {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.retry_until_ok("delete", request.clone(), async |c, r| c.controller().delete_volume(r).await)
            .await;
    }

    /// CreateSnapshot, repeated until the snapshot is ready; returns the snapshot ID.
    pub async fn snapshot(&mut self, name: &str, volume: &str) -> String {
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            ..Default::default()
        };
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let created = self
                .retry_until_ok("snapshot", request.clone(), async |c, r| {
                    c.controller().create_snapshot(r).await
                })
                .await;
            let snapshot = created.snapshot.expect("CreateSnapshot returned no snapshot");
            if snapshot.ready_to_use {
                return snapshot.snapshot_id;
            }
            assert!(Instant::now() < until, "snapshot {name} does not become ready\n{}", self.driver.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// DeleteSnapshot.
    pub async fn delete_snapshot(&mut self, id: &str) {
        let request = DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        self.retry_until_ok("delete snapshot", request.clone(), async |c, r| {
            c.controller().delete_snapshot(r).await
        })
        .await;
    }

    /// The staging path of a volume.
    pub fn staging_path(&self, id: &str) -> PathBuf {
        self.work.join("staging").join(id).join("globalmount")
    }

    /// The target path of a volume in a pod.
    pub fn target_path(&self, id: &str, pod: &str) -> PathBuf {
        self.work.join("pods").join(pod).join(id)
    }

    /// NodeStageVolume.
    pub async fn stage(&mut self, id: &str, fs_type: &str) {
        let staging = self.staging_path(id);
        std::fs::create_dir_all(&staging).expect("failed to create the staging path");
        let request = NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(capability(fs_type, Mode::SingleNodeWriter)),
            ..Default::default()
        };
        self.retry_until_ok("stage", request.clone(), async |c, r| c.node().node_stage_volume(r).await).await;
    }

    /// NodeUnstageVolume; then removes the staging path as kubelet does.
    pub async fn unstage(&mut self, id: &str) {
        let staging = self.staging_path(id);
        let request = NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.display().to_string(),
        };
        self.retry_until_ok("unstage", request.clone(), async |c, r| c.node().node_unstage_volume(r).await)
            .await;
        for dir in [staging.as_path(), staging.parent().expect("the path has a parent")] {
            match std::fs::remove_dir(dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    panic!("{}: {error}", dir.display())
                }
                _ => {}
            }
        }
    }

    /// NodePublishVolume; returns the target path.
    pub async fn publish(&mut self, id: &str, fs_type: &str, pod: &str) -> PathBuf {
        self.publish_as(id, fs_type, pod, false).await
    }

    /// NodePublishVolume, read-only or not; returns the target path.
    pub async fn publish_as(&mut self, id: &str, fs_type: &str, pod: &str, readonly: bool) -> PathBuf {
        let target = self.target_path(id, pod);
        std::fs::create_dir_all(target.parent().expect("the path has a parent"))
            .expect("failed to create the pod's directory");
        let request = NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: self.staging_path(id).display().to_string(),
            target_path: target.display().to_string(),
            volume_capability: Some(capability(fs_type, Mode::SingleNodeWriter)),
            readonly,
            ..Default::default()
        };
        self.retry_until_ok("publish", request.clone(), async |c, r| c.node().node_publish_volume(r).await)
            .await;
        target
    }

    /// NodeUnpublishVolume.
    pub async fn unpublish(&mut self, id: &str, pod: &str) {
        let request = NodeUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: self.target_path(id, pod).display().to_string(),
        };
        self.retry_until_ok("unpublish", request.clone(), async |c, r| {
            c.node().node_unpublish_volume(r).await
        })
        .await;
    }

    /// Creates, stages and publishes a volume; returns the volume ID and the target path.
    pub async fn create_and_mount(
        &mut self,
        name: &str,
        size: u64,
        fs_type: &str,
        from: Option<&str>,
    ) -> (String, PathBuf) {
        let id = self.create(name, size, fs_type, from).await;
        self.stage(&id, fs_type).await;
        let target = self.publish(&id, fs_type, "pod").await;
        (id, target)
    }

    /// Undoes [`Self::create_and_mount`] and deletes the volume.
    pub async fn unmount_and_delete(&mut self, id: &str) {
        self.unpublish(id, "pod").await;
        self.unstage(id).await;
        self.delete(id).await;
    }

    /// ControllerExpandVolume; returns whether node expansion is required.
    pub async fn expand(&mut self, id: &str, size: u64) -> bool {
        let request = ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: size as i64, limit_bytes: 0 }),
            ..Default::default()
        };
        let response = self
            .retry_until_ok("expand", request.clone(), async |c, r| {
                c.controller().controller_expand_volume(r).await
            })
            .await;
        assert!(response.capacity_bytes >= size as i64);
        response.node_expansion_required
    }

    /// A NodeExpandVolume request for the volume's target path in `pod`.
    pub fn node_expand_request(&self, id: &str, fs_type: &str, size: u64) -> NodeExpandVolumeRequest {
        NodeExpandVolumeRequest {
            volume_id: id.to_owned(),
            volume_path: self.target_path(id, "pod").display().to_string(),
            staging_target_path: self.staging_path(id).display().to_string(),
            capacity_range: Some(CapacityRange { required_bytes: size as i64, limit_bytes: 0 }),
            volume_capability: Some(capability(fs_type, Mode::SingleNodeWriter)),
            ..Default::default()
        }
    }

    /// Sizes of all volumes and snapshots that the driver lists, by ID.
    pub async fn listed(&mut self) -> BTreeMap<String, u64> {
        let volumes = self
            .retry_until_ok("list volumes", ListVolumesRequest::default(), async |c, r| {
                c.controller().list_volumes(r).await
            })
            .await;
        let snapshots = self
            .retry_until_ok("list snapshots", ListSnapshotsRequest::default(), async |c, r| {
                c.controller().list_snapshots(r).await
            })
            .await;
        let volumes = volumes.entries.into_iter().filter_map(|e| e.volume);
        let snapshots = snapshots.entries.into_iter().filter_map(|e| e.snapshot);
        volumes
            .map(|v| (v.volume_id, v.capacity_bytes as u64))
            .chain(snapshots.map(|s| (s.snapshot_id, s.size_bytes as u64)))
            .collect()
    }
}
