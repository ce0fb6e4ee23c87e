//! Group snapshots: bound to contents as single ones are, and with a snapshot and a content for each member once the
//! driver has cut them.
//!
//! The rules are in [`decide`] and [`members`]. A cluster may not know group snapshots at all: then there are none.

use wharf_cluster::{Cluster, Queue, Store, WatchOptions};
use wharf_model::snapshot::names;
use wharf_model::{
    Key, Kind, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotContent,
};

use super::metrics::{Of, Operation, Operations};
use super::view::Group;
use super::wake::{self, BY_CLASS, BY_GROUP, BY_HANDLE, BY_NAMESPACE, IS_DEFAULT, Subject, wish};
use wharf_cluster::work::feed;

mod act;
pub(super) mod decide;
mod members;
mod mirror;
mod selector;
pub(super) mod view;
pub(super) mod write;

pub(super) use view::holds;

/// The content that belongs to a group snapshot.
pub(super) fn content_key(group: &VolumeGroupSnapshot) -> Key {
    Key::cluster(view::content_of(group))
}

/// What is known of groups.
pub(super) struct Groups {
    pub(super) groups: Store<VolumeGroupSnapshot>,
    contents: Store<VolumeGroupSnapshotContent>,
    classes: Store<VolumeGroupSnapshotClass>,
}

impl Groups {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let groups = cluster.store::<VolumeGroupSnapshot>(WatchOptions::default());
        groups.index(BY_CLASS, |group| match view::is_created(group) {
            true => Vec::new(),
            false => vec![group.spec.volume_group_snapshot_class_name.clone().unwrap_or_default()],
        });
        groups.index(BY_NAMESPACE, wake::namespace_of);
        let contents = cluster.store::<VolumeGroupSnapshotContent>(WatchOptions::default());
        contents.index(BY_HANDLE, wake::handle_of);
        let classes = cluster.store::<VolumeGroupSnapshotClass>(WatchOptions::default());
        classes.index(IS_DEFAULT, |class| wake::is_default(&class.metadata, names::IS_DEFAULT_GROUP_CLASS));
        Self { groups, contents, classes }
    }

    /// Waits until it is known whether there are any.
    pub(super) async fn settled(&self) {
        tokio::join!(self.groups.settled(), self.contents.settled(), self.classes.settled());
    }

    /// The group snapshot of this name, and its content.
    pub(super) fn named(&self, key: &Key) -> Option<Group> {
        let group = self.groups.get(key)?;
        let content = self.contents.get(&content_key(&group));
        Some(Group { group, content })
    }

    /// The name of the group snapshot that a member of this namespace belongs to.
    pub(super) fn name_of(&self, namespace: &str, member: &VolumeSnapshotContent) -> Option<String> {
        let handle = member.status.as_ref()?.volume_group_snapshot_handle.as_ref()?;
        let contents = self.contents.by_index(BY_HANDLE, handle);
        let is_alive = |content: &VolumeGroupSnapshotContent| {
            let group = &content.spec.volume_group_snapshot_ref;
            let now = self.groups.get(&Key::namespaced(namespace, &*group.name));
            now.is_some_and(|now| view::points_back(content, &now.metadata))
        };
        view::group_of(namespace, member, contents.iter().map(|content| &**content), is_alive)
    }

    /// The groups that may have waited for this claim.
    pub(super) fn waiting(&self, claim: &Key) -> impl Iterator<Item = Key> {
        let waiting = self.groups.by_index(BY_NAMESPACE, claim.namespace.as_deref().unwrap_or_default());
        waiting.into_iter().map(|group| group.key())
    }

    /// Keeps the queue filled.
    pub(super) async fn feed(
        &self,
        queue: &Queue<Subject>,
        snapshots: &Store<VolumeSnapshot>,
        members: &Store<VolumeSnapshotContent>,
        operations: &Operations,
    ) {
        let groups = feed(self.groups.clone(), queue.clone(), |change| {
            let mut wishes = wake::of_group(change);
            if let (Some(gone), None) = (&change.old, &change.new) {
                operations.done(Operation::Delete, Of::Group, &gone.metadata.uid, "");
            }
            if !wishes.is_empty() {
                let members = snapshots.by_index(BY_GROUP, &change.key.to_string());
                wishes.extend(wake::members_of(change, &members));
            }
            wishes
        });
        let contents = feed(self.contents.clone(), queue.clone(), |change| {
            let mut wishes = wake::of_group_content(change);
            if let Some(handle) = wake::new_handle(change) {
                let members = members.by_index(BY_HANDLE, &handle);
                wishes.extend(members.iter().map(|member| wish(Subject::Snapshot(wake::of_ref(member)))));
            }
            wishes
        });
        let classes = feed(self.classes.clone(), queue.clone(), |change| {
            let Some(class) = &change.new else { return Vec::new() };
            let mut waiting = self.groups.by_index(BY_CLASS, &class.metadata.name);
            if class.metadata.annotation(names::IS_DEFAULT_GROUP_CLASS) == Some("true") {
                waiting.extend(self.groups.by_index(BY_CLASS, ""));
            }
            waiting.iter().map(|group| wish(Subject::Group(group.key()))).collect()
        });
        tokio::join!(groups, contents, classes);
    }
}
