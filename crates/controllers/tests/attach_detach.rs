//! The attach/detach controller on the embedded API, with an attacher and node agents of a few lines.

#![allow(clippy::unwrap_used)] // helpers of tests, where a panic is the answer

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
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
use wharf_controllers::attach_detach::{self, COMPONENT, Settings};
use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSIDriver, Event, Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeAttachment, VolumeName,
};

const FINALIZER: &str = "external-attacher/d-test";
/// Nothing here takes so long.
const LONG: Duration = Duration::from_secs(20);
/// What was not done by then is not done because it must not be.
const SETTLED: Duration = Duration::from_millis(400);

/// An API with all that is no part of the controller; gone when it is dropped.
struct Embedded {
    api: Api,
    cluster: Cluster,
    tasks: Vec<JoinHandle<()>>,
    /// Whether the attacher saw a volume on two nodes.
    two_nodes: Arc<AtomicBool>,
    /// Whether the controller's reports to nodes are refused.
    mute: Arc<AtomicBool>,
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

/// The same, but what it says to nodes may be refused.
fn client_that_may_fail(api: &Api, mute: Arc<AtomicBool>) -> Cluster {
    let inner = api.service::<kube::client::Body>(User::admin());
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (mut inner, mute) = (inner.clone(), Arc::clone(&mute));
        async move {
            let path = request.uri().path();
            let told = path.starts_with("/api/v1/nodes/") && path.ends_with("/status");
            if told && request.method() == "PATCH" && mute.load(Ordering::Relaxed) {
                let body = Full::new(Bytes::from("{}")).map_err(Into::into).boxed_unsync();
                return Ok::<_, Infallible>(Response::builder().status(500).body(body).unwrap());
            }
            inner.call(request).await
        }
    });
    Cluster::with_client(kube::Client::new(service, "default"))
}

impl Embedded {
    async fn start() -> Self {
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
        let mute = Arc::default();
        Self { api, cluster, tasks: vec![beside, attacher], two_nodes, mute, _dir: dir }
    }

    /// A controller of its own, which stops with the answer.
    fn controller(&self, settings: Settings) -> Controller {
        let cluster = client_that_may_fail(&self.api, Arc::clone(&self.mute));
        let stop = CancellationToken::new();
        let events = Events::start(&cluster, COMPONENT, "test");
        let context = Context { gate: Gate::new(None, stop.clone()), events, cluster };
        Controller { stop, task: tokio::spawn(attach_detach::run(context, settings)) }
    }

    async fn create<K: Kind>(&self, namespace: Option<&str>, mut body: Value) -> Value {
        body["apiVersion"] = json!(K::API.api_version());
        body["kind"] = json!(K::API.kind);
        self.cluster.create(&K::API, namespace, &body).await.unwrap()
    }

    async fn status<K: Kind>(&self, key: &Key, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.cluster.patch(&K::API, key, Some("status"), patch).await.unwrap();
    }

    async fn node(&self, name: &str) {
        let annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        self.create::<Node>(None, json!({"metadata": {"name": name, "annotations": annotations}})).await;
        self.ready(name, "True").await;
    }

    async fn ready(&self, node: &str, status: &str) {
        let conditions = json!([{"type": "Ready", "status": status}]);
        self.status::<Node>(&Key::cluster(node), json!({"conditions": conditions})).await;
    }

    async fn in_use(&self, node: &str, volumes: &[&VolumeName]) {
        let names: Vec<String> = volumes.iter().map(|volume| volume.to_string()).collect();
        self.status::<Node>(&Key::cluster(node), json!({"volumesInUse": names})).await;
    }

    /// A claim and its volume, bound to each other.
    async fn volume(&self, name: &str, modes: &[&str]) -> VolumeName {
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
        let key = Key::namespaced("default", name);
        self.status::<PersistentVolumeClaim>(&key, json!({"phase": "Bound"})).await;
        VolumeName { driver: "d.test".into(), handle }
    }

