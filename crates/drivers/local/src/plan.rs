//! The decisions about a volume that need nothing but what is known already: how it is to be used, what its
//! bytes are when they come from another, whether an existing one is the one asked for, where it may be.

use wharf_driver::backend::{
    AccessMode, Capability, Format, NewVolume, SizeRange, Source, Topology, VolumeAccess,
};
use wharf_linux::FsType;

use crate::parameters::Parameters;
use crate::record::{Access, VolumeRecord};
use crate::{TOPOLOGY_KEY, size};

/// Why a capability cannot be had from any local volume.
pub(crate) fn refuses(capability: &Capability) -> Option<String> {
    if !capability.mode.is_single_node() {
        return Some(format!(
            "a local volume is on one node: access mode {:?} is not possible, use a single-node one",
            capability.mode
        ));
    }
    match &capability.access {
        VolumeAccess::Block => None,
        VolumeAccess::Mount { fs_type, .. } if fs_type.is_empty() => None,
        VolumeAccess::Mount { fs_type, .. } => fs_type.parse::<FsType>().err().map(|error| error.to_string()),
    }
}

/// Why a capability cannot be had from this volume, which was made for other ones.
pub(crate) fn refuses_for(record: &VolumeRecord, capability: &Capability) -> Option<String> {
    let made_for = |wanted: fn(&Access) -> bool| record.access.iter().any(wanted);
    match &capability.access {
        VolumeAccess::Block if !made_for(|access| *access == Access::Block) => {
            Some(format!("{} was made for a file system, not as a raw device", record.id))
        }
        VolumeAccess::Mount { .. } if !made_for(|access| matches!(access, Access::Mount { .. })) => {
            Some(format!("{} was made as a raw device, not for a file system", record.id))
        }
        VolumeAccess::Mount { fs_type, .. } => {
            let fs = fs_of(&record.access)?;
            let wanted: FsType = fs_type.parse().ok()?;
            (wanted != fs).then(|| format!("{} is for {fs}, not for {wanted}", record.id))
        }
        VolumeAccess::Block => None,
    }
}

/// The ways of use in a request, with the default file system where none is named. A copy's default is what
/// its source has.
pub(crate) fn access(capabilities: &[Capability], inherited: Option<FsType>) -> Result<Vec<Access>, String> {
    let mut access = Vec::new();
    for capability in capabilities {
        if let Some(refusal) = refuses(capability) {
            return Err(refusal);
        }
        let one = match &capability.access {
            VolumeAccess::Block => Access::Block,
            VolumeAccess::Mount { fs_type, .. } => {
                let fs = match fs_type.as_str() {
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
        return Err("a volume has one file system: the capabilities name several".into());
    }
    Ok(access)
}

/// The file system that a volume is made for.
pub(crate) fn fs_of(access: &[Access]) -> Option<FsType> {
    access.iter().find_map(|access| match access {
        Access::Mount { fs } => Some(*fs),
        Access::Block => None,
    })
}

/// The smallest volume that can be used in these ways.
pub(crate) fn minimum(access: &[Access]) -> u64 {
    fs_of(access).map_or(0, FsType::minimum_size)
}

/// The file system that a source holds.
pub(crate) fn fs_in(format: &Format) -> Option<FsType> {
    match format {
        Format::Formatted { fs, .. } | Format::Copied { fs, .. } => Some(*fs),
        Format::Blank | Format::Formatting { .. } | Format::Raw => None,
    }
}

/// The smallest size that such a volume can be grown to.
pub(crate) fn minimum_grown(format: &Format) -> u64 {
    fs_in(format).map_or(0, FsType::minimum_grown_size)
}

/// What the bytes of a copy are. `uuid` is for a file system that will be mounted beside its source.
pub(crate) fn copied(source: &Format, access: &[Access], uuid: String) -> Result<Format, String> {
    match (source, fs_of(access)) {
        (Format::Formatting { .. }, _) => Err("the source is being formatted".into()),
        (Format::Blank, _) => Ok(Format::Blank),
        (Format::Raw, _) | (_, None) => Ok(Format::Raw),
        (Format::Formatted { fs, .. } | Format::Copied { fs, .. }, Some(wanted)) if *fs != wanted => {
            Err(format!("the source holds {fs}, {wanted} is asked for: ask for {fs}"))
        }
        (Format::Formatted { fs, .. } | Format::Copied { fs, .. }, Some(_)) => {
            Ok(Format::Copied { fs: *fs, uuid })
        }
    }
}

/// Whether the record of a volume's bytes may go from one state to another. Once handed out raw, or once
/// formatted, there is no way back to a state in which a format would be allowed.
pub(crate) fn may_become(from: &Format, to: &Format) -> bool {
    match (from, to) {
        (from, to) if from == to => true,
        (_, Format::Raw) | (Format::Blank, Format::Formatting { .. }) => true,
        (Format::Formatting { .. }, Format::Formatting { .. }) => true,
        (Format::Formatting { fs, uuid }, Format::Formatted { fs: to, uuid: named })
        | (Format::Copied { fs, uuid }, Format::Formatted { fs: to, uuid: named }) => {
            fs == to && uuid == named
        }
        _ => false,
    }
}

/// Why an existing volume is not the one that is asked for now; `None` if it is.
pub(crate) fn differs(record: &VolumeRecord, wanted: &NewVolume, parameters: &Parameters) -> Option<String> {
    let NewVolume { name, size, capabilities, source, .. } = wanted;
    let SizeRange { required, limit } = *size;
    let what = if record.name != *name {
        "has another name".to_owned()
    } else if !size::satisfies(record.size, *size) {
        let limit = limit.map_or("no limit".into(), |limit| format!("at most {limit}"));
        format!("has {} bytes; asked for: at least {required}, {limit}", record.size)
    } else if record.source != *source {
        format!("was made from {}; asked for: {}", named(&record.source), named(source))
    } else if record.provisioning != parameters.provisioning {
        format!("is {:?}; asked for: {:?}", record.provisioning, parameters.provisioning).to_lowercase()
    } else if record.mkfs_options != parameters.mkfs_options {
        "has other mkfsOptions".to_owned()
    } else {
        capabilities.iter().find_map(|capability| refuses_for(record, capability))?
    };
    Some(format!("a volume named {name:?} exists ({}), but it {what}", record.id))
}

fn named(source: &Option<Source>) -> &str {
    match source {
        None => "nothing",
        Some(Source::Snapshot(id) | Source::Volume(id)) => id,
    }
}

/// Where the volumes of a node are.
pub(crate) fn topology_of(node_id: &str) -> Topology {
    Topology::from([(TOPOLOGY_KEY.to_owned(), node_id.to_owned())])
}

/// Whether a volume on this node satisfies a topology term: every segment of it must be ours.
pub(crate) fn is_here(term: &Topology, node_id: &str) -> bool {
    term.iter().all(|(key, value)| key == TOPOLOGY_KEY && value == node_id)
}

/// Whether what is on this node satisfies one of the terms; no terms, no wishes.
pub(crate) fn is_reachable(requisite: &[Topology], node_id: &str) -> bool {
    requisite.is_empty() || requisite.iter().any(|term| is_here(term, node_id))
}

/// Whether the device itself must refuse writes: nothing else keeps the user of a raw device from writing. A
/// file system is mounted read-only instead, because replaying its log or changing its UUID has to write.
pub(crate) fn needs_read_only_device(capability: &Capability) -> bool {
    capability.access == VolumeAccess::Block && capability.mode == AccessMode::SingleNodeReaderOnly
}

#[cfg(test)]
mod tests;
