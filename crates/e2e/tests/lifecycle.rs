//! The lifecycle of the driver process: SIGKILL during a freeze, restarts with mounted volumes, a second driver on the
//! same pool, interrupted copies, a full pool, attach mode and access modes.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tonic::Code;
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_csi::v1::*;
use wharf_linux::FsType;
use wharf_testkit::{DriverOptions, MIB, Orchestrator, TestPool, capability, leftovers};

const DRIVER: &str = env!("CARGO_BIN_EXE_test-driver");

fn start(pool: &TestPool, work: &Path, options: &DriverOptions) -> Orchestrator {
    Orchestrator::start(Path::new(DRIVER), pool.path(), work, options)
}

#[tokio::test]
async fn writer_resumes_after_driver_is_killed_during_freeze() {
    let pool = TestPool::new(FsType::Xfs, 2 << 30);
    // The first start also initializes the pool, which would shift the number of kernel calls.
    start(&pool, tempfile::tempdir().unwrap().path(), &DriverOptions::default()).driver.stop();
    for fs in ["ext4", "xfs", "btrfs"] {
        // The first run finds the number of kernel calls up to the freeze. The second run crashes exactly there.
        let (mut crash_after, mut blocked_for) = (None, None);
        for _ in 0..2 {
            let work = tempfile::tempdir().unwrap();
            let options = DriverOptions { crash_after, ..Default::default() };
            let mut co = start(&pool, work.path(), &options);
            let (id, at) = co.create_and_mount("volume", 320 * MIB, fs, None).await;
            let request = CreateSnapshotRequest {
                name: "snapshot".to_owned(),
                source_volume_id: id.clone(),
                ..Default::default()
            };
            let response = co.client().controller().create_snapshot(request).await;
            if crash_after.is_some() {
                assert!(
                    response.is_err() && co.driver.was_killed(),
                    "the driver did not crash: {response:?}"
                );
                assert_eq!(co.driver.trace().last().unwrap(), "freeze");
                let started = Instant::now();
                let mut file = File::create(at.join("file")).unwrap();
                file.write_all(b"more data").unwrap();
                file.sync_all().unwrap();
                blocked_for = Some(started.elapsed());
                co.restart_driver();
            } else {
                response.unwrap();
                crash_after = co.driver.trace().iter().position(|e| e == "freeze").map(|i| i as u64 + 1);
                assert!(crash_after.is_some(), "the snapshot of a mounted volume must freeze it");
            }
            let snapshot = co.snapshot("snapshot", &id).await;
            co.delete_snapshot(&snapshot).await;
            co.unmount_and_delete(&id).await;
            co.driver.stop();
        }
        let blocked_for = blocked_for.unwrap();
        println!("{fs}: the writer resumed after {} ms", blocked_for.as_millis());
        assert!(blocked_for < Duration::from_secs(3), "{fs}: {blocked_for:?}");
    }
}

#[tokio::test]
async fn restart_keeps_mounts_and_state() {
    let (pool, work) = (TestPool::new(FsType::Btrfs, 2 << 30), tempfile::tempdir().unwrap());
    let mut co = start(&pool, work.path(), &DriverOptions::default());
    let (id, at) = co.create_and_mount("volume", 32 * MIB, "ext4", None).await;
    let raw = co.create("raw", 8 * MIB, "", None).await;
    co.stage(&raw, "").await;
    let device = co.publish(&raw, "", "pod").await;
    let mut open = File::create(at.join("open")).unwrap();
    let listed = co.listed().await;
    for graceful in [true, false] {
        match graceful {
            true => co.driver.stop(),
            false => co.driver.kill(),
        }
        open.write_all(b"more data").unwrap();
        open.sync_all().unwrap();
        File::options().write(true).open(&device).unwrap().write_all(&[1; 512]).unwrap();
        co.driver.restart(&DriverOptions::default());
        assert_eq!(co.listed().await, listed);
        // The orchestrator repeats all calls, and they succeed.
        co.stage(&id, "ext4").await;
        co.publish(&id, "ext4", "pod").await;
        co.stage(&raw, "").await;
        co.publish(&raw, "", "pod").await;
    }
    drop(open);
    // Deleting a volume in use is rejected, before and after a restart.
    let request = DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
    let error = co.client().controller().delete_volume(request).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    co.unmount_and_delete(&id).await;
    co.unmount_and_delete(&raw).await;
    co.driver.stop();
    assert_eq!(leftovers(pool.path(), work.path()), Vec::<String>::new());
}

