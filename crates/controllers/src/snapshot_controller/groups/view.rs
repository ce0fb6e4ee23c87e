//! Inputs of the rules for one group snapshot.

use std::sync::Arc;

use wharf_model::group_snapshot::VolumeSnapshotInfo;
use wharf_model::snapshot::names;
use wharf_model::{
    Key, Meta, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};

use super::super::view::Lookup;

/// One group snapshot and the objects related to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The group snapshot; `None` if it no longer exists.
    pub(crate) group: Option<&'a VolumeGroupSnapshot>,
    /// The content that the group is bound to, names as its source, or would get.
    pub(crate) content: Lookup<'a, VolumeGroupSnapshotContent>,
    /// Whether the content was read from the API server.
    pub(crate) content_fetched: bool,
    /// The class named in the spec.
    pub(crate) class: Option<&'a VolumeGroupSnapshotClass>,
    /// The default classes of all drivers.
    pub(crate) defaults: &'a [Arc<VolumeGroupSnapshotClass>],
    /// The selected claims, each with its volume; `None` if the API server was not queried.
    pub(crate) sources: Option<&'a [SourceClaim]>,
    /// The node whose snapshotter has to handle the content.
    pub(crate) node: &'a GroupNode,
    /// The members listed in the content, with the objects that exist for them.
    pub(crate) members: &'a [Member],
    /// The snapshots of the members: those owned by the group, and those that only name it and belong to it.
    pub(crate) member_snapshots: &'a [Arc<VolumeSnapshot>],
    /// A member from which a claim is being restored.
    pub(crate) restoring: Option<&'a Key>,
}

/// A selected claim.
#[derive(Debug, Clone)]
pub(crate) struct SourceClaim {
    /// The claim.
    pub(crate) claim: PersistentVolumeClaim,
    /// Its volume, if it is bound to an existing one.
    pub(crate) volume: Option<PersistentVolume>,
}

/// The node whose snapshotter has to handle a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupNode {
    /// Any node.
    Any,
    /// This node, which can reach all volumes.
    Node(String),
    /// No node can reach all volumes.
    NoCommonNode,
}

/// A member of a group: the driver's report and the objects that represent it.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// The driver's report.
    pub(crate) info: VolumeSnapshotInfo,
    /// Its volume, if exactly one has that handle.
    pub(crate) volume: Option<Arc<PersistentVolume>>,
    /// Its snapshot.
    pub(crate) snapshot: Option<Arc<VolumeSnapshot>>,
    /// Its content.
    pub(crate) content: Option<Arc<VolumeSnapshotContent>>,
}

/// The content that a group snapshot is bound to.
pub(crate) fn bound_content(group: &VolumeGroupSnapshot) -> Option<&str> {
    let status = group.status.as_ref()?;
    status.bound_volume_group_snapshot_content_name.as_deref().filter(|name| !name.is_empty())
}

/// The existing content that the user named as the source.
pub(crate) fn pre_provisioned(group: &VolumeGroupSnapshot) -> Option<&str> {
    group.spec.source.volume_group_snapshot_content_name.as_deref()
}

/// The name of the content of a group snapshot, even before the two are bound.
pub(crate) fn expected_content_name(group: &VolumeGroupSnapshot) -> String {
    let named = pre_provisioned(group).or(bound_content(group));
    named.map_or_else(|| names::group_content_name(&group.metadata.uid), str::to_owned)
}

/// Whether volumes can be restored from its members.
pub(crate) fn is_ready(group: &VolumeGroupSnapshot) -> bool {
    group.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
}

/// Whether the driver has created the group.
pub(crate) fn is_created(group: &VolumeGroupSnapshot) -> bool {
    group.status.as_ref().is_some_and(|status| status.creation_time.is_some())
}

/// Whether the content references this group snapshot by name and UID.
pub(crate) fn is_bound_to(content: &VolumeGroupSnapshotContent, group: &Meta) -> bool {
    content.spec.volume_group_snapshot_ref.uid == group.uid && references_name(content, group)
}

/// Whether the content is bound to the group, or about to be: each names the other.
fn is_own_content(content: &VolumeGroupSnapshotContent, group: &VolumeGroupSnapshot) -> bool {
    let asked_for = pre_provisioned(group) == Some(&*content.metadata.name);
    let is_free = content.spec.volume_group_snapshot_ref.uid.is_empty();
    is_bound_to(content, &group.metadata)
        || (asked_for && is_free && references_name(content, &group.metadata))
}

