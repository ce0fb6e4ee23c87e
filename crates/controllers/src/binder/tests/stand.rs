//! The embedded API with the controllers on it, and a wire between them that can be cut at any write.

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
use wharf_cluster::{ApiError, Cluster, Events, Patch, Preconditions, Store, WatchOptions};
use wharf_model::{Event, Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, StorageClass};

use crate::{Context, binder, ephemeral, expand, protection};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What happens to the write at which the wire is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// It does not reach the server.
    Before,
    /// It is done, and nobody hears of it.
    After,
}

/// A wire that lets so many writes through and then nothing. Events are not counted: nothing hangs on them.
#[derive(Clone)]
struct Wire {
    api: Client<kube::client::Body>,
    left: Arc<AtomicUsize>,
    cut: Cut,
    broken: Arc<Notify>,
    /// Requests that are refused, once each: method, and a part of the path.
    refused: Arc<Mutex<Vec<(&'static str, &'static str)>>>,
}

impl Wire {
    fn refuses(&self, method: &str, path: &str) -> bool {
        let mut refused = self.refused.lock().unwrap();
        let found = refused.iter().position(|(of, part)| *of == method && path.contains(part));
        found.map(|index| refused.remove(index)).is_some()
    }
}

impl tower::Service<http::Request<kube::client::Body>> for Wire {
    type Response = http::Response<rest::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<kube::client::Body>) -> Self::Future {
        if self.refuses(request.method().as_str(), request.uri().path()) {
            let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
            let answer = http::Response::builder().status(500).body(body).unwrap();
            return Box::pin(async { Ok(answer) });
        }
        let counts = request.method() != http::Method::GET && !request.uri().path().contains("/events");
        let counted = |left: usize| if counts { left.checked_sub(1) } else { Some(left) };
        let alive = self.left.load(Ordering::SeqCst) > 0;
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted);
        let last = counts && before == Ok(1);
        let (cut, broken) = (self.cut, Arc::clone(&self.broken));
        let answer = self.api.call(request);
        Box::pin(async move {
            if !alive || (last && cut == Cut::Before) {
                broken.notify_one();
                return pending().await;
            }
            let answer = answer.await;
            if last {
                broken.notify_one();
                return pending().await;
            }
            answer
        })
    }
}

/// Controllers at work; they die when this is dropped.
pub(super) struct Running {
    tasks: JoinSet<()>,
    broken: Arc<Notify>,
    left: Arc<AtomicUsize>,
    refused: Arc<Mutex<Vec<(&'static str, &'static str)>>>,
}

impl Running {
    /// Waits until the wire is cut.
    pub(super) async fn broken(&self) {
        self.broken.notified().await;
    }

    /// How many writes there were.
    pub(super) fn writes(&self) -> usize {
        usize::MAX - self.left.load(Ordering::SeqCst)
    }

    /// Refuses the next requests of these methods whose paths contain these parts.
    pub(super) fn refuse(&self, requests: &[(&'static str, &'static str)]) {
        self.refused.lock().unwrap().extend(requests);
    }

    /// Whether all of them were made.
    pub(super) fn refused_all(&self) -> bool {
        self.refused.lock().unwrap().is_empty()
    }

    /// Ends them as a crash does.
    pub(super) async fn kill(mut self) {
        self.tasks.shutdown().await;
    }
}

/// The embedded API, and a client of its own for the test.
pub(super) struct Stand {
    api: Api,
    beside: JoinHandle<()>,
    pub(super) cluster: Cluster,
    pub(super) claims: Store<PersistentVolumeClaim>,
    pub(super) volumes: Store<PersistentVolume>,
    _dir: TempDir,
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.beside.abort();
    }
}

