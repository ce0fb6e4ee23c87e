//! What snapshots may be asked for, alone and in groups: the rules behind Controller and GroupController. A snapshot
//! may need time, or a number of looks, until it is ready; a member of a group goes with its group only.

use std::time::{SystemTime, UNIX_EPOCH};

use tonic::{Code, Status};
use wharf_csi::v1::{self as csi};

use super::state::{Group, Held, Snapshot, is_file_name};
use super::volumes::known;
use super::{Refusal, Script, violation};

impl Script {
    pub(super) fn snapshot(
        &self,
        held: &Held<'_>,
        request: &csi::CreateSnapshotRequest,
    ) -> Result<csi::Snapshot, Refusal> {
        let id = named("snap", &request.name)?;
        if let Some(snapshot) = held.snapshot(&id)? {
            if snapshot.volume != request.source_volume_id {
                let text = format!("{id} is of another volume, {}", snapshot.volume);
                return Err(violation(Code::AlreadyExists, text));
            }
            return looked_at(held, snapshot);
        }
        let snapshot = self.cut(held, id, &request.source_volume_id, None)?;
        held.put_snapshot(&snapshot)?;
        Ok(shown(&snapshot))
    }

    /// A snapshot with its bytes, and no record yet.
    fn cut(
        &self,
        held: &Held<'_>,
        id: String,
        volume: &str,
        group: Option<&str>,
    ) -> Result<Snapshot, Refusal> {
        let volume = known(held, volume)?;
        held.fill(&id, Some(&volume.id))?;
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
        held: &Held<'_>,
        request: &csi::CreateVolumeGroupSnapshotRequest,
    ) -> Result<csi::VolumeGroupSnapshot, Refusal> {
        let id = named("group", &request.name)?;
        let mut volumes = request.source_volume_ids.clone();
        volumes.sort();
        if let Some(group) = held.group(&id)? {
            if group.volumes != volumes {
                let text = format!("{id} is of other volumes, {:?}", group.volumes);
                return Err(violation(Code::AlreadyExists, text));
            }
            return group_shown(held, &group);
        }
        if volumes.is_empty() {
            return Err(violation(Code::InvalidArgument, "a group of no volumes"));
        }
        let mut snapshots = Vec::new();
        for volume in &volumes {
            snapshots.push(self.cut(held, format!("snap-{}-{volume}", request.name), volume, Some(&id))?);
        }
        // The group's record makes them all be there: members that it does not name are nobody's.
        for snapshot in &snapshots {
            held.put_snapshot(snapshot)?;
        }
        let group = Group { id, volumes, members: snapshots.into_iter().map(|member| member.id).collect() };
        held.put_group(&group)?;
        group_shown(held, &group)
    }
}

pub(super) fn delete(held: &Held<'_>, id: &str) -> Result<(), Refusal> {
    match held.snapshot(id)? {
        Some(Snapshot { group: Some(group), .. }) => {
            let text = format!("{id} is deleted alone, it belongs to {group}");
            Err(violation(Code::InvalidArgument, text))
        }
        Some(_) => Ok(held.remove_snapshot(id)?),
        None => Ok(()),
    }
}

pub(super) fn found(held: &Held<'_>, id: &str) -> Result<csi::Snapshot, Refusal> {
    match held.snapshot(id)? {
        Some(snapshot) => looked_at(held, snapshot),
        None => Err(Status::not_found(format!("there is no snapshot {id}")).into()),
    }
}

pub(super) fn list(
    held: &Held<'_>,
    request: &csi::ListSnapshotsRequest,
) -> Result<csi::ListSnapshotsResponse, Refusal> {
    let asked = held.snapshots()?.into_iter().filter(|snapshot| {
        (request.snapshot_id.is_empty() || snapshot.id == request.snapshot_id)
            && (request.source_volume_id.is_empty() || snapshot.volume == request.source_volume_id)
            && snapshot.id > request.starting_token
    });
    let most = usize::try_from(request.max_entries).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
    let asked: Vec<_> = asked.take(most).collect();
    let full = asked.len() == most;
    let next_token = asked.last().filter(|_| full).map(|last| last.id.clone()).unwrap_or_default();
    let mut entries = Vec::new();
    for snapshot in asked {
        let snapshot = Some(looked_at(held, snapshot)?);
        entries.push(csi::list_snapshots_response::Entry { snapshot });
    }
    Ok(csi::ListSnapshotsResponse { entries, next_token })
}

pub(super) fn delete_group(
    held: &Held<'_>,
    request: &csi::DeleteVolumeGroupSnapshotRequest,
) -> Result<(), Refusal> {
    let Some(group) = held.group(&request.group_snapshot_id)? else { return Ok(()) };
    same_members(&group, &request.snapshot_ids)?;
    for member in &group.members {
        held.remove_snapshot(member)?;
    }
    Ok(held.remove_group(&group.id)?)
}

pub(super) fn found_group(
    held: &Held<'_>,
    request: &csi::GetVolumeGroupSnapshotRequest,
) -> Result<csi::VolumeGroupSnapshot, Refusal> {
    let id = &request.group_snapshot_id;
    let Some(group) = held.group(id)? else {
        return Err(Status::not_found(format!("there is no group snapshot {id}")).into());
    };
    same_members(&group, &request.snapshot_ids)?;
    group_shown(held, &group)
}

/// CSI: who names members has to name all of them, and no others.
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

fn group_shown(held: &Held<'_>, group: &Group) -> Result<csi::VolumeGroupSnapshot, Refusal> {
    let mut snapshots = Vec::new();
    for member in &group.members {
        snapshots.push(found(held, member)?);
    }
    Ok(csi::VolumeGroupSnapshot {
        group_snapshot_id: group.id.clone(),
        creation_time: snapshots.first().and_then(|snapshot| snapshot.creation_time),
        ready_to_use: snapshots.iter().all(|snapshot| snapshot.ready_to_use),
        snapshots,
    })
}

/// Each look brings it nearer to being ready.
fn looked_at(held: &Held<'_>, mut snapshot: Snapshot) -> Result<csi::Snapshot, Refusal> {
    if snapshot.looks_left > 0 {
        snapshot.looks_left -= 1;
        held.put_snapshot(&snapshot)?;
    }
    Ok(shown(&snapshot))
}

fn shown(snapshot: &Snapshot) -> csi::Snapshot {
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
