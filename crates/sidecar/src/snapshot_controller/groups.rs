//! Group snapshots: bound to contents as single ones are, and with a snapshot and a content for each member once the
//! driver has cut them.
//!
//! The rules are in [`decide`] and [`members`]. A cluster may not know group snapshots at all: then there are none.

use wharf_cluster::{Cluster, Queue, Store, WatchOptions};
use wharf_model::snapshot::names;
use wharf_model::{
    Key, Kind, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot,
};

use super::metrics::{Of, Operation, Operations};
use super::view::Group;
use super::wake::{self, BY_CLASS, BY_GROUP, BY_HANDLE, IS_DEFAULT, Subject, wish};
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

    /// The name of the group snapshot whose content has this handle.
    pub(super) fn name_of(&self, handle: &str) -> Option<String> {
        let content = self.contents.first_by_index(BY_HANDLE, handle)?;
        Some(content.spec.volume_group_snapshot_ref.name.clone())
    }

    /// Keeps the queue filled.
    pub(super) async fn feed(
        &self,
        queue: &Queue<Subject>,
        snapshots: &Store<VolumeSnapshot>,
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
        let contents = feed(self.contents.clone(), queue.clone(), wake::of_group_content);
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
