//! What the provisioner sees of one volume: plain data, gathered from the stores, the journal and its own memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_csi::ErrorClass;
use wharf_model::topology::{self, Segments, TopologyError};
use wharf_model::{
    CSINode, Node, PersistentVolume, PersistentVolumeClaim, StorageClass, Time, VolumeAttributesClass,
    VolumeSnapshot, VolumeSnapshotContent,
};

use super::Settings;
use super::intent::Intent;
use super::reclaim::ReclaimMemory;
use crate::context::OwnNode;
use crate::driver::Capabilities;

/// For whom volumes are made, and how: the same for all of them.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    /// The driver's name.
    pub(crate) driver: String,
    /// What it can do.
    pub(crate) can: Capabilities,
    /// What we were told.
    pub(crate) settings: Settings,
    /// The node whose volumes alone are ours.
    pub(crate) node: Option<OwnNode>,
    /// Goes into the attributes of every volume made.
    pub(crate) identity: String,
}

/// One volume, by its name, and all that its next step depends on.
pub(crate) struct View<'a> {
    /// The volume's name.
    pub(crate) volume: &'a str,
    /// For whom.
    pub(crate) own: &'a Own,
    /// The PersistentVolume of this name.
    pub(crate) present: Option<&'a PersistentVolume>,
    /// The claim that this volume is for: the intent's, or else the one whose volume would have this name.
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    /// The claim's class, as it is now.
    pub(crate) class: Option<&'a StorageClass>,
    /// What was written down before the driver was asked.
    pub(crate) intent: Option<&'a Arc<Intent>>,
    /// A PersistentVolume, of whatever name, that stands for what the driver has made.
    pub(crate) holder: Option<&'a str>,
    /// What this process remembers.
    pub(crate) memory: &'a Memory,
    /// The claim that is to be cloned, if the claim names one.
    pub(crate) source_claim: Option<&'a PersistentVolumeClaim>,
    /// The volume that the claim to clone is bound to.
    pub(crate) source_volume: Option<&'a PersistentVolume>,
    /// The cluster's nodes.
    pub(crate) nodes: &'a dyn Nodes,
    /// The class that `present` names.
    pub(crate) present_class: Option<&'a StorageClass>,
    /// The attachments of `present`; none where the driver attaches nothing.
    pub(crate) attached: &'a [String],
    /// The driver's PersistentVolumes with the same handle as `present`.
    pub(crate) siblings: &'a [Arc<PersistentVolume>],
}

/// So often in a row a driver has to be without room to be believed where a volume may be there already: some minutes, by
/// the pauses between.
pub(crate) const NO_ROOM: u32 = 10;

/// What this process remembers of a volume while it works on it. Nothing in it is needed for safety: a process
/// that starts without it asks the driver again.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Memory {
    /// The driver's last answer that ended something.
    pub(crate) answer: Option<Answer>,
    /// The server will not take the PersistentVolume, in its own words: what was made is of no use.
    pub(crate) unsaved: Option<String>,
    /// The intent was written by this process, and the driver was not asked yet: nothing can have been made.
    pub(crate) uncalled: bool,
    /// Every call for the intent was ours, and is known to have made nothing. Where the intent was found, somebody before
    /// us may have made a call that had its effect; the failure of ours says nothing of theirs.
    pub(crate) settled: bool,
    /// How often in a row the driver had no room, while it is not settled. It may be the volume that was made that takes
    /// the room, or a driver that has too much to do: only the same answer over and over says that there is none.
    pub(crate) without_room: u32,
    /// What was read from the server for this attempt.
    pub(crate) looked: Option<Arc<Looked>>,
    /// The source of the content is protected.
    pub(crate) protected: bool,
    /// Since when the claim waits for one of the nodes that compete for it.
    pub(crate) waiting_since: Option<Time>,
    /// How far deleting the volume has come.
    pub(crate) reclaim: ReclaimMemory,
}

/// An answer of the driver that ended something.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// The volume is there.
    Made(Arc<Made>),
    /// It was not made.
    Refused,
    /// It was not made: there is no room where it should be.
    Exhausted,
    /// It was not made, and will not be as long as the class is what it was.
    Infeasible { class_uid: String, since: Time },
    /// It was made, was not as asked for, and is deleted again.
    Undone,
}

/// What the driver says of a volume it made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) handle: String,
    /// Zero: unknown.
    pub(crate) capacity_bytes: i64,
    pub(crate) context: BTreeMap<String, String>,
    /// From where it can be reached.
    pub(crate) places: Vec<Segments>,
    /// Whether the driver says that the content was copied from somewhere.
    pub(crate) has_source: bool,
}

/// What is read from the server when it is needed, since no store holds it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Looked {
    /// The mutable class, if the claim names one.
    pub(crate) attributes: Attributes,
    /// The snapshot that the claim names, if it names one and it is there.
    pub(crate) snapshot: Option<VolumeSnapshot>,
    /// The content that the snapshot is bound to.
    pub(crate) content: Option<VolumeSnapshotContent>,
}

/// A claim's mutable class.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Attributes {
    /// None is named, or the API server does not know the kind.
    #[default]
    None,
    /// There is none of this name.
    Missing,
    /// Here it is.
    Found(Arc<VolumeAttributesClass>),
}

