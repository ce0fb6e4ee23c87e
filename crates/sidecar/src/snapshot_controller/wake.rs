//! What a change calls for, and the indexes that find it: no list of all objects is ever looked through.

use std::sync::Arc;

use wharf_cluster::{Change, Priority};
use wharf_model::claim::{ClaimPhase, DataSource};
use wharf_model::snapshot::{SnapshotStatus, names};
use wharf_model::{
    Key, Kind, Meta, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};

use super::view::{claim_of, is_created, is_ready, owner, parent};
use wharf_cluster::work::Wish;

/// Snapshots that are not ready, by the claim that they are taken of.
pub(crate) const BY_CLAIM: &str = "snapshot-controller/claim";
/// Snapshots that are not cut, by the class that they name; those that name none under the empty name.
pub(crate) const BY_CLASS: &str = "snapshot-controller/class";
/// Snapshots by the group snapshot that owns them or that they name.
pub(crate) const BY_GROUP: &str = "snapshot-controller/group";
/// Claims without a volume, by the snapshot that they are to be restored from.
pub(crate) const BY_SNAPSHOT: &str = "snapshot-controller/snapshot";
/// Group snapshots that wait for claims, by their namespace.
pub(crate) const BY_NAMESPACE: &str = "snapshot-controller/namespace";
/// Contents of groups, and of their members, by the driver's handle of the group; volumes by theirs.
pub(crate) const BY_HANDLE: &str = "snapshot-controller/handle";
/// Classes that are marked as default.
pub(crate) const IS_DEFAULT: &str = "snapshot-controller/default";

/// What is worked on, by one worker at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Snapshot(Key),
    Content(Key),
    Claim(Key),
    Group(Key),
    GroupContent(Key),
}

pub(crate) fn wish(key: Subject) -> Wish<Subject> {
    let priority = match key {
        Subject::Snapshot(_) | Subject::Group(_) => Priority::Normal,
        // A snapshotter waits for it.
        Subject::Content(_) | Subject::GroupContent(_) => Priority::High,
        Subject::Claim(_) => Priority::Low,
    };
    Wish { key, priority }
}

/// The claim that a snapshot is taken of.
pub(crate) fn source_claim(snapshot: &VolumeSnapshot) -> Option<Key> {
    let claim = claim_of(snapshot)?;
    Some(Key { namespace: snapshot.metadata.namespace.clone(), name: claim.to_owned() })
}

pub(crate) fn claims_of(snapshot: &VolumeSnapshot) -> Vec<String> {
    let claim = source_claim(snapshot).filter(|_| !is_ready(snapshot));
    claim.iter().map(Key::to_string).collect()
}

pub(crate) fn classes_of(snapshot: &VolumeSnapshot) -> Vec<String> {
    let class = &snapshot.spec.volume_snapshot_class_name;
    // One whose content was there before needs no class, but the one that it names.
    let needs_none = claim_of(snapshot).is_none() && class.is_none();
    match is_created(snapshot) || snapshot.metadata.is_deleting() || needs_none {
        true => Vec::new(),
        false => vec![class.clone().unwrap_or_default()],
    }
}

pub(crate) fn groups_of(snapshot: &VolumeSnapshot) -> Vec<String> {
    parent(snapshot).map(|(key, _)| key.to_string()).into_iter().collect()
}

/// The snapshots that a claim waits to be restored from, by either of its fields.
pub(crate) fn snapshots_of(claim: &PersistentVolumeClaim) -> Vec<Key> {
    if matches!(claim.status.phase, ClaimPhase::Bound | ClaimPhase::Lost) {
        return Vec::new();
    }
    let spec = &claim.spec;
    let is_snapshot = |source: &&DataSource| {
        source.kind == VolumeSnapshot::API.kind
            && source.api_group.as_deref() == Some(VolumeSnapshot::API.group)
    };
    let key = |source: &DataSource| {
        let namespace = source.namespace.clone().or_else(|| claim.metadata.namespace.clone());
        Key { namespace, name: source.name.clone() }
    };
    let sources = [&spec.data_source, &spec.data_source_ref].into_iter().flatten().map(|source| &**source);
    let mut keys: Vec<Key> = sources.filter(is_snapshot).map(key).collect();
    keys.dedup();
    keys
}