#[tokio::test]
async fn second_driver_on_same_pool_is_rejected() {
    let (pool, work) = (TestPool::new(FsType::Ext4, 1 << 30), tempfile::tempdir().unwrap());
    let co = start(&pool, work.path(), &DriverOptions::default());
    let other = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(DRIVER)
        .args([other.path().join("csi.sock").as_path(), pool.path(), &other.path().join("trace")])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("another"), "{message}");
    drop(co);
}

#[tokio::test]
async fn interrupted_copy_resumes_and_protects_its_source() {
    let (pool, work) = (TestPool::new(FsType::Ext4, 2 << 30), tempfile::tempdir().unwrap());
    let options = DriverOptions { slow_copies: true, ..Default::default() };
    let mut co = start(&pool, work.path(), &options);
    let id = co.create("raw", 64 * MIB, "", None).await;
    co.stage(&id, "").await;
    let device = co.publish(&id, "", "pod").await;
    fs::write(&device, vec![9; 64 * MIB as usize]).unwrap();
    File::open(&device).unwrap().sync_all().unwrap();
    co.unpublish(&id, "pod").await;
    co.unstage(&id).await;

    let request = CreateSnapshotRequest {
        name: "snapshot".to_owned(),
        source_volume_id: id.clone(),
        ..Default::default()
    };
    let created = co.client().controller().create_snapshot(request.clone()).await.unwrap().into_inner();
    let created = created.snapshot.unwrap();
    assert!(!created.ready_to_use, "the copy must still be running");
    // While the copy runs, the source cannot be changed.
    let staging = co.staging_path(&id);
    fs::create_dir_all(&staging).unwrap();
    let stage = NodeStageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(capability("", Mode::SingleNodeWriter)),
        ..Default::default()
    };
    assert!(co.client().node().node_stage_volume(stage).await.is_err());
    let delete = DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
    assert!(co.client().controller().delete_volume(delete).await.is_err());

    co.driver.kill();
    co.restart_with = DriverOptions::default();
    co.restart_driver();
    assert_eq!(co.snapshot("snapshot", &id).await, created.snapshot_id);
    let image = pool.path().join("snapshots").join(&created.snapshot_id).join("image");
    assert!(fs::read(image).unwrap().iter().all(|byte| *byte == 9));
    co.delete(&id).await;
    co.delete_snapshot(&created.snapshot_id).await;
}