/// What came of a step, as far as memory is concerned.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Happened {
    /// The server was asked.
    Looked(Arc<Looked>),
    /// The source of the content is protected.
    Protected,
    /// The attempt ended before anything was written down.
    Stopped,
    /// The intent is written.
    Wrote,
    /// The driver is about to be asked.
    Calling,
    /// The driver has made the volume.
    Made(Arc<Made>),
    /// The server will never take the PersistentVolume, and why.
    Unsaved(String),
    /// The driver has refused, or could not be asked and never was.
    /// `vague`: the answer is about how the call went, not about what was asked.
    Failed { class: ErrorClass, exhausted: bool, vague: bool, class_uid: String },
    /// What the driver made is deleted again.
    Undone,
    /// The intent is forgotten: there is no volume.
    GaveUp,
    /// The claim waits for a node to take it.
    Competing,
    /// The scheduler was asked to choose another node.
    Unselected,
    /// The driver has deleted the volume of the PersistentVolume with this identity.
    Deleted { uid: String },
}

impl Memory {
    /// What is remembered after this.
    pub(crate) fn after(&mut self, happened: Happened, now: Time) {
        match happened {
            Happened::Looked(looked) => self.looked = Some(looked),
            Happened::Protected => self.protected = true,
            // What is named next time may be another source of the same name.
            Happened::Stopped => (self.looked, self.protected) = (None, false),
            Happened::Wrote => {
                let waiting_since = self.waiting_since;
                *self = Self { uncalled: true, settled: true, waiting_since, ..Self::default() };
            }
            Happened::Calling => self.uncalled = false,
            Happened::Made(made) => (self.answer, self.unsaved) = (Some(Answer::Made(made)), None),
            Happened::Unsaved(why) => self.unsaved = Some(why),
            Happened::Failed { class, exhausted, vague, class_uid } => {
                self.settled &= class != ErrorClass::StillRunning;
                let doubtful = exhausted && !self.settled;
                self.without_room = if doubtful { self.without_room.saturating_add(1) } else { 0 };
                let vague = vague || (doubtful && self.without_room < NO_ROOM);
                self.answer = match class {
                    ErrorClass::StillRunning => None,
                    ErrorClass::Final if vague && !self.settled => None,
                    ErrorClass::Final if exhausted => Some(Answer::Exhausted),
                    ErrorClass::Final => Some(Answer::Refused),
                    ErrorClass::Infeasible => Some(Answer::Infeasible { class_uid, since: now }),
                }
            }
            Happened::Undone => self.answer = Some(Answer::Undone),
            Happened::GaveUp => {
                let told = |answer: &Answer| matches!(answer, Answer::Exhausted | Answer::Infeasible { .. });
                let answer = self.answer.take().filter(told);
                *self = Self { answer, waiting_since: self.waiting_since, ..Self::default() };
            }
            Happened::Competing => self.waiting_since = self.waiting_since.or(Some(now)),
            Happened::Unselected => *self = Self::default(),
            Happened::Deleted { uid } => self.reclaim.deleted = Some(uid),
        }
    }

    /// What the driver made, if it is known and not undone.
    pub(crate) fn made(&self) -> Option<&Arc<Made>> {
        match &self.answer {
            Some(Answer::Made(made)) => Some(made),
            _ => None,
        }
    }
}

/// The claim that a volume is for, of those whose volume would have its name. Names that were cut short may be
/// several claims': the volume that is there decides, else the older claim.
pub(crate) fn claimant(
    claims: Vec<Arc<PersistentVolumeClaim>>,
    present: Option<&PersistentVolume>,
) -> Option<Arc<PersistentVolumeClaim>> {
    let others = |claim: &Arc<PersistentVolumeClaim>| {
        !present.is_some_and(|present| present.is_bound_to(&claim.metadata))
    };
    let oldest = |claim: &Arc<PersistentVolumeClaim>| {
        (others(claim), claim.metadata.creation_timestamp, claim.metadata.uid.clone())
    };
    claims.into_iter().min_by_key(oldest)
}

/// The nodes, as far as places are concerned.
pub(crate) trait Nodes {
    /// The drivers of a node.
    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>>;
    /// The node.
    fn node(&self, name: &str) -> Option<Arc<Node>>;
    /// The topology keys of a driver, on any node where it has some; empty where it has none.
    fn keys(&self, driver: &str) -> Vec<String>;
    /// All places by these keys.
    fn places(&self, keys: &[String]) -> Result<Vec<Segments>, TopologyError>;
}

/// Nodes that are written down: those of a test, or the one node of a node's own sidecar, which watches none.
#[derive(Debug, Clone, Default)]
pub(crate) struct WrittenNodes {
    pub(crate) csi_nodes: Vec<Arc<CSINode>>,
    pub(crate) nodes: Vec<Arc<Node>>,
}

impl WrittenNodes {
    /// A node that is where the driver says.
    pub(crate) fn one(driver: &str, node: &OwnNode) -> Self {
        let mut csi_node = CSINode::default();
        csi_node.metadata.name.clone_from(&node.name);
        csi_node.spec.drivers.push(wharf_model::csinode::CSINodeDriver {
            name: driver.to_owned(),
            topology_keys: node.place.keys().cloned().collect(),
            ..Default::default()
        });
        let mut labelled = Node::default();
        labelled.metadata.name.clone_from(&node.name);
        labelled.metadata.labels = node.place.iter().collect();
        Self { csi_nodes: vec![Arc::new(csi_node)], nodes: vec![Arc::new(labelled)] }
    }
}

impl Nodes for WrittenNodes {
    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.iter().find(|node| node.metadata.name == name).cloned()
    }

    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.iter().find(|node| node.metadata.name == name).cloned()
    }

    fn keys(&self, driver: &str) -> Vec<String> {
        let keys = self.csi_nodes.iter().map(|node| topology::keys(node, driver));
        keys.into_iter().find(|keys| !keys.is_empty()).map(<[_]>::to_vec).unwrap_or_default()
    }

    fn places(&self, keys: &[String]) -> Result<Vec<Segments>, TopologyError> {
        topology::places(keys, self.nodes.iter().map(|node| &**node))
    }
}
