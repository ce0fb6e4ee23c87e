//! Puts a driver together from what its backend can do. What it declares and what it serves both come from
//! the traits given here, and from nothing else.

use std::sync::Arc;

use wharf_csi::v1::plugin_capability::{service, volume_expansion};
use wharf_linux::Kernel;

use crate::backend::{
    Capacity, ChangedBlocks, Clones, Devices, Expansion, GroupSnapshots, Health, Listing, Mutable,
    Publishing, Shares, Snapshots, Topology, Volumes,
};
use crate::controller::ControllerService;
use crate::group::GroupService;
use crate::identity::{IdentityService, Ready};
use crate::locks::Locks;
use crate::node::NodeService;
use crate::snapshot_metadata::SnapshotMetadataService;

/// CSI's limit for a driver's name.
const MAX_NAME: usize = 63;

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The name by which the orchestrator's calls will know this node.
    pub node_id: String,
    /// How many volumes can be on this node at once; 0 for no limit known.
    pub max_volumes: i64,
}

/// A driver's name that CSI does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "driver name {0:?} is not allowed: write a domain name such as local.csi.example.com, of at most {MAX_NAME} \
     letters, digits, dots and dashes, with a letter or digit at both ends"
)]
pub struct NameError(String);

/// A driver, ready to be served; see [`Driver::serve`].
pub struct Driver {
    pub(crate) identity: IdentityService,
    pub(crate) controller: Option<ControllerService>,
    pub(crate) group: Option<GroupService>,
    pub(crate) snapshot_metadata: Option<SnapshotMetadataService>,
    pub(crate) node: Option<NodeService>,
    pub(crate) locks: Locks,
}

/// What a driver is made of. Every part is optional; each one given is a capability declared.
pub struct DriverBuilder {
    name: String,
    version: String,
    volumes: Option<Arc<dyn Volumes>>,
    listing: Option<Arc<dyn Listing>>,
    capacity: Option<Arc<dyn Capacity>>,
    publishing: Option<Arc<dyn Publishing>>,
    expansion: Option<Arc<dyn Expansion>>,
    snapshots: Option<Arc<dyn Snapshots>>,
    clones: Option<Arc<dyn Clones>>,
    group_snapshots: Option<Arc<dyn GroupSnapshots>>,
    changed_blocks: Option<Arc<dyn ChangedBlocks>>,
    health: Option<Arc<dyn Health>>,
    mutable: Option<Arc<dyn Mutable>>,
    topology: Option<Topology>,
    node: Option<NodeHalf>,
    ready: Ready,
}

enum NodeHalf {
    Block(Arc<dyn Kernel>, Arc<dyn Devices>, NodeInfo),
    Share(Arc<dyn Kernel>, Arc<dyn Shares>, NodeInfo),
}

impl Driver {
    /// Begins a driver: `name` as CSI demands it (a domain name of at most 63 characters), and the version
    /// that GetPluginInfo tells.
    #[allow(clippy::new_ret_no_self)] // reads as what it is for: a new driver, part by part
    pub fn new(name: &str, version: &str) -> Result<DriverBuilder, NameError> {
        if !is_driver_name(name) {
            return Err(NameError(name.to_owned()));
        }
        Ok(DriverBuilder {
            name: name.to_owned(),
            version: version.to_owned(),
            volumes: None,
            listing: None,
            capacity: None,
            publishing: None,
            expansion: None,
            snapshots: None,
            clones: None,
            group_snapshots: None,
            changed_blocks: None,
            health: None,
            mutable: None,
            topology: None,
            node: None,
            ready: Arc::new(|| Ok(())),
        })
    }
}

/// `csi.example.com`: letters, digits, dots and dashes, no other sign at the ends, at most 63 in all.
fn is_driver_name(name: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= MAX_NAME
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(byte))
}

