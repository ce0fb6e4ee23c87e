//! From the parameters of a CreateVolume request to the request for its share. Pure.

use std::collections::BTreeMap;

use wharf_driver::backend::{NewVolume, VolumeAccess};

use super::plain_server;
use crate::handle::VolumeHandle;
use crate::options::combine;
use crate::parameters::{ClassParameters, OnDelete, volume_context};
use crate::path::{MAX_COMPONENT, SharePath};
use crate::share::CreateVolume;
use crate::template;
use crate::worker::Export;

/// The request for a share, and the share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CreatePlan {
    pub(super) export: Export,
    pub(super) request: CreateVolume,
}

/// Plans a volume. The error is why the request is invalid.
pub(super) fn plan(
    requested: &NewVolume,
    parameters: &ClassParameters,
    default_on_delete: OnDelete,
) -> Result<CreatePlan, String> {
    let name = checked_name(&requested.name)?;
    let explicit = !parameters.sub_dir.is_empty();
    let sub_dir = match explicit {
        true => {
            template::resolve(&parameters.sub_dir, &parameters.metadata).map_err(|error| error.to_string())?
        }
        false => name.to_owned(),
    };
    let path = SharePath::new(&sub_dir).map_err(|error| format!("subDir: {error}"))?;
    let on_delete_text = match (parameters.on_delete, default_on_delete) {
        (Some(_), _) => parameters.on_delete_text.as_str(),
        (None, OnDelete::Delete) => "",
        (None, OnDelete::Retain) => "retain",
        (None, OnDelete::Archive) => "archive",
    };
    let handle = VolumeHandle {
        server: parameters.server.clone(),
        share: parameters.share.clone(),
        sub_dir: path.as_str().to_owned(),
        uuid: if explicit { name.to_owned() } else { String::new() },
        on_delete: on_delete_text.to_owned(),
    };
    let flags = mount_flags(requested);
    let options = combine(flags.iter().map(String::as_str), &parameters.transport)
        .map_err(|error| error.to_string())?;
    let export = Export::new(plain_server(&parameters.server), &parameters.share, &options);
    let request = CreateVolume {
        handle: handle.to_string(),
        name: requested.name.clone(),
        path: path.clone(),
        size: requested.size.required,
        limit: requested.size.limit,
        context: context(&requested.parameters, &path),
        options,
        on_delete: parameters.on_delete.or(handle.on_delete()),
        source: requested.source.clone(),
        mode: parameters.mode,
        uid: parameters.uid,
        gid: parameters.gid,
        quota: parameters.quota,
    };
    Ok(CreatePlan { export, request })
}

/// A name that can be a directory and a part of a handle.
pub(super) fn checked_name(name: &str) -> Result<&str, String> {
    let problem = match name {
        _ if name.len() > MAX_COMPONENT => "is longer than 255 bytes",
        _ if name.contains(['/', '#', '\\']) => "has one of the characters / # \\",
        _ if name.chars().any(char::is_control) => "has a control character",
        _ if name.starts_with('.') => "begins with a dot",
        _ => return Ok(name),
    };
    Err(format!("name {name:?} {problem}, so it cannot be part of a volume handle"))
}

fn context(parameters: &BTreeMap<String, String>, path: &SharePath) -> BTreeMap<String, String> {
    volume_context(parameters, path.as_str())
}

/// The mount options of the class. All capabilities of one class have the same.
fn mount_flags(requested: &NewVolume) -> Vec<String> {
    let flags = requested.capabilities.iter().find_map(|capability| match &capability.access {
        VolumeAccess::Mount(mount) if !mount.flags.is_empty() => Some(mount.flags.clone()),
        VolumeAccess::Mount(_) | VolumeAccess::Block => None,
    });
    flags.unwrap_or_default()
}
