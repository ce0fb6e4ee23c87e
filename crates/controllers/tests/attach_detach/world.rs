//! The embedded API with an attacher and node agents of a few lines, and the controller between them.

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
use wharf_cluster::{Cluster, Events, Patch, Preconditions, WatchOptions};
use wharf_controllers::Context;
use wharf_controllers::attach_detach::{self, COMPONENT, Metrics, Settings};
use wharf_model::whole::{Node, Pod};
use wharf_model::{Event, Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeAttachment, VolumeName};

const FINALIZER: &str = "external-attacher/d-test";
/// Nothing here takes so long.
const LONG: Duration = Duration::from_secs(20);
/// What was not done by then is not done because it must not be.
pub(crate) const SETTLED: Duration = Duration::from_millis(400);

/// An API with all that is no part of the controller; gone when it is dropped.
pub(crate) struct Embedded {
    api: Api,
    pub(crate) cluster: Cluster,
    tasks: Vec<JoinHandle<()>>,
    /// Whether the attacher saw a volume on two nodes.
    two_nodes: Arc<AtomicBool>,
    /// What the controller asks for in vain.
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

/// Requests that fail: a method, and what their paths begin and end with.
type Refused = Arc<Mutex<Option<(&'static str, &'static str, &'static str)>>>;

/// The same, but some of what it asks for may be refused.
fn client_that_may_fail(api: &Api, refused: Refused) -> Cluster {
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
        let beside = tokio::spawn({
            let api = api.clone();
            async move { api.run().await }
        });
        let two_nodes = Arc::new(AtomicBool::new(false));
        let attacher = tokio::spawn(attacher(client(&api), Arc::clone(&two_nodes)));
        let cluster = client(&api);
        let refused = Arc::default();
        Self { api, cluster, tasks: vec![beside, attacher], two_nodes, refused, _dir: dir }
    }

    /// One with these nodes, a volume for one node, and a controller.
    pub(crate) async fn with(nodes: &[&str], settings: Settings) -> (Self, VolumeName, Controller) {
        let api = Self::start().await;
        for node in nodes {
            api.node(node).await;
        }
        let volume = api.volume("one", &["ReadWriteOnce"]).await;
        let controller = api.controller(settings);
        (api, volume, controller)
    }

    /// Requests of this method, whose paths begin and end so, fail from now on; `None`: none does.
    pub(crate) fn refuse(&self, requests: Option<(&'static str, &'static str, &'static str)>) {
        *self.refused.lock().unwrap() = requests;
    }

    /// A controller of its own, which stops with the answer.
    pub(crate) fn controller(&self, settings: Settings) -> Controller {
        let cluster = client_that_may_fail(&self.api, Arc::clone(&self.refused));
        let stop = CancellationToken::new();
        let events = Events::start(&cluster, COMPONENT, "test");
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

    pub(crate) async fn in_use(&self, node: &str, volumes: &[&VolumeName]) {
        let names: Vec<String> = volumes.iter().map(|volume| volume.to_string()).collect();
        self.status::<Node>(&Key::cluster(node), json!({"volumesInUse": names})).await;
    }

    /// A claim and its volume, bound to each other.
    pub(crate) async fn volume(&self, name: &str, modes: &[&str]) -> VolumeName {
        let volume = self.volume_of_claim(name, modes).await;
        self.bound(name).await;
        volume
    }

    pub(crate) async fn bound(&self, claim: &str) {
        let key = Key::namespaced("default", claim);
        self.status::<PersistentVolumeClaim>(&key, json!({"phase": "Bound"})).await;
    }

    /// The same before the claim says that it is bound.
    pub(crate) async fn volume_of_claim(&self, name: &str, modes: &[&str]) -> VolumeName {
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
        VolumeName { driver: "d.test".into(), handle }
    }

    pub(crate) async fn pod(&self, name: &str, node: &str, claim: &str) {
        let spec = json!({
            "nodeName": node,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        });
        self.create::<Pod>(Some("default"), json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    /// A pod is gone for good, as when its node has cleared it away.
    pub(crate) async fn end_pod(&self, name: &str) {
        let key = Key::namespaced("default", name);
        self.status::<Pod>(&key, json!({"phase": "Succeeded"})).await;
    }

    pub(crate) async fn attachment(&self, volume: &VolumeName, node: &str) -> Option<VolumeAttachment> {
        self.cluster.get(&Key::cluster(volume.attachment(node))).await.unwrap()
    }

    pub(crate) async fn told(&self, volume: &VolumeName, node: &str) -> bool {
        let node = self.cluster.get::<Node>(&Key::cluster(node)).await.unwrap().unwrap();
        node.status.volumes_attached.iter().any(|attached| attached.name == volume.to_string())
    }

    /// Attached, and the node knows.
    pub(crate) async fn attached(&self, volume: &VolumeName, node: &str) {
        self.until(&format!("{volume} is attached to {node}"), async || {
            let attachment = self.attachment(volume, node).await;
            attachment.is_some_and(|attachment| attachment.status.attached) && self.told(volume, node).await
        })
        .await;
    }

    /// A pod that uses a volume there, and has it.
    pub(crate) async fn pod_with(&self, pod: &str, node: &str, volume: &VolumeName) {
        let claim = volume.handle.strip_prefix("handle-").unwrap();
        self.pod(pod, node, claim).await;
        self.attached(volume, node).await;
    }

    /// Nobody has asked for the end of it, and nobody does.
    pub(crate) async fn stays(&self, volume: &VolumeName, node: &str, why: &str) {
        sleep(SETTLED).await;
        let attachment = self.attachment(volume, node).await;
        assert!(attachment.is_some_and(|attachment| !attachment.metadata.is_deleting()), "{why}");
    }

    pub(crate) async fn detached(&self, volume: &VolumeName, node: &str) {
        self.until(&format!("{volume} is detached from {node}"), async || {
            self.attachment(volume, node).await.is_none() && !self.told(volume, node).await
        })
        .await;
    }

    pub(crate) async fn events(&self, reason: &str) -> Vec<String> {
        let listed = self.cluster.list::<Event>(&WatchOptions::default()).await.unwrap();
        listed.items.into_iter().filter(|event| event.reason == reason).map(|event| event.message).collect()
    }

    pub(crate) async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let wait = async {
            while !holds().await {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(LONG, wait).await.is_err() {
            let attachments = self.cluster.list::<VolumeAttachment>(&WatchOptions::default()).await.unwrap();
            panic!("never: {what}; there are {:#?}", attachments.items);
        }
    }

    pub(crate) fn assert_never_on_two_nodes(&self) {
        assert!(!self.two_nodes.load(Ordering::Relaxed), "a volume for one node was on two");
    }
}

/// A controller that runs.
pub(crate) struct Controller {
    stop: CancellationToken,
    task: JoinHandle<()>,
    metrics: Metrics,
}

impl Controller {
    /// The page of what it has counted.
    pub(crate) fn counted(&self) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.metrics.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        text
    }

    pub(crate) async fn stopped(self) {
        self.stop.cancel();
        timeout(LONG, self.task).await.unwrap().unwrap();
    }
}

/// Attaches and detaches what it is asked to, at once, as external-attacher would.
async fn attacher(cluster: Cluster, two_nodes: Arc<AtomicBool>) {
    let store = cluster.store::<VolumeAttachment>(WatchOptions::default());
    let mut changes = store.changes();
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
