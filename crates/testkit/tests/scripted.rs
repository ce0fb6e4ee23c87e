//! The scripted driver reports callers that violate the CSI contract, and its state survives crashes.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::Path;
use std::time::{Duration, Instant};

use tonic::{Code, Status};
use wharf_csi::Client;
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use wharf_csi::v1::{self as csi};
use wharf_testkit::ChildProcess;
use wharf_testkit::scripted::{entries, violations};

struct Driver {
    dir: tempfile::TempDir,
    process: Option<ChildProcess>,
}

impl Driver {
    fn start(more: &[&str]) -> Self {
        let mut driver = Self { dir: tempfile::tempdir().unwrap(), process: None };
        driver.restart(more);
        driver
    }

    fn restart(&mut self, more: &[&str]) {
        drop(self.process.take());
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let (socket, state, log, faults) = (path("csi.sock"), path("state"), path("log"), path("faults"));
        let mut args = vec!["--endpoint", &socket, "--state", &state, "--log", &log, "--fault-file", &faults];
        args.extend(more);
        let program = Path::new(env!("CARGO_BIN_EXE_scripted-driver"));
        self.process = Some(ChildProcess::start(program, &args, &self.dir.path().join("stderr")));
        let until = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until, "the driver did not start to listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn client(&self) -> Client {
        let socket = self.dir.path().join("csi.sock");
        Client::new(&format!("unix://{}", socket.display()).parse().unwrap())
    }

    fn faults(&self, json: &str) {
        std::fs::write(self.dir.path().join("faults"), json).unwrap();
    }

    fn violations(&self) -> Vec<String> {
        violations(&self.dir.path().join("log")).into_iter().filter_map(|entry| entry.violation).collect()
    }
}

fn create(name: &str, bytes: i64) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        secrets: [("password".to_owned(), "hunter2".to_owned())].into(),
        ..Default::default()
    }
}

fn capability() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

fn publish(volume: &str, node: &str, readonly: bool) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability()),
        readonly,
        ..Default::default()
    }
}

fn code<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn invalid_calls_are_rejected_and_logged_as_violations() {
    let driver = Driver::start(&[]);
    let mut controller = driver.client().controller();
    let volume = controller.create_volume(create("a", 1000)).await.unwrap().into_inner().volume.unwrap();
    let id = volume.volume_id.as_str();
    assert_eq!(code(controller.create_volume(create("a", 1000)).await), Code::Ok);
    assert_eq!(code(controller.controller_publish_volume(publish(id, "n1", false)).await), Code::Ok);
    assert_eq!(code(controller.controller_publish_volume(publish(id, "n1", false)).await), Code::Ok);
    assert_eq!(driver.violations(), Vec::<String>::new());

    let delete = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
    assert_eq!(code(controller.create_volume(create("a", 2000)).await), Code::AlreadyExists);
    assert_eq!(
        code(controller.controller_publish_volume(publish(id, "n2", false)).await),
        Code::FailedPrecondition
    );
    assert_eq!(
        code(controller.controller_publish_volume(publish(id, "n1", true)).await),
        Code::AlreadyExists
    );
    assert_eq!(code(controller.delete_volume(delete.clone()).await), Code::FailedPrecondition);
    assert_eq!(driver.violations().len(), 4, "{:?}", driver.violations());

    let unpublish = csi::ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "n1".to_owned(),
        ..Default::default()
    };
    assert_eq!(code(controller.controller_unpublish_volume(unpublish).await), Code::Ok);
    assert_eq!(code(controller.delete_volume(delete.clone()).await), Code::Ok);
    assert_eq!(code(controller.delete_volume(delete).await), Code::Ok);
    let log = std::fs::read_to_string(driver.dir.path().join("log")).unwrap();
    assert!(!log.contains("hunter2") && log.contains("password"), "{log}");
}

