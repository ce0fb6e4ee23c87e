//! Any input to any RPC gets a valid error code: no panic, no INTERNAL, and no file outside the pool.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};
use tonic::{Code, Status};
use wharf_csi::v1::*;
use wharf_csi::{Client, v1};
use wharf_linux::FsType;
use wharf_testkit::{DriverOptions, MIB, Orchestrator, TestPool};

const DRIVER: &str = env!("CARGO_BIN_EXE_test-driver");
const SAMPLES: usize = 150;

/// The inputs of all requests of one round.
#[derive(Debug, Clone)]
struct Nasty {
    id: String,
    name: String,
    path: String,
    token: String,
    required: i64,
    limit: i64,
    number: i32,
    access: i32,
    mode: i32,
    fs_type: String,
    map: BTreeMap<String, String>,
    absent: bool,
}

/// IDs and names as an attacker, a fuzzer or a bug would send them; `real` is a volume that exists.
fn nasty(real: String, work: String) -> impl Strategy<Value = Nasty> {
    let text = prop_oneof![
        Just(String::new()),
        Just("../../etc/passwd".to_owned()),
        Just("vol-../../../../tmp/x".to_owned()),
        Just("..".to_owned()),
        Just("a/b".to_owned()),
        Just("nul\0nul".to_owned()),
        Just("vol-00000000000000000000000000000000".to_owned()),
        Just("snap-00000000000000000000000000000000".to_owned()),
        Just("group-00000000000000000000000000000000".to_owned()),
        Just("VOL-".repeat(40)),
        Just("n".repeat(1 << 20)),
        Just("\u{202e}weird\n".to_owned()),
        "[ -~]{1,64}",
    ];
    let id = prop_oneof![3 => text.clone(), 1 => Just(real)];
    // Only paths where a mount is harmless: an accepted path is in the test's own directory.
    let path = prop_oneof![
        Just(String::new()),
        Just("relative/path".to_owned()),
        Just("/".to_owned()),
        Just(format!("{work}/../{}", "x".repeat(8))),
        Just(format!("{work}/nul\0")),
        Just(format!("{work}/missing/parent/target")),
        Just(format!("/{}", "p/".repeat(3000))),
    ];
    let size = prop_oneof![
        Just(0),
        Just(-1),
        Just(i64::MIN),
        Just(i64::MAX),
        Just(i64::MAX - 4095),
        Just(1),
        Just(4097),
        Just((8 * MIB) as i64),
        any::<i64>()
    ];
    let number = prop_oneof![Just(0), Just(-1), Just(i32::MIN), Just(i32::MAX), Just(1), any::<i32>()];
    let fs_type =
        prop_oneof![Just(String::new()), Just("ext4".to_owned()), Just("ntfs; rm".to_owned()), "[a-z]{1,9}"];
    let map = proptest::collection::btree_map(text.clone(), text.clone(), 0..3);
    (
        id,
        text.clone(),
        path,
        text,
        (size.clone(), size),
        (number, -1..9_i32, -1..9_i32),
        fs_type,
        map,
        any::<bool>(),
    )
        .prop_map(
            |(id, name, path, token, (required, limit), (number, access, mode), fs_type, map, absent)| {
                Nasty { id, name, path, token, required, limit, number, access, mode, fs_type, map, absent }
            },
        )
}

impl Nasty {
    fn range(&self) -> Option<CapacityRange> {
        (!self.absent).then_some(CapacityRange { required_bytes: self.required, limit_bytes: self.limit })
    }

    fn capability(&self) -> Option<VolumeCapability> {
        use v1::volume_capability::*;
        let mount = MountVolume {
            fs_type: self.fs_type.clone(),
            mount_flags: vec![self.name.clone()],
            ..Default::default()
        };
        let access_type = match self.access {
            0 | 1 => Some(AccessType::Block(BlockVolume {})),
            2..=6 => Some(AccessType::Mount(mount)),
            _ => None,
        };
        let access_mode = (self.mode >= 0).then_some(AccessMode { mode: self.mode });
        (self.access >= 0).then_some(VolumeCapability { access_type, access_mode })
    }

    fn topology(&self) -> Topology {
        Topology { segments: self.map.clone() }
    }
}

