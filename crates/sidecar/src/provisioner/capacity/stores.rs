//! The watched objects that CSIStorageCapacity objects depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use wharf_cluster::{Change, Store, StoreEvent, Subscription, SyncState, WatchOptions};
use wharf_model::topology::Segments;
use wharf_model::{CSINode, CSIStorageCapacity, Node, PersistentVolume, StorageClass};

use super::act::CapacityApi;
use super::view::{self, Goal, Subject};
use crate::context::Context;

/// Between checks whether the API server serves the kind.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// The index of objects by subject.
pub(super) const BY_SUBJECT: &str = "subject";

#[derive(Clone)]
pub(super) struct Stores {
    pub(super) classes: Store<StorageClass>,
    pub(super) capacities: Store<CSIStorageCapacity>,
    pub(super) volumes: Store<PersistentVolume>,
    topologies: TopologySource,
}

/// Where the driver's topologies come from.
#[derive(Clone)]
enum TopologySource {
    /// With node deployment, this node's topology.
    LocalNode(Segments),
    /// The topology of all nodes.
    Nodes(Store<CSINode>, Store<Node>),
}

impl Stores {
    pub(super) async fn open(context: &Context, api: &CapacityApi) -> Self {
        let cluster = &context.cluster;
        let capacities = cluster.store::<CSIStorageCapacity>(WatchOptions {
            namespace: Some(api.namespace.clone()),
            label_selector: Some(api.selector()),
            ..WatchOptions::default()
        });
        capacities.add_index(BY_SUBJECT, |object| vec![Subject::of(object).text()]);
        let reach = capacities.wait_settled().await;
        if reach != SyncState::Synced {
            tracing::warn!(
                ?reach,
                "cannot list CSIStorageCapacity objects; waiting for the API server to serve storage.k8s.io/v1 and grant list"
            );
            while !capacities.is_synced() {
                sleep(POLL_INTERVAL).await;
            }
        }
        let topologies = match &context.node {
            Some(node) => TopologySource::LocalNode(node.topology.clone()),
            None => TopologySource::Nodes(
                cluster.store(WatchOptions::default()),
                cluster.store(WatchOptions::slim()),
            ),
        };
        let stores = Self {
            classes: cluster.store(WatchOptions::default()),
            volumes: cluster.store(WatchOptions::default()),
            capacities,
            topologies,
        };
        stores.classes.wait_synced().await;
        if let TopologySource::Nodes(csi_nodes, nodes) = &stores.topologies {
            tokio::join!(csi_nodes.wait_synced(), nodes.wait_synced());
        }
        stores
    }

    /// The desired objects. `None` while not all of their inputs are available.
    pub(super) fn goal(&self, driver: &str, immediate: bool) -> Option<Goal> {
        let topologies = match &self.topologies {
            TopologySource::LocalNode(topology) => BTreeSet::from([topology.clone()]),
            TopologySource::Nodes(csi_nodes, nodes) if csi_nodes.is_synced() && nodes.is_synced() => {
                let nodes: BTreeMap<String, Arc<Node>> =
                    nodes.all().into_iter().map(|node| (node.metadata.name.clone(), node)).collect();
                let csi_nodes = csi_nodes.all();
                let both = csi_nodes.iter().filter_map(|csi_node| {
                    nodes.get(&csi_node.metadata.name).map(|node| (&**csi_node, &**node))
                });
                view::topologies(driver, both)
            }
            TopologySource::Nodes(..) => return None,
        };
        if !self.classes.is_synced() || !self.capacities.is_synced() {
            return None;
        }
        let classes = self.classes.all();
        Some(view::goal(driver, immediate, &topologies, classes.iter().map(|class| &**class)))
    }

    /// Subscribes to changes that affect the goal or the existing objects.
    pub(super) fn changes(&self) -> GoalChanges {
        GoalChanges {
            classes: self.classes.subscribe(),
            capacities: self.capacities.subscribe(),
            nodes: match &self.topologies {
                TopologySource::LocalNode(_) => None,
                TopologySource::Nodes(csi_nodes, nodes) => Some((csi_nodes.subscribe(), nodes.subscribe())),
            },
        }
    }
}

/// Changes that affect the goal or the existing objects.
pub(super) struct GoalChanges {
    classes: Subscription<StorageClass>,
    capacities: Subscription<CSIStorageCapacity>,
    nodes: Option<(Subscription<CSINode>, Subscription<Node>)>,
}

impl GoalChanges {
    /// Waits for the next change.
    pub(super) async fn next(&mut self) {
        let node = async {
            let Some((csi_nodes, nodes)) = &mut self.nodes else { return std::future::pending().await };
            loop {
                tokio::select! {
                    biased;
                    _ = csi_nodes.next() => return,
                    notice = nodes.next() => if notice.is_none_or(|notice| changes_topology(&notice)) {
                        return;
                    },
                }
            }
        };
        tokio::select! {
            biased;
            _ = self.classes.next() => {}
            _ = self.capacities.next() => {}
            () = node => {}
        }
    }
}

/// Whether a node's topology may have changed: most updates of nodes do not affect labels.
fn changes_topology(notice: &StoreEvent<Node>) -> bool {
    match notice {
        StoreEvent::Resync => true,
        StoreEvent::Change(Change { old: Some(old), new: Some(new), .. }) => {
            old.metadata.labels != new.metadata.labels
        }
        StoreEvent::Change(_) => true,
    }
}
