//! Builds the objects, patches and event messages of each step, exactly as upstream writes them.

use serde_json::{Map, Value, json};
use wharf_model::patch::Patch;
use wharf_model::snapshot::{VolumeSnapshotError, names};
use wharf_model::{Kind, Meta, Time, VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotContent};

use super::decide::{Failure, NewContent};
use super::mirror;

/// Metadata that restricts a patch to this UID and resourceVersion.
fn precondition(meta: &Meta) -> Value {
    json!({"uid": meta.uid, "resourceVersion": meta.resource_version})
}

/// Builds the patch that changes the status.
pub(crate) fn status(meta: &Meta, status: &Value) -> Patch {
    Patch::Merge(json!({"metadata": precondition(meta), "status": status}))
}

/// The status that reports a failure, or `None` if the object already reports it.
pub(crate) fn error_status(
    reported: Option<&VolumeSnapshotError>,
    failure: &Failure,
    now: Time,
) -> Option<Value> {
    if reported.is_some_and(|reported| reported.message.as_deref() == Some(&failure.message)) {
        return None;
    }
    let error = VolumeSnapshotError { time: Some(now), message: Some(failure.message.clone()) };
    let mut status = json!({"error": mirror::error_json(&error)});
    if failure.unready {
        status["readyToUse"] = json!(false);
    }
    Some(status)
}

/// A full object reference.
pub(crate) fn object_reference<K: Kind>(object: &K) -> Value {
    let Meta { name, namespace, uid, resource_version, .. } = object.meta();
    json!({
        "apiVersion": K::API.api_version(), "kind": K::API.kind, "name": name, "namespace": namespace, "uid": uid,
        "resourceVersion": resource_version,
    })
}

/// The content of a dynamically provisioned snapshot.
pub(crate) fn content(snapshot: &VolumeSnapshot, new_content: &NewContent) -> Value {
    let NewContent { class, driver, policy, volume_handle, volume_mode, node, secret } = new_content;
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(names::content_name(&snapshot.metadata.uid)));
    // Set at creation: a later write would conflict with the snapshotter's first one.
    metadata.insert("finalizers".to_owned(), json!([names::CONTENT_PROTECTION]));
    if let Some(secret) = secret {
        let annotations = json!({
            names::DELETION_SECRET_NAME: secret.name,
            names::DELETION_SECRET_NAMESPACE: secret.namespace,
        });
        metadata.insert("annotations".to_owned(), annotations);
    }
    if let Some(node) = node {
        metadata.insert("labels".to_owned(), json!({names::MANAGED_BY: node}));
    }
    let mut spec = json!({
        "volumeSnapshotRef": object_reference(snapshot),
        "source": {"volumeHandle": volume_handle},
        "volumeSnapshotClassName": class,
        "deletionPolicy": policy.as_str(),
        "driver": driver,
    });
    if let Some(mode) = volume_mode {
        spec["sourceVolumeMode"] = json!(mode);
    }
    json!({
        "apiVersion": VolumeSnapshotContent::API.api_version(), "kind": VolumeSnapshotContent::API.kind,
        "metadata": metadata, "spec": spec,
    })
}

/// The precondition for a patch of a pre-provisioned content. Also removes the being-deleted annotation that an earlier
/// snapshot left, because a snapshotter would assume that the new snapshot is being deleted.
pub(crate) fn precondition_without_mark(content: &Meta, being_deleted: &str) -> Value {
    let mut metadata = precondition(content);
    if content.annotation(being_deleted).is_some() {
        metadata["annotations"] = json!({being_deleted: null});
    }
    metadata
}

/// Binds a pre-provisioned content to the snapshot, and sets its class if the snapshot names one.
pub(crate) fn bind(content: &Meta, snapshot: &Meta, class: Option<&str>) -> Patch {
    let mut spec = json!({"volumeSnapshotRef": {"uid": snapshot.uid}});
    if let Some(class) = class {
        spec["volumeSnapshotClassName"] = json!(class);
    }
    Patch::Merge(json!({"metadata": precondition_without_mark(content, names::BEING_DELETED), "spec": spec}))
}

/// Sets the default class of a snapshot that names none.
pub(crate) fn set_class(snapshot: &Meta, class: &str) -> Patch {
    Patch::Merge(json!({"metadata": precondition(snapshot), "spec": {"volumeSnapshotClassName": class}}))
}

/// The owner reference of a group member.
pub(crate) fn owner_reference(group: &Meta) -> Value {
    let Meta { name, uid, .. } = group;
    let (version, kind) = (VolumeGroupSnapshot::API.api_version(), VolumeGroupSnapshot::API.kind);
    json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid})
}

/// Adds the group to the owners of a snapshot.
pub(crate) fn set_owner(snapshot: &Meta, group: &Meta) -> Patch {
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": snapshot.uid}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": snapshot.resource_version}),
    ];
    operations.push(match snapshot.owner_references.is_empty() {
        true => json!({"op": "add", "path": "/metadata/ownerReferences", "value": [owner_reference(group)]}),
        false => json!({"op": "add", "path": "/metadata/ownerReferences/-", "value": owner_reference(group)}),
    });
    Patch::Json(Value::Array(operations))
}

