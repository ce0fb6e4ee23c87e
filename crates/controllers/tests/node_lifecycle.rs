//! The life cycle of nodes on the embedded API, on simulated time.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tower::Service as _;
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::store::{self, Store};
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder, Patch, Preconditions, WatchOptions};
use wharf_controllers::Context;
use wharf_controllers::node_lifecycle::{COMPONENT, EVICTION_COMPONENT, run};
use wharf_model::system::{OverrideGuard, SystemOverride, override_system};
use wharf_model::{Event, Key, Kind, Lease, Monotonic, Node, Pod, Time};

const LEASES: &str = "kube-node-lease";
/// The request by which the controller reads all leases.
const LEASE_LIST: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Longer than any controller takes, shorter than any of its waits.
const MOMENT: Duration = Duration::from_secs(1);

/// Clocks that follow tokio's paused time.
struct PausedClocks {
    start: Instant,
    random: u64,
}

impl SystemOverride for PausedClocks {
    fn now(&mut self) -> Time {
        Time(1_800_000_000_000).plus(self.start.elapsed())
    }

    fn monotonic(&mut self) -> Monotonic {
        Monotonic(0).plus(self.start.elapsed())
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = self.random.to_be_bytes()[0];
        }
    }
}

/// An API server, nodes, and the controller.
struct World {
    cluster: Cluster,
    /// Requests of the controller to these paths fail.
    refused: Arc<Mutex<Option<&'static str>>>,
    tasks: Vec<JoinHandle<()>>,
    _clocks: OverrideGuard,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl World {
    async fn start() -> Self {
        let clocks = override_system(PausedClocks { start: Instant::now(), random: 1 });
        let store = Store::in_memory(store::Options::default());
        let api = Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let background = api.clone();
        let tasks = vec![tokio::spawn(async move { background.run().await })];
        let cluster = Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"));
        let refused = Arc::<Mutex<Option<&'static str>>>::default();
        let mut world = Self { cluster, refused, tasks, _clocks: clocks };
        let controller = world.controller_client(&api);
        let recorder = |component| EventRecorder::start(&controller, component, "test");
        let (events, evictions) = (recorder(COMPONENT), recorder(EVICTION_COMPONENT));
        let gate = Gate::new(None, CancellationToken::new());
        world.tasks.push(tokio::spawn(run(Context { cluster: controller, gate, events }, evictions)));
        sleep(MOMENT).await;
        world
    }

    fn controller_client(&self, api: &Api) -> Cluster {
        let (inner, refused) = (api.service::<kube::client::Body>(User::admin()), Arc::clone(&self.refused));
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (mut inner, refused) = (inner.clone(), *refused.lock().unwrap());
            async move {
                if refused == Some(request.uri().path()) {
                    let body = Full::new(Bytes::from("{}")).map_err(Into::into).boxed_unsync();
                    return Ok::<_, Infallible>(Response::builder().status(500).body(body).unwrap());
                }
                inner.call(request).await
            }
        });
        Cluster::with_client(kube::Client::new(service, "default"))
    }

    async fn create<K: Kind>(&self, namespace: Option<&str>, mut body: Value) -> Value {
        body["apiVersion"] = json!(K::API.api_version());
        body["kind"] = json!(K::API.kind);
        self.cluster.create(&K::API, namespace, &body).await.unwrap()
    }

    async fn status<K: Kind>(&self, key: &Key, status: Value) {
        let patch = Patch::Strategic(json!({"status": status}));
        self.cluster.patch(&K::API, key, Some("status"), patch).await.unwrap();
    }

    /// Creates a node that is Ready and renews its lease while the result is true.
    async fn node(&mut self, name: &'static str) -> Arc<AtomicBool> {
        self.create::<Node>(None, json!({"metadata": {"name": name}})).await;
        self.report(name).await;
        self.create::<Lease>(Some(LEASES), json!({"metadata": {"name": name}, "spec": {}})).await;
        let (alive, cluster) = (Arc::new(AtomicBool::new(true)), self.cluster.clone());
        let renews = Arc::clone(&alive);
        self.tasks.push(tokio::spawn(async move {
            loop {
                let at = format!("{}.000000Z", wharf_cluster::now().to_string().trim_end_matches('Z'));
                if renews.load(Ordering::Relaxed) {
                    let patch = Patch::Merge(json!({"spec": {"renewTime": at}}));
                    cluster.patch(&Lease::API, &Key::namespaced(LEASES, name), None, patch).await.unwrap();
                }
                sleep(Duration::from_secs(10)).await;
            }
        }));
        alive
    }

    /// As a node agent does when it has started or found its condition changed.
    async fn report(&self, node: &str) {
        let at = wharf_cluster::now().to_string();
        let ready =
            json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": at});
        self.status::<Node>(&Key::cluster(node), json!({"conditions": [ready]})).await;
    }

    /// Creates a Ready pod on a node, with these tolerations besides the default ones.
    async fn pod(&self, name: &str, node: &str, tolerations: Value) {
        self.create::<Pod>(
            Some("default"),
            json!({"metadata": {"name": name}, "spec": {
                "nodeName": node, "automountServiceAccountToken": false, "tolerations": tolerations,
                "containers": [{"name": "c", "image": "i"}],
            }}),
        )
        .await;
        let ready = json!({"type": "Ready", "status": "True"});
        self.status::<Pod>(&pod_key(name), json!({"phase": "Running", "conditions": [ready]})).await;
    }

    async fn get<K: Kind>(&self, key: &Key) -> Option<Value> {
        self.cluster.get_raw(&K::API, key).await.unwrap()
    }

    /// The status and reason of a condition.
    async fn condition<K: Kind>(&self, key: &Key, kind: &str) -> Option<(String, String)> {
        let object = self.get::<K>(key).await?;
        let conditions = object["status"]["conditions"].as_array()?;
        let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        Some((text("status"), text("reason")))
    }

    async fn ready(&self, node: &str) -> String {
        self.condition::<Node>(&Key::cluster(node), "Ready").await.unwrap().0
    }

    /// The taints of a node, without their common prefix.
    async fn taints(&self, node: &str) -> Vec<String> {
        let node = self.get::<Node>(&Key::cluster(node)).await.unwrap();
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let text = |taint: &Value, field: &str| taint[field].as_str().unwrap().to_owned();
        let name = |taint: &Value| {
            format!(
                "{}:{}",
                text(taint, "key").trim_start_matches("node.kubernetes.io/"),
                text(taint, "effect")
            )
        };
        taints.iter().map(name).collect()
    }

    async fn is_deleting(&self, pod: &str) -> bool {
        self.get::<Pod>(&pod_key(pod))
            .await
            .is_none_or(|pod| pod["metadata"].get("deletionTimestamp").is_some())
    }

    /// The reasons and messages of all events on an object.
    async fn events<K: Kind>(&self, key: &Key) -> Vec<String> {
        let object = self.get::<K>(key).await.unwrap();
        let events = self.cluster.list::<Event>(&WatchOptions::default()).await.unwrap().items;
        let of_object =
            events.iter().filter(|event| object["metadata"]["uid"] == event.regarding_uid.as_str());
        of_object.map(|event| format!("{}: {}", event.reason, event.message)).collect()
    }
}

