//! Every request, however malformed, gets a valid code and never causes a panic.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tonic::{Code, Response, Status};
use wharf_csi::{Client, v1};
use wharf_driver::ServeOptions;

use crate::memory::{Memory, Served};

/// Strings that have broken drivers before; some are ids of existing objects.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop_oneof![Just("v-a"), Just("s-a"), Just("g-a"), Just("a"), Just("n1")].prop_map(str::to_owned),
        2 => Just(String::new()),
        2 => prop_oneof![
            Just("../../etc/passwd"), Just("/"), Just("."), Just(".."), Just("a/../b"), Just("a\0b"), Just("\n"),
            Just("\u{202e}x"), Just("ä"), Just("%s%n"), Just("a;b"), Just(">v-a"),
        ].prop_map(str::to_owned),
        1 => prop_oneof![Just(128usize), Just(129), Just(1024), Just(1025), Just(1 << 20)].prop_map(|n| "x".repeat(n)),
        2 => any::<String>(),
    ]
}

fn size() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(1), Just(-1), Just(i64::MIN), Just(i64::MAX), Just(1 << 20), any::<i64>()]
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![Just(0), Just(1), Just(-1), Just(i32::MIN), Just(i32::MAX), any::<i32>()]
}

fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
    proptest::collection::btree_map(text(), text(), 0..3)
}

fn range() -> impl Strategy<Value = Option<v1::CapacityRange>> {
    let range = (size(), size());
    proptest::option::of(
        range.prop_map(|(required_bytes, limit_bytes)| v1::CapacityRange { required_bytes, limit_bytes }),
    )
}

fn capability() -> impl Strategy<Value = v1::VolumeCapability> {
    use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

    let mount = (
        prop_oneof![Just(String::new()), text()],
        vec(text(), 0..2),
        prop_oneof![9 => Just(String::new()), 1 => text()],
    );
    let mount = mount.prop_map(|(fs_type, mount_flags, volume_mount_group)| {
        AccessType::Mount(MountVolume { fs_type, mount_flags, volume_mount_group })
    });
    let access = proptest::option::weighted(0.9, prop_oneof![Just(AccessType::Block(BlockVolume {})), mount]);
    let mode = proptest::option::weighted(0.9, prop_oneof![4 => Just(1), 1 => 0..9i32, 1 => any::<i32>()]);
    (access, mode).prop_map(|(access_type, mode)| v1::VolumeCapability {
        access_type,
        access_mode: mode.map(|mode| AccessMode { mode }),
    })
}

