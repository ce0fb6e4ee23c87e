//! Drivers that have registered on this node: what kubelet's plugin manager and its node info manager do.
//!
//! - Every socket beneath the registry directory is asked who it is, those that are there first. Its driver is asked
//!   what it says of this node, Node and CSINode get to know it, then the plugin is told yes or no.
//! - What fails is tried again by ourselves, with growing pauses. (Kubelet waits for a new socket.)
//! - A socket that is made anew registers its driver anew, without a moment in which the driver is not there. One
//!   that stays away takes the driver's entries with it; topology labels stay.
//! - What Node and CSINode say of a driver is kept right: when the driver restarts or its limit changes, and when
//!   somebody else took it away.
//!
//! Start reading at `view`, then `decide`: the rules of one socket. `world` knows all of them, `node_info` what is
//! written, `sockets` what is there.

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

/// How long a call to a driver may take where its caller does not choose: kubelet's two minutes.
const CALL: Duration = Duration::from_secs(120);

/// What a driver can do on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeCapabilities {
    /// Volumes are staged before they are published.
    pub stage_unstage: bool,
    /// It tells how full volumes are.
    pub stats: bool,
    /// It has a part in expanding volumes.
    pub expand: bool,
    /// It tells how volumes are, with their statistics.
    pub condition: bool,
    /// It knows access modes of one writer and of many on one node.
    pub single_node_multi_writer: bool,
    /// It gives files a group by itself.
    pub volume_mount_group: bool,
}

impl NodeCapabilities {
    /// What the driver's answer says; what we do not know is left out.
    pub fn of(answer: &v1::NodeGetCapabilitiesResponse) -> Self {
        use v1::node_service_capability::{Type, rpc};

        let mut can = Self::default();
        for capability in &answer.capabilities {
            let Some(Type::Rpc(rpc)) = &capability.r#type else { continue };
            match rpc.r#type() {
                rpc::Type::StageUnstageVolume => can.stage_unstage = true,
                rpc::Type::GetVolumeStats => can.stats = true,
                rpc::Type::ExpandVolume => can.expand = true,
                rpc::Type::VolumeCondition => can.condition = true,
                rpc::Type::SingleNodeMultiWriter => can.single_node_multi_writer = true,
                rpc::Type::VolumeMountGroup => can.volume_mount_group = true,
                rpc::Type::Unknown | rpc::Type::GetVolumeHealth | rpc::Type::GetStorageHealth => {}
            }
        }
        can
    }
}

/// A driver that is registered. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct Plugin {
    /// The driver's name.
    pub name: String,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Its own version, for people; empty if it does not say.
    pub vendor_version: String,
    /// What it calls this node.
    pub node_id: String,
    /// How many volumes it can have here; 0 is no limit.
    pub max_volumes: i64,
    /// Where this node is, in its words.
    pub topology: BTreeMap<String, String>,
    /// What it can do here.
    pub capabilities: NodeCapabilities,
    client: Client,
}

impl Plugin {
    /// A driver at `endpoint` that has said nothing of itself yet. Must be called within a tokio runtime.
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

    /// The way to it, with kubelet's two minutes for each call.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The same driver over another connection.
    pub fn with_client(self, client: Client) -> Self {
        Self { client, ..self }
    }
}

fn connect(endpoint: &Endpoint) -> Client {
    Client::new(endpoint).with_deadline(CALL)
}

/// Drivers that are registered now; clones are the same.
#[derive(Clone)]
pub struct Plugins {
    registered: Arc<watch::Sender<BTreeMap<String, Plugin>>>,
    /// How often each driver's limit was asked for.
    wanted: Arc<watch::Sender<BTreeMap<String, u64>>>,
    metrics: Metrics,
}

impl Default for Plugins {
    fn default() -> Self {
        Self {
            registered: Arc::new(watch::Sender::default()),
            wanted: Arc::new(watch::Sender::default()),
            metrics: Metrics::default(),
        }
    }
}

impl Plugins {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// This driver; `None` while it is not registered, which is a passing state.
    pub fn get(&self, driver: &str) -> Option<Plugin> {
        self.registered.borrow().get(driver).cloned()
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<Plugin> {
        self.registered.borrow().values().cloned().collect()
    }

    /// Wakes on any registration, change and end of one.
    pub fn changed(&self) -> watch::Receiver<BTreeMap<String, Plugin>> {
        self.registered.subscribe()
    }

    /// The driver's limit may be another: an attach failed with RESOURCE_EXHAUSTED. It is asked again, and CSINode
    /// corrected.
    pub fn refresh(&self, driver: &str) {
        self.wanted.send_modify(|wanted| *wanted.entry(driver.to_owned()).or_default() += 1);
    }

    /// Registers a driver, or changes what is known of it. The plugin manager does this; so may who has no sockets.
    pub fn put(&self, plugin: Plugin) {
        self.registered.send_modify(|registered| {
            registered.insert(plugin.name.clone(), plugin);
        });
        self.metrics.registered(self.registered.borrow().len());
    }

    /// The driver is not registered any more.
    pub fn remove(&self, driver: &str) {
        self.registered.send_if_modified(|registered| registered.remove(driver).is_some());
        self.metrics.registered(self.registered.borrow().len());
    }

    /// Makes what is counted here part of a registry.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }
}

/// What the plugin manager is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This node's name.
    pub node: String,
    /// Where plugins put their sockets: [`crate::paths::Root::registry`].
    pub registry: PathBuf,
    /// After a failure it is tried again by ourselves. Kubelet does not, and waits for a new socket.
    pub retry: bool,
    /// The pause after a first failure; the next ones are twice as long each. Kubelet begins with 500 ms; a socket
    /// that has just appeared may be a moment from being served.
    pub retry_start: Duration,
    /// The longest pause.
    pub retry_max: Duration,
    /// A socket made anew takes over from its predecessor. Kubelet takes the driver out first and puts it in again.
    pub handover: bool,
    /// A socket that is gone for less than this is being made anew. Kubelet looks once a second.
    pub grace: Duration,
    /// Entries that somebody else removed or changed are put back. Kubelet writes them at registration only.
    pub restore: bool,
    /// A driver that gives another name than its registration is refused. Kubelet does not ask.
    pub verify_name: bool,
    /// `CSIDriver.spec.nodeAllocatableUpdatePeriodSeconds` is honoured; in Kubernetes 1.34 that is the gate
    /// MutableCSINodeAllocatableCount, off by default.
    pub refresh_limits: bool,
    /// In-tree plugins whose volumes are CSI's now; CSINode says so.
    pub migrated: Vec<&'static str>,
}

impl Settings {
    /// For this node and this registry directory.
    pub fn new(node: impl Into<String>, registry: impl Into<PathBuf>) -> Self {
        Self {
            node: node.into(),
            registry: registry.into(),
            retry: true,
            retry_start: Duration::from_millis(50),
            retry_max: Duration::from_secs(122),
            handover: true,
            grace: Duration::from_secs(1),
            restore: true,
            verify_name: true,
            refresh_limits: true,
            migrated: node_info::MIGRATED.to_vec(),
        }
    }
}

/// The plugin manager. Runs until the gate's stop, and leaves what is registered as it is. A node may not watch its own
/// CSINode: that is done under the wider name, where there is one.
pub async fn run(
    plugins: Plugins,
    cluster: Cluster,
    wide: Option<Cluster>,
    gate: Gate,
    health: Health,
    settings: Settings,
) {
    manager::run(plugins, cluster, wide, gate, health, settings).await;
}
