//! What the controller sees of one group snapshot, and nothing else.

use std::sync::Arc;

use wharf_model::group_snapshot::MemberInfo;
use wharf_model::snapshot::names;
use wharf_model::{
    Key, Meta, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};

use super::super::view::Found;

/// One group snapshot and what belongs to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The group snapshot; `None` when it is gone.
    pub(crate) group: Option<&'a VolumeGroupSnapshot>,
    /// The content of the name that it is bound to, asks for, or would be given.
    pub(crate) content: Found<'a, VolumeGroupSnapshotContent>,
    /// The class that it names.
    pub(crate) class: Option<&'a VolumeGroupSnapshotClass>,
    /// The classes that are marked as default, of all drivers.
    pub(crate) defaults: &'a [Arc<VolumeGroupSnapshotClass>],
    /// The claims with the labels asked for, each with its volume; `None`: the server was not asked.
    pub(crate) sources: Option<&'a [Source]>,
    /// The node whose snapshotter has to work.
    pub(crate) node: &'a GroupNode,
    /// The members that the content tells of, as far as they exist.
    pub(crate) members: &'a [Member],
    /// The snapshots that have it as their owner.
    pub(crate) owned: &'a [Arc<VolumeSnapshot>],
    /// One of them from which a claim is being restored.
    pub(crate) restoring: Option<&'a Key>,
}

/// A claim that the group is to be taken of.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The claim.
    pub(crate) claim: PersistentVolumeClaim,
    /// Its volume, if it is bound to one that exists.
    pub(crate) volume: Option<PersistentVolume>,
}

/// The node whose snapshotter has to work on a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupNode {
    /// Any will do.
    Any,
    /// This one, from which all volumes can be reached.
    One(String),
    /// There is none from which all of them can be.
    Apart,
}

/// A member of a group: what the driver told of it, and the objects that stand for it.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// What the driver told.
    pub(crate) info: MemberInfo,
    /// Its volume, if exactly one has that handle.
    pub(crate) volume: Option<Arc<PersistentVolume>>,
    /// Its snapshot.
    pub(crate) snapshot: Option<Arc<VolumeSnapshot>>,
    /// Its content.
    pub(crate) content: Option<Arc<VolumeSnapshotContent>>,
}

/// The content that a group snapshot is bound to.
pub(crate) fn bound(group: &VolumeGroupSnapshot) -> Option<&str> {
    let status = group.status.as_ref()?;
    status.bound_volume_group_snapshot_content_name.as_deref().filter(|name| !name.is_empty())
}

/// The content that there is already, by the user's word.
pub(crate) fn pre_provisioned(group: &VolumeGroupSnapshot) -> Option<&str> {
    group.spec.source.volume_group_snapshot_content_name.as_deref()
}

/// The content that belongs to a group snapshot, also if nobody has written that down yet.
pub(crate) fn content_of(group: &VolumeGroupSnapshot) -> String {
    let named = pre_provisioned(group).or(bound(group));
    named.map_or_else(|| names::group_content_name(&group.metadata.uid), str::to_owned)
}

/// Whether one can restore from its members.
pub(crate) fn is_ready(group: &VolumeGroupSnapshot) -> bool {
    group.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
}

/// Whether it was cut.
pub(crate) fn is_created(group: &VolumeGroupSnapshot) -> bool {
    group.status.as_ref().is_some_and(|status| status.creation_time.is_some())
}

/// Whether the content says that it is this very group snapshot's.
pub(crate) fn points_back(content: &VolumeGroupSnapshotContent, group: &Meta) -> bool {
    content.spec.volume_group_snapshot_ref.uid == group.uid && is_named(content, group)
}

/// Whether the content names a group snapshot of this name.
pub(crate) fn is_named(content: &VolumeGroupSnapshotContent, group: &Meta) -> bool {
    let reference = &content.spec.volume_group_snapshot_ref;
    reference.name == group.name && Some(&reference.namespace) == group.namespace.as_ref()
}
