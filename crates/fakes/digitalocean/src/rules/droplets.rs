//! Droplets: created at startup; they can be deleted, which detaches their volumes.

use serde_json::json;

use super::RequestContext;
use crate::paging::page;
use crate::render;
use crate::response::{ApiResponse, Outcome};
use crate::state::Droplet;

pub(super) fn list(context: &RequestContext<'_>) -> ApiResponse {
    let (tag, name) = (context.request.param("tag_name"), context.request.param("name"));
    let fits = |droplet: &&Droplet| {
        tag.as_ref().is_none_or(|tag| droplet.tags.contains(tag))
            && name.as_ref().is_none_or(|name| *name == droplet.name)
    };
    let found = context.state.droplets.values().filter(fits);
    page(context.request, "droplets", found.map(|droplet| render::droplet(context.state, droplet)).collect())
}

pub(super) fn get(context: &RequestContext<'_>, id: &str) -> Outcome {
    let droplet = id.parse().ok().and_then(|id: u64| context.state.droplets.get(&id));
    let droplet = droplet.ok_or_else(ApiResponse::not_found)?;
    Ok(ApiResponse::ok(json!({ "droplet": render::droplet(context.state, droplet) })))
}

pub(super) fn delete(context: &mut RequestContext<'_>, id: &str) -> Outcome {
    let id: u64 = id.parse().map_err(|_| ApiResponse::not_found())?;
    context.state.droplets.remove(&id).ok_or_else(ApiResponse::not_found)?;
    // Pending actions of the droplet fail.
    let under_way: Vec<u64> =
        context.state.pending().filter(|action| action.kind.droplet() == Some(id)).map(|a| a.id).collect();
    for action in under_way {
        if let Some(action) = context.state.actions.get_mut(&action) {
            action.fails = true;
        }
        context.state.finish(action, context.now);
    }
    for volume in context.state.volumes.values_mut() {
        volume.attached = volume.attached.filter(|attached| attached.droplet != id);
    }
    Ok(ApiResponse::no_content())
}
