//! Snapshot and group rules of the Controller and GroupController services. A snapshot may need time, or a number
//! of requests, to become ready. A member of a group is deleted only with its group.

use std::time::{SystemTime, UNIX_EPOCH};

use tonic::{Code, Status};
use wharf_csi::v1::{self as csi};

use super::state::{Group, LockedState, Snapshot, is_file_name};
use super::volumes::existing_volume;
use super::{Refusal, ScriptedService, violation};

impl ScriptedService {
    pub(super) fn snapshot(
        &self,
        held: &LockedState<'_>,
        request: &csi::CreateSnapshotRequest,
    ) -> Result<csi::Snapshot, Refusal> {
        let id = named("snap", &request.name)?;
        if let Some(snapshot) = held.snapshot(&id)? {
            if snapshot.volume != request.source_volume_id {
                let text = format!("{id} is a snapshot of another volume, {}", snapshot.volume);
                return Err(violation(Code::AlreadyExists, text));
            }
            return poll_snapshot(held, snapshot);
        }
        let snapshot = self.take_snapshot(held, id, &request.source_volume_id, None)?;
        held.put_snapshot(&snapshot)?;
        Ok(to_csi(&snapshot))
    }

    /// A snapshot with its data but without a record.
    fn take_snapshot(
        &self,
        held: &LockedState<'_>,
        id: String,
        volume: &str,
        group: Option<&str>,
    ) -> Result<Snapshot, Refusal> {
        let volume = existing_volume(held, volume)?;
        held.create_data(&id, Some(&volume.id))?;
        let cut_ms = now_ms();
        Ok(Snapshot {
            id,
            volume: volume.id,
            bytes: volume.bytes,
            seconds: cut_ms / 1000,
            ready_at_ms: cut_ms.saturating_add(self.options.snapshot_ready_after),
            looks_left: self.options.snapshot_ready_looks,
            group: group.map(str::to_owned),
        })
    }

    pub(super) fn group(
        &self,
        held: &LockedState<'_>,
        request: &csi::CreateVolumeGroupSnapshotRequest,
    ) -> Result<csi::VolumeGroupSnapshot, Refusal> {
        let id = named("group", &request.name)?;
        let mut volumes = request.source_volume_ids.clone();
        volumes.sort();
        if let Some(group) = held.group(&id)? {
            if group.volumes != volumes {
                let text = format!("{id} is a group snapshot of other volumes, {:?}", group.volumes);
                return Err(violation(Code::AlreadyExists, text));
            }
            return group_to_csi(held, &group);
        }
        if volumes.is_empty() {
            return Err(violation(Code::InvalidArgument, "a group snapshot needs at least one volume"));
        }
        let mut snapshots = Vec::new();
        for volume in &volumes {
            snapshots.push(self.take_snapshot(
                held,
                format!("snap-{}-{volume}", request.name),
                volume,
                Some(&id),
            )?);
        }
        // The group's record makes the members valid: members without a group record are removed.
        for snapshot in &snapshots {
            held.put_snapshot(snapshot)?;
        }
        let group = Group { id, volumes, members: snapshots.into_iter().map(|member| member.id).collect() };
        held.put_group(&group)?;
        group_to_csi(held, &group)
    }
}

pub(super) fn delete(held: &LockedState<'_>, id: &str) -> Result<(), Refusal> {
    match held.snapshot(id)? {
        Some(Snapshot { group: Some(group), .. }) => {
            let text = format!("snapshot {id} must be deleted with its group {group}");
            Err(violation(Code::InvalidArgument, text))
        }
        Some(_) => Ok(held.remove_snapshot(id)?),
        None => Ok(()),
    }
}

pub(super) fn find(held: &LockedState<'_>, id: &str) -> Result<csi::Snapshot, Refusal> {
    match held.snapshot(id)? {
        Some(snapshot) => poll_snapshot(held, snapshot),
        None => Err(Status::not_found(format!("snapshot {id} does not exist")).into()),
    }
}

