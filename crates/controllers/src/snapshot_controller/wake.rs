//! Decides what a change enqueues, and the indexes that find it. No change scans all objects.

use std::sync::Arc;

use wharf_cluster::{Change, Priority};
use wharf_model::claim::ClaimPhase;
use wharf_model::snapshot::{SnapshotStatus, names};
use wharf_model::{
    Key, Kind, Meta, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotContent,
};

use wharf_cluster::work::EnqueueRequest;

/// Snapshots that are not ready, by source claim.
pub(crate) const BY_CLAIM: &str = "snapshot-controller/claim";
/// Snapshots that are not created yet, by class name; empty if they name none.
pub(crate) const BY_CLASS: &str = "snapshot-controller/class";
/// Snapshots by the group snapshot that owns them or that they name.
pub(crate) const BY_GROUP: &str = "snapshot-controller/group";
/// Unbound claims by the snapshot that they are restored from.
pub(crate) const BY_SNAPSHOT: &str = "snapshot-controller/snapshot";
/// Group snapshots that wait for claims, by namespace.
pub(crate) const BY_NAMESPACE: &str = "snapshot-controller/namespace";
/// Contents of groups and of their members by group handle; volumes by volume handle.
pub(crate) const BY_HANDLE: &str = "snapshot-controller/handle";
/// Default classes.
pub(crate) const IS_DEFAULT: &str = "snapshot-controller/default";

/// The key of a queue entry. One worker at a time handles it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum WorkKey {
    Snapshot(Key),
    Content(Key),
    Claim(Key),
    Group(Key),
    GroupContent(Key),
}

pub(crate) fn enqueue_request(key: WorkKey) -> EnqueueRequest<WorkKey> {
    let priority = match key {
        WorkKey::Snapshot(_) | WorkKey::Group(_) => Priority::Normal,
        // A snapshotter waits for it.
        WorkKey::Content(_) | WorkKey::GroupContent(_) => Priority::High,
        WorkKey::Claim(_) => Priority::Low,
    };
    EnqueueRequest { key, priority }
}

/// The source claim of a snapshot.
pub(crate) fn source_claim(snapshot: &VolumeSnapshot) -> Option<Key> {
    let claim = snapshot.source_claim_name()?;
    Some(Key { namespace: snapshot.metadata.namespace.clone(), name: claim.to_owned() })
}

pub(crate) fn claim_index(snapshot: &VolumeSnapshot) -> Vec<String> {
    let claim = source_claim(snapshot).filter(|_| !snapshot.is_ready());
    claim.iter().map(Key::to_string).collect()
}

pub(crate) fn class_index(snapshot: &VolumeSnapshot) -> Vec<String> {
    let class = &snapshot.spec.volume_snapshot_class_name;
    // A pre-provisioned snapshot needs no class unless it names one.
    let needs_none = snapshot.source_claim_name().is_none() && class.is_none();
    match snapshot.is_created() || snapshot.metadata.is_deleting() || needs_none {
        true => Vec::new(),
        false => vec![class.clone().unwrap_or_default()],
    }
}

pub(crate) fn group_index(snapshot: &VolumeSnapshot) -> Vec<String> {
    snapshot.parent_group().map(|(key, _)| key.to_string()).into_iter().collect()
}

pub(crate) fn group_handle_index(content: &VolumeGroupSnapshotContent) -> Vec<String> {
    let handle = content.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.clone());
    handle.into_iter().collect()
}

pub(crate) fn member_group_handle_index(member: &VolumeSnapshotContent) -> Vec<String> {
    let handle = member.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.clone());
    handle.into_iter().collect()
}

/// The group handle that this change sets on a content. Pre-provisioned members with this handle wait for it.
pub(crate) fn new_handle(change: &Change<VolumeGroupSnapshotContent>) -> Option<String> {
    let handle = |content: &Option<Arc<VolumeGroupSnapshotContent>>| {
        content.as_deref().map(group_handle_index).and_then(|handles| handles.into_iter().next())
    };
    handle(&change.new).filter(|new| handle(&change.old).as_ref() != Some(new))
}

/// Whether a change is more than our own report of a failure, which must not end its backoff.
fn is_relevant(old: &VolumeSnapshot, new: &VolumeSnapshot) -> bool {
    let status = |snapshot: &VolumeSnapshot| {
        let status = snapshot.status.clone().unwrap_or_default();
        let ready_to_use = Some(status.ready_to_use == Some(true));
        SnapshotStatus { error: None, ready_to_use, ..status }
    };
    old.spec != new.spec || status(old) != status(new) || is_relevant_meta(&old.metadata, &new.metadata)
}

fn is_relevant_meta(old: &Meta, new: &Meta) -> bool {
    let Meta { uid, deletion_timestamp, finalizers, annotations, owner_references, .. } = new;
    old.uid != *uid
        || old.deletion_timestamp != *deletion_timestamp
        || old.finalizers != *finalizers
        || old.annotations != *annotations
        || old.owner_references != *owner_references
}

/// What a change of a snapshot enqueues.
pub(crate) fn on_snapshot(change: &Change<VolumeSnapshot>) -> Vec<EnqueueRequest<WorkKey>> {
    let Change { key, old, new } = change;
    let mut requests = Vec::new();
    if let (Some(old), Some(new)) = (old, new)
        && !is_relevant(old, new)
    {
        return requests;
    }
    requests.push(enqueue_request(WorkKey::Snapshot(key.clone())));
    let needs = |snapshot: &Option<Arc<VolumeSnapshot>>| {
        snapshot.as_ref().filter(|snapshot| !snapshot.is_ready()).and_then(|snapshot| source_claim(snapshot))
    };
    let (before, now) = (needs(old), needs(new));
    if before != now {
        requests.extend(before.map(|claim| enqueue_request(WorkKey::Claim(claim))));
    }
    requests
}

