//! A node's agent without containers: pods of its node get their volumes and then run; a pod that goes lets them go first.
//! The volume manager is the product's own. What it does not do: registration of plugins, which is given.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use wharf_cluster::work::Gate;
use wharf_cluster::{ApiError, Cluster, Events, Notice, Patch, Preconditions, Store, WatchOptions};
use wharf_csi::Client;
use wharf_model::pod::PodPhase;
use wharf_model::whole::Pod;
use wharf_model::{Key, Kind as _};
use wharf_node::paths::Root;
use wharf_node::plugins::{NodeCapabilities, Plugin, Plugins};
use wharf_node::volumes::{self, COMPONENT, Parts, Settings, Volumes};

use crate::driver::DRIVER;
use crate::kernel::Memory;

/// Between two attempts to write.
const AGAIN: Duration = Duration::from_secs(1);

/// One life of the agent, until it is dropped.
pub(crate) async fn run(
    cluster: Cluster,
    driver: Client,
    kernel: Arc<Memory>,
    node: String,
    settings: Settings,
) {
    let plugins = Plugins::new();
    let mut plugin = Plugin::new(DRIVER, "/sim/csi.sock".parse().unwrap()).with_client(driver);
    plugin.capabilities =
        NodeCapabilities { stage_unstage: true, expand: true, ..NodeCapabilities::default() };
    plugins.put(plugin);
    let parts = Parts {
        events: Events::start(&cluster, COMPONENT, node.as_str()),
        cluster: cluster.clone(),
        wide: Some(cluster.clone()),
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
    pods.synced().await;
    for pod in pods.all().into_iter().filter(|pod| !pod.metadata.is_deleting()) {
        volumes.want(pod);
    }
    volumes.settle();
    let mut workers = JoinSet::new();
    let mut known = BTreeSet::new();
    let mut changes = pods.changes();
    while let Some(notice) = changes.next().await {
        let looked_at = match notice {
            Notice::Change(change) => change.new.into_iter().collect(),
            Notice::Resync => pods.all(),
        };
        for pod in looked_at {
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

/// Looks after one pod.
struct Worker {
    cluster: Cluster,
    volumes: Volumes,
    pods: Store<Pod>,
}

impl Worker {
    async fn run(self, key: Key, uid: String) {
        let mut changes = self.pods.changes();
        loop {
            let pod = self.pods.get(&key).filter(|pod| pod.metadata.uid == uid);
            let Some(pod) = pod.filter(|pod| !pod.metadata.is_deleting()) else { break };
            let runs = pod.status.phase == PodPhase::Running;
            self.volumes.want(pod);
            tokio::select! {
                biased;
                _ = changes.next() => {}
                mounted = self.volumes.mounted(&uid), if !runs => {
                    if mounted.is_ok() {
                        self.tell_running(&key).await;
                    }
                }
            }
        }
        self.volumes.release(&uid);
        self.volumes.released(&uid).await;
        self.delete(&key, &uid).await;
    }

    async fn tell_running(&self, key: &Key) {
        let patch = Patch::Merge(json!({"status": {"phase": "Running"}}));
        if self.cluster.patch(&Pod::API, key, Some("status"), patch).await.is_err() {
            sleep(AGAIN).await;
        }
    }

    /// Until the server says that it is gone.
    async fn delete(&self, key: &Key, uid: &str) {
        let this = || Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        loop {
            match self.cluster.delete_now(&Pod::API, key, this()).await {
                // Another one of its name.
                Ok(()) | Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => {}
                Err(_) => {
                    sleep(AGAIN).await;
                    continue;
                }
            }
            let there = self.cluster.get::<Pod>(key).await;
            match there {
                Ok(pod) if pod.as_ref().is_none_or(|pod| pod.metadata.uid != uid) => return,
                _ => sleep(AGAIN).await,
            }
        }
    }
}
