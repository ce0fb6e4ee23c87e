//! PersistentVolume: a volume that there is.

use super::{BASE, Kind, Subresource};

/// A volume that there is.
pub(super) static VOLUME: Kind = Kind {
    kind: "PersistentVolume",
    plural: "persistentvolumes",
    singular: "persistentvolume",
    short_names: &["pv"],
    subresources: &[Subresource::status("", "PersistentVolume")],
    ..BASE
};
