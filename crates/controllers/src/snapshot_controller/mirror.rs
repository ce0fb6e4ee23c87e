//! Copies a content's status to its snapshot.

use serde_json::{Map, Value, json};
use wharf_model::snapshot::VolumeSnapshotError;
use wharf_model::{Quantity, Time, VolumeSnapshot, VolumeSnapshotContent};

/// An update of a snapshot's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusUpdate {
    /// The fields to change; `null` removes a field.
    pub(crate) status: Value,
    /// Whether the snapshot was created with this update.
    pub(crate) created: bool,
    /// Whether the snapshot became ready with this update.
    pub(crate) ready: bool,
}

/// The fields to change; `None` if the status is complete. Fields once set stay, except readiness and error.
pub(crate) fn status_update(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    group: Option<&str>,
) -> Option<StatusUpdate> {
    let current = snapshot.status.clone().unwrap_or_default();
    let content_status = content.status.clone().unwrap_or_default();
    let mut status = Map::new();
    let mut set = |field: &str, value: Value| drop(status.insert(field.to_owned(), value));
    if current.bound_volume_snapshot_content_name.is_none() {
        set("boundVolumeSnapshotContentName", json!(content.metadata.name));
    }
    let created = content_status.creation_time.filter(|_| current.creation_time.is_none());
    if let Some(nanos) = created {
        set("creationTime", json!(Time(nanos.div_euclid(1_000_000)).to_string()));
    }
    let ready = content_status.ready_to_use.unwrap_or(false);
    if current.ready_to_use != Some(ready) {
        set("readyToUse", json!(ready));
    }
    let size_unknown =
        current.restore_size.is_none_or(|size| size.bytes() == 0 && content_status.restore_size > Some(0));
    if let Some(size) = content_status.restore_size.filter(|_| size_unknown) {
        set("restoreSize", json!(Quantity::from_bytes(size).to_string()));
    }
    if current.error != content_status.error {
        set("error", content_status.error.as_ref().map_or(Value::Null, error_json));
    }
    if let Some(group) = group.filter(|_| current.volume_group_snapshot_name.is_none()) {
        set("volumeGroupSnapshotName", json!(group));
    }
    if status.is_empty() {
        return None;
    }
    Some(StatusUpdate {
        status: Value::Object(status),
        created: !snapshot.is_created() && created.is_some(),
        ready: !snapshot.is_ready() && ready,
    })
}

/// An error in the format of a status.
pub(crate) fn error_json(error: &VolumeSnapshotError) -> Value {
    let VolumeSnapshotError { time, message } = error;
    let mut json = Map::new();
    if let Some(time) = time {
        json.insert("time".to_owned(), json!(time.to_string()));
    }
    if let Some(message) = message {
        json.insert("message".to_owned(), json!(message));
    }
    Value::Object(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(current: Value, content_status: Value, group: Option<&str>) -> Option<StatusUpdate> {
        let snapshot = serde_json::from_value(json!({"metadata": {"name": "s"}, "status": current})).unwrap();
        let content =
            serde_json::from_value(json!({"metadata": {"name": "c"}, "status": content_status})).unwrap();
        status_update(&snapshot, &content, group)
    }

    /// sidecars.md 1.4 "Status".
    #[test]
    fn status_fields_are_copied_once() {
        let bound = || json!({"boundVolumeSnapshotContentName": "c", "readyToUse": false});
        let error = || json!({"time": "2026-01-01T00:00:00Z", "message": "no"});
        let with = |base: Value, field: &str, value: Value| {
            let mut base = base;
            base[field] = value;
            base
        };
        let created = json!({"creationTime": 1_767_225_600_000_000_123_i64, "restoreSize": 1 << 30, "readyToUse": true});
        let done = json!({
            "boundVolumeSnapshotContentName": "c", "readyToUse": true, "restoreSize": "1Gi",
            "creationTime": "2026-01-01T00:00:00Z",
        });
        let fields =
            json!({"creationTime": "2026-01-01T00:00:00Z", "restoreSize": "1Gi", "readyToUse": true});
        for (current, content, group, expected) in [
            // Bound at once, whatever the snapshotter has done.
            (Value::Null, Value::Null, None, Some((bound(), false, false))),
            (bound(), Value::Null, None, None),
            (bound(), created.clone(), None, Some((fields.clone(), true, true))),
            (done.clone(), created.clone(), None, None),
            // Created, but not ready yet.
            (
                bound(),
                json!({"creationTime": 1_767_225_600_000_000_000_i64, "readyToUse": false}),
                None,
                Some((json!({"creationTime": "2026-01-01T00:00:00Z"}), true, false)),
            ),
            // An error appears and is removed.
            (bound(), json!({"error": error()}), None, Some((json!({"error": error()}), false, false))),
            (with(bound(), "error", error()), json!({"error": error()}), None, None),
            (
                with(bound(), "error", error()),
                created.clone(),
                None,
                Some((with(fields, "error", Value::Null), true, true)),
            ),
            // The size was unknown.
            (
                with(done.clone(), "restoreSize", json!("0")),
                created.clone(),
                None,
                Some((json!({"restoreSize": "1Gi"}), false, false)),
            ),
            (with(done.clone(), "restoreSize", json!("2Gi")), created.clone(), None, None),
            // A member of a group.
            (done, created, Some("g"), Some((json!({"volumeGroupSnapshotName": "g"}), false, false))),
        ] {
            let row = format!("{current} {content} {group:?}");
            let expected = expected.map(|(status, created, ready)| StatusUpdate { status, created, ready });
            assert_eq!(update(current, content, group), expected, "{row}");
        }
    }
}
