//! Converts a backend's results to CSI messages.

use wharf_csi::v1;

use crate::backend::{
    GroupSnapshot, HealthIssue, HealthStatus, Snapshot, Topology, Volume, VolumeContentSource,
};

/// A size as CSI's signed integer. No volume comes near the end of its range.
pub(crate) fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

pub(crate) fn topologies(topologies: &[Topology]) -> Vec<v1::Topology> {
    topologies.iter().map(|segments| v1::Topology { segments: segments.clone() }).collect()
}

pub(crate) fn volume(volume: &Volume) -> v1::Volume {
    use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

    let content_source = volume.source.clone().map(|source| v1::VolumeContentSource {
        r#type: Some(match source {
            VolumeContentSource::Snapshot(snapshot_id) => Type::Snapshot(SnapshotSource { snapshot_id }),
            VolumeContentSource::Volume(volume_id) => Type::Volume(VolumeSource { volume_id }),
        }),
    });
    v1::Volume {
        capacity_bytes: bytes(volume.capacity),
        volume_id: volume.id.clone(),
        volume_context: volume.context.clone(),
        content_source,
        accessible_topology: topologies(&volume.topology),
    }
}

pub(crate) fn snapshot(snapshot: &Snapshot) -> v1::Snapshot {
    v1::Snapshot {
        size_bytes: bytes(snapshot.size),
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.source.clone(),
        creation_time: Some(snapshot.created.into()),
        ready_to_use: snapshot.ready_to_use,
        group_snapshot_id: snapshot.group.clone().unwrap_or_default(),
        accessible_topology: topologies(&snapshot.topology),
    }
}

pub(crate) fn group(group: &GroupSnapshot) -> v1::VolumeGroupSnapshot {
    v1::VolumeGroupSnapshot {
        group_snapshot_id: group.id.clone(),
        snapshots: group.snapshots.iter().map(snapshot).collect(),
        creation_time: Some(group.created.into()),
        ready_to_use: group.snapshots.iter().all(|snapshot| snapshot.ready_to_use),
    }
}

/// CSI allows each pair of status and reason only once; the first one is kept.
pub(crate) fn health(volume_id: &str, issues: &[HealthIssue]) -> v1::VolumeHealth {
    use v1::VolumeHealthErrorType as Type;

    let mut health_statuses: Vec<v1::volume_health::VolumeHealthEntry> = Vec::new();
    for issue in issues {
        let status = match issue.status {
            HealthStatus::Degraded => Type::Degraded,
            HealthStatus::Inaccessible => Type::Inaccessible,
            HealthStatus::DataLoss => Type::DataLoss,
        };
        if health_statuses.iter().all(|entry| (entry.status(), &entry.reason) != (status, &issue.reason)) {
            health_statuses.push(v1::volume_health::VolumeHealthEntry {
                status: status.into(),
                reason: issue.reason.clone(),
                message: issue.message.clone(),
            });
        }
    }
    v1::VolumeHealth { volume_id: volume_id.to_owned(), health_statuses }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_issues_are_dropped() {
        let issue = |status, reason: &str| HealthIssue { status, reason: reason.into(), message: "m".into() };
        let issues = [
            issue(HealthStatus::Degraded, "PoolFull"),
            issue(HealthStatus::Degraded, "PoolFull"),
            issue(HealthStatus::DataLoss, "PoolFull"),
            issue(HealthStatus::Degraded, "Slow"),
        ];
        assert_eq!(health("v", &issues).health_statuses.len(), 3);
    }

    #[test]
    fn sizes_do_not_wrap() {
        assert_eq!([bytes(0), bytes(1 << 40), bytes(u64::MAX)], [0, 1 << 40, i64::MAX]);
    }
}