pub(crate) fn handle_of(content: &VolumeGroupSnapshotContent) -> Vec<String> {
    let handle = content.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.clone());
    handle.into_iter().collect()
}

pub(crate) fn group_handle_of(member: &VolumeSnapshotContent) -> Vec<String> {
    let handle = member.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.clone());
    handle.into_iter().collect()
}

/// The handle that a group's content has now and had not: members that were there before it wait for its name.
pub(crate) fn new_handle(change: &Change<VolumeGroupSnapshotContent>) -> Option<String> {
    let handle = |content: &Option<Arc<VolumeGroupSnapshotContent>>| {
        content.as_deref().map(handle_of).and_then(|handles| handles.into_iter().next())
    };
    handle(&change.new).filter(|new| handle(&change.old).as_ref() != Some(new))
}

/// A volume as the drivers know it.
pub(crate) fn volume_handle(driver: &str, handle: &str) -> String {
    format!("{driver}^{handle}")
}

pub(crate) fn handles_of(volume: &PersistentVolume) -> Vec<String> {
    volume.spec.csi.iter().map(|csi| volume_handle(&csi.driver, &csi.volume_handle)).collect()
}

pub(crate) fn is_default(meta: &Meta, annotation: &str) -> Vec<String> {
    (meta.annotation(annotation) == Some("true")).then(String::new).into_iter().collect()
}

/// Whether a snapshot's change is more than our own word about a failure, which must not end the pause after it.
fn is_news(old: &VolumeSnapshot, new: &VolumeSnapshot) -> bool {
    let status = |snapshot: &VolumeSnapshot| {
        let status = snapshot.status.clone().unwrap_or_default();
        let ready_to_use = Some(status.ready_to_use == Some(true));
        SnapshotStatus { error: None, ready_to_use, ..status }
    };
    old.spec != new.spec || status(old) != status(new) || is_news_of(&old.metadata, &new.metadata)
}

fn is_news_of(old: &Meta, new: &Meta) -> bool {
    let Meta { uid, deletion_timestamp, finalizers, annotations, owner_references, .. } = new;
    old.uid != *uid
        || old.deletion_timestamp != *deletion_timestamp
        || old.finalizers != *finalizers
        || old.annotations != *annotations
        || old.owner_references != *owner_references
}

/// What a change of a snapshot calls for.
pub(crate) fn of_snapshot(change: &Change<VolumeSnapshot>) -> Vec<Wish<Subject>> {
    let Change { key, old, new } = change;
    let mut wishes = Vec::new();
    if let (Some(old), Some(new)) = (old, new)
        && !is_news(old, new)
    {
        return wishes;
    }
    wishes.push(wish(Subject::Snapshot(key.clone())));
    let needs = |snapshot: &Option<Arc<VolumeSnapshot>>| {
        snapshot.as_ref().filter(|snapshot| !is_ready(snapshot)).and_then(|snapshot| source_claim(snapshot))
    };
    let (before, now) = (needs(old), needs(new));
    if before != now {
        wishes.extend(before.map(|claim| wish(Subject::Claim(claim))));
    }
    wishes
}

/// What a change of a content calls for.
pub(crate) fn of_content(change: &Change<VolumeSnapshotContent>) -> Vec<Wish<Subject>> {
    let Change { key, old, new } = change;
    let changed = |content: &VolumeSnapshotContent| {
        let deleting = content.metadata.deletion_timestamp;
        (content.metadata.uid.clone(), content.spec.clone(), content.status.clone(), deleting)
    };
    let mut wishes = Vec::new();
    if new.is_some() {
        wishes.push(wish(Subject::Content(key.clone())));
    }
    if old.as_deref().map(changed) != new.as_deref().map(changed) {
        // A name that it no longer has may be somebody's too.
        let mut snapshots: Vec<Key> =
            [old, new].into_iter().flatten().map(|content| of_ref(content)).collect();
        snapshots.dedup();
        wishes.extend(snapshots.into_iter().map(|key| wish(Subject::Snapshot(key))));
    }
    wishes
}

