//! Copies a group content's status to its group snapshot.

use serde_json::{Map, Value, json};
use wharf_model::{VolumeGroupSnapshot, VolumeGroupSnapshotContent};

use super::super::mirror::{StatusUpdate, error_json};
use super::view::is_ready;

/// The fields to change; `None` if the status is complete. Fields once set stay, except readiness and error.
pub(crate) fn status_update(
    group: &VolumeGroupSnapshot,
    content: &VolumeGroupSnapshotContent,
) -> Option<StatusUpdate> {
    let current = group.status.clone().unwrap_or_default();
    let content_status = content.status.clone().unwrap_or_default();
    let mut status = Map::new();
    let mut set = |field: &str, value: Value| drop(status.insert(field.to_owned(), value));
    if current.bound_volume_group_snapshot_content_name.is_none() {
        set("boundVolumeGroupSnapshotContentName", json!(content.metadata.name));
    }
    let created = content_status.creation_time.filter(|_| current.creation_time.is_none());
    if let Some(time) = created {
        set("creationTime", json!(time.to_string()));
    }
    let ready = content_status.ready_to_use.unwrap_or(false);
    if current.ready_to_use != Some(ready) {
        set("readyToUse", json!(ready));
    }
    if current.error != content_status.error {
        set("error", content_status.error.as_ref().map_or(Value::Null, error_json));
    }
    if status.is_empty() {
        return None;
    }
    let (created, ready) = (created.is_some(), !is_ready(group) && ready);
    Some(StatusUpdate { status: Value::Object(status), created, ready })
}
