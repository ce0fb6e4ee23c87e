//! Calls to the driver, and the interpretation of its responses.

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::{Code, Status};
use wharf_cluster::now;
use wharf_csi::v1;

use super::patches::{Member, SnapshotInfo};
use super::request::{Call, DeleteCall};
use crate::driver::{Driver, redacted_status_text};

/// Why the state of a snapshot is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallError {
    /// The driver's gRPC code, if it returned an error.
    pub(super) code: Option<Code>,
    /// The error as Go prints it, without secrets.
    pub(super) message: String,
}

type Secrets = BTreeMap<String, String>;

impl CallError {
    fn from_status(status: &Status, secrets: &Secrets) -> Self {
        Self { code: Some(status.code()), message: redacted_status_text(status, secrets) }
    }

    fn without_code(message: String) -> Self {
        Self { code: None, message }
    }
}

impl Call {
    /// The RPC's name.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Create(_) => "CreateSnapshot",
            Self::CreateGroup(_) => "CreateVolumeGroupSnapshot",
            Self::List(_) => "ListSnapshots",
            Self::Get(_) => "GetSnapshot",
            Self::GetGroup(_) => "GetVolumeGroupSnapshot",
            Self::AssumeReady(_) => "assume",
        }
    }

    /// Calls the driver.
    pub(super) async fn send(
        self,
        driver: &Driver,
        deadline: Duration,
        secrets: &Secrets,
    ) -> Result<SnapshotInfo, CallError> {
        let (method, secret_values) = (self.method(), secrets.clone().into_iter().collect());
        let (result, id) = match self {
            Self::Create(request) => {
                let request = v1::CreateSnapshotRequest { secrets: secret_values, ..request };
                let call = driver.controller(method, deadline, |mut client| async move {
                    client.create_snapshot(request).await
                });
                (call.await.map(|response| response.snapshot.map(created_info)), None)
            }
            Self::CreateGroup(request) => {
                let request = v1::CreateVolumeGroupSnapshotRequest { secrets: secret_values, ..request };
                let call = driver.group_controller(method, deadline, |mut client| async move {
                    client.create_volume_group_snapshot(request).await
                });
                (call.await.map(|response| response.group_snapshot.map(group_info)), None)
            }
            Self::List(request) => {
                let id = request.snapshot_id.clone();
                let request = v1::ListSnapshotsRequest { secrets: secret_values, ..request };
                let call = driver.controller(method, deadline, |mut client| async move {
                    client.list_snapshots(request).await
                });
                let first = |list: v1::ListSnapshotsResponse| {
                    list.entries.into_iter().find_map(|entry| entry.snapshot).map(snapshot_info)
                };
                (call.await.map(first), Some(id))
            }
            Self::Get(request) => {
                let id = request.snapshot_id.clone();
                let request = v1::GetSnapshotRequest { secrets: secret_values, ..request };
                let call = driver.controller(method, deadline, |mut client| async move {
                    client.get_snapshot(request).await
                });
                (call.await.map(|found| found.snapshot.map(snapshot_info)), Some(id))
            }
            Self::GetGroup(request) => {
                let id = request.group_snapshot_id.clone();
                let request = v1::GetVolumeGroupSnapshotRequest { secrets: secret_values, ..request };
                let call = driver.group_controller(method, deadline, |mut client| async move {
                    client.get_volume_group_snapshot(request).await
                });
                // The administrator lists the members of a pre-provisioned group.
                let without_members = |found| SnapshotInfo { members: Vec::new(), ..group_info(found) };
                (call.await.map(|found| found.group_snapshot.map(without_members)), Some(id))
            }
            Self::AssumeReady(handle) => {
                let created = now().0.saturating_mul(1_000_000);
                return Ok(SnapshotInfo { handle, ready: true, created, ..SnapshotInfo::default() });
            }
        };
        match (result, id) {
            (Err(status), _) => Err(CallError::from_status(&status, secrets)),
            (Ok(Some(info)), None) if info.handle.is_empty() => {
                Err(CallError::without_code("the driver returned an empty snapshot_id".to_owned()))
            }
            (Ok(Some(info)), None) => Ok(info),
            // Keep the requested handle: a response with another one must not replace it.
            (Ok(Some(info)), Some(handle)) => Ok(SnapshotInfo { handle, ..info }),
            (Ok(None), Some(id)) => {
                Err(CallError::without_code(format!("can not find snapshot for snapshotID {id}")))
            }
            (Ok(None), None) => Err(CallError::without_code("the driver returned no snapshot".to_owned())),
        }
    }
}

