//! A cluster inside the test: the embedded API, the scheduler on it, and hands that play those who provision and bind.

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
use wharf_cluster::{Cluster, Events, Notice, Patch, Store, WatchOptions};
use wharf_controllers::scheduler::{self, Settings};
use wharf_controllers::{Context, binder, ephemeral};
use wharf_model::names::annotation;
use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSINode, CSIStorageCapacity, Event, Key, Kind, PersistentVolume, PersistentVolumeClaim, StorageClass,
};

/// The driver of all volumes here.
pub(crate) const DRIVER: &str = "d.example.com";
/// The class whose volumes are made.
pub(crate) const MADE: &str = "made";
/// The class whose volumes are there.
pub(crate) const FIXED: &str = "fixed";
/// So long a thing may take that happens at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends the scheduler, and waits until it has ended.
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

/// The cluster. What goes on in it ends with it.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    beside: JoinSet<()>,
    /// Whether there are controllers.
    controlled: bool,
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
        let mut beside = JoinSet::new();
        beside.spawn(async move { api.run().await });
        let world = Self { cluster, beside, controlled: false, _dir: dir };
        // Pods need their namespace's account.
        let account = wharf_model::Api { kind: "ServiceAccount", plural: "serviceaccounts", ..Pod::API };
        world
            .until("the default account", async || {
                let key = Key::namespaced("default", "default");
                world.cluster.get_raw(&account, &key).await.unwrap().is_some()
            })
            .await;
        for (name, provisioner) in [(MADE, DRIVER), (FIXED, "kubernetes.io/no-provisioner")] {
            let class = json!({
                "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
            });
            world.make::<StorageClass>(class).await;
        }
        world
    }

    /// Starts the scheduler.
    pub(crate) fn schedule(&self, settings: Settings) -> Running {
        let stop = CancellationToken::new();
        let context = Context {
            cluster: self.cluster.clone(),
            gate: Gate::new(None, stop.clone()),
            events: Events::start(&self.cluster, scheduler::COMPONENT, "test"),
        };
        Running { stop, task: tokio::spawn(scheduler::run(context, settings)) }
    }

    pub(crate) async fn make<K: Kind>(&self, mut body: Value) -> Value {
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

    /// A node that is ready, with room for all, and with this driver.
    pub(crate) async fn node(&self, name: &str, limit: Option<i32>) {
        let labels = json!({"host": name});
        self.make::<Node>(json!({"metadata": {"name": name, "labels": labels}})).await;
        let key = Key::cluster(name);
        let allocatable = json!({"cpu": "4", "memory": "4Gi", "pods": "110"});
        self.patch::<Node>(
            &key,
            Some("status"),
            json!({"status": {"capacity": allocatable, "allocatable": allocatable}}),
        )
        .await;
        // A node is born with the taint of one that is not ready.
        self.patch::<Node>(&key, None, json!({"spec": {"taints": null}})).await;
        let allocatable = limit.map(|count| json!({"count": count}));
        let driver =
            json!({"name": DRIVER, "nodeID": name, "topologyKeys": ["host"], "allocatable": allocatable});
        self.make::<CSINode>(json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}})).await;
    }

    pub(crate) async fn claim(&self, name: &str, class: &str, mode: &str) -> Key {
        self.make::<PersistentVolumeClaim>(json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": class, "accessModes": [mode],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
        .await;
        Key::namespaced("default", name)
    }

    /// The node that was chosen for a claim.
    pub(crate) async fn selected(&self, claim: &Key) -> Option<String> {
        let claim = self.cluster.get::<PersistentVolumeClaim>(claim).await.unwrap().unwrap();
        claim.selected_node().map(str::to_owned)
    }

    /// So much can be made on a node.
    pub(crate) async fn room(&self, node: &str, capacity: &str) {
        self.make::<CSIStorageCapacity>(json!({
            "metadata": {"name": node}, "storageClassName": MADE, "capacity": capacity,
            "nodeTopology": {"matchLabels": {"host": node}},
        }))
        .await;
    }

    /// A volume that is there, and that only this node reaches.
    pub(crate) async fn volume(&self, name: &str, node: &str, mode: &str) {
        let term = json!({"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]});
        self.make::<PersistentVolume>(json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": FIXED, "accessModes": [mode],
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
        self.make::<Pod>(body).await;
        Key::namespaced("default", name)
    }

    /// The node that a pod gets.
    pub(crate) async fn placed(&self, pod: &Key) -> String {
        self.until("a node for the pod", async || !self.node_of(pod).await.is_empty()).await;
        self.node_of(pod).await
    }

    pub(crate) async fn node_of(&self, pod: &Key) -> String {
        self.cluster.get::<Pod>(pod).await.unwrap().unwrap().spec.node_name
    }

    /// Waits until the pod's condition says that it has to wait, and why.
    pub(crate) async fn waits(&self, pod: &Key, reason: &str, message: &str) {
        self.until(message, async || {
            let pod = self.cluster.get::<Pod>(pod).await.unwrap().unwrap();
            let mut conditions = pod.status.conditions.iter();
            conditions.any(|condition| {
                (condition.kind.as_str(), condition.status.as_str()) == ("PodScheduled", "False")
                    && (condition.reason.as_str(), condition.message.as_str()) == (reason, message)
            })
        })
        .await;
    }

    /// Waits for an event of this reason with this note.
    pub(crate) async fn told(&self, reason: &str, note: &str) {
        self.until(note, async || {
            let events = self.cluster.list::<Event>(&WatchOptions::default()).await.unwrap().items;
            events.iter().any(|event| event.reason == reason && event.message == note)
        })
        .await;
    }

    pub(crate) async fn until(&self, what: &str, is: impl AsyncFn() -> bool) {
        let start = Instant::now();
        while !is().await {
            assert!(start.elapsed() < PATIENCE, "never: {what}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The controllers that bind claims and make those of ephemeral volumes, in place of the hands of this test.
    pub(crate) fn control(&mut self) {
        let stop = CancellationToken::new();
        let context = |component: &str| Context {
            cluster: self.cluster.clone(),
            gate: Gate::new(None, stop.clone()),
            events: Events::start(&self.cluster, component, "test"),
        };
        self.beside.spawn(binder::run(context(binder::COMPONENT), binder::Settings::default()));
        self.beside.spawn(ephemeral::run(context(ephemeral::COMPONENT)));
        self.controlled = true;
    }

    /// Whoever provisions: claims with a node get a volume there and are bound to it, unless there is one who binds. The
    /// first `failures` times it takes the node back instead.
    pub(crate) fn provision(&mut self, failures: usize) {
        let binds = !self.controlled;
        let (cluster, mut left) = (self.cluster.clone(), failures);
        self.hand(move |claim| {
            let fails = left > 0 && claim.selected_node().is_some();
            left -= usize::from(fails);
            let (cluster, claim) = (cluster.clone(), Arc::clone(claim));
            async move {
                let Some(node) = claim.selected_node().filter(|_| claim.spec.volume_name.is_empty()) else { return };
                let meta = &claim.metadata;
                if fails {
                    let taken_back = json!({"metadata": {"annotations": {annotation::SELECTED_NODE: null, "tried": "once"}}});
                    cluster.patch(&PersistentVolumeClaim::API, &meta.key(), None, Patch::Merge(taken_back)).await.unwrap();
                    return;
                }
                let name = format!("pvc-{}", meta.uid);
                let term = json!({"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]});
                let volume = json!({
                    "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                    "spec": {
                        "storageClassName": MADE, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
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

    /// Whoever binds: claims for which a volume was given are bound to it.
    pub(crate) fn bind(&mut self) {
        let cluster = self.cluster.clone();
        let volumes: Store<PersistentVolume> = cluster.store(WatchOptions::default());
        self.beside.spawn(async move {
            let mut changes = volumes.changes();
            while let Some(notice) = changes.next().await {
                let Notice::Change(change) = notice else { continue };
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

    fn hand<F: Future<Output = ()> + Send>(
        &mut self,
        mut see_to: impl FnMut(&Arc<PersistentVolumeClaim>) -> F + Send + 'static,
    ) {
        let claims: Store<PersistentVolumeClaim> = self.cluster.store(WatchOptions::default());
        self.beside.spawn(async move {
            let mut changes = claims.changes();
            while let Some(notice) = changes.next().await {
                match notice {
                    Notice::Change(change) => {
                        if let Some(claim) = &change.new {
                            see_to(claim).await;
                        }
                    }
                    Notice::Resync => {
                        for claim in claims.all() {
                            see_to(&claim).await;
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
