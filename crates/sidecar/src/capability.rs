//! Builds the CSI `VolumeCapability` of a volume, in the same way for every call that needs one.

use wharf_csi::v1;
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use wharf_model::VolumeMode;
use wharf_model::access::{AccessError, combined_mode};
use wharf_model::volume::PersistentVolumeSpec;

/// The capability of an existing volume, with its access modes combined into one. `default_fstype` is used if the
/// volume has no `fsType`.
pub(crate) fn for_volume(
    spec: &PersistentVolumeSpec,
    default_fstype: &str,
    single_node_multi_writer: bool,
) -> Result<v1::VolumeCapability, AccessError> {
    let mode = combined_mode(&spec.access_modes, single_node_multi_writer)?;
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

/// A capability from an access mode's number and, for a mounted volume, the file system and mount flags. `None` is a
/// block volume.
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
