//! Which changes trigger a reconcile of a volume, and with which priority. The attacher's own writes trigger none: they
//! would end the backoff after a failure.

use wharf_cluster::{Change, Priority};
use wharf_model::names::annotation::NODE_ID;
use wharf_model::{CSINode, PersistentVolume, VolumeAttachment};

use super::view::{AttacherConfig, Subject};

/// A reconcile that a changed attachment triggers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wakeup {
    pub(super) subject: Subject,
    pub(super) priority: Priority,
    /// The attachment whose backoff to end.
    pub(super) end_backoff_of: Option<String>,
}

/// The priority of an attachment. Pods wait for attaches. Detaches come in bursts when nodes are drained and must not
/// delay attaches.
pub(super) fn priority(attachment: &VolumeAttachment) -> Priority {
    if attachment.metadata.is_deleting() {
        Priority::Normal
    } else if attachment.status.attached {
        Priority::Low
    } else {
        Priority::High
    }
}

/// The reconcile that a changed VolumeAttachment triggers, if any: sidecars.md 1.2 "VA filter", "Requeue filter".
pub(super) fn by_attachment(change: &Change<VolumeAttachment>, config: &AttacherConfig) -> Option<Wakeup> {
    match (&change.old, &change.new) {
        (old, Some(new)) => {
            let changed = old.as_ref().is_none_or(|old| is_relevant(old, new, config));
            (config.owns(new) && changed).then(|| Wakeup {
                subject: Subject::of(new),
                priority: priority(new),
                end_backoff_of: old.is_some().then(|| new.metadata.name.clone()),
            })
        }
        // Also attachments of other drivers: the removal of the volume's finalizer may wait for their deletion.
        (Some(old), None) => {
            Some(Wakeup { subject: Subject::of(old), priority: Priority::Normal, end_backoff_of: None })
        }
        (None, None) => None,
    }
}

/// Whether a change has more than the attacher's own writes.
fn is_relevant(old: &VolumeAttachment, new: &VolumeAttachment, config: &AttacherConfig) -> bool {
    let detached = old.status.attached && !new.status.attached && !new.metadata.is_deleting();
    detached || without_own_fields(old, config) != without_own_fields(new, config)
}

/// The attachment without the fields that the attacher writes.
fn without_own_fields(attachment: &VolumeAttachment, config: &AttacherConfig) -> VolumeAttachment {
    let mut attachment = VolumeAttachment { status: Default::default(), ..attachment.clone() };
    let meta = &mut attachment.metadata;
    meta.resource_version.clear();
    meta.finalizers.retain(|finalizer| *finalizer != config.finalizer);
    meta.annotations.remove(NODE_ID);
    attachment
}

/// Why a changed volume triggers a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VolumeChange {
    /// Its finalizer may have to be removed.
    Deleting,
    /// Attachments that were refused may succeed now.
    Usable,
}

/// Whether a changed volume triggers a reconcile: sidecars.md 1.2 "PV finalizer removal".
pub(super) fn by_volume(change: &Change<PersistentVolume>, config: &AttacherConfig) -> Option<VolumeChange> {
    let new = change.new.as_ref()?;
    if new.metadata.is_deleting() {
        return new.metadata.has_finalizer(&config.finalizer).then_some(VolumeChange::Deleting);
    }
    match &change.old {
        Some(old) => (old.metadata.uid != new.metadata.uid || old.csi_source() != new.csi_source())
            .then_some(VolumeChange::Usable),
        None => Some(VolumeChange::Usable),
    }
}

