//! Words that upstream's snapshot controller and snapshotter put into objects.

/// On a snapshot, always: its content is protected until whoever restores from it has done.
pub const AS_SOURCE_PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// On a snapshot that is bound to a content.
pub const BOUND_PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// On a snapshot that belongs to a group.
pub const IN_GROUP_PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
/// On a content.
pub const CONTENT_PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// On a claim of which a snapshot is being taken.
pub const CLAIM_PROTECTION: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// On a group snapshot.
pub const GROUP_PROTECTION: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";
/// On a group snapshot's content.
pub const GROUP_CONTENT_PROTECTION: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";

/// On a content: the driver was asked to make it, and the answer may be outstanding.
pub const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// On a content: its snapshot goes.
pub const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// On a content: the secret with which it is deleted.
pub const DELETION_SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
/// On a content: that secret's namespace.
pub const DELETION_SECRET_NAMESPACE: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";
/// On a class: taken where a snapshot names none.
pub const IS_DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// The label of a content: the node whose snapshotter works on it.
pub const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
