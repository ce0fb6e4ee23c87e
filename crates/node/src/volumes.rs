//! Volumes of pods on this node: staged and published before the pod's containers start, taken down after they have
//! ended; the contract on disk and with drivers is kubelet's.
//!
//! - What is to be undone is written down first: `vol_data.json` is durable before the driver is asked, and a volume is
//!   in `volumesInUse` before it is touched. Whoever finds the node after a crash, we or a kubelet, knows what to do.
//! - Nothing is unmounted because nobody has asked for it yet: only what was released, or what is on disk once all pods
//!   of the node are known ([`Volumes::settle`]).
//! - A volume is worked on by one worker at a time; volumes do not wait for each other.
//! - What may be mounted is treated as mounted: it is published again if it is wanted, and unpublished if it is not.
//!
//! Start reading at `world`, then `decide`: the rules. `reconstruct` finds what an earlier life has left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, Events};
use wharf_linux::Kernel;
use wharf_model::whole::Pod;

use crate::paths::Root;
use crate::plugins::Plugins;
use manager::Manager;
pub use stats::Statistics;

mod act;
mod attempts;
mod data;
mod decide;
mod disk;
mod expand;
mod failure;
mod in_use;
mod manager;
mod names;
mod ownership;
pub mod plain;
mod reconstruct;
mod request;
mod resolve;
mod selinux;
mod stats;
mod view;
mod world;

/// Who tells the events: kubelet, as far as users can see.
pub const COMPONENT: &str = "kubelet";

/// What the volume manager is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Volumes and pods worked on at once.
    pub workers: usize,
    /// How long a call to a driver may take.
    pub timeout: Duration,
    /// The pause after a first failure.
    pub retry_start: Duration,
    /// The longest pause.
    pub retry_max: Duration,
    /// `volumesInUse` is written at most this often. Zero writes it at once; upstream's is 10 s, which every start of a
    /// pod with a volume pays.
    pub in_use_period: Duration,
    /// Look at start for volumes that are staged though no pod has them. Upstream does not, and forgets them.
    pub find_staged: bool,
    /// How often pods' volumes are looked at without a reason, and published again where the driver wants that.
    pub resync: Duration,
    /// How often drivers are asked for statistics.
    pub statistics: Duration,
    /// Where no hostPath may lead, without links: [`crate::runtime::Runtime::hidden`].
    pub hidden: Vec<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 100,
            timeout: Duration::from_secs(120),
            retry_start: Duration::from_millis(500),
            retry_max: Duration::from_secs(122),
            in_use_period: Duration::ZERO,
            find_staged: true,
            resync: Duration::from_secs(60),
            statistics: Duration::from_secs(60),
            hidden: Vec::new(),
        }
    }
}

/// What the volume manager works with.
#[derive(Clone)]
pub struct Parts {
    /// The API, with a node's rights: its pods, and by name what they use.
    pub cluster: Cluster,
    /// The same under a wider name, where there is one. It tells at once of changes that a node may not watch, and are
    /// otherwise seen at the next look.
    pub wide: Option<Cluster>,
    /// Where events are told, by [`COMPONENT`].
    pub events: Events,
    /// Drivers on this node.
    pub plugins: Plugins,
    /// The machine.
    pub kernel: Arc<dyn Kernel>,
    /// Where volumes are.
    pub root: Root,
    /// This node's name.
    pub node: String,
}

/// Where a pod's volumes are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounted {
    /// By their names in the pod; only those that some container has.
    pub volumes: BTreeMap<String, Place>,
}

/// Where a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Whatever a hostPath names: for volumeMounts.
    Host {
        /// Where, as the pod has it.
        path: PathBuf,
    },
    /// A directory: for volumeMounts.
    Directory {
        /// Where.
        path: PathBuf,
        /// Nothing may be written.
        read_only: bool,
    },
    /// A block device: for volumeDevices.
    Device {
        /// Where.
        path: PathBuf,
        /// Nothing may be written.
        read_only: bool,
    },
}

/// Why a pod's volumes are not there yet. The work goes on by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NotYet {
    /// Which volumes, and what is the matter with each.
    pub message: String,
}

/// The volume manager; clones are the same one. It does nothing until [`run`] does.
#[derive(Clone)]
pub struct Volumes {
    manager: Arc<Manager>,
}

impl Volumes {
    /// A volume manager. Must be called within a tokio runtime.
    pub fn new(parts: Parts, settings: Settings) -> Self {
        Self { manager: Arc::new(Manager::new(parts, settings)) }
    }

    /// The pod is to have its volumes. Told again, with what is known of the pod now, it is looked at again. Of this and
    /// [`Self::release`] the last word counts.
    pub fn want(&self, pod: Arc<Pod>) {
        self.manager.want(pod);
    }

    /// All pods of this node have been told: what is on disk and was not asked for may be taken down.
    pub fn settle(&self) {
        self.manager.settle();
    }

    /// Waits until all volumes of the pod are there. Each round that failed is an error, once; ask again to go on
    /// waiting. A pod that was not told, or was released, is waited for too.
    pub async fn mounted(&self, pod_uid: &str) -> Result<Mounted, NotYet> {
        self.manager.mounted(pod_uid).await
    }

    /// The server has no such pod any more, and its containers have not ended yet: what it has stays as it is.
    pub fn keep(&self, pod_uid: &str) {
        self.manager.keep(pod_uid);
    }

    /// The pod's containers have ended and none will be started: its volumes may go.
    pub fn release(&self, pod_uid: &str) {
        self.manager.release(pod_uid);
    }

    /// Waits until nothing of the pod is mounted any more: also what was found on disk, and not before the disk was
    /// looked at.
    pub async fn released(&self, pod_uid: &str) {
        self.manager.released(pod_uid).await;
    }

    /// Pods of which something is mounted, or may be; also those that were found on disk and nobody has told of.
    pub fn pods(&self) -> BTreeSet<String> {
        self.manager.pods()
    }

    /// Unique names of volumes that this node may be using. The manager itself writes them to the Node.
    pub fn in_use(&self) -> watch::Receiver<Vec<String>> {
        self.manager.in_use()
    }

    /// All that the node's half counts, in the format of OpenMetrics: how full volumes are, drivers, calls of the API.
    pub fn metrics(&self) -> String {
        self.manager.metrics()
    }

    /// What failed last and was not done since, as a list in the form of a sidecar's attempts: without secrets.
    pub fn attempts(&self) -> serde_json::Value {
        attempts::page(&self.manager.world())
    }

    /// `kubelet_volume_stats_*`, to be registered once.
    pub fn statistics(&self) -> &Statistics {
        self.manager.statistics()
    }
}

/// Runs until the gate's stop: finds what is on disk, then does what is asked for. What is mounted stays mounted.
pub async fn run(volumes: Volumes, gate: Gate) {
    volumes.manager.run(gate).await;
}
