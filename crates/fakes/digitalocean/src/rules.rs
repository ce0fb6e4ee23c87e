//! The API's rules: `(state, settings, request, now) -> response`, without I/O or clock. One file per object type.

pub(crate) mod actions;
mod droplets;
mod snapshots;
mod tags;
mod volumes;

#[cfg(test)]
mod tests;

use crate::faults::FaultEffect;
use crate::paging::page;
use crate::render;
use crate::request::Request;
use crate::response::{ApiResponse, Outcome};
use crate::settings::FakeSettings;
use crate::state::State;
use crate::time::Millis;

/// The input of a rule.
pub(crate) struct RequestContext<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) settings: &'a FakeSettings,
    pub(crate) request: &'a Request,
    pub(crate) now: Millis,
    /// The fault for an action that this request starts.
    pub(crate) fault: Option<&'a FaultEffect>,
}

/// Processes one authenticated request. The caller has advanced the state to `now`.
pub(crate) fn response(context: &mut RequestContext<'_>) -> ApiResponse {
    match route(context) {
        Ok(response) | Err(response) => response,
    }
}

fn route(context: &mut RequestContext<'_>) -> Outcome {
    let parts = context.request.parts();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (context.request.method.as_str(), parts.as_slice()) {
        ("GET", ["v2", "account"]) => Ok(ApiResponse::ok(render::account(context.settings))),
        ("GET", ["v2", "regions"]) => Ok(page(context.request, "regions", render::regions())),

        ("GET", ["v2", "volumes"]) => Ok(volumes::list(context)),
        ("POST", ["v2", "volumes"]) => volumes::create(context),
        ("DELETE", ["v2", "volumes"]) => volumes::delete_named(context),
        ("POST", ["v2", "volumes", "actions"]) => actions::start_named(context),
        ("GET", ["v2", "volumes", "snapshots", id]) => snapshots::get(context, id),
        ("DELETE", ["v2", "volumes", "snapshots", id]) => snapshots::delete(context, id),
        ("GET", ["v2", "volumes", id]) => volumes::get(context, id),
        ("DELETE", ["v2", "volumes", id]) => volumes::delete(context, id),
        ("GET", ["v2", "volumes", id, "snapshots"]) => snapshots::list_of(context, id),
        ("POST", ["v2", "volumes", id, "snapshots"]) => snapshots::create(context, id),
        ("GET", ["v2", "volumes", id, "actions"]) => actions::list_of(context, id),
        ("POST", ["v2", "volumes", id, "actions"]) => actions::start(context, id),
        ("GET", ["v2", "volumes", id, "actions", action]) => actions::get_of(context, id, action),

        ("GET", ["v2", "snapshots"]) => Ok(snapshots::list(context)),
        ("GET", ["v2", "snapshots", id]) => snapshots::get(context, id),
        ("DELETE", ["v2", "snapshots", id]) => snapshots::delete(context, id),

        ("GET", ["v2", "actions"]) => Ok(actions::list(context)),
        ("GET", ["v2", "actions", id]) => actions::get(context, id),

        ("GET", ["v2", "droplets"]) => Ok(droplets::list(context)),
        ("GET", ["v2", "droplets", id]) => droplets::get(context, id),
        ("DELETE", ["v2", "droplets", id]) => droplets::delete(context, id),
        ("GET", ["v2", "droplets", id, "actions"]) => actions::list_of_droplet(context, id),

        ("GET", ["v2", "tags"]) => Ok(tags::list(context)),
        ("POST", ["v2", "tags"]) => tags::create(context),
        ("GET", ["v2", "tags", name]) => tags::get(context, name),
        ("DELETE", ["v2", "tags", name]) => tags::delete(context, name),
        ("POST", ["v2", "tags", name, "resources"]) => tags::add_to_resources(context, name),
        ("DELETE", ["v2", "tags", name, "resources"]) => tags::remove_from_resources(context, name),

        _ => Err(ApiResponse::not_found()),
    }
}

/// Whether `more` GiB exceed the account's capacity limit.
fn exceeds_capacity(context: &RequestContext<'_>, more: u64) -> bool {
    let volumes: u64 = context.state.volumes.values().map(|volume| volume.size_gigabytes).sum();
    let snapshots: u64 = context.state.snapshots.values().map(|snapshot| snapshot.min_disk_size).sum();
    context.settings.capacity_gigabytes > 0
        && volumes + snapshots + more > context.settings.capacity_gigabytes
}
