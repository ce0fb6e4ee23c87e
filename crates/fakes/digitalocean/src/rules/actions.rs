//! Actions: attach, detach, resize. They are asynchronous; a droplet and a volume have at most one at a time.

use serde::Deserialize;
use serde_json::json;

use super::volumes::LARGEST;
use super::{RequestContext, exceeds_capacity};
use crate::faults::FaultEffect;
use crate::paging::page;
use crate::render;
use crate::response::{ApiResponse, Outcome};
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

pub(super) fn list(context: &RequestContext<'_>) -> ApiResponse {
    list_response(context, |_| true)
}

pub(super) fn list_of(context: &RequestContext<'_>, volume: &str) -> Outcome {
    if !context.state.volumes.contains_key(volume) {
        return Err(ApiResponse::not_found());
    }
    Ok(list_response(context, |action| action.volume == volume))
}

pub(super) fn list_of_droplet(context: &RequestContext<'_>, droplet: &str) -> Outcome {
    let droplet = droplet.parse().ok().filter(|id| context.state.droplets.contains_key(id));
    let droplet = droplet.ok_or_else(ApiResponse::not_found)?;
    Ok(list_response(context, |action| action.kind.droplet() == Some(droplet)))
}

/// Newest first.
fn list_response(context: &RequestContext<'_>, fits: impl Fn(&Action) -> bool) -> ApiResponse {
    let found = context.state.actions.values().rev().filter(|action| fits(action));
    page(context.request, "actions", found.map(render::action).collect())
}

pub(super) fn get(context: &RequestContext<'_>, id: &str) -> Outcome {
    let action = id.parse().ok().and_then(|id: u64| context.state.actions.get(&id));
    Ok(ApiResponse::ok(json!({ "action": render::action(action.ok_or_else(ApiResponse::not_found)?) })))
}

pub(super) fn get_of(context: &RequestContext<'_>, volume: &str, id: &str) -> Outcome {
    let action = id.parse().ok().and_then(|id: u64| context.state.actions.get(&id));
    let action =
        action.filter(|action| action.volume == volume && context.state.volumes.contains_key(volume));
    Ok(ApiResponse::ok(json!({ "action": render::action(action.ok_or_else(ApiResponse::not_found)?) })))
}

pub(super) fn start(context: &mut RequestContext<'_>, volume: &str) -> Outcome {
    let body: Start = context.request.json()?;
    begin(context, volume, &body)
}

/// Starts an action by volume name and region.
pub(super) fn start_named(context: &mut RequestContext<'_>) -> Outcome {
    let body: Start = context.request.json()?;
    if body.kind.as_deref() == Some("resize") {
        return Err(ApiResponse::unprocessable("Only attach and detach go by a volume's name"));
    }
    let named = context.state.volumes.values().find(|volume| {
        Some(&volume.name) == body.volume_name.as_ref() && Some(&volume.region) == body.region.as_ref()
    });
    let id = named.ok_or_else(ApiResponse::not_found)?.id.clone();
    begin(context, &id, &body)
}

fn begin(context: &mut RequestContext<'_>, volume: &str, body: &Start) -> Outcome {
    let found = context.state.volumes.get(volume).ok_or_else(ApiResponse::not_found)?;
    let region = found.region.clone();
    if body.region.as_ref().is_some_and(|wanted| !wanted.is_empty() && *wanted != region) {
        return Err(ApiResponse::unprocessable("Volume is not in the region"));
    }
    let kind = match body.kind.as_deref() {
        Some("attach") => attach(context, volume, body)?,
        Some("detach") => detach(context, volume, body)?,
        Some("resize") => resize(context, volume, body)?,
        _ => return Err(ApiResponse::unprocessable("Type must be attach, detach or resize")),
    };
    let id = context.state.next_number();
    let (due, fails) = schedule(context.fault, context.settings.action_delay_ms, context.now);
    let action = Action {
        id,
        kind,
        volume: volume.to_owned(),
        region,
        status: Status::InProgress,
        started: context.now,
        ended: None,
        due,
        fails,
    };
    context.state.actions.insert(id, action);
    // An action without delay is already completed in the response.
    context.state.advance(context.now);
    let action = context.state.actions.get(&id).ok_or_else(ApiResponse::not_found)?;
    Ok(ApiResponse::new(202, json!({ "action": render::action(action) })))
}

