//! Parts of the wire contract that are easy to break: secrets that must not be printed, and the numbers of the fields
//! that older drivers still send.

#![allow(clippy::unwrap_used)] // test helpers may panic

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use wharf_csi::v1;

const PROTO: &str = include_str!("../proto/csi.proto");

/// `(message, its Debug with a secret inside)` for each of the messages.
macro_rules! printed_with_secret {
    ($($message:ident)*) => {
        [$((stringify!($message), {
            let secrets = BTreeMap::from([("user".to_owned(), "hunter2".to_owned())]);
            #[allow(clippy::needless_update)] // some messages have no other field
            let message = v1::$message { secrets, ..Default::default() };
            format!("{message:?} {message:#?}")
        })),*]
    };
}

#[test]
fn no_message_prints_its_secrets() {
    let printed = printed_with_secret!(
        CreateVolumeRequest DeleteVolumeRequest ControllerPublishVolumeRequest ControllerUnpublishVolumeRequest
        ValidateVolumeCapabilitiesRequest ControllerListVolumeHealthRequest ControllerGetVolumeHealthRequest
        ControllerModifyVolumeRequest CreateSnapshotRequest DeleteSnapshotRequest ListSnapshotsRequest
        GetSnapshotRequest ControllerExpandVolumeRequest NodeStageVolumeRequest NodePublishVolumeRequest
        NodeGetStorageHealthRequest NodeExpandVolumeRequest CreateVolumeGroupSnapshotRequest
        DeleteVolumeGroupSnapshotRequest GetVolumeGroupSnapshotRequest GetMetadataAllocatedRequest
        GetMetadataDeltaRequest
    );
    let distinct: BTreeSet<_> = printed.iter().map(|(message, _)| message).collect();
    assert_eq!(
        distinct.len(),
        PROTO.matches("[(csi_secret) = true]").count(),
        "the list above must be complete"
    );
    for (message, printed) in &printed {
        assert!(!printed.contains("hunter2") && !printed.contains("user"), "{message}: {printed}");
        assert!(printed.contains("secrets: <1 redacted>"), "{message}: {printed}");
    }
}

#[test]
fn mount_flags_are_redacted() {
    use v1::volume_capability::{AccessType, MountVolume};

    let mount = MountVolume { mount_flags: vec!["password=hunter2".to_owned()], ..Default::default() };
    let capability = v1::VolumeCapability { access_type: Some(AccessType::Mount(mount)), access_mode: None };
    let request = v1::CreateVolumeRequest { volume_capabilities: vec![capability], ..Default::default() };
    assert!(!format!("{request:?}").contains("hunter2"));
}

#[test]
fn volume_context_of_node_publish_is_redacted() {
    let key = "csi.storage.k8s.io/serviceAccount.tokens".to_owned();
    let volume_context = BTreeMap::from([(key, r#"{"vault":{"token":"hunter2"}}"#.to_owned())]);
    let request = v1::NodePublishVolumeRequest { volume_context, ..Default::default() };
    let printed = format!("{request:?} {request:#?}");
    assert!(!printed.contains("hunter2"), "{printed}");
    assert!(printed.contains("volume_context: <1 redacted>"), "{printed}");
}

/// A VolumeCondition { abnormal: true, message: "hot" } as an older driver encodes it.
const CONDITION: [u8; 7] = [0x08, 0x01, 0x12, 0x03, b'h', b'o', b't'];

/// Field number 2, length-delimited.
fn second_field(inner: &[u8]) -> Vec<u8> {
    [&[0x12, u8::try_from(inner.len()).unwrap()], inner].concat()
}

#[test]
fn volume_conditions_of_older_drivers_are_decoded() {
    let condition = Some(v1::VolumeCondition { abnormal: true, message: "hot".to_owned() });

    let stats = v1::NodeGetVolumeStatsResponse::decode(&*second_field(&CONDITION)).unwrap();
    assert_eq!(stats.volume_condition, condition);

    let got = v1::ControllerGetVolumeResponse::decode(&*second_field(&second_field(&CONDITION))).unwrap();
    assert_eq!(got.status.unwrap().volume_condition, condition);

    let entry = second_field(&second_field(&CONDITION));
    let list = [&[0x0a, u8::try_from(entry.len()).unwrap()], &*entry].concat();
    let listed = v1::ListVolumesResponse::decode(&*list).unwrap();
    assert_eq!(listed.entries[0].status.as_ref().unwrap().volume_condition, condition);
}

#[test]
fn volume_condition_capabilities_keep_their_numbers() {
    assert_eq!(v1::controller_service_capability::rpc::Type::VolumeCondition as i32, 11);
    assert_eq!(v1::node_service_capability::rpc::Type::VolumeCondition as i32, 4);
}
