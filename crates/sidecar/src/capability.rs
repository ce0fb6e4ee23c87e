//! Builds the CSI `VolumeCapability` of a volume, in the same way for every call that needs one.

use wharf_csi::v1;
use wharf_csi::v1::volume_capability::MountVolume;
use wharf_csi::volume_capability;
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
            Some(mount_volume(fs_type, &spec.mount_options))
        }
    };
    Ok(volume_capability(mode, mount))
}

/// How a volume is mounted.
pub(crate) fn mount_volume(fs_type: &str, flags: &[String]) -> MountVolume {
    MountVolume { fs_type: fs_type.to_owned(), mount_flags: flags.to_vec(), ..MountVolume::default() }
}

#[cfg(test)]
mod tests {
    use wharf_csi::v1::volume_capability::access_mode::Mode;
    use wharf_model::access::CsiAccessMode;

    /// The model does not depend on CSI's messages, so it has the numbers of the modes that its rules choose.
    #[test]
    fn access_modes_of_the_model_have_the_numbers_of_the_wire() {
        for (mode, wire) in [
            (CsiAccessMode::SingleNodeWriter, Mode::SingleNodeWriter),
            (CsiAccessMode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            (CsiAccessMode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            (CsiAccessMode::SingleNodeSingleWriter, Mode::SingleNodeSingleWriter),
            (CsiAccessMode::SingleNodeMultiWriter, Mode::SingleNodeMultiWriter),
        ] {
            assert_eq!(Mode::try_from(i32::from(mode)), Ok(wire));
        }
    }
}
