//! A content's status as its snapshot shows it.

use serde_json::{Map, Value, json};
use wharf_model::snapshot::SnapshotFault;
use wharf_model::{Quantity, Time, VolumeSnapshot, VolumeSnapshotContent};

use super::view::{is_created, is_ready};

/// A change of a snapshot's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirrored {
    /// The fields that change; `null` removes one.
    pub(crate) status: Value,
    /// Whether it is seen now that the snapshot was cut.
    pub(crate) created: bool,
    /// Whether it is seen now that one can restore from it.
    pub(crate) ready: bool,
}

/// What has to change; `None` if all is there. What is known once stays: only readiness and the error change.
pub(crate) fn mirror(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    group: Option<&str>,
) -> Option<Mirrored> {
    let there = snapshot.status.clone().unwrap_or_default();
    let shown = content.status.clone().unwrap_or_default();
    let mut status = Map::new();
    let mut set = |field: &str, value: Value| drop(status.insert(field.to_owned(), value));
    if there.bound_volume_snapshot_content_name.is_none() {
        set("boundVolumeSnapshotContentName", json!(content.metadata.name));
    }
    let created = shown.creation_time.filter(|_| there.creation_time.is_none());
    if let Some(nanos) = created {
        set("creationTime", json!(Time(nanos.div_euclid(1_000_000)).to_string()));
    }
    let ready = shown.ready_to_use.unwrap_or(false);
    if there.ready_to_use != Some(ready) {
        set("readyToUse", json!(ready));
    }
    let unsized_yet = there.restore_size.is_none_or(|size| size.bytes() == 0 && shown.restore_size > Some(0));
    if let Some(size) = shown.restore_size.filter(|_| unsized_yet) {
        set("restoreSize", json!(Quantity::from_bytes(size).to_string()));
    }
    if there.error != shown.error {
        set("error", shown.error.as_ref().map_or(Value::Null, fault));
    }
    if let Some(group) = group.filter(|_| there.volume_group_snapshot_name.is_none()) {
        set("volumeGroupSnapshotName", json!(group));
    }
    if status.is_empty() {
        return None;
    }
    Some(Mirrored {
        status: Value::Object(status),
        created: !is_created(snapshot) && created.is_some(),
        ready: !is_ready(snapshot) && ready,
    })
}

/// An error as a status has it.
pub(crate) fn fault(fault: &SnapshotFault) -> Value {
    let SnapshotFault { time, message } = fault;
    let mut error = Map::new();
    if let Some(time) = time {
        error.insert("time".to_owned(), json!(time.to_string()));
    }
    if let Some(message) = message {
        error.insert("message".to_owned(), json!(message));
    }
    Value::Object(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirrored(there: Value, shown: Value, group: Option<&str>) -> Option<Mirrored> {
        let snapshot = serde_json::from_value(json!({"metadata": {"name": "s"}, "status": there})).unwrap();
        let content = serde_json::from_value(json!({"metadata": {"name": "c"}, "status": shown})).unwrap();
        mirror(&snapshot, &content, group)
    }

    /// sidecars.md 1.4 "Status".
    #[test]
    fn what_a_snapshot_shows() {
        let bound = || json!({"boundVolumeSnapshotContentName": "c", "readyToUse": false});
        let error = || json!({"time": "2026-01-01T00:00:00Z", "message": "no"});
        let with = |base: Value, field: &str, value: Value| {
            let mut base = base;
            base[field] = value;
            base
        };
        let cut = json!({"creationTime": 1_767_225_600_000_000_123_i64, "restoreSize": 1 << 30, "readyToUse": true});
        let done = json!({
            "boundVolumeSnapshotContentName": "c", "readyToUse": true, "restoreSize": "1Gi",
            "creationTime": "2026-01-01T00:00:00Z",
        });
        let shown = json!({"creationTime": "2026-01-01T00:00:00Z", "restoreSize": "1Gi", "readyToUse": true});
        for (there, content, group, expected) in [
            // Bound at once, whatever the snapshotter has done.
            (Value::Null, Value::Null, None, Some((bound(), false, false))),
            (bound(), Value::Null, None, None),
            (bound(), cut.clone(), None, Some((shown.clone(), true, true))),
            (done.clone(), cut.clone(), None, None),
            // Cut, and not ready yet.
            (
                bound(),
                json!({"creationTime": 1_767_225_600_000_000_000_i64, "readyToUse": false}),
                None,
                Some((json!({"creationTime": "2026-01-01T00:00:00Z"}), true, false)),
            ),
            // An error comes and goes.
            (bound(), json!({"error": error()}), None, Some((json!({"error": error()}), false, false))),
            (with(bound(), "error", error()), json!({"error": error()}), None, None),
            (
                with(bound(), "error", error()),
                cut.clone(),
                None,
                Some((with(shown, "error", Value::Null), true, true)),
            ),
            // A size that was not known.
            (
                with(done.clone(), "restoreSize", json!("0")),
                cut.clone(),
                None,
                Some((json!({"restoreSize": "1Gi"}), false, false)),
            ),
            (with(done.clone(), "restoreSize", json!("2Gi")), cut.clone(), None, None),
            // A member of a group.
            (done, cut, Some("g"), Some((json!({"volumeGroupSnapshotName": "g"}), false, false))),
        ] {
            let row = format!("{there} {content} {group:?}");
            let expected = expected.map(|(status, created, ready)| Mirrored { status, created, ready });
            assert_eq!(mirrored(there, content, group), expected, "{row}");
        }
    }
}
