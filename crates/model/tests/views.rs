//! Decodes slim views of objects as an API server returns them: unused fields are skipped; unknown values, and `null`
//! instead of a list, do not make an object undecodable.

use serde_json::json;
use wharf_model::claim::{AccessMode, ClaimPhase, ModifyStatus, ResizeStatus};
use wharf_model::volume::{ReclaimPolicy, VolumePhase};
use wharf_model::{
    CSIDriver, CSINode, CSIStorageCapacity, Key, Kind, Lease, Node, PersistentVolume, PersistentVolumeClaim,
    Scope, StorageClass, VolumeAttachment, VolumeAttributesClass, VolumeMode, VolumeSnapshot,
    VolumeSnapshotClass, VolumeSnapshotContent,
};

fn read<K: Kind>(value: serde_json::Value) -> K {
    serde_json::from_value(value).expect("a decodable object")
}

#[test]
fn claim_is_decoded() {
    let claim: PersistentVolumeClaim = read(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data", "namespace": "shop", "uid": "u1", "resourceVersion": "42",
            "creationTimestamp": "2026-11-15T10:20:30Z", "managedFields": [{"manager": "kubectl"}],
            "finalizers": ["kubernetes.io/pvc-protection"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce", "SomethingNew"],
            "resources": {"requests": {"storage": "10Gi", "other": "1"}},
            "storageClassName": "fast", "volumeName": "pv1", "volumeMode": "Block",
            "selector": {"matchLabels": {"a": "b"}},
            "dataSourceRef": {"apiGroup": "x.example.com", "kind": "Thing", "name": "t"},
            "volumeAttributesClassName": "gold",
        },
        "status": {
            "phase": "Bound", "capacity": {"storage": "5Gi"},
            "conditions": [{
                "type": "Resizing", "status": "True", "lastProbeTime": null,
                "lastTransitionTime": "2026-11-15T10:20:31Z", "message": "m",
            }],
            "allocatedResources": {"storage": "10Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "currentVolumeAttributesClassName": "silver",
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "InProgress"},
        },
    }));
    assert_eq!(claim.key(), Key::namespaced("shop", "data"));
    assert_eq!(claim.spec.access_modes, [AccessMode::ReadWriteOnce, AccessMode::Unknown]);
    assert_eq!(claim.requested_storage().map(|size| size.bytes()), Some(10 << 30));
    assert_eq!(claim.volume_mode(), VolumeMode::Block);
    assert!(claim.spec.selector.is_some());
    assert_eq!(claim.data_source().map(|source| source.kind.as_str()), Some("Thing"));
    assert_eq!(claim.class(), Some("fast"));
    assert_eq!(claim.status.phase, ClaimPhase::Bound);
    assert_eq!(claim.status.condition("Resizing").map(|condition| condition.message.as_str()), Some("m"));
    assert_eq!(claim.status.allocated_resource_statuses.storage, Some(ResizeStatus::NodeResizePending));
    assert_eq!(claim.status.modify_volume_status.map(|status| status.status), Some(ModifyStatus::InProgress));
}

#[test]
fn class_annotation_takes_precedence() {
    let claim: PersistentVolumeClaim = read(json!({
        "metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}},
        "spec": {"storageClassName": "new"},
    }));
    assert_eq!(claim.class(), Some("old"));
}

/// sidecars.md 1.1 "Selects PVC": newer annotations win over older ones.
#[test]
fn provisioner_and_selected_node_are_read_from_annotations() {
    let with = |annotations| read::<PersistentVolumeClaim>(json!({"metadata": {"annotations": annotations}}));
    for (annotations, provisioner, node) in [
        (json!({}), None, None),
        (json!({"volume.beta.kubernetes.io/storage-provisioner": "old"}), Some("old"), None),
        (
            json!({
                "volume.beta.kubernetes.io/storage-provisioner": "old",
                "volume.kubernetes.io/storage-provisioner": "new",
            }),
            Some("new"),
            None,
        ),
        (json!({"volume.alpha.kubernetes.io/selected-node": "a"}), None, Some("a")),
        (
            json!({"volume.alpha.kubernetes.io/selected-node": "a", "volume.kubernetes.io/selected-node": "b"}),
            None,
            Some("b"),
        ),
        (json!({"volume.kubernetes.io/selected-node": ""}), None, None),
    ] {
        let claim = with(annotations);
        assert_eq!((claim.provisioner(), claim.selected_node()), (provisioner, node));
    }
}