impl DeleteCall {
    /// The RPC's name.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Snapshot(_) => "DeleteSnapshot",
            Self::Group(_) => "DeleteVolumeGroupSnapshot",
        }
    }

    /// Calls the driver. Deleting a snapshot that does not exist succeeds.
    pub(super) async fn send(
        self,
        driver: &Driver,
        deadline: Duration,
        secrets: &Secrets,
    ) -> Result<(), CallError> {
        let (method, secret_values) = (self.method(), secrets.clone().into_iter().collect());
        let result = match self {
            Self::Snapshot(request) => {
                let request = v1::DeleteSnapshotRequest { secrets: secret_values, ..request };
                let call = driver.controller(method, deadline, |mut client| async move {
                    client.delete_snapshot(request).await
                });
                call.await.map(drop)
            }
            Self::Group(request) => {
                let request = v1::DeleteVolumeGroupSnapshotRequest { secrets: secret_values, ..request };
                let call = driver.group_controller(method, deadline, |mut client| async move {
                    client.delete_volume_group_snapshot(request).await
                });
                call.await.map(drop)
            }
        };
        result.map_err(|status| CallError::from_status(&status, secrets))
    }
}

fn snapshot_info(snapshot: v1::Snapshot) -> SnapshotInfo {
    let created = snapshot.creation_time.map(|time| nanoseconds(time.seconds, time.nanos));
    SnapshotInfo {
        handle: snapshot.snapshot_id,
        ready: snapshot.ready_to_use,
        created: created.unwrap_or_else(|| now().0.saturating_mul(1_000_000)),
        size: snapshot.size_bytes,
        group: Some(snapshot.group_snapshot_id).filter(|id| !id.is_empty()),
        members: Vec::new(),
    }
}

/// The response to CreateSnapshot. A snapshot that was requested alone is deleted alone: a group that the driver names
/// is not recorded, because the members of a group are deleted only with their group.
fn created_info(snapshot: v1::Snapshot) -> SnapshotInfo {
    SnapshotInfo { group: None, ..snapshot_info(snapshot) }
}

fn group_info(group: v1::VolumeGroupSnapshot) -> SnapshotInfo {
    let created = group.creation_time.map(|time| nanoseconds(time.seconds, time.nanos));
    let member = |snapshot: v1::Snapshot| Member {
        volume: snapshot.source_volume_id,
        handle: snapshot.snapshot_id,
        created: snapshot.creation_time.map(|time| nanoseconds(time.seconds, time.nanos)),
        ready: snapshot.ready_to_use,
        size: snapshot.size_bytes,
    };
    SnapshotInfo {
        handle: group.group_snapshot_id,
        ready: group.ready_to_use,
        created: created.unwrap_or_else(|| now().0.saturating_mul(1_000_000)),
        size: 0,
        group: None,
        members: group.snapshots.into_iter().map(member).collect(),
    }
}

fn nanoseconds(seconds: i64, nanos: i32) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_in_response_to_single_snapshot_is_not_recorded() {
        let snapshot = v1::Snapshot { group_snapshot_id: "g".into(), ..v1::Snapshot::default() };
        assert_eq!(created_info(snapshot.clone()).group, None);
        // A snapshot that existed before may be a member.
        assert_eq!(snapshot_info(snapshot).group.as_deref(), Some("g"));
    }
}
