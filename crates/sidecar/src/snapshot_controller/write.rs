//! What each step writes and tells, word by word as upstream does.

use serde_json::{Map, Value, json};
use wharf_model::patch::Patch;
use wharf_model::snapshot::{SnapshotFault, names};
use wharf_model::{Kind, Meta, Time, VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotContent};

use super::decide::{Creation, Fault};
use super::mirror;

/// A change of an object that holds only for what was seen: this identity, this version.
fn seen(meta: &Meta) -> Value {
    json!({"uid": meta.uid, "resourceVersion": meta.resource_version})
}

/// A change of status.
pub(crate) fn status(meta: &Meta, status: &Value) -> Patch {
    Patch::Merge(json!({"metadata": seen(meta), "status": status}))
}

/// The status that tells a fault; `None` if it is told already.
pub(crate) fn fault(told: Option<&SnapshotFault>, fault: &Fault, now: Time) -> Option<Value> {
    if told.is_some_and(|told| told.message.as_deref() == Some(&fault.message)) {
        return None;
    }
    let error = SnapshotFault { time: Some(now), message: Some(fault.message.clone()) };
    let mut status = json!({"error": mirror::fault(&error)});
    if fault.unready {
        status["readyToUse"] = json!(false);
    }
    Some(status)
}

/// A reference to an object, with all that Kubernetes' own references have.
pub(crate) fn reference<K: Kind>(object: &K) -> Value {
    let Meta { name, namespace, uid, resource_version, .. } = object.meta();
    json!({
        "apiVersion": K::API.api_version(), "kind": K::API.kind, "name": name, "namespace": namespace, "uid": uid,
        "resourceVersion": resource_version,
    })
}

/// The content of a snapshot that is to be taken.
pub(crate) fn content(snapshot: &VolumeSnapshot, creation: &Creation) -> Value {
    let Creation { class, driver, policy, volume_handle, volume_mode, node, secret } = creation;
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(names::content_name(&snapshot.metadata.uid)));
    // From the start: a write of its own would be in the way of the snapshotter's first one.
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
        "volumeSnapshotRef": reference(snapshot),
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

/// What is seen of a content that there was already, without the word that a snapshot of before was going: a
/// snapshotter would take it for this one's.
pub(crate) fn unmarked(content: &Meta, being_deleted: &str) -> Value {
    let mut metadata = seen(content);
    if content.annotation(being_deleted).is_some() {
        metadata["annotations"] = json!({being_deleted: null});
    }
    metadata
}

/// A content that there was already gets the snapshot's identity, and its class if it names one.
pub(crate) fn bind(content: &Meta, snapshot: &Meta, class: Option<&str>) -> Patch {
    let mut spec = json!({"volumeSnapshotRef": {"uid": snapshot.uid}});
    if let Some(class) = class {
        spec["volumeSnapshotClassName"] = json!(class);
    }
    Patch::Merge(json!({"metadata": unmarked(content, names::BEING_DELETED), "spec": spec}))
}

/// The default class.
pub(crate) fn class(snapshot: &Meta, class: &str) -> Patch {
    Patch::Merge(json!({"metadata": seen(snapshot), "spec": {"volumeSnapshotClassName": class}}))
}

/// The owner that a member of a group has.
pub(crate) fn owner(group: &Meta) -> Value {
    let Meta { name, uid, .. } = group;
    let (version, kind) = (VolumeGroupSnapshot::API.api_version(), VolumeGroupSnapshot::API.kind);
    json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid})
}

/// A snapshot gets its group as an owner beside those that it has.
pub(crate) fn adopt(snapshot: &Meta, group: &Meta) -> Patch {
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": snapshot.uid}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": snapshot.resource_version}),
    ];
    operations.push(match snapshot.owner_references.is_empty() {
        true => json!({"op": "add", "path": "/metadata/ownerReferences", "value": [owner(group)]}),
        false => json!({"op": "add", "path": "/metadata/ownerReferences/-", "value": owner(group)}),
    });
    Patch::Json(Value::Array(operations))
}

/// Why a snapshot that belongs to a group is not deleted by itself.
pub(crate) fn belongs_to(snapshot: &str, group: &str) -> String {
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

    /// sidecars.md 1.4 "Create": the whole content.
    #[test]
    fn a_content() {
        let least = Creation {
            class: "fast".into(),
            driver: "d.test".into(),
            policy: DeletionPolicy::Delete,
            volume_handle: "h".into(),
            volume_mode: None,
            node: None,
            secret: None,
        };
        let made = json!({
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
        assert_eq!(content(&snapshot(), &least), made);
        let full = Creation {
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

    /// A content that was kept when its snapshot went is another's now, who is not going.
    #[test]
    fn a_content_is_bound() {
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

    /// sidecars.md 1.4 "Status": an error is told once.
    #[test]
    fn faults() {
        let told = |message: &str| SnapshotFault { time: None, message: Some(message.to_owned()) };
        let now = Time(1_767_225_600_000);
        let (unready, aside) = (Fault::new("R", "no"), Fault::new("R", "no").aside());
        let error = json!({"time": "2026-01-01T00:00:00Z", "message": "no"});
        assert_eq!(fault(Some(&told("no")), &unready, now), None);
        assert_eq!(
            fault(Some(&told("other")), &unready, now),
            Some(json!({"error": error, "readyToUse": false}))
        );
        assert_eq!(fault(None, &aside, now), Some(json!({"error": error})));
    }

    #[test]
    fn owners_are_added() {
        let group = Meta { name: "g".into(), uid: "gu".into(), ..Meta::default() };
        let path = |meta: &Meta| match adopt(meta, &group) {
            Patch::Json(operations) => operations[2].clone(),
            other => panic!("{other:?}"),
        };
        let reference = json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot", "name": "g", "uid": "gu",
        });
        let alone = json!({"op": "add", "path": "/metadata/ownerReferences", "value": [reference]});
        assert_eq!(path(&Meta::default()), alone);
        let owned = Meta { owner_references: vec![wharf_model::OwnerRef::default()], ..Meta::default() };
        let beside = json!({"op": "add", "path": "/metadata/ownerReferences/-", "value": reference});
        assert_eq!(path(&owned), beside);
    }
}
