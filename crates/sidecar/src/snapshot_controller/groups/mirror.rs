//! A group content's status as its group snapshot shows it.

use serde_json::{Map, Value, json};
use wharf_model::{VolumeGroupSnapshot, VolumeGroupSnapshotContent};

use super::super::mirror::{Mirrored, fault};
use super::view::is_ready;

/// What has to change; `None` if all is there. What is known once stays: only readiness and the error change.
pub(crate) fn mirror(group: &VolumeGroupSnapshot, content: &VolumeGroupSnapshotContent) -> Option<Mirrored> {
    let there = group.status.clone().unwrap_or_default();
    let shown = content.status.clone().unwrap_or_default();
    let mut status = Map::new();
    let mut set = |field: &str, value: Value| drop(status.insert(field.to_owned(), value));
    if there.bound_volume_group_snapshot_content_name.is_none() {
        set("boundVolumeGroupSnapshotContentName", json!(content.metadata.name));
    }
    let created = shown.creation_time.filter(|_| there.creation_time.is_none());
    if let Some(time) = created {
        set("creationTime", json!(time.to_string()));
    }
    let ready = shown.ready_to_use.unwrap_or(false);
    if there.ready_to_use != Some(ready) {
        set("readyToUse", json!(ready));
    }
    if there.error != shown.error {
        set("error", shown.error.as_ref().map_or(Value::Null, fault));
    }
    if status.is_empty() {
        return None;
    }
    let (created, ready) = (created.is_some(), !is_ready(group) && ready);
    Some(Mirrored { status: Value::Object(status), created, ready })
}
