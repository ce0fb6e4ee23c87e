//! The life cycle of nodes and of the pods on them: what kube-controller-manager's node-lifecycle-controller,
//! taint-eviction-controller and pod-garbage-collector-controller do.
//!
//! - A node that stops renewing its lease becomes Unknown. Conditions become taints, taints evict pods after their
//!   tolerations.
//! - Pods of a node that does not exist, or that is out of service, are removed without their node.
//! - Silence is evidence only while this process can observe: see [`heartbeat`]. Nothing is evicted while no node is
//!   healthy. Before a pod is deleted, its node is read from the API server, and the decision is made again.
//!
//! All waits are counted from what this process has seen. A restart, and a time in which it could not read the leases,
//! starts them again. Start reading at `node` and `pod`: the rules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::indexes::PODS_BY_NODE;
use wharf_cluster::work::{
    EnqueueRequest, RESYNC_INTERVAL, StepLimit, WorkOutcome, enqueue_changes, resync, run_role,
};
use wharf_cluster::{
    Backoff, Change, EventRecorder, EventType, Priority, Queue, Store, WatchOptions, monotonic,
};
use wharf_model::names::reason::NODE_NOT_READY;
use wharf_model::{Key, Kind as _, Monotonic, Node, Pod};

use crate::Context;
use heartbeat::Heartbeats;
use node::{Disruption, NodeView};

mod act;
mod heartbeat;
mod node;
mod pod;

/// The event source component for nodes; upstream's name.
pub const COMPONENT: &str = "node-controller";
/// The event source component for evictions; upstream's name.
pub const EVICTION_COMPONENT: &str = "taint-eviction-controller";

/// Work items handled in parallel.
const WORKERS: usize = 30;
/// A node takes two writes; more mean that somebody undoes them.
const STEP_LIMIT: StepLimit = StepLimit::BackOff(8);
/// The backoff after a first failure.
const RETRY_START: Duration = Duration::from_millis(200);
/// The longest backoff.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Time between two nodes that lose their pods: upstream's node-eviction-rate of 0.1 per second.
const EVICTION_PERIOD: Duration = Duration::from_secs(10);

/// What one worker at a time handles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WorkItem {
    /// Reads all leases, periodically.
    Leases,
    /// The conditions and taints of a node.
    Node(String),
    /// A pod that has a node.
    Pod(Key),
}

/// What this process has seen.
#[derive(Debug, Default)]
struct Observed {
    heartbeats: Heartbeats,
    /// Since when nodes are missing that pods name.
    missing: BTreeMap<String, Monotonic>,
    /// Since when pods have a taint that they do not tolerate forever, with their uid.
    tainted: BTreeMap<Key, (String, Monotonic)>,
    /// When the last node got a taint that evicts its pods.
    evicted: Option<Monotonic>,
}

/// Runs until the gate is stopped. `evictions` records the events of evictions.
pub async fn run(context: Context, evictions: EventRecorder) {
    let controller = Arc::new(NodeLifecycle::new(context, evictions));
    let one = |item| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&item).await }
    };
    let feeds = |tasks: &mut JoinSet<()>| controller.spawn_feeds(tasks);
    run_role(&controller.context.gate, controller.synced(), feeds, &controller.queue, WORKERS, one).await;
}

struct NodeLifecycle {
    context: Context,
    evictions: EventRecorder,
    nodes: Store<Node>,
    pods: Store<Pod>,
    queue: Queue<WorkItem>,
    observed: Mutex<Observed>,
}

impl NodeLifecycle {
    fn new(context: Context, evictions: EventRecorder) -> Self {
        let cluster = &context.cluster;
        let pods = cluster.store::<Pod>(WatchOptions::default());
        pods.share_index(&PODS_BY_NODE);
        let backoff = Backoff { start: RETRY_START, max: RETRY_MAX, ..Backoff::default() };
        let queue = Queue::new("node_lifecycle", backoff, cluster.metrics());
        let nodes = cluster.store(WatchOptions::default());
        Self { nodes, pods, queue, observed: Mutex::default(), evictions, context }
    }

    async fn synced(&self) {
        self.nodes.wait_synced().await;
        self.pods.wait_synced().await;
    }

