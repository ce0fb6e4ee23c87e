//! The binder's inputs for a claim and its volumes: objects from the stores, and live reads from the API server.
//!
//! A view is plain data. Absence from the stores proves nothing; only [`LiveReads`] does.

use std::sync::Arc;

use wharf_model::names::annotation;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass};

/// What one worker at a time handles. A claim and every volume that references it are one item: a binding is written
/// into both, and no two workers may write the two halves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum WorkItem {
    /// A claim, whether or not it exists, and the volumes that reference it.
    Claim(Key),
    /// A volume that references no claim.
    Volume(String),
    /// A class with newly available volumes: wake claims that wait for one.
    Class(String),
}

impl WorkItem {
    /// The work item that handles a volume.
    pub(super) fn of(volume: &PersistentVolume) -> Self {
        match &volume.spec.claim_ref {
            Some(reference) => Self::Claim(reference.key()),
            None => Self::Volume(volume.metadata.name.clone()),
        }
    }
}

/// Settings in which the rules may differ from upstream's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// See [`super::Settings::clear_selected_node`].
    pub(super) clear_selected_node: bool,
}

/// The result of a live read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LiveObject {
    /// The object does not exist.
    Absent,
    /// The object exists and has this UID.
    Present(String),
}

/// Live reads during one reconcile. They are dropped afterwards, since they become stale.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LiveReads {
    pub(super) claim: Option<LiveObject>,
    /// The volume that the claim names, by its name.
    pub(super) volume: Option<(String, LiveObject)>,
    /// The node that was selected for the claim, by its name.
    pub(super) node: Option<(String, LiveObject)>,
}

/// The inputs for a claim and its volumes.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) rules: Rules,
    /// The claim, if it exists.
    pub(super) claim: Option<Arc<PersistentVolumeClaim>>,
    /// Its class, if it exists.
    pub(super) class: Option<Arc<StorageClass>>,
    /// The default class, for claims that name none.
    pub(super) default_class: Option<String>,
    /// The volume that the claim names.
    pub(super) named_volume: Option<Arc<PersistentVolume>>,
    /// The volumes that reference the claim, by name.
    pub(super) volumes: Vec<Arc<PersistentVolume>>,
    /// The best available volume that references no claim, if this claim may have one.
    pub(super) offer: Option<Arc<PersistentVolume>>,
    /// Unscheduled pods that use the claim, by name.
    pub(super) unscheduled: Vec<String>,
    /// Pods that use a claim of this name, as `namespace/name`.
    pub(super) users: Vec<String>,
    /// Whether the node that was selected for the claim is in the store.
    pub(super) selected_node_known: bool,
    /// What was read from the API server.
    pub(super) live: LiveReads,
}

/// Names of indexes. Controllers share stores, so each name starts with its owner.
pub(super) mod index {
    /// Claims that wait for a volume, by class.
    pub(crate) const WAITING: &str = "binder/waiting";
    /// Claims that wait for a volume, by selected node.
    pub(crate) const BY_NODE: &str = "binder/node";
}

/// Whether a claim waits for any volume that matches.
pub(super) fn is_waiting(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.volume_name.is_empty() && !claim.metadata.annotations.contains_key(annotation::BIND_COMPLETED)
}

/// Whether no container of the pod runs or will run.
pub(super) fn is_terminated(pod: &Pod) -> bool {
    let mut statuses = pod.status.own_container_statuses();
    let mut still =
        || statuses.all(|status| status.state.terminated.is_some() || status.state.waiting.is_some());
    pod.has_ended() || (pod.metadata.is_deleting() && still())
}

/// The default class: the newest of those marked as default; among equally new ones the first by name.
pub(super) fn default_class(classes: &[Arc<StorageClass>]) -> Option<String> {
    let marked = classes.iter().filter(|class| class.is_default());
    let newest = marked.max_by(|a, b| {
        let age = |class: &StorageClass| class.metadata.creation_timestamp;
        age(a).cmp(&age(b)).then_with(|| b.metadata.name.cmp(&a.metadata.name))
    });
    newest.map(|class| class.metadata.name.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// kubernetes.md 1.1 "Default class": the newest; among equally new ones the first by name.
    #[test]
    fn newest_default_class_wins() {
        let class = |name: &str, day: u8, annotations: Value| -> Arc<StorageClass> {
            let created = format!("2026-01-{day:02}T00:00:00Z");
            let class =
                json!({"metadata": {"name": name, "creationTimestamp": created, "annotations": annotations}});
            Arc::new(serde_json::from_value(class).unwrap())
        };
        let default = || json!({"storageclass.kubernetes.io/is-default-class": "true"});
        let beta = || json!({"storageclass.beta.kubernetes.io/is-default-class": "true"});
        let no = || json!({"storageclass.kubernetes.io/is-default-class": "false"});
        for (classes, expected) in [
            (vec![], None),
            (vec![class("a", 1, json!({})), class("b", 2, no())], None),
            (vec![class("a", 1, default()), class("b", 2, json!({}))], Some("a")),
            (vec![class("a", 1, beta())], Some("a")),
            (vec![class("a", 2, default()), class("b", 3, beta()), class("c", 1, default())], Some("b")),
            (vec![class("b", 1, default()), class("a", 1, default()), class("c", 1, default())], Some("a")),
        ] {
            assert_eq!(default_class(&classes).as_deref(), expected);
        }
    }

    /// kubernetes.md 1.1 "First consumer", 1.3 "Relevant pods".
    #[test]
    fn pods_are_terminated_when_no_container_runs() {
        let running = json!([{"state": {"running": {}}}]);
        let stopped = json!([{"state": {"terminated": {}}}, {"state": {"waiting": {}}}]);
        let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (metadata, status, expected) in [
            (json!({}), json!({"phase": "Running", "containerStatuses": stopped}), false),
            (json!({}), json!({"phase": "Failed"}), true),
            (json!({}), json!({"phase": "Succeeded"}), true),
            (deleting.clone(), json!({"phase": "Running", "containerStatuses": running}), false),
            (deleting.clone(), json!({"phase": "Running", "containerStatuses": stopped}), true),
            (deleting.clone(), json!({"phase": "Pending", "initContainerStatuses": running}), false),
            (deleting, json!({"phase": "Pending"}), true),
        ] {
            let row = format!("{metadata} {status}");
            let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap();
            assert_eq!(is_terminated(&pod), expected, "{row}");
        }
    }
}