/// The node on which the driver was registered or has a new node ID.
pub(super) fn by_node<'a>(change: &'a Change<CSINode>, config: &AttacherConfig) -> Option<&'a str> {
    let id = |node: &Option<std::sync::Arc<CSINode>>| {
        node.as_ref().and_then(|node| node.driver(&config.driver)).map(|driver| driver.node_id.clone())
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

    fn config() -> AttacherConfig {
        AttacherConfig {
            driver: "d.test".into(),
            finalizer: "external-attacher/d-test".into(),
            ..AttacherConfig::default()
        }
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

    /// sidecars.md 1.2 "VA filter": attachments of other attachers are not queued. Attaches precede detaches.
    #[test]
    fn new_attachment_is_queued_by_priority() {
        let deleting = json!({
            "name": "a", "uid": "u", "resourceVersion": "1", "deletionTimestamp": "2026-01-01T00:00:00Z",
        });
        for (with, priority) in [
            (json!({}), Some(Priority::High)),
            (json!({"/status": {"attached": true}}), Some(Priority::Low)),
            (json!({"/metadata": deleting}), Some(Priority::Normal)),
            (json!({"/spec/attacher": "other.test"}), None),
        ] {
            let wakeup = by_attachment(&change(None, Some(attachment(with.clone()))), &config());
            let expected = priority.map(|priority| Wakeup {
                subject: Subject::Volume("v".into()),
                priority,
                end_backoff_of: None,
            });
            assert_eq!(wakeup, expected, "{with}");
        }
        let this_node = AttacherConfig { node: Some("n".into()), ..config() };
        let other_node = AttacherConfig { node: Some("m".into()), ..config() };
        let new = change(None, Some(attachment(json!({}))));
        assert!(by_attachment(&new, &this_node).is_some());
        assert_eq!(by_attachment(&new, &other_node), None);
    }

    /// sidecars.md 1.2 "Requeue filter": the attacher's own writes do not end a backoff, other changes do.
    #[test]
    fn only_changes_by_others_wake_attachment() {
        let finalizer = json!(["external-attacher/d-test"]);
        let error = json!({"attached": false, "attachError": {"message": "no"}});
        let again = json!({"attached": false, "attachError": {"message": "still no"}});
        let detach_error = json!({"attached": false, "detachError": {"message": "no"}});
        for (old, new, expected) in [
            (json!({}), json!({"/metadata/resourceVersion": "2"}), false),
            (json!({}), json!({"/status": error}), false),
            (json!({"/status": error}), json!({"/status": again}), false),
            (json!({"/status": error}), json!({"/status": detach_error}), false),
            (json!({}), json!({"/metadata/finalizers": finalizer}), false),
            (json!({}), json!({"/metadata/annotations": {"csi.alpha.kubernetes.io/node-id": "n1"}}), false),
            (json!({"/status": error}), json!({"/status": {"attached": true}}), false),
            (json!({"/metadata/finalizers": finalizer}), json!({}), false),
            (json!({}), json!({"/metadata/finalizers": ["example.com/other"]}), true),
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
            let wakeup = by_attachment(&change, &config());
            assert_eq!(wakeup.is_some(), expected, "{old} {new}");
            assert!(
                wakeup.is_none_or(|wakeup| wakeup.end_backoff_of.as_deref() == Some("a")),
                "the backoff ends"
            );
        }
    }

    /// sidecars.md 1.2 "PV finalizer removal": triggered by the deletion of an attachment, also of another driver, or
    /// by a change of the volume.
    #[test]
    fn deleted_attachment_or_changed_volume_wakes_volume() {
        for attacher in ["d.test", "other.test"] {
            let deleted = change(Some(attachment(json!({"/spec/attacher": attacher}))), None);
            let wakeup = by_attachment(&deleted, &config()).unwrap();
            assert_eq!((wakeup.subject, wakeup.priority), (Subject::Volume("v".into()), Priority::Normal));
        }
        let finalizer = ["external-attacher/d-test"];
        let deleting = "2026-01-01T00:00:00Z";
        let csi = json!({"driver": "d.test"});
        for (old, new, expected) in [
            (
                Some(json!({"metadata": {"finalizers": finalizer}})),
                Some(json!({"metadata": {"finalizers": finalizer, "deletionTimestamp": deleting}})),
                Some(VolumeChange::Deleting),
            ),
            (Some(json!({"metadata": {}})), Some(json!({"metadata": {"deletionTimestamp": deleting}})), None),
            (None, Some(json!({"metadata": {}})), Some(VolumeChange::Usable)),
            (
                Some(json!({"metadata": {}})),
                Some(json!({"metadata": {}, "spec": {"csi": csi}})),
                Some(VolumeChange::Usable),
            ),
            (Some(json!({"metadata": {}})), Some(json!({"metadata": {"labels": {"a": "b"}}})), None),
            (Some(json!({"metadata": {}})), None, None),
        ] {
            assert_eq!(by_volume(&change(old.clone(), new.clone()), &config()), expected, "{old:?} {new:?}");
        }
    }

    /// Attachments to a node wait for the driver to register there.
    #[test]
    fn driver_registration_wakes_attachments_of_node() {
        let with = |id: &str| Some(json!({"spec": {"drivers": [{"name": "d.test", "nodeID": id}]}}));
        let without = || Some(json!({"spec": {"drivers": [{"name": "other.test", "nodeID": "n"}]}}));
        for (old, new, expected) in [
            (None, with("1"), true),
            (None, without(), false),
            (without(), with("1"), true),
            (with("1"), with("1"), false),
            (with("1"), with("2"), true),
            (with("1"), without(), false),
            (with("1"), None, false),
        ] {
            assert_eq!(
                by_node(&change(old.clone(), new.clone()), &config()).is_some(),
                expected,
                "{old:?} {new:?}"
            );
        }
    }
}
