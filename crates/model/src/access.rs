//! Converts Kubernetes access modes to CSI access modes.

use crate::AccessMode;

/// The CSI access modes that Kubernetes requests, with their protobuf numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum CsiAccessMode {
    /// SINGLE_NODE_WRITER.
    SingleNodeWriter = 1,
    /// MULTI_NODE_READER_ONLY.
    MultiNodeReaderOnly = 3,
    /// MULTI_NODE_MULTI_WRITER.
    MultiNodeMultiWriter = 5,
    /// SINGLE_NODE_SINGLE_WRITER.
    SingleNodeSingleWriter = 6,
    /// SINGLE_NODE_MULTI_WRITER.
    SingleNodeMultiWriter = 7,
}

impl From<CsiAccessMode> for i32 {
    /// The protobuf number.
    fn from(mode: CsiAccessMode) -> Self {
        mode as Self
    }
}

/// Access modes that have no CSI equivalent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// ReadWriteOncePod together with another mode.
    #[error("ReadWriteOncePod cannot be combined with other access modes: request it alone")]
    OncePodNotAlone,
    /// ReadOnlyMany together with ReadWriteOnce.
    #[error("CSI has no access mode for ReadOnlyMany together with ReadWriteOnce: request one of them")]
    ReadOnlyManyAndReadWriteOnce,
    /// No mode, or only unknown ones.
    #[error(
        "unsupported access modes {0:?}: request ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod"
    )]
    Unsupported(Vec<AccessMode>),
}

/// The single CSI mode for all of these modes together, for attach and expand. With `single_node_multi_writer` the
/// driver distinguishes SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER.
pub fn combined_mode(
    modes: &[AccessMode],
    single_node_multi_writer: bool,
) -> Result<CsiAccessMode, AccessError> {
    use AccessMode::{ReadOnlyMany, ReadWriteMany, ReadWriteOnce, ReadWriteOncePod};

    let has = |mode| modes.contains(&mode);
    if has(ReadWriteOncePod) {
        return match modes.iter().all(|&mode| mode == ReadWriteOncePod) {
            false => Err(AccessError::OncePodNotAlone),
            true if single_node_multi_writer => Ok(CsiAccessMode::SingleNodeSingleWriter),
            true => Ok(CsiAccessMode::SingleNodeWriter),
        };
    }
    match (has(ReadWriteMany), has(ReadOnlyMany), has(ReadWriteOnce)) {
        (true, _, _) => Ok(CsiAccessMode::MultiNodeMultiWriter),
        (false, true, true) => Err(AccessError::ReadOnlyManyAndReadWriteOnce),
        (false, true, false) => Ok(CsiAccessMode::MultiNodeReaderOnly),
        (false, false, true) if single_node_multi_writer => Ok(CsiAccessMode::SingleNodeMultiWriter),
        (false, false, true) => Ok(CsiAccessMode::SingleNodeWriter),
        (false, false, false) => Err(AccessError::Unsupported(modes.to_vec())),
    }
}

/// One CSI mode for each of these modes, for CreateVolume: a new volume must support every one of them.
pub fn individual_modes(
    modes: &[AccessMode],
    single_node_multi_writer: bool,
) -> Result<Vec<CsiAccessMode>, AccessError> {
    modes.iter().map(|&mode| combined_mode(&[mode], single_node_multi_writer)).collect()
}

#[cfg(test)]
mod tests {
    use super::AccessMode::{
        ReadOnlyMany as Rox, ReadWriteMany as Rwx, ReadWriteOnce as Rwo, ReadWriteOncePod as Rwop, Unknown,
    };
    use super::CsiAccessMode::{
        MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeMultiWriter, SingleNodeSingleWriter,
        SingleNodeWriter,
    };
    use super::*;

    /// sidecars.md 1.0 "Access modes".
    #[test]
    fn modes_are_combined() {
        let both = |modes: &[AccessMode]| (combined_mode(modes, false), combined_mode(modes, true));
        for (modes, plain, capable) in [
            (&[Rwo][..], SingleNodeWriter, SingleNodeMultiWriter),
            (&[Rwo, Rwo], SingleNodeWriter, SingleNodeMultiWriter),
            (&[Rwop], SingleNodeWriter, SingleNodeSingleWriter),
            (&[Rwop, Rwop], SingleNodeWriter, SingleNodeSingleWriter),
            (&[Rox], MultiNodeReaderOnly, MultiNodeReaderOnly),
            (&[Rwx], MultiNodeMultiWriter, MultiNodeMultiWriter),
            (&[Rwx, Rwo], MultiNodeMultiWriter, MultiNodeMultiWriter),
            (&[Rox, Rwx], MultiNodeMultiWriter, MultiNodeMultiWriter),
            (&[Rox, Rwo, Rwx], MultiNodeMultiWriter, MultiNodeMultiWriter),
            (&[Rwo, Unknown], SingleNodeWriter, SingleNodeMultiWriter),
        ] {
            assert_eq!(both(modes), (Ok(plain), Ok(capable)), "{modes:?}");
        }
        for (modes, error) in [
            (&[][..], AccessError::Unsupported(vec![])),
            (&[Unknown], AccessError::Unsupported(vec![Unknown])),
            (&[Rox, Rwo], AccessError::ReadOnlyManyAndReadWriteOnce),
            (&[Rwop, Rwo], AccessError::OncePodNotAlone),
            (&[Rwx, Rwop], AccessError::OncePodNotAlone),
            (&[Rwop, Unknown], AccessError::OncePodNotAlone),
        ] {
            assert_eq!(both(modes), (Err(error.clone()), Err(error)), "{modes:?}");
        }
    }

    /// sidecars.md 1.0 "Access modes": CreateVolume lists mode by mode, so modes that cannot be combined are accepted.
    #[test]
    fn modes_are_converted_individually() {
        assert_eq!(individual_modes(&[Rox, Rwo], false), Ok(vec![MultiNodeReaderOnly, SingleNodeWriter]));
        assert_eq!(
            individual_modes(&[Rwo, Rwx], true),
            Ok(vec![SingleNodeMultiWriter, MultiNodeMultiWriter])
        );
        assert_eq!(individual_modes(&[Rwo, Unknown], true), Err(AccessError::Unsupported(vec![Unknown])));
    }

    #[test]
    fn numbers_match_protobuf() {
        let modes = [
            SingleNodeWriter,
            MultiNodeReaderOnly,
            MultiNodeMultiWriter,
            SingleNodeSingleWriter,
            SingleNodeMultiWriter,
        ];
        assert_eq!(modes.map(i32::from), [1, 3, 5, 6, 7]);
    }
}
