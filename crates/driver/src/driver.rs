//! Builds a driver from the traits of its backend. Both the declared capabilities and the served methods derive from these
//! traits alone. Start at [`Driver::new`].

use std::sync::Arc;

use wharf_csi::v1::plugin_capability::{service, volume_expansion};
use wharf_linux::Kernel;

use crate::backend::{
    Capacity, ChangedBlocks, Clones, Devices, Expansion, GroupSnapshots, Health, Listing, Mutable,
    Publishing, Shares, Snapshots, TargetMounts, Topology, Volumes,
};
use crate::controller::ControllerService;
use crate::group::GroupService;
use crate::identity::{IdentityService, ReadinessCheck};
use crate::locks::Locks;
use crate::metrics::DriverGauge;
use crate::node::{NodeBackend, NodeService};
use crate::snapshot_metadata::SnapshotMetadataService;
use crate::validate::{self, Rules};

/// CSI's limit for a driver's name.
const MAX_NAME: usize = 63;

/// The response to NodeGetInfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node ID that the orchestrator passes to controller calls.
    pub node_id: String,
    /// The maximum number of volumes on this node; 0 if no limit is known.
    pub max_volumes: i64,
}

/// A driver name that CSI does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "driver name {0:?} is not allowed: write a domain name such as local.csi.example.com, of at most {MAX_NAME} \
     letters, digits, dots and dashes, with a letter or digit at both ends"
)]
pub struct DriverNameError(String);

/// A complete driver; serve it with [`Driver::serve`].
pub struct Driver {
    pub(crate) identity: IdentityService,
    pub(crate) controller: Option<ControllerService>,
    pub(crate) group: Option<GroupService>,
    pub(crate) snapshot_metadata: Option<SnapshotMetadataService>,
    pub(crate) node: Option<NodeService>,
    pub(crate) locks: Locks,
    pub(crate) gauges: Vec<DriverGauge>,
}

/// Collects the parts of a driver. Every part is optional, and each declares a capability.
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
    node: Option<(NodeBackend, NodeInfo)>,
    max_id: usize,
    ready: ReadinessCheck,
    gauges: Vec<DriverGauge>,
}

impl Driver {
    /// Starts to build a driver. `name` must be a domain name of at most 63 characters, as CSI requires. GetPluginInfo
    /// returns the name and the version.
    #[allow(clippy::new_ret_no_self)] // `Driver::new` is the natural entry point and returns the builder
    pub fn new(name: &str, version: &str) -> Result<DriverBuilder, DriverNameError> {
        if !is_driver_name(name) {
            return Err(DriverNameError(name.to_owned()));
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
            max_id: validate::MAX_STRING,
            ready: Arc::new(|| Ok(())),
            gauges: Vec::new(),
        })
    }
}

/// `csi.example.com`: letters, digits, dots and dashes, with a letter or digit at both ends, at most 63 characters.
fn is_driver_name(name: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= MAX_NAME
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(byte))
}

/// Builder methods that set one trait of the backend.
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
        /// Creates and deletes volumes. Without it the driver has no Controller service, whatever else is set.
        volumes: Volumes;
        /// Lists volumes.
        listing: Listing;
        /// Reports the available capacity.
        capacity: Capacity;
        /// Attaches volumes to nodes.
        publishing: Publishing;
        /// Grows volumes.
        expansion: Expansion;
        /// Takes and restores snapshots.
        snapshots: Snapshots;
        /// Creates volumes from other volumes.
        clones: Clones;
        /// Takes snapshots of several volumes at the same point in time.
        group_snapshots: GroupSnapshots;
        /// Reports which blocks of a snapshot hold data or have changed.
        changed_blocks: ChangedBlocks;
        /// Reports issues of volumes and storage.
        health: Health;
        /// Modifies existing volumes.
        mutable: Mutable;
    }

    /// Declares that volumes are accessible only from some nodes, and sets the topology segments of this node.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Sets the node part of a block backend: volumes are block devices on this node.
    pub fn block_node(mut self, kernel: Arc<dyn Kernel>, devices: Arc<dyn Devices>, info: NodeInfo) -> Self {
        self.node = Some((NodeBackend::block(kernel, devices), info));
        self
    }

    /// Sets the node part of a share backend: volumes are mounted from a source.
    pub fn share_node(mut self, kernel: Arc<dyn Kernel>, shares: Arc<dyn Shares>, info: NodeInfo) -> Self {
        self.node = Some((NodeBackend::share(kernel, shares), info));
        self
    }

    /// Sets the node part of a backend that mounts volumes at their targets itself, without staging.
    pub fn target_node(mut self, mounts: Arc<dyn TargetMounts>, info: NodeInfo) -> Self {
        self.node = Some((NodeBackend::Target(mounts), info));
        self
    }

    /// Adds a metric of the backend to `/metrics`: a number that `read` returns on each scrape. `name` has only letters,
    /// digits and `_`.
    pub fn gauge(mut self, name: &str, help: &str, read: Arc<dyn Fn() -> u64 + Send + Sync>) -> Self {
        self.gauges.push(DriverGauge { name: name.to_owned(), help: help.to_owned(), read });
        self
    }

    /// Accepts ids of volumes, snapshots and group snapshots of up to this many bytes. The default is 128, CSI's limit; a
    /// lower value has no effect. A driver that takes over the volumes of another one may need more: their ids cannot change.
    pub fn max_id_length(mut self, bytes: usize) -> Self {
        self.max_id = bytes.max(validate::MAX_STRING);
        self
    }

    /// Sets the readiness check, which runs on each Probe and `/healthz`. Without it the driver is always ready.
    pub fn ready(mut self, ready: Arc<dyn Fn() -> Result<(), String> + Send + Sync>) -> Self {
        self.ready = ready;
        self
    }

    /// Builds the driver.
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
        let rules = Rules {
            // A process without a node part does not know what its nodes declare: they reject what they do not support.
            mount_group: self.node.as_ref().is_none_or(|(node, _)| node.mount_group()),
            max_id: self.max_id,
        };
        let group = self.group_snapshots.map(|groups| GroupService { groups, locks: locks.clone(), rules });
        let node = self.node.map(|(backend, info)| NodeService {
            backend,
            health: self.health.clone(),
            volumes: self.volumes.clone(),
            info,
            topology: self.topology,
            locks: locks.clone(),
            rules,
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
            rules,
        });
        let snapshot_metadata = self.changed_blocks.map(|blocks| SnapshotMetadataService { blocks, rules });
        Driver { identity, controller, group, snapshot_metadata, node, locks, gauges: self.gauges }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_names_are_validated() {
        let longest = "x".repeat(MAX_NAME);
        for name in ["local.csi.wharf.dev", "a", "A1", "x-y.z", longest.as_str()] {
            assert!(Driver::new(name, "1").is_ok(), "{name}");
        }
        let too_long = "x".repeat(MAX_NAME + 1);
        for name in ["", ".", "-a", "a-", "a.", "a_b", "a/b", "ä.dev", "a b", "a\0", too_long.as_str()] {
            assert_eq!(Driver::new(name, "1").err(), Some(DriverNameError(name.to_owned())), "{name}");
        }
    }
}
