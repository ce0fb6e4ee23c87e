//! What the existing driver writes into Kubernetes and DigitalOcean, and what its volumes are therefore known by.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use wharf_driver::backend::Topology;

/// The driver's name.
pub const DRIVER_NAME: &str = "dobs.csi.digitalocean.com";
/// Its name before CSI 0.3; clusters from then have it in their volumes.
pub const LEGACY_DRIVER_NAME: &str = "com.digitalocean.csi.dobs";
/// The topology key; its value is a region's slug.
pub const REGION_KEY: &str = "region";
/// What volumes and snapshots are described as: how ours are told from others.
pub const DESCRIPTION: &str = "Created by DigitalOcean CSI driver";
/// The volume context's (and the parameter's) key of mkfs options.
pub(crate) const MKFS_OPTIONS: &str = "mkfsOptions";

/// Keys of the volume context which say, whatever their value, that no file system is ever to be made. The
/// third is not one that the existing driver knows, but the one that its own example of an existing volume has.
const NO_FORMAT: [&str; 3] = [
    "dobs.csi.digitalocean.com/noformat",
    "com.digitalocean.csi.dobs/noformat",
    "com.digitalocean.csi/noformat",
];

/// What a device's link begins with, before the volume's name.
pub(crate) const LINK_PREFIX: &str = "scsi-0DO_Volume_";

/// The API's longest name of a volume.
const LONGEST_NAME: usize = 64;

/// What a volume is called at DigitalOcean: as CSI calls it, if it may be called so. Kubernetes' `pvc-…` always may.
/// From any other name one is made that is always the same.
pub(crate) fn volume_name(name: &str) -> String {
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if begins && plain && name.len() <= LONGEST_NAME && !name.ends_with('-') {
        return name.to_owned();
    }
    let digest = Sha256::digest(name.as_bytes());
    let hex: String = digest.iter().take(20).map(|byte| format!("{byte:02x}")).collect();
    format!("volume-{hex}")
}

/// A droplet or volume of this region.
pub(crate) fn topology_of(region: &str) -> Topology {
    [(REGION_KEY.to_owned(), region.to_owned())].into()
}

/// The keys of the publish context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishKeys {
    /// The volume's name, by which the node finds the device. The existing driver has it too.
    pub(crate) volume_name: String,
    /// Its size in bytes at the time. Ours alone: attachments of the existing driver do not have it.
    pub(crate) size: String,
}

impl PublishKeys {
    pub(crate) fn of(driver_name: &str) -> Self {
        Self { volume_name: format!("{driver_name}/volume-name"), size: format!("{driver_name}/size-bytes") }
    }
}

/// Whether the volume context forbids to make a file system.
pub(crate) fn never_formats(context: &BTreeMap<String, String>) -> bool {
    NO_FORMAT.iter().any(|key| context.contains_key(*key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_api_s() {
        for name in ["pvc-0a1b2c3d-1111-2222-3333-444455556666", "a", &"x".repeat(64)] {
            assert_eq!(volume_name(name), name);
        }
        let odd = ["", "1a", "-a", "a-", "A", "a_b", "a.b", "ä", "a b", &"x".repeat(65), &"x".repeat(66)];
        let made: std::collections::BTreeSet<String> = odd.iter().map(|name| volume_name(name)).collect();
        assert_eq!(made.len(), odd.len(), "each has its own");
        for name in &made {
            assert_eq!(volume_name(name), *name, "and that is one that may be");
        }
    }

    /// B7: the key of the existing driver's own example did nothing.
    #[test]
    fn no_format_in_all_spellings_and_with_any_value() {
        for key in NO_FORMAT {
            for value in ["", "true", "false"] {
                assert!(never_formats(&[(key.to_owned(), value.to_owned())].into()), "{key}");
            }
        }
        assert!(!never_formats(&[("noformat".to_owned(), "true".to_owned())].into()));
    }
}
