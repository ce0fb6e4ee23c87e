//! CSIStorageCapacity: what a driver has room for.

use super::{BASE, Kind};

/// What a driver has room for.
pub(super) static CAPACITY: Kind = Kind {
    group: "storage.k8s.io",
    kind: "CSIStorageCapacity",
    plural: "csistoragecapacities",
    singular: "csistoragecapacity",
    namespaced: true,
    ..BASE
};
