//! The input of the walks: objects as read from the API server, events about them, and what could not be read.

use std::collections::{BTreeMap, BTreeSet};

use wharf_model::attempt::{Attempt, NODE_ROLE};
use wharf_model::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use wharf_model::{
    CSIDriver, CSINode, Event, Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
    VolumeAttachment, VolumeGroupSnapshot,
};

use crate::explanation::ReportedError;

/// The result of reading an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Lookup<T> {
    /// The object exists.
    Found(T),
    /// The server reports that it does not exist.
    Absent,
    /// It could not be read, or was not needed.
    #[default]
    Unknown,
}

impl<T> Lookup<T> {
    /// The object, if it exists.
    pub fn found(&self) -> Option<&T> {
        match self {
            Self::Found(object) => Some(object),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// One claim and the objects related to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimFacts {
    /// The claim's key.
    pub key: Option<Key>,
    /// The claim.
    pub claim: Lookup<PersistentVolumeClaim>,
    /// Its class.
    pub class: Lookup<StorageClass>,
    /// Whether a default class exists; `None` if unknown.
    pub default_class: Option<bool>,
    /// Its volume.
    pub volume: Lookup<PersistentVolume>,
    /// Volumes that the binder may choose from, if the claim names none; `None` if unknown.
    pub candidates: Option<Vec<PersistentVolume>>,
    /// VolumeAttachments of its volume; `None` if unknown.
    pub attachments: Option<Vec<VolumeAttachment>>,
    /// The CSIDriver object of its driver.
    pub driver: Lookup<CSIDriver>,
    /// The VolumeAttributesClasses that the claim names and that exist; `None` if unknown or not read.
    pub attributes_classes: Option<BTreeSet<String>>,
    /// Pods that use it; `None` if unknown.
    pub pods: Option<Vec<Pod>>,
}

/// A node and its registered drivers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    /// The node.
    pub node: Lookup<Node>,
    /// Its CSINode, which lists the registered drivers.
    pub csi_node: Lookup<CSINode>,
}

/// Everything that was read about a subject.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// The pod, if the subject is one.
    pub pod: Lookup<Pod>,
    /// The nodes that the volumes are attached to or that their pods run on, by name.
    pub nodes: BTreeMap<String, NodeFacts>,
    /// The claims: the subject, the pod's, or the snapshot's source.
    pub claims: Vec<ClaimFacts>,
    /// The snapshot.
    pub snapshot: Lookup<VolumeSnapshot>,
    /// Its content: the one that it is bound to, names, or would be given by the snapshot controller.
    pub content: Lookup<VolumeSnapshotContent>,
    /// Whether the snapshot's class exists, the one it names or a default; `None` if unknown or not needed.
    pub snapshot_class: Option<bool>,
    /// Names of claims that are to be restored from a snapshot in deletion; `None` if unknown.
    pub restoring_claims: Option<Vec<String>>,
    /// The group snapshot that owns a snapshot in deletion.
    pub group: Lookup<VolumeGroupSnapshot>,
    /// Events about all of these.
    pub events: Vec<Event>,
    /// Attempts of sidecars and of the node.
    pub attempts: Vec<Attempt>,
    /// What could not be read, and the error.
    pub missing: Vec<String>,
}

impl Facts {
    /// The last Warning event about an object with one of these reasons; an empty list matches any reason.
    pub fn last_warning<K: Kind>(&self, object: &K, reasons: &[&str]) -> Option<ReportedError> {
        let uid = &object.meta().uid;
        let about = |event: &&Event| {
            event.warning
                && event.regarding_uid == *uid
                && (reasons.is_empty() || reasons.contains(&event.reason.as_str()))
        };
        let last = self.events.iter().filter(about).max_by_key(|event| event.last_timestamp)?;
        Some(ReportedError {
            source: format!("event {}", last.reason),
            text: last.message.clone(),
            at: Some(last.last_timestamp),
        })
    }

    /// The node's last error when it unmounted a pod's volumes (`object` is the pod's UID) or a volume (its name).
    /// Kubernetes records no event for it.
    pub fn unmount_error(&self, object: &str) -> Option<ReportedError> {
        let unmounts =
            |attempt: &Attempt| ["NodeUnpublishVolume", "NodeUnstageVolume"].contains(&attempt.step.as_str());
        self.last_failure(NODE_ROLE, object, unmounts)
    }

    /// The last error of a sidecar role for an object; more precise than an event.
    pub fn attempt_error(&self, role: &str, object: &str) -> Option<ReportedError> {
        self.last_failure(role, object, |_| true)
    }

    fn last_failure(
        &self,
        role: &str,
        object: &str,
        matches: impl Fn(&Attempt) -> bool,
    ) -> Option<ReportedError> {
        let about = |attempt: &&Attempt| attempt.role == role && attempt.object == object && matches(attempt);
        let failed = self.attempts.iter().filter(about).filter(|attempt| attempt.error.is_some());
        let attempt = failed.max_by_key(|attempt| attempt.time)?;
        let text = attempt.error.clone()?;
        let source = format!("{role}, {}, {} failures", attempt.step, attempt.failures);
        Some(ReportedError { source, text, at: attempt.time })
    }
}