#[tokio::test]
async fn completed_effects_survive_a_crash_despite_error_response() {
    let mut driver = Driver::start(&["--require-secrets", "password=hunter2"]);
    driver.faults(r#"{"CreateVolume": {"code": "DeadlineExceeded", "when": "after", "count": 1}}"#);
    let mut controller = driver.client().controller();
    assert_eq!(code(controller.create_volume(create("a", 1000)).await), Code::DeadlineExceeded);
    driver.faults(r#"{"CreateVolume": {"die": true, "when": "after", "count": 1}}"#);
    assert_ne!(code(controller.create_volume(create("b", 1000)).await), Code::Ok);
    driver.faults("{}");
    driver.restart(&["--require-secrets", "password=other"]);

    let mut controller = driver.client().controller();
    let list = controller.list_volumes(csi::ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!(list.entries.len(), 2);
    assert_eq!(code(controller.create_volume(create("c", 1)).await), Code::Unauthenticated, "rotated");
    assert_eq!(driver.violations(), Vec::<String>::new());
    let without = csi::CreateVolumeRequest { secrets: Default::default(), ..create("c", 1) };
    assert_eq!(code(controller.create_volume(without).await), Code::InvalidArgument);
    assert_eq!(driver.violations(), ["the secret password is missing"]);
    let codes: Vec<_> = entries(&driver.dir.path().join("log")).into_iter().map(|entry| entry.code).collect();
    assert!(codes.iter().any(|code| code == "died"), "{codes:?}");
}

fn snapshot(name: &str, volume: &str) -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.to_owned(),
        ..Default::default()
    }
}

#[tokio::test]
async fn snapshot_becomes_ready_after_polls_and_delay() {
    let mut driver = Driver::start(&["--snapshot-ready-looks", "2"]);
    let mut controller = driver.client().controller();
    controller.create_volume(create("a", 1000)).await.unwrap();
    let cut =
        controller.create_snapshot(snapshot("s", "vol-a")).await.unwrap().into_inner().snapshot.unwrap();
    assert!(!cut.ready_to_use);
    let id = cut.snapshot_id.clone();
    let again =
        controller.create_snapshot(snapshot("s", "vol-a")).await.unwrap().into_inner().snapshot.unwrap();
    assert_eq!(
        (again.ready_to_use, &again.snapshot_id, again.creation_time),
        (false, &id, cut.creation_time)
    );
    let get = csi::GetSnapshotRequest { snapshot_id: id.clone(), ..Default::default() };
    let got = controller.get_snapshot(get.clone()).await.unwrap().into_inner().snapshot.unwrap();
    assert!(got.ready_to_use, "it was requested twice since");
    assert_eq!(code(controller.create_snapshot(snapshot("s", "vol-b")).await), Code::AlreadyExists);

    driver.restart(&["--snapshot-ready-after", "600000"]);
    let mut controller = driver.client().controller();
    let slow =
        controller.create_snapshot(snapshot("t", "vol-a")).await.unwrap().into_inner().snapshot.unwrap();
    assert!(!slow.ready_to_use);
    for id in [&id, &slow.snapshot_id] {
        let delete = csi::DeleteSnapshotRequest { snapshot_id: id.clone(), ..Default::default() };
        assert_eq!(code(controller.delete_snapshot(delete.clone()).await), Code::Ok);
        assert_eq!(code(controller.delete_snapshot(delete).await), Code::Ok);
    }
    assert_eq!(code(controller.get_snapshot(get).await), Code::NotFound);
    assert_eq!(driver.violations().len(), 1, "{:?}", driver.violations());
}

#[tokio::test]
async fn groups_are_created_and_deleted_atomically() {
    let driver = Driver::start(&[]);
    let mut controller = driver.client().controller();
    for name in ["a", "b"] {
        controller.create_volume(create(name, 1000)).await.unwrap();
    }
    let mut groups = driver.client().group_controller();
    let request = |volumes: &[&str]| csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: volumes.iter().map(|&id| id.to_owned()).collect(),
        ..Default::default()
    };
    driver.faults(r#"{"CreateVolumeGroupSnapshot": {"code": "Aborted", "when": "after", "count": 1}}"#);
    assert_eq!(code(groups.create_volume_group_snapshot(request(&["vol-a", "vol-b"])).await), Code::Aborted);
    let group = groups.create_volume_group_snapshot(request(&["vol-b", "vol-a"])).await.unwrap();
    let group = group.into_inner().group_snapshot.unwrap();
    assert!(group.ready_to_use);
    let members: Vec<_> = group.snapshots.iter().map(|member| member.snapshot_id.clone()).collect();
    assert_eq!(members, ["snap-g-vol-a", "snap-g-vol-b"]);
    assert_eq!(driver.violations(), Vec::<String>::new());

    let alone = csi::DeleteSnapshotRequest { snapshot_id: members[0].clone(), ..Default::default() };
    assert_eq!(code(controller.delete_snapshot(alone).await), Code::InvalidArgument);
    let delete = |members: &[String]| csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: members.to_vec(),
        ..Default::default()
    };
    assert_eq!(code(groups.delete_volume_group_snapshot(delete(&members[..1])).await), Code::InvalidArgument);
    assert_eq!(code(groups.create_volume_group_snapshot(request(&["vol-a"])).await), Code::AlreadyExists);
    assert_eq!(driver.violations().len(), 3, "{:?}", driver.violations());
    for _ in 0..2 {
        assert_eq!(code(groups.delete_volume_group_snapshot(delete(&members)).await), Code::Ok);
    }
    let list = controller.list_snapshots(csi::ListSnapshotsRequest::default()).await.unwrap().into_inner();
    assert!(list.entries.is_empty(), "{list:?}");
}
