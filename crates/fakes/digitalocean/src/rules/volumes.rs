//! Volumes: names, sizes, limits, and deletion.

use serde::Deserialize;
use serde_json::json;

use super::{RequestContext, exceeds_capacity, tags};
use crate::paging::page;
use crate::render;
use crate::response::{ApiResponse, Outcome};
use crate::state::Volume;

/// The largest volume, in GiB.
pub(super) const LARGEST: u64 = 16_384;

#[derive(Deserialize)]
struct Create {
    name: Option<String>,
    region: Option<String>,
    size_gigabytes: Option<i64>,
    description: Option<String>,
    snapshot_id: Option<String>,
    filesystem_type: Option<String>,
    filesystem_label: Option<String>,
    tags: Option<Vec<String>>,
}

pub(super) fn list(context: &RequestContext<'_>) -> ApiResponse {
    let (name, region) = (context.request.param("name"), context.request.param("region"));
    let fits = |volume: &&Volume| {
        name.as_ref().is_none_or(|name| *name == volume.name)
            && region.as_ref().is_none_or(|region| *region == volume.region)
    };
    let mut found: Vec<&Volume> = context.state.volumes.values().filter(fits).collect();
    found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    page(context.request, "volumes", found.into_iter().map(render::volume).collect())
}

pub(super) fn get(context: &RequestContext<'_>, id: &str) -> Outcome {
    let volume = context.state.volumes.get(id).ok_or_else(ApiResponse::not_found)?;
    Ok(ApiResponse::ok(json!({ "volume": render::volume(volume) })))
}

pub(super) fn create(context: &mut RequestContext<'_>) -> Outcome {
    let body: Create = context.request.json()?;
    // Clients send unset fields as empty strings.
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let name = given(body.name).ok_or_else(|| ApiResponse::unprocessable("Name can't be blank"))?;
    if let Some(wrong) = invalid_name(&name) {
        return Err(ApiResponse::unprocessable(wrong));
    }
    let snapshot = given(body.snapshot_id)
        .map(|id| context.state.snapshots.get(&id).cloned().ok_or_else(ApiResponse::not_found))
        .transpose()?;
    // The region defaults to the snapshot's.
    let region = given(body.region)
        .or_else(|| snapshot.as_ref().map(|snapshot| snapshot.region.clone()))
        .ok_or_else(|| ApiResponse::unprocessable("Region can't be blank"))?;
    if !render::is_region(&region) {
        return Err(ApiResponse::unprocessable("Region is not available"));
    }
    if snapshot.as_ref().is_some_and(|snapshot| snapshot.region != region) {
        return Err(ApiResponse::unprocessable("Snapshot is not available in the region"));
    }
    let size = match &snapshot {
        // "Does not apply": the volume starts with the snapshot's size and is resized afterwards.
        Some(snapshot) => snapshot.min_disk_size,
        None => u64::try_from(body.size_gigabytes.unwrap_or(0))
            .ok()
            .filter(|size| (1..=LARGEST).contains(size))
            .ok_or_else(|| ApiResponse::unprocessable("Size gigabytes must be between 1 and 16384"))?,
    };
    let filesystem_type = body.filesystem_type.unwrap_or_default();
    let filesystem_label = body.filesystem_label.unwrap_or_default();
    if let Some(wrong) = invalid_filesystem(&filesystem_type, &filesystem_label) {
        return Err(ApiResponse::unprocessable(wrong));
    }
    let tags = body.tags.unwrap_or_default();
    if !tags.iter().all(|tag| tags::is_name(tag)) {
        return Err(ApiResponse::unprocessable("Tags are invalid"));
    }
    if context.state.volumes.values().any(|other| other.name == name && other.region == region) {
        return Err(ApiResponse::conflict("failed to create volume: a volume with this name already exists"));
    }
    let limit = context.settings.volume_limit;
    if (limit > 0 && context.state.volumes.len() as u64 >= limit) || exceeds_capacity(context, size) {
        return Err(ApiResponse::capacity("create volume"));
    }
    let id = context.state.next_uuid(context.now);
    context.state.tags.extend(tags.iter().cloned());
    let volume = Volume {
        id: id.clone(),
        name,
        region,
        size_gigabytes: size,
        description: body.description.unwrap_or_default(),
        filesystem_type,
        filesystem_label,
        tags,
        created: context.now,
        attached: None,
        snapshotted: None,
    };
    let mut response = ApiResponse::new(201, json!({ "volume": render::volume(&volume) }));
    response.copy = snapshot.map(|snapshot| (snapshot.id, id.clone()));
    context.state.volumes.insert(id, volume);
    Ok(response)
}

pub(super) fn delete_named(context: &mut RequestContext<'_>) -> Outcome {
    let (name, region) = (context.request.param("name"), context.request.param("region"));
    let mut named = context.state.volumes.values().filter(|volume| {
        Some(&volume.name) == name.as_ref() && region.as_ref().is_none_or(|region| *region == volume.region)
    });
    let id = named.next().ok_or_else(ApiResponse::not_found)?.id.clone();
    delete(context, &id)
}

pub(super) fn delete(context: &mut RequestContext<'_>, id: &str) -> Outcome {
    let volume = context.state.volumes.get(id).ok_or_else(ApiResponse::not_found)?;
    // A pending attach counts as attached.
    let busy = context.state.pending().any(|action| action.volume == id);
    if volume.attached.is_some() || busy {
        return Err(ApiResponse::conflict(
            "A volume that's attached to a Droplet cannot be deleted. Please detach it first before deleting.",
        ));
    }
    context.state.volumes.remove(id);
    Ok(ApiResponse::no_content())
}

/// What is wrong with a name.
fn invalid_name(name: &str) -> Option<&'static str> {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.len() > 64 {
        Some("Name is too long (maximum is 64 characters)")
    } else if !name.starts_with(|first: char| first.is_ascii_lowercase()) || !name.bytes().all(legal) {
        Some("Name must begin with a letter and be comprised only of lower case letters, digits and hyphens")
    } else {
        None
    }
}

/// What is wrong with a file system and its label.
fn invalid_filesystem(kind: &str, label: &str) -> Option<&'static str> {
    match (kind, label.len()) {
        ("", 0) | ("ext4", 0..=16) | ("xfs", 0..=12) => None,
        ("", _) => Some("Filesystem label needs a filesystem type"),
        ("ext4" | "xfs", _) => Some("Filesystem label is too long"),
        _ => Some("Filesystem type must be ext4 or xfs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_names_are_validated() {
        let long = "a".repeat(64);
        let too_long = "a".repeat(65);
        for good in ["a", "pvc-0", "a-", long.as_str()] {
            assert_eq!(invalid_name(good), None, "{good}");
        }
        for bad in ["", "0a", "-a", "A", "aB", "a_b", "a.b", "ä", "a b", too_long.as_str()] {
            assert!(invalid_name(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn filesystem_type_and_label_are_validated() {
        let table = [
            ("", "", true),
            ("ext4", "", true),
            ("ext4", "sixteen-letters!", true),
            ("ext4", "seventeen-letters", false),
            ("xfs", "twelve-chars", true),
            ("xfs", "thirteen-char", false),
            ("btrfs", "", false),
            ("", "label", false),
        ];
        for (kind, label, good) in table {
            assert_eq!(invalid_filesystem(kind, label).is_none(), good, "{kind} {label}");
        }
    }
}
