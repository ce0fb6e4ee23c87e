//! What is known when a pod is to be placed: plain data, gathered once for each attempt.
//!
//! Volumes and claims that pods still being bound have been promised are shown as they will be, so that nothing is
//! promised twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSIDriver, CSINode, CSIStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass,
};

use super::requests::Requests;
use super::{CapacityCheck, DriverCheck};

/// What the settings say to the rules.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rules {
    pub(super) capacity: CapacityCheck,
    pub(super) drivers: DriverCheck,
}

/// One pod, and all that says where it may go.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) rules: Rules,
    pub(super) pod: Arc<Pod>,
    /// Those of the pod's claims that there are, by name.
    pub(super) claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    /// The volumes that these are bound to, by name.
    pub(super) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// The volumes that an unbound claim may get, by the claim's name.
    pub(super) candidates: BTreeMap<String, Vec<Arc<PersistentVolume>>>,
    /// The classes of the pod's claims.
    pub(super) classes: BTreeMap<String, Arc<StorageClass>>,
    /// The drivers that are described.
    pub(super) drivers: BTreeMap<String, Arc<CSIDriver>>,
    /// What room there is, of these classes.
    pub(super) capacities: Vec<Arc<CSIStorageCapacity>>,
    /// What of that room is promised.
    pub(super) in_flight: Vec<InFlight>,
    /// Those of the pod's claims that other pods on nodes use.
    pub(super) used: BTreeSet<String>,
    /// The nodes.
    pub(super) places: Vec<Place>,
}

/// A volume that a node was chosen for and that is not there yet.
#[derive(Debug, Clone, Default)]
pub(super) struct InFlight {
    pub(super) class: String,
    pub(super) size: i64,
    /// The labels of the node.
    pub(super) labels: BTreeMap<String, String>,
}

/// A node, and what is on it.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) node: Arc<Node>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) csi_node: Option<Arc<CSINode>>,
    /// How many pods it has, also those on their way to it.
    pub(super) pods: i64,
    /// What those have asked for.
    pub(super) requested: Requests,
    /// The CSI volumes that they use.
    pub(super) volumes: BTreeSet<Handle>,
    /// The CSI volumes that attachments name.
    pub(super) attached: BTreeSet<Handle>,
}

impl Place {
    pub(super) fn name(&self) -> &str {
        &self.node.metadata.name
    }
}

/// A CSI volume, as limits count it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Handle {
    pub(super) driver: String,
    pub(super) volume: Counted,
}

/// Which volume of the driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counted {
    /// The driver's own name for it.
    Volume(String),
    /// The one that is to be made for this claim.
    For(String),
}

/// The volume behind a claim; none where it is not CSI's, or where nobody can say.
pub(super) fn handle(
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    class: Option<&StorageClass>,
) -> Option<Handle> {
    if let Some(volume) = volume {
        let csi = volume.spec.csi.as_ref()?;
        return Some(Handle {
            driver: csi.driver.clone(),
            volume: Counted::Volume(csi.volume_handle.clone()),
        });
    }
    let driver = class?.provisioner.clone();
    let claim = claim.metadata.key().to_string();
    (!driver.is_empty()).then_some(Handle { driver, volume: Counted::For(claim) })
}
