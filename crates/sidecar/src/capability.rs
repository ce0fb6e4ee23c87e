//! How a volume is to be used, in the words of CSI: the same for every call that asks for it.

use wharf_csi::v1;
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use wharf_model::VolumeMode;
use wharf_model::access::{AccessError, combined};
use wharf_model::volume::VolumeSpec;

/// The capability of a volume that is there: what all its access modes together mean. `default_fstype` stands in
/// where the volume names none.
pub(crate) fn of_volume(
    spec: &VolumeSpec,
    default_fstype: &str,
    single_node_multi_writer: bool,
) -> Result<v1::VolumeCapability, AccessError> {
    let mode = combined(&spec.access_modes, single_node_multi_writer)?;
    let mount = match spec.volume_mode() {
        VolumeMode::Block => None,
        VolumeMode::Filesystem | VolumeMode::Unknown => {
            let fs_type = spec.csi.as_ref().map(|csi| csi.fs_type.as_str()).unwrap_or_default();
            let fs_type = if fs_type.is_empty() { default_fstype } else { fs_type };
            Some((fs_type, spec.mount_options.as_slice()))
        }
    };
    Ok(capability(mode.number(), mount))
}

/// A capability: an access mode's number, and file system and mount flags, or `None` for a block volume.
pub(crate) fn capability(mode: i32, mount: Option<(&str, &[String])>) -> v1::VolumeCapability {
    let access_type = match mount {
        None => AccessType::Block(BlockVolume {}),
        Some((fs_type, flags)) => AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: flags.to_vec(),
            ..MountVolume::default()
        }),
    };
    v1::VolumeCapability { access_mode: Some(AccessMode { mode }), access_type: Some(access_type) }
}
