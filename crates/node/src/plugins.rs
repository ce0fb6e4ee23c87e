//! Plugin manager: CSI drivers registered on this node (kubelet's plugin manager and node info manager).
//!
//! - Every socket beneath the registry directory gets a GetInfo call, existing sockets first. The manager then calls
//!   the driver for its node info, writes that to Node and CSINode, and sends the plugin NotifyRegistrationStatus.
//! - Failures are retried with exponential backoff. (Kubelet waits for a new socket.)
//! - A re-created socket re-registers its driver without a gap in which the driver is unregistered. A socket that stays
//!   away removes the driver's entries; topology labels stay.
//! - The entries in Node and CSINode are kept up to date: when the driver restarts or its volume limit changes, and
//!   when something else removed them.
//!
//! Start reading at `view`, then `decide`: the rules for one socket. `world` holds the state of all sockets,
//! `node_info` computes the writes, `sockets` scans the registry directory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::sync::watch;
use wharf_cluster::Cluster;
use wharf_cluster::work::Gate;
use wharf_csi::{Client, Endpoint, v1};

use crate::machine::Health;
use metrics::Metrics;

mod act;
mod calls;
mod decide;
mod manager;
mod metrics;
mod node_info;
mod sockets;
mod validate;
mod view;
mod world;

/// Default timeout of a call to a driver: kubelet's two minutes.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A driver's node capabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeCapabilities {
    /// STAGE_UNSTAGE_VOLUME: volumes are staged before they are published.
    pub stage_unstage: bool,
    /// GET_VOLUME_STATS.
    pub stats: bool,
    /// EXPAND_VOLUME: volumes need NodeExpandVolume.
    pub expand: bool,
    /// VOLUME_CONDITION: volume statistics include the volume's condition.
    pub condition: bool,
    /// SINGLE_NODE_MULTI_WRITER: the driver distinguishes one writer from many on one node.
    pub single_node_multi_writer: bool,
    /// VOLUME_MOUNT_GROUP: the driver applies the fsGroup itself.
    pub volume_mount_group: bool,
}

impl NodeCapabilities {
    /// Capabilities from the driver's response; unknown ones are ignored.
    pub fn from_response(response: &v1::NodeGetCapabilitiesResponse) -> Self {
        use v1::node_service_capability::{Type, rpc};

        let mut capabilities = Self::default();
        for capability in &response.capabilities {
            let Some(Type::Rpc(rpc)) = &capability.r#type else { continue };
            match rpc.r#type() {
                rpc::Type::StageUnstageVolume => capabilities.stage_unstage = true,
                rpc::Type::GetVolumeStats => capabilities.stats = true,
                rpc::Type::ExpandVolume => capabilities.expand = true,
                rpc::Type::VolumeCondition => capabilities.condition = true,
                rpc::Type::SingleNodeMultiWriter => capabilities.single_node_multi_writer = true,
                rpc::Type::VolumeMountGroup => capabilities.volume_mount_group = true,
                rpc::Type::Unknown | rpc::Type::GetVolumeHealth | rpc::Type::GetStorageHealth => {}
            }
        }
        capabilities
    }
}

/// A registered driver. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct Plugin {
    /// The driver's name.
    pub name: String,
    /// The driver's CSI endpoint.
    pub endpoint: Endpoint,
    /// The driver's vendor version, for display; empty if it reports none.
    pub vendor_version: String,
    /// The driver's id of this node.
    pub node_id: String,
    /// Maximum number of volumes on this node; 0 is no limit.
    pub max_volumes: i64,
    /// This node's topology segments, as the driver reports them.
    pub topology: BTreeMap<String, String>,
    /// The driver's node capabilities.
    pub capabilities: NodeCapabilities,
    client: Client,
}

impl Plugin {
    /// A driver at `endpoint` without node info yet. Must be called within a tokio runtime.
    pub fn new(name: impl Into<String>, endpoint: Endpoint) -> Self {
        Self {
            name: name.into(),
            client: connect(&endpoint),
            endpoint,
            vendor_version: String::new(),
            node_id: String::new(),
            max_volumes: 0,
            topology: BTreeMap::new(),
            capabilities: NodeCapabilities::default(),
        }
    }

    /// The driver's client, with kubelet's timeout of two minutes per call.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The same driver with another connection.
    pub fn with_client(self, client: Client) -> Self {
        Self { client, ..self }
    }
}

fn connect(endpoint: &Endpoint) -> Client {
    Client::new(endpoint).with_deadline(CALL_TIMEOUT)
}

