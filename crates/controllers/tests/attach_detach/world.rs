//! The embedded API server with a minimal attacher and node agents, and the controller.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::Service as _;
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::store;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder, Patch, Preconditions, WatchOptions};
use wharf_controllers::Context;
use wharf_controllers::attach_detach::{self, COMPONENT, Metrics, Settings};
use wharf_model::{
    Event, Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod, UniqueVolumeName, VolumeAttachment,
};

const FINALIZER: &str = "external-attacher/d-test";
/// Longer than any step takes.
const TIMEOUT: Duration = Duration::from_secs(20);
/// An action that did not happen within this time is taken as not happening.
pub(crate) const SETTLED: Duration = Duration::from_millis(400);

/// The API server and everything outside the controller; stopped on drop.
pub(crate) struct Embedded {
    api: Api,
    pub(crate) cluster: Cluster,
    tasks: Vec<JoinHandle<()>>,
    /// Whether the attacher observed a volume on two nodes.
    two_nodes: Arc<AtomicBool>,
    /// Requests of the controller that are rejected.
    refused: Refused,
    _dir: TempDir,
}

impl Drop for Embedded {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn client(api: &Api) -> Cluster {
    Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"))
}

/// Requests to reject: the method, and the start and end of the path.
type Refused = Arc<Mutex<Option<(&'static str, &'static str, &'static str)>>>;

/// A client whose requests may be rejected.
fn faulty_client(api: &Api, refused: Refused) -> Cluster {
    let inner = api.service::<kube::client::Body>(User::admin());
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (mut inner, refused) = (inner.clone(), *refused.lock().unwrap());
        async move {
            let path = request.uri().path();
            if refused.is_some_and(|(method, start, end)| {
                request.method() == method && path.starts_with(start) && path.ends_with(end)
            }) {
                let body = Full::new(Bytes::from("{}")).map_err(Into::into).boxed_unsync();
                return Ok::<_, Infallible>(Response::builder().status(500).body(body).unwrap());
            }
            inner.call(request).await
        }
    });
    Cluster::with_client(kube::Client::new(service, "default"))
}

