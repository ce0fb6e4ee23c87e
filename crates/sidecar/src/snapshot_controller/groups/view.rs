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
    /// Whether the server was asked for it.
    pub(crate) asked: bool,
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
    /// Its members' snapshots: those that have it as their owner, and those that only name it and are its.
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

/// Whether the content is the group snapshot's, or is about to be: each names the other.
fn belongs(content: &VolumeGroupSnapshotContent, group: &VolumeGroupSnapshot) -> bool {
    let asked_for = pre_provisioned(group) == Some(&*content.metadata.name);
    let is_free = content.spec.volume_group_snapshot_ref.uid.is_empty();
    points_back(content, &group.metadata) || (asked_for && is_free && is_named(content, &group.metadata))
}

/// Whether the driver has a member's snapshot as a part of this very group. A member that was there before its group
/// names it without its identity, and another group may have come by the name.
pub(crate) fn holds(
    group: &VolumeGroupSnapshot,
    content: &VolumeGroupSnapshotContent,
    member: &VolumeSnapshotContent,
) -> bool {
    let there = content.spec.source.group_snapshot_handles.as_ref();
    let there = there.map(|there| &there.volume_group_snapshot_handle);
    let handle = content.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.as_ref());
    let told = member.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.as_ref());
    let same = told.is_some_and(|told| Some(told) == handle.or(there));
    same && member.spec.driver == content.spec.driver && belongs(content, group)
}

/// The name of the group snapshot that a member belongs to, of the contents that have the group's handle: one of its driver and
/// namespace, and rather of a group that is there than of one that has left its content behind.
pub(crate) fn group_of<'a>(
    namespace: &str,
    member: &VolumeSnapshotContent,
    contents: impl Iterator<Item = &'a VolumeGroupSnapshotContent>,
    is_alive: impl Fn(&VolumeGroupSnapshotContent) -> bool,
) -> Option<String> {
    let is_its = |content: &&VolumeGroupSnapshotContent| {
        content.spec.driver == member.spec.driver
            && content.spec.volume_group_snapshot_ref.namespace == namespace
    };
    let of = contents.filter(is_its).max_by_key(|content| is_alive(content))?;
    Some(of.spec.volume_group_snapshot_ref.name.clone())
}

/// Whether the content names a group snapshot of this name.
pub(crate) fn is_named(content: &VolumeGroupSnapshotContent, group: &Meta) -> bool {
    let reference = &content.spec.volume_group_snapshot_ref;
    reference.name == group.name && Some(&reference.namespace) == group.namespace.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// sidecars.md 1.4 "Group": a handle is its driver's, and a content may outlive its group.
    #[test]
    fn the_group_of_a_member() {
        let content = |driver: &str, namespace: &str, name: &str| {
            let reference = json!({"name": name, "namespace": namespace, "uid": name});
            let spec = json!({"driver": driver, "volumeGroupSnapshotRef": reference});
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
        };
        let member =
            serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"driver": "d"}})).unwrap();
        let (its, dead) = (content("d", "shop", "its"), content("d", "shop", "dead"));
        let (driver, namespace) = (content("e", "shop", "driver"), content("d", "other", "namespace"));
        for (contents, expected) in [
            (vec![], None),
            (vec![&driver, &namespace], None),
            (vec![&driver, &its, &namespace], Some("its")),
            (vec![&dead, &its], Some("its")),
            (vec![&its, &dead], Some("its")),
            // What is left of a group names it still.
            (vec![&dead], Some("dead")),
        ] {
            let is_alive = |content: &VolumeGroupSnapshotContent| content.metadata.name != "dead";
            let named = group_of("shop", &member, contents.iter().copied(), is_alive);
            assert_eq!(named.as_deref(), expected, "{contents:?}");
        }
    }

    /// sidecars.md 1.4 "Group": whose member a snapshot is that names its group and nothing more.
    #[test]
    fn members_by_the_drivers_word() {
        let group = |uid: &str, source: Value| json!({"metadata": {"name": "g", "namespace": "shop", "uid": uid}, "spec": {"source": source}});
        let pre = || json!({"volumeGroupSnapshotContentName": "gc"});
        let content = |uid: &str, status: Value| {
            json!({
                "metadata": {"name": "gc"}, "status": status,
                "spec": {
                    "driver": "d",
                    "source": {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "gh"}},
                    "volumeGroupSnapshotRef": {"name": "g", "namespace": "shop", "uid": uid},
                },
            })
        };
        let member = |driver: &str, status: Value| json!({"metadata": {"name": "c"}, "spec": {"driver": driver}, "status": status});
        let told = |handle: &str| json!({"volumeGroupSnapshotHandle": handle});
        let selector = || json!({"selector": {"matchLabels": {"app": "db"}}});
        for (group, content, member, expected) in [
            (group("gu", pre()), content("gu", told("gh")), member("d", told("gh")), true),
            // The content says so from the start, and each names the other before they are bound.
            (group("gu", pre()), content("gu", Value::Null), member("d", told("gh")), true),
            (group("gu", pre()), content("", Value::Null), member("d", told("gh")), true),
            // Another group that came by the name.
            (group("later", pre()), content("gu", told("gh")), member("d", told("gh")), false),
            (group("gu", selector()), content("", told("gh")), member("d", told("gh")), false),
            (group("gu", pre()), content("gu", told("other")), member("d", told("gh")), false),
            // Another driver's handle of the same letters, and one that belongs to nothing.
            (group("gu", pre()), content("gu", told("gh")), member("e", told("gh")), false),
            (group("gu", pre()), content("gu", told("gh")), member("d", Value::Null), false),
        ] {
            let row = format!("{group} {content} {member}");
            let group: VolumeGroupSnapshot = serde_json::from_value(group).unwrap();
            let content: VolumeGroupSnapshotContent = serde_json::from_value(content).unwrap();
            let member: VolumeSnapshotContent = serde_json::from_value(member).unwrap();
            assert_eq!(holds(&group, &content, &member), expected, "{row}");
        }
    }
}
