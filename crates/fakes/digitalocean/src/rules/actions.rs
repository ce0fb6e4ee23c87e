//! Actions: attach, detach, resize. They take time; a droplet has one at a time, and so has a volume.

use serde::Deserialize;
use serde_json::json;

use super::volumes::LARGEST;
use super::{Room, beyond_capacity};
use crate::answer::{Answer, Outcome};
use crate::faults::What;
use crate::paging::page;
use crate::render;
use crate::state::{Action, Kind, Status};
use crate::time::Millis;

#[derive(Deserialize)]
struct Start {
    #[serde(rename = "type")]
    kind: Option<String>,
    droplet_id: Option<u64>,
    volume_name: Option<String>,
    region: Option<String>,
    size_gigabytes: Option<i64>,
}

pub(super) fn list(room: &Room<'_>) -> Answer {
    answer_list(room, |_| true)
}

pub(super) fn list_of(room: &Room<'_>, volume: &str) -> Outcome {
    if !room.state.volumes.contains_key(volume) {
        return Err(Answer::not_found());
    }
    Ok(answer_list(room, |action| action.volume == volume))
}

pub(super) fn list_of_droplet(room: &Room<'_>, droplet: &str) -> Outcome {
    let droplet = droplet.parse().ok().filter(|id| room.state.droplets.contains_key(id));
    let droplet = droplet.ok_or_else(Answer::not_found)?;
    Ok(answer_list(room, |action| action.kind.droplet() == Some(droplet)))
}

/// Newest first.
fn answer_list(room: &Room<'_>, fits: impl Fn(&Action) -> bool) -> Answer {
    let found = room.state.actions.values().rev().filter(|action| fits(action));
    page(room.request, "actions", found.map(render::action).collect())
}

pub(super) fn get(room: &Room<'_>, id: &str) -> Outcome {
    let action = id.parse().ok().and_then(|id: u64| room.state.actions.get(&id));
    Ok(Answer::ok(json!({ "action": render::action(action.ok_or_else(Answer::not_found)?) })))
}

pub(super) fn get_of(room: &Room<'_>, volume: &str, id: &str) -> Outcome {
    let action = id.parse().ok().and_then(|id: u64| room.state.actions.get(&id));
    let action = action.filter(|action| action.volume == volume && room.state.volumes.contains_key(volume));
    Ok(Answer::ok(json!({ "action": render::action(action.ok_or_else(Answer::not_found)?) })))
}

pub(super) fn start(room: &mut Room<'_>, volume: &str) -> Outcome {
    let asked: Start = room.request.json()?;
    begin(room, volume, &asked)
}

/// The same by name and region.
pub(super) fn start_named(room: &mut Room<'_>) -> Outcome {
    let asked: Start = room.request.json()?;
    if asked.kind.as_deref() == Some("resize") {
        return Err(Answer::unprocessable("Only attach and detach go by a volume's name"));
    }
    let named = room.state.volumes.values().find(|volume| {
        Some(&volume.name) == asked.volume_name.as_ref() && Some(&volume.region) == asked.region.as_ref()
    });
    let id = named.ok_or_else(Answer::not_found)?.id.clone();
    begin(room, &id, &asked)
}

fn begin(room: &mut Room<'_>, volume: &str, asked: &Start) -> Outcome {
    let found = room.state.volumes.get(volume).ok_or_else(Answer::not_found)?;
    let region = found.region.clone();
    if asked.region.as_ref().is_some_and(|asked| !asked.is_empty() && *asked != region) {
        return Err(Answer::unprocessable("Volume is not in the region"));
    }
    let kind = match asked.kind.as_deref() {
        Some("attach") => attach(room, volume, asked)?,
        Some("detach") => detach(room, volume, asked)?,
        Some("resize") => resize(room, volume, asked)?,
        _ => return Err(Answer::unprocessable("Type must be attach, detach or resize")),
    };
    let id = room.state.next_number();
    let (due, fails) = fate(room.fault, room.knobs.action_delay_ms, room.now);
    let action = Action {
        id,
        kind,
        volume: volume.to_owned(),
        region,
        status: Status::InProgress,
        started: room.now,
        ended: None,
        due,
        fails,
    };
    room.state.actions.insert(id, action);
    // One without delay has ended in the answer already.
    room.state.advance(room.now);
    let action = room.state.actions.get(&id).ok_or_else(Answer::not_found)?;
    Ok(Answer::new(202, json!({ "action": render::action(action) })))
}

