//! The codes of CSI's error tables for each request, and that a driver declares exactly what it serves.

use std::collections::BTreeSet;

use tonic::Code::{self, *};
use tonic::{Request, Response, Status};
use wharf_csi::v1;
use wharf_csi::v1::controller_service_capability::{Type as Kind, rpc::Type};
use wharf_driver::{Driver, ServeOptions};

use crate::memory::{Memory, Served};
use crate::{capability, create as create_named};

fn code<T>(result: Result<Response<T>, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Ok)
}

async fn start() -> (std::sync::Arc<Memory>, Served) {
    let memory = Memory::new();
    memory.insert("v-a");
    memory.insert("v-b");
    let served = Served::start(memory.driver(), ServeOptions::default()).await;
    (memory, served)
}

#[tokio::test]
async fn ids_are_limited_to_what_the_driver_declares() {
    let (longest, too_long) = ("x".repeat(200), "x".repeat(201));
    let memory = Memory::new();
    for id in [&longest, &too_long] {
        memory.insert(id);
    }
    for (driver, expected) in [
        (memory.driver(), [InvalidArgument, InvalidArgument]),
        (memory.driver().max_id_length(200), [Ok, InvalidArgument]),
    ] {
        let served = Served::start(driver, ServeOptions::default()).await;
        let mut controller = served.client.controller();
        for (volume_id, expected) in [&longest, &too_long].into_iter().zip(expected) {
            let volume_id = volume_id.clone();
            let get = v1::ControllerGetVolumeRequest { volume_id: volume_id.clone() };
            assert_eq!(code(controller.controller_get_volume(get).await), expected);
            let cut = v1::CreateSnapshotRequest {
                source_volume_id: volume_id.clone(),
                name: format!("s-{}", volume_id.len()),
                ..Default::default()
            };
            assert_eq!(code(controller.create_snapshot(cut).await), expected);
            let delete = v1::DeleteSnapshotRequest { snapshot_id: volume_id, ..Default::default() };
            assert_eq!(code(controller.delete_snapshot(delete).await), expected);
        }
        served.stopped().await;
    }
}

#[tokio::test]
async fn controller_without_a_node_part_accepts_mount_groups() {
    use v1::volume_capability::{AccessType, MountVolume};

    let served = Served::start(Memory::new().driver().max_id_length(1), ServeOptions::default()).await;
    let mut controller = served.client.controller();
    for (group, expected) in [("1000", Ok), ("staff", InvalidArgument)] {
        let mount = MountVolume { volume_mount_group: group.into(), ..Default::default() };
        let mut request = create_named("grouped");
        request.volume_capabilities[0].access_type = Some(AccessType::Mount(mount));
        assert_eq!(code(controller.create_volume(request).await), expected, "{group}");
    }
    // A maximum length of IDs below CSI's limit has no effect.
    let get = v1::ControllerGetVolumeRequest { volume_id: "v-grouped".into() };
    assert_eq!(code(controller.controller_get_volume(get).await), Ok);
}

#[tokio::test]
async fn backend_cannot_return_ids_that_later_calls_reject() {
    let (memory, served) = start().await;
    let (mut controller, mut groups) = (served.client.controller(), served.client.group_controller());
    for (suffix, rule) in [("\n".to_owned(), "control characters"), ("x".repeat(128), "128 bytes")] {
        *memory.id_suffix.lock().unwrap() = suffix;
        let cut = v1::CreateSnapshotRequest {
            source_volume_id: "v-a".into(),
            name: "s".into(),
            ..Default::default()
        };
        let group = v1::CreateVolumeGroupSnapshotRequest {
            name: "g".into(),
            source_volume_ids: vec!["v-a".into()],
            ..Default::default()
        };
        for error in [
            controller.create_volume(create_named("new")).await.unwrap_err(),
            controller.create_snapshot(cut).await.unwrap_err(),
            groups.create_volume_group_snapshot(group).await.unwrap_err(),
        ] {
            assert_eq!(error.code(), Internal, "{error}");
            assert!(error.message().contains(rule), "{error}");
        }
    }
}

