//! Pure decisions about a volume: how it can be used, what a copy contains, whether an existing volume satisfies a
//! request, and which topology it satisfies.

use wharf_driver::backend::{
    AccessMode, Capability, FormatState, NewVolume, SizeRange, Topology, VolumeAccess, VolumeContentSource,
};
use wharf_linux::FsType;

use crate::parameters::Parameters;
use crate::record::{Access, VolumeRecord};
use crate::{TOPOLOGY_KEY, size};

/// Why no local volume supports this capability; `None` if local volumes do.
pub(crate) fn refuses(capability: &Capability) -> Option<String> {
    if !capability.mode.is_single_node() {
        return Some(format!(
            "a local volume is on one node: access mode {:?} is not supported, use a single-node mode",
            capability.mode
        ));
    }
    match &capability.access {
        VolumeAccess::Block => None,
        VolumeAccess::Mount(mount) if mount.fs_type.is_empty() => None,
        VolumeAccess::Mount(mount) => mount.fs_type.parse::<FsType>().err().map(|error| error.to_string()),
    }
}

/// Why this volume does not support this capability, given those it was created for; `None` if it does.
pub(crate) fn refuses_for(record: &VolumeRecord, capability: &Capability) -> Option<String> {
    let made_for = |wanted: fn(&Access) -> bool| record.access.iter().any(wanted);
    match &capability.access {
        VolumeAccess::Block if !made_for(|access| *access == Access::Block) => {
            Some(format!("{} was created with a file system, not as a raw device", record.id))
        }
        VolumeAccess::Mount(_) if !made_for(|access| matches!(access, Access::Mount { .. })) => {
            Some(format!("{} was created as a raw device, not with a file system", record.id))
        }
        VolumeAccess::Mount(mount) => {
            let fs = fs_of(&record.access)?;
            let wanted: FsType = mount.fs_type.parse().ok()?;
            (wanted != fs).then(|| format!("{} was created for {fs}, not for {wanted}", record.id))
        }
        VolumeAccess::Block => None,
    }
}

/// The access types of a request, with the default file system filled in. A copy defaults to its source's file system.
pub(crate) fn resolve_access(
    capabilities: &[Capability],
    inherited: Option<FsType>,
) -> Result<Vec<Access>, String> {
    let mut access = Vec::new();
    for capability in capabilities {
        if let Some(refusal) = refuses(capability) {
            return Err(refusal);
        }
        let one = match &capability.access {
            VolumeAccess::Block => Access::Block,
            VolumeAccess::Mount(mount) => {
                let fs = match mount.fs_type.as_str() {
                    "" => inherited.unwrap_or(FsType::Ext4),
                    named => named.parse().map_err(|error: wharf_linux::UnknownFsType| error.to_string())?,
                };
                Access::Mount { fs }
            }
        };
        if !access.contains(&one) {
            access.push(one);
        }
    }
    let mounts = access.iter().filter(|access| matches!(access, Access::Mount { .. })).count();
    if mounts > 1 {
        return Err("a volume has one file system, but the capabilities name several".into());
    }
    Ok(access)
}

/// The file system that a volume is created for.
pub(crate) fn fs_of(access: &[Access]) -> Option<FsType> {
    access.iter().find_map(|access| match access {
        Access::Mount { fs } => Some(*fs),
        Access::Block => None,
    })
}

/// The smallest volume size for these access types.
pub(crate) fn minimum_size(access: &[Access]) -> u64 {
    fs_of(access).map_or(0, FsType::minimum_size)
}

/// The file system that a source contains.
pub(crate) fn fs_in(format: &FormatState) -> Option<FsType> {
    match format {
        FormatState::Formatted { fs, .. } | FormatState::Copied { fs, .. } => Some(*fs),
        FormatState::Blank | FormatState::Formatting { .. } | FormatState::Raw => None,
    }
}

/// The smallest size that a volume with this content can be expanded to.
pub(crate) fn minimum_grown(format: &FormatState) -> u64 {
    fs_in(format).map_or(0, FsType::minimum_grown_size)
}