/// When an action ends, and whether it fails then.
fn fate(fault: Option<&What>, delay: u64, now: Millis) -> (Option<Millis>, bool) {
    let after = |delay: u64| Some(now.saturating_add(Millis::try_from(delay).unwrap_or(Millis::MAX)));
    match fault {
        Some(What::ActionNeverEnds) => (None, false),
        Some(What::ActionErrored) => (after(delay), true),
        Some(What::ActionDelayMs(delay)) => (after(*delay), false),
        _ => (after(delay), false),
    }
}

fn attach(room: &Room<'_>, volume: &str, asked: &Start) -> Result<Kind, Answer> {
    let droplet = free_droplet(room, volume, asked)?;
    let found = room.state.volumes.get(volume).ok_or_else(Answer::not_found)?;
    if room.state.droplets.get(&droplet).is_some_and(|droplet| droplet.region != found.region) {
        return Err(Answer::unprocessable("Droplet and volume must be in the same region"));
    }
    if found.attached.is_some() {
        return Err(Answer::unprocessable("This volume is already attached"));
    }
    if room.state.volumes_of(droplet).count() as u64 >= room.knobs.volumes_per_droplet {
        return Err(Answer::unprocessable("cannot attach more volumes to the Droplet"));
    }
    Ok(Kind::Attach { droplet })
}

fn detach(room: &Room<'_>, volume: &str, asked: &Start) -> Result<Kind, Answer> {
    let droplet = free_droplet(room, volume, asked)?;
    let attached = room.state.volumes.get(volume).and_then(|volume| volume.attached);
    if attached.is_none_or(|attached| attached.droplet != droplet) {
        return Err(Answer::unprocessable("Attachment not found"));
    }
    Ok(Kind::Detach { droplet })
}

fn resize(room: &Room<'_>, volume: &str, asked: &Start) -> Result<Kind, Answer> {
    idle_volume(room, volume)?;
    let current = room.state.volumes.get(volume).ok_or_else(Answer::not_found)?.size_gigabytes;
    let size = u64::try_from(asked.size_gigabytes.unwrap_or(0)).ok().filter(|size| *size <= LARGEST);
    let size = size.ok_or_else(|| Answer::unprocessable("Size gigabytes must be between 1 and 16384"))?;
    if size <= current {
        return Err(Answer::unprocessable("Size gigabytes must be greater than the volume's current size"));
    }
    if beyond_capacity(room, size - current) {
        return Err(Answer::capacity("resize volume"));
    }
    Ok(Kind::Resize { size_gigabytes: size })
}

/// The droplet that is asked for, if neither it nor the volume is busy. That comes before all else, as it does
/// with the real one: a client which repeats a request gets this for an answer.
fn free_droplet(room: &Room<'_>, volume: &str, asked: &Start) -> Result<u64, Answer> {
    let droplet = asked.droplet_id.ok_or_else(|| Answer::unprocessable("Droplet can't be blank"))?;
    if !room.state.droplets.contains_key(&droplet) {
        return Err(Answer::not_found());
    }
    if room.state.pending().any(|action| action.kind.droplet() == Some(droplet)) {
        return Err(Answer::unprocessable("Droplet already has a pending event."));
    }
    idle_volume(room, volume)?;
    Ok(droplet)
}

fn idle_volume(room: &Room<'_>, volume: &str) -> Result<(), Answer> {
    match room.state.pending().any(|action| action.volume == volume) {
        true => Err(Answer::unprocessable("Volume already has a pending event.")),
        false => Ok(()),
    }
}
