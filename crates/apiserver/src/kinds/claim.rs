//! PersistentVolumeClaim: the volume that a user asks for.

use super::{BASE, Kind, Subresource};

/// The volume that a user asks for.
pub(super) static CLAIM: Kind = Kind {
    kind: "PersistentVolumeClaim",
    plural: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    short_names: &["pvc"],
    namespaced: true,
    subresources: &[Subresource::status("", "PersistentVolumeClaim")],
    ..BASE
};
