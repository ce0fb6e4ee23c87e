//! Snapshots: one for each name and volume, one in ten minutes, and they outlive their volume.

use serde::Deserialize;
use serde_json::json;

use super::{Room, beyond_capacity, tags};
use crate::answer::{Answer, Outcome};
use crate::paging::page;
use crate::render;
use crate::state::Snapshot;
use crate::time::Millis;

#[derive(Deserialize)]
struct Create {
    name: Option<String>,
    tags: Option<Vec<String>>,
}

pub(super) fn list(room: &Room<'_>) -> Answer {
    let region = room.request.param("region");
    // There are no snapshots of droplets here.
    let of_volumes = room.request.param("resource_type").is_none_or(|kind| kind == "volume");
    answer_list(room, |snapshot| {
        of_volumes && region.as_ref().is_none_or(|region| *region == snapshot.region)
    })
}

pub(super) fn list_of(room: &Room<'_>, volume: &str) -> Outcome {
    if !room.state.volumes.contains_key(volume) {
        return Err(Answer::not_found());
    }
    Ok(answer_list(room, |snapshot| snapshot.volume == volume))
}

fn answer_list(room: &Room<'_>, fits: impl Fn(&Snapshot) -> bool) -> Answer {
    let mut found: Vec<&Snapshot> = room.state.snapshots.values().filter(|found| fits(found)).collect();
    found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    page(room.request, "snapshots", found.into_iter().map(render::snapshot).collect())
}

pub(super) fn get(room: &Room<'_>, id: &str) -> Outcome {
    let snapshot = find(room, id)?;
    Ok(Answer::ok(json!({ "snapshot": render::snapshot(snapshot) })))
}

pub(super) fn delete(room: &mut Room<'_>, id: &str) -> Outcome {
    find(room, id)?;
    room.state.snapshots.remove(id);
    Ok(Answer::nothing())
}

fn find<'a>(room: &'a Room<'_>, id: &str) -> Result<&'a Snapshot, Answer> {
    if room.state.volumes.contains_key(id) {
        return Err(Answer::error(400, "the resource is not a snapshot"));
    }
    room.state.snapshots.get(id).ok_or_else(Answer::not_found)
}

pub(super) fn create(room: &mut Room<'_>, volume: &str) -> Outcome {
    let asked: Create = room.request.json()?;
    let source = room.state.volumes.get(volume).ok_or_else(Answer::not_found)?;
    let name = asked
        .name
        .filter(|name| !name.is_empty())
        .ok_or_else(|| Answer::unprocessable("Name can't be blank"))?;
    let tags = asked.tags.unwrap_or_default();
    if !tags.iter().all(|tag| tags::is_name(tag)) {
        return Err(Answer::unprocessable("Tags are invalid"));
    }
    if room.state.snapshots.values().any(|other| other.volume == volume && other.name == name) {
        return Err(Answer::conflict("failed to create snapshot: a snapshot with this name already exists"));
    }
    let interval = Millis::try_from(room.knobs.snapshot_interval_ms).unwrap_or(Millis::MAX);
    if source.snapshotted.is_some_and(|last| room.now.saturating_sub(last) < interval) {
        let interval = go_duration(room.knobs.snapshot_interval_ms / 1000);
        return Err(Answer::error(
            429,
            &format!(
                "failed to create snapshot: this operation is rate-limited - one request per {interval}"
            ),
        ));
    }
    let (region, size) = (source.region.clone(), source.size_gigabytes);
    if beyond_capacity(room, size) {
        return Err(Answer::capacity("create snapshot"));
    }
    let id = room.state.next_uuid(room.now);
    room.state.tags.extend(tags.iter().cloned());
    let snapshot = Snapshot {
        id: id.clone(),
        name,
        volume: volume.to_owned(),
        region,
        min_disk_size: size,
        tags,
        created: room.now,
    };
    let mut answer = Answer::new(201, json!({ "snapshot": render::snapshot(&snapshot) }));
    answer.copy = Some((volume.to_owned(), id.clone()));
    room.state.snapshots.insert(id, snapshot);
    if let Some(source) = room.state.volumes.get_mut(volume) {
        source.snapshotted = Some(room.now);
    }
    Ok(answer)
}

/// Seconds as Go writes them, which is what the API's message has: `10m0s`.
fn go_duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::go_duration;

    #[test]
    fn durations() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (600, "10m0s"), (3661, "1h1m1s")] {
            assert_eq!(go_duration(seconds), text);
        }
    }
}
