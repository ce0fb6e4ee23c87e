//! The inputs for deciding about one volume: plain data from the stores, the journal and the in-process state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_csi::ErrorClass;
use wharf_model::topology::{self, Segments, TopologyError};
use wharf_model::{
    CSINode, Monotonic, Node, PersistentVolume, PersistentVolumeClaim, StorageClass, Time,
    VolumeAttributesClass, VolumeSnapshot, VolumeSnapshotContent,
};

use super::Settings;
use super::intent::Intent;
use super::reclaim::ReclaimState;
use crate::context::LocalNode;
use crate::doubt::Doubt;
use crate::driver::Capabilities;

/// The driver and the settings that volumes are provisioned with.
#[derive(Debug, Clone)]
pub(crate) struct ProvisionerConfig {
    /// The driver's name.
    pub(crate) driver: String,
    /// Its capabilities.
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    /// With node deployment, the node whose volumes this process manages.
    pub(crate) node: Option<LocalNode>,
    /// Written to the attributes of each provisioned volume.
    pub(crate) identity: String,
}

/// One volume, by name, and everything that its next step depends on.
pub(crate) struct ProvisionView<'a> {
    /// The volume's name.
    pub(crate) volume: &'a str,
    pub(crate) config: &'a ProvisionerConfig,
    /// The PersistentVolume of this name.
    pub(crate) pv: Option<&'a PersistentVolume>,
    /// The claim that this volume is for: the intent's, or the one whose volume would have this name.
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    /// The claim's class, as it is now.
    pub(crate) class: Option<&'a StorageClass>,
    /// The journal's open intent for this volume.
    pub(crate) intent: Option<&'a Arc<Intent>>,
    /// A PersistentVolume of any name that has the handle of the created volume.
    pub(crate) handle_owner: Option<&'a str>,
    pub(crate) state: &'a ProvisionState,
    /// The claim to clone, if the claim names one.
    pub(crate) source_claim: Option<&'a PersistentVolumeClaim>,
    /// The volume that the claim to clone is bound to.
    pub(crate) source_volume: Option<&'a PersistentVolume>,
    /// The cluster's nodes.
    pub(crate) nodes: &'a dyn Nodes,
    /// The class of `pv`.
    pub(crate) pv_class: Option<&'a StorageClass>,
    /// The VolumeAttachments of `pv`. Empty if the driver does not attach volumes.
    pub(crate) attached: &'a [String],
    /// The driver's PersistentVolumes with the same handle as `pv`.
    pub(crate) siblings: &'a [Arc<PersistentVolume>],
}

/// If a volume may exist already, the driver has to report exhausted capacity this often in a row before it counts as
/// final: the pod of the claim waits for another node.
pub(crate) const EXHAUSTED_LIMIT: u32 = 6;
/// The least time between the first and the last of these reports: changes of objects end the backoff between calls.
pub(crate) const EXHAUSTED_PERIOD: Duration = Duration::from_secs(30);

/// In-process state of a volume that is being provisioned or deleted. It can be lost at any time: a process that
/// starts without it calls the driver again.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ProvisionState {
    /// The driver's last final response.
    pub(crate) outcome: Option<CreateOutcome>,
    /// The API server's error for a PersistentVolume that it rejects for good: the created volume is useless.
    pub(crate) save_error: Option<String>,
    /// This process wrote the intent and has not sent CreateVolume yet: nothing can have been created.
    pub(crate) create_unsent: bool,
    /// This process sent every call for the intent, and none can have created a volume. For an intent that was found
    /// in the journal it is `false`: an earlier process may have created the volume, and our failure does not
    /// disprove that.
    pub(crate) calls_settled: bool,
    /// The reports of exhausted capacity in a row while `calls_settled` is `false`. The created volume itself may use
    /// up the capacity, or the driver may be overloaded: only repeated responses are conclusive.
    pub(crate) exhausted: Option<ExhaustedRun>,
    /// The calls since no claim waits for their result, while `calls_settled` is `false`.
    pub(crate) doubt: Option<Doubt>,
    /// The objects that were read from the server for this attempt.
    pub(crate) fetched: Option<Arc<Fetched>>,
    /// The data source is protected from deletion.
    pub(crate) source_protected: bool,
    /// Since when the nodes wait to compete for the claim.
    pub(crate) competing_since: Option<Monotonic>,
    /// The progress of deletion.
    pub(crate) reclaim: ReclaimState,
}

/// When a step is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    /// For what intents record.
    pub(crate) wall: Time,
    /// For everything that waits.
    pub(crate) monotonic: Monotonic,
}

/// Reports of exhausted capacity in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExhaustedRun {
    calls: u32,
    since: Monotonic,
}

/// A report of exhausted capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted {
    pub(crate) at: Monotonic,
    /// Whether something else is to be done after enough reports: the claim can be rescheduled, or no claim waits.
    /// Otherwise the claim would repeat the same call.
    pub(crate) can_move: bool,
}