#[tokio::test]
async fn create_volume_returns_csi_codes() {
    let (_memory, served) = start().await;
    let mut controller = served.client.controller();
    let sized = |name: &str, required_bytes, limit_bytes| v1::CreateVolumeRequest {
        capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes }),
        ..create_named(name)
    };
    let with = |change: fn(&mut v1::CreateVolumeRequest)| {
        let mut request = create_named("changed");
        change(&mut request);
        request
    };
    for (request, expected, case) in [
        (sized("x", 1 << 20, 1 << 21), Ok, ""),
        (sized("x", 1 << 20, 0), Ok, "the same request again"),
        (sized("x", 1 << 22, 0), AlreadyExists, "the same name and another size"),
        (sized("x", 0, 1 << 10), AlreadyExists, "the same name and a lower limit"),
        (sized("y", -1, 0), InvalidArgument, "negative"),
        (sized("y", 0, -1), InvalidArgument, "negative limit"),
        (sized("y", 2, 1), InvalidArgument, "required above limit"),
        (sized("y", i64::MAX, 0), OutOfRange, "no such size"),
        (sized("y", 1, 100), OutOfRange, "below the smallest unit"),
        (sized("a\tb", 0, 0), Ok, "white space is allowed in names"),
        (sized(&"x".repeat(1024), 0, 0), Ok, "the longest name"),
        (sized(&"x".repeat(1025), 0, 0), InvalidArgument, "a name that is too long"),
        (with(|r| r.volume_capabilities.clear()), InvalidArgument, "no capabilities"),
        (with(|r| r.volume_capabilities[0].access_mode = None), InvalidArgument, "no access mode"),
        (
            with(|r| r.volume_capabilities[0].access_mode.as_mut().unwrap().mode = 99),
            InvalidArgument,
            "unknown mode",
        ),
        (
            with(|r| r.volume_capabilities[0].access_mode.as_mut().unwrap().mode = 5),
            InvalidArgument,
            "refused mode",
        ),
        (with(|r| r.volume_capabilities[0].access_type = None), InvalidArgument, "no access type"),
        (
            with(|r| {
                r.parameters.insert("bad".into(), "".into());
            }),
            InvalidArgument,
            "refused parameter",
        ),
        (
            with(|r| {
                r.parameters.insert("csi.storage.k8s.io/pvc/name".into(), "p".into());
            }),
            Ok,
            "a parameter of Kubernetes",
        ),
        (
            with(|r| {
                r.parameters.insert("k".into(), "x".repeat(4096));
            }),
            InvalidArgument,
            "parameters above 4 KiB",
        ),
        (
            with(|r| {
                r.mutable_parameters.insert("bad".into(), "".into());
            }),
            InvalidArgument,
            "refused mutable parameter",
        ),
        (
            with(|r| r.volume_content_source = Some(Default::default())),
            InvalidArgument,
            "a source without a type",
        ),
        (
            with(|r| r.accessibility_requirements = Some(Default::default())),
            InvalidArgument,
            "no topology at all",
        ),
    ] {
        assert_eq!(code(controller.create_volume(request).await), expected, "{case}");
    }
}

