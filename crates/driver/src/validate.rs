//! Validates requests and converts them from wire types to the backend's types. Pure: each rule takes the name and value of
//! a field and returns INVALID_ARGUMENT with the field's name and the expected value. Values are quoted only where they
//! cannot be secrets.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use tonic::Status;
use wharf_csi::v1;
use wharf_csi::v1::volume_capability::AccessType;

use crate::backend::{
    AccessMode, Capability, MountAccess, SizeRange, Topology, VolumeAccess, VolumeContentSource,
};

/// CSI's limit for a string, ids among them.
pub(crate) const MAX_STRING: usize = 128;
/// CSI's limit for a node's id.
const MAX_NODE_ID: usize = 256;
/// Names can be longer than CSI's 128 bytes: orchestrators build them from other names.
const MAX_NAME: usize = 1024;
/// CSI's limit for a map of strings, and for the mount flags of a capability.
const MAX_MAP: usize = 4096;
/// The kernel's PATH_MAX without its NUL.
const MAX_PATH: usize = 4095;

/// What requests may contain only if the driver's backend declares it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Whether a capability may have a mount group: VOLUME_MOUNT_GROUP.
    pub(crate) mount_group: bool,
    /// The longest id of a volume, snapshot or group snapshot, in bytes.
    pub(crate) max_id: usize,
}

/// The id of a node.
pub(crate) fn node_id(field: &str, value: &str) -> Result<(), Status> {
    text(field, value, MAX_NODE_ID)
}

/// A name chosen by the orchestrator. CSI allows tabs and line ends here, although they are control characters.
pub(crate) fn name(field: &str, value: &str) -> Result<(), Status> {
    let plain: String =
        value.chars().map(|c| if matches!(c, '\t' | '\n' | '\r') { ' ' } else { c }).collect();
    text(field, &plain, MAX_NAME)
}