/// The format state of a copy. `uuid` is the copy's own file system UUID, so that it can be mounted alongside its
/// source.
pub(crate) fn copied_format(
    source: &FormatState,
    access: &[Access],
    uuid: String,
) -> Result<FormatState, String> {
    match (source, fs_of(access)) {
        (FormatState::Formatting { .. }, _) => Err("the source is being formatted".into()),
        (FormatState::Blank, _) => Ok(FormatState::Blank),
        (FormatState::Raw, _) | (_, None) => Ok(FormatState::Raw),
        (FormatState::Formatted { fs, .. } | FormatState::Copied { fs, .. }, Some(wanted))
            if *fs != wanted =>
        {
            Err(format!("the source contains {fs}, but {wanted} is requested: request {fs}"))
        }
        (FormatState::Formatted { fs, .. } | FormatState::Copied { fs, .. }, Some(_)) => {
            Ok(FormatState::Copied { fs: *fs, uuid })
        }
    }
}

/// Whether a volume's recorded format state is allowed to change from `from` to `to`. A volume that was formatted or
/// used as a raw device never returns to a state in which formatting is allowed.
pub(crate) fn is_allowed_transition(from: &FormatState, to: &FormatState) -> bool {
    match (from, to) {
        (from, to) if from == to => true,
        (_, FormatState::Raw) | (FormatState::Blank, FormatState::Formatting { .. }) => true,
        (FormatState::Formatting { .. }, FormatState::Formatting { .. }) => true,
        (FormatState::Formatting { fs, uuid }, FormatState::Formatted { fs: to, uuid: named })
        | (FormatState::Copied { fs, uuid }, FormatState::Formatted { fs: to, uuid: named }) => {
            fs == to && uuid == named
        }
        _ => false,
    }
}

/// Why an existing volume does not satisfy this request; `None` if it does.
pub(crate) fn incompatibility(
    record: &VolumeRecord,
    wanted: &NewVolume,
    parameters: &Parameters,
) -> Option<String> {
    let NewVolume { name, size, capabilities, source, .. } = wanted;
    let SizeRange { required, limit } = *size;
    let what = if record.name != *name {
        "has a different name".to_owned()
    } else if !size::satisfies(record.size, *size) {
        let limit = limit.map_or("no limit".into(), |limit| format!("at most {limit}"));
        format!("has {} bytes; requested: at least {required}, {limit}", record.size)
    } else if record.source != *source {
        format!("was created from {}; requested: {}", source_id(&record.source), source_id(source))
    } else if record.provisioning != parameters.provisioning {
        format!("is {:?}; requested: {:?}", record.provisioning, parameters.provisioning).to_lowercase()
    } else if record.mkfs_options != parameters.mkfs_options {
        "has different mkfsOptions".to_owned()
    } else {
        capabilities.iter().find_map(|capability| refuses_for(record, capability))?
    };
    Some(format!("a volume named {name:?} exists ({}), but it {what}", record.id))
}

fn source_id(source: &Option<VolumeContentSource>) -> &str {
    match source {
        None => "nothing",
        Some(VolumeContentSource::Snapshot(id) | VolumeContentSource::Volume(id)) => id,
    }
}

/// The topology of the volumes on a node.
pub(crate) fn topology_of(node_id: &str) -> Topology {
    Topology::from([(TOPOLOGY_KEY.to_owned(), node_id.to_owned())])
}

/// Whether a volume on this node satisfies a topology term: every segment must be this node's.
pub(crate) fn matches_node(term: &Topology, node_id: &str) -> bool {
    term.iter().all(|(key, value)| key == TOPOLOGY_KEY && value == node_id)
}

/// Whether a volume on this node satisfies one of the terms. No terms means no restriction.
pub(crate) fn satisfies_topology(requisite: &[Topology], node_id: &str) -> bool {
    requisite.is_empty() || requisite.iter().any(|term| matches_node(term, node_id))
}

/// Whether the device itself must refuse writes: nothing else prevents the user of a raw device from writing. A
/// file system is mounted read-only instead, because replaying its log or changing its UUID has to write.
pub(crate) fn needs_read_only_device(capability: &Capability) -> bool {
    capability.access == VolumeAccess::Block && capability.mode == AccessMode::SingleNodeReaderOnly
}

#[cfg(test)]
mod tests;