/// What a change of a content enqueues.
pub(crate) fn on_content(change: &Change<VolumeSnapshotContent>) -> Vec<EnqueueRequest<WorkKey>> {
    let Change { key, old, new } = change;
    let changed = |content: &VolumeSnapshotContent| {
        let deleting = content.metadata.deletion_timestamp;
        (content.metadata.uid.clone(), content.spec.clone(), content.status.clone(), deleting)
    };
    let mut requests = Vec::new();
    if new.is_some() {
        requests.push(enqueue_request(WorkKey::Content(key.clone())));
    }
    if old.as_deref().map(changed) != new.as_deref().map(changed) {
        // Also the snapshot that it referenced before.
        let mut snapshots: Vec<Key> =
            [old, new].into_iter().flatten().map(|content| snapshot_key(content)).collect();
        snapshots.dedup();
        requests.extend(snapshots.into_iter().map(|key| enqueue_request(WorkKey::Snapshot(key))));
    }
    requests
}

pub(crate) fn snapshot_key(content: &VolumeSnapshotContent) -> Key {
    let reference = &content.spec.volume_snapshot_ref;
    Key::namespaced(&*reference.namespace, &*reference.name)
}

/// What a change of a claim enqueues, apart from the snapshots created from it.
pub(crate) fn on_claim(change: &Change<PersistentVolumeClaim>) -> Vec<EnqueueRequest<WorkKey>> {
    let Change { key, old, new } = change;
    let mut requests = Vec::new();
    let protected =
        |claim: &Arc<PersistentVolumeClaim>| claim.metadata.has_finalizer(names::CLAIM_PROTECTION);
    if new.as_ref().is_some_and(protected) {
        requests.push(enqueue_request(WorkKey::Claim(key.clone())));
    }
    let now = new.as_deref().map(PersistentVolumeClaim::restore_sources).unwrap_or_default();
    let before = old.as_deref().map(PersistentVolumeClaim::restore_sources).unwrap_or_default();
    // A claim that no longer waits for its volume no longer blocks the deletion of a snapshot.
    requests.extend(
        before
            .into_iter()
            .filter(|key| !now.contains(key))
            .map(|key| enqueue_request(WorkKey::Snapshot(key))),
    );
    requests
}

/// Whether the claim just became bound, so that snapshots can be created from it.
pub(crate) fn became_bound(change: &Change<PersistentVolumeClaim>) -> bool {
    let is_bound = |claim: &Option<Arc<PersistentVolumeClaim>>| {
        claim.as_ref().is_some_and(|claim| claim.status.phase == ClaimPhase::Bound)
    };
    is_bound(&change.new) && !is_bound(&change.old)
}

/// Index key of group snapshots that may wait for claims, those without a content: their namespace.
pub(crate) fn waiting_group_index(group: &VolumeGroupSnapshot) -> Vec<String> {
    let waits = group.spec.source.selector.is_some()
        && super::groups::view::bound_content(group).is_none()
        && !group.metadata.is_deleting();
    group.metadata.namespace.iter().filter(|_| waits).cloned().collect()
}

/// What a change of a group snapshot enqueues, apart from its members.
pub(crate) fn on_group(change: &Change<VolumeGroupSnapshot>) -> Vec<EnqueueRequest<WorkKey>> {
    let Change { key, old, new } = change;
    let relevant = |group: &VolumeGroupSnapshot| {
        let mut status = group.status.clone().unwrap_or_default();
        (status.error, status.ready_to_use) = (None, Some(status.ready_to_use == Some(true)));
        (group.spec.clone(), status)
    };
    match (old, new) {
        (Some(old), Some(new))
            if relevant(old) == relevant(new) && !is_relevant_meta(&old.metadata, &new.metadata) =>
        {
            Vec::new()
        }
        _ => vec![enqueue_request(WorkKey::Group(key.clone()))],
    }
}

/// Which members a change of their group enqueues: all if the group is gone, else those that may have to set it as
/// their owner.
pub(crate) fn on_group_members(
    change: &Change<VolumeGroupSnapshot>,
    members: &[Arc<VolumeSnapshot>],
) -> Vec<EnqueueRequest<WorkKey>> {
    let is_deleted = match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.metadata.uid != new.metadata.uid,
        (_, None) => true,
        (None, Some(_)) => false,
    };
    let affected = members.iter().filter(|member| is_deleted || member.owning_group().is_none());
    affected.map(|member| enqueue_request(WorkKey::Snapshot(member.key()))).collect()
}

/// What a change of a group's content enqueues.
pub(crate) fn on_group_content(change: &Change<VolumeGroupSnapshotContent>) -> Vec<EnqueueRequest<WorkKey>> {
    let Change { key, old, new } = change;
    let changed = |content: &VolumeGroupSnapshotContent| {
        let deleting = content.metadata.deletion_timestamp;
        (content.metadata.uid.clone(), content.spec.clone(), content.status.clone(), deleting)
    };
    let mut requests = Vec::new();
    if new.is_some() {
        requests.push(enqueue_request(WorkKey::GroupContent(key.clone())));
    }
    if old.as_deref().map(changed) != new.as_deref().map(changed) {
        let content = new.as_ref().or(old.as_ref());
        let reference = content.map(|content| &content.spec.volume_group_snapshot_ref);
        let group = reference.map(|group| Key::namespaced(&*group.namespace, &*group.name));
        requests.extend(group.map(|key| enqueue_request(WorkKey::Group(key))));
    }
    requests
}

#[cfg(test)]
mod tests;