#[tokio::test]
async fn full_pool_rejects_volumes_and_reports_health() {
    let (pool, work) = (TestPool::new(FsType::Xfs, 1 << 30), tempfile::tempdir().unwrap());
    let mut co = start(&pool, work.path(), &DriverOptions::default());
    let id = co.create("volume", 8 * MIB, "", None).await;
    assert!(storage_health(&co).await.is_empty());
    let filler = pool.path().join("lost+found.filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&vec![1; 4 << 20]).is_ok() {}
    drop(file);
    let health = storage_health(&co).await;
    assert!(health.iter().any(|h| h.reason == "PoolFull"), "{health:?}");
    let request = CreateVolumeRequest {
        name: "another".to_owned(),
        volume_capabilities: vec![capability("", Mode::SingleNodeWriter)],
        ..Default::default()
    };
    let error = co.client().controller().create_volume(request).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    let snapshot = CreateSnapshotRequest {
        name: "snapshot".to_owned(),
        source_volume_id: id.clone(),
        ..Default::default()
    };
    let error = co.client().controller().create_snapshot(snapshot).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert_eq!(available(&co).await, 0);
    // Deleting must work on a full pool.
    co.delete(&id).await;
    fs::remove_file(filler).unwrap();
    // xfs frees the blocks of a deleted file with a delay.
    let until = Instant::now() + Duration::from_secs(30);
    while available(&co).await == 0 {
        assert!(Instant::now() < until, "the pool did not free its space");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let id = co.create("another", 8 * MIB, "", None).await;
    co.delete(&id).await;
}

async fn available(co: &Orchestrator) -> i64 {
    let capacity = co.client().controller().get_capacity(GetCapacityRequest::default()).await;
    capacity.unwrap().into_inner().available_capacity
}

async fn storage_health(co: &Orchestrator) -> Vec<node_get_storage_health_response::StorageBackendHealth> {
    let request = NodeGetStorageHealthRequest::default();
    co.client().node().node_get_storage_health(request).await.unwrap().into_inner().backend_health
}

#[tokio::test]
async fn attached_volume_stays_on_one_node_and_cannot_be_deleted() {
    let (pool, work) = (TestPool::new(FsType::Xfs, 1 << 30), tempfile::tempdir().unwrap());
    let mut co = start(&pool, work.path(), &DriverOptions { attach: true, ..Default::default() });
    let id = co.create("volume", 8 * MIB, "", None).await;
    let publish = |node: &str| ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: node.to_owned(),
        volume_capability: Some(capability("", Mode::SingleNodeWriter)),
        ..Default::default()
    };
    let mut controller = co.client().controller();
    let unknown = controller.controller_publish_volume(publish("unknown")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
    controller.controller_publish_volume(publish("node-1")).await.unwrap();
    controller.controller_publish_volume(publish("node-1")).await.unwrap();
    co.driver.kill();
    co.restart_driver();
    co.listed().await;
    let volumes = controller.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!(volumes.entries[0].status.as_ref().unwrap().published_node_ids, ["node-1"]);
    let delete = DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
    let error = controller.delete_volume(delete.clone()).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    let unpublish = ControllerUnpublishVolumeRequest {
        volume_id: id.clone(),
        node_id: "node-1".to_owned(),
        ..Default::default()
    };
    controller.controller_unpublish_volume(unpublish.clone()).await.unwrap();
    controller.controller_unpublish_volume(unpublish).await.unwrap();
    controller.delete_volume(delete).await.unwrap();
}

#[tokio::test]
async fn access_modes_and_read_only_are_enforced() {
    let (pool, work) = (TestPool::new(FsType::Xfs, 2 << 30), tempfile::tempdir().unwrap());
    let mut co = start(&pool, work.path(), &DriverOptions::default());
    let (id, at) = co.create_and_mount("volume", 32 * MIB, "ext4", None).await;
    fs::write(at.join("file"), "content").unwrap();
    let other = co.publish_as(&id, "ext4", "other", true).await;
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "content");
    let error = fs::write(other.join("file"), "no").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    co.unpublish(&id, "other").await;

    // ReadWriteOncePod: the first pod gets the volume, a second one is rejected.
    let once = |target: &Path| NodePublishVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: co.staging_path(&id).display().to_string(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability("ext4", Mode::SingleNodeSingleWriter)),
        ..Default::default()
    };
    let error = co.client().node().node_publish_volume(once(&other)).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(!other.exists(), "a rejected call must leave no target path");
    // Unstaging while a pod uses the volume is rejected, and the pod keeps working.
    let unstage = NodeUnstageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: co.staging_path(&id).display().to_string(),
    };
    let error = co.client().node().node_unstage_volume(unstage).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    fs::write(at.join("file"), "still").unwrap();
    // An expansion with a capability that the volume does not have is rejected.
    let expand = NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: at.display().to_string(),
        volume_capability: Some(capability("xfs", Mode::SingleNodeWriter)),
        ..Default::default()
    };
    let error = co.client().node().node_expand_volume(expand).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");

    let multi = CreateVolumeRequest {
        name: "shared".to_owned(),
        volume_capabilities: vec![capability("ext4", Mode::MultiNodeMultiWriter)],
        ..Default::default()
    };
    let error = co.client().controller().create_volume(multi).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    co.unmount_and_delete(&id).await;
}
