//! What calls for a look at a content. Our own writes do not: after each of them comes the next step anyway, and a
//! failure that was written down must not end its own pause. Contents that are ready and stay are never queued, so
//! ten thousand of them cost a start nothing.

use wharf_cluster::{Change, Priority};
use wharf_model::{Meta, VolumeGroupSnapshotContent, VolumeSnapshotContent};

use super::view::{Object, Which};

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
    spec || others(old.meta()) != others(new.meta())
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