/// Why a member of a group cannot be deleted on its own.
pub(crate) fn member_delete_note(snapshot: &str, group: &str) -> String {
    format!(
        "deletion of the individual volume snapshot {snapshot} is not allowed as it belongs to group snapshot {group}. Deleting the group snapshot will trigger the deletion of all the individual volume snapshots that are part of the group."
    )
}

#[cfg(test)]
mod tests {
    use wharf_model::SecretRef;
    use wharf_model::snapshot::DeletionPolicy;

    use super::*;

    fn snapshot() -> VolumeSnapshot {
        let metadata = json!({"name": "s", "namespace": "shop", "uid": "u", "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    /// sidecars.md 1.4 "Create": the complete content.
    #[test]
    fn new_content_has_all_upstream_fields() {
        let least = NewContent {
            class: "fast".into(),
            driver: "d.test".into(),
            policy: DeletionPolicy::Delete,
            volume_handle: "h".into(),
            volume_mode: None,
            node: None,
            secret: None,
        };
        let expected = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": "snapcontent-u",
                "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
            },
            "spec": {
                "volumeSnapshotRef": {
                    "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "name": "s",
                    "namespace": "shop", "uid": "u", "resourceVersion": "7",
                },
                "source": {"volumeHandle": "h"}, "volumeSnapshotClassName": "fast", "deletionPolicy": "Delete",
                "driver": "d.test",
            },
        });
        assert_eq!(content(&snapshot(), &least), expected);
        let full = NewContent {
            volume_mode: Some("Block"),
            node: Some("n".into()),
            secret: Some(SecretRef { name: "a".into(), namespace: "b".into() }),
            ..least
        };
        let content = content(&snapshot(), &full);
        assert_eq!(content["spec"]["sourceVolumeMode"], "Block");
        assert_eq!(content["metadata"]["labels"], json!({"snapshot.storage.kubernetes.io/managed-by": "n"}));
        assert_eq!(
            content["metadata"]["annotations"],
            json!({
                "snapshot.storage.kubernetes.io/deletion-secret-name": "a",
                "snapshot.storage.kubernetes.io/deletion-secret-namespace": "b",
            })
        );
    }

    /// A retained content is bound to a new snapshot, which is not being deleted.
    #[test]
    fn binding_removes_being_deleted_annotation() {
        let mut kept = Meta { name: "c".into(), uid: "k".into(), ..Meta::default() };
        kept.resource_version = "3".into();
        let of = Meta { uid: "u".into(), ..Meta::default() };
        let seen = json!({"uid": "k", "resourceVersion": "3"});
        let bound = json!({"volumeSnapshotRef": {"uid": "u"}});
        assert_eq!(bind(&kept, &of, None), Patch::Merge(json!({"metadata": seen, "spec": bound})));
        let marked = json!({"name": "c", "uid": "k", "resourceVersion": "3", "annotations": {
            names::BEING_DELETED: "yes", "other": "stays",
        }});
        let marked: Meta = serde_json::from_value(marked).unwrap();
        let seen = json!({"uid": "k", "resourceVersion": "3", "annotations": {names::BEING_DELETED: null}});
        let bound = json!({"volumeSnapshotRef": {"uid": "u"}, "volumeSnapshotClassName": "fast"});
        assert_eq!(bind(&marked, &of, Some("fast")), Patch::Merge(json!({"metadata": seen, "spec": bound})));
    }

    /// sidecars.md 1.4 "Status": an error is reported once.
    #[test]
    fn repeated_error_is_not_written_again() {
        let reported = |message: &str| VolumeSnapshotError { time: None, message: Some(message.to_owned()) };
        let now = Time(1_767_225_600_000);
        let (unready, aside) = (Failure::new("R", "no"), Failure::new("R", "no").without_readiness());
        let error = json!({"time": "2026-01-01T00:00:00Z", "message": "no"});
        assert_eq!(error_status(Some(&reported("no")), &unready, now), None);
        assert_eq!(
            error_status(Some(&reported("other")), &unready, now),
            Some(json!({"error": error, "readyToUse": false}))
        );
        assert_eq!(error_status(None, &aside, now), Some(json!({"error": error})));
    }

    #[test]
    fn owner_is_appended_to_existing_ones() {
        let group = Meta { name: "g".into(), uid: "gu".into(), ..Meta::default() };
        let path = |meta: &Meta| match set_owner(meta, &group) {
            Patch::Json(operations) => operations[2].clone(),
            other => panic!("{other:?}"),
        };
        let reference = json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot", "name": "g", "uid": "gu",
        });
        let alone = json!({"op": "add", "path": "/metadata/ownerReferences", "value": [reference]});
        assert_eq!(path(&Meta::default()), alone);
        let owned = Meta { owner_references: vec![wharf_model::OwnerRef::default()], ..Meta::default() };
        let extra_event = json!({"op": "add", "path": "/metadata/ownerReferences/-", "value": reference});
        assert_eq!(path(&owned), extra_event);
    }
}
