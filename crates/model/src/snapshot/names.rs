//! Words that upstream's snapshot controller and snapshotter put into objects, and how they name them.

use sha2::{Digest as _, Sha256};

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

/// On a group's content: the driver was asked to make it, and the answer may be outstanding.
pub const GROUP_BEING_CREATED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
/// On a group's content: its group snapshot goes.
pub const GROUP_BEING_DELETED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
/// On a group's content: the secret with which it is deleted.
pub const GROUP_DELETION_SECRET_NAME: &str = "groupsnapshot.storage.kubernetes.io/deletion-secret-name";
/// On a group's content: that secret's namespace.
pub const GROUP_DELETION_SECRET_NAMESPACE: &str =
    "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace";
/// On a class of group snapshots: taken where a group snapshot names none.
pub const IS_DEFAULT_GROUP_CLASS: &str = "groupsnapshot.storage.kubernetes.io/is-default-class";
/// On a content that belongs to a group: the driver's name for the group. Nobody asks the driver to make such a
/// content, or to delete it.
pub const GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// The content that is made for a snapshot.
pub fn content_name(snapshot_uid: &str) -> String {
    format!("snapcontent-{snapshot_uid}")
}

/// The content that is made for a group snapshot.
pub fn group_content_name(group_uid: &str) -> String {
    format!("groupsnapcontent-{group_uid}")
}

/// The snapshot and the content that are made for a member of a group: of this volume.
pub fn member_names(group_uid: &str, volume_handle: &str) -> (String, String) {
    let digest = Sha256::new().chain_update(group_uid).chain_update(volume_handle).finalize();
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    (format!("snapshot-{digits}"), format!("snapcontent-{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.4 "Binding", "Group".
    #[test]
    fn names_are_upstreams() {
        assert_eq!(content_name("u"), "snapcontent-u");
        assert_eq!(group_content_name("u"), "groupsnapcontent-u");
        // sha256 of "abc", whoever of the two has which part of it.
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let names = (format!("snapshot-{digits}"), format!("snapcontent-{digits}"));
        assert_eq!(member_names("a", "bc"), names);
        assert_eq!(member_names("ab", "c"), names);
    }
}
