//! CSI messages as JSON. The conversion is explicit because the generated types do not implement serde, and because
//! scripts rely on the names.
//!
//! Names are those of the specification. Enumerations are printed by name, times as RFC 3339, bytes as numbers. An absent
//! field of message type is left out.

use serde_json::{Map, Value, json};
use wharf_csi::v1;

pub(super) fn volume(volume: &v1::Volume) -> Value {
    let mut json = json!({
        "volume_id": volume.volume_id,
        "capacity_bytes": volume.capacity_bytes,
        "volume_context": volume.volume_context,
        "accessible_topology": topologies(&volume.accessible_topology),
    });
    if let Some(source) = volume.content_source.as_ref().and_then(|source| source.r#type.as_ref()) {
        json["content_source"] = content_source(source);
    }
    json
}

fn content_source(source: &v1::volume_content_source::Type) -> Value {
    use v1::volume_content_source::Type;
    match source {
        Type::Snapshot(snapshot) => json!({"snapshot": {"snapshot_id": snapshot.snapshot_id}}),
        Type::Volume(volume) => json!({"volume": {"volume_id": volume.volume_id}}),
    }
}

/// A volume with its status, as in the responses of ListVolumes and ControllerGetVolume. Only drivers older than CSI 1.13
/// report the condition.
pub(super) fn volume_entry(
    volume: Option<&v1::Volume>,
    status: Option<(&[String], Option<&v1::VolumeCondition>)>,
) -> Value {
    let mut json = Map::new();
    if let Some(volume) = volume {
        json.insert("volume".into(), self::volume(volume));
    }
    if let Some((nodes, volume_condition)) = status {
        let mut status = json!({"published_node_ids": nodes});
        if let Some(volume_condition) = volume_condition {
            status["volume_condition"] = condition(volume_condition);
        }
        json.insert("status".into(), status);
    }
    Value::Object(json)
}

pub(super) fn condition(condition: &v1::VolumeCondition) -> Value {
    json!({"abnormal": condition.abnormal, "message": condition.message})
}

pub(super) fn topology(topology: &v1::Topology) -> Value {
    json!({"segments": topology.segments})
}

fn topologies(list: &[v1::Topology]) -> Value {
    list.iter().map(topology).collect()
}

pub(super) fn snapshot(snapshot: &v1::Snapshot) -> Value {
    json!({
        "snapshot_id": snapshot.snapshot_id,
        "source_volume_id": snapshot.source_volume_id,
        "size_bytes": snapshot.size_bytes,
        "creation_time": snapshot.creation_time.as_ref().map(|time| timestamp(time.seconds, time.nanos)),
        "ready_to_use": snapshot.ready_to_use,
        "group_snapshot_id": snapshot.group_snapshot_id,
        "accessible_topology": topologies(&snapshot.accessible_topology),
    })
}

pub(super) fn group_snapshot(group: &v1::VolumeGroupSnapshot) -> Value {
    json!({
        "group_snapshot_id": group.group_snapshot_id,
        "creation_time": group.creation_time.as_ref().map(|time| timestamp(time.seconds, time.nanos)),
        "ready_to_use": group.ready_to_use,
        "snapshots": group.snapshots.iter().map(snapshot).collect::<Value>(),
    })
}

pub(super) fn volume_health(health: &v1::VolumeHealth) -> Value {
    let statuses = health.health_statuses.iter().map(|entry| {
        json!({"status": health_status(entry.status), "reason": entry.reason, "message": entry.message})
    });
    json!({"volume_id": health.volume_id, "health_statuses": statuses.collect::<Value>()})
}

pub(super) fn health_status(status: i32) -> String {
    named(v1::VolumeHealthErrorType::try_from(status).map(|status| status.as_str_name()), status)
}

pub(super) fn storage_status(status: i32) -> String {
    named(v1::StorageHealthErrorType::try_from(status).map(|status| status.as_str_name()), status)
}

pub(super) fn usage(usage: &v1::VolumeUsage) -> Value {
    let unit = named(v1::volume_usage::Unit::try_from(usage.unit).map(|unit| unit.as_str_name()), usage.unit);
    json!({"unit": unit, "total": usage.total, "used": usage.used, "available": usage.available})
}

pub(super) fn block(block: &v1::BlockMetadata) -> Value {
    json!({"byte_offset": block.byte_offset, "size_bytes": block.size_bytes})
}

pub(super) fn block_type(kind: i32) -> String {
    named(v1::BlockMetadataType::try_from(kind).map(|kind| kind.as_str_name()), kind)
}

/// The name of an enumeration value, or the number if the driver uses a newer specification.
pub(super) fn named<E>(name: Result<&str, E>, number: i32) -> String {
    name.map_or_else(|_| format!("UNKNOWN({number})"), str::to_owned)
}

/// RFC 3339 in UTC, or the number of seconds if it is out of range.
pub(super) fn timestamp(seconds: i64, nanos: i32) -> String {
    jiff::Timestamp::new(seconds, nanos).map_or_else(|_| format!("{seconds}s"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_json_has_the_names_of_the_specification() {
        let message = v1::Volume {
            capacity_bytes: 1 << 30,
            volume_id: "v".into(),
            volume_context: [("a".to_owned(), "b".to_owned())].into(),
            content_source: Some(v1::VolumeContentSource {
                r#type: Some(v1::volume_content_source::Type::Snapshot(
                    v1::volume_content_source::SnapshotSource { snapshot_id: "s".into() },
                )),
            }),
            accessible_topology: vec![v1::Topology { segments: [("k".to_owned(), "n".to_owned())].into() }],
        };
        let expected = json!({
            "volume_id": "v",
            "capacity_bytes": 1 << 30,
            "volume_context": {"a": "b"},
            "content_source": {"snapshot": {"snapshot_id": "s"}},
            "accessible_topology": [{"segments": {"k": "n"}}],
        });
        assert_eq!(volume(&message), expected);
    }

    #[test]
    fn volume_condition_of_older_drivers_is_included() {
        let nodes = ["n1".to_owned()];
        let abnormal = v1::VolumeCondition { abnormal: true, message: "disk gone".into() };
        let with = volume_entry(None, Some((&nodes, Some(&abnormal))));
        assert_eq!(with["status"]["volume_condition"], json!({"abnormal": true, "message": "disk gone"}));
        let without = volume_entry(None, Some((&nodes, None)));
        assert_eq!(without, json!({"status": {"published_node_ids": ["n1"]}}));
    }

    #[test]
    fn times_and_enumerations_are_readable() {
        assert_eq!(timestamp(0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(1_700_000_000, 500_000_000), "2023-11-14T22:13:20.5Z");
        assert_eq!(timestamp(i64::MAX, 0), format!("{}s", i64::MAX));
        assert_eq!(health_status(2), "INACCESSIBLE");
        assert_eq!(health_status(99), "UNKNOWN(99)");
        assert_eq!(storage_status(1), "STORAGE_DEGRADED");
        assert_eq!(block_type(2), "VARIABLE_LENGTH");
    }

    #[test]
    fn snapshot_without_creation_time_has_null() {
        let json = snapshot(&v1::Snapshot { snapshot_id: "s".into(), size_bytes: 7, ..Default::default() });
        assert_eq!(json["creation_time"], Value::Null);
        assert_eq!(json["size_bytes"], json!(7));
    }
}