#[test]
fn volume_is_decoded() {
    let volume: PersistentVolume = read(json!({
        "metadata": {"name": "pv1"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"],
            "csi": {
                "driver": "d", "volumeHandle": "h", "readOnly": true, "fsType": "xfs",
                "volumeAttributes": {"k": "v"}, "nodeStageSecretRef": {"name": "s", "namespace": "n"},
                "controllerPublishSecretRef": {"name": "s", "namespace": "n"},
            },
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data", "uid": "u1"},
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "fast", "mountOptions": null,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
            ]}},
        },
        "status": {"phase": "Released"},
    }));
    assert!(volume.is_for_driver("d") && !volume.is_for_driver("e"));
    let claim = read::<PersistentVolumeClaim>(
        json!({"metadata": {"name": "data", "namespace": "shop", "uid": "u1"}}),
    );
    assert!(volume.is_bound_to(&claim.metadata));
    let other = read::<PersistentVolumeClaim>(
        json!({"metadata": {"name": "data", "namespace": "shop", "uid": "u2"}}),
    );
    assert!(!volume.is_bound_to(&other.metadata));
    assert_eq!(volume.spec.persistent_volume_reclaim_policy, ReclaimPolicy::Delete);
    assert_eq!(volume.status.phase, VolumePhase::Released);
    assert_eq!(volume.spec.volume_mode(), VolumeMode::Filesystem);

    let nfs: PersistentVolume =
        read(json!({"metadata": {"name": "x"}, "spec": {"nfs": {"server": "s", "path": "/"}}}));
    assert!(nfs.spec.csi.is_none() && !nfs.is_for_driver("d"));
}

#[test]
fn storage_class_is_decoded() {
    let class: StorageClass = read(json!({
        "metadata": {"name": "fast"}, "provisioner": "d", "parameters": {"a": "b"},
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}],
    }));
    assert!(class.waits_for_first_consumer());
    assert_eq!(class.reclaim_policy(), ReclaimPolicy::Delete);
    assert_eq!(class.allowed_topologies[0].match_label_expressions[0].values, ["a", "b"]);

    let class: VolumeAttributesClass =
        read(json!({"metadata": {"name": "gold"}, "driverName": "d", "parameters": {"iops": "9"}}));
    assert_eq!((class.driver_name.as_str(), class.parameters["iops"].as_str()), ("d", "9"));

    let class: VolumeSnapshotClass = read(
        json!({"metadata": {"name": "s"}, "driver": "d", "deletionPolicy": "Delete", "parameters": null}),
    );
    assert_eq!(class.driver, "d");
}

#[test]
fn volume_attachment_is_decoded() {
    let attachment: VolumeAttachment = read(json!({
        "metadata": {"name": "csi-1"},
        "spec": {"attacher": "d", "nodeName": "node-a", "source": {"persistentVolumeName": "pv1"}},
        "status": {"attached": false, "attachError": {"time": "2026-11-15T10:20:30Z", "message": "no", "errorCode": 8}},
    }));
    assert_eq!(attachment.spec.source.persistent_volume_name.as_deref(), Some("pv1"));
    assert_eq!(attachment.status.attach_error.and_then(|error| error.error_code), Some(8));

    let inline: VolumeAttachment = read(json!({
        "spec": {"attacher": "d", "source": {"inlineVolumeSpec": {"csi": {"driver": "d", "volumeHandle": "h"}}}},
    }));
    let spec = inline.spec.source.inline_volume_spec.unwrap();
    assert_eq!(spec.csi.unwrap().volume_handle, "h");
}

