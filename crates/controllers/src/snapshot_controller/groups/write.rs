//! Builds the objects and patches that group snapshot steps write, exactly as upstream writes them.

use serde_json::{Map, Value, json};
use wharf_model::group_snapshot::VolumeSnapshotInfo;
use wharf_model::patch::Patch;
use wharf_model::snapshot::names;
use wharf_model::{
    Kind, Meta, VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};

use super::super::write::{object_reference, owner_reference, precondition_without_mark};
use super::decide::NewGroupContent;

/// The content of a dynamically provisioned group.
pub(crate) fn content(group: &VolumeGroupSnapshot, new_content: &NewGroupContent) -> Value {
    let NewGroupContent { class, driver, policy, volume_handles, node, secret } = new_content;
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(names::group_content_name(&group.metadata.uid)));
    metadata.insert("finalizers".to_owned(), json!([names::GROUP_CONTENT_PROTECTION]));
    if let Some(secret) = secret {
        let annotations = json!({
            names::GROUP_DELETION_SECRET_NAME: secret.name,
            names::GROUP_DELETION_SECRET_NAMESPACE: secret.namespace,
        });
        metadata.insert("annotations".to_owned(), annotations);
    }
    if let Some(node) = node {
        metadata.insert("labels".to_owned(), json!({names::MANAGED_BY: node}));
    }
    json!({
        "apiVersion": VolumeGroupSnapshotContent::API.api_version(), "kind": VolumeGroupSnapshotContent::API.kind,
        "metadata": metadata,
        "spec": {
            "volumeGroupSnapshotRef": object_reference(group),
            "source": {"volumeHandles": volume_handles},
            "volumeGroupSnapshotClassName": class,
            "deletionPolicy": policy.as_str(),
            "driver": driver,
        },
    })
}

/// Binds a pre-provisioned content to the group snapshot, and sets its class if the group names one.
pub(crate) fn bind(content: &Meta, group: &Meta, class: Option<&str>) -> Patch {
    let mut spec = json!({"volumeGroupSnapshotRef": {"uid": group.uid}});
    if let Some(class) = class {
        spec["volumeGroupSnapshotClassName"] = json!(class);
    }
    Patch::Merge(
        json!({"metadata": precondition_without_mark(content, names::GROUP_BEING_DELETED), "spec": spec}),
    )
}

/// Sets the default class of a group snapshot that names none.
pub(crate) fn set_class(group: &Meta, class: &str) -> Patch {
    let seen = json!({"uid": group.uid, "resourceVersion": group.resource_version});
    Patch::Merge(json!({"metadata": seen, "spec": {"volumeGroupSnapshotClassName": class}}))
}

/// The VolumeSnapshot of a group member.
pub(crate) fn member(group: &VolumeGroupSnapshot, info: &VolumeSnapshotInfo, claim: &str) -> Value {
    let (name, _) = names::member_names(&group.metadata.uid, &info.volume_handle);
    json!({
        "apiVersion": VolumeSnapshot::API.api_version(), "kind": VolumeSnapshot::API.kind,
        "metadata": {
            "name": name, "namespace": group.metadata.namespace, "ownerReferences": [owner_reference(&group.metadata)],
            "finalizers": [names::IN_GROUP_PROTECTION],
        },
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    })
}

/// The VolumeSnapshotContent of a group member. It references the group's deletion secret, so that its deletion needs
/// no class.
pub(crate) fn member_content(
    group: &VolumeGroupSnapshot,
    content: &VolumeGroupSnapshotContent,
    info: &VolumeSnapshotInfo,
    volume_mode: Option<&str>,
    snapshot_uid: &str,
) -> Value {
    let (snapshot, name) = names::member_names(&group.metadata.uid, &info.volume_handle);
    let handle = content.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.as_deref());
    let mut annotations = Map::new();
    annotations.insert(names::GROUP_HANDLE.to_owned(), json!(handle.unwrap_or_default()));
    for (from, to) in [
        (names::GROUP_DELETION_SECRET_NAME, names::DELETION_SECRET_NAME),
        (names::GROUP_DELETION_SECRET_NAMESPACE, names::DELETION_SECRET_NAMESPACE),
    ] {
        if let Some(value) = content.metadata.annotation(from) {
            annotations.insert(to.to_owned(), json!(value));
        }
    }
    let finalizers = [names::CONTENT_PROTECTION];
    let mut metadata = json!({"name": name, "annotations": annotations, "finalizers": finalizers});
    if let Some(node) = content.metadata.labels.get(names::MANAGED_BY) {
        metadata["labels"] = json!({names::MANAGED_BY: node});
    }
    let mut spec = json!({
        "volumeSnapshotRef": {
            "kind": VolumeSnapshot::API.kind, "name": snapshot, "namespace": group.metadata.namespace,
            "uid": snapshot_uid,
        },
        "source": {"volumeHandle": info.volume_handle},
        "deletionPolicy": content.spec.deletion_policy.as_str(),
        "driver": content.spec.driver,
    });
    if let Some(mode) = volume_mode {
        spec["sourceVolumeMode"] = json!(mode);
    }
    json!({
        "apiVersion": VolumeSnapshotContent::API.api_version(), "kind": VolumeSnapshotContent::API.kind,
        "metadata": metadata, "spec": spec,
    })
}

