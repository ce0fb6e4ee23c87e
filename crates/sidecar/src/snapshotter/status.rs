//! What the snapshotter writes into contents: each a patch that names what it changes and the object's identity, and
//! nothing else. A patch on which something hangs holds only for the version that was seen.

use serde_json::{Map, Value, json};
use wharf_model::patch::{Patch, add_finalizer, remove_finalizer};
use wharf_model::snapshot::names::MANAGED_BY;
use wharf_model::{Meta, Time};

use super::memory::Failure;
use super::view::Object;

/// How a snapshot is, as the driver said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Answer {
    /// The driver's name for it.
    pub(super) handle: String,
    /// Whether one can restore from it.
    pub(super) ready: bool,
    /// When it was cut, in nanoseconds since 1970.
    pub(super) created: i64,
    /// How big a volume restored from it has to be, in bytes; 0 if the driver does not say.
    pub(super) size: i64,
    /// The group it belongs to.
    pub(super) group: Option<String>,
    /// The members of a group that was made.
    pub(super) members: Vec<Member>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// The volume it is of.
    pub(super) volume: String,
    /// The driver's name for it.
    pub(super) handle: String,
    /// When it was cut, in nanoseconds since 1970, if the driver says.
    pub(super) created: Option<i64>,
    /// Whether one can restore from it.
    pub(super) ready: bool,
    /// How big a volume restored from it has to be; 0 if the driver does not say.
    pub(super) size: i64,
}

fn of_status(meta: &Meta, version: bool, status: Value) -> Patch {
    let mut metadata = json!({"uid": meta.uid});
    if version {
        metadata["resourceVersion"] = json!(meta.resource_version);
    }
    Patch::Merge(json!({"metadata": metadata, "status": status}))
}

/// What the status has to say after an answer; `None` if it says so already. What it has is not replaced, but for
/// whether it is ready.
pub(super) fn told(object: &Object, answer: &Answer) -> Option<Patch> {
    let mut status = Map::new();
    let mut lacks = |name: &str, there: bool, value: Value| {
        if !there && !value.is_null() {
            status.insert(name.to_owned(), value);
        }
    };
    let ready = match object {
        Object::Snapshot(content) => {
            let old = content.status.clone().unwrap_or_default();
            let size = Some(answer.size).filter(|size| *size > 0);
            lacks("snapshotHandle", old.snapshot_handle.is_some(), json!(answer.handle));
            lacks("creationTime", old.creation_time.is_some(), json!(answer.created));
            lacks("restoreSize", old.restore_size.is_some(), json!(size));
            let in_group = old.volume_group_snapshot_handle.is_some();
            lacks("volumeGroupSnapshotHandle", in_group, json!(answer.group));
            old.ready_to_use
        }
        Object::Group(content) => {
            let old = content.status.clone().unwrap_or_default();
            let created = Time(answer.created.div_euclid(1_000_000)).to_string();
            lacks(
                "volumeGroupSnapshotHandle",
                old.volume_group_snapshot_handle.is_some(),
                json!(answer.handle),
            );
            lacks("creationTime", old.creation_time.is_some(), json!(created));
            let members = (!answer.members.is_empty()).then(|| members(&answer.members));
            let listed = old.volume_snapshot_info_list.is_some_and(|list| !list.is_empty());
            lacks("volumeSnapshotInfoList", listed, json!(members));
            old.ready_to_use
        }
    };
    lacks("readyToUse", ready == Some(answer.ready), json!(answer.ready));
    if answer.ready && object.fault().is_some() && ready != Some(true) {
        status.insert("error".to_owned(), Value::Null);
    }
    (!status.is_empty()).then(|| of_status(object.meta(), false, Value::Object(status)))
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

/// The status shall say what failed; `None` if it does. Holds for this version only: it must not take from another's
/// snapshot that it is ready.
pub(super) fn failed(object: &Object, failure: &Failure) -> Option<Patch> {
    let message = full_message(object, failure);
    if object.fault().and_then(|fault| fault.message.as_deref()) == Some(message.as_str()) {
        return None;
    }
    let error = json!({"time": failure.at.to_string(), "message": message});
    Some(of_status(object.meta(), true, json!({"readyToUse": false, "error": error})))
}

/// The reason of the event that tells of a failure.
pub(super) fn reason(object: &Object, failure: &Failure) -> &'static str {
    object.words().failed(failure.doing).0
}

/// A failure in the words of status and event.
pub(super) fn full_message(object: &Object, failure: &Failure) -> String {
    format!("{}: {}", object.words().failed(failure.doing).1, failure.message)
}

/// The status of a snapshot that is no more; `None` if it says nothing of one.
pub(super) fn cleared(object: &Object) -> Option<Patch> {
    object.handle()?;
    let status = match object {
        Object::Snapshot(_) => {
            json!({"snapshotHandle": null, "readyToUse": null, "creationTime": null, "restoreSize": null})
        }
        Object::Group(_) => json!({
            "volumeGroupSnapshotHandle": null, "readyToUse": null, "creationTime": null, "error": null,
        }),
    };
    Some(of_status(object.meta(), false, status))
}

/// A step of a JSON pointer.
fn step(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn same_object(meta: &Meta) -> Value {
    json!({"op": "test", "path": "/metadata/uid", "value": meta.uid})
}

/// Before the driver is asked to make it: our finalizer, and the mark that says so, in one write. Fails if the content
/// has begun to go meanwhile, or has somebody else's mark.
pub(super) fn marked(object: &Object) -> Patch {
    let (meta, words) = (object.meta(), object.words());
    let mut operations = match add_finalizer(meta, words.finalizer) {
        Some(Patch::Json(Value::Array(operations))) => operations,
        _ => vec![same_object(meta)],
    };
    if meta.annotations.is_empty() {
        // There is no map to add to. If somebody has begun one since, this fails and is tried again.
        operations.push(json!({"op": "test", "path": "/metadata/annotations", "value": null}));
        let annotations = json!({words.being_created: "yes"});
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": annotations}));
    } else {
        let path = |key| format!("/metadata/annotations/{}", step(key));
        for absent in [words.being_deleted, words.being_created] {
            operations.push(json!({"op": "test", "path": path(absent), "value": null}));
        }
        operations.push(json!({"op": "add", "path": path(words.being_created), "value": "yes"}));
    }
    Patch::Json(Value::Array(operations))
}

/// The mark off. Because the driver has made nothing (`ended`): for this version only, since somebody may have asked
/// the driver again.
pub(super) fn unmarked(object: &Object, ended: bool) -> Patch {
    let meta = object.meta();
    let mut metadata = json!({"uid": meta.uid, "annotations": {object.words().being_created: null}});
    if ended {
        metadata["resourceVersion"] = json!(meta.resource_version);
    }
    Patch::Merge(json!({"metadata": metadata}))
}

/// Our finalizer off; `None` if it is. For this version only: in another one the driver may have made something.
pub(super) fn released(object: &Object) -> Option<Patch> {
    let meta = object.meta();
    match remove_finalizer(meta, object.words().finalizer)? {
        Patch::Json(Value::Array(mut operations)) => {
            let version =
                json!({"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version});
            operations.insert(1, version);
            Some(Patch::Json(Value::Array(operations)))
        }
        other => Some(other),
    }
}

/// The content is this node's from now on.
pub(super) fn claimed(object: &Object, node: &str) -> Patch {
    let meta = object.meta();
    let (uid, version) = (&meta.uid, &meta.resource_version);
    Patch::Merge(json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": {MANAGED_BY: node}}}))
}