pub(super) fn list(
    held: &LockedState<'_>,
    request: &csi::ListSnapshotsRequest,
) -> Result<csi::ListSnapshotsResponse, Refusal> {
    let matching = held.snapshots()?.into_iter().filter(|snapshot| {
        (request.snapshot_id.is_empty() || snapshot.id == request.snapshot_id)
            && (request.source_volume_id.is_empty() || snapshot.volume == request.source_volume_id)
            && snapshot.id > request.starting_token
    });
    let most = usize::try_from(request.max_entries).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
    let matching: Vec<_> = matching.take(most).collect();
    let full = matching.len() == most;
    let next_token = matching.last().filter(|_| full).map(|last| last.id.clone()).unwrap_or_default();
    let mut entries = Vec::new();
    for snapshot in matching {
        let snapshot = Some(poll_snapshot(held, snapshot)?);
        entries.push(csi::list_snapshots_response::Entry { snapshot });
    }
    Ok(csi::ListSnapshotsResponse { entries, next_token })
}

pub(super) fn delete_group(
    held: &LockedState<'_>,
    request: &csi::DeleteVolumeGroupSnapshotRequest,
) -> Result<(), Refusal> {
    let Some(group) = held.group(&request.group_snapshot_id)? else { return Ok(()) };
    same_members(&group, &request.snapshot_ids)?;
    for member in &group.members {
        held.remove_snapshot(member)?;
    }
    Ok(held.remove_group(&group.id)?)
}

pub(super) fn find_group(
    held: &LockedState<'_>,
    request: &csi::GetVolumeGroupSnapshotRequest,
) -> Result<csi::VolumeGroupSnapshot, Refusal> {
    let id = &request.group_snapshot_id;
    let Some(group) = held.group(id)? else {
        return Err(Status::not_found(format!("group snapshot {id} does not exist")).into());
    };
    same_members(&group, &request.snapshot_ids)?;
    group_to_csi(held, &group)
}

/// CSI: a request that names members has to name exactly all of them.
fn same_members(group: &Group, named: &[String]) -> Result<(), Refusal> {
    let mut named = named.to_vec();
    named.sort();
    let mut members = group.members.clone();
    members.sort();
    if named.is_empty() || named == members {
        return Ok(());
    }
    let text = format!("{} has the members {members:?}, not {named:?}", group.id);
    Err(violation(Code::InvalidArgument, text))
}

fn group_to_csi(held: &LockedState<'_>, group: &Group) -> Result<csi::VolumeGroupSnapshot, Refusal> {
    let mut snapshots = Vec::new();
    for member in &group.members {
        snapshots.push(find(held, member)?);
    }
    Ok(csi::VolumeGroupSnapshot {
        group_snapshot_id: group.id.clone(),
        creation_time: snapshots.first().and_then(|snapshot| snapshot.creation_time),
        ready_to_use: snapshots.iter().all(|snapshot| snapshot.ready_to_use),
        snapshots,
    })
}

/// Counts a request for the snapshot: it becomes ready after a number of them.
fn poll_snapshot(held: &LockedState<'_>, mut snapshot: Snapshot) -> Result<csi::Snapshot, Refusal> {
    if snapshot.looks_left > 0 {
        snapshot.looks_left -= 1;
        held.put_snapshot(&snapshot)?;
    }
    Ok(to_csi(&snapshot))
}

fn to_csi(snapshot: &Snapshot) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: snapshot.bytes,
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.volume.clone(),
        creation_time: Some(prost_types::Timestamp {
            seconds: i64::try_from(snapshot.seconds).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        ready_to_use: snapshot.looks_left == 0 && now_ms() >= snapshot.ready_at_ms,
        group_snapshot_id: snapshot.group.clone().unwrap_or_default(),
        ..Default::default()
    }
}

fn named(kind: &str, name: &str) -> Result<String, Refusal> {
    let id = format!("{kind}-{name}");
    match is_file_name(&id) {
        true => Ok(id),
        false => Err(Status::invalid_argument(format!("no {kind} can be named {name:?}")).into()),
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
