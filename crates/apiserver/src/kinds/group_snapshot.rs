//! VolumeGroupSnapshot, its content and its class.

use super::{BASE, Kind, Subresource};

/// How group snapshots are taken.
pub(super) static CLASS: Kind = Kind {
    group: "groupsnapshot.storage.k8s.io",
    kind: "VolumeGroupSnapshotClass",
    plural: "volumegroupsnapshotclasses",
    singular: "volumegroupsnapshotclass",
    short_names: &["vgsclass", "vgsclasses"],
    unconditional_update: false,
    ..BASE
};

/// A group snapshot, as its driver has it.
pub(super) static CONTENT: Kind = Kind {
    group: "groupsnapshot.storage.k8s.io",
    kind: "VolumeGroupSnapshotContent",
    plural: "volumegroupsnapshotcontents",
    singular: "volumegroupsnapshotcontent",
    short_names: &["vgsc", "vgscs"],
    subresources: &[Subresource::status("groupsnapshot.storage.k8s.io", "VolumeGroupSnapshotContent")],
    unconditional_update: false,
    ..BASE
};

/// A group snapshot, as its user asks for it.
pub(super) static SNAPSHOT: Kind = Kind {
    group: "groupsnapshot.storage.k8s.io",
    kind: "VolumeGroupSnapshot",
    plural: "volumegroupsnapshots",
    singular: "volumegroupsnapshot",
    short_names: &["vgs"],
    namespaced: true,
    subresources: &[Subresource::status("groupsnapshot.storage.k8s.io", "VolumeGroupSnapshot")],
    unconditional_update: false,
    ..BASE
};
