//! Finalizers, annotations and labels of upstream's snapshot controller and snapshotter, and the names of the objects
//! that they create.

use sha2::{Digest as _, Sha256};

/// On every snapshot: protects it while a volume is being restored from it.
pub const AS_SOURCE_PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// On a snapshot that is bound to a content.
pub const BOUND_PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// On a snapshot that belongs to a group.
pub const IN_GROUP_PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
/// On a content.
pub const CONTENT_PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// On a claim while a snapshot of it is being taken.
pub const CLAIM_PROTECTION: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// On a group snapshot.
pub const GROUP_PROTECTION: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";
/// On a group snapshot's content.
pub const GROUP_CONTENT_PROTECTION: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";

/// On a content: CreateSnapshot was called, and its outcome may be unknown.
pub const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// On a content: its snapshot is being deleted.
pub const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// On a content: the name of the secret for DeleteSnapshot.
pub const DELETION_SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
/// On a content: the namespace of that secret.
pub const DELETION_SECRET_NAMESPACE: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";
/// On a class: the default for snapshots that name none.
pub const IS_DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// Label of a content: the node whose snapshotter manages it.
pub const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// On a group's content: CreateVolumeGroupSnapshot was called, and its outcome may be unknown.
pub const GROUP_BEING_CREATED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
/// On a group's content: its group snapshot is being deleted.
pub const GROUP_BEING_DELETED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
/// On a group's content: the name of the secret for DeleteVolumeGroupSnapshot.
pub const GROUP_DELETION_SECRET_NAME: &str = "groupsnapshot.storage.kubernetes.io/deletion-secret-name";
/// On a group's content: the namespace of that secret.
pub const GROUP_DELETION_SECRET_NAMESPACE: &str =
    "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace";
/// On a group snapshot class: the default for group snapshots that name none.
pub const IS_DEFAULT_GROUP_CLASS: &str = "groupsnapshot.storage.kubernetes.io/is-default-class";
/// On a content that belongs to a group: the group snapshot handle. The snapshotter neither creates nor deletes such a
/// content individually.
pub const GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// The name of the content that is created for a snapshot.
pub fn content_name(snapshot_uid: &str) -> String {
    format!("snapcontent-{snapshot_uid}")
}

/// The name of the content that is created for a group snapshot.
pub fn group_content_name(group_uid: &str) -> String {
    format!("groupsnapcontent-{group_uid}")
}

/// The names of the snapshot and the content that are created for a volume of a group.
pub fn member_names(group_uid: &str, volume_handle: &str) -> (String, String) {
    let digest = Sha256::new().chain_update(group_uid).chain_update(volume_handle).finalize();
    let digits = base16ct::lower::encode_string(&digest);
    (format!("snapshot-{digits}"), format!("snapcontent-{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.4 "Binding", "Group".
    #[test]
    fn names_match_upstream() {
        assert_eq!(content_name("u"), "snapcontent-u");
        assert_eq!(group_content_name("u"), "groupsnapcontent-u");
        // SHA-256 of "abc", however it is split.
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let names = (format!("snapshot-{digits}"), format!("snapcontent-{digits}"));
        assert_eq!(member_names("a", "bc"), names);
        assert_eq!(member_names("ab", "c"), names);
    }
}