/// When an action ends, and whether it fails then.
fn schedule(fault: Option<&FaultEffect>, delay: u64, now: Millis) -> (Option<Millis>, bool) {
    let after = |delay: u64| Some(now.saturating_add(Millis::try_from(delay).unwrap_or(Millis::MAX)));
    match fault {
        Some(FaultEffect::ActionNeverEnds) => (None, false),
        Some(FaultEffect::ActionErrored) => (after(delay), true),
        Some(FaultEffect::ActionDelayMs(delay)) => (after(*delay), false),
        _ => (after(delay), false),
    }
}

fn attach(context: &RequestContext<'_>, volume: &str, body: &Start) -> Result<Kind, ApiResponse> {
    let droplet = free_droplet(context, volume, body)?;
    let found = context.state.volumes.get(volume).ok_or_else(ApiResponse::not_found)?;
    if context.state.droplets.get(&droplet).is_some_and(|droplet| droplet.region != found.region) {
        return Err(ApiResponse::unprocessable("Droplet and volume must be in the same region"));
    }
    if found.attached.is_some() {
        return Err(ApiResponse::unprocessable("This volume is already attached"));
    }
    if context.state.volumes_of(droplet).count() as u64 >= context.settings.volumes_per_droplet {
        return Err(ApiResponse::unprocessable("cannot attach more volumes to the Droplet"));
    }
    Ok(Kind::Attach { droplet })
}

fn detach(context: &RequestContext<'_>, volume: &str, body: &Start) -> Result<Kind, ApiResponse> {
    let droplet = free_droplet(context, volume, body)?;
    let attached = context.state.volumes.get(volume).and_then(|volume| volume.attached);
    if attached.is_none_or(|attached| attached.droplet != droplet) {
        return Err(ApiResponse::unprocessable("Attachment not found"));
    }
    Ok(Kind::Detach { droplet })
}

fn resize(context: &RequestContext<'_>, volume: &str, body: &Start) -> Result<Kind, ApiResponse> {
    idle_volume(context, volume)?;
    let current = context.state.volumes.get(volume).ok_or_else(ApiResponse::not_found)?.size_gigabytes;
    let size = u64::try_from(body.size_gigabytes.unwrap_or(0)).ok().filter(|size| *size <= LARGEST);
    let size =
        size.ok_or_else(|| ApiResponse::unprocessable("Size gigabytes must be between 1 and 16384"))?;
    if size <= current {
        return Err(ApiResponse::unprocessable(
            "Size gigabytes must be greater than the volume's current size",
        ));
    }
    if exceeds_capacity(context, size - current) {
        return Err(ApiResponse::capacity("resize volume"));
    }
    Ok(Kind::Resize { size_gigabytes: size })
}

/// The requested droplet, if neither it nor the volume is busy. This check comes first, as in the real API: a client
/// that repeats a request gets this error.
fn free_droplet(context: &RequestContext<'_>, volume: &str, body: &Start) -> Result<u64, ApiResponse> {
    let droplet = body.droplet_id.ok_or_else(|| ApiResponse::unprocessable("Droplet can't be blank"))?;
    if !context.state.droplets.contains_key(&droplet) {
        return Err(ApiResponse::not_found());
    }
    if context.state.pending().any(|action| action.kind.droplet() == Some(droplet)) {
        return Err(ApiResponse::unprocessable("Droplet already has a pending event."));
    }
    idle_volume(context, volume)?;
    Ok(droplet)
}

fn idle_volume(context: &RequestContext<'_>, volume: &str) -> Result<(), ApiResponse> {
    match context.state.pending().any(|action| action.volume == volume) {
        true => Err(ApiResponse::unprocessable("Volume already has a pending event.")),
        false => Ok(()),
    }
}
