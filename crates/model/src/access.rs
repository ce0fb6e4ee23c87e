//! From Kubernetes' access modes to CSI's.

use crate::AccessMode;

/// CSI's access modes, with the numbers they have on the wire.
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

impl CsiAccessMode {
    /// The number on the wire.
    pub const fn number(self) -> i32 {
        self as i32
    }
}

/// Modes that CSI has no word for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// ReadWriteOncePod beside another mode.
    #[error("ReadWriteOncePod cannot be combined with other access modes: ask for it alone")]
    OncePodNotAlone,
    /// ReadOnlyMany beside ReadWriteOnce.
    #[error("CSI knows no volume that is ReadOnlyMany and ReadWriteOnce at once: ask for one of them")]
    ReadOnlyManyAndReadWriteOnce,
    /// No mode, or only ones we do not know.
    #[error(
        "unsupported access modes {0:?}: ask for ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod"
    )]
    Unsupported(Vec<AccessMode>),
}

/// The one mode that all of these together mean, as for attaching and expanding. With
/// `single_node_multi_writer` the driver told the two kinds of single-node writer apart.
pub fn combined(modes: &[AccessMode], single_node_multi_writer: bool) -> Result<CsiAccessMode, AccessError> {
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

/// One CSI mode for each of these, as for creating: a new volume has to be capable of every one of them.
pub fn each(modes: &[AccessMode], single_node_multi_writer: bool) -> Result<Vec<CsiAccessMode>, AccessError> {
    modes.iter().map(|&mode| combined(&[mode], single_node_multi_writer)).collect()
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
    fn combinations() {
        let both = |modes: &[AccessMode]| (combined(modes, false), combined(modes, true));
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

    /// sidecars.md 1.0 "Access modes": creating asks mode by mode, so what cannot be combined may still be asked for.
    #[test]
    fn one_by_one() {
        assert_eq!(each(&[Rox, Rwo], false), Ok(vec![MultiNodeReaderOnly, SingleNodeWriter]));
        assert_eq!(each(&[Rwo, Rwx], true), Ok(vec![SingleNodeMultiWriter, MultiNodeMultiWriter]));
        assert_eq!(each(&[Rwo, Unknown], true), Err(AccessError::Unsupported(vec![Unknown])));
    }

    #[test]
    fn numbers_are_those_of_the_wire() {
        let modes = [
            SingleNodeWriter,
            MultiNodeReaderOnly,
            MultiNodeMultiWriter,
            SingleNodeSingleWriter,
            SingleNodeMultiWriter,
        ];
        assert_eq!(modes.map(CsiAccessMode::number), [1, 3, 5, 6, 7]);
    }
}
