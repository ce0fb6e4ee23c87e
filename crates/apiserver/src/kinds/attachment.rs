//! VolumeAttachment: a volume is to be at a node.

use super::{BASE, Kind, Subresource};

/// A volume at a node.
pub(super) static ATTACHMENT: Kind = Kind {
    group: "storage.k8s.io",
    kind: "VolumeAttachment",
    plural: "volumeattachments",
    singular: "volumeattachment",
    subresources: &[Subresource::status("storage.k8s.io", "VolumeAttachment")],
    unconditional_update: false,
    ..BASE
};