    fn spawn_feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        self.queue.add(WorkItem::Leases, Priority::High);
        let this = Arc::clone(self);
        let requests = move |change: &Change<Node>| this.node_changed(change);
        into.spawn(enqueue_changes(self.nodes.clone(), self.queue.clone(), requests));
        let requests = |change: &Change<Pod>| match &change.new {
            Some(pod) if pod.node_name.is_empty() => Vec::new(),
            // A deleted pod, too: what was observed of it is forgotten.
            _ => vec![request(WorkItem::Pod(change.key.clone()))],
        };
        into.spawn(enqueue_changes(self.pods.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        into.spawn(resync(self.queue.clone(), RESYNC_INTERVAL, move || this.all_items()));
    }

    /// What a resync reconciles. The leases are read every few seconds anyway.
    fn all_items(&self) -> Vec<WorkItem> {
        let (nodes, pods) = (self.nodes.all(), self.pods.all());
        let nodes = nodes.iter().map(|node| WorkItem::Node(node.metadata.name.clone()));
        let pods = pods.iter().filter(|pod| !pod.node_name.is_empty());
        nodes.chain(pods.map(|pod| WorkItem::Pod(pod.key()))).collect()
    }

    fn node_changed(&self, change: &Change<Node>) -> Vec<EnqueueRequest<WorkItem>> {
        let name = &change.key.name;
        if change.new.is_some() {
            self.observed().missing.remove(name);
        }
        let known = change.old.as_deref().zip(change.new.as_deref());
        let known = known.filter(|(old, new)| old.metadata.uid == new.metadata.uid);
        if let Some((old, new)) = known
            && old.is_ready()
            && !new.is_ready()
            && self.context.gate.is_open()
        {
            let note = format!("Node {name} status is now: NodeNotReady");
            self.context.events.record_for(new, EventType::Normal, NODE_NOT_READY, note);
        }
        let mut requests: Vec<_> = change.new.iter().map(|_| request(WorkItem::Node(name.clone()))).collect();
        let same_for_pods =
            known.is_some_and(|(old, new)| old.spec.taints == new.spec.taints && old.ready == new.ready);
        if !same_for_pods {
            requests.extend(self.pods_of(name));
        }
        requests
    }

    /// Requests for all pods of a node.
    fn pods_of(&self, node: &str) -> impl Iterator<Item = EnqueueRequest<WorkItem>> {
        self.pods.find(&PODS_BY_NODE, node).into_iter().map(|pod| request(WorkItem::Pod(pod.key())))
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node with what its next step depends on.
    fn view<'a>(&self, observed: &Observed, node: &'a Node, disruption: Disruption) -> NodeView<'a> {
        let now = monotonic();
        let may_evict = observed.evicted.is_none_or(|last| now.since(last) >= EVICTION_PERIOD);
        NodeView { node, silent: observed.heartbeats.is_silent(node), disruption, may_evict }
    }

    fn disruption(&self, observed: &Observed) -> Disruption {
        let nodes = self.nodes.all();
        let healthy = nodes.iter().filter(|node| node.is_ready() && !observed.heartbeats.is_silent(node));
        Disruption::of(nodes.len(), healthy.count())
    }

    async fn reconcile(&self, item: &WorkItem) -> WorkOutcome {
        match item {
            WorkItem::Leases => self.reconcile_leases().await,
            WorkItem::Node(name) => self.reconcile_node(name).await,
            WorkItem::Pod(key) => self.reconcile_pod(key).await,
        }
    }
}

fn request(key: WorkItem) -> EnqueueRequest<WorkItem> {
    EnqueueRequest { key, priority: Priority::Normal }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;
    use wharf_cluster::Cluster;
    use wharf_cluster::work::Gate;

    use super::*;

    /// The items in the queue, which is empty then.
    async fn drain(controller: &NodeLifecycle) -> Vec<WorkItem> {
        let mut items = Vec::new();
        while controller.queue.depth() > 0 {
            let work = controller.queue.next().await.unwrap();
            items.push(work.key().clone());
            work.done();
        }
        items
    }

    /// Otherwise a missed wake-up would last until the next change of the node or pod.
    #[tokio::test(start_paused = true)]
    async fn resync_reconciles_nodes_and_pods_that_have_a_node() {
        let server = tower::service_fn(|request: Request<Body>| async move {
            if request.uri().query().unwrap_or_default().contains("watch=") {
                return std::future::pending().await;
            }
            let object = |name: &str, spec| json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}, "spec": spec});
            let items = match request.uri().path().rsplit('/').next() {
                Some("nodes") => vec![object("n", json!({}))],
                Some("pods") => vec![object("bound", json!({"nodeName": "n"})), object("free", json!({}))],
                _ => Vec::new(),
            };
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": items});
            Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
        });
        let cluster = Cluster::with_client(kube::Client::new(server, "default"));
        let gate = Gate::new(None, CancellationToken::new());
        let events = EventRecorder::start(&cluster, COMPONENT, "test");
        let evictions = EventRecorder::start(&cluster, EVICTION_COMPONENT, "test");
        let controller = Arc::new(NodeLifecycle::new(Context { gate, events, cluster }, evictions));
        controller.synced().await;
        let mut feeds = JoinSet::new();
        controller.spawn_feeds(&mut feeds);
        tokio::time::sleep(Duration::from_secs(1)).await;
        drain(&controller).await;
        controller.queue.request_resync();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let items = drain(&controller).await;
        assert_eq!(items, [WorkItem::Node("n".into()), WorkItem::Pod(Key::namespaced("ns", "bound"))]);
    }
}
