//! Snapshots: unique by name and volume, one per volume in ten minutes; they outlive their volume.

use serde::Deserialize;
use serde_json::json;

use super::{RequestContext, exceeds_capacity, tags};
use crate::paging::page;
use crate::render;
use crate::response::{ApiResponse, Outcome};
use crate::state::Snapshot;
use crate::time::Millis;

#[derive(Deserialize)]
struct Create {
    name: Option<String>,
    tags: Option<Vec<String>>,
}

pub(super) fn list(context: &RequestContext<'_>) -> ApiResponse {
    let region = context.request.param("region");
    // The fake has no droplet snapshots.
    let of_volumes = context.request.param("resource_type").is_none_or(|kind| kind == "volume");
    list_response(context, |snapshot| {
        of_volumes && region.as_ref().is_none_or(|region| *region == snapshot.region)
    })
}

pub(super) fn list_of(context: &RequestContext<'_>, volume: &str) -> Outcome {
    if !context.state.volumes.contains_key(volume) {
        return Err(ApiResponse::not_found());
    }
    Ok(list_response(context, |snapshot| snapshot.volume == volume))
}

fn list_response(context: &RequestContext<'_>, fits: impl Fn(&Snapshot) -> bool) -> ApiResponse {
    let mut found: Vec<&Snapshot> = context.state.snapshots.values().filter(|found| fits(found)).collect();
    found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    page(context.request, "snapshots", found.into_iter().map(render::snapshot).collect())
}

pub(super) fn get(context: &RequestContext<'_>, id: &str) -> Outcome {
    let snapshot = find(context, id)?;
    Ok(ApiResponse::ok(json!({ "snapshot": render::snapshot(snapshot) })))
}

pub(super) fn delete(context: &mut RequestContext<'_>, id: &str) -> Outcome {
    find(context, id)?;
    context.state.snapshots.remove(id);
    Ok(ApiResponse::no_content())
}

fn find<'a>(context: &'a RequestContext<'_>, id: &str) -> Result<&'a Snapshot, ApiResponse> {
    if context.state.volumes.contains_key(id) {
        return Err(ApiResponse::error(400, "the resource is not a snapshot"));
    }
    context.state.snapshots.get(id).ok_or_else(ApiResponse::not_found)
}

pub(super) fn create(context: &mut RequestContext<'_>, volume: &str) -> Outcome {
    let body: Create = context.request.json()?;
    let source = context.state.volumes.get(volume).ok_or_else(ApiResponse::not_found)?;
    let name = body
        .name
        .filter(|name| !name.is_empty())
        .ok_or_else(|| ApiResponse::unprocessable("Name can't be blank"))?;
    let tags = body.tags.unwrap_or_default();
    if !tags.iter().all(|tag| tags::is_name(tag)) {
        return Err(ApiResponse::unprocessable("Tags are invalid"));
    }
    if context.state.snapshots.values().any(|other| other.volume == volume && other.name == name) {
        return Err(ApiResponse::conflict(
            "failed to create snapshot: a snapshot with this name already exists",
        ));
    }
    let interval = Millis::try_from(context.settings.snapshot_interval_ms).unwrap_or(Millis::MAX);
    if source.snapshotted.is_some_and(|last| context.now.saturating_sub(last) < interval) {
        let interval = go_duration(context.settings.snapshot_interval_ms / 1000);
        return Err(ApiResponse::error(
            429,
            &format!(
                "failed to create snapshot: this operation is rate-limited - one request per {interval}"
            ),
        ));
    }
    let (region, size) = (source.region.clone(), source.size_gigabytes);
    if exceeds_capacity(context, size) {
        return Err(ApiResponse::capacity("create snapshot"));
    }
    let id = context.state.next_uuid(context.now);
    context.state.tags.extend(tags.iter().cloned());
    let snapshot = Snapshot {
        id: id.clone(),
        name,
        volume: volume.to_owned(),
        region,
        min_disk_size: size,
        tags,
        created: context.now,
    };
    let mut response = ApiResponse::new(201, json!({ "snapshot": render::snapshot(&snapshot) }));
    response.copy = Some((volume.to_owned(), id.clone()));
    context.state.snapshots.insert(id, snapshot);
    if let Some(source) = context.state.volumes.get_mut(volume) {
        source.snapshotted = Some(context.now);
    }
    Ok(response)
}

/// Seconds in Go's format, as in the API's message: `10m0s`.
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
    fn durations_are_formatted_as_in_go() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (600, "10m0s"), (3661, "1h1m1s")] {
            assert_eq!(go_duration(seconds), text);
        }
    }
}
