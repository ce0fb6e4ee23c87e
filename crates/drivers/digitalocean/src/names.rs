//! What the existing driver writes into Kubernetes and DigitalOcean, and what its volumes are therefore known by.

use std::collections::BTreeMap;

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
