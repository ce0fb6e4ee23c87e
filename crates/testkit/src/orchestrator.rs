//! An orchestrator in small: calls a driver as kubelet and the sidecars would, with kubelet's kind of paths,
//! and like them repeats a call until it is answered, also when the driver dies under it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tonic::{Code, Status};
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use wharf_csi::v1::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};
use wharf_csi::v1::*;
use wharf_csi::{Client, Endpoint};

use crate::driver::{DriverOptions, TestDriver};

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// A driver under test and whoever calls it.
pub struct Orchestrator {
    /// The driver.
    pub driver: TestDriver,
    /// How it is started again after a death.
    pub restart_with: DriverOptions,
    /// How often it died so far.
    pub deaths: usize,
    client: Client,
    work: PathBuf,
}

/// A capability: `""` is raw block, anything else the type of file system.
pub fn capability(fs_type: &str, mode: Mode) -> VolumeCapability {
    let access_type = match fs_type {
        "" => AccessType::Block(BlockVolume {}),
        fs_type => AccessType::Mount(MountVolume { fs_type: fs_type.to_owned(), ..Default::default() }),
    };
    VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
}

/// A source to copy from: a snapshot's or a volume's id.
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
        let endpoint: Endpoint =
            format!("unix://{}", driver.socket().display()).parse().expect("a socket's endpoint");
        let client = Client::new(&endpoint).with_deadline(Duration::from_secs(60));
        let restart_with = DriverOptions { die_after: None, ..options.clone() };
        Self { driver, restart_with, deaths: 0, client, work: work.to_owned() }
    }

    /// The client, for calls that may fail.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Calls until there is an answer, for at most a minute: a dead driver is started again, "still running"
    /// is asked again. Any other answer than success fails the test.
    pub async fn must<R: Clone, T>(
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
                _ if self.driver.died() => self.revive(),
                // A connection breaks before its process is gone, and is noticed by the next call.
                Code::Unavailable => tokio::time::sleep(Duration::from_millis(2)).await,
                code => panic!("{what}: {code:?}: {}\n{}", status.message(), self.driver.log()),
            }
        }
    }

    /// Starts a dead driver again.
    pub fn revive(&mut self) {
        self.deaths += 1;
        let options = self.restart_with.clone();
        self.driver.restart(&options);
    }

    /// CreateVolume; answers the id.
    pub async fn create(&mut self, name: &str, size: u64, fs_type: &str, from: Option<&str>) -> String {
        self.create_with(name, size, fs_type, from, &[]).await
    }

    /// CreateVolume with parameters; answers the id.
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
        let created =
            self.must(&what, request.clone(), async |c, r| c.controller().create_volume(r).await).await;
        created.volume.expect("a volume in the answer").volume_id
    }

    /// DeleteVolume.
    pub async fn delete(&mut self, id: &str) {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.must("delete", request.clone(), async |c, r| c.controller().delete_volume(r).await).await;
    }

    /// CreateSnapshot, asked again until it is ready; answers the id.
    pub async fn snapshot(&mut self, name: &str, volume: &str) -> String {
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            ..Default::default()
        };
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let made = self
                .must("snapshot", request.clone(), async |c, r| c.controller().create_snapshot(r).await)
                .await;
            let snapshot = made.snapshot.expect("a snapshot in the answer");
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
        self.must("delete snapshot", request.clone(), async |c, r| c.controller().delete_snapshot(r).await)
            .await;
    }

    /// Where a volume is staged.
    pub fn staging_path(&self, id: &str) -> PathBuf {
        self.work.join("staging").join(id).join("globalmount")
    }

    /// Where a pod of this name sees the volume.
    pub fn target_path(&self, id: &str, pod: &str) -> PathBuf {
        self.work.join("pods").join(pod).join(id)
    }

    /// NodeStageVolume.
    pub async fn stage(&mut self, id: &str, fs_type: &str) {
        let staging = self.staging_path(id);
        std::fs::create_dir_all(&staging).expect("creating the staging path");
        let request = NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(capability(fs_type, Mode::SingleNodeWriter)),
            ..Default::default()
        };
        self.must("stage", request.clone(), async |c, r| c.node().node_stage_volume(r).await).await;
    }

    /// NodeUnstageVolume, and removes the staging path as kubelet does.
    pub async fn unstage(&mut self, id: &str) {
        let staging = self.staging_path(id);
        let request = NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.display().to_string(),
        };
        self.must("unstage", request.clone(), async |c, r| c.node().node_unstage_volume(r).await).await;
        for dir in [staging.as_path(), staging.parent().expect("a parent")] {
            match std::fs::remove_dir(dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    panic!("{}: {error}", dir.display())
                }
                _ => {}
            }
        }
    }

    /// NodePublishVolume; answers the target path.
    pub async fn publish(&mut self, id: &str, fs_type: &str, pod: &str) -> PathBuf {
        self.publish_as(id, fs_type, pod, false).await
    }

    /// NodePublishVolume, read-only or not; answers the target path.
    pub async fn publish_as(&mut self, id: &str, fs_type: &str, pod: &str, readonly: bool) -> PathBuf {
        let target = self.target_path(id, pod);
        std::fs::create_dir_all(target.parent().expect("a parent")).expect("creating the pod's directory");
        let request = NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: self.staging_path(id).display().to_string(),
            target_path: target.display().to_string(),
            volume_capability: Some(capability(fs_type, Mode::SingleNodeWriter)),
            readonly,
            ..Default::default()
        };
        self.must("publish", request.clone(), async |c, r| c.node().node_publish_volume(r).await).await;
        target
    }

    /// NodeUnpublishVolume.
    pub async fn unpublish(&mut self, id: &str, pod: &str) {
        let request = NodeUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: self.target_path(id, pod).display().to_string(),
        };
        self.must("unpublish", request.clone(), async |c, r| c.node().node_unpublish_volume(r).await).await;
    }

    /// Create, stage and publish in one go; answers the id and the target path.
    pub async fn mounted(
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

    /// The way back of [`Self::mounted`].
    pub async fn removed(&mut self, id: &str) {
        self.unpublish(id, "pod").await;
        self.unstage(id).await;
        self.delete(id).await;
    }

    /// ControllerExpandVolume; answers whether the node has to do its part.
    pub async fn expand(&mut self, id: &str, size: u64) -> bool {
        let request = ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: size as i64, limit_bytes: 0 }),
            ..Default::default()
        };
        let answer = self
            .must("expand", request.clone(), async |c, r| c.controller().controller_expand_volume(r).await)
            .await;
        assert!(answer.capacity_bytes >= size as i64);
        answer.node_expansion_required
    }

    /// A NodeExpandVolume request for the volume as `pod` sees it.
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

    /// All volumes and snapshots the driver lists, by id.
    pub async fn listed(&mut self) -> BTreeMap<String, u64> {
        let volumes = self
            .must("list volumes", ListVolumesRequest::default(), async |c, r| {
                c.controller().list_volumes(r).await
            })
            .await;
        let snapshots = self
            .must("list snapshots", ListSnapshotsRequest::default(), async |c, r| {
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
