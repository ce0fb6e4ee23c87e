//! A cluster inside the test: the embedded API server, the scheduler, and a minimal provisioner and binder.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::{rest, store};
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder, Patch, Store, StoreEvent, WatchOptions};
use wharf_controllers::scheduler::{self, Settings};
use wharf_controllers::{Context, binder, ephemeral};
use wharf_model::names::annotation;
use wharf_model::{
    CSINode, CSIStorageCapacity, Event, Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    StorageClass,
};

/// The driver of all volumes here.
pub(crate) const DRIVER: &str = "d.example.com";
/// The class with dynamic provisioning.
pub(crate) const DYNAMIC: &str = "dynamic";
/// The class with static volumes.
pub(crate) const STATIC: &str = "static";
/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running scheduler.
pub(crate) struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// The cluster. Its tasks end when it is dropped.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    tasks: JoinSet<()>,
    /// Whether the real controllers run.
    controllers_running: bool,
    _dir: TempDir,
}

impl World {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = store::Options { sync: false, ..store::Options::default() };
        let store = store::Store::open(dir.path(), options).unwrap();
        let api = rest::Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let cluster = Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { api.run().await });
        let world = Self { cluster, tasks, controllers_running: false, _dir: dir };
        // Pods need the service account of their namespace.
        let account =
            wharf_model::ApiResource { kind: "ServiceAccount", plural: "serviceaccounts", ..Pod::API };
        world
            .wait_until("the default account", async || {
                let key = Key::namespaced("default", "default");
                world.cluster.get_raw(&account, &key).await.unwrap().is_some()
            })
            .await;
        for (name, provisioner) in [(DYNAMIC, DRIVER), (STATIC, "kubernetes.io/no-provisioner")] {
            let class = json!({
                "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
            });
            world.create::<StorageClass>(class).await;
        }
        world
    }

    /// Starts the scheduler.
    pub(crate) fn start_scheduler(&self, settings: Settings) -> Running {
        let stop = CancellationToken::new();
        let context = Context {
            cluster: self.cluster.clone(),
            gate: Gate::new(None, stop.clone()),
            events: EventRecorder::start(&self.cluster, scheduler::COMPONENT, "test"),
        };
        Running { stop, task: tokio::spawn(scheduler::run(context, settings)) }
    }

    pub(crate) async fn create<K: Kind>(&self, mut body: Value) -> Value {
        body["apiVersion"] = json!(K::API.api_version());
        body["kind"] = json!(K::API.kind);
        let namespace = match K::API.scope {
            wharf_model::Scope::Namespaced => Some("default"),
            wharf_model::Scope::Cluster => None,
        };
        self.cluster.create(&K::API, namespace, &body).await.unwrap()
    }

    pub(crate) async fn patch<K: Kind>(&self, key: &Key, subresource: Option<&str>, body: Value) {
        self.cluster.patch(&K::API, key, subresource, Patch::Merge(body)).await.unwrap();
    }

    /// Creates a Ready node with ample resources, on which the driver is registered with this volume limit.
    pub(crate) async fn node(&self, name: &str, limit: Option<i32>) {
        let labels = json!({"host": name});
        self.create::<Node>(json!({"metadata": {"name": name, "labels": labels}})).await;
        let key = Key::cluster(name);
        let allocatable = json!({"cpu": "4", "memory": "4Gi", "pods": "110"});
        self.patch::<Node>(
            &key,
            Some("status"),
            json!({"status": {"capacity": allocatable, "allocatable": allocatable}}),
        )
        .await;
        // The API server adds the not-ready taint to a new node.
        self.patch::<Node>(&key, None, json!({"spec": {"taints": null}})).await;
        let allocatable = limit.map(|count| json!({"count": count}));
        let driver =
            json!({"name": DRIVER, "nodeID": name, "topologyKeys": ["host"], "allocatable": allocatable});
        self.create::<CSINode>(json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}})).await;
    }

    pub(crate) async fn claim(&self, name: &str, class: &str, mode: &str) -> Key {
        self.create::<PersistentVolumeClaim>(json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": class, "accessModes": [mode],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
        .await;
        Key::namespaced("default", name)
    }

    /// The selected node of a claim.
    pub(crate) async fn selected(&self, claim: &Key) -> Option<String> {
        let claim = self.cluster.get::<PersistentVolumeClaim>(claim).await.unwrap().unwrap();
        claim.selected_node().map(str::to_owned)
    }

    /// Creates a CSIStorageCapacity for a node.
    pub(crate) async fn capacity(&self, node: &str, capacity: &str) {
        self.create::<CSIStorageCapacity>(json!({
            "metadata": {"name": node}, "storageClassName": DYNAMIC, "capacity": capacity,
            "nodeTopology": {"matchLabels": {"host": node}},
        }))
        .await;
    }

    /// Creates an available volume that only this node can access.
    pub(crate) async fn volume(&self, name: &str, node: &str, mode: &str) {
        let term = json!({"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]});
        self.create::<PersistentVolume>(json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": STATIC, "accessModes": [mode],
                "capacity": {"storage": "1Gi"}, "csi": {"driver": DRIVER, "volumeHandle": name},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            },
        }))
        .await;
        self.patch::<PersistentVolume>(
            &Key::cluster(name),
            Some("status"),
            json!({"status": {"phase": "Available"}}),
        )
        .await;
    }

    pub(crate) async fn pod(&self, name: &str, claims: &[&str], spec: Value) -> Key {
        let volumes =
            claims.iter().map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
        let mut body = json!({"metadata": {"name": name}, "spec": {
            "containers": [{"name": "c", "image": "i"}], "volumes": volumes.collect::<Vec<_>>(),
        }});
        for (field, value) in spec.as_object().into_iter().flatten() {
            body["spec"][field] = value.clone();
        }
        self.create::<Pod>(body).await;
        Key::namespaced("default", name)
    }

    /// Waits until the pod is bound, and returns its node.
    pub(crate) async fn wait_for_node(&self, pod: &Key) -> String {
        self.wait_until("a node for the pod", async || !self.node_of(pod).await.is_empty()).await;
        self.node_of(pod).await
    }

    pub(crate) async fn node_of(&self, pod: &Key) -> String {
        self.cluster.get::<Pod>(pod).await.unwrap().unwrap().node_name
    }

    /// Waits until the pod has the condition PodScheduled=False with this reason and message.
    pub(crate) async fn wait_for_condition(&self, pod: &Key, reason: &str, message: &str) {
        self.wait_until(message, async || {
            let pod = self.cluster.get::<Pod>(pod).await.unwrap().unwrap();
            let mut conditions = pod.status.conditions.iter();
            conditions.any(|condition| {
                (condition.kind.as_str(), condition.status.as_str()) == ("PodScheduled", "False")
                    && (condition.reason.as_str(), condition.message.as_str()) == (reason, message)
            })
        })
        .await;
    }

    /// Waits for an event with this reason and message.
    pub(crate) async fn wait_for_event(&self, reason: &str, note: &str) {
        self.wait_until(note, async || {
            let events = self.cluster.list::<Event>(&WatchOptions::default()).await.unwrap().items;
            events.iter().any(|event| event.reason == reason && event.message == note)
        })
        .await;
    }

    pub(crate) async fn wait_until(&self, what: &str, is: impl AsyncFn() -> bool) {
        let start = Instant::now();
        while !is().await {
            assert!(start.elapsed() < TIMEOUT, "timed out waiting for: {what}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts the real binder and ephemeral controller in place of the minimal ones.
    pub(crate) fn start_controllers(&mut self) {
        let stop = CancellationToken::new();
        let context = |component: &str| Context {
            cluster: self.cluster.clone(),
            gate: Gate::new(None, stop.clone()),
            events: EventRecorder::start(&self.cluster, component, "test"),
        };
        self.tasks.spawn(binder::run(context(binder::COMPONENT), binder::Settings::default()));
        self.tasks.spawn(ephemeral::run(context(ephemeral::COMPONENT)));
        self.controllers_running = true;
    }

    /// Starts a minimal provisioner: claims with a selected node get a volume there, and are bound to it unless the
    /// real binder runs. The first `failures` times it clears the selected node instead.
    pub(crate) fn start_provisioner(&mut self, failures: usize) {
        let binds = !self.controllers_running;
        let (cluster, mut left) = (self.cluster.clone(), failures);
        self.spawn_claim_worker(move |claim| {
            let fails = left > 0 && claim.selected_node().is_some();
            left -= usize::from(fails);
            let (cluster, claim) = (cluster.clone(), Arc::clone(claim));
            async move {
                let Some(node) = claim.selected_node().filter(|_| claim.spec.volume_name.is_empty()) else { return };
                let meta = &claim.metadata;
                if fails {
                    let cleared = json!({"metadata": {"annotations": {annotation::SELECTED_NODE: null, "tried": "once"}}});
                    cluster.patch(&PersistentVolumeClaim::API, &meta.key(), None, Patch::Merge(cleared)).await.unwrap();
                    return;
                }
                let name = format!("pvc-{}", meta.uid);
                let term = json!({"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]});
                let volume = json!({
                    "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                    "spec": {
                        "storageClassName": DYNAMIC, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                        "csi": {"driver": DRIVER, "volumeHandle": name},
                        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid},
                    },
                });
                if cluster.create(&PersistentVolume::API, None, &volume).await.is_ok() && binds {
                    bind(&cluster, &meta.key(), &name).await;
                }
            }
        });
    }

    /// Starts a minimal binder: a claim that a volume references is bound to it.
    pub(crate) fn start_binder(&mut self) {
        let cluster = self.cluster.clone();
        let volumes: Store<PersistentVolume> = cluster.store(WatchOptions::default());
        self.tasks.spawn(async move {
            let mut changes = volumes.subscribe();
            while let Some(notice) = changes.next().await {
                let StoreEvent::Change(change) = notice else { continue };
                let Some(volume) = change.new else { continue };
                let Some(claim) = volume.spec.claim_ref.as_ref().filter(|claim| !claim.uid.is_empty()) else {
                    continue;
                };
                let now = cluster.get::<PersistentVolumeClaim>(&claim.key()).await.unwrap();
                if now.is_some_and(|now| now.spec.volume_name.is_empty()) {
                    bind(&cluster, &claim.key(), &volume.metadata.name).await;
                }
            }
        });
    }

    fn spawn_claim_worker<F: Future<Output = ()> + Send>(
        &mut self,
        mut handle: impl FnMut(&Arc<PersistentVolumeClaim>) -> F + Send + 'static,
    ) {
        let claims: Store<PersistentVolumeClaim> = self.cluster.store(WatchOptions::default());
        self.tasks.spawn(async move {
            let mut changes = claims.subscribe();
            while let Some(notice) = changes.next().await {
                match notice {
                    StoreEvent::Change(change) => {
                        if let Some(claim) = &change.new {
                            handle(claim).await;
                        }
                    }
                    StoreEvent::Resync => {
                        for claim in claims.all() {
                            handle(&claim).await;
                        }
                    }
                }
            }
        });
    }
}

async fn bind(cluster: &Cluster, claim: &Key, volume: &str) {
    let bound = json!({
        "metadata": {"annotations": {annotation::BIND_COMPLETED: "yes"}}, "spec": {"volumeName": volume},
    });
    cluster.patch(&PersistentVolumeClaim::API, claim, None, Patch::Merge(bound)).await.unwrap();
}