/// Whether a member's snapshot belongs to this group in the driver. A pre-provisioned member names its group
/// without a UID, and another group may have that name by now.
pub(crate) fn contains_member(
    group: &VolumeGroupSnapshot,
    content: &VolumeGroupSnapshotContent,
    member: &VolumeSnapshotContent,
) -> bool {
    let existing = content.spec.source.group_snapshot_handles.as_ref();
    let existing = existing.map(|existing| &existing.volume_group_snapshot_handle);
    let handle = content.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.as_ref());
    let member_handle =
        member.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.as_ref());
    let same = member_handle.is_some_and(|member_handle| Some(member_handle) == handle.or(existing));
    same && member.spec.driver == content.spec.driver && is_own_content(content, group)
}

/// The name of the group snapshot that a member belongs to. `contents` have the member's group handle; the match
/// has the same driver and namespace, and an existing group is preferred to one that left only its content behind.
pub(crate) fn group_name_of_member<'a>(
    namespace: &str,
    member: &VolumeSnapshotContent,
    contents: impl Iterator<Item = &'a VolumeGroupSnapshotContent>,
    exists: impl Fn(&VolumeGroupSnapshotContent) -> bool,
) -> Option<String> {
    let is_match = |content: &&VolumeGroupSnapshotContent| {
        content.spec.driver == member.spec.driver
            && content.spec.volume_group_snapshot_ref.namespace == namespace
    };
    let of = contents.filter(is_match).max_by_key(|content| exists(content))?;
    Some(of.spec.volume_group_snapshot_ref.name.clone())
}

/// Whether the content references a group snapshot of this name.
pub(crate) fn references_name(content: &VolumeGroupSnapshotContent, group: &Meta) -> bool {
    let reference = &content.spec.volume_group_snapshot_ref;
    reference.name == group.name && Some(&reference.namespace) == group.namespace.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// sidecars.md 1.4 "Group": a handle is unique per driver, and a content may outlive its group.
    #[test]
    fn group_of_member_has_same_driver_and_namespace() {
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
            // The content of a deleted group still names it.
            (vec![&dead], Some("dead")),
        ] {
            let exists = |content: &VolumeGroupSnapshotContent| content.metadata.name != "dead";
            let named = group_name_of_member("shop", &member, contents.iter().copied(), exists);
            assert_eq!(named.as_deref(), expected, "{contents:?}");
        }
    }

    /// sidecars.md 1.4 "Group": membership of a snapshot that only names its group.
    #[test]
    fn member_is_matched_by_group_handle() {
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
        let with_handle = |handle: &str| json!({"volumeGroupSnapshotHandle": handle});
        let selector = || json!({"selector": {"matchLabels": {"app": "db"}}});
        for (group, content, member, expected) in [
            (group("gu", pre()), content("gu", with_handle("gh")), member("d", with_handle("gh")), true),
            // The spec has the handle from the start, and each names the other before they are bound.
            (group("gu", pre()), content("gu", Value::Null), member("d", with_handle("gh")), true),
            (group("gu", pre()), content("", Value::Null), member("d", with_handle("gh")), true),
            // Another group with the same name.
            (group("later", pre()), content("gu", with_handle("gh")), member("d", with_handle("gh")), false),
            (group("gu", selector()), content("", with_handle("gh")), member("d", with_handle("gh")), false),
            (group("gu", pre()), content("gu", with_handle("other")), member("d", with_handle("gh")), false),
            // The same handle of another driver, and a member without a handle.
            (group("gu", pre()), content("gu", with_handle("gh")), member("e", with_handle("gh")), false),
            (group("gu", pre()), content("gu", with_handle("gh")), member("d", Value::Null), false),
        ] {
            let row = format!("{group} {content} {member}");
            let group: VolumeGroupSnapshot = serde_json::from_value(group).unwrap();
            let content: VolumeGroupSnapshotContent = serde_json::from_value(content).unwrap();
            let member: VolumeSnapshotContent = serde_json::from_value(member).unwrap();
            assert_eq!(contains_member(&group, &content, &member), expected, "{row}");
        }
    }
}
