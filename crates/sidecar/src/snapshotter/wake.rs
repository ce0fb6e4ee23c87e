//! What calls for a look at a content. Our own writes do not: after each of them comes the next step anyway, and a
//! failure that was written down must not end its own pause. Contents that are ready and stay are never queued, so
//! ten thousand of them cost a start nothing.

use wharf_cluster::{Change, Priority};
use wharf_model::{Meta, VolumeGroupSnapshotContent, VolumeSnapshotContent};

use super::view::{Object, Source, Which};

/// The change of a content, whatever it is of.
pub(super) struct News {
    pub(super) old: Option<Object>,
    pub(super) new: Option<Object>,
}

impl From<&Change<VolumeSnapshotContent>> for News {
    fn from(change: &Change<VolumeSnapshotContent>) -> Self {
        Self { old: change.old.clone().map(Object::Snapshot), new: change.new.clone().map(Object::Snapshot) }
    }
}

impl From<&Change<VolumeGroupSnapshotContent>> for News {
    fn from(change: &Change<VolumeGroupSnapshotContent>) -> Self {
        Self { old: change.old.clone().map(Object::Group), new: change.new.clone().map(Object::Group) }
    }
}

/// Whether a change calls for a look, and how urgently.
pub(super) fn by_content(news: &News, driver: &str) -> Option<Priority> {
    let Some(new) = &news.new else {
        // What we remember of it is to be forgotten.
        return news.old.as_ref().filter(|old| old.driver() == driver).map(|_| Priority::Low);
    };
    if new.driver() != driver || new.is_settled() {
        return None;
    }
    let looked_at = match &news.old {
        None => true,
        Some(old) => differs(old, new),
    };
    looked_at.then(|| priority(new))
}

/// Whether somebody else has changed it.
fn differs(old: &Object, new: &Object) -> bool {
    let mark = new.words().being_created;
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
    // A member's status is its group's controller's first: with it we know whom to ask about.
    let is_told = |object: &Object| object.handle().is_some() && object.group_handle().is_some();
    let is_looked_up = matches!(new.source(), Source::There { .. });
    let told = !is_looked_up && is_told(new) && !is_told(old);
    spec || told || others(old.meta()) != others(new.meta())
}

/// Somebody waits for what is made; what goes is not in a hurry.
pub(super) fn priority(object: &Object) -> Priority {
    if object.meta().is_deleting() { Priority::Normal } else { Priority::High }
}

/// The class under which a content that waits for something is found; runs under the store's lock.
pub(super) fn waits_for_class(
    meta: &Meta,
    which: Which,
    ready: Option<bool>,
    class: Option<&String>,
) -> Vec<String> {
    let marked = meta.annotation(which.words().being_created).is_some();
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

    fn looked_at(old: Option<Value>, new: Option<Value>) -> Option<Priority> {
        let news = News { old: old.as_ref().map(content), new: new.as_ref().map(content) };
        by_content(&news, "d.test")
    }

    /// sidecars.md 1.5 "Enqueue filter"; user pain 15: what is ready is not in the way of what is new.
    #[test]
    fn what_calls_for_a_look() {
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
            // Others'.
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
            assert_eq!(looked_at(old.clone(), new.clone()), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn only_what_waits_is_found_by_its_class() {
        let meta = Meta::default();
        let class = "k".to_owned();
        let of = |meta: &Meta, ready| waits_for_class(meta, Which::Snapshot, ready, Some(&class));
        assert_eq!(of(&meta, None), ["k"]);
        assert_eq!(of(&meta, Some(false)), ["k"]);
        assert!(of(&meta, Some(true)).is_empty());
        let marked = json!({"name": "c", "annotations": {names::BEING_CREATED: "yes"}});
        let marked: Meta = serde_json::from_value(marked).unwrap();
        assert_eq!(of(&marked, Some(true)), ["k"]);
        assert!(waits_for_class(&marked, Which::Snapshot, None, None).is_empty());
    }
}
