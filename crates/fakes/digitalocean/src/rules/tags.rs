//! Tags, and what has them.

use serde::Deserialize;
use serde_json::json;

use super::Room;
use crate::answer::{Answer, Outcome};
use crate::paging::page;
use crate::render;

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

/// Whether a tag can be called so.
pub(super) fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:".contains(&byte);
    (1..=255).contains(&name.len()) && name.bytes().all(legal)
}

pub(super) fn list(room: &Room<'_>) -> Answer {
    let tags = room.state.tags.iter().map(|name| render::tag(room.state, name)).collect();
    page(room.request, "tags", tags)
}

pub(super) fn create(room: &mut Room<'_>) -> Outcome {
    let asked: Create = room.request.json()?;
    let name = asked.name.unwrap_or_default();
    if !is_name(&name) {
        return Err(Answer::error(
            400,
            "Tag names may have letters, numbers, colons, dashes and underscores, and up to 255 of them",
        ));
    }
    room.state.tags.insert(name.clone());
    Ok(Answer::new(201, json!({ "tag": render::tag(room.state, &name) })))
}

pub(super) fn get(room: &Room<'_>, name: &str) -> Outcome {
    known(room, name)?;
    Ok(Answer::ok(json!({ "tag": render::tag(room.state, name) })))
}

pub(super) fn delete(room: &mut Room<'_>, name: &str) -> Outcome {
    known(room, name)?;
    room.state.tags.remove(name);
    let drop_from = |tags: &mut Vec<String>| tags.retain(|tag| tag != name);
    room.state.droplets.values_mut().for_each(|droplet| drop_from(&mut droplet.tags));
    room.state.volumes.values_mut().for_each(|volume| drop_from(&mut volume.tags));
    room.state.snapshots.values_mut().for_each(|snapshot| drop_from(&mut snapshot.tags));
    Ok(Answer::nothing())
}

pub(super) fn put_on(room: &mut Room<'_>, name: &str) -> Outcome {
    each(room, name, |tags| {
        if !tags.iter().any(|tag| tag == name) {
            tags.push(name.to_owned());
        }
    })
}

pub(super) fn take_off(room: &mut Room<'_>, name: &str) -> Outcome {
    each(room, name, |tags| tags.retain(|tag| tag != name))
}

/// Changes the tags of all resources that are named, or of none.
fn each(room: &mut Room<'_>, name: &str, change: impl Fn(&mut Vec<String>)) -> Outcome {
    known(room, name)?;
    let Resources { resources } = room.request.json()?;
    let mut state = room.state.clone();
    for Resource { resource_id: id, resource_type } in resources {
        let tags = match resource_type.as_str() {
            "volume" => state.volumes.get_mut(&id).map(|volume| &mut volume.tags),
            "volume_snapshot" => state.snapshots.get_mut(&id).map(|snapshot| &mut snapshot.tags),
            "droplet" => id
                .parse()
                .ok()
                .and_then(|id: u64| state.droplets.get_mut(&id))
                .map(|droplet| &mut droplet.tags),
            _ => return Err(Answer::unprocessable("Resource type is not supported")),
        };
        change(tags.ok_or_else(Answer::not_found)?);
    }
    *room.state = state;
    Ok(Answer::nothing())
}

fn known(room: &Room<'_>, name: &str) -> Result<(), Answer> {
    match room.state.tags.contains(name) {
        true => Ok(()),
        false => Err(Answer::not_found()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn names() {
        let (long, too_long) = ("a".repeat(255), "a".repeat(256));
        for good in ["a", "k8s:0", "A_b-c", long.as_str()] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "a b", "ä", "a.b", "a/b", too_long.as_str()] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