    async fn pod(&self, name: &str, node: &str, claim: &str) {
        let spec = json!({
            "nodeName": node,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        });
        self.create::<Pod>(Some("default"), json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    /// A pod is gone for good, as when its node has cleared it away.
    async fn end_pod(&self, name: &str) {
        let key = Key::namespaced("default", name);
        self.status::<Pod>(&key, json!({"phase": "Succeeded"})).await;
    }

    async fn attachment(&self, volume: &VolumeName, node: &str) -> Option<VolumeAttachment> {
        self.cluster.get(&Key::cluster(volume.attachment(node))).await.unwrap()
    }

    async fn told(&self, volume: &VolumeName, node: &str) -> bool {
        let node = self.cluster.get::<Node>(&Key::cluster(node)).await.unwrap().unwrap();
        node.status.volumes_attached.iter().any(|attached| attached.name == volume.to_string())
    }

    /// Attached, and the node knows.
    async fn attached(&self, volume: &VolumeName, node: &str) {
        self.until(&format!("{volume} is attached to {node}"), async || {
            let attachment = self.attachment(volume, node).await;
            attachment.is_some_and(|attachment| attachment.status.attached) && self.told(volume, node).await
        })
        .await;
    }

    async fn detached(&self, volume: &VolumeName, node: &str) {
        self.until(&format!("{volume} is detached from {node}"), async || {
            self.attachment(volume, node).await.is_none() && !self.told(volume, node).await
        })
        .await;
    }

    async fn events(&self, reason: &str) -> Vec<String> {
        let listed = self.cluster.list::<Event>(&WatchOptions::default()).await.unwrap();
        listed.items.into_iter().filter(|event| event.reason == reason).map(|event| event.message).collect()
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
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

    fn assert_never_on_two_nodes(&self) {
        assert!(!self.two_nodes.load(Ordering::Relaxed), "a volume for one node was on two");
    }
}

/// A controller that runs.
struct Controller {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Controller {
    async fn stopped(self) {
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

/// co.md 1.3, from a pod's coming to its end: the handshake with the node.
#[tokio::test]
async fn a_volume_comes_and_goes() {
    let api = Embedded::start().await;
    api.node("a").await;
    let volume = api.volume("one", &["ReadWriteOnce"]).await;
    let controller = api.controller(Settings::default());
    api.pod("p", "a", "one").await;
    api.attached(&volume, "a").await;
    let attachment = api.attachment(&volume, "a").await.unwrap();
    assert_eq!(attachment.spec.attacher, "d.test");
    assert_eq!(attachment.spec.source.persistent_volume_name.as_deref(), Some("one"));
    api.until("the pod is told", async || {
        let words = "AttachVolume.Attach succeeded for volume \"one\" ";
        api.events("SuccessfulAttachVolume").await.iter().any(|note| note == words)
    })
    .await;

    api.in_use("a", &[&volume]).await;
    api.end_pod("p").await;
    sleep(SETTLED).await;
    assert!(api.attachment(&volume, "a").await.is_some_and(|a| !a.metadata.is_deleting()), "it is in use");
    assert!(api.told(&volume, "a").await, "it is in use");

    api.in_use("a", &[]).await;
    api.detached(&volume, "a").await;
    controller.stopped().await;
}

/// co.md 1.3 "PATCH node.status.volumesAttached FIRST; on failure put it back and skip".
/// Test_Run_UpdateNodeStatusFailBeforeOneVolumeDetachNodeWithReadWriteOnce.
#[tokio::test]
async fn what_a_node_was_not_told_is_not_done() {
    let api = Embedded::start().await;
    api.node("a").await;
    let volume = api.volume("one", &["ReadWriteOnce"]).await;
    let controller = api.controller(Settings::default());
    api.pod("p", "a", "one").await;
    api.attached(&volume, "a").await;
    api.mute.store(true, Ordering::Relaxed);
    api.end_pod("p").await;
    sleep(SETTLED).await;
    assert!(api.attachment(&volume, "a").await.is_some_and(|a| !a.metadata.is_deleting()), "it was not told");
    assert!(api.told(&volume, "a").await);
    api.mute.store(false, Ordering::Relaxed);
    api.detached(&volume, "a").await;
    controller.stopped().await;
}

/// co.md 4 item 4: a move is no error, and the volume is never on both nodes.
#[tokio::test]
async fn a_volume_moves() {
    let api = Embedded::start().await;
    api.node("a").await;
    api.node("b").await;
    let volume = api.volume("one", &["ReadWriteOnce"]).await;
    let controller = api.controller(Settings::default());
    for round in 0..4 {
        let (from, to) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
        api.pod(&format!("p{round}"), from, "one").await;
        api.attached(&volume, from).await;
        api.in_use(from, &[&volume]).await;
        api.end_pod(&format!("p{round}")).await;
        api.pod(&format!("q{round}"), to, "one").await;
        sleep(SETTLED / 8).await;
        assert!(api.attachment(&volume, to).await.is_none(), "it is in use");
        api.in_use(from, &[]).await;
        api.attached(&volume, to).await;
        api.detached(&volume, from).await;
        api.end_pod(&format!("q{round}")).await;
        api.detached(&volume, to).await;
    }
    api.assert_never_on_two_nodes();
    assert_eq!(api.events("FailedAttachVolume").await, [""; 0]);
    controller.stopped().await;
}

/// co.md 1.3 "Multi-Attach error", and many nodes where the modes allow it.
#[tokio::test]
async fn one_node_or_many() {
    let api = Embedded::start().await;
    api.node("a").await;
    api.node("b").await;
    let one = api.volume("one", &["ReadWriteOnce"]).await;
    let many = api.volume("many", &["ReadWriteMany"]).await;
    let controller = api.controller(Settings::default());
    for (name, node, claim, volume) in
        [("p", "a", "one", &one), ("r", "a", "many", &many), ("s", "b", "many", &many)]
    {
        api.pod(name, node, claim).await;
        api.attached(volume, node).await;
    }
    api.pod("q", "b", "one").await;
    api.until("the second is told", async || {
        let words = "Multi-Attach error for volume \"one\" Volume is already used by pod(s) p";
        api.events("FailedAttachVolume").await.iter().any(|note| note == words)
    })
    .await;
    assert!(api.attachment(&one, "b").await.is_none());
    api.end_pod("p").await;
    api.attached(&one, "b").await;
    api.detached(&one, "a").await;
    controller.stopped().await;
}

/// co.md 4 item 8: what was left behind is cleared away, what is wanted stays.
#[tokio::test]
async fn a_restart_leaves_nothing_dangling() {
    let api = Embedded::start().await;
    api.node("a").await;
    let (kept, left) =
        (api.volume("kept", &["ReadWriteOnce"]).await, api.volume("left", &["ReadWriteOnce"]).await);
    let controller = api.controller(Settings::default());
    for (pod, claim, volume) in [("p", "kept", &kept), ("q", "left", &left)] {
        api.pod(pod, "a", claim).await;
        api.attached(volume, "a").await;
    }
    let uid = api.attachment(&kept, "a").await.unwrap().metadata.uid;
    controller.stopped().await;
    api.end_pod("q").await;
    // An upstream that died in mid-attach: asked for, never told, and nobody wants it.
    let dangling = api.volume("dangling", &["ReadWriteOnce"]).await;
    let source = json!({"persistentVolumeName": "dangling"});
    let spec = json!({"attacher": "d.test", "nodeName": "a", "source": source});
    let name = dangling.attachment("a");
    api.create::<VolumeAttachment>(None, json!({"metadata": {"name": name}, "spec": spec})).await;

    let controller = api.controller(Settings::default());
    api.detached(&left, "a").await;
    api.detached(&dangling, "a").await;
    sleep(SETTLED).await;
    assert_eq!(api.attachment(&kept, "a").await.unwrap().metadata.uid, uid);
    assert!(api.told(&kept, "a").await);
    controller.stopped().await;
}

/// co.md 1.3 "force": a node that is not well has its time, one that is well has for ever.
#[tokio::test]
async fn a_node_that_is_not_well() {
    let api = Embedded::start().await;
    api.node("a").await;
    api.node("b").await;
    let volume = api.volume("one", &["ReadWriteOnce"]).await;
    let wait = SETTLED / 4;
    let controller = api.controller(Settings { max_wait_for_unmount: wait, ..Settings::default() });
    api.pod("p", "a", "one").await;
    api.attached(&volume, "a").await;
    api.in_use("a", &[&volume]).await;
    api.end_pod("p").await;
    api.pod("q", "b", "one").await;
    sleep(SETTLED).await;
    assert!(api.attachment(&volume, "a").await.is_some_and(|a| !a.metadata.is_deleting()), "it is well");
    api.ready("a", "Unknown").await;
    api.detached(&volume, "a").await;
    api.attached(&volume, "b").await;
    api.assert_never_on_two_nodes();
    controller.stopped().await;
}

/// co.md 1.3 "DSW": nodes and drivers that are not ours. Somebody who deletes an attachment gets it back.
#[tokio::test]
async fn what_is_left_alone_and_what_comes_back() {
    let api = Embedded::start().await;
    api.create::<Node>(None, json!({"metadata": {"name": "alone"}})).await;
    api.node("a").await;
    api.create::<CSIDriver>(None, json!({"metadata": {"name": "d.test"}, "spec": {"attachRequired": true}}))
        .await;
    let volume = api.volume("one", &["ReadWriteMany"]).await;
    let controller = api.controller(Settings::default());
    api.pod("p", "alone", "one").await;
    api.pod("q", "a", "one").await;
    api.attached(&volume, "a").await;
    assert!(api.attachment(&volume, "alone").await.is_none());

    let uid = api.attachment(&volume, "a").await.unwrap().metadata.uid;
    let key = Key::cluster(volume.attachment("a"));
    api.cluster.delete(&VolumeAttachment::API, &key, Preconditions::default()).await.unwrap();
    api.until("there is another", async || {
        api.attachment(&volume, "a").await.is_some_and(|attachment| attachment.metadata.uid != uid)
    })
    .await;
    api.attached(&volume, "a").await;
    controller.stopped().await;
}
