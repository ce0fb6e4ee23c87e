//! Node: a machine.

use super::{BASE, Kind, Subresource};

/// A machine.
pub(super) static NODE: Kind = Kind {
    kind: "Node",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    subresources: &[Subresource::status("", "Node")],
    ..BASE
};