/// Binds a member's content to its snapshot.
pub(crate) fn bind_member_content(content: &Meta, snapshot_uid: &str) -> Patch {
    let seen = json!({"uid": content.uid, "resourceVersion": content.resource_version});
    Patch::Merge(json!({"metadata": seen, "spec": {"volumeSnapshotRef": {"uid": snapshot_uid}}}))
}

/// The status of a member's content, from the driver's response.
pub(crate) fn member_status(group_handle: Option<&str>, info: &VolumeSnapshotInfo) -> Value {
    let VolumeSnapshotInfo { snapshot_handle, creation_time, ready_to_use, restore_size, .. } = info;
    json!({
        "snapshotHandle": snapshot_handle, "volumeGroupSnapshotHandle": group_handle, "creationTime": creation_time,
        "restoreSize": restore_size, "readyToUse": ready_to_use,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> VolumeGroupSnapshot {
        serde_json::from_value(json!({"metadata": {"name": "g", "namespace": "shop", "uid": "a"}})).unwrap()
    }

    /// sidecars.md 1.4 "Group": the objects of a member.
    #[test]
    fn member_objects_have_all_upstream_fields() {
        let content: VolumeGroupSnapshotContent = serde_json::from_value(json!({
            "metadata": {"name": "gc", "labels": {names::MANAGED_BY: "n"}, "annotations": {
                names::GROUP_DELETION_SECRET_NAME: "s", names::GROUP_DELETION_SECRET_NAMESPACE: "t",
            }},
            "spec": {"driver": "d", "deletionPolicy": "Delete"},
            "status": {"volumeGroupSnapshotHandle": "gh"},
        }))
        .unwrap();
        let info = VolumeSnapshotInfo {
            volume_handle: "bc".into(),
            snapshot_handle: "sh".into(),
            creation_time: Some(7),
            ready_to_use: Some(true),
            restore_size: None,
        };
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(
            member(&group(), &info, "data"),
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "metadata": {
                    "name": format!("snapshot-{digits}"), "namespace": "shop",
                    "ownerReferences": [{
                        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot", "name": "g",
                        "uid": "a",
                    }],
                    "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"],
                },
                "spec": {"source": {"persistentVolumeClaimName": "data"}},
            })
        );
        assert_eq!(
            member_content(&group(), &content, &info, Some("Filesystem"), "u"),
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
                "metadata": {
                    "name": format!("snapcontent-{digits}"),
                    "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
                    "labels": {"snapshot.storage.kubernetes.io/managed-by": "n"},
                    "annotations": {
                        "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": "gh",
                        "snapshot.storage.kubernetes.io/deletion-secret-name": "s",
                        "snapshot.storage.kubernetes.io/deletion-secret-namespace": "t",
                    },
                },
                "spec": {
                    "volumeSnapshotRef": {
                        "kind": "VolumeSnapshot", "name": format!("snapshot-{digits}"), "namespace": "shop",
                        "uid": "u",
                    },
                    "source": {"volumeHandle": "bc"}, "deletionPolicy": "Delete", "driver": "d",
                    "sourceVolumeMode": "Filesystem",
                },
            })
        );
        assert_eq!(
            member_status(Some("gh"), &info),
            json!({
                "snapshotHandle": "sh", "volumeGroupSnapshotHandle": "gh", "creationTime": 7, "restoreSize": null,
                "readyToUse": true,
            })
        );
    }
}