/// A path on this node: absolute and without `..`.
pub(crate) fn path(field: &str, value: &str) -> Result<PathBuf, Status> {
    text(field, value, MAX_PATH)?;
    let path = Path::new(value);
    if !path.is_absolute() {
        return Err(invalid(field, "must be an absolute path"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(invalid(field, "must not contain \"..\""));
    }
    Ok(path.to_owned())
}

/// StorageClass parameters and other maps of the orchestrator.
pub(crate) fn map(field: &str, map: &BTreeMap<String, String>) -> Result<(), Status> {
    if map.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_MAP {
        return Err(invalid(field, "must not be larger than 4 KiB in all"));
    }
    if map.iter().any(|(key, value)| key.is_empty() || has_nul(key) || has_nul(value)) {
        return Err(invalid(field, "must not have empty keys or NUL characters"));
    }
    Ok(())
}

/// The parameters that a backend checks: without those that Kubernetes adds for its own use.
pub(crate) fn own_parameters(parameters: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let foreign = |key: &str| key.starts_with("csi.storage.k8s.io/");
    parameters
        .iter()
        .filter(|(key, _)| !foreign(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// A size range; a missing range has no bounds.
pub(crate) fn size(field: &str, range: &Option<v1::CapacityRange>) -> Result<SizeRange, Status> {
    let Some(range) = range else { return Ok(SizeRange::default()) };
    let bytes = |part: &str, value: i64| {
        u64::try_from(value).map_err(|_| invalid(&format!("{field}.{part}"), "must not be negative"))
    };
    let required = bytes("required_bytes", range.required_bytes)?;
    let limit = Some(bytes("limit_bytes", range.limit_bytes)?).filter(|limit| *limit > 0);
    if limit.is_some_and(|limit| required > limit) {
        return Err(invalid(field, "required_bytes must not be greater than limit_bytes"));
    }
    Ok(SizeRange { required, limit })
}

/// A size range that must have at least one bound.
pub(crate) fn required_size(field: &str, range: &Option<v1::CapacityRange>) -> Result<SizeRange, Status> {
    match size(field, range)? {
        SizeRange { required: 0, limit: None } => Err(invalid(field, "is required")),
        range => Ok(range),
    }
}

impl Rules {
    /// An id of a volume, snapshot or group snapshot.
    pub(crate) fn id(self, field: &str, value: &str) -> Result<(), Status> {
        text(field, value, self.max_id)
    }

    /// An id that the backend returned for something new. If it breaks the rules, all later calls would reject it, and what
    /// was created could not be deleted.
    pub(crate) fn returned_id(self, what: &str, id: &str) -> Result<(), Status> {
        self.id(&format!("the id of the new {what}"), id).map_err(|status| {
            Status::internal(format!(
                "{}; this is a bug in the driver, and {id:?} may exist",
                status.message()
            ))
        })
    }

    /// An id that may be missing.
    pub(crate) fn optional_id(self, field: &str, id: String) -> Result<Option<String>, Status> {
        if id.is_empty() {
            return Ok(None);
        }
        self.id(field, &id)?;
        Ok(Some(id))
    }

    /// The content source of a new volume.
    pub(crate) fn source(
        self,
        source: &Option<v1::VolumeContentSource>,
    ) -> Result<Option<VolumeContentSource>, Status> {
        use v1::volume_content_source::Type;

        let Some(source) = source else { return Ok(None) };
        match &source.r#type {
            Some(Type::Snapshot(snapshot)) => {
                self.id("volume_content_source.snapshot.snapshot_id", &snapshot.snapshot_id)?;
                Ok(Some(VolumeContentSource::Snapshot(snapshot.snapshot_id.clone())))
            }
            Some(Type::Volume(volume)) => {
                self.id("volume_content_source.volume.volume_id", &volume.volume_id)?;
                Ok(Some(VolumeContentSource::Volume(volume.volume_id.clone())))
            }
            None => Err(missing("volume_content_source.type")),
        }
    }

    /// One required capability.
    pub(crate) fn capability(self, capability: &Option<v1::VolumeCapability>) -> Result<Capability, Status> {
        match capability {
            Some(capability) => self.one_capability("volume_capability", capability),
            None => Err(missing("volume_capability")),
        }
    }

    /// A capability that may be missing.
    pub(crate) fn optional_capability(
        self,
        capability: &Option<v1::VolumeCapability>,
    ) -> Result<Option<Capability>, Status> {
        capability.is_some().then(|| self.capability(capability)).transpose()
    }

    /// The capabilities of a volume; at least one.
    pub(crate) fn capabilities(
        self,
        capabilities: &[v1::VolumeCapability],
    ) -> Result<Vec<Capability>, Status> {
        if capabilities.is_empty() {
            return Err(missing("volume_capabilities"));
        }
        self.any_capabilities(capabilities)
    }

    /// Like [`Self::capabilities`], but the list may be empty.
    pub(crate) fn any_capabilities(
        self,
        capabilities: &[v1::VolumeCapability],
    ) -> Result<Vec<Capability>, Status> {
        capabilities.iter().map(|capability| self.one_capability("volume_capabilities", capability)).collect()
    }

    fn one_capability(self, field: &str, capability: &v1::VolumeCapability) -> Result<Capability, Status> {
        let mut converted = convert_capability(field, capability)?;
        if let Some(AccessType::Mount(wire)) = &capability.access_type
            && let VolumeAccess::Mount(mount) = &mut converted.access
        {
            mount.mount_group = self.mount_group(field, &wire.volume_mount_group)?;
        }
        Ok(converted)
    }

    fn mount_group(self, field: &str, group: &str) -> Result<Option<u32>, Status> {
        let field = format!("{field}.mount.volume_mount_group");
        match group {
            "" => Ok(None),
            // Accepting it without applying it would leave files that the pod's group cannot access.
            _ if !self.mount_group => {
                Err(invalid(&field, "must be empty: this driver does not declare VOLUME_MOUNT_GROUP"))
            }
            // Only a number is safe in a list of mount options.
            group => match group.parse() {
                Ok(group) => Ok(Some(group)),
                Err(_) => Err(invalid(&field, "must be the number of a group")),
            },
        }
    }
}

/// The capability without its mount group.
fn convert_capability(field: &str, capability: &v1::VolumeCapability) -> Result<Capability, Status> {
    use v1::volume_capability::access_mode::Mode;

    let access = match &capability.access_type {
        Some(AccessType::Block(_)) => VolumeAccess::Block,
        Some(AccessType::Mount(mount)) => {
            if !mount.fs_type.is_empty() {
                text(&format!("{field}.mount.fs_type"), &mount.fs_type, MAX_STRING)?;
            }
            let flags = &mount.mount_flags;
            if flags.iter().map(String::len).sum::<usize>() > MAX_MAP
                || flags.iter().any(|flag| has_nul(flag))
            {
                let expected = "must not be larger than 4 KiB in all, nor have NUL characters";
                return Err(invalid(&format!("{field}.mount.mount_flags"), expected));
            }
            VolumeAccess::Mount(MountAccess::new(mount.fs_type.clone()).flags(flags.clone()))
        }
        None => return Err(missing(&format!("{field}.access_type"))),
    };
    let mode = capability.access_mode.as_ref().map_or(0, |mode| mode.mode);
    let mode = match Mode::try_from(mode) {
        Ok(Mode::SingleNodeWriter) => AccessMode::SingleNodeWriter,
        Ok(Mode::SingleNodeReaderOnly) => AccessMode::SingleNodeReaderOnly,
        Ok(Mode::MultiNodeReaderOnly) => AccessMode::MultiNodeReaderOnly,
        Ok(Mode::MultiNodeSingleWriter) => AccessMode::MultiNodeSingleWriter,
        Ok(Mode::MultiNodeMultiWriter) => AccessMode::MultiNodeMultiWriter,
        Ok(Mode::SingleNodeSingleWriter) => AccessMode::SingleNodeSingleWriter,
        Ok(Mode::SingleNodeMultiWriter) => AccessMode::SingleNodeMultiWriter,
        Ok(Mode::Unknown) => return Err(missing(&format!("{field}.access_mode"))),
        Err(_) => {
            return Err(invalid(&format!("{field}.access_mode"), &format!("has no mode of number {mode}")));
        }
    };
    Ok(Capability::new(access, mode))
}

/// Requisite and preferred topologies.
pub(crate) fn topology_requirement(
    requirement: &Option<v1::TopologyRequirement>,
) -> Result<(Vec<Topology>, Vec<Topology>), Status> {
    let Some(requirement) = requirement else { return Ok(Default::default()) };
    let all = |part: &str, topologies: &[v1::Topology]| {
        let field = format!("accessibility_requirements.{part}");
        topologies.iter().map(|one| topology(&field, one)).collect::<Result<Vec<Topology>, Status>>()
    };
    let requisite = all("requisite", &requirement.requisite)?;
    let preferred = all("preferred", &requirement.preferred)?;
    if requisite.is_empty() && preferred.is_empty() {
        return Err(invalid("accessibility_requirements", "must have requisite or preferred topologies"));
    }
    Ok((requisite, preferred))
}

/// One set of topology segments.
pub(crate) fn topology(field: &str, topology: &v1::Topology) -> Result<Topology, Status> {
    map(field, &topology.segments)?;
    Ok(topology.segments.clone())
}

/// A maximum number of entries or results; 0 means no limit.
pub(crate) fn max(field: &str, value: i32) -> Result<Option<usize>, Status> {
    match usize::try_from(value) {
        Ok(0) => Ok(None),
        Ok(max) => Ok(Some(max)),
        Err(_) => Err(invalid(field, "must not be negative")),
    }
}

/// INVALID_ARGUMENT for a missing field.
pub(crate) fn missing(field: &str) -> Status {
    invalid(field, "is required")
}

/// INVALID_ARGUMENT for a field with an invalid value.
pub(crate) fn invalid(field: &str, expected: &str) -> Status {
    Status::invalid_argument(format!("{field} {expected}"))
}

fn text(field: &str, value: &str, max: usize) -> Result<(), Status> {
    if value.is_empty() {
        return Err(missing(field));
    }
    if value.len() > max {
        return Err(invalid(field, &format!("must not be longer than {max} bytes, and has {}", value.len())));
    }
    if value.chars().any(char::is_control) {
        return Err(invalid(field, "must not have control characters"));
    }
    Ok(())
}

fn has_nul(value: &str) -> bool {
    value.contains('\0')
}

#[cfg(test)]
mod tests;
