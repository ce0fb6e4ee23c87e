//! What is known: objects as they were read, events about them, and what could not be read.

use std::collections::{BTreeMap, BTreeSet};

use wharf_model::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSIDriver, CSINode, Event, Key, Kind, PersistentVolume, PersistentVolumeClaim, StorageClass,
    VolumeAttachment, VolumeGroupSnapshot,
};

use crate::Attempt;
use crate::story::Said;

/// An object that was asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Known<T> {
    /// It is there.
    There(T),
    /// The server says that it is not.
    Absent,
    /// Nobody knows: it could not be read, or there was no reason to.
    #[default]
    Unknown,
}

impl<T> Known<T> {
    /// The object, if it is there.
    pub fn there(&self) -> Option<&T> {
        match self {
            Self::There(object) => Some(object),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// One claim and what hangs on it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimFacts {
    /// Where it is.
    pub key: Option<Key>,
    /// The claim.
    pub claim: Known<PersistentVolumeClaim>,
    /// Its class.
    pub class: Known<StorageClass>,
    /// Whether any class is the default.
    pub default_class: Option<bool>,
    /// Its volume.
    pub volume: Known<PersistentVolume>,
    /// Volumes that it may be given, if it asks for none by name; `None` if nobody knows.
    pub candidates: Option<Vec<PersistentVolume>>,
    /// Where its volume is attached, or is to be; `None` if nobody knows.
    pub attachments: Option<Vec<VolumeAttachment>>,
    /// Its driver, as it is described.
    pub driver: Known<CSIDriver>,
    /// Those of the attributes classes that it names that exist; `None` if nobody knows, or asked.
    pub attributes_classes: Option<BTreeSet<String>>,
    /// Pods that use it; `None` if nobody knows.
    pub pods: Option<Vec<Pod>>,
}

/// A node, as far as stories go.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    /// The node.
    pub node: Known<Node>,
    /// Its drivers.
    pub csi_node: Known<CSINode>,
}

/// All that is known about a subject.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// The pod, where one was asked about.
    pub pod: Known<Pod>,
    /// The nodes that have to do with any of it.
    pub nodes: BTreeMap<String, NodeFacts>,
    /// The claims: the one that was asked about, or the pod's.
    pub claims: Vec<ClaimFacts>,
    /// The snapshot.
    pub snapshot: Known<VolumeSnapshot>,
    /// Its content: the one that it is bound to, asks for, or would be given.
    pub content: Known<VolumeSnapshotContent>,
    /// Whether a class for snapshots is there, the one it names or a default, if it needs any.
    pub snapshot_class: Option<bool>,
    /// Names of claims that wait to be restored from the snapshot that is to go; `None` if nobody knows.
    pub restored: Option<Vec<String>>,
    /// The group that the snapshot is a member of, if it is to go.
    pub group: Known<VolumeGroupSnapshot>,
    /// Events about all of these.
    pub events: Vec<Event>,
    /// What sidecars and the node tried.
    pub attempts: Vec<Attempt>,
    /// What could not be read, and why.
    pub missing: Vec<String>,
}

impl Facts {
    /// The last warning about an object with one of these reasons; with none, with any.
    pub fn warning<K: Kind>(&self, object: &K, reasons: &[&str]) -> Option<Said> {
        let uid = &object.meta().uid;
        let about = |told: &&Event| {
            told.warning
                && told.regarding_uid == *uid
                && (reasons.is_empty() || reasons.contains(&told.reason.as_str()))
        };
        let last = self.events.iter().filter(about).max_by_key(|told| told.last)?;
        Some(Said { by: format!("event {}", last.reason), text: last.message.clone(), at: Some(last.last) })
    }

    /// What a node said of a pod, by its identity, or of a volume when it failed last to unmount it. No event tells.
    pub fn unmounting(&self, object: &str) -> Option<Said> {
        let goes =
            |attempt: &Attempt| ["NodeUnpublishVolume", "NodeUnstageVolume"].contains(&attempt.step.as_str());
        self.last("node", object, goes)
    }

    /// What a sidecar's role said of an object when it failed last; more exact than an event.
    pub fn attempt(&self, role: &str, object: &str) -> Option<Said> {
        self.last(role, object, |_| true)
    }

    fn last(&self, role: &str, object: &str, and: impl Fn(&Attempt) -> bool) -> Option<Said> {
        let about = |attempt: &&Attempt| attempt.role == role && attempt.object == object && and(attempt);
        let failed = self.attempts.iter().filter(about).filter(|attempt| attempt.error.is_some());
        let attempt = failed.max_by_key(|attempt| attempt.time)?;
        let text = attempt.error.clone()?;
        let by = format!("{role}, {}, {} failures", attempt.step, attempt.failures);
        Some(Said { by, text, at: attempt.time })
    }
}
