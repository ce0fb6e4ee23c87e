//! The unique name of a CSI volume in Kubernetes: used in a node's `volumesInUse` and `volumesAttached` and, hashed with
//! the node's name, as the name of its VolumeAttachment.
//!
//! Two PersistentVolumes with the same driver and handle have the same unique name.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::volume::PersistentVolumeSpec;

/// The prefix of the unique names of CSI volumes.
const PLUGIN: &str = "kubernetes.io/csi/";
/// The separator of driver and handle. A driver's name cannot contain it; a handle can.
const BETWEEN: char = '^';

/// The unique name of a CSI volume: its driver and handle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniqueVolumeName {
    /// The driver.
    pub driver: String,
    /// The driver's handle of the volume.
    pub handle: String,
}

impl UniqueVolumeName {
    /// The unique name of a volume; `None` if it is not a CSI volume.
    pub fn from_spec(spec: &PersistentVolumeSpec) -> Option<Self> {
        let csi = spec.csi.as_ref()?;
        Some(Self { driver: csi.driver.clone(), handle: csi.volume_handle.clone() })
    }

    /// Parses a unique name from a node's status; `None` if it is not that of a CSI volume.
    pub fn parse(name: &str) -> Option<Self> {
        let (driver, handle) = name.strip_prefix(PLUGIN)?.split_once(BETWEEN)?;
        Some(Self { driver: driver.to_owned(), handle: handle.to_owned() })
    }

    /// The name of its VolumeAttachment on a node.
    pub fn attachment_name(&self, node: &str) -> String {
        let digest =
            Sha256::new().chain_update(&self.handle).chain_update(&self.driver).chain_update(node).finalize();
        format!("csi-{}", base16ct::lower::encode_string(&digest))
    }
}

impl fmt::Display for UniqueVolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PLUGIN}{}{BETWEEN}{}", self.driver, self.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (driver, handle) in [("d.test", "vol-1"), ("d.test", ""), ("d.test", "a^b/c"), ("d.test", "ä b")]
        {
            let name = UniqueVolumeName { driver: driver.into(), handle: handle.into() };
            assert_eq!(name.to_string(), format!("kubernetes.io/csi/{driver}^{handle}"));
            assert_eq!(UniqueVolumeName::parse(&name.to_string()), Some(name));
        }
        for foreign in ["", "kubernetes.io/csi/no-handle", "kubernetes.io/iscsi/d^h", "d^h"] {
            assert_eq!(UniqueVolumeName::parse(foreign), None, "{foreign}");
        }
    }

    /// kubernetes.md 1.3 "Attachment": handle, driver and node with nothing between them.
    #[test]
    fn attachment_name_is_a_hash() {
        let abc = "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for (handle, driver, node) in [("a", "b", "c"), ("ab", "c", ""), ("", "", "abc")] {
            let name = UniqueVolumeName { driver: driver.into(), handle: handle.into() };
            assert_eq!(name.attachment_name(node), abc);
        }
    }
}
