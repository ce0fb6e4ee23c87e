//! Patches that the snapshotter applies to contents. Each names the object's UID and only the fields that it
//! changes. Patches whose correctness depends on the observed state also name the resourceVersion.

use serde_json::{Map, Value, json};
use wharf_model::patch::{Patch, add_finalizer, remove_finalizer};
use wharf_model::snapshot::names::MANAGED_BY;
use wharf_model::{Meta, Time};

use super::state::Failure;
use super::view::Object;

/// A snapshot or group snapshot as reported by the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SnapshotInfo {
    /// Snapshot handle.
    pub(super) handle: String,
    /// Whether volumes can be restored from it.
    pub(super) ready: bool,
    /// Creation time in nanoseconds since the Unix epoch.
    pub(super) created: i64,
    /// Minimum size in bytes of a volume restored from it; 0 if unknown.
    pub(super) size: i64,
    /// Handle of the group it belongs to.
    pub(super) group: Option<String>,
    /// The members of a created group.
    pub(super) members: Vec<Member>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// Handle of the source volume.
    pub(super) volume: String,
    /// Snapshot handle.
    pub(super) handle: String,
    /// Creation time in nanoseconds since the Unix epoch, if known.
    pub(super) created: Option<i64>,
    /// Whether volumes can be restored from it.
    pub(super) ready: bool,
    /// Minimum size in bytes of a volume restored from it; 0 if unknown.
    pub(super) size: i64,
}

fn status_patch(meta: &Meta, version: bool, status: Value) -> Patch {
    let mut metadata = json!({"uid": meta.uid});
    if version {
        metadata["resourceVersion"] = json!(meta.resource_version);
    }
    Patch::Merge(json!({"metadata": metadata, "status": status}))
}

/// Completes the status after a response; `None` if nothing is missing. Present fields are not replaced, except
/// readiness. A snapshot that is ready stays ready: the response may be older than that of another process.
pub(super) fn status(object: &Object, info: &SnapshotInfo) -> Option<Patch> {
    let mut status = Map::new();
    let mut set_if_missing = |name: &str, there: bool, value: Value| {
        if !there && !value.is_null() {
            status.insert(name.to_owned(), value);
        }
    };
    let ready = match object {
        Object::Snapshot(content) => {
            let old = content.status.clone().unwrap_or_default();
            let size = Some(info.size).filter(|size| *size > 0);
            set_if_missing("snapshotHandle", old.snapshot_handle.is_some(), json!(info.handle));
            set_if_missing("creationTime", old.creation_time.is_some(), json!(info.created));
            set_if_missing("restoreSize", old.restore_size.is_some(), json!(size));
            let in_group = old.volume_group_snapshot_handle.is_some();
            set_if_missing("volumeGroupSnapshotHandle", in_group, json!(info.group));
            old.ready_to_use
        }
        Object::Group(content) => {
            let old = content.status.clone().unwrap_or_default();
            let created = Time(info.created.div_euclid(1_000_000)).to_string();
            set_if_missing(
                "volumeGroupSnapshotHandle",
                old.volume_group_snapshot_handle.is_some(),
                json!(info.handle),
            );
            set_if_missing("creationTime", old.creation_time.is_some(), json!(created));
            let members = (!info.members.is_empty()).then(|| members(&info.members));
            let listed = old.volume_snapshot_info_list.is_some_and(|list| !list.is_empty());
            set_if_missing("volumeSnapshotInfoList", listed, json!(members));
            old.ready_to_use
        }
    };
    set_if_missing("readyToUse", ready == Some(true) || ready == Some(info.ready), json!(info.ready));
    if info.ready && object.error().is_some() && ready != Some(true) {
        status.insert("error".to_owned(), Value::Null);
    }
    (!status.is_empty()).then(|| status_patch(object.meta(), false, Value::Object(status)))
}

fn members(members: &[Member]) -> Value {
    let member = |member: &Member| {
        let mut info = json!({
            "volumeHandle": member.volume, "snapshotHandle": member.handle, "readyToUse": member.ready,
        });
        if let Some(created) = member.created {
            info["creationTime"] = json!(created);
        }
        if member.size > 0 {
            info["restoreSize"] = json!(member.size);
        }
        info
    };
    members.iter().map(member).collect()
}