#[tokio::test]
async fn snapshots_and_clones_return_csi_codes() {
    use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

    let (_memory, served) = start().await;
    let mut controller = served.client.controller();
    let snapshot =
        v1::CreateSnapshotRequest { source_volume_id: "v-a".into(), name: "s".into(), ..Default::default() };
    let cut = controller.create_snapshot(snapshot.clone()).await.unwrap().into_inner().snapshot.unwrap();
    assert_eq!((cut.snapshot_id.as_str(), cut.size_bytes, cut.ready_to_use), ("s-s", 1 << 20, true));
    assert_eq!(code(controller.create_snapshot(snapshot.clone()).await), Ok);
    let other = v1::CreateSnapshotRequest { source_volume_id: "v-b".into(), ..snapshot };
    assert_eq!(code(controller.create_snapshot(other).await), AlreadyExists);

    let from = |name: &str, source| v1::CreateVolumeRequest {
        volume_content_source: Some(v1::VolumeContentSource { r#type: Some(source) }),
        ..create_named(name)
    };
    let of_snapshot = |id: &str| Type::Snapshot(SnapshotSource { snapshot_id: id.into() });
    let of_volume = |id: &str| Type::Volume(VolumeSource { volume_id: id.into() });
    for (name, source, expected) in [
        ("restored", of_snapshot("s-s"), Ok),
        ("cloned", of_volume("v-a"), Ok),
        ("cloned", of_volume("v-b"), AlreadyExists),
        ("x", of_snapshot("none"), NotFound),
        ("x", of_volume("none"), NotFound),
        ("x", of_volume(""), InvalidArgument),
    ] {
        assert_eq!(code(controller.create_volume(from(name, source.clone())).await), expected, "{source:?}");
    }

    for (request, found) in [
        (v1::ListSnapshotsRequest::default(), 1),
        (v1::ListSnapshotsRequest { snapshot_id: "s-s".into(), ..Default::default() }, 1),
        (v1::ListSnapshotsRequest { snapshot_id: "none".into(), ..Default::default() }, 0),
        (v1::ListSnapshotsRequest { source_volume_id: "v-a".into(), ..Default::default() }, 1),
        (v1::ListSnapshotsRequest { source_volume_id: "none".into(), ..Default::default() }, 0),
    ] {
        assert_eq!(
            controller.list_snapshots(request.clone()).await.unwrap().into_inner().entries.len(),
            found,
            "{request:?}"
        );
    }
    let get = |id: &str| v1::GetSnapshotRequest { snapshot_id: id.into(), ..Default::default() };
    assert_eq!(code(controller.get_snapshot(get("s-s")).await), Ok);
    assert_eq!(code(controller.get_snapshot(get("none")).await), NotFound);
}

#[tokio::test]
async fn publish_expand_and_validate_return_csi_codes() {
    let (_memory, served) = start().await;
    let mut controller = served.client.controller();
    let publish = |volume: &str, node: &str, readonly| v1::ControllerPublishVolumeRequest {
        volume_id: volume.into(),
        node_id: node.into(),
        volume_capability: Some(capability()),
        readonly,
        ..Default::default()
    };
    for (request, expected) in [
        (publish("v-a", "n1", false), Ok),
        (publish("v-a", "n1", false), Ok),
        (publish("v-a", "n1", true), AlreadyExists),
        (publish("v-a", "n2", false), FailedPrecondition),
        (publish("none", "n1", false), NotFound),
        (publish("v-a", "", false), InvalidArgument),
        (
            v1::ControllerPublishVolumeRequest { volume_capability: None, ..publish("v-a", "n1", false) },
            InvalidArgument,
        ),
    ] {
        assert_eq!(
            code(controller.controller_publish_volume(request.clone()).await),
            expected,
            "{request:?}"
        );
    }
    let listed = controller.list_volumes(v1::ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.entries[0].status.as_ref().unwrap().published_node_ids, ["n1"]);

    let expand = |volume: &str, required_bytes, limit_bytes| v1::ControllerExpandVolumeRequest {
        volume_id: volume.into(),
        capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes }),
        ..Default::default()
    };
    for (request, expected) in [
        (expand("v-a", 1 << 21, 0), Ok),
        (expand("v-a", 1 << 20, 0), Ok),
        (expand("v-a", 1 << 19, 1 << 20), OutOfRange),
        (expand("v-a", 0, 0), InvalidArgument),
        (expand("v-a", -1, 0), InvalidArgument),
        (expand("none", 1 << 21, 0), NotFound),
        (v1::ControllerExpandVolumeRequest { capacity_range: None, ..expand("v-a", 1, 0) }, InvalidArgument),
    ] {
        assert_eq!(code(controller.controller_expand_volume(request.clone()).await), expected, "{request:?}");
    }

    let validate = |mode: i32| {
        let mut capability = capability();
        capability.access_mode.as_mut().unwrap().mode = mode;
        v1::ValidateVolumeCapabilitiesRequest {
            volume_id: "v-a".into(),
            volume_capabilities: vec![crate::capability(), capability],
            ..Default::default()
        }
    };
    let confirmed = controller.validate_volume_capabilities(validate(1)).await.unwrap().into_inner();
    assert_eq!(confirmed.confirmed.unwrap().volume_capabilities, validate(1).volume_capabilities);
    let refused = controller.validate_volume_capabilities(validate(5)).await.unwrap().into_inner();
    assert_eq!((refused.confirmed, refused.message.as_str()), (None, "one node only"));
    let missing = v1::ValidateVolumeCapabilitiesRequest { volume_id: "none".into(), ..validate(1) };
    assert_eq!(code(controller.validate_volume_capabilities(missing).await), NotFound);

    let get = |id: &str| v1::ControllerGetVolumeRequest { volume_id: id.into() };
    assert_eq!(code(controller.controller_get_volume(get("v-a")).await), Ok);
    assert_eq!(code(controller.controller_get_volume(get("none")).await), NotFound);
    let health = v1::ControllerGetVolumeHealthRequest { volume_id: "none".into(), ..Default::default() };
    assert_eq!(code(controller.controller_get_volume_health(health).await), NotFound);
    let modify = v1::ControllerModifyVolumeRequest { volume_id: "none".into(), ..Default::default() };
    assert_eq!(code(controller.controller_modify_volume(modify).await), NotFound);

    let mut impossible = capability();
    impossible.access_mode.as_mut().unwrap().mode = 5;
    let query = v1::GetCapacityRequest { volume_capabilities: vec![impossible], ..Default::default() };
    assert_eq!(controller.get_capacity(query).await.unwrap().into_inner().available_capacity, 0);
}