fn pod_key(name: &str) -> Key {
    Key::namespaced("default", name)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A-M2: a joined node gets pods, a lost one loses them, and one that comes back gets pods again.
/// kubernetes.md 1.9 "Lost node", "Taints", "Eviction", "Pods of a lost node".
#[tokio::test(start_paused = true)]
async fn lost_node_becomes_unknown_and_loses_its_pods_after_their_tolerations() {
    let mut world = World::start().await;
    let (_other, lost) = (world.node("other").await, world.node("lost").await);
    sleep(MOMENT).await;
    assert!(world.taints("lost").await.is_empty(), "U-6: a joined node is schedulable");
    let unreachable = "node.kubernetes.io/unreachable";
    let at_once =
        json!([{"key": unreachable, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]);
    world.pod("quick", "lost", at_once).await;
    world.pod("default", "lost", json!([])).await;
    world.pod("stays", "lost", json!([{"operator": "Exists"}])).await;
    world.pod("elsewhere", "other", json!([])).await;

    lost.store(false, Ordering::Relaxed);
    sleep(seconds(45)).await;
    assert_eq!((world.ready("lost").await.as_str(), world.taints("lost").await.len()), ("True", 0));
    sleep(seconds(25)).await;
    assert_eq!(world.ready("lost").await, "Unknown");
    assert_eq!(world.taints("lost").await, ["unreachable:NoSchedule", "unreachable:NoExecute"]);
    assert_eq!(
        world.events::<Node>(&Key::cluster("lost")).await,
        ["NodeNotReady: Node lost status is now: NodeNotReady"]
    );
    assert_eq!(world.condition::<Pod>(&pod_key("stays"), "Ready").await.unwrap().0, "False");
    assert_eq!(world.events::<Pod>(&pod_key("stays")).await, ["NodeNotReady: Node is not ready"]);
    assert!(world.is_deleting("quick").await && !world.is_deleting("default").await);
    let target = world.condition::<Pod>(&pod_key("quick"), "DisruptionTarget").await.unwrap();
    assert_eq!(target, ("True".to_owned(), "DeletionByTaintManager".to_owned()));
    let events = world.events::<Pod>(&pod_key("quick")).await;
    assert!(
        events.contains(&"TaintManagerEviction: Marking for deletion Pod default/quick".to_owned()),
        "{events:?}"
    );

    sleep(seconds(270)).await;
    assert!(!world.is_deleting("default").await);
    sleep(seconds(40)).await;
    assert!(world.is_deleting("default").await, "after 300 s");
    assert!(!world.is_deleting("stays").await && !world.is_deleting("elsewhere").await);
    assert!(
        world.get::<Pod>(&pod_key("default")).await.is_some(),
        "only its node can say that it has stopped"
    );

    lost.store(true, Ordering::Relaxed);
    world.report("lost").await;
    sleep(seconds(15)).await;
    assert_eq!((world.ready("lost").await.as_str(), world.taints("lost").await.len()), ("True", 0));
}

/// A node that comes back in time keeps its pods.
#[tokio::test(start_paused = true)]
async fn node_that_comes_back_keeps_its_pods() {
    let mut world = World::start().await;
    let (_other, lost) = (world.node("other").await, world.node("lost").await);
    world.pod("p", "lost", json!([])).await;
    lost.store(false, Ordering::Relaxed);
    sleep(seconds(200)).await;
    assert_eq!(world.taints("lost").await.len(), 2);
    lost.store(true, Ordering::Relaxed);
    world.report("lost").await;
    sleep(seconds(600)).await;
    assert!(world.taints("lost").await.is_empty() && !world.is_deleting("p").await);
    let events = world.events::<Pod>(&pod_key("p")).await;
    assert!(
        events.contains(&"TaintManagerEviction: Cancelling deletion of Pod default/p".to_owned()),
        "{events:?}"
    );
}

/// kubernetes.md 1.9 "Disruption": the only node is lost, or the leases cannot be read.
#[tokio::test(start_paused = true)]
async fn nothing_is_evicted_without_a_healthy_node_or_without_leases() {
    let tolerations = json!([
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
    ]);
    let mut world = World::start().await;
    let (one, two) = (world.node("one").await, world.node("two").await);
    world.pod("p", "one", tolerations).await;
    *world.refused.lock().unwrap() = Some(LEASE_LIST);
    one.store(false, Ordering::Relaxed);
    sleep(seconds(600)).await;
    assert_eq!(world.ready("one").await, "True", "silence that this process could not observe");
    *world.refused.lock().unwrap() = None;
    sleep(seconds(40)).await;
    assert_eq!(world.ready("one").await, "True", "counted from when the leases were read again");
    two.store(false, Ordering::Relaxed);
    one.store(true, Ordering::Relaxed);
    sleep(seconds(15)).await;
    one.store(false, Ordering::Relaxed);
    sleep(seconds(600)).await;
    for node in ["one", "two"] {
        assert_eq!(world.ready(node).await, "Unknown");
        assert!(world.taints(node).await.contains(&"unreachable:NoSchedule".to_owned()), "{node}");
    }
    assert!(!world.taints("one").await.contains(&"unreachable:NoExecute".to_owned()));
    assert!(!world.is_deleting("p").await);
}

/// While this process cannot observe, a taint may be removed and added again: what it saw before proves nothing.
#[tokio::test(start_paused = true)]
async fn countdown_of_an_eviction_starts_again_after_an_outage() {
    let mut world = World::start().await;
    let (_other, lost) = (world.node("other").await, world.node("lost").await);
    world.pod("p", "lost", json!([])).await;
    lost.store(false, Ordering::Relaxed);
    sleep(seconds(260)).await;
    *world.refused.lock().unwrap() = Some(LEASE_LIST);
    sleep(seconds(300)).await;
    assert!(!world.is_deleting("p").await, "not during the outage");
    *world.refused.lock().unwrap() = None;
    sleep(seconds(250)).await;
    assert!(!world.is_deleting("p").await, "300 s again");
    sleep(seconds(100)).await;
    assert!(world.is_deleting("p").await);
}

/// U-4 and kubernetes.md 1.9 "Pod of a missing node".
#[tokio::test(start_paused = true)]
async fn pod_of_a_missing_node_is_deleted_only_after_a_live_read() {
    let mut world = World::start().await;
    let _alive = world.node("late").await;
    world.cluster.delete(&Node::API, &Key::cluster("late"), Preconditions::default()).await.unwrap();
    *world.refused.lock().unwrap() = Some("/api/v1/nodes/ghost");
    world.pod("lost", "ghost", json!([])).await;
    world.pod("saved", "late", json!([])).await;
    sleep(seconds(30)).await;
    world.create::<Node>(None, json!({"metadata": {"name": "late"}})).await;
    sleep(seconds(60)).await;
    assert!(world.get::<Pod>(&pod_key("lost")).await.is_some(), "the read of the node failed");
    *world.refused.lock().unwrap() = None;
    sleep(seconds(60)).await;
    assert!(world.get::<Pod>(&pod_key("lost")).await.is_none());
    assert!(!world.is_deleting("saved").await);
}

/// kubernetes.md 1.9 "Pod of a node out of service".
#[tokio::test(start_paused = true)]
async fn pods_of_a_node_out_of_service_are_removed_once_it_is_not_ready() {
    let mut world = World::start().await;
    let (_other, off) = (world.node("other").await, world.node("off").await);
    world.pod("p", "off", json!([])).await;
    world.pod("tolerant", "off", json!([{"operator": "Exists"}])).await;
    off.store(false, Ordering::Relaxed);
    sleep(seconds(70)).await;
    assert_eq!(world.ready("off").await, "Unknown");
    let taint = json!([{"op": "add", "path": "/spec/taints/-", "value":
        {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}}]);
    world.cluster.patch(&Node::API, &Key::cluster("off"), None, Patch::Json(taint)).await.unwrap();
    sleep(seconds(5)).await;
    assert!(world.get::<Pod>(&pod_key("p")).await.is_none());
    assert!(!world.is_deleting("tolerant").await);
}