#[test]
fn node_and_csi_node_are_decoded() {
    let node: CSINode = read(json!({
        "metadata": {"name": "node-a"},
        "spec": {"drivers": [{"name": "d", "nodeID": "i-1", "topologyKeys": ["zone"], "allocatable": {"count": 3}},
                             {"name": "e", "nodeID": "i-2", "topologyKeys": null}]},
    }));
    assert_eq!(node.driver("d").map(|driver| driver.node_id.as_str()), Some("i-1"));
    assert!(node.driver("e").is_some_and(|driver| driver.topology_keys.is_empty()));
    assert!(node.driver("f").is_none());
    assert!(read::<CSINode>(json!({"spec": {"drivers": null}})).spec.drivers.is_empty());

    let node: Node = read(json!({
        "metadata": {"name": "node-a", "labels": {"zone": "a"}},
        "status": {"images": [], "conditions": null, "volumesInUse": null},
    }));
    assert_eq!(node.metadata.labels.get("zone"), Some("a"));
    assert!(node.status.volumes_in_use.is_empty() && node.ready.is_none());
}

#[test]
fn snapshots_are_decoded() {
    let snapshot: VolumeSnapshot = read(json!({
        "metadata": {"name": "s", "namespace": "shop"},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
        "status": {"boundVolumeSnapshotContentName": "c", "readyToUse": true, "restoreSize": "1Gi"},
    }));
    assert_eq!(
        snapshot.status.and_then(|status| status.restore_size).map(|size| size.bytes()),
        Some(1 << 30)
    );
    let content: VolumeSnapshotContent = read(json!({
        "metadata": {"name": "c"},
        "spec": {
            "driver": "d", "deletionPolicy": "Retain", "source": {"volumeHandle": "h"}, "sourceVolumeMode": "Filesystem",
            "volumeSnapshotRef": {"namespace": "shop", "name": "s", "uid": "u"},
        },
        "status": {"snapshotHandle": "sh", "readyToUse": true, "restoreSize": 1073741824},
    }));
    assert_eq!(content.status.and_then(|status| status.restore_size), Some(1 << 30));
    assert_eq!(content.spec.volume_snapshot_ref.uid, "u");
}

#[test]
fn small_kinds_are_decoded() {
    let driver: CSIDriver = read(json!({"metadata": {"name": "d"}, "spec": {"attachRequired": false}}));
    assert_eq!(driver.spec.attach_required, Some(false));
    let capacity: CSIStorageCapacity = read(json!({
        "metadata": {"name": "csisc-1", "namespace": "n"}, "storageClassName": "fast", "capacity": "3Gi",
        "nodeTopology": {"matchLabels": {"zone": "a"}},
    }));
    assert_eq!(capacity.node_topology.unwrap().match_labels["zone"], "a");
    let lease: Lease = read(json!({
        "metadata": {"name": "l", "namespace": "n"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-11-15T10:20:30.123456Z",
                 "acquireTime": null, "leaseTransitions": 3},
    }));
    assert_eq!(lease.spec.holder_identity.as_deref(), Some("me"));
    assert!(lease.spec.renew_time.is_some() && lease.spec.acquire_time.is_none());
}

#[test]
fn api_paths_follow_group_and_scope() {
    assert_eq!(
        PersistentVolumeClaim::API.object_path(&Key::namespaced("shop", "data")),
        "/api/v1/namespaces/shop/persistentvolumeclaims/data"
    );
    assert_eq!(VolumeAttachment::API.collection_path(None), "/apis/storage.k8s.io/v1/volumeattachments");
    assert_eq!(Lease::API.api_version(), "coordination.k8s.io/v1");
    assert_eq!(CSIStorageCapacity::API.scope, Scope::Namespaced);
}