/// Setters that take a part of the backend.
macro_rules! parts {
    ($($(#[$doc:meta])* $part:ident: $trait:ident;)*) => {
        $($(#[$doc])*
        pub fn $part(mut self, $part: Arc<dyn $trait>) -> Self {
            self.$part = Some($part);
            self
        })*
    };
}

impl DriverBuilder {
    parts! {
        /// Makes and deletes volumes. Without it there is no Controller service, whatever else is given.
        volumes: Volumes;
        /// Lists volumes.
        listing: Listing;
        /// Tells how much room there is.
        capacity: Capacity;
        /// Attaches volumes to nodes.
        publishing: Publishing;
        /// Grows volumes.
        expansion: Expansion;
        /// Makes snapshots and restores them.
        snapshots: Snapshots;
        /// Makes volumes from volumes.
        clones: Clones;
        /// Makes snapshots of several volumes at one moment.
        group_snapshots: GroupSnapshots;
        /// Tells which blocks of a snapshot hold data or have changed.
        changed_blocks: ChangedBlocks;
        /// Tells what is wrong with volumes and storage.
        health: Health;
        /// Changes volumes that exist.
        mutable: Mutable;
    }

    /// Volumes can be reached from some nodes only; these are this node's segments.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Volumes are block devices on this node: the node half of a block backend.
    pub fn block_node(mut self, kernel: Arc<dyn Kernel>, devices: Arc<dyn Devices>, info: NodeInfo) -> Self {
        self.node = Some(NodeHalf::Block(kernel, devices, info));
        self
    }

    /// Volumes are mounted from a source: the node half of a share backend.
    pub fn share_node(mut self, kernel: Arc<dyn Kernel>, shares: Arc<dyn Shares>, info: NodeInfo) -> Self {
        self.node = Some(NodeHalf::Share(kernel, shares, info));
        self
    }

    /// Whether the driver can do its work; asked by each Probe and `/healthz`. Always, if this is not given.
    pub fn ready(mut self, ready: Arc<dyn Fn() -> Result<(), String> + Send + Sync>) -> Self {
        self.ready = ready;
        self
    }

    /// The driver.
    pub fn build(self) -> Driver {
        let locks = Locks::default();
        let services = [
            (service::Type::ControllerService, self.volumes.is_some()),
            (service::Type::VolumeAccessibilityConstraints, self.topology.is_some()),
            (
                service::Type::SnapshotAccessibilityConstraints,
                self.topology.is_some() && self.snapshots.is_some(),
            ),
            (service::Type::GroupControllerService, self.group_snapshots.is_some()),
            (service::Type::SnapshotMetadataService, self.changed_blocks.is_some()),
        ];
        let expansion = self.expansion.as_ref().filter(|_| self.volumes.is_some());
        let identity = IdentityService {
            name: self.name,
            version: self.version,
            services: services.into_iter().filter_map(|(kind, given)| given.then_some(kind)).collect(),
            expansion: expansion.map(|expansion| match expansion.online() {
                true => volume_expansion::Type::Online,
                false => volume_expansion::Type::Offline,
            }),
            ready: self.ready,
        };
        let group = self.group_snapshots.map(|groups| GroupService { groups, locks: locks.clone() });
        let node = self.node.map(|half| {
            let (health, volumes) = (self.health.clone(), self.volumes.clone());
            let topology = self.topology;
            match half {
                NodeHalf::Block(kernel, devices, info) => {
                    NodeService::block(kernel, devices, health, volumes, info, topology, locks.clone())
                }
                NodeHalf::Share(kernel, shares, info) => {
                    NodeService::share(kernel, shares, health, volumes, info, topology, locks.clone())
                }
            }
        });
        let controller = self.volumes.map(|volumes| ControllerService {
            volumes,
            listing: self.listing,
            capacity: self.capacity,
            publishing: self.publishing,
            expansion: self.expansion,
            snapshots: self.snapshots,
            clones: self.clones,
            health: self.health,
            mutable: self.mutable,
            locks: locks.clone(),
        });
        let snapshot_metadata = self.changed_blocks.map(|blocks| SnapshotMetadataService { blocks });
        Driver { identity, controller, group, snapshot_metadata, node, locks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_names() {
        let longest = "x".repeat(MAX_NAME);
        for name in ["local.csi.wharf.dev", "a", "A1", "x-y.z", longest.as_str()] {
            assert!(Driver::new(name, "1").is_ok(), "{name}");
        }
        let too_long = "x".repeat(MAX_NAME + 1);
        for name in ["", ".", "-a", "a-", "a.", "a_b", "a/b", "ä.dev", "a b", "a\0", too_long.as_str()] {
            assert_eq!(Driver::new(name, "1").err(), Some(NameError(name.to_owned())), "{name}");
        }
    }
}
