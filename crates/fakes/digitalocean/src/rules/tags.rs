//! Tags and tagged resources.

use serde::Deserialize;
use serde_json::json;

use super::RequestContext;
use crate::paging::page;
use crate::render;
use crate::response::{ApiResponse, Outcome};

#[derive(Deserialize)]
struct Create {
    name: Option<String>,
}

#[derive(Deserialize)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    resource_id: String,
    resource_type: String,
}

/// Whether this is a valid tag name.
pub(super) fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:".contains(&byte);
    (1..=255).contains(&name.len()) && name.bytes().all(legal)
}

pub(super) fn list(context: &RequestContext<'_>) -> ApiResponse {
    let tags = context.state.tags.iter().map(|name| render::tag(context.state, name)).collect();
    page(context.request, "tags", tags)
}

pub(super) fn create(context: &mut RequestContext<'_>) -> Outcome {
    let body: Create = context.request.json()?;
    let name = body.name.unwrap_or_default();
    if !is_name(&name) {
        return Err(ApiResponse::error(
            400,
            "Tag names may have letters, numbers, colons, dashes and underscores, and up to 255 of them",
        ));
    }
    context.state.tags.insert(name.clone());
    Ok(ApiResponse::new(201, json!({ "tag": render::tag(context.state, &name) })))
}

pub(super) fn get(context: &RequestContext<'_>, name: &str) -> Outcome {
    known(context, name)?;
    Ok(ApiResponse::ok(json!({ "tag": render::tag(context.state, name) })))
}

pub(super) fn delete(context: &mut RequestContext<'_>, name: &str) -> Outcome {
    known(context, name)?;
    context.state.tags.remove(name);
    let drop_from = |tags: &mut Vec<String>| tags.retain(|tag| tag != name);
    context.state.droplets.values_mut().for_each(|droplet| drop_from(&mut droplet.tags));
    context.state.volumes.values_mut().for_each(|volume| drop_from(&mut volume.tags));
    context.state.snapshots.values_mut().for_each(|snapshot| drop_from(&mut snapshot.tags));
    Ok(ApiResponse::no_content())
}

pub(super) fn add_to_resources(context: &mut RequestContext<'_>, name: &str) -> Outcome {
    each(context, name, |tags| {
        if !tags.iter().any(|tag| tag == name) {
            tags.push(name.to_owned());
        }
    })
}

pub(super) fn remove_from_resources(context: &mut RequestContext<'_>, name: &str) -> Outcome {
    each(context, name, |tags| tags.retain(|tag| tag != name))
}

/// Changes the tags of all named resources, or of none.
fn each(context: &mut RequestContext<'_>, name: &str, change: impl Fn(&mut Vec<String>)) -> Outcome {
    known(context, name)?;
    let Resources { resources } = context.request.json()?;
    let mut state = context.state.clone();
    for Resource { resource_id: id, resource_type } in resources {
        let tags = match resource_type.as_str() {
            "volume" => state.volumes.get_mut(&id).map(|volume| &mut volume.tags),
            "volume_snapshot" => state.snapshots.get_mut(&id).map(|snapshot| &mut snapshot.tags),
            "droplet" => id
                .parse()
                .ok()
                .and_then(|id: u64| state.droplets.get_mut(&id))
                .map(|droplet| &mut droplet.tags),
            _ => return Err(ApiResponse::unprocessable("Resource type is not supported")),
        };
        change(tags.ok_or_else(ApiResponse::not_found)?);
    }
    *context.state = state;
    Ok(ApiResponse::no_content())
}

fn known(context: &RequestContext<'_>, name: &str) -> Result<(), ApiResponse> {
    match context.state.tags.contains(name) {
        true => Ok(()),
        false => Err(ApiResponse::not_found()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn tag_names_are_validated() {
        let (long, too_long) = ("a".repeat(255), "a".repeat(256));
        for good in ["a", "k8s:0", "A_b-c", long.as_str()] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "a b", "ä", "a.b", "a/b", too_long.as_str()] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
