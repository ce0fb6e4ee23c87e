//! The name by which Kubernetes knows a CSI volume wherever it is attached: in a node's `volumesInUse` and
//! `volumesAttached`, and, hashed with the node, as the name of its VolumeAttachment.
//!
//! Two PersistentVolumes of one driver and handle are one volume here.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::volume::VolumeSpec;

/// What stands before every CSI volume.
const PLUGIN: &str = "kubernetes.io/csi/";
/// What stands between driver and handle. A driver's name cannot contain it; a handle can.
const BETWEEN: char = '^';

/// A volume, by driver and handle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName {
    /// The driver.
    pub driver: String,
    /// The volume, as the driver calls it.
    pub handle: String,
}

impl VolumeName {
    /// Of a volume's spec; `None` if it is not a CSI volume.
    pub fn of(spec: &VolumeSpec) -> Option<Self> {
        let csi = spec.csi.as_ref()?;
        Some(Self { driver: csi.driver.clone(), handle: csi.volume_handle.clone() })
    }

    /// From a node's status; `None` if it is not the name of a CSI volume.
    pub fn parse(name: &str) -> Option<Self> {
        let (driver, handle) = name.strip_prefix(PLUGIN)?.split_once(BETWEEN)?;
        Some(Self { driver: driver.to_owned(), handle: handle.to_owned() })
    }

    /// The name of its VolumeAttachment on a node.
    pub fn attachment(&self, node: &str) -> String {
        let digest =
            Sha256::new().chain_update(&self.handle).chain_update(&self.driver).chain_update(node).finalize();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("csi-{hex}")
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PLUGIN}{}{BETWEEN}{}", self.driver, self.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (driver, handle) in [("d.test", "vol-1"), ("d.test", ""), ("d.test", "a^b/c"), ("d.test", "ä b")]
        {
            let name = VolumeName { driver: driver.into(), handle: handle.into() };
            assert_eq!(name.to_string(), format!("kubernetes.io/csi/{driver}^{handle}"));
            assert_eq!(VolumeName::parse(&name.to_string()), Some(name));
        }
        for foreign in ["", "kubernetes.io/csi/no-handle", "kubernetes.io/iscsi/d^h", "d^h"] {
            assert_eq!(VolumeName::parse(foreign), None, "{foreign}");
        }
    }

    /// kubernetes.md 1.3 "Attachment": handle, driver and node with nothing between them.
    #[test]
    fn an_attachments_name_is_a_hash() {
        let abc = "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for (handle, driver, node) in [("a", "b", "c"), ("ab", "c", ""), ("", "", "abc")] {
            let name = VolumeName { driver: driver.into(), handle: handle.into() };
            assert_eq!(name.attachment(node), abc);
        }
    }
}
