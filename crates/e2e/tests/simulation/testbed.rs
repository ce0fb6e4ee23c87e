//! The simulated cluster: an in-memory API server with the objects that exist before any volume is requested, and
//! methods that act as its users.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use wharf_apiserver::access::Access;
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::store::{self, Store};
use wharf_cluster::{Cluster, Patch, Preconditions, WatchOptions};
use wharf_model::{CSIDriver, CSINode, Key, Kind, Node, PersistentVolumeClaim, Pod, Scope, StorageClass};

use crate::api;
use crate::driver::{DRIVER, DriverState};
use crate::processes::Processes;
use crate::sim::Sim;

/// The StorageClass with volumeBindingMode Immediate.
pub(crate) const IMMEDIATE_CLASS: &str = "immediate";
/// StorageClasses and their volumeBindingMode.
pub(crate) const CLASSES: [(&str, &str); 2] =
    [(IMMEDIATE_CLASS, "Immediate"), ("wait", "WaitForFirstConsumer")];
const GIB: i64 = 1 << 30;
/// The interval between two checks of the cluster.
const POLL_INTERVAL: Duration = Duration::from_secs(4);

/// The simulated cluster.
pub(crate) struct Testbed {
    pub(crate) sim: Arc<Sim>,
    pub(crate) driver_state: Arc<Mutex<DriverState>>,
    pub(crate) processes: Processes,
    /// The API without faults, for users and for checks.
    pub(crate) cluster: Cluster,
    _background: JoinSet<()>,
}

impl Testbed {
    pub(crate) async fn new(sim: Arc<Sim>) -> Self {
        let store = Store::in_memory(store::Options::default());
        let api = Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let (cluster, driver_state) = (api::fault_free(&api), Arc::default());
        let processes = Processes::new(&sim, &api, &driver_state);
        let mut background = JoinSet::new();
        background.spawn(async move { api.run().await });
        let testbed = Self { sim, driver_state, processes, cluster, _background: background };
        testbed.first_objects().await;
        testbed
    }

    async fn first_objects(&self) {
        // Pods need the service account of their namespace.
        let account =
            wharf_model::ApiResource { kind: "ServiceAccount", plural: "serviceaccounts", ..Pod::API };
        let key = Key::namespaced("default", "default");
        while self.cluster.get_raw(&account, &key).await.unwrap().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
        let spec =
            json!({"attachRequired": true, "fsGroupPolicy": "None", "volumeLifecycleModes": ["Persistent"]});
        self.create::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": spec})).await;
        for (name, mode) in CLASSES {
            self.create::<StorageClass>(json!({
                "metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": mode,
                "allowVolumeExpansion": true,
            }))
            .await;
        }
        for name in self.sim.nodes {
            self.node(name).await;
        }
    }

    /// Creates a ready node with the driver.
    async fn node(&self, name: &str) {
        let annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        self.create::<Node>(json!({
            "metadata": {"name": name, "labels": {"host": name}, "annotations": annotations},
        }))
        .await;
        let resources = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
        let status =
            json!({"status": {"capacity": resources, "allocatable": resources, "conditions": ready}});
        self.patch::<Node>(&Key::cluster(name), Some("status"), status).await;
        // A new node carries the not-ready taint.
        self.patch::<Node>(&Key::cluster(name), None, json!({"spec": {"taints": null}})).await;
        let driver = json!({"name": DRIVER, "nodeID": name, "topologyKeys": []});
        self.create::<CSINode>(json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}})).await;
    }

    pub(crate) async fn create<K: Kind>(&self, mut body: Value) -> Value {
        body["apiVersion"] = json!(K::API.api_version());
        body["kind"] = json!(K::API.kind);
        let namespace = matches!(K::API.scope, Scope::Namespaced).then_some("default");
        self.cluster.create(&K::API, namespace, &body).await.unwrap()
    }

    async fn patch<K: Kind>(&self, key: &Key, subresource: Option<&str>, body: Value) {
        self.cluster.patch(&K::API, key, subresource, Patch::Merge(body)).await.unwrap();
    }

    pub(crate) async fn claim(&self, name: &str, class: &str) {
        self.sim.note(format_args!("claim {name} of class {class}"));
        self.create::<PersistentVolumeClaim>(json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": GIB.to_string()}},
            },
        }))
        .await;
    }

    /// Expands a claim, if it exists and is bound.
    pub(crate) async fn grow(&self, name: &str) {
        let key = Key::namespaced("default", name);
        let claim = self.cluster.get::<PersistentVolumeClaim>(&key).await.unwrap();
        let Some(wanted) = claim.and_then(|claim| claim.requested_storage()) else { return };
        let size = wanted.bytes() + GIB;
        self.sim.note(format_args!("expand claim {name} to {size}"));
        let patch = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": size.to_string()}}}}));
        // Fails if the claim is not bound.
        let _ = self.cluster.patch(&PersistentVolumeClaim::API, &key, None, patch).await;
    }

    /// Creates a pod with a volume, optionally bound to a node.
    pub(crate) async fn pod(&self, name: &str, volume: Value, node: Option<&str>) {
        self.sim.note(format_args!("pod {name} on {node:?} with {volume}"));
        let selector = node.map(|node| json!({"host": node}));
        let mounts = json!([{"name": "data", "mountPath": "/data"}]);
        let mut volume = volume;
        volume["name"] = json!("data");
        self.create::<Pod>(json!({"metadata": {"name": name}, "spec": {
            "automountServiceAccountToken": false, "nodeSelector": selector, "volumes": [volume],
            "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}],
        }}))
        .await;
    }

    pub(crate) async fn delete<K: Kind>(&self, name: &str) {
        self.sim.note(format_args!("delete {} {name}", K::API.kind));
        let key = Key::namespaced("default", name);
        // It may already be deleted.
        let _ = self.cluster.delete(&K::API, &key, Preconditions::default()).await;
    }

    pub(crate) async fn all<K: Kind>(&self) -> Vec<K> {
        self.cluster.list::<K>(&WatchOptions::default()).await.unwrap().items
    }

    /// Whether a condition becomes true before the timeout.
    pub(crate) async fn wait_until(&self, timeout: Duration, is: impl AsyncFn(&Self) -> bool) -> bool {
        let until = Instant::now() + timeout;
        while !is(self).await {
            if Instant::now() >= until {
                return false;
            }
            sleep(POLL_INTERVAL).await;
        }
        true
    }
}
