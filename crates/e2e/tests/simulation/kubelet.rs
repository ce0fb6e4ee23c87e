//! A node agent without containers: it mounts the volumes of its node's pods and reports the pods as running; it
//! unmounts before it deletes a pod. The volume manager is the product's own. Plugin registration is not simulated.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use wharf_cluster::work::Gate;
use wharf_cluster::{
    ApiError, Cluster, EventRecorder, Patch, Preconditions, Store, StoreEvent, WatchOptions,
};
use wharf_csi::Client;
use wharf_model::Pod;
use wharf_model::pod::PodPhase;
use wharf_model::{Key, Kind as _};
use wharf_node::paths::Root;
use wharf_node::plugins::{NodeCapabilities, Plugin, Plugins};
use wharf_node::volumes::{self, COMPONENT, Settings, VolumeManagerDeps, Volumes};

use crate::driver::DRIVER;
use crate::kernel::SimKernel;

/// The interval between two write attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the agent until it is dropped.
pub(crate) async fn run(
    cluster: Cluster,
    driver: Client,
    kernel: Arc<SimKernel>,
    node: String,
    settings: Settings,
) {
    let plugins = Plugins::new();
    let mut plugin = Plugin::new(DRIVER, "/sim/csi.sock".parse().unwrap()).with_client(driver);
    plugin.capabilities =
        NodeCapabilities { stage_unstage: true, expand: true, ..NodeCapabilities::default() };
    plugins.insert(plugin);
    let parts = VolumeManagerDeps {
        events: EventRecorder::start(&cluster, COMPONENT, node.as_str()),
        cluster: cluster.clone(),
        privileged_client: Some(cluster.clone()),
        plugins,
        kernel,
        root: Root::new(format!("/{node}")),
        node: node.clone(),
    };
    let volumes = Volumes::new(parts, settings);
    let gate = Gate::new(None, CancellationToken::new());
    let manager = volumes::run(volumes.clone(), gate);
    tokio::join!(manager, pods(cluster, volumes, &node));
}

async fn pods(cluster: Cluster, volumes: Volumes, node: &str) {
    let of_node =
        WatchOptions { field_selector: Some(format!("spec.nodeName={node}")), ..WatchOptions::default() };
    let pods: Store<Pod> = cluster.store(of_node);
    pods.wait_synced().await;
    for pod in pods.all().into_iter().filter(|pod| !pod.metadata.is_deleting()) {
        volumes.request(pod);
    }
    volumes.mark_pods_known();
    let mut workers = JoinSet::new();
    let mut known = BTreeSet::new();
    let mut changes = pods.subscribe();
    while let Some(notice) = changes.next().await {
        let changed = match notice {
            StoreEvent::Change(change) => change.new.into_iter().collect(),
            StoreEvent::Resync => pods.all(),
        };
        for pod in changed {
            let uid = pod.metadata.uid.clone();
            if known.insert(uid.clone()) {
                let worker =
                    Worker { cluster: cluster.clone(), volumes: volumes.clone(), pods: pods.clone() };
                workers.spawn(worker.run(pod.metadata.key(), uid));
            }
        }
        while workers.try_join_next().is_some() {}
    }
}

/// Manages one pod.
struct Worker {
    cluster: Cluster,
    volumes: Volumes,
    pods: Store<Pod>,
}

impl Worker {
    async fn run(self, key: Key, uid: String) {
        let mut changes = self.pods.subscribe();
        loop {
            let pod = self.pods.get(&key).filter(|pod| pod.metadata.uid == uid);
            let Some(pod) = pod.filter(|pod| !pod.metadata.is_deleting()) else { break };
            let runs = pod.phase == PodPhase::Running;
            self.volumes.request(pod);
            tokio::select! {
                biased;
                _ = changes.next() => {}
                mounted = self.volumes.wait_mounted(&uid), if !runs => {
                    if mounted.is_ok() {
                        self.report_running(&key).await;
                    }
                }
            }
        }
        self.volumes.release(&uid);
        self.volumes.wait_released(&uid).await;
        self.delete(&key, &uid).await;
    }

    async fn report_running(&self, key: &Key) {
        let patch = Patch::Merge(json!({"status": {"phase": "Running"}}));
        if self.cluster.patch(&Pod::API, key, Some("status"), patch).await.is_err() {
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Retries until the API server confirms that the pod is deleted.
    async fn delete(&self, key: &Key, uid: &str) {
        let this = || Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        loop {
            match self.cluster.delete_without_grace(&Pod::API, key, this()).await {
                // Another pod with the same name.
                Ok(()) | Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => {}
                Err(_) => {
                    sleep(RETRY_INTERVAL).await;
                    continue;
                }
            }
            let current = self.cluster.get::<Pod>(key).await;
            match current {
                Ok(pod) if pod.as_ref().is_none_or(|pod| pod.metadata.uid != uid) => return,
                _ => sleep(RETRY_INTERVAL).await,
            }
        }
    }
}
