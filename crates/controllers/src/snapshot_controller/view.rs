//! Inputs of the snapshot controller's rules for one snapshot.

use std::sync::Arc;

use wharf_model::{
    Meta, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotContent,
    VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::groups::contains_member;

/// One snapshot and the objects related to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The snapshot; `None` if it no longer exists.
    pub(crate) snapshot: Option<&'a VolumeSnapshot>,
    /// The content that the snapshot is bound to, names as its source, or would get.
    pub(crate) content: Lookup<'a, VolumeSnapshotContent>,
    /// Whether the content was read from the API server and is therefore current.
    pub(crate) content_fetched: bool,
    /// The class named in the spec.
    pub(crate) class: Option<&'a VolumeSnapshotClass>,
    /// The default classes of all drivers.
    pub(crate) defaults: &'a [Arc<VolumeSnapshotClass>],
    /// The source claim.
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    /// The volume of the source claim.
    pub(crate) volume: Lookup<'a, PersistentVolume>,
    /// The node whose snapshotter has to handle the content.
    pub(crate) node: NodeChoice<'a>,
    /// Whether a claim is being restored from the snapshot.
    pub(crate) restoring: bool,
    /// The group snapshot that the snapshot belongs to.
    pub(crate) parent: ParentGroup<'a>,
    /// The name of the group snapshot with the group handle in the content's status, if it exists.
    pub(crate) group_name: Option<&'a str>,
    /// Whether to record the source volume's mode in the content.
    pub(crate) record_volume_mode: bool,
}

/// An object in the cache or from the API server.
#[derive(Debug)]
pub(crate) enum Lookup<'a, T> {
    /// Not in the cache, and the API server was not queried.
    NotCached,
    /// Does not exist: the API server said so, or nothing names it.
    NotFound,
    /// Exists.
    Found(&'a T),
}

impl<T> Clone for Lookup<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Lookup<'_, T> {}

impl<'a, T> Lookup<'a, T> {
    /// From the cached object; `fetched`: the API server was queried.
    pub(crate) fn new(cached: Option<&'a T>, fetched: bool) -> Self {
        match (cached, fetched) {
            (Some(object), _) => Self::Found(object),
            (None, true) => Self::NotFound,
            (None, false) => Self::NotCached,
        }
    }
}

/// The node whose snapshotter has to create the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeChoice<'a> {
    /// Any node.
    Any,
    /// This node.
    Node(&'a str),
    /// The volume has node affinity and no known node can reach it.
    Unreachable,
}

/// The group snapshot that a snapshot belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParentGroup<'a> {
    /// It belongs to none.
    None,
    /// The cache has no matching group of that name, and the API server was not queried.
    NotCached,
    /// It does not exist.
    NotFound,
    /// It exists.
    Found(&'a Meta),
}

/// A group snapshot that may contain the snapshot, and its content.
#[derive(Debug, Clone)]
pub(crate) struct GroupWithContent {
    pub(crate) group: Arc<VolumeGroupSnapshot>,
    pub(crate) content: Option<Arc<VolumeGroupSnapshotContent>>,
}

impl<'a> ParentGroup<'a> {
    /// Resolves the group that a snapshot names. `uid` identifies it, if known; `content` is the snapshot's own
    /// content, `cached` the cached group of that name, `fetched` the API server's response, if it was queried. Group
    /// snapshots may not be watched; then only the response counts.
    pub(crate) fn resolve(
        uid: Option<&str>,
        content: Option<&VolumeSnapshotContent>,
        cached: Option<&'a GroupWithContent>,
        fetched: Option<Option<&'a GroupWithContent>>,
    ) -> Self {
        let is_match = |GroupWithContent { group, content: of_group }: &&GroupWithContent| {
            is_parent_group(uid, group, of_group.as_deref(), content)
        };
        match (cached.or(fetched.flatten()).filter(is_match), fetched) {
            (Some(group), _) => Self::Found(&group.group.metadata),
            (None, Some(_)) => Self::NotFound,
            (None, None) => Self::NotCached,
        }
    }
}

/// Whether this is the group snapshot that a snapshot names: by its UID, if the snapshot has it, or else by the group
/// handle of the snapshot's content, since another group may have that name by now.
pub fn is_parent_group(
    uid: Option<&str>,
    group: &VolumeGroupSnapshot,
    group_content: Option<&VolumeGroupSnapshotContent>,
    content: Option<&VolumeSnapshotContent>,
) -> bool {
    match (uid, group_content, content) {
        (Some(uid), _, _) => group.metadata.uid == uid,
        (None, Some(group_content), Some(content)) => contains_member(group, group_content, content),
        (None, _, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// sidecars.md 1.4 "Delete": a group counts only if it is the same object, whether it comes from the cache or
    /// the server.
    #[test]
    fn parent_group_must_match_uid_or_handle() {
        let group = |uid: &str, handle: &str| {
            let group = json!({
                "metadata": {"name": "g", "namespace": "shop", "uid": uid},
                "spec": {"source": {"volumeGroupSnapshotContentName": "gc"}},
            });
            let content = json!({
                "metadata": {"name": "gc"}, "status": {"volumeGroupSnapshotHandle": handle},
                "spec": {"driver": "d", "volumeGroupSnapshotRef": {"name": "g", "namespace": "shop", "uid": uid}},
            });
            let content = Some(Arc::new(serde_json::from_value(content).unwrap()));
            GroupWithContent { group: Arc::new(serde_json::from_value(group).unwrap()), content }
        };
        let content: VolumeSnapshotContent = serde_json::from_value(json!({
            "metadata": {"name": "c"}, "spec": {"driver": "d"}, "status": {"volumeGroupSnapshotHandle": "gh"},
        }))
        .unwrap();
        let (its, other) = (group("gu", "gh"), group("later", "other"));
        let here = ParentGroup::Found(&its.group.metadata);
        for (uid, content, cached, fetched, expected) in [
            (Some("gu"), None, Some(&its), None, here),
            (Some("gu"), None, None, None, ParentGroup::NotCached),
            (Some("gu"), None, None, Some(None), ParentGroup::NotFound),
            // Groups are not watched.
            (Some("gu"), None, None, Some(Some(&its)), here),
            (Some("gu"), None, None, Some(Some(&other)), ParentGroup::NotFound),
            (Some("gu"), None, Some(&other), None, ParentGroup::NotCached),
            (Some("gu"), None, Some(&other), Some(Some(&other)), ParentGroup::NotFound),
            // The snapshot only names its group, and another group may have that name by now.
            (None, Some(&content), Some(&its), None, here),
            (None, Some(&content), None, Some(Some(&its)), here),
            (None, Some(&content), Some(&other), None, ParentGroup::NotCached),
            (None, Some(&content), Some(&other), Some(Some(&other)), ParentGroup::NotFound),
            (None, None, Some(&its), Some(Some(&its)), ParentGroup::NotFound),
        ] {
            assert_eq!(
                ParentGroup::resolve(uid, content, cached, fetched),
                expected,
                "{uid:?} {cached:?} {fetched:?}"
            );
        }
    }
}