#[tokio::test]
async fn group_snapshots_and_metadata_return_csi_codes() {
    let (_memory, served) = start().await;
    let mut groups = served.client.group_controller();
    let group = |ids: &[&str]| v1::CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        ..Default::default()
    };
    assert_eq!(code(groups.create_volume_group_snapshot(group(&[])).await), InvalidArgument);
    assert_eq!(code(groups.create_volume_group_snapshot(group(&["v-a", "none"])).await), NotFound);
    let created =
        groups.create_volume_group_snapshot(group(&["v-b", "v-a", "v-a"])).await.unwrap().into_inner();
    let created = created.group_snapshot.unwrap();
    let ids: Vec<String> = created.snapshots.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect();
    assert_eq!((ids.len(), created.ready_to_use), (2, true));
    assert_eq!(code(groups.create_volume_group_snapshot(group(&["v-a"])).await), AlreadyExists);

    let get = |id: &str, snapshot_ids: &[String]| v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.into(),
        snapshot_ids: snapshot_ids.to_vec(),
        ..Default::default()
    };
    assert_eq!(code(groups.get_volume_group_snapshot(get("g-g", &ids)).await), Ok);
    assert_eq!(code(groups.get_volume_group_snapshot(get("g-g", &ids[1..])).await), InvalidArgument);
    assert_eq!(code(groups.get_volume_group_snapshot(get("none", &ids)).await), NotFound);

    let member = v1::DeleteSnapshotRequest { snapshot_id: ids[0].clone(), ..Default::default() };
    assert_eq!(code(served.client.controller().delete_snapshot(member).await), InvalidArgument);

    let mut metadata = served.client.snapshot_metadata();
    let blocks = |snapshot: &str, starting_offset, max_results| v1::GetMetadataAllocatedRequest {
        snapshot_id: snapshot.into(),
        starting_offset,
        max_results,
        ..Default::default()
    };
    let mut stream =
        metadata.get_metadata_allocated(blocks(&ids[0], 1024 * 4 + 100, 100)).await.unwrap().into_inner();
    let mut offsets = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        assert_eq!(message.block_metadata_type(), v1::BlockMetadataType::VariableLength);
        assert_eq!(message.volume_capacity_bytes, 1 << 20);
        assert!(message.block_metadata.len() <= 100);
        offsets.extend(message.block_metadata.iter().map(|block| block.byte_offset));
    }
    assert_eq!(offsets, (4..1024).map(|block| block * 1024).collect::<Vec<_>>());
    for (request, expected) in [
        (blocks("none", 0, 0), NotFound),
        (blocks("", 0, 0), InvalidArgument),
        (blocks(&ids[0], -1, 0), OutOfRange),
        (blocks(&ids[0], (1 << 20) + 1, 0), OutOfRange),
        (blocks(&ids[0], 1 << 20, 0), Ok),
        (blocks(&ids[0], 0, -1), InvalidArgument),
    ] {
        assert_eq!(code(metadata.get_metadata_allocated(request.clone()).await), expected, "{request:?}");
    }
    let delta = v1::GetMetadataDeltaRequest {
        base_snapshot_id: ids[0].clone(),
        target_snapshot_id: "none".into(),
        ..Default::default()
    };
    assert_eq!(code(metadata.get_metadata_delta(delta).await), NotFound);

    let delete = |snapshot_ids: &[String]| v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: "g-g".into(),
        snapshot_ids: snapshot_ids.to_vec(),
        ..Default::default()
    };
    assert_eq!(code(groups.delete_volume_group_snapshot(delete(&[])).await), InvalidArgument);
    assert_eq!(code(groups.delete_volume_group_snapshot(delete(&ids)).await), Ok);
    assert_eq!(code(groups.delete_volume_group_snapshot(delete(&ids)).await), Ok);
}