/// Sends one request of each RPC; returns methods and results.
async fn send_all(client: &Client, n: &Nasty) -> Vec<(&'static str, Result<(), Status>)> {
    let (id, name, path, map) = (n.id.clone(), n.name.clone(), n.path.clone(), n.map.clone());
    let mut all = Vec::new();
    macro_rules! send {
        ($service:ident . $method:ident ( $message:expr )) => {
            all.push((stringify!($method), client.$service().$method($message).await.map(drop)))
        };
    }
    send!(controller.create_volume(CreateVolumeRequest {
        name: name.clone(),
        capacity_range: n.range(),
        volume_capabilities: n.capability().into_iter().collect(),
        parameters: map.clone(),
        secrets: map.clone(),
        volume_content_source: n.absent.then(|| wharf_testkit::source(&id)),
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![n.topology(), n.topology()],
            preferred: vec![n.topology()],
        }),
        ..Default::default()
    }));
    send!(controller.delete_volume(DeleteVolumeRequest { volume_id: name.clone(), secrets: map.clone() }));
    send!(controller.controller_publish_volume(ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: name.clone(),
        volume_capability: n.capability(),
        ..Default::default()
    }));
    send!(controller.controller_unpublish_volume(ControllerUnpublishVolumeRequest {
        volume_id: id.clone(),
        node_id: name.clone(),
        ..Default::default()
    }));
    send!(controller.validate_volume_capabilities(ValidateVolumeCapabilitiesRequest {
        volume_id: id.clone(),
        volume_capabilities: n.capability().into_iter().collect(),
        parameters: map.clone(),
        ..Default::default()
    }));
    send!(
        controller
            .list_volumes(ListVolumesRequest { max_entries: n.number, starting_token: n.token.clone() })
    );
    send!(controller.list_snapshots(ListSnapshotsRequest {
        max_entries: n.number,
        starting_token: n.token.clone(),
        source_volume_id: id.clone(),
        snapshot_id: name.clone(),
        ..Default::default()
    }));
    send!(controller.controller_list_volume_health(ControllerListVolumeHealthRequest {
        max_entries: n.number,
        starting_token: n.token.clone(),
        ..Default::default()
    }));
    send!(controller.controller_get_volume_health(ControllerGetVolumeHealthRequest {
        volume_id: id.clone(),
        ..Default::default()
    }));
    send!(controller.controller_get_volume(ControllerGetVolumeRequest { volume_id: id.clone() }));
    send!(controller.get_capacity(GetCapacityRequest {
        volume_capabilities: n.capability().into_iter().collect(),
        parameters: map.clone(),
        accessible_topology: Some(n.topology()),
    }));
    send!(controller.create_snapshot(CreateSnapshotRequest {
        source_volume_id: name.clone(),
        name: id.clone(),
        parameters: map.clone(),
        ..Default::default()
    }));
    send!(
        controller.delete_snapshot(DeleteSnapshotRequest { snapshot_id: id.clone(), ..Default::default() })
    );
    send!(controller.get_snapshot(GetSnapshotRequest { snapshot_id: id.clone(), ..Default::default() }));
    send!(controller.controller_expand_volume(ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: n.range(),
        volume_capability: n.capability(),
        ..Default::default()
    }));
    send!(controller.controller_modify_volume(ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: map.clone(),
        ..Default::default()
    }));
    send!(group_controller.create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest {
        name: name.clone(),
        source_volume_ids: vec![name.clone(), name.clone()],
        ..Default::default()
    }));
    send!(group_controller.delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id.clone(),
        snapshot_ids: vec![name.clone()],
        ..Default::default()
    }));
    send!(group_controller.get_volume_group_snapshot(GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.clone(),
        snapshot_ids: vec![name.clone()],
        ..Default::default()
    }));
    send!(snapshot_metadata.get_metadata_allocated(GetMetadataAllocatedRequest {
        snapshot_id: id.clone(),
        starting_offset: n.required,
        max_results: n.number,
        ..Default::default()
    }));
    send!(snapshot_metadata.get_metadata_delta(GetMetadataDeltaRequest {
        base_snapshot_id: id.clone(),
        target_snapshot_id: name.clone(),
        starting_offset: n.required,
        max_results: n.number,
        ..Default::default()
    }));
    send!(node.node_stage_volume(NodeStageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: path.clone(),
        volume_capability: n.capability(),
        publish_context: map.clone(),
        ..Default::default()
    }));
    send!(node.node_unstage_volume(NodeUnstageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: path.clone()
    }));
    send!(node.node_publish_volume(NodePublishVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: path.clone(),
        target_path: path.clone(),
        volume_capability: n.capability(),
        volume_context: map.clone(),
        ..Default::default()
    }));
    send!(node.node_unpublish_volume(NodeUnpublishVolumeRequest {
        volume_id: id.clone(),
        target_path: path.clone()
    }));
    send!(node.node_get_volume_stats(NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: path.clone(),
        staging_target_path: path.clone(),
    }));
    send!(node.node_get_volume_health(NodeGetVolumeHealthRequest {
        volume_id: id.clone(),
        volume_publish_path: path.clone(),
        staging_target_path: path.clone(),
    }));
    send!(node.node_expand_volume(NodeExpandVolumeRequest {
        volume_id: id,
        volume_path: path,
        capacity_range: n.range(),
        volume_capability: n.capability(),
        ..Default::default()
    }));
    all
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn every_rpc_rejects_bad_input_with_a_valid_code() {
    let (pool, work) = (TestPool::new(FsType::Xfs, 4 << 30), tempfile::tempdir().unwrap());
    let options = DriverOptions { attach: true, ..Default::default() };
    let mut co = Orchestrator::start(Path::new(DRIVER), pool.path(), work.path(), &options);
    let real = co.create("real", 8 * MIB, "", None).await;
    let elsewhere = tempfile::tempdir_in(work.path()).unwrap();
    let strategy = nasty(real.clone(), elsewhere.path().display().to_string());
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let above = [work.path(), pool.path().parent().unwrap()].map(names_in);
    let mut outcomes: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for _ in 0..SAMPLES {
        let sample = strategy.new_tree(&mut runner).unwrap().current();
        for (method, outcome) in send_all(&co.client(), &sample).await {
            let code = outcome.as_ref().map_or_else(Status::code, |()| Code::Ok);
            let proper = !matches!(code, Code::Unknown | Code::Internal | Code::DataLoss | Code::Unavailable);
            assert!(proper, "{method}: {outcome:?} for {sample:?}\n{}", co.driver.log());
            *outcomes.entry((method, format!("{code:?}"))).or_default() += 1;
        }
        assert!(!co.driver.has_exited(), "the driver crashed on {sample:?}\n{}", co.driver.log());
    }
    assert!(!co.driver.log().contains("panicked"), "{}", co.driver.log());
    assert_eq!([work.path(), pool.path().parent().unwrap()].map(names_in), above, "files outside the pool");
    let methods: BTreeSet<_> = outcomes.keys().map(|(method, _)| method).collect();
    println!("{} calls, {} methods", outcomes.values().sum::<usize>(), methods.len());
    // Requests that were valid by chance were executed; the existing volume is intact.
    let listed = co.listed().await;
    assert_eq!(listed[&real], 8 * MIB, "the existing volume must keep its size: {listed:?}");
}
