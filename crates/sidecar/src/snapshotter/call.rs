//! Calls to the driver, and what its answers mean.

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::{Code, Status};
use wharf_cluster::now;
use wharf_csi::v1;

use super::request::{Call, Deletion};
use super::status::{Answer, Member};
use crate::driver::{Driver, described};

/// Why nobody knows how a snapshot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    /// The driver's code, where it refused.
    pub(super) code: Option<Code>,
    /// Its words, as Go prints them, without secrets.
    pub(super) said: String,
}

type Secrets = BTreeMap<String, String>;

impl Refused {
    fn of(status: &Status, secrets: &Secrets) -> Self {
        Self { code: Some(status.code()), said: described(status, secrets) }
    }

    fn empty(said: String) -> Self {
        Self { code: None, said }
    }
}

impl Call {
    /// Its name, as in the contract.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Create(_) => "CreateSnapshot",
            Self::CreateGroup(_) => "CreateVolumeGroupSnapshot",
            Self::List(_) => "ListSnapshots",
            Self::Get(_) => "GetSnapshot",
            Self::GetGroup(_) => "GetVolumeGroupSnapshot",
            Self::Assume(_) => "assume",
        }
    }

    /// Asks the driver.
    pub(super) async fn make(
        self,
        driver: &Driver,
        deadline: Duration,
        secrets: &Secrets,
    ) -> Result<Answer, Refused> {
        let (method, given) = (self.method(), secrets.clone().into_iter().collect());
        let (said, id) = match self {
            Self::Create(request) => {
                let request = v1::CreateSnapshotRequest { secrets: given, ..request };
                let call = driver.controller(method, deadline, |mut client| async move {
                    client.create_snapshot(request).await
                });
                (call.await.map(|made| made.snapshot.map(single)), None)
            }
            Self::CreateGroup(request) => {
                let request = v1::CreateVolumeGroupSnapshotRequest { secrets: given, ..request };
                let call = driver.group_controller(method, deadline, |mut client| async move {
                    client.create_volume_group_snapshot(request).await
                });
                (call.await.map(|made| made.group_snapshot.map(group)), None)
            }
            Self::List(request) => {
                let id = request.snapshot_id.clone();
                let request = v1::ListSnapshotsRequest { secrets: given, ..request };
                let call = driver.controller(method, deadline, |mut client| async move {
                    client.list_snapshots(request).await
                });
                let first = |list: v1::ListSnapshotsResponse| {
                    list.entries.into_iter().find_map(|entry| entry.snapshot).map(single)
                };
                (call.await.map(first), Some(id))
            }
            Self::Get(request) => {
                let id = request.snapshot_id.clone();
                let request = v1::GetSnapshotRequest { secrets: given, ..request };
                let call = driver.controller(method, deadline, |mut client| async move {
                    client.get_snapshot(request).await
                });
                (call.await.map(|found| found.snapshot.map(single)), Some(id))
            }
            Self::GetGroup(request) => {
                let id = request.group_snapshot_id.clone();
                let request = v1::GetVolumeGroupSnapshotRequest { secrets: given, ..request };
                let call = driver.group_controller(method, deadline, |mut client| async move {
                    client.get_volume_group_snapshot(request).await
                });
                // The members of a group that was there before are the administrator's.
                let alone = |found| Answer { members: Vec::new(), ..group(found) };
                (call.await.map(|found| found.group_snapshot.map(alone)), Some(id))
            }
            Self::Assume(handle) => {
                let created = now().0.saturating_mul(1_000_000);
                return Ok(Answer { handle, ready: true, created, ..Answer::default() });
            }
        };
        match (said, id) {
            (Err(status), _) => Err(Refused::of(&status, secrets)),
            (Ok(Some(answer)), None) if answer.handle.is_empty() => {
                Err(Refused::empty("the driver's answer names no snapshot".to_owned()))
            }
            (Ok(Some(answer)), None) => Ok(answer),
            // The name that was asked for: an answer that has another one would replace it.
            (Ok(Some(answer)), Some(handle)) => Ok(Answer { handle, ..answer }),
            (Ok(None), Some(id)) => Err(Refused::empty(format!("can not find snapshot for snapshotID {id}"))),
            (Ok(None), None) => Err(Refused::empty("the driver's answer is empty".to_owned())),
        }
    }
}

impl Deletion {
    /// Its name, as in the contract.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Snapshot(_) => "DeleteSnapshot",
            Self::Group(_) => "DeleteVolumeGroupSnapshot",
        }
    }

    /// Asks the driver. What is gone already is success.
    pub(super) async fn make(
        self,
        driver: &Driver,
        deadline: Duration,
        secrets: &Secrets,
    ) -> Result<(), Refused> {
        let (method, given) = (self.method(), secrets.clone().into_iter().collect());
        let said = match self {
            Self::Snapshot(request) => {
                let request = v1::DeleteSnapshotRequest { secrets: given, ..request };
                let call = driver.controller(method, deadline, |mut client| async move {
                    client.delete_snapshot(request).await
                });
                call.await.map(drop)
            }
            Self::Group(request) => {
                let request = v1::DeleteVolumeGroupSnapshotRequest { secrets: given, ..request };
                let call = driver.group_controller(method, deadline, |mut client| async move {
                    client.delete_volume_group_snapshot(request).await
                });
                call.await.map(drop)
            }
        };
        said.map_err(|status| Refused::of(&status, secrets))
    }
}

fn single(snapshot: v1::Snapshot) -> Answer {
    let created = snapshot.creation_time.map(|time| nanoseconds(time.seconds, time.nanos));
    Answer {
        handle: snapshot.snapshot_id,
        ready: snapshot.ready_to_use,
        created: created.unwrap_or_else(|| now().0.saturating_mul(1_000_000)),
        size: snapshot.size_bytes,
        group: Some(snapshot.group_snapshot_id).filter(|id| !id.is_empty()),
        members: Vec::new(),
    }
}

fn group(group: v1::VolumeGroupSnapshot) -> Answer {
    let created = group.creation_time.map(|time| nanoseconds(time.seconds, time.nanos));
    let member = |snapshot: v1::Snapshot| Member {
        volume: snapshot.source_volume_id,
        handle: snapshot.snapshot_id,
        created: snapshot.creation_time.map(|time| nanoseconds(time.seconds, time.nanos)),
        ready: snapshot.ready_to_use,
        size: snapshot.size_bytes,
    };
    Answer {
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