impl ExhaustedRun {
    fn after(before: Option<Self>, report: Exhausted) -> Self {
        let Self { calls, since } = before.unwrap_or(Self { calls: 0, since: report.at });
        Self { calls: calls.saturating_add(1), since }
    }

    fn is_conclusive(self, report: Exhausted) -> bool {
        report.can_move && self.calls >= EXHAUSTED_LIMIT && report.at.since(self.since) >= EXHAUSTED_PERIOD
    }
}

/// The final outcome of CreateVolume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CreateOutcome {
    /// The volume exists.
    Created(Arc<CreatedVolume>),
    /// The volume was not created.
    Refused,
    /// The volume was not created: the requested topology has no capacity.
    Exhausted,
    /// The volume was not created, and cannot be with this class.
    Infeasible { class_uid: String, since: Monotonic },
    /// The volume was created, was invalid, and is deleted.
    CleanedUp,
    /// Whether the volume was created is not known and will not be: no claim waits for it, and the driver has answered
    /// inconclusively for long enough.
    Unknown,
}

/// The driver's description of a volume that it created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CreatedVolume {
    pub(crate) handle: String,
    /// Zero: unknown.
    pub(crate) capacity_bytes: i64,
    pub(crate) context: BTreeMap<String, String>,
    /// The topologies that can access the volume.
    pub(crate) accessible_topology: Vec<Segments>,
    /// Whether the response has a content source.
    pub(crate) has_source: bool,
}

/// Objects that are read from the server on demand, since no store holds them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Fetched {
    /// The claim's VolumeAttributesClass.
    pub(crate) attributes: AttributesClass,
    /// The VolumeSnapshot that the claim names, if it exists.
    pub(crate) snapshot: Option<VolumeSnapshot>,
    /// The VolumeSnapshotContent that the snapshot is bound to.
    pub(crate) content: Option<VolumeSnapshotContent>,
}

/// A claim's VolumeAttributesClass.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum AttributesClass {
    /// The claim names none, or the API server does not serve the kind.
    #[default]
    None,
    /// The class does not exist.
    Missing,
    /// The class exists.
    Found(Arc<VolumeAttributesClass>),
}

/// The result of a step that changes the state.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transition {
    /// The sources were read from the server.
    Fetched(Arc<Fetched>),
    /// The data source is protected from deletion.
    SourceProtected,
    /// The attempt ended before the intent was written.
    AttemptEnded,
    /// The intent is written.
    IntentWritten,
    /// CreateVolume is about to be sent.
    CreateSent,
    /// The driver created the volume.
    Created(Arc<CreatedVolume>),
    /// The API server rejects the PersistentVolume for good, with this error.
    SaveRejected(String),
    /// CreateVolume failed, or was never sent and cannot be.
    /// `inconclusive`: the error is about the call, not about the request. `unwanted_at`: the time, if no claim waits
    /// for the result of the call.
    CreateFailed {
        class: ErrorClass,
        exhausted: Option<Exhausted>,
        inconclusive: bool,
        class_uid: String,
        unwanted_at: Option<Monotonic>,
    },
    /// The created volume is deleted again.
    CleanedUp,
    /// The intent is removed: no volume exists.
    IntentDropped,
    /// The nodes wait to compete for the claim.
    CompetitionStarted,
    /// The selected node was removed from the claim.
    NodeUnselected,
    /// The driver deleted the volume of the PersistentVolume with this UID.
    VolumeDeleted { uid: String },
}

impl ProvisionState {
    /// Updates the state.
    pub(crate) fn apply(&mut self, happened: Transition, now: Monotonic) {
        match happened {
            Transition::Fetched(fetched) => self.fetched = Some(fetched),
            Transition::SourceProtected => self.source_protected = true,
            // The next attempt may find another source of the same name.
            Transition::AttemptEnded => (self.fetched, self.source_protected) = (None, false),
            Transition::IntentWritten => {
                let competing_since = self.competing_since;
                *self = Self { create_unsent: true, calls_settled: true, competing_since, ..Self::default() };
            }
            Transition::CreateSent => self.create_unsent = false,
            Transition::Created(created) => {
                (self.outcome, self.save_error) = (Some(CreateOutcome::Created(created)), None)
            }
            Transition::SaveRejected(message) => self.save_error = Some(message),
            Transition::CreateFailed { class, exhausted, inconclusive, class_uid, unwanted_at } => {
                self.calls_settled &= class != ErrorClass::StillRunning;
                let doubtful = exhausted.filter(|_| !self.calls_settled);
                self.exhausted = doubtful.map(|report| ExhaustedRun::after(self.exhausted, report));
                let settles = |report| self.exhausted.is_some_and(|run| run.is_conclusive(report));
                let inconclusive = inconclusive || doubtful.is_some_and(|report| !settles(report));
                let unsettled_at = unwanted_at.filter(|_| !self.calls_settled);
                let running = class == ErrorClass::StillRunning;
                self.doubt = unsettled_at.map(|at| Doubt::after(self.doubt, running, at));
                let is_over = |at| self.doubt.is_some_and(|doubt| doubt.is_over(at));
                let unknown = unsettled_at.filter(|at| is_over(*at)).map(|_| CreateOutcome::Unknown);
                self.outcome = match class {
                    ErrorClass::StillRunning => unknown,
                    ErrorClass::Final if inconclusive && !self.calls_settled => unknown,
                    ErrorClass::Final if exhausted.is_some() => Some(CreateOutcome::Exhausted),
                    ErrorClass::Final => Some(CreateOutcome::Refused),
                    ErrorClass::Infeasible => Some(CreateOutcome::Infeasible { class_uid, since: now }),
                }
            }
            Transition::CleanedUp => self.outcome = Some(CreateOutcome::CleanedUp),
            Transition::IntentDropped => {
                let kept = |outcome: &CreateOutcome| {
                    matches!(outcome, CreateOutcome::Exhausted | CreateOutcome::Infeasible { .. })
                };
                let outcome = self.outcome.take().filter(kept);
                *self = Self { outcome, competing_since: self.competing_since, ..Self::default() };
            }
            Transition::CompetitionStarted => self.competing_since = self.competing_since.or(Some(now)),
            Transition::NodeUnselected => *self = Self::default(),
            Transition::VolumeDeleted { uid } => self.reclaim.deleted = Some(uid),
        }
    }

