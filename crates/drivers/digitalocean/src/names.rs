//! Names that the existing driver writes into Kubernetes and DigitalOcean, by which its volumes are recognized.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use wharf_driver::backend::Topology;

/// The driver's name.
pub const DRIVER_NAME: &str = "dobs.csi.digitalocean.com";
/// Its name before CSI 0.3; old clusters have it in their volumes.
pub const LEGACY_DRIVER_NAME: &str = "com.digitalocean.csi.dobs";
/// The topology key; its value is a region's slug.
pub const REGION_KEY: &str = "region";
/// Description of volumes and snapshots, which distinguishes the driver's own from others.
pub const DESCRIPTION: &str = "Created by DigitalOcean CSI driver";
/// Key of the mkfs options, both as a parameter and in the volume context.
pub(crate) const MKFS_OPTIONS: &str = "mkfsOptions";

/// Keys of the volume context that disable formatting, regardless of their value. The existing driver does not know
/// the third one, but uses it in its own example of an existing volume.
const NO_FORMAT: [&str; 3] = [
    "dobs.csi.digitalocean.com/noformat",
    "com.digitalocean.csi.dobs/noformat",
    "com.digitalocean.csi/noformat",
];

/// Prefix of a device's link, before the volume's name.
pub(crate) const LINK_PREFIX: &str = "scsi-0DO_Volume_";

/// The API's maximum length of a volume name.
const LONGEST_NAME: usize = 64;

/// A volume's name at DigitalOcean: the CSI name if that is valid, as Kubernetes' `pvc-…` always is. Otherwise a name
/// derived from it by a hash.
pub(crate) fn volume_name(name: &str) -> String {
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if begins && plain && name.len() <= LONGEST_NAME && !name.ends_with('-') {
        return name.to_owned();
    }
    let digest = Sha256::digest(name.as_bytes());
    format!("volume-{}", base16ct::lower::encode_string(&digest[..20]))
}

/// The topology of a droplet or volume in this region.
pub(crate) fn topology_of(region: &str) -> Topology {
    [(REGION_KEY.to_owned(), region.to_owned())].into()
}

/// The keys of the publish context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishKeys {
    /// The volume's name, by which the node finds the device. The existing driver uses the same key.
    pub(crate) volume_name: String,
    /// Its size in bytes at attach time. Attachments of the existing driver do not have this key.
    pub(crate) size: String,
}

impl PublishKeys {
    pub(crate) fn of(driver_name: &str) -> Self {
        Self { volume_name: format!("{driver_name}/volume-name"), size: format!("{driver_name}/size-bytes") }
    }
}

/// Whether the volume context disables formatting.
pub(crate) fn never_formats(context: &BTreeMap<String, String>) -> bool {
    NO_FORMAT.iter().any(|key| context.contains_key(*key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_hashed_to_valid_unique_names() {
        for name in ["pvc-0a1b2c3d-1111-2222-3333-444455556666", "a", &"x".repeat(64)] {
            assert_eq!(volume_name(name), name);
        }
        let odd = ["", "1a", "-a", "a-", "A", "a_b", "a.b", "ä", "a b", &"x".repeat(65), &"x".repeat(66)];
        let created: std::collections::BTreeSet<String> = odd.iter().map(|name| volume_name(name)).collect();
        assert_eq!(created.len(), odd.len(), "names must be unique");
        assert_eq!(volume_name("A name"), "volume-0b7fbdb32a8bb3a8db34fd8d9b04bed390daff98");
        for name in &created {
            assert_eq!(volume_name(name), *name, "a derived name must be valid");
        }
    }

    /// Includes the key of the existing driver's example, which that driver ignores.
    #[test]
    fn no_format_key_disables_formatting_with_any_value() {
        for key in NO_FORMAT {
            for value in ["", "true", "false"] {
                assert!(never_formats(&[(key.to_owned(), value.to_owned())].into()), "{key}");
            }
        }
        assert!(!never_formats(&[("noformat".to_owned(), "true".to_owned())].into()));
    }
}
