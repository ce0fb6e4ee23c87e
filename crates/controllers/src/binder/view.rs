//! What the binder sees of a claim and its volumes at one moment: objects, and what the server said when it was asked.
//!
//! Promise: a view is plain data. What is not in it is not known: absence from our stores proves nothing until
//! [`Live`] says that the server was asked.

use std::sync::Arc;

use wharf_model::matching::reserved_for;
use wharf_model::names::annotation;
use wharf_model::whole::Pod;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, StorageClass};

/// What is worked on by one worker at a time. A claim and every volume that names it are one: the binding is written
/// into both, and whoever writes one half must not meet somebody who writes the other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// A claim, whether or not it is there, and the volumes that name it.
    Claim(Key),
    /// A volume that names no claim.
    Volume(String),
    /// A class of which volumes are to be had: claims that wait for one are to look again.
    Class(String),
}

impl Subject {
    /// Whose a volume is to look at.
    pub(super) fn of(volume: &PersistentVolume) -> Self {
        match &volume.spec.claim_ref {
            Some(reference) => Self::Claim(reference.key()),
            None => Self::Volume(volume.metadata.name.clone()),
        }
    }
}

/// What is chosen where upstream's binder does otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// See [`super::Settings::clear_selected_node`].
    pub(super) clear_selected_node: bool,
}

/// An object, as the server said when it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// There is none.
    Gone,
    /// There is one, with this identity.
    There(String),
}

/// What the server was asked while a subject is worked on. Forgotten afterwards: answers grow old.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Live {
    /// The claim.
    pub(super) claim: Option<Found>,
    /// The volume that the claim names, by its name.
    pub(super) volume: Option<(String, Found)>,
    /// The node that was chosen for the claim, by its name.
    pub(super) node: Option<(String, Found)>,
}

/// A claim and its volumes.
#[derive(Debug, Clone)]
pub(super) struct View {
    /// What is chosen.
    pub(super) rules: Rules,
    /// The claim, if there is one.
    pub(super) claim: Option<Arc<PersistentVolumeClaim>>,
    /// Its class, if there is one.
    pub(super) class: Option<Arc<StorageClass>>,
    /// The class of claims that name none.
    pub(super) default_class: Option<String>,
    /// The volume that the claim names.
    pub(super) named: Option<Arc<PersistentVolume>>,
    /// The volumes that name the claim, by name.
    pub(super) volumes: Vec<Arc<PersistentVolume>>,
    /// The best of those that are to be had, if the claim may have one.
    pub(super) offer: Option<Arc<PersistentVolume>>,
    /// Pods that use the claim and have no node, by name.
    pub(super) unscheduled: Vec<String>,
    /// Pods that use a claim of this name, by namespace and name.
    pub(super) users: Vec<String>,
    /// Whether the node that was chosen for the claim is one we know of.
    pub(super) node_known: bool,
    /// What the server was asked.
    pub(super) live: Live,
}

/// Names of indexes; stores are shared, so they begin with whose they are.
pub(super) mod index {
    /// Volumes by the claim that they name.
    pub(crate) const VOLUMES_BY_CLAIM: &str = "binder/claim";
    /// Claims by the volume that they name.
    pub(crate) const CLAIMS_BY_VOLUME: &str = "binder/volume";
    /// Claims that look for a volume, by class.
    pub(crate) const WAITING: &str = "binder/waiting";
    /// Claims that look for a volume, by the node that was chosen for them.
    pub(crate) const BY_NODE: &str = "binder/node";
}

/// Under what volumes are found by claim.
pub(super) fn by_claim(volume: &PersistentVolume) -> Vec<String> {
    reserved_for(volume).into_iter().collect()
}

/// Under what claims are found by volume.
pub(super) fn by_volume(claim: &PersistentVolumeClaim) -> Vec<String> {
    Some(&claim.spec.volume_name).filter(|name| !name.is_empty()).cloned().into_iter().collect()
}

/// Whether a claim looks for a volume: any that fits.
pub(super) fn is_waiting(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.volume_name.is_empty() && !claim.metadata.annotations.contains_key(annotation::BIND_COMPLETED)
}

/// Whether a pod has ended: nothing of it runs, and nothing will.
pub(super) fn has_ended(pod: &Pod) -> bool {
    let mut statuses = pod.status.own_container_statuses();
    let mut still =
        || statuses.all(|status| status.state.terminated.is_some() || status.state.waiting.is_some());
    pod.has_ended() || (pod.metadata.is_deleting() && still())
}

/// The class of claims that name none: the newest of those marked so; of equally new ones the first by name.
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

    /// kubernetes.md 1.1 "Default class": the newest, of equally new ones the first by name.
    #[test]
    fn the_default_class() {
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

    /// kubernetes.md 1.1 "First consumer", 1.3 "Pods that count".
    #[test]
    fn ended_pods() {
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
            assert_eq!(has_ended(&pod), expected, "{row}");
        }
    }
}
