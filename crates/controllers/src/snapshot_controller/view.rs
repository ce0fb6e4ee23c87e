//! Inputs of the snapshot controller's rules for one snapshot.

use std::sync::Arc;

use wharf_model::snapshot::names;
use wharf_model::{
    Key, Meta, OwnerRef, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::groups::contains_member;

/// API group of group snapshots in owner references.
const GROUP_API_PREFIX: &str = "groupsnapshot.storage.k8s.io/";

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
        let is_match = |GroupWithContent { group, content: of_group }: &&GroupWithContent| match (
            uid, of_group, content,
        ) {
            (Some(uid), _, _) => group.metadata.uid == uid,
            (None, Some(of_group), Some(content)) => contains_member(group, of_group, content),
            (None, _, _) => false,
        };
        match (cached.or(fetched.flatten()).filter(is_match), fetched) {
            (Some(group), _) => Self::Found(&group.group.metadata),
            (None, Some(_)) => Self::NotFound,
            (None, None) => Self::NotCached,
        }
    }
}

/// The group snapshot that owns a snapshot, in any version of the API.
pub(crate) fn owning_group(snapshot: &VolumeSnapshot) -> Option<&OwnerRef> {
    let is_group = |owner: &&OwnerRef| {
        owner.kind == "VolumeGroupSnapshot" && owner.api_version.starts_with(GROUP_API_PREFIX)
    };
    snapshot.metadata.owner_references.iter().find(is_group)
}

/// The group snapshot that a snapshot belongs to: its key and, if known, its UID.
pub(crate) fn parent_group(snapshot: &VolumeSnapshot) -> Option<(Key, Option<&str>)> {
    let namespace = snapshot.metadata.namespace.clone().unwrap_or_default();
    let fetched = snapshot
        .status
        .as_ref()
        .and_then(|status| status.volume_group_snapshot_name.as_deref())
        .filter(named);
    match (owning_group(snapshot), fetched) {
        (Some(owner), _) => Some((Key::namespaced(namespace, &*owner.name), Some(&owner.uid))),
        (None, Some(name)) => Some((Key::namespaced(namespace, name), None)),
        (None, None) => None,
    }
}

fn named(name: &&str) -> bool {
    !name.is_empty()
}

/// The content that a snapshot is bound to.
pub(crate) fn bound_content(snapshot: &VolumeSnapshot) -> Option<&str> {
    let status = snapshot.status.as_ref()?;
    status.bound_volume_snapshot_content_name.as_deref().filter(named)
}

/// The existing content that the user named as the source.
pub(crate) fn pre_provisioned(snapshot: &VolumeSnapshot) -> Option<&str> {
    snapshot.spec.source.volume_snapshot_content_name.as_deref()
}

/// The name of the source claim.
pub(crate) fn source_claim_name(snapshot: &VolumeSnapshot) -> Option<&str> {
    snapshot.spec.source.persistent_volume_claim_name.as_deref().filter(named)
}

/// The name of the content of a snapshot, even before the two are bound.
pub(crate) fn expected_content_name(snapshot: &VolumeSnapshot) -> String {
    let Meta { name, uid, .. } = &snapshot.metadata;
    match (pre_provisioned(snapshot).or(bound_content(snapshot)), owning_group(snapshot)) {
        (Some(name), _) => name.to_owned(),
        // Snapshot and content of a member have the same suffix.
        (None, Some(_)) => name.replacen("snapshot-", "snapcontent-", 1),
        (None, None) => names::content_name(uid),
    }
}

/// Whether volumes can be restored from it.
pub(crate) fn is_ready(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
}

/// Whether the driver has created the snapshot.
pub(crate) fn is_created(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|status| status.creation_time.is_some())
}

/// Whether the content references this snapshot by name and UID.
pub(crate) fn is_bound_to(content: &VolumeSnapshotContent, snapshot: &Meta) -> bool {
    let reference = &content.spec.volume_snapshot_ref;
    reference.uid == snapshot.uid && references_name(content, snapshot)
}

/// Whether the content references a snapshot of this name.
pub(crate) fn references_name(content: &VolumeSnapshotContent, snapshot: &Meta) -> bool {
    let reference = &content.spec.volume_snapshot_ref;
    reference.name == snapshot.name && Some(&reference.namespace) == snapshot.namespace.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(metadata: Value, source: Value, status: Value) -> VolumeSnapshot {
        let mut metadata = metadata;
        metadata["namespace"] = json!("shop");
        metadata["uid"] = json!("u");
        serde_json::from_value(json!({"metadata": metadata, "spec": {"source": source}, "status": status}))
            .unwrap()
    }

    /// sidecars.md 1.4 "Binding".
    #[test]
    fn content_name_follows_source_binding_or_uid() {
        let claim = || json!({"persistentVolumeClaimName": "data"});
        let owned = |version: &str| {
            json!({"name": "snapshot-ab", "ownerReferences": [{
                "apiVersion": format!("groupsnapshot.storage.k8s.io/{version}"),
                "kind": "VolumeGroupSnapshot", "name": "g", "uid": "gu",
            }]})
        };
        for (snapshot, content, parent_is) in [
            (snapshot(json!({"name": "s"}), claim(), Value::Null), "snapcontent-u", None),
            (
                snapshot(json!({"name": "s"}), claim(), json!({"boundVolumeSnapshotContentName": "c"})),
                "c",
                None,
            ),
            (
                snapshot(json!({"name": "s"}), json!({"volumeSnapshotContentName": "pre"}), Value::Null),
                "pre",
                None,
            ),
            (snapshot(owned("v1"), claim(), Value::Null), "snapcontent-ab", Some(("g", Some("gu")))),
            (snapshot(owned("v1beta2"), claim(), Value::Null), "snapcontent-ab", Some(("g", Some("gu")))),
            (
                snapshot(json!({"name": "s"}), claim(), json!({"volumeGroupSnapshotName": "g"})),
                "snapcontent-u",
                Some(("g", None)),
            ),
        ] {
            assert_eq!(expected_content_name(&snapshot), content, "{snapshot:?}");
            let expected = parent_is.map(|(name, uid)| (Key::namespaced("shop", name), uid));
            assert_eq!(parent_group(&snapshot), expected, "{snapshot:?}");
        }
    }

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
