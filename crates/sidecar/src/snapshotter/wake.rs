//! Decides which changes enqueue a content. Our own writes do not: the next step follows anyway, and the write that
//! reports a failure must not end the backoff of that failure. Contents that are ready and not in deletion are never
//! enqueued, so ten thousand of them do not delay a start.

use wharf_cluster::{Change, Priority};
use wharf_model::{Meta, VolumeGroupSnapshotContent, VolumeSnapshotContent};

use super::view::{ContentKind, Object, Source};

/// A change of a content of either kind.
pub(super) struct ContentChange {
    pub(super) old: Option<Object>,
    pub(super) new: Option<Object>,
}

impl From<&Change<VolumeSnapshotContent>> for ContentChange {
    fn from(change: &Change<VolumeSnapshotContent>) -> Self {
        Self { old: change.old.clone().map(Object::Snapshot), new: change.new.clone().map(Object::Snapshot) }
    }
}

impl From<&Change<VolumeGroupSnapshotContent>> for ContentChange {
    fn from(change: &Change<VolumeGroupSnapshotContent>) -> Self {
        Self { old: change.old.clone().map(Object::Group), new: change.new.clone().map(Object::Group) }
    }
}

/// The priority with which a change enqueues the content; `None` if it does not.
pub(super) fn priority_for_change(change: &ContentChange, driver: &str) -> Option<Priority> {
    let Some(new) = &change.new else {
        // The content is gone: the worker drops its in-memory state.
        return change.old.as_ref().filter(|old| old.driver() == driver).map(|_| Priority::Low);
    };
    if new.driver() != driver || new.is_settled() {
        return None;
    }
    let enqueue = match &change.old {
        None => true,
        Some(old) => changed_by_others(old, new),
    };
    enqueue.then(|| priority(new))
}

/// Whether the change was made by another component.
fn changed_by_others(old: &Object, new: &Object) -> bool {
    let mark = new.constants().being_created;
    let others = |meta: &Meta| {
        let mut annotations = meta.annotations.clone();
        annotations.remove(mark);
        (meta.uid.clone(), meta.is_deleting(), meta.labels.clone(), annotations)
    };
    let spec = match (old, new) {
        (Object::Snapshot(old), Object::Snapshot(new)) => old.spec != new.spec,
        (Object::Group(old), Object::Group(new)) => old.spec != new.spec,
        _ => true,
    };
    // The first status of a group member is written by the snapshot controller. Once it contains the handles, the driver
    // can be called.
    let has_handles = |object: &Object| object.handle().is_some() && object.group_handle().is_some();
    let is_pre_provisioned = matches!(new.source(), Source::Existing { .. });
    let handles_set = !is_pre_provisioned && has_handles(new) && !has_handles(old);
    spec || handles_set || others(old.meta()) != others(new.meta())
}

/// Users wait for snapshots to be created; deletions are less urgent.
pub(super) fn priority(object: &Object) -> Priority {
    if object.meta().is_deleting() { Priority::Normal } else { Priority::High }
}

/// Index key of unfinished contents: their class. Runs under the store's lock.
pub(super) fn waits_for_class(
    meta: &Meta,
    kind: ContentKind,
    ready: Option<bool>,
    class: Option<&String>,
) -> Vec<String> {
    let marked = meta.annotation(kind.constants().being_created).is_some();
    let settled = ready == Some(true) && !marked && !meta.is_deleting();
    class.filter(|_| !settled).cloned().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use wharf_model::snapshot::names;

    use super::*;

    fn content(with: &Value) -> Object {
        let mut content = json!({
            "metadata": {"name": "c", "uid": "u", "resourceVersion": "1", "finalizers": [], "annotations": {}},
            "spec": {"driver": "d.test", "source": {"volumeHandle": "v"}},
            "status": null,
        });
        for (path, value) in with.as_object().unwrap() {
            *content.pointer_mut(path).unwrap() = value.clone();
        }
        Object::Snapshot(Arc::new(serde_json::from_value(content).unwrap()))
    }

    fn enqueued(old: Option<Value>, new: Option<Value>) -> Option<Priority> {
        let change = ContentChange { old: old.as_ref().map(content), new: new.as_ref().map(content) };
        priority_for_change(&change, "d.test")
    }

    /// sidecars.md 1.5 "Enqueue filter": ready contents do not delay new ones.
    #[test]
    fn own_writes_do_not_enqueue_content() {
        let plain = || Some(json!({}));
        let ready = json!({"readyToUse": true, "snapshotHandle": "h"});
        let error = json!({"readyToUse": false, "error": {"message": "no"}});
        let going = json!({"name": "c", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let marked = json!({names::BEING_CREATED: "yes"});
        let high = Some(Priority::High);
        let of_member = json!({"readyToUse": false, "snapshotHandle": "h", "volumeGroupSnapshotHandle": "g"});
        let member =
            |status: Value| json!({"/metadata/annotations": {names::GROUP_HANDLE: "g"}, "/status": status});
        for (old, new, expected) in [
            (None, plain(), high),
            (None, Some(json!({"/status": ready})), None),
            (None, Some(json!({"/status": ready, "/metadata/annotations": marked})), high),
            (None, Some(json!({"/status": ready, "/metadata": going})), Some(Priority::Normal)),
            (None, Some(json!({"/spec/driver": "other.test"})), None),
            (plain(), None, Some(Priority::Low)),
            // Our own writes.
            (plain(), Some(json!({"/metadata/resourceVersion": "2"})), None),
            (plain(), Some(json!({"/status": error})), None),
            (plain(), Some(json!({"/metadata/annotations": marked})), None),
            (plain(), Some(json!({"/metadata/finalizers": ["f"]})), None),
            (Some(json!({"/metadata/annotations": marked})), plain(), None),
            (plain(), Some(json!({"/status": {"readyToUse": false, "snapshotHandle": "h"}})), None),
            (
                Some(json!({"/spec/source": {"snapshotHandle": "h"}})),
                Some(json!({"/spec/source": {"snapshotHandle": "h"}, "/status": of_member})),
                None,
            ),
            (Some(member(of_member.clone())), Some(member(of_member.clone())), None),
            // Writes of other components.
            (Some(member(Value::Null)), Some(member(of_member.clone())), high),
            (plain(), Some(json!({"/metadata/annotations": {names::BEING_DELETED: "yes"}})), high),
            (plain(), Some(json!({"/metadata": going})), Some(Priority::Normal)),
            (
                Some(json!({"/status": ready})),
                Some(json!({"/status": ready, "/metadata": going})),
                Some(Priority::Normal),
            ),
            (plain(), Some(json!({"/spec": {"driver": "d.test", "source": {"snapshotHandle": "h"}}})), high),
        ] {
            assert_eq!(enqueued(old.clone(), new.clone()), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn only_unfinished_contents_are_indexed_by_class() {
        let meta = Meta::default();
        let class = "k".to_owned();
        let of = |meta: &Meta, ready| waits_for_class(meta, ContentKind::Snapshot, ready, Some(&class));
        assert_eq!(of(&meta, None), ["k"]);
        assert_eq!(of(&meta, Some(false)), ["k"]);
        assert!(of(&meta, Some(true)).is_empty());
        let marked = json!({"name": "c", "annotations": {names::BEING_CREATED: "yes"}});
        let marked: Meta = serde_json::from_value(marked).unwrap();
        assert_eq!(of(&marked, Some(true)), ["k"]);
        assert!(waits_for_class(&marked, ContentKind::Snapshot, None, None).is_empty());
    }
}
