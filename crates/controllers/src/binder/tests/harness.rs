//! The embedded API server and the controllers, connected by a client that can be cut off at any write.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::rest::{self, Api, Client};
use wharf_apiserver::store;
use wharf_cluster::work::Gate;
use wharf_cluster::{ApiError, Cluster, EventRecorder, Patch, Preconditions, Store, WatchOptions};
use wharf_model::{Event, Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, StorageClass};

use crate::{Context, binder, ephemeral, expand, protection};

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What happens to the write at which the client is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutPoint {
    /// It does not reach the API server.
    Before,
    /// It is applied, and the response is lost.
    After,
}

/// A client that lets a number of writes through and then nothing. Events are not counted: no step depends on them.
#[derive(Clone)]
struct CuttableClient {
    api: Client<kube::client::Body>,
    left: Arc<AtomicUsize>,
    cut: CutPoint,
    cut_reached: Arc<Notify>,
    /// Requests to reject, once each: method, and a part of the path.
    refused: Arc<Mutex<Vec<(&'static str, &'static str)>>>,
}

impl CuttableClient {
    fn refuses(&self, method: &str, path: &str) -> bool {
        let mut refused = self.refused.lock().unwrap();
        let found = refused.iter().position(|(of, part)| *of == method && path.contains(part));
        found.map(|index| refused.remove(index)).is_some()
    }
}

impl tower::Service<http::Request<kube::client::Body>> for CuttableClient {
    type Response = http::Response<rest::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<kube::client::Body>) -> Self::Future {
        if self.refuses(request.method().as_str(), request.uri().path()) {
            let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
            let response = http::Response::builder().status(500).body(body).unwrap();
            return Box::pin(async { Ok(response) });
        }
        let counts = request.method() != http::Method::GET && !request.uri().path().contains("/events");
        let counted = |left: usize| if counts { left.checked_sub(1) } else { Some(left) };
        let alive = self.left.load(Ordering::SeqCst) > 0;
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted);
        let last = counts && before == Ok(1);
        let (cut, cut_reached) = (self.cut, Arc::clone(&self.cut_reached));
        let response = self.api.call(request);
        Box::pin(async move {
            if !alive || (last && cut == CutPoint::Before) {
                cut_reached.notify_one();
                return pending().await;
            }
            let response = response.await;
            if last {
                cut_reached.notify_one();
                return pending().await;
            }
            response
        })
    }
}

/// Running controllers; dropping this kills them.
pub(super) struct Running {
    tasks: JoinSet<()>,
    cut_reached: Arc<Notify>,
    left: Arc<AtomicUsize>,
    refused: Arc<Mutex<Vec<(&'static str, &'static str)>>>,
}

impl Running {
    /// Waits until the client is cut off.
    pub(super) async fn cut_reached(&self) {
        self.cut_reached.notified().await;
    }

    /// Number of writes so far.
    pub(super) fn writes(&self) -> usize {
        usize::MAX - self.left.load(Ordering::SeqCst)
    }

    /// Rejects the next requests with these methods whose paths contain these parts.
    pub(super) fn refuse(&self, requests: &[(&'static str, &'static str)]) {
        self.refused.lock().unwrap().extend(requests);
    }

    /// Whether all of them were sent and rejected.
    pub(super) fn refused_all(&self) -> bool {
        self.refused.lock().unwrap().is_empty()
    }

    /// Kills the controllers, as a crash would.
    pub(super) async fn kill(mut self) {
        self.tasks.shutdown().await;
    }
}

/// The embedded API server, with a client for the test.
pub(super) struct Harness {
    api: Api,
    server: JoinHandle<()>,
    pub(super) cluster: Cluster,
    pub(super) claims: Store<PersistentVolumeClaim>,
    pub(super) volumes: Store<PersistentVolume>,
    _dir: TempDir,
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Harness {
    pub(super) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = store::Options { sync: false, ..store::Options::default() };
        let store = store::Store::open(dir.path(), options).unwrap();
        let api = Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let server = tokio::spawn({
            let api = api.clone();
            async move { api.run().await }
        });
        let cluster = Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"));
        let (claims, volumes) =
            (cluster.store(WatchOptions::default()), cluster.store(WatchOptions::default()));
        Self { api, server, cluster, claims, volumes, _dir: dir }
    }

    /// Starts all controllers with a client that is never cut off.
    pub(super) fn start(&self) -> Running {
        self.start_with_cut(usize::MAX, CutPoint::Before, binder::Settings::default())
    }

