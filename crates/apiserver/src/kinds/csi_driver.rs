//! CSIDriver: what a driver is like.

use super::{BASE, Kind};

/// What a driver is like.
pub(super) static CSI_DRIVER: Kind =
    Kind { group: "storage.k8s.io", kind: "CSIDriver", plural: "csidrivers", singular: "csidriver", ..BASE };
