//! VolumeSnapshot, its content and its class.

use super::{BASE, Kind, Subresource};

/// How snapshots are taken.
pub(super) static CLASS: Kind = Kind {
    group: "snapshot.storage.k8s.io",
    kind: "VolumeSnapshotClass",
    plural: "volumesnapshotclasses",
    singular: "volumesnapshotclass",
    short_names: &["vsclass", "vsclasses"],
    unconditional_update: false,
    ..BASE
};

/// A snapshot, as its driver has it.
pub(super) static CONTENT: Kind = Kind {
    group: "snapshot.storage.k8s.io",
    kind: "VolumeSnapshotContent",
    plural: "volumesnapshotcontents",
    singular: "volumesnapshotcontent",
    short_names: &["vsc", "vscs"],
    subresources: &[Subresource::status("snapshot.storage.k8s.io", "VolumeSnapshotContent")],
    unconditional_update: false,
    ..BASE
};

/// A snapshot, as its user asks for it.
pub(super) static SNAPSHOT: Kind = Kind {
    group: "snapshot.storage.k8s.io",
    kind: "VolumeSnapshot",
    plural: "volumesnapshots",
    singular: "volumesnapshot",
    short_names: &["vs"],
    namespaced: true,
    subresources: &[Subresource::status("snapshot.storage.k8s.io", "VolumeSnapshot")],
    unconditional_update: false,
    ..BASE
};
