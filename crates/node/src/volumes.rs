//! Volume manager: stages and publishes a pod's volumes before its containers start, and unpublishes and unstages them
//! after the containers have exited. Disk layout and driver calls follow kubelet.
//!
//! - State needed for cleanup is written first: `vol_data.json` is durable before the driver is called, and a volume
//!   is in `volumesInUse` before it is touched. After a crash, this agent or a kubelet can recover from it.
//! - A volume is unmounted only if its pod was released, or if it was found on disk and, once all pods of the node are
//!   known (see `Volumes::mark_pods_known`), belongs to none of them.
//! - One worker at a time handles a volume; volumes do not wait for each other.
//! - A volume that may be mounted is treated as mounted: it is published again if desired, and unpublished if not.
//!
//! Start reading at `world`, then `decide`: the rules. `reconstruct` recovers the state of an earlier run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder};
use wharf_linux::Kernel;
use wharf_model::Pod;

use crate::paths::Root;
use crate::plugins::Plugins;
#[cfg(feature = "fuzzing")]
pub use data::rewrite_volume_data;
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

/// Reporting component of events: kubelet, as in a cluster.
pub const COMPONENT: &str = "kubelet";

/// Settings of the volume manager.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Volumes and pods reconciled concurrently.
    pub workers: usize,
    /// Timeout of a call to a driver.
    pub timeout: Duration,
    /// Delay after the first failure.
    pub retry_start: Duration,
    /// Maximum delay between retries.
    pub retry_max: Duration,
    /// Minimum interval between updates of `volumesInUse`. Zero updates immediately; upstream uses 10 s, which delays
    /// every start of a pod with a volume.
    pub in_use_period: Duration,
    /// At start, find volumes that are staged but not published for any pod. Upstream does not, and leaks them.
    pub recover_staged: bool,
    /// Interval at which pods' volumes are resynced, and republished if the driver requires it.
    pub resync: Duration,
    /// Interval of NodeGetVolumeStats calls.
    pub statistics: Duration,
    /// Directories that no hostPath may lead into, without symlinks: [`wharf_container::Runtime::hidden`].
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
            recover_staged: true,
            resync: Duration::from_secs(60),
            statistics: Duration::from_secs(60),
            hidden: Vec::new(),
        }
    }
}

/// Dependencies of the volume manager.
#[derive(Clone)]
pub struct VolumeManagerDeps {
    /// API client with node permissions: the node's pods, and the objects they reference by name.
    pub cluster: Cluster,
    /// API client with more permissions, if there is one. It watches objects that a node may not watch; without it,
    /// their changes are seen at the next resync.
    pub privileged_client: Option<Cluster>,
    /// Event recorder, with [`COMPONENT`] as the reporting component.
    pub events: EventRecorder,
    /// Registered drivers of this node.
    pub plugins: Plugins,
    /// The kernel interface.
    pub kernel: Arc<dyn Kernel>,
    /// Kubelet's root directory.
    pub root: Root,
    /// This node's name.
    pub node: String,
}

/// The mounted volumes of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounted {
    /// By name in the pod; only volumes that a container uses.
    pub volumes: BTreeMap<String, VolumePath>,
}

/// Host path of a mounted volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumePath {
    /// The path of a hostPath volume, for volumeMounts.
    Host {
        /// As given in the pod.
        path: PathBuf,
    },
    /// A directory: for volumeMounts.
    Directory {
        /// Its path.
        path: PathBuf,
        /// Mounted read-only.
        read_only: bool,
    },
    /// A block device: for volumeDevices.
    Device {
        /// Its path.
        path: PathBuf,
        /// Read-only.
        read_only: bool,
    },
}

/// Why a pod's volumes are not mounted yet. The volume manager keeps trying.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NotMounted {
    /// The unmounted volumes, and the problem of each.
    pub message: String,
}

/// The volume manager; clones share the same one. It does nothing until [`run`] is called.
#[derive(Clone)]
pub struct Volumes {
    manager: Arc<Manager>,
}

impl Volumes {
    /// A volume manager. Must be called within a tokio runtime.
    pub fn new(parts: VolumeManagerDeps, settings: Settings) -> Self {
        Self { manager: Arc::new(Manager::new(parts, settings)) }
    }

    /// Requests the pod's volumes. A repeated call with an updated pod resyncs it. Of this and [`Self::release`] the
    /// last call counts.
    pub fn request(&self, pod: Arc<Pod>) {
        self.manager.want(pod);
    }

    /// Signals that all pods of this node have been requested: volumes on disk that no pod requested can be cleaned up.
    pub fn mark_pods_known(&self) {
        self.manager.settle();
    }

    /// Waits until all volumes of the pod are mounted. Each failed round is returned as an error once; call again to
    /// keep waiting. Also waits for a pod that was not requested yet, or was released.
    pub async fn wait_mounted(&self, pod_uid: &str) -> Result<Mounted, NotMounted> {
        self.manager.mounted(pod_uid).await
    }

    /// The pod is gone from the API server but its containers have not exited: its volumes stay mounted.
    pub fn retain(&self, pod_uid: &str) {
        self.manager.keep(pod_uid);
    }

    /// The pod's containers have exited and none will be started: its volumes can be unmounted.
    pub fn release(&self, pod_uid: &str) {
        self.manager.release(pod_uid);
    }

    /// Waits until nothing of the pod is mounted any more, including volumes found on disk; never returns before the
    /// disk was scanned.
    pub async fn wait_released(&self, pod_uid: &str) {
        self.manager.released(pod_uid).await;
    }

    /// Pods with volumes that are, or may be, mounted; includes pods found on disk that were never requested.
    pub fn pods(&self) -> BTreeSet<String> {
        self.manager.pods()
    }

    /// Unique names of volumes that this node may be using. The manager itself writes them to the Node.
    pub fn in_use(&self) -> watch::Receiver<Vec<String>> {
        self.manager.in_use()
    }

    /// All metrics of the node agent in the OpenMetrics text format: volume statistics, drivers, API requests.
    pub fn metrics(&self) -> String {
        self.manager.metrics()
    }

    /// The last unresolved failures; free of secrets.
    pub fn attempts(&self) -> Vec<wharf_model::Attempt> {
        attempts::list(&self.manager.world())
    }

    /// `kubelet_volume_stats_*`, to be registered once.
    pub fn statistics(&self) -> &Statistics {
        self.manager.statistics()
    }
}

/// Runs the volume manager until the gate stops it: scans the disk, then reconciles. Mounted volumes stay mounted.
pub async fn run(volumes: Volumes, gate: Gate) {
    volumes.manager.run(gate).await;
}