impl Embedded {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = store::Options { sync: false, ..store::Options::default() };
        let store = store::Store::open(dir.path(), options).unwrap();
        let api = Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let server = tokio::spawn({
            let api = api.clone();
            async move { api.run().await }
        });
        let two_nodes = Arc::new(AtomicBool::new(false));
        let attacher = tokio::spawn(attacher(client(&api), Arc::clone(&two_nodes)));
        let cluster = client(&api);
        let refused = Arc::default();
        Self { api, cluster, tasks: vec![server, attacher], two_nodes, refused, _dir: dir }
    }

    /// Starts with these nodes, a single-node volume, and a controller.
    pub(crate) async fn with(nodes: &[&str], settings: Settings) -> (Self, UniqueVolumeName, Controller) {
        let api = Self::start().await;
        for node in nodes {
            api.node(node).await;
        }
        let volume = api.volume("one", &["ReadWriteOnce"]).await;
        let controller = api.controller(settings);
        (api, volume, controller)
    }

    /// Rejects requests with this method, path start and path end from now on; `None` rejects none.
    pub(crate) fn refuse(&self, requests: Option<(&'static str, &'static str, &'static str)>) {
        *self.refused.lock().unwrap() = requests;
    }

    /// Starts a controller.
    pub(crate) fn controller(&self, settings: Settings) -> Controller {
        let cluster = faulty_client(&self.api, Arc::clone(&self.refused));
        let stop = CancellationToken::new();
        let events = EventRecorder::start(&cluster, COMPONENT, "test");
        let context = Context { gate: Gate::new(None, stop.clone()), events, cluster };
        let metrics = Metrics::default();
        let task = tokio::spawn(attach_detach::run(context, settings, metrics.clone()));
        Controller { stop, task, metrics }
    }

    pub(crate) async fn create<K: Kind>(&self, namespace: Option<&str>, mut body: Value) -> Value {
        body["apiVersion"] = json!(K::API.api_version());
        body["kind"] = json!(K::API.kind);
        self.cluster.create(&K::API, namespace, &body).await.unwrap()
    }

    pub(crate) async fn status<K: Kind>(&self, key: &Key, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.cluster.patch(&K::API, key, Some("status"), patch).await.unwrap();
    }

    pub(crate) async fn node(&self, name: &str) {
        let annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        self.create::<Node>(None, json!({"metadata": {"name": name, "annotations": annotations}})).await;
        self.ready(name, "True").await;
    }

    pub(crate) async fn ready(&self, node: &str, status: &str) {
        let conditions = json!([{"type": "Ready", "status": status}]);
        self.status::<Node>(&Key::cluster(node), json!({"conditions": conditions})).await;
    }

    pub(crate) async fn delete<K: Kind>(&self, key: &Key) {
        self.cluster.delete(&K::API, key, Preconditions::default()).await.unwrap();
    }

    pub(crate) async fn in_use(&self, node: &str, volumes: &[&UniqueVolumeName]) {
        let names: Vec<String> = volumes.iter().map(|volume| volume.to_string()).collect();
        self.status::<Node>(&Key::cluster(node), json!({"volumesInUse": names})).await;
    }

    /// Creates a claim and a volume that are bound to each other.
    pub(crate) async fn volume(&self, name: &str, modes: &[&str]) -> UniqueVolumeName {
        let volume = self.volume_of_claim(name, modes).await;
        self.bound(name).await;
        volume
    }

    pub(crate) async fn bound(&self, claim: &str) {
        let key = Key::namespaced("default", claim);
        self.status::<PersistentVolumeClaim>(&key, json!({"phase": "Bound"})).await;
    }

    /// Creates a claim and a volume that reference each other, before the claim's phase is Bound.
    pub(crate) async fn volume_of_claim(&self, name: &str, modes: &[&str]) -> UniqueVolumeName {
        let resources = json!({"requests": {"storage": "1Gi"}});
        let spec = json!({
            "accessModes": modes, "volumeName": name, "storageClassName": "", "resources": resources,
        });
        let claim = self
            .create::<PersistentVolumeClaim>(
                Some("default"),
                json!({"metadata": {"name": name}, "spec": spec}),
            )
            .await;
        let claim_ref = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": "default", "name": name, "uid": claim["metadata"]["uid"],
        });
        let handle = format!("handle-{name}");
        let spec = json!({
            "accessModes": modes,
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": "d.test", "volumeHandle": handle},
            "claimRef": claim_ref,
        });
        self.create::<PersistentVolume>(None, json!({"metadata": {"name": name}, "spec": spec})).await;
        UniqueVolumeName { driver: "d.test".into(), handle }
    }

    pub(crate) async fn pod(&self, name: &str, node: &str, claim: &str) {
        let spec = json!({
            "nodeName": node,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        });
        self.create::<Pod>(Some("default"), json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    /// Terminates a pod.
    pub(crate) async fn end_pod(&self, name: &str) {
        let key = Key::namespaced("default", name);
        self.status::<Pod>(&key, json!({"phase": "Succeeded"})).await;
    }

    pub(crate) async fn attachment(&self, volume: &UniqueVolumeName, node: &str) -> Option<VolumeAttachment> {
        self.cluster.get(&Key::cluster(volume.attachment_name(node))).await.unwrap()
    }

    pub(crate) async fn is_reported(&self, volume: &UniqueVolumeName, node: &str) -> bool {
        let node = self.cluster.get::<Node>(&Key::cluster(node)).await.unwrap().unwrap();
        node.status.volumes_attached.iter().any(|attached| attached.name == volume.to_string())
    }

    /// Waits until the volume is attached and the node's status lists it.
    pub(crate) async fn wait_attached(&self, volume: &UniqueVolumeName, node: &str) {
        self.wait_until(&format!("{volume} is attached to {node}"), async || {
            let attachment = self.attachment(volume, node).await;
            attachment.is_some_and(|attachment| attachment.status.attached)
                && self.is_reported(volume, node).await
        })
        .await;
    }

    /// Creates a pod that uses the volume, and waits until it is attached.
    pub(crate) async fn pod_attached(&self, pod: &str, node: &str, volume: &UniqueVolumeName) {
        let claim = volume.handle.strip_prefix("handle-").unwrap();
        self.pod(pod, node, claim).await;
        self.wait_attached(volume, node).await;
    }

    /// Asserts that the VolumeAttachment exists and is not deleted.
    pub(crate) async fn assert_stays_attached(&self, volume: &UniqueVolumeName, node: &str, reason: &str) {
        sleep(SETTLED).await;
        let attachment = self.attachment(volume, node).await;
        assert!(attachment.is_some_and(|attachment| !attachment.metadata.is_deleting()), "{reason}");
    }

    pub(crate) async fn wait_detached(&self, volume: &UniqueVolumeName, node: &str) {
        self.wait_until(&format!("{volume} is detached from {node}"), async || {
            self.attachment(volume, node).await.is_none() && !self.is_reported(volume, node).await
        })
        .await;
    }

    pub(crate) async fn events(&self, reason: &str) -> Vec<String> {
        let listed = self.cluster.list::<Event>(&WatchOptions::default()).await.unwrap();
        listed.items.into_iter().filter(|event| event.reason == reason).map(|event| event.message).collect()
    }

    pub(crate) async fn wait_until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let wait = async {
            while !holds().await {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(TIMEOUT, wait).await.is_err() {
            let attachments = self.cluster.list::<VolumeAttachment>(&WatchOptions::default()).await.unwrap();
            panic!("timed out waiting for: {what}; attachments: {:#?}", attachments.items);
        }
    }

    pub(crate) fn assert_never_on_two_nodes(&self) {
        assert!(!self.two_nodes.load(Ordering::Relaxed), "a single-node volume was on two nodes");
    }
}

/// A running controller.
pub(crate) struct Controller {
    stop: CancellationToken,
    task: JoinHandle<()>,
    metrics: Metrics,
}

impl Controller {
    /// Its metrics as text.
    pub(crate) fn metrics_text(&self) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.metrics.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        text
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        timeout(TIMEOUT, self.task).await.unwrap().unwrap();
    }
}

/// Attaches and detaches at once, as external-attacher would.
async fn attacher(cluster: Cluster, two_nodes: Arc<AtomicBool>) {
    let store = cluster.store::<VolumeAttachment>(WatchOptions::default());
    let mut changes = store.subscribe();
    let api = VolumeAttachment::API;
    loop {
        let all = store.all();
        for attachment in &all {
            let (meta, status) = (&attachment.metadata, &attachment.status);
            let key = meta.key();
            if meta.is_deleting() {
                let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                let _ = cluster.patch(&api, &key, None, release).await;
            } else if !status.attached {
                let source = &attachment.spec.source;
                let other = |other: &&Arc<VolumeAttachment>| {
                    other.spec.source == *source && other.metadata.name != meta.name && other.status.attached
                };
                if all.iter().any(|attachment| other(&attachment)) {
                    two_nodes.store(true, Ordering::Relaxed);
                }
                let guard = Patch::Merge(json!({"metadata": {"finalizers": [FINALIZER]}}));
                let _ = cluster.patch(&api, &key, None, guard).await;
                let attached = Patch::Merge(json!({"status": {"attached": true}}));
                let _ = cluster.patch(&api, &key, Some("status"), attached).await;
            }
        }
        if changes.next().await.is_none() {
            return;
        }
    }
}