/// The registered drivers; clones share the same set.
#[derive(Clone)]
pub struct Plugins {
    registered: Arc<watch::Sender<BTreeMap<String, Plugin>>>,
    /// Number of refresh requests for each driver.
    refresh_requests: Arc<watch::Sender<BTreeMap<String, u64>>>,
    metrics: Metrics,
}

impl Default for Plugins {
    fn default() -> Self {
        Self {
            registered: Arc::new(watch::Sender::default()),
            refresh_requests: Arc::new(watch::Sender::default()),
            metrics: Metrics::default(),
        }
    }
}

impl Plugins {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The driver with this name; `None` while it is not registered, which is usually transient.
    pub fn get(&self, driver: &str) -> Option<Plugin> {
        self.registered.borrow().get(driver).cloned()
    }

    /// All registered drivers, by name.
    pub fn list(&self) -> Vec<Plugin> {
        self.registered.borrow().values().cloned().collect()
    }

    /// Notifies on every registration, update and deregistration.
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, Plugin>> {
        self.registered.subscribe()
    }

    /// Requests a fresh NodeGetInfo because the driver's volume limit may have changed (an attach failed with
    /// RESOURCE_EXHAUSTED); CSINode is updated from it.
    pub fn refresh(&self, driver: &str) {
        self.refresh_requests
            .send_modify(|refresh_requests| *refresh_requests.entry(driver.to_owned()).or_default() += 1);
    }

    /// Registers a driver, or updates it. Called by the plugin manager, and by embedders that register without sockets.
    pub fn insert(&self, plugin: Plugin) {
        self.registered.send_modify(|registered| {
            registered.insert(plugin.name.clone(), plugin);
        });
        self.metrics.registered(self.registered.borrow().len());
    }

    /// Deregisters a driver.
    pub fn remove(&self, driver: &str) {
        self.registered.send_if_modified(|registered| registered.remove(driver).is_some());
        self.metrics.registered(self.registered.borrow().len());
    }

    /// Adds the metrics of the plugin manager to a registry.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }
}

/// Settings of the plugin manager.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This node's name.
    pub node: String,
    /// Directory of the registration sockets: [`crate::paths::Root::registry`].
    pub registry: PathBuf,
    /// Retry after a failure. Kubelet does not retry and waits for a new socket.
    pub retry: bool,
    /// Delay after the first failure; it doubles with each further one. Kubelet starts with 500 ms; a socket that has
    /// just appeared may not be served yet.
    pub retry_start: Duration,
    /// Maximum delay.
    pub retry_max: Duration,
    /// A re-created socket replaces its predecessor without a gap. Kubelet deregisters the driver first.
    pub handover: bool,
    /// A socket that is gone for less than this counts as being re-created. Kubelet checks once a second.
    pub socket_grace: Duration,
    /// Restore entries that something else removed or changed. Kubelet writes them at registration only.
    pub restore_entries: bool,
    /// Refuse a driver whose GetPluginInfo name differs from the registered one. Kubelet does not check.
    pub verify_name: bool,
    /// Honour `CSIDriver.spec.nodeAllocatableUpdatePeriodSeconds`; in Kubernetes 1.34 that is the feature gate
    /// MutableCSINodeAllocatableCount, off by default.
    pub refresh_limits: bool,
    /// In-tree plugins migrated to CSI, as announced in CSINode.
    pub migrated: Vec<&'static str>,
}

impl Settings {
    /// Defaults for this node and this registry directory.
    pub fn new(node: impl Into<String>, registry: impl Into<PathBuf>) -> Self {
        Self {
            node: node.into(),
            registry: registry.into(),
            retry: true,
            retry_start: Duration::from_millis(50),
            retry_max: Duration::from_secs(122),
            handover: true,
            socket_grace: Duration::from_secs(1),
            restore_entries: true,
            verify_name: true,
            refresh_limits: true,
            migrated: node_info::MIGRATED.to_vec(),
        }
    }
}

/// Runs the plugin manager until the gate stops it; registrations remain. Node credentials do not allow watching the
/// node's own CSINode: `privileged_client` is a cluster client with more permissions for that, where there is one.
pub async fn run(
    plugins: Plugins,
    cluster: Cluster,
    privileged_client: Option<Cluster>,
    gate: Gate,
    health: Health,
    settings: Settings,
) {
    manager::run(plugins, cluster, privileged_client, gate, health, settings).await;
}
