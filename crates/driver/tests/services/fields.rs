//! Methods of the backend receive the fields of their calls: every method its secrets.

use std::collections::BTreeMap;

use wharf_csi::v1;
use wharf_driver::ServeOptions;

use crate::memory::{Memory, Served};
use crate::{capability, create};

fn secrets(call: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("call".to_owned(), call.to_owned())])
}

/// Calls one method with a secret that names it.
macro_rules! call {
    ($client:expr, $method:ident, $request:expr) => {{
        let mut request = $request;
        request.secrets.extend(secrets(stringify!($method)));
        $client.$method(request).await.unwrap().into_inner()
    }};
}

#[tokio::test]
async fn every_method_receives_the_secrets_of_its_call() {
    let memory = Memory::new();
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    let (mut controller, mut groups) = (served.client.controller(), served.client.group_controller());
    let mut metadata = served.client.snapshot_metadata();
    let received = |method: &str| memory.secrets.lock().unwrap()[method].get("call").cloned();
    let expect = |methods: &[&'static str], call: &str| {
        for method in methods {
            assert_eq!(received(method).as_deref(), Some(call), "{method}");
        }
    };

    let volume = call!(controller, create_volume, create("a")).volume.unwrap();
    expect(&["create"], "create_volume");
    let volume_id = volume.volume_id;
    let publish = v1::ControllerPublishVolumeRequest {
        volume_id: volume_id.clone(),
        node_id: "n1".into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    call!(controller, controller_publish_volume, publish);
    expect(&["get", "publish"], "controller_publish_volume");
    let node_id = "n1".to_owned();
    let unpublish =
        v1::ControllerUnpublishVolumeRequest { volume_id: volume_id.clone(), node_id, ..Default::default() };
    call!(controller, controller_unpublish_volume, unpublish);
    expect(&["unpublish"], "controller_unpublish_volume");
    let validate = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.clone(),
        volume_capabilities: vec![capability()],
        ..Default::default()
    };
    call!(controller, validate_volume_capabilities, validate);
    expect(&["get"], "validate_volume_capabilities");
    let expand = v1::ControllerExpandVolumeRequest {
        volume_id: volume_id.clone(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 1 << 21, limit_bytes: 0 }),
        ..Default::default()
    };
    call!(controller, controller_expand_volume, expand);
    expect(&["get", "expand"], "controller_expand_volume");
    let modify = v1::ControllerModifyVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
    call!(controller, controller_modify_volume, modify);
    expect(&["get", "modify"], "controller_modify_volume");
    let health = v1::ControllerGetVolumeHealthRequest { volume_id: volume_id.clone(), ..Default::default() };
    call!(controller, controller_get_volume_health, health);
    expect(&["volume_health"], "controller_get_volume_health");
    call!(controller, controller_list_volume_health, v1::ControllerListVolumeHealthRequest::default());
    expect(&["volume_health"], "controller_list_volume_health");

    let source_volume_id = volume_id.clone();
    let cut = v1::CreateSnapshotRequest { source_volume_id, name: "s".into(), ..Default::default() };
    let snapshot = call!(controller, create_snapshot, cut).snapshot.unwrap();
    expect(&["create_snapshot"], "create_snapshot");
    let snapshot_id = snapshot.snapshot_id;
    let get = v1::GetSnapshotRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
    call!(controller, get_snapshot, get);
    expect(&["get_snapshot"], "get_snapshot");
    call!(controller, list_snapshots, v1::ListSnapshotsRequest::default());
    expect(&["list_snapshots"], "list_snapshots");
    let one = v1::ListSnapshotsRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
    call!(controller, list_snapshots, one);
    expect(&["get_snapshot"], "list_snapshots");
    let blocks = v1::GetMetadataAllocatedRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
    call!(metadata, get_metadata_allocated, blocks);
    expect(&["allocated"], "get_metadata_allocated");
    let (base_snapshot_id, target_snapshot_id) = (snapshot_id.clone(), snapshot_id.clone());
    let delta = v1::GetMetadataDeltaRequest { base_snapshot_id, target_snapshot_id, ..Default::default() };
    call!(metadata, get_metadata_delta, delta);
    expect(&["changed"], "get_metadata_delta");
    call!(controller, delete_snapshot, v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() });
    expect(&["delete_snapshot"], "delete_snapshot");

    let group = v1::CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids: vec![volume_id.clone()],
        ..Default::default()
    };
    let group = call!(groups, create_volume_group_snapshot, group).group_snapshot.unwrap();
    expect(&["create_group"], "create_volume_group_snapshot");
    let group_snapshot_id = group.group_snapshot_id;
    let snapshot_ids: Vec<String> =
        group.snapshots.into_iter().map(|snapshot| snapshot.snapshot_id).collect();
    let get = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group_snapshot_id.clone(),
        snapshot_ids: snapshot_ids.clone(),
        ..Default::default()
    };
    call!(groups, get_volume_group_snapshot, get);
    expect(&["get_group"], "get_volume_group_snapshot");
    let delete =
        v1::DeleteVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, ..Default::default() };
    call!(groups, delete_volume_group_snapshot, delete);
    expect(&["get_group", "delete_group"], "delete_volume_group_snapshot");

    call!(controller, delete_volume, v1::DeleteVolumeRequest { volume_id, ..Default::default() });
    expect(&["delete"], "delete_volume");
}

#[tokio::test]
async fn new_snapshot_has_its_topologies() {
    let memory = Memory::new();
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    memory.insert("v");
    let topology =
        |zone: &str| v1::Topology { segments: BTreeMap::from([("zone".to_owned(), zone.to_owned())]) };
    let request = v1::CreateSnapshotRequest {
        source_volume_id: "v".into(),
        name: "s".into(),
        accessibility_requirements: Some(v1::TopologyRequirement {
            requisite: vec![topology("a"), topology("b")],
            preferred: vec![topology("b")],
        }),
        ..Default::default()
    };
    served.client.controller().create_snapshot(request).await.unwrap();
    let received = memory.new_snapshot.lock().unwrap().take().unwrap();
    assert_eq!(received.requisite, [topology("a").segments, topology("b").segments]);
    assert_eq!(received.preferred, [topology("b").segments]);
}