impl Stand {
    pub(super) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = store::Options { sync: false, ..store::Options::default() };
        let store = store::Store::open(dir.path(), options).unwrap();
        let api = Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let beside = tokio::spawn({
            let api = api.clone();
            async move { api.run().await }
        });
        let cluster = Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"));
        let (claims, volumes) =
            (cluster.store(WatchOptions::default()), cluster.store(WatchOptions::default()));
        Self { api, beside, cluster, claims, volumes, _dir: dir }
    }

    /// All controllers, on a wire that lasts.
    pub(super) fn start(&self) -> Running {
        self.start_cut(usize::MAX, Cut::Before, binder::Settings::default())
    }

    /// The same, on a wire that is cut at the write of this number.
    pub(super) fn start_cut(&self, writes: usize, cut: Cut, settings: binder::Settings) -> Running {
        let broken = Arc::new(Notify::new());
        let left = Arc::new(AtomicUsize::new(writes));
        let wire = Wire {
            api: self.api.service(User::admin()),
            left: Arc::clone(&left),
            cut,
            broken: Arc::clone(&broken),
            refused: Arc::default(),
        };
        let refused = Arc::clone(&wire.refused);
        let cluster = Cluster::with_client(kube::Client::new(wire, "default"));
        let gate = Gate::new(None, CancellationToken::new());
        let context = |component: &str| Context {
            cluster: cluster.clone(),
            gate: gate.clone(),
            events: Events::start(&cluster, component, "test"),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(binder::run(context(binder::COMPONENT), settings));
        tasks.spawn(protection::run(context("protection")));
        tasks.spawn(ephemeral::run(context(ephemeral::COMPONENT)));
        tasks.spawn(expand::run(context(expand::COMPONENT)));
        Running { tasks, broken, left, refused }
    }

    pub(super) async fn make<K: Kind>(&self, body: Value) -> Value {
        let namespace = body.pointer("/metadata/namespace").and_then(Value::as_str).map(str::to_owned);
        self.cluster.create(&K::API, namespace.as_deref(), &body).await.unwrap()
    }

    pub(super) async fn change<K: Kind>(&self, key: &Key, subresource: Option<&str>, patch: Value) {
        self.cluster.patch(&K::API, key, subresource, Patch::Merge(patch)).await.unwrap();
    }

    pub(super) async fn delete<K: Kind>(&self, key: &Key) {
        self.cluster.delete(&K::API, key, Preconditions::default()).await.unwrap();
    }

    /// Makes a class; `wait` for the first consumer.
    pub(super) async fn class(&self, name: &str, wait: bool, default: bool) {
        let mode = if wait { "WaitForFirstConsumer" } else { "Immediate" };
        let default = default.to_string();
        self.make::<StorageClass>(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": default}},
            "provisioner": "d.test", "volumeBindingMode": mode,
        }))
        .await;
    }

    pub(super) async fn claim(&self, name: &str, class: Option<&str>) -> Key {
        self.make::<PersistentVolumeClaim>(json!({
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
            let place = path.split('.').fold(&mut volume, |volume, part| &mut volume[part]);
            *place = value.clone();
        }
        self.make::<PersistentVolume>(volume).await;
        Key::cluster(name)
    }

    pub(super) async fn node(&self, name: &str) {
        self.make::<Node>(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
    }

    /// Waits until the claim is so.
    pub(super) async fn claim_is(
        &self,
        key: &Key,
        so: impl Fn(&PersistentVolumeClaim) -> bool,
    ) -> Arc<PersistentVolumeClaim> {
        until(&self.claims, &format!("claim {key}"), || self.claims.get(key).filter(|claim| so(claim))).await
    }

    /// Waits until the volume is so.
    pub(super) async fn volume_is(
        &self,
        key: &Key,
        so: impl Fn(&PersistentVolume) -> bool,
    ) -> Arc<PersistentVolume> {
        until(&self.volumes, &format!("volume {key}"), || self.volumes.get(key).filter(|volume| so(volume)))
            .await
    }

    /// Waits until the claim is gone.
    pub(super) async fn claim_is_gone(&self, key: &Key) {
        until(&self.claims, &format!("end of claim {key}"), || self.claims.get(key).is_none().then_some(()))
            .await;
    }

    /// Waits until the volume is gone.
    pub(super) async fn volume_is_gone(&self, key: &Key) {
        until(&self.volumes, &format!("end of volume {key}"), || {
            self.volumes.get(key).is_none().then_some(())
        })
        .await;
    }

    /// Waits until something was told.
    pub(super) async fn told(&self, about: &str, reason: &str) -> String {
        let events: Store<Event> = self.cluster.store(WatchOptions::default());
        let of = |event: &&Arc<Event>| event.regarding_uid == about && event.reason == reason;
        until(&events, reason, || events.all().iter().find(of).map(|event| event.message.clone())).await
    }

    /// Whether the server has it.
    pub(super) async fn has<K: Kind>(&self, key: &Key) -> Result<bool, ApiError> {
        Ok(self.cluster.get::<K>(key).await?.is_some())
    }
}

/// Waits by the store's changes.
pub(super) async fn until<K: Kind, R>(store: &Store<K>, what: &str, so: impl Fn() -> Option<R>) -> R {
    let mut changes = store.changes();
    let found = async {
        loop {
            changes.next().await.unwrap();
            if let Some(found) = so() {
                return found;
            }
        }
    };
    match timeout(PATIENCE, found).await {
        Ok(found) => found,
        Err(_) => panic!("{what}: it did not come to pass"),
    }
}
