//! What the snapshot controller sees of one snapshot, and nothing else.

use std::sync::Arc;

use wharf_model::snapshot::names;
use wharf_model::{
    Key, Meta, OwnerRef, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::groups::holds;

/// The API group of group snapshots, as owner references name it.
const GROUPS: &str = "groupsnapshot.storage.k8s.io/";

/// One snapshot and what belongs to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The snapshot; `None` when it is gone.
    pub(crate) snapshot: Option<&'a VolumeSnapshot>,
    /// The content of the name that it is bound to, asks for, or would be given.
    pub(crate) content: Found<'a, VolumeSnapshotContent>,
    /// Whether the server was asked for it: then it is not an old version of it.
    pub(crate) asked: bool,
    /// The class that it names.
    pub(crate) class: Option<&'a VolumeSnapshotClass>,
    /// The classes that are marked as default, of all drivers.
    pub(crate) defaults: &'a [Arc<VolumeSnapshotClass>],
    /// The claim that it is to be taken of.
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    /// That claim's volume.
    pub(crate) volume: Found<'a, PersistentVolume>,
    /// The node whose snapshotter has to work.
    pub(crate) node: Taker<'a>,
    /// Whether a claim waits for a volume that is restored from it.
    pub(crate) restoring: bool,
    /// The group snapshot that it belongs to.
    pub(crate) parent: Parent<'a>,
    /// The name of the group snapshot whose handle the content has; `None` if nobody has that handle.
    pub(crate) group_name: Option<&'a str>,
    /// Whether the content is to say in which mode its volume was.
    pub(crate) note_volume_mode: bool,
}

/// An object, as far as it was looked for.
#[derive(Debug)]
pub(crate) enum Found<'a, T> {
    /// Nothing is known of it: the store has none, and the server was not asked.
    NotSeen,
    /// There is none: the server said so, or nothing names one.
    Gone,
    /// This one.
    Here(&'a T),
}

impl<T> Clone for Found<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Found<'_, T> {}

impl<'a, T> Found<'a, T> {
    /// As the store has it, or as the server said if it was `asked`.
    pub(crate) fn of(stored: Option<&'a T>, asked: bool) -> Self {
        match (stored, asked) {
            (Some(object), _) => Self::Here(object),
            (None, true) => Self::Gone,
            (None, false) => Self::NotSeen,
        }
    }
}

/// The node whose snapshotter has to take a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taker<'a> {
    /// Any will do.
    Any,
    /// This one.
    One(&'a str),
    /// It has to be one that reaches the volume, and none that does is known.
    Nobody,
}

/// The group snapshot that a snapshot belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parent<'a> {
    /// It belongs to none.
    None,
    /// The store has none of that name that is shown to be its group, and the server was not asked.
    NotSeen,
    /// It is gone, or was never there.
    Gone,
    /// It is there.
    Here(&'a Meta),
}

/// A group snapshot that may be a snapshot's, and its content.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) group: Arc<VolumeGroupSnapshot>,
    pub(crate) content: Option<Arc<VolumeGroupSnapshotContent>>,
}

impl<'a> Parent<'a> {
    /// For a snapshot that names a group, by its identity if that is known. `content` is the snapshot's own, `stored`
    /// the group of that name, `told` what the server said of it, if it was asked. Nobody may watch groups: then the
    /// server's word is all there is.
    pub(crate) fn of(
        uid: Option<&str>,
        content: Option<&VolumeSnapshotContent>,
        stored: Option<&'a Group>,
        told: Option<Option<&'a Group>>,
    ) -> Self {
        let is_its = |Group { group, content: of_group }: &&Group| match (uid, of_group, content) {
            (Some(uid), _, _) => group.metadata.uid == uid,
            (None, Some(of_group), Some(content)) => holds(group, of_group, content),
            (None, _, _) => false,
        };
        match (stored.or(told.flatten()).filter(is_its), told) {
            (Some(group), _) => Self::Here(&group.group.metadata),
            (None, Some(_)) => Self::Gone,
            (None, None) => Self::NotSeen,
        }
    }
}

/// The group snapshot that owns a snapshot, whatever version of the API it was written in.
pub(crate) fn owner(snapshot: &VolumeSnapshot) -> Option<&OwnerRef> {
    let is_group =
        |owner: &&OwnerRef| owner.kind == "VolumeGroupSnapshot" && owner.api_version.starts_with(GROUPS);
    snapshot.metadata.owner_references.iter().find(is_group)
}