/// Reports an error in the status; `None` if it is already there. Applies only to this resourceVersion: it must not
/// make a snapshot unready that another process found ready.
pub(super) fn error(object: &Object, failure: &Failure) -> Option<Patch> {
    let message = full_message(object, failure);
    if object.error().and_then(|error| error.message.as_deref()) == Some(message.as_str()) {
        return None;
    }
    let error = json!({"time": failure.time.to_string(), "message": message});
    Some(status_patch(object.meta(), true, json!({"readyToUse": false, "error": error})))
}

/// The reason of the event for a failure.
pub(super) fn event_reason(object: &Object, failure: &Failure) -> &'static str {
    object.constants().failed(failure.action).0
}

/// The message for status and event.
pub(super) fn full_message(object: &Object, failure: &Failure) -> String {
    format!("{}: {}", object.constants().failed(failure.action).1, failure.message)
}

/// Removes a deleted snapshot from the status; `None` if the status names none.
pub(super) fn clear_status(object: &Object) -> Option<Patch> {
    object.handle()?;
    let status = match object {
        Object::Snapshot(_) => {
            json!({"snapshotHandle": null, "readyToUse": null, "creationTime": null, "restoreSize": null})
        }
        Object::Group(_) => json!({
            "volumeGroupSnapshotHandle": null, "readyToUse": null, "creationTime": null, "error": null,
        }),
    };
    Some(status_patch(object.meta(), false, status))
}

/// Escapes a key for a JSON pointer.
fn escape_pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn test_uid(meta: &Meta) -> Value {
    json!({"op": "test", "path": "/metadata/uid", "value": meta.uid})
}

/// Adds our finalizer and the being-created annotation in one write, before the driver is called. Fails if the
/// content is in deletion by now or another process has marked it.
pub(super) fn mark(object: &Object) -> Patch {
    let (meta, constants) = (object.meta(), object.constants());
    let mut operations = match add_finalizer(meta, constants.finalizer) {
        Some(Patch::Json(Value::Array(operations))) => operations,
        _ => vec![test_uid(meta)],
    };
    if meta.annotations.is_empty() {
        // No map to add to. If another writer has added one since, this fails and is retried.
        operations.push(json!({"op": "test", "path": "/metadata/annotations", "value": null}));
        let annotations = json!({constants.being_created: "yes"});
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": annotations}));
    } else {
        let path = |key| format!("/metadata/annotations/{}", escape_pointer(key));
        for absent in [constants.being_deleted, constants.being_created] {
            operations.push(json!({"op": "test", "path": path(absent), "value": null}));
        }
        operations.push(json!({"op": "add", "path": path(constants.being_created), "value": "yes"}));
    }
    Patch::Json(Value::Array(operations))
}

/// Removes the being-created annotation. `pin_version`: because the driver created nothing, which holds only for
/// this resourceVersion, since another process may have called the driver since.
pub(super) fn unmark(object: &Object, pin_version: bool) -> Patch {
    let meta = object.meta();
    let mut metadata = json!({"uid": meta.uid, "annotations": {object.constants().being_created: null}});
    if pin_version {
        metadata["resourceVersion"] = json!(meta.resource_version);
    }
    Patch::Merge(json!({"metadata": metadata}))
}

/// Removes our finalizer; `None` if it is not there. Applies only to this resourceVersion: at another one the
/// driver may have created something.
pub(super) fn release(object: &Object) -> Option<Patch> {
    let meta = object.meta();
    match remove_finalizer(meta, object.constants().finalizer)? {
        Patch::Json(Value::Array(mut operations)) => {
            let version =
                json!({"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version});
            operations.insert(1, version);
            Some(Patch::Json(Value::Array(operations)))
        }
        other => Some(other),
    }
}

/// Labels the content with this node.
pub(super) fn claim(object: &Object, node: &str) -> Patch {
    let meta = object.meta();
    let (uid, version) = (&meta.uid, &meta.resource_version);
    Patch::Merge(json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": {MANAGED_BY: node}}}))
}
