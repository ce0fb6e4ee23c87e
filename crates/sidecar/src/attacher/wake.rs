//! What calls for a look at a volume, and how urgently. Changes that are our own writes do not: they would cut
//! short the pause after a failure.

use wharf_cluster::{Change, Priority};
use wharf_model::names::annotation::NODE_ID;
use wharf_model::{CSINode, PersistentVolume, VolumeAttachment};

use super::view::{Rules, Subject};

/// A look that a changed attachment calls for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) subject: Subject,
    pub(super) priority: Priority,
    /// The attachment whose pause has no reason any more.
    pub(super) woken: Option<String>,
}

/// How urgent an attachment is: pods wait for attaches; detaches come in bursts, when nodes are drained, and
/// must not hold those up (user pain 5).
pub(super) fn priority(attachment: &VolumeAttachment) -> Priority {
    if attachment.metadata.is_deleting() {
        Priority::Normal
    } else if attachment.status.attached {
        Priority::Low
    } else {
        Priority::High
    }
}

/// sidecars.md 1.2 "VA filter", "Requeue filter".
pub(super) fn by_attachment(change: &Change<VolumeAttachment>, rules: &Rules) -> Option<Look> {
    match (&change.old, &change.new) {
        (old, Some(new)) => {
            let changed = old.as_ref().is_none_or(|old| concerns(old, new, rules));
            (rules.owns(new) && changed).then(|| Look {
                subject: Subject::of(new),
                priority: priority(new),
                woken: old.is_some().then(|| new.metadata.name.clone()),
            })
        }
        // Also of other drivers: the volume may have waited for this one to go.
        (Some(old), None) => {
            Some(Look { subject: Subject::of(old), priority: Priority::Normal, woken: None })
        }
        (None, None) => None,
    }
}

/// Whether there is more to a change than what we write ourselves.
fn concerns(old: &VolumeAttachment, new: &VolumeAttachment, rules: &Rules) -> bool {
    let detached = old.status.attached && !new.status.attached && !new.metadata.is_deleting();
    detached || theirs(old, rules) != theirs(new, rules)
}

/// The parts that others write.
fn theirs(attachment: &VolumeAttachment, rules: &Rules) -> VolumeAttachment {
    let mut theirs = VolumeAttachment { status: Default::default(), ..attachment.clone() };
    let meta = &mut theirs.metadata;
    meta.resource_version.clear();
    meta.finalizers.retain(|finalizer| *finalizer != rules.finalizer);
    meta.annotations.remove(NODE_ID);
    theirs
}

/// What a changed volume calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VolumeNews {
    /// It may be time to let it go.
    Going,
    /// Attachments that could not be seen to may be now.
    Usable,
}

/// sidecars.md 1.2 "PV finalizer removal": a volume that is being deleted is looked at, and one that appears.
pub(super) fn by_volume(change: &Change<PersistentVolume>, rules: &Rules) -> Option<VolumeNews> {
    let new = change.new.as_ref()?;
    if new.metadata.is_deleting() {
        return new.metadata.has_finalizer(&rules.finalizer).then_some(VolumeNews::Going);
    }
    match &change.old {
        Some(old) => (old.metadata.uid != new.metadata.uid || old.spec.csi != new.spec.csi)
            .then_some(VolumeNews::Usable),
        None => Some(VolumeNews::Usable),
    }
}

