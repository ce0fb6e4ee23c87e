//! The inputs for scheduling a pod: plain data, gathered once for each attempt.
//!
//! Volumes and claims that are assumed for pods in binding are shown as they will be, so that nothing is assigned
//! twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_model::{
    CSIDriver, CSINode, CSIStorageCapacity, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
};

use super::requests::Requests;
use super::{CapacityCheck, DriverCheck};

/// The settings that the rules use.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rules {
    pub(super) capacity: CapacityCheck,
    pub(super) drivers: DriverCheck,
}

/// The inputs for one pod.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) rules: Rules,
    pub(super) pod: Arc<Pod>,
    /// The pod's claims that exist, by name.
    pub(super) claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    /// The volumes that these claims name, by name.
    pub(super) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// The volumes that an unbound claim may be bound to, by the claim's name.
    pub(super) candidates: BTreeMap<String, Vec<Arc<PersistentVolume>>>,
    /// The classes of the pod's claims.
    pub(super) classes: BTreeMap<String, Arc<StorageClass>>,
    /// The CSIDriver objects of these classes' provisioners.
    pub(super) drivers: BTreeMap<String, Arc<CSIDriver>>,
    /// The capacities of these classes.
    pub(super) capacities: Vec<Arc<CSIStorageCapacity>>,
    /// Volumes that are being provisioned from these capacities.
    pub(super) in_flight: Vec<InFlight>,
    /// The pod's ReadWriteOncePod claims that other pods use.
    pub(super) claims_in_use: BTreeSet<String>,
    pub(super) nodes: Vec<NodeInfo>,
}

/// A volume that has a selected node and is not provisioned yet.
#[derive(Debug, Clone, Default)]
pub(super) struct InFlight {
    pub(super) class: String,
    pub(super) size: i64,
    /// The labels of the selected node.
    pub(super) labels: BTreeMap<String, String>,
}

/// A node and what is on it.
#[derive(Debug, Default)]
pub(super) struct NodeInfo {
    pub(super) node: Arc<Node>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) csi_node: Option<Arc<CSINode>>,
    /// Number of pods, including assumed ones.
    pub(super) pods: i64,
    /// Their requests.
    pub(super) requested: Requests,
    /// The CSI volumes that they use.
    pub(super) volumes: BTreeSet<CountedVolume>,
    /// The CSI volumes with a VolumeAttachment to the node.
    pub(super) attached: BTreeSet<CountedVolume>,
}

impl NodeInfo {
    pub(super) fn name(&self) -> &str {
        &self.node.metadata.name
    }
}

/// A CSI volume, as limits count it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CountedVolume {
    pub(super) driver: String,
    pub(super) volume: CountedId,
}

/// The identity of a volume within its driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CountedId {
    /// The volume handle.
    Handle(String),
    /// The volume to be provisioned for this claim.
    ForClaim(String),
}

/// The CSI volume of a claim; `None` if it is not a CSI volume, or unknown.
pub(super) fn counted_volume(
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    class: Option<&StorageClass>,
) -> Option<CountedVolume> {
    if let Some(volume) = volume {
        let csi = volume.spec.csi.as_ref()?;
        return Some(CountedVolume {
            driver: csi.driver.clone(),
            volume: CountedId::Handle(csi.volume_handle.clone()),
        });
    }
    let driver = class?.provisioner.clone();
    let claim = claim.metadata.key().to_string();
    (!driver.is_empty()).then_some(CountedVolume { driver, volume: CountedId::ForClaim(claim) })
}
