//! StorageClass: how volumes are made.

use super::{BASE, Kind};

/// How volumes are made.
pub(super) static STORAGE_CLASS: Kind = Kind {
    group: "storage.k8s.io",
    kind: "StorageClass",
    plural: "storageclasses",
    singular: "storageclass",
    short_names: &["sc"],
    ..BASE
};
