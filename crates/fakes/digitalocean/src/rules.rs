//! The API's rules: `(state, knobs, request, now) -> answer`, without I/O or clock. One file for each kind of thing.

pub(crate) mod actions;
mod droplets;
mod snapshots;
mod tags;
mod volumes;

#[cfg(test)]
mod tests;

use crate::answer::{Answer, Outcome};
use crate::faults::What;
use crate::knobs::Knobs;
use crate::paging::page;
use crate::render;
use crate::request::Request;
use crate::state::State;
use crate::time::Millis;

/// What a rule works on.
pub(crate) struct Room<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) knobs: &'a Knobs,
    pub(crate) request: &'a Request,
    pub(crate) now: Millis,
    /// What is to become of an action that this request starts.
    pub(crate) fault: Option<&'a What>,
}

/// Answers one request of a client that was let in. Whoever calls has let the state advance to `now`.
pub(crate) fn answer(room: &mut Room<'_>) -> Answer {
    match route(room) {
        Ok(answer) | Err(answer) => answer,
    }
}

fn route(room: &mut Room<'_>) -> Outcome {
    let parts = room.request.parts();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (room.request.method.as_str(), parts.as_slice()) {
        ("GET", ["v2", "account"]) => Ok(Answer::ok(render::account(room.knobs))),
        ("GET", ["v2", "regions"]) => Ok(page(room.request, "regions", render::regions())),

        ("GET", ["v2", "volumes"]) => Ok(volumes::list(room)),
        ("POST", ["v2", "volumes"]) => volumes::create(room),
        ("DELETE", ["v2", "volumes"]) => volumes::delete_named(room),
        ("POST", ["v2", "volumes", "actions"]) => actions::start_named(room),
        ("GET", ["v2", "volumes", "snapshots", id]) => snapshots::get(room, id),
        ("DELETE", ["v2", "volumes", "snapshots", id]) => snapshots::delete(room, id),
        ("GET", ["v2", "volumes", id]) => volumes::get(room, id),
        ("DELETE", ["v2", "volumes", id]) => volumes::delete(room, id),
        ("GET", ["v2", "volumes", id, "snapshots"]) => snapshots::list_of(room, id),
        ("POST", ["v2", "volumes", id, "snapshots"]) => snapshots::create(room, id),
        ("GET", ["v2", "volumes", id, "actions"]) => actions::list_of(room, id),
        ("POST", ["v2", "volumes", id, "actions"]) => actions::start(room, id),
        ("GET", ["v2", "volumes", id, "actions", action]) => actions::get_of(room, id, action),

        ("GET", ["v2", "snapshots"]) => Ok(snapshots::list(room)),
        ("GET", ["v2", "snapshots", id]) => snapshots::get(room, id),
        ("DELETE", ["v2", "snapshots", id]) => snapshots::delete(room, id),

        ("GET", ["v2", "actions"]) => Ok(actions::list(room)),
        ("GET", ["v2", "actions", id]) => actions::get(room, id),

        ("GET", ["v2", "droplets"]) => Ok(droplets::list(room)),
        ("GET", ["v2", "droplets", id]) => droplets::get(room, id),
        ("DELETE", ["v2", "droplets", id]) => droplets::delete(room, id),
        ("GET", ["v2", "droplets", id, "actions"]) => actions::list_of_droplet(room, id),

        ("GET", ["v2", "tags"]) => Ok(tags::list(room)),
        ("POST", ["v2", "tags"]) => tags::create(room),
        ("GET", ["v2", "tags", name]) => tags::get(room, name),
        ("DELETE", ["v2", "tags", name]) => tags::delete(room, name),
        ("POST", ["v2", "tags", name, "resources"]) => tags::put_on(room, name),
        ("DELETE", ["v2", "tags", name, "resources"]) => tags::take_off(room, name),

        _ => Err(Answer::not_found()),
    }
}

/// Whether so many more GiB go beyond what the account may have.
fn beyond_capacity(room: &Room<'_>, more: u64) -> bool {
    let volumes: u64 = room.state.volumes.values().map(|volume| volume.size_gigabytes).sum();
    let snapshots: u64 = room.state.snapshots.values().map(|snapshot| snapshot.min_disk_size).sum();
    room.knobs.capacity_gigabytes > 0 && volumes + snapshots + more > room.knobs.capacity_gigabytes
}
