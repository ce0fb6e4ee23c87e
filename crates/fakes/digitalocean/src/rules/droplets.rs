//! Droplets: they are there from the start, and can be deleted, which detaches their volumes.

use serde_json::json;

use super::Room;
use crate::answer::{Answer, Outcome};
use crate::paging::page;
use crate::render;
use crate::state::Droplet;

pub(super) fn list(room: &Room<'_>) -> Answer {
    let (tag, name) = (room.request.param("tag_name"), room.request.param("name"));
    let fits = |droplet: &&Droplet| {
        tag.as_ref().is_none_or(|tag| droplet.tags.contains(tag))
            && name.as_ref().is_none_or(|name| *name == droplet.name)
    };
    let found = room.state.droplets.values().filter(fits);
    page(room.request, "droplets", found.map(|droplet| render::droplet(room.state, droplet)).collect())
}

pub(super) fn get(room: &Room<'_>, id: &str) -> Outcome {
    let droplet = id.parse().ok().and_then(|id: u64| room.state.droplets.get(&id));
    let droplet = droplet.ok_or_else(Answer::not_found)?;
    Ok(Answer::ok(json!({ "droplet": render::droplet(room.state, droplet) })))
}

pub(super) fn delete(room: &mut Room<'_>, id: &str) -> Outcome {
    let id: u64 = id.parse().map_err(|_| Answer::not_found())?;
    room.state.droplets.remove(&id).ok_or_else(Answer::not_found)?;
    // What was under way there comes to nothing.
    let under_way: Vec<u64> =
        room.state.pending().filter(|action| action.kind.droplet() == Some(id)).map(|a| a.id).collect();
    for action in under_way {
        if let Some(action) = room.state.actions.get_mut(&action) {
            action.fails = true;
        }
        room.state.finish(action, room.now);
    }
    for volume in room.state.volumes.values_mut() {
        volume.attached = volume.attached.filter(|attached| attached.droplet != id);
    }
    Ok(Answer::nothing())
}