/// The node on which the driver has appeared, or has another name for it now.
pub(super) fn by_node<'a>(change: &'a Change<CSINode>, rules: &Rules) -> Option<&'a str> {
    let id = |node: &Option<std::sync::Arc<CSINode>>| {
        node.as_ref().and_then(|node| node.driver(&rules.driver)).map(|driver| driver.node_id.clone())
    };
    let new = id(&change.new)?;
    (id(&change.old) != Some(new)).then_some(change.key.name.as_str())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use wharf_model::{Key, Kind};

    use super::*;

    fn rules() -> Rules {
        Rules { driver: "d.test".into(), finalizer: "external-attacher/d-test".into(), ..Rules::default() }
    }

    fn change<K: Kind>(old: Option<Value>, new: Option<Value>) -> Change<K> {
        let object = |value: Value| Arc::new(serde_json::from_value::<K>(value).unwrap());
        Change { key: Key::cluster("x"), old: old.map(object), new: new.map(object) }
    }

    fn attachment(with: Value) -> Value {
        let mut attachment = json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "finalizers": [], "annotations": {}},
            "spec": {"attacher": "d.test", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
            "status": {"attached": false},
        });
        for (path, value) in with.as_object().unwrap() {
            *attachment.pointer_mut(path).unwrap() = value.clone();
        }
        attachment
    }

    /// sidecars.md 1.2 "VA filter": others' attachments are not even queued. User pain 5: detaches do not go
    /// before attaches.
    #[test]
    fn new_attachments() {
        let deleting = json!({
            "name": "a", "uid": "u", "resourceVersion": "1", "deletionTimestamp": "2026-01-01T00:00:00Z",
        });
        for (with, priority) in [
            (json!({}), Some(Priority::High)),
            (json!({"/status": {"attached": true}}), Some(Priority::Low)),
            (json!({"/metadata": deleting}), Some(Priority::Normal)),
            (json!({"/spec/attacher": "other.test"}), None),
        ] {
            let look = by_attachment(&change(None, Some(attachment(with.clone()))), &rules());
            let expected =
                priority.map(|priority| Look { subject: Subject::Volume("v".into()), priority, woken: None });
            assert_eq!(look, expected, "{with}");
        }
        let ours = Rules { node: Some("n".into()), ..rules() };
        let others = Rules { node: Some("m".into()), ..rules() };
        let new = change(None, Some(attachment(json!({}))));
        assert!(by_attachment(&new, &ours).is_some());
        assert_eq!(by_attachment(&new, &others), None);
    }

    /// sidecars.md 1.2 "Requeue filter": our own writes do not end a pause, others' do.
    #[test]
    fn changed_attachments() {
        let finalizer = json!(["external-attacher/d-test"]);
        let error = json!({"attached": false, "attachError": {"message": "no"}});
        let again = json!({"attached": false, "attachError": {"message": "still no"}});
        let detach_error = json!({"attached": false, "detachError": {"message": "no"}});
        for (old, new, looked) in [
            (json!({}), json!({"/metadata/resourceVersion": "2"}), false),
            (json!({}), json!({"/status": error}), false),
            (json!({"/status": error}), json!({"/status": again}), false),
            (json!({"/status": error}), json!({"/status": detach_error}), false),
            (json!({}), json!({"/metadata/finalizers": finalizer}), false),
            (json!({}), json!({"/metadata/annotations": {"csi.alpha.kubernetes.io/node-id": "n1"}}), false),
            (json!({"/status": error}), json!({"/status": {"attached": true}}), false),
            (json!({"/metadata/finalizers": finalizer}), json!({}), false),
            (json!({}), json!({"/metadata/finalizers": ["theirs"]}), true),
            (json!({}), json!({"/metadata/annotations": {"a": "b"}}), true),
            (json!({"/status": {"attached": true}}), json!({}), true),
            (json!({"/status": error}), json!({"/status": again, "/spec/nodeName": "m"}), true),
            (
                json!({"/status": error}),
                json!({"/status": error, "/metadata": {
                    "name": "a", "uid": "u", "finalizers": finalizer, "deletionTimestamp": "2026-01-01T00:00:00Z",
                }}),
                true,
            ),
        ] {
            let change = change(Some(attachment(old.clone())), Some(attachment(new.clone())));
            let look = by_attachment(&change, &rules());
            assert_eq!(look.is_some(), looked, "{old} {new}");
            assert!(look.is_none_or(|look| look.woken.as_deref() == Some("a")), "its pause ends");
        }
    }

    /// sidecars.md 1.2 "PV finalizer removal": triggered by an attachment's end, also another driver's, or by a
    /// change of the volume.
    #[test]
    fn what_ends_a_volumes_wait() {
        for attacher in ["d.test", "other.test"] {
            let gone = change(Some(attachment(json!({"/spec/attacher": attacher}))), None);
            let look = by_attachment(&gone, &rules()).unwrap();
            assert_eq!((look.subject, look.priority), (Subject::Volume("v".into()), Priority::Normal));
        }
        let finalizer = ["external-attacher/d-test"];
        let deleting = "2026-01-01T00:00:00Z";
        let csi = json!({"driver": "d.test"});
        for (old, new, news) in [
            (
                Some(json!({"metadata": {"finalizers": finalizer}})),
                Some(json!({"metadata": {"finalizers": finalizer, "deletionTimestamp": deleting}})),
                Some(VolumeNews::Going),
            ),
            (Some(json!({"metadata": {}})), Some(json!({"metadata": {"deletionTimestamp": deleting}})), None),
            (None, Some(json!({"metadata": {}})), Some(VolumeNews::Usable)),
            (
                Some(json!({"metadata": {}})),
                Some(json!({"metadata": {}, "spec": {"csi": csi}})),
                Some(VolumeNews::Usable),
            ),
            (Some(json!({"metadata": {}})), Some(json!({"metadata": {"labels": {"a": "b"}}})), None),
            (Some(json!({"metadata": {}})), None, None),
        ] {
            assert_eq!(by_volume(&change(old.clone(), new.clone()), &rules()), news, "{old:?} {new:?}");
        }
    }

    /// A driver that registers on a node is what attachments to that node waited for.
    #[test]
    fn nodes() {
        let with = |id: &str| Some(json!({"spec": {"drivers": [{"name": "d.test", "nodeID": id}]}}));
        let without = || Some(json!({"spec": {"drivers": [{"name": "other.test", "nodeID": "n"}]}}));
        for (old, new, news) in [
            (None, with("1"), true),
            (None, without(), false),
            (without(), with("1"), true),
            (with("1"), with("1"), false),
            (with("1"), with("2"), true),
            (with("1"), without(), false),
            (with("1"), None, false),
        ] {
            assert_eq!(
                by_node(&change(old.clone(), new.clone()), &rules()).is_some(),
                news,
                "{old:?} {new:?}"
            );
        }
    }
}