fn empty<T: Default>() -> Request<T> {
    Request::new(T::default())
}

/// The capabilities that a driver declares.
async fn declared(served: &Served) -> BTreeSet<Type> {
    let request = v1::ControllerGetCapabilitiesRequest {};
    let response =
        served.client.controller().controller_get_capabilities(request).await.unwrap().into_inner();
    response
        .capabilities
        .into_iter()
        .map(|capability| match capability.r#type {
            Some(Kind::Rpc(rpc)) => rpc.r#type(),
            None => panic!("a capability without a type"),
        })
        .collect()
}

#[tokio::test]
async fn missing_traits_are_neither_declared_nor_served() {
    let memory = Memory::new();
    let everything = Served::start(memory.driver(), ServeOptions::default()).await;
    assert_eq!(declared(&everything).await.len(), 16, "all but VOLUME_CONDITION, which CSI 1.13 dropped");

    let bare = Driver::new("bare.test.wharf.dev", "1").unwrap().volumes(memory.clone());
    let bare = Served::start(bare, ServeOptions::default()).await;
    assert_eq!(declared(&bare).await, [Type::CreateDeleteVolume, Type::SingleNodeMultiWriter].into());
    let mut controller = bare.client.controller();
    assert_eq!(code(controller.list_volumes(empty()).await), Unimplemented);
    assert_eq!(code(controller.controller_get_volume(empty()).await), Unimplemented);
    assert_eq!(code(controller.get_capacity(empty()).await), Unimplemented);
    assert_eq!(code(controller.controller_publish_volume(empty()).await), Unimplemented);
    assert_eq!(code(controller.controller_unpublish_volume(empty()).await), Unimplemented);
    assert_eq!(code(controller.controller_expand_volume(empty()).await), Unimplemented);
    assert_eq!(code(controller.controller_modify_volume(empty()).await), Unimplemented);
    assert_eq!(code(controller.create_snapshot(empty()).await), Unimplemented);
    assert_eq!(code(controller.delete_snapshot(empty()).await), Unimplemented);
    assert_eq!(code(controller.list_snapshots(empty()).await), Unimplemented);
    assert_eq!(code(controller.get_snapshot(empty()).await), Unimplemented);
    assert_eq!(code(controller.controller_get_volume_health(empty()).await), Unimplemented);
    assert_eq!(code(controller.controller_list_volume_health(empty()).await), Unimplemented);
    let capabilities = v1::GroupControllerGetCapabilitiesRequest {};
    assert_eq!(
        code(bare.client.group_controller().group_controller_get_capabilities(capabilities).await),
        Unimplemented
    );
    assert_eq!(code(bare.client.snapshot_metadata().get_metadata_allocated(empty()).await), Unimplemented);
    assert_eq!(code(bare.client.node().node_get_info(empty()).await), Unimplemented);

    let nothing =
        Served::start(Driver::new("none.test.wharf.dev", "1").unwrap(), ServeOptions::default()).await;
    let request = v1::ControllerGetCapabilitiesRequest {};
    assert_eq!(code(nothing.client.controller().controller_get_capabilities(request).await), Unimplemented);
}
