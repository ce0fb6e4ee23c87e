//! Group snapshots. They are bound to contents like single snapshots; once the driver has created the group, each
//! member gets a snapshot and a content.
//!
//! Rules: [`decide`] and [`members`]. The group snapshot CRDs are optional.

use wharf_cluster::{Cluster, Queue, Store, WatchOptions};
use wharf_model::{
    Key, Kind, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotContent,
};

use super::metrics::{Metrics, ObjectKind, Operation};
use super::view::GroupWithContent;
use super::wake::{self, BY_CLASS, BY_GROUP, BY_HANDLE, BY_NAMESPACE, IS_DEFAULT, WorkKey, enqueue_request};
use wharf_cluster::work::enqueue_changes;

mod act;
pub(super) mod decide;
mod members;
mod mirror;
mod removed;
mod selector;
pub(super) mod view;
pub(super) mod write;

pub(super) use removed::RemovedGroups;
pub(super) use view::contains_member;

/// The key of a group snapshot's content, even before the two are bound.
pub fn content_key(group: &VolumeGroupSnapshot) -> Key {
    Key::cluster(view::expected_content_name(group))
}

/// Stores for group snapshots.
pub(super) struct Groups {
    pub(super) groups: Store<VolumeGroupSnapshot>,
    contents: Store<VolumeGroupSnapshotContent>,
    classes: Store<VolumeGroupSnapshotClass>,
}

impl Groups {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let groups = cluster.store::<VolumeGroupSnapshot>(WatchOptions::default());
        groups.add_index(BY_CLASS, |group| match view::is_created(group) {
            true => Vec::new(),
            false => vec![group.spec.volume_group_snapshot_class_name.clone().unwrap_or_default()],
        });
        groups.add_index(BY_NAMESPACE, wake::waiting_group_index);
        let contents = cluster.store::<VolumeGroupSnapshotContent>(WatchOptions::default());
        contents.add_index(BY_HANDLE, wake::group_handle_index);
        let classes = cluster.store::<VolumeGroupSnapshotClass>(WatchOptions::default());
        classes.add_index(IS_DEFAULT, |class| class.is_default().then(String::new).into_iter().collect());
        Self { groups, contents, classes }
    }

    /// Waits until it is known whether group snapshots are served.
    pub(super) async fn settled(&self) {
        tokio::join!(self.groups.wait_settled(), self.contents.wait_settled(), self.classes.wait_settled());
    }

    /// The group snapshot with this key, and its content.
    pub(super) fn get(&self, key: &Key) -> Option<GroupWithContent> {
        let group = self.groups.get(key)?;
        let content = self.contents.get(&content_key(&group));
        Some(GroupWithContent { group, content })
    }

    /// The name of the group snapshot that a member in this namespace belongs to.
    pub(super) fn parent_name(&self, namespace: &str, member: &VolumeSnapshotContent) -> Option<String> {
        let handle = member.status.as_ref()?.volume_group_snapshot_handle.as_ref()?;
        let contents = self.contents.by_index(BY_HANDLE, handle);
        let exists = |content: &VolumeGroupSnapshotContent| {
            let group = &content.spec.volume_group_snapshot_ref;
            let now = self.groups.get(&Key::namespaced(namespace, &*group.name));
            now.is_some_and(|now| view::is_bound_to(content, &now.metadata))
        };
        view::group_name_of_member(namespace, member, contents.iter().map(|content| &**content), exists)
    }

    /// The groups that may wait for this claim.
    pub(super) fn waiting_for_claim(&self, claim: &Key) -> impl Iterator<Item = Key> {
        let waiting = self.groups.by_index(BY_NAMESPACE, claim.namespace.as_deref().unwrap_or_default());
        waiting.into_iter().map(|group| group.key())
    }

    /// What a resync reconciles.
    pub(super) fn all_keys(&self) -> Vec<WorkKey> {
        let (groups, contents) = (self.groups.all(), self.contents.all());
        let contents = contents.iter().map(|content| WorkKey::GroupContent(content.key()));
        groups.iter().map(|group| WorkKey::Group(group.key())).chain(contents).collect()
    }

    /// Enqueues work for changes of groups, their contents and classes.
    pub(super) async fn feed(
        &self,
        queue: &Queue<WorkKey>,
        snapshots: &Store<VolumeSnapshot>,
        members: &Store<VolumeSnapshotContent>,
        metrics: &Metrics,
    ) {
        let groups = enqueue_changes(self.groups.clone(), queue.clone(), |change| {
            let mut requests = wake::on_group(change);
            if let (Some(deleted), None) = (&change.old, &change.new) {
                metrics.finish(Operation::Delete, ObjectKind::Group, &deleted.metadata.uid, "");
            }
            if !requests.is_empty() {
                let members = snapshots.by_index(BY_GROUP, &change.key.to_string());
                requests.extend(wake::on_group_members(change, &members));
            }
            requests
        });
        let contents = enqueue_changes(self.contents.clone(), queue.clone(), |change| {
            let mut requests = wake::on_group_content(change);
            if let Some(handle) = wake::new_handle(change) {
                let members = members.by_index(BY_HANDLE, &handle);
                requests.extend(
                    members
                        .iter()
                        .map(|member| enqueue_request(WorkKey::Snapshot(wake::snapshot_key(member)))),
                );
            }
            requests
        });
        let classes = enqueue_changes(self.classes.clone(), queue.clone(), |change| {
            let Some(class) = &change.new else { return Vec::new() };
            let mut waiting = self.groups.by_index(BY_CLASS, &class.metadata.name);
            if class.is_default() {
                waiting.extend(self.groups.by_index(BY_CLASS, ""));
            }
            waiting.iter().map(|group| enqueue_request(WorkKey::Group(group.key()))).collect()
        });
        tokio::join!(groups, contents, classes);
    }
}