    /// Whether the intent ends although a volume may exist. An error that is about the request is believed, see
    /// [`is_request_error`](wharf_csi::is_request_error).
    pub(crate) fn may_leave_volume(&self) -> bool {
        match self.outcome {
            Some(CreateOutcome::Unknown) => true,
            Some(CreateOutcome::Exhausted) => !self.calls_settled,
            _ => false,
        }
    }

    /// The created volume, if it is known and not deleted again.
    pub(crate) fn created(&self) -> Option<&Arc<CreatedVolume>> {
        match &self.outcome {
            Some(CreateOutcome::Created(created)) => Some(created),
            _ => None,
        }
    }
}

/// The claim that a volume is for, among the claims whose volume would have this name. A shortened name may match
/// several claims: the one that an existing PersistentVolume is bound to wins, else the oldest.
pub(crate) fn claimant(
    claims: Vec<Arc<PersistentVolumeClaim>>,
    pv: Option<&PersistentVolume>,
) -> Option<Arc<PersistentVolumeClaim>> {
    let is_unbound =
        |claim: &Arc<PersistentVolumeClaim>| !pv.is_some_and(|pv| pv.is_bound_to(&claim.metadata));
    let oldest = |claim: &Arc<PersistentVolumeClaim>| {
        (is_unbound(claim), claim.metadata.creation_timestamp, claim.metadata.uid.clone())
    };
    claims.into_iter().min_by_key(oldest)
}

/// The nodes' topology.
pub(crate) trait Nodes {
    /// A node's CSINode.
    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>>;
    /// The Node object.
    fn node(&self, name: &str) -> Option<Arc<Node>>;
    /// The topology keys of a driver, from any node where it has some. Empty if it has none.
    fn keys(&self, driver: &str) -> Vec<String>;
    /// The distinct topology segments of all nodes for these keys.
    fn topologies(&self, keys: &[String]) -> Result<Vec<Segments>, TopologyError>;
}

/// A fixed set of nodes: those of a test, or the one node of a sidecar with node deployment, which watches no nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct FixedNodes {
    pub(crate) csi_nodes: Vec<Arc<CSINode>>,
    pub(crate) nodes: Vec<Arc<Node>>,
}

impl FixedNodes {
    /// The local node, with the topology that the driver reported.
    pub(crate) fn one(driver: &str, node: &LocalNode) -> Self {
        let mut csi_node = CSINode::default();
        csi_node.metadata.name.clone_from(&node.name);
        csi_node.spec.drivers.push(wharf_model::csinode::CSINodeDriver {
            name: driver.to_owned(),
            topology_keys: node.topology.keys().cloned().collect(),
            ..Default::default()
        });
        let mut labelled = Node::default();
        labelled.metadata.name.clone_from(&node.name);
        labelled.metadata.labels = node.topology.iter().collect();
        Self { csi_nodes: vec![Arc::new(csi_node)], nodes: vec![Arc::new(labelled)] }
    }
}

impl Nodes for FixedNodes {
    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.iter().find(|node| node.metadata.name == name).cloned()
    }

    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.iter().find(|node| node.metadata.name == name).cloned()
    }

    fn keys(&self, driver: &str) -> Vec<String> {
        let keys = self.csi_nodes.iter().map(|node| topology::topology_keys(node, driver));
        keys.into_iter().find(|keys| !keys.is_empty()).map(<[_]>::to_vec).unwrap_or_default()
    }

    fn topologies(&self, keys: &[String]) -> Result<Vec<Segments>, TopologyError> {
        topology::cluster_segments(keys, self.nodes.iter().map(|node| &**node))
    }
}