pub(crate) fn of_ref(content: &VolumeSnapshotContent) -> Key {
    let reference = &content.spec.volume_snapshot_ref;
    Key::namespaced(&*reference.namespace, &*reference.name)
}

/// What a change of a claim calls for, besides the snapshots that are taken of it.
pub(crate) fn of_claim(change: &Change<PersistentVolumeClaim>) -> Vec<Wish<Subject>> {
    let Change { key, old, new } = change;
    let mut wishes = Vec::new();
    let protected =
        |claim: &Arc<PersistentVolumeClaim>| claim.metadata.has_finalizer(names::CLAIM_PROTECTION);
    if new.as_ref().is_some_and(protected) {
        wishes.push(wish(Subject::Claim(key.clone())));
    }
    let now = new.as_deref().map(snapshots_of).unwrap_or_default();
    let before = old.as_deref().map(snapshots_of).unwrap_or_default();
    // Who waited for its volume and does so no longer holds no snapshot any more.
    wishes
        .extend(before.into_iter().filter(|key| !now.contains(key)).map(|key| wish(Subject::Snapshot(key))));
    wishes
}

/// Whether snapshots can be taken of a claim that could not be before.
pub(crate) fn is_bound_now(change: &Change<PersistentVolumeClaim>) -> bool {
    let is_bound = |claim: &Option<Arc<PersistentVolumeClaim>>| {
        claim.as_ref().is_some_and(|claim| claim.status.phase == ClaimPhase::Bound)
    };
    is_bound(&change.new) && !is_bound(&change.old)
}

/// Group snapshots that may wait for claims, by their namespace: those without a content.
pub(crate) fn namespace_of(group: &VolumeGroupSnapshot) -> Vec<String> {
    let waits = group.spec.source.selector.is_some()
        && super::groups::view::bound(group).is_none()
        && !group.metadata.is_deleting();
    group.metadata.namespace.iter().filter(|_| waits).cloned().collect()
}

/// What a change of a group snapshot calls for, besides its members.
pub(crate) fn of_group(change: &Change<VolumeGroupSnapshot>) -> Vec<Wish<Subject>> {
    let Change { key, old, new } = change;
    let news = |group: &VolumeGroupSnapshot| {
        let mut status = group.status.clone().unwrap_or_default();
        (status.error, status.ready_to_use) = (None, Some(status.ready_to_use == Some(true)));
        (group.spec.clone(), status)
    };
    match (old, new) {
        (Some(old), Some(new)) if news(old) == news(new) && !is_news_of(&old.metadata, &new.metadata) => {
            Vec::new()
        }
        _ => vec![wish(Subject::Group(key.clone()))],
    }
}

/// Which of the snapshots that belong to a group snapshot, or name it, its change calls for: all when it goes, and
/// before that those that may have to take it for their owner.
pub(crate) fn members_of(
    change: &Change<VolumeGroupSnapshot>,
    members: &[Arc<VolumeSnapshot>],
) -> Vec<Wish<Subject>> {
    let is_gone = match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.metadata.uid != new.metadata.uid,
        (_, None) => true,
        (None, Some(_)) => false,
    };
    let called = members.iter().filter(|member| is_gone || owner(member).is_none());
    called.map(|member| wish(Subject::Snapshot(member.key()))).collect()
}

/// What a change of a group's content calls for.
pub(crate) fn of_group_content(change: &Change<VolumeGroupSnapshotContent>) -> Vec<Wish<Subject>> {
    let Change { key, old, new } = change;
    let changed = |content: &VolumeGroupSnapshotContent| {
        let deleting = content.metadata.deletion_timestamp;
        (content.metadata.uid.clone(), content.spec.clone(), content.status.clone(), deleting)
    };
    let mut wishes = Vec::new();
    if new.is_some() {
        wishes.push(wish(Subject::GroupContent(key.clone())));
    }
    if old.as_deref().map(changed) != new.as_deref().map(changed) {
        let content = new.as_ref().or(old.as_ref());
        let reference = content.map(|content| &content.spec.volume_group_snapshot_ref);
        let group = reference.map(|group| Key::namespaced(&*group.namespace, &*group.name));
        wishes.extend(group.map(|key| wish(Subject::Group(key))));
    }
    wishes
}

#[cfg(test)]
mod tests;
