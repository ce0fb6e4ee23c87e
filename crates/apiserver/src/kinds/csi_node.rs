//! CSINode: the drivers of a node.

use super::{BASE, Kind};

/// The drivers of a node.
pub(super) static CSI_NODE: Kind =
    Kind { group: "storage.k8s.io", kind: "CSINode", plural: "csinodes", singular: "csinode", ..BASE };