    /// Starts all controllers with a client that is cut off at the write with this number.
    pub(super) fn start_with_cut(&self, writes: usize, cut: CutPoint, settings: binder::Settings) -> Running {
        let cut_reached = Arc::new(Notify::new());
        let left = Arc::new(AtomicUsize::new(writes));
        let client = CuttableClient {
            api: self.api.service(User::admin()),
            left: Arc::clone(&left),
            cut,
            cut_reached: Arc::clone(&cut_reached),
            refused: Arc::default(),
        };
        let refused = Arc::clone(&client.refused);
        let cluster = Cluster::with_client(kube::Client::new(client, "default"));
        let gate = Gate::new(None, CancellationToken::new());
        let context = |component: &str| Context {
            cluster: cluster.clone(),
            gate: gate.clone(),
            events: EventRecorder::start(&cluster, component, "test"),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(binder::run(context(binder::COMPONENT), settings));
        tasks.spawn(protection::run(context("protection")));
        tasks.spawn(ephemeral::run(context(ephemeral::COMPONENT)));
        tasks.spawn(expand::run(context(expand::COMPONENT)));
        Running { tasks, cut_reached, left, refused }
    }

    pub(super) async fn create<K: Kind>(&self, body: Value) -> Value {
        let namespace = body.pointer("/metadata/namespace").and_then(Value::as_str).map(str::to_owned);
        self.cluster.create(&K::API, namespace.as_deref(), &body).await.unwrap()
    }

    pub(super) async fn patch<K: Kind>(&self, key: &Key, subresource: Option<&str>, patch: Value) {
        self.cluster.patch(&K::API, key, subresource, Patch::Merge(patch)).await.unwrap();
    }

    pub(super) async fn delete<K: Kind>(&self, key: &Key) {
        self.cluster.delete(&K::API, key, Preconditions::default()).await.unwrap();
    }

    /// Creates a class; `wait` selects WaitForFirstConsumer.
    pub(super) async fn class(&self, name: &str, wait: bool, default: bool) {
        let mode = if wait { "WaitForFirstConsumer" } else { "Immediate" };
        let default = default.to_string();
        self.create::<StorageClass>(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": default}},
            "provisioner": "d.test", "volumeBindingMode": mode,
        }))
        .await;
    }

    pub(super) async fn claim(&self, name: &str, class: Option<&str>) -> Key {
        self.create::<PersistentVolumeClaim>(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
        .await;
        Key::namespaced("default", name)
    }

    pub(super) async fn volume(&self, name: &str, class: &str, more: Value) -> Key {
        let mut volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": class,
                "csi": {"driver": "d.test", "volumeHandle": name},
            },
        });
        for (path, value) in more.as_object().unwrap() {
            let field = path.split('.').fold(&mut volume, |volume, part| &mut volume[part]);
            *field = value.clone();
        }
        self.create::<PersistentVolume>(volume).await;
        Key::cluster(name)
    }

    pub(super) async fn node(&self, name: &str) {
        self.create::<Node>(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
    }

    /// Waits until the claim matches.
    pub(super) async fn wait_for_claim(
        &self,
        key: &Key,
        matches: impl Fn(&PersistentVolumeClaim) -> bool,
    ) -> Arc<PersistentVolumeClaim> {
        wait_until(&self.claims, &format!("claim {key}"), || {
            self.claims.get(key).filter(|claim| matches(claim))
        })
        .await
    }

    /// Waits until the volume matches.
    pub(super) async fn wait_for_volume(
        &self,
        key: &Key,
        matches: impl Fn(&PersistentVolume) -> bool,
    ) -> Arc<PersistentVolume> {
        wait_until(&self.volumes, &format!("volume {key}"), || {
            self.volumes.get(key).filter(|volume| matches(volume))
        })
        .await
    }

    /// Waits until the claim is deleted.
    pub(super) async fn wait_for_claim_deleted(&self, key: &Key) {
        wait_until(&self.claims, &format!("deletion of claim {key}"), || {
            self.claims.get(key).is_none().then_some(())
        })
        .await;
    }

    /// Waits until the volume is deleted.
    pub(super) async fn wait_for_volume_deleted(&self, key: &Key) {
        wait_until(&self.volumes, &format!("deletion of volume {key}"), || {
            self.volumes.get(key).is_none().then_some(())
        })
        .await;
    }

    /// Waits for an event about the object with this UID, and returns its message.
    pub(super) async fn event_message(&self, target: &str, reason: &str) -> String {
        let events: Store<Event> = self.cluster.store(WatchOptions::default());
        let of = |event: &&Arc<Event>| event.regarding_uid == target && event.reason == reason;
        wait_until(&events, reason, || events.all().iter().find(of).map(|event| event.message.clone())).await
    }

    /// Whether the API server has the object.
    pub(super) async fn exists<K: Kind>(&self, key: &Key) -> Result<bool, ApiError> {
        Ok(self.cluster.get::<K>(key).await?.is_some())
    }
}

/// Waits until `matches` returns a value, checking after each change of the store.
pub(super) async fn wait_until<K: Kind, R>(
    store: &Store<K>,
    what: &str,
    matches: impl Fn() -> Option<R>,
) -> R {
    let mut changes = store.subscribe();
    let found = async {
        loop {
            changes.next().await.unwrap();
            if let Some(found) = matches() {
                return found;
            }
        }
    };
    match timeout(TIMEOUT, found).await {
        Ok(found) => found,
        Err(_) => panic!("timed out waiting for {what}"),
    }
}