/// The group snapshot that a snapshot belongs to: its name and, if that is known, its identity.
pub(crate) fn parent(snapshot: &VolumeSnapshot) -> Option<(Key, Option<&str>)> {
    let namespace = snapshot.metadata.namespace.clone().unwrap_or_default();
    let told = snapshot
        .status
        .as_ref()
        .and_then(|status| status.volume_group_snapshot_name.as_deref())
        .filter(named);
    match (owner(snapshot), told) {
        (Some(owner), _) => Some((Key::namespaced(namespace, &*owner.name), Some(&owner.uid))),
        (None, Some(name)) => Some((Key::namespaced(namespace, name), None)),
        (None, None) => None,
    }
}

fn named(name: &&str) -> bool {
    !name.is_empty()
}

/// The content that a snapshot is bound to.
pub(crate) fn bound(snapshot: &VolumeSnapshot) -> Option<&str> {
    let status = snapshot.status.as_ref()?;
    status.bound_volume_snapshot_content_name.as_deref().filter(named)
}

/// The content that there is already, by the user's word.
pub(crate) fn pre_provisioned(snapshot: &VolumeSnapshot) -> Option<&str> {
    snapshot.spec.source.volume_snapshot_content_name.as_deref()
}

/// The claim that it is to be taken of.
pub(crate) fn claim_of(snapshot: &VolumeSnapshot) -> Option<&str> {
    snapshot.spec.source.persistent_volume_claim_name.as_deref().filter(named)
}

/// The content that belongs to a snapshot, also if nobody has written that down yet.
pub(crate) fn content_of(snapshot: &VolumeSnapshot) -> String {
    let Meta { name, uid, .. } = &snapshot.metadata;
    match (pre_provisioned(snapshot).or(bound(snapshot)), owner(snapshot)) {
        (Some(name), _) => name.to_owned(),
        // The two are named after the same thing.
        (None, Some(_)) => name.replacen("snapshot-", "snapcontent-", 1),
        (None, None) => names::content_name(uid),
    }
}

/// Whether one can restore from it.
pub(crate) fn is_ready(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
}

/// Whether it was cut.
pub(crate) fn is_created(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|status| status.creation_time.is_some())
}

/// Whether the content says that it is this very snapshot's.
pub(crate) fn points_back(content: &VolumeSnapshotContent, snapshot: &Meta) -> bool {
    let reference = &content.spec.volume_snapshot_ref;
    reference.uid == snapshot.uid && is_named(content, snapshot)
}

/// Whether the content names a snapshot of this name.
pub(crate) fn is_named(content: &VolumeSnapshotContent, snapshot: &Meta) -> bool {
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
    fn the_content_of_a_snapshot() {
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
            assert_eq!(content_of(&snapshot), content, "{snapshot:?}");
            let expected = parent_is.map(|(name, uid)| (Key::namespaced("shop", name), uid));
            assert_eq!(parent(&snapshot), expected, "{snapshot:?}");
        }
    }

    /// sidecars.md 1.4 "Delete": a group counts if it is this one, whoever tells of it.
    #[test]
    fn the_group_of_a_snapshot() {
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
            Group { group: Arc::new(serde_json::from_value(group).unwrap()), content }
        };
        let content: VolumeSnapshotContent = serde_json::from_value(json!({
            "metadata": {"name": "c"}, "spec": {"driver": "d"}, "status": {"volumeGroupSnapshotHandle": "gh"},
        }))
        .unwrap();
        let (its, other) = (group("gu", "gh"), group("later", "other"));
        let here = Parent::Here(&its.group.metadata);
        for (uid, content, stored, told, expected) in [
            (Some("gu"), None, Some(&its), None, here),
            (Some("gu"), None, None, None, Parent::NotSeen),
            (Some("gu"), None, None, Some(None), Parent::Gone),
            // Nobody watches groups.
            (Some("gu"), None, None, Some(Some(&its)), here),
            (Some("gu"), None, None, Some(Some(&other)), Parent::Gone),
            (Some("gu"), None, Some(&other), None, Parent::NotSeen),
            (Some("gu"), None, Some(&other), Some(Some(&other)), Parent::Gone),
            // It names its group, and another may have come by the name.
            (None, Some(&content), Some(&its), None, here),
            (None, Some(&content), None, Some(Some(&its)), here),
            (None, Some(&content), Some(&other), None, Parent::NotSeen),
            (None, Some(&content), Some(&other), Some(Some(&other)), Parent::Gone),
            (None, None, Some(&its), Some(Some(&its)), Parent::Gone),
        ] {
            assert_eq!(Parent::of(uid, content, stored, told), expected, "{uid:?} {stored:?} {told:?}");
        }
    }
}
