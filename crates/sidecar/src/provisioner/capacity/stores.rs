//! What capacities depend on, as our stores have it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use wharf_cluster::{Change, Changes, Notice, Reach, Store, WatchOptions};
use wharf_model::topology::Segments;
use wharf_model::{CSINode, CSIStorageCapacity, Node, PersistentVolume, StorageClass};

use super::act::Keeper;
use super::view::{self, Goal, Subject};
use crate::context::Context;

/// Between two looks whether the API server serves the kind.
const LOOK: Duration = Duration::from_secs(30);
/// By what an object is about.
pub(super) const BY_SUBJECT: &str = "subject";

#[derive(Clone)]
pub(super) struct Stores {
    pub(super) classes: Store<StorageClass>,
    pub(super) capacities: Store<CSIStorageCapacity>,
    pub(super) volumes: Store<PersistentVolume>,
    places: Places,
}

/// Where the driver is.
#[derive(Clone)]
enum Places {
    /// Here and nowhere else, as far as we are concerned.
    Own(Segments),
    /// Where nodes say.
    Nodes(Store<CSINode>, Store<Node>),
}

impl Stores {
    pub(super) async fn open(context: &Context, keeper: &Keeper) -> Self {
        let cluster = &context.cluster;
        let capacities = cluster.store::<CSIStorageCapacity>(WatchOptions {
            namespace: Some(keeper.namespace.clone()),
            label_selector: Some(keeper.selector()),
            ..WatchOptions::default()
        });
        capacities.index(BY_SUBJECT, |object| vec![Subject::of(object).text()]);
        let reach = capacities.settled().await;
        if reach != Reach::Served {
            tracing::warn!(
                ?reach,
                "no CSIStorageCapacity is kept until the API server serves storage.k8s.io/v1 and lets us list it"
            );
            while !capacities.served() {
                sleep(LOOK).await;
            }
        }
        let places = match &context.node {
            Some(node) => Places::Own(node.place.clone()),
            None => {
                Places::Nodes(cluster.store(WatchOptions::default()), cluster.store(WatchOptions::default()))
            }
        };
        let stores = Self {
            classes: cluster.store(WatchOptions::default()),
            volumes: cluster.store(WatchOptions::default()),
            capacities,
            places,
        };
        stores.classes.synced().await;
        if let Places::Nodes(csi_nodes, nodes) = &stores.places {
            tokio::join!(csi_nodes.synced(), nodes.synced());
        }
        stores
    }

    /// What there is to be; `None` while we do not see all that it depends on.
    pub(super) fn goal(&self, driver: &str, immediate: bool) -> Option<Goal> {
        let places = match &self.places {
            Places::Own(place) => BTreeSet::from([place.clone()]),
            Places::Nodes(csi_nodes, nodes) if csi_nodes.served() && nodes.served() => {
                let nodes: BTreeMap<String, Arc<Node>> =
                    nodes.all().into_iter().map(|node| (node.metadata.name.clone(), node)).collect();
                let csi_nodes = csi_nodes.all();
                let both = csi_nodes.iter().filter_map(|csi_node| {
                    nodes.get(&csi_node.metadata.name).map(|node| (&**csi_node, &**node))
                });
                view::places(driver, both)
            }
            Places::Nodes(..) => return None,
        };
        if !self.classes.served() || !self.capacities.served() {
            return None;
        }
        let classes = self.classes.all();
        Some(view::goal(driver, immediate, &places, classes.iter().map(|class| &**class)))
    }

    /// From now on, what may change the goal or how far it is reached.
    pub(super) fn changes(&self) -> GoalChanges {
        GoalChanges {
            classes: self.classes.changes(),
            capacities: self.capacities.changes(),
            nodes: match &self.places {
                Places::Own(_) => None,
                Places::Nodes(csi_nodes, nodes) => Some((csi_nodes.changes(), nodes.changes())),
            },
        }
    }
}

/// What may change the goal or how far it is reached.
pub(super) struct GoalChanges {
    classes: Changes<StorageClass>,
    capacities: Changes<CSIStorageCapacity>,
    nodes: Option<(Changes<CSINode>, Changes<Node>)>,
}

impl GoalChanges {
    /// Waits for the next.
    pub(super) async fn next(&mut self) {
        let node = async {
            let Some((csi_nodes, nodes)) = &mut self.nodes else { return std::future::pending().await };
            loop {
                tokio::select! {
                    biased;
                    _ = csi_nodes.next() => return,
                    notice = nodes.next() => if notice.is_none_or(|notice| moves(&notice)) {
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

/// Whether a node's place may have changed: nodes report much else.
fn moves(notice: &Notice<Node>) -> bool {
    match notice {
        Notice::Resync => true,
        Notice::Change(Change { old: Some(old), new: Some(new), .. }) => {
            old.metadata.labels != new.metadata.labels
        }
        Notice::Change(_) => true,
    }
}