fn source() -> impl Strategy<Value = Option<v1::VolumeContentSource>> {
    use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

    let kind = prop_oneof![
        text().prop_map(|snapshot_id| Type::Snapshot(SnapshotSource { snapshot_id })),
        text().prop_map(|volume_id| Type::Volume(VolumeSource { volume_id })),
    ];
    let source = proptest::option::weighted(0.9, kind).prop_map(|r#type| v1::VolumeContentSource { r#type });
    proptest::option::weighted(0.3, source)
}

fn topologies() -> impl Strategy<Value = Option<v1::TopologyRequirement>> {
    let some = || vec(map().prop_map(|segments| v1::Topology { segments }), 0..3);
    let both =
        (some(), some()).prop_map(|(requisite, preferred)| v1::TopologyRequirement { requisite, preferred });
    proptest::option::weighted(0.3, both)
}

fn done<T>(result: Result<Response<T>, Status>) -> Result<(), Status> {
    result.map(|_| ())
}

/// An enum of requests, how to send each, and a strategy for all.
macro_rules! requests {
    ($($request:ident by $service:ident.$method:ident { $($field:ident: $strategy:expr),* })*) => {
        #[derive(Debug, Clone)]
        #[allow(clippy::enum_variant_names)] // named after the messages
        enum Request {
            $($request(v1::$request),)*
        }

        impl Request {
            async fn send(self, client: &Client) -> Result<(), Status> {
                match self {
                    $(Self::$request(request) => done(client.$service().$method(request).await),)*
                }
            }
        }

        fn request() -> impl Strategy<Value = Request> {
            #[allow(clippy::needless_update)] // some messages have no other field
            let all = vec![$(
                ($($strategy.boxed(),)*).prop_map(|($($field,)*)| {
                    Request::$request(v1::$request { $($field,)* ..Default::default() })
                }).boxed(),
            )*];
            proptest::strategy::Union::new(all)
        }
    };
}

requests! {
    CreateVolumeRequest by controller.create_volume {
        name: text(), capacity_range: range(), volume_capabilities: vec(capability(), 0..3), parameters: map(),
        secrets: map(), volume_content_source: source(), accessibility_requirements: topologies(),
        mutable_parameters: map()
    }
    DeleteVolumeRequest by controller.delete_volume { volume_id: text(), secrets: map() }
    ControllerPublishVolumeRequest by controller.controller_publish_volume {
        volume_id: text(), node_id: text(), volume_capability: proptest::option::of(capability()),
        readonly: any::<bool>(), secrets: map(), volume_context: map()
    }
    ControllerUnpublishVolumeRequest by controller.controller_unpublish_volume {
        volume_id: text(), node_id: text(), secrets: map()
    }
    ValidateVolumeCapabilitiesRequest by controller.validate_volume_capabilities {
        volume_id: text(), volume_context: map(), volume_capabilities: vec(capability(), 0..3), parameters: map(),
        mutable_parameters: map()
    }
    ListVolumesRequest by controller.list_volumes { max_entries: number(), starting_token: text() }
    ControllerListVolumeHealthRequest by controller.controller_list_volume_health {
        max_entries: number(), starting_token: text()
    }
    ControllerGetVolumeHealthRequest by controller.controller_get_volume_health { volume_id: text() }
    ControllerGetVolumeRequest by controller.controller_get_volume { volume_id: text() }
    ControllerModifyVolumeRequest by controller.controller_modify_volume {
        volume_id: text(), mutable_parameters: map()
    }
    GetCapacityRequest by controller.get_capacity {
        volume_capabilities: vec(capability(), 0..3), parameters: map(),
        accessible_topology: proptest::option::of(map().prop_map(|segments| v1::Topology { segments }))
    }
    CreateSnapshotRequest by controller.create_snapshot {
        source_volume_id: text(), name: text(), parameters: map(), accessibility_requirements: topologies()
    }
    DeleteSnapshotRequest by controller.delete_snapshot { snapshot_id: text(), secrets: map() }
    ListSnapshotsRequest by controller.list_snapshots {
        max_entries: number(), starting_token: text(), source_volume_id: text(), snapshot_id: text()
    }
    GetSnapshotRequest by controller.get_snapshot { snapshot_id: text(), secrets: map() }
    ControllerExpandVolumeRequest by controller.controller_expand_volume {
        volume_id: text(), capacity_range: range(), volume_capability: proptest::option::of(capability())
    }
    CreateVolumeGroupSnapshotRequest by group_controller.create_volume_group_snapshot {
        name: text(), source_volume_ids: vec(text(), 0..4), parameters: map()
    }
    DeleteVolumeGroupSnapshotRequest by group_controller.delete_volume_group_snapshot {
        group_snapshot_id: text(), snapshot_ids: vec(text(), 0..4)
    }
    GetVolumeGroupSnapshotRequest by group_controller.get_volume_group_snapshot {
        group_snapshot_id: text(), snapshot_ids: vec(text(), 0..4)
    }
    GetMetadataAllocatedRequest by snapshot_metadata.get_metadata_allocated {
        snapshot_id: text(), starting_offset: size(), max_results: number()
    }
    GetMetadataDeltaRequest by snapshot_metadata.get_metadata_delta {
        base_snapshot_id: text(), target_snapshot_id: text(), starting_offset: size(), max_results: number()
    }
}

/// The codes that CSI allows for a valid or invalid request to a working driver.
const VALID_CODES: [Code; 8] = [
    Code::Ok,
    Code::InvalidArgument,
    Code::NotFound,
    Code::AlreadyExists,
    Code::FailedPrecondition,
    Code::OutOfRange,
    Code::ResourceExhausted,
    Code::Aborted,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_request_gets_a_valid_code(requests in vec(request(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let memory = Memory::new();
            memory.insert("v-a");
            let served = Served::start(memory.driver(), ServeOptions::default()).await;
            for request in requests {
                let result = request.clone().send(&served.client).await;
                let code = result.map_or_else(|status| status.code(), |()| Code::Ok);
                prop_assert!(VALID_CODES.contains(&code), "{code:?} for {request:?}");
            }
            Ok(())
        })?;
    }
}

/// Sends a request with each of the ids in its field of that name.
macro_rules! refuses_ids {
    ($client:ident, $ids:ident: $($request:ident by $service:ident.$method:ident [$field:ident] $(with $rest:expr)?;)*) => {
        $(for id in &$ids {
            #[allow(clippy::needless_update)] // some messages have no other field
            let request = v1::$request { $field: id.clone(), ..complete!($request $(with $rest)?) };
            let result = done($client.$service().$method(request).await);
            let code = result.map_or_else(|status| status.code(), |()| Code::Ok);
            assert_eq!(code, Code::InvalidArgument, "{}.{} = {id:.20?}", stringify!($request), stringify!($field));
        })*
    };
}

/// A request with all other required fields.
macro_rules! complete {
    ($request:ident) => {
        v1::$request::default()
    };
    ($request:ident with $rest:expr) => {
        $rest
    };
}

#[tokio::test]
async fn invalid_ids_are_rejected_by_every_request() {
    let served = Served::start(Memory::new().driver(), ServeOptions::default()).await;
    let client = &served.client;
    let ids = ["", "a\0b", "\u{7f}", "a\nb"].map(str::to_owned).into_iter();
    let ids: Vec<String> = ids.chain([129, 1 << 20].map(|length| "x".repeat(length))).collect();
    refuses_ids! { client, ids:
        DeleteVolumeRequest by controller.delete_volume [volume_id];
        ControllerPublishVolumeRequest by controller.controller_publish_volume [volume_id] with v1::ControllerPublishVolumeRequest {
            node_id: "n".into(), volume_capability: Some(crate::capability()), ..Default::default()
        };
        ControllerUnpublishVolumeRequest by controller.controller_unpublish_volume [volume_id];
        ControllerExpandVolumeRequest by controller.controller_expand_volume [volume_id] with v1::ControllerExpandVolumeRequest {
            capacity_range: Some(v1::CapacityRange { required_bytes: 1, limit_bytes: 0 }), ..Default::default()
        };
        ValidateVolumeCapabilitiesRequest by controller.validate_volume_capabilities [volume_id] with v1::ValidateVolumeCapabilitiesRequest {
            volume_capabilities: vec![crate::capability()], ..Default::default()
        };
        ControllerGetVolumeRequest by controller.controller_get_volume [volume_id];
        ControllerGetVolumeHealthRequest by controller.controller_get_volume_health [volume_id];
        ControllerModifyVolumeRequest by controller.controller_modify_volume [volume_id];
        CreateSnapshotRequest by controller.create_snapshot [source_volume_id] with v1::CreateSnapshotRequest {
            name: "s".into(), ..Default::default()
        };
        DeleteSnapshotRequest by controller.delete_snapshot [snapshot_id];
        GetSnapshotRequest by controller.get_snapshot [snapshot_id];
        DeleteVolumeGroupSnapshotRequest by group_controller.delete_volume_group_snapshot [group_snapshot_id];
        GetVolumeGroupSnapshotRequest by group_controller.get_volume_group_snapshot [group_snapshot_id];
        GetMetadataAllocatedRequest by snapshot_metadata.get_metadata_allocated [snapshot_id];
        GetMetadataDeltaRequest by snapshot_metadata.get_metadata_delta [base_snapshot_id] with v1::GetMetadataDeltaRequest {
            target_snapshot_id: "s".into(), ..Default::default()
        };
        GetMetadataDeltaRequest by snapshot_metadata.get_metadata_delta [target_snapshot_id] with v1::GetMetadataDeltaRequest {
            base_snapshot_id: "s".into(), ..Default::default()
        };
    }
}
