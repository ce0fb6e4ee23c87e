//! The ground: an API server in memory with the objects that a cluster has before anybody asks for a volume, and hands that
//! play its users.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use wharf_apiserver::access::Access;
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::store::{self, Store};
use wharf_cluster::{Cluster, Patch, Preconditions, WatchOptions};
use wharf_model::whole::{Node, Pod};
use wharf_model::{CSIDriver, CSINode, Key, Kind, PersistentVolumeClaim, Scope, StorageClass};

use crate::api;
use crate::driver::{DRIVER, Truth};
use crate::processes::Processes;
use crate::sim::Sim;

/// The class whose volumes wait for nobody.
pub(crate) const AT_ONCE: &str = "at-once";
/// Classes: volumes are made at once, or when there is a pod.
pub(crate) const CLASSES: [(&str, &str); 2] = [(AT_ONCE, "Immediate"), ("wait", "WaitForFirstConsumer")];
const GIB: i64 = 1 << 30;
/// Between two looks from outside.
const LOOK: Duration = Duration::from_secs(4);

/// All of it.
pub(crate) struct Ground {
    pub(crate) sim: Arc<Sim>,
    pub(crate) truth: Arc<Mutex<Truth>>,
    pub(crate) processes: Processes,
    /// The API without faults, for those who look and for users.
    pub(crate) cluster: Cluster,
    _beside: JoinSet<()>,
}

impl Ground {
    pub(crate) async fn new(sim: Arc<Sim>) -> Self {
        let store = Store::in_memory(store::Options::default());
        let api = Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let (cluster, truth) = (api::calm(&api), Arc::default());
        let processes = Processes::new(&sim, &api, &truth);
        let mut beside = JoinSet::new();
        beside.spawn(async move { api.run().await });
        let ground = Self { sim, truth, processes, cluster, _beside: beside };
        ground.first_objects().await;
        ground
    }

    async fn first_objects(&self) {
        // Pods need their namespace's account.
        let account = wharf_model::Api { kind: "ServiceAccount", plural: "serviceaccounts", ..Pod::API };
        let key = Key::namespaced("default", "default");
        while self.cluster.get_raw(&account, &key).await.unwrap().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
        let spec =
            json!({"attachRequired": true, "fsGroupPolicy": "None", "volumeLifecycleModes": ["Persistent"]});
        self.make::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": spec})).await;
        for (name, mode) in CLASSES {
            self.make::<StorageClass>(json!({
                "metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": mode,
                "allowVolumeExpansion": true,
            }))
            .await;
        }
        for name in self.sim.nodes {
            self.node(name).await;
        }
    }

    /// A node that is ready, with the driver on it.
    async fn node(&self, name: &str) {
        let annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        self.make::<Node>(json!({
            "metadata": {"name": name, "labels": {"host": name}, "annotations": annotations},
        }))
        .await;
        let room = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
        let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": ready}});
        self.patch::<Node>(&Key::cluster(name), Some("status"), status).await;
        // A node is born with the taint of one that is not ready.
        self.patch::<Node>(&Key::cluster(name), None, json!({"spec": {"taints": null}})).await;
        let driver = json!({"name": DRIVER, "nodeID": name, "topologyKeys": []});
        self.make::<CSINode>(json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}})).await;
    }

    pub(crate) async fn make<K: Kind>(&self, mut body: Value) -> Value {
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
        self.make::<PersistentVolumeClaim>(json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": GIB.to_string()}},
            },
        }))
        .await;
    }

    /// Asks for more than the claim wants now, if it is there and bound.
    pub(crate) async fn grow(&self, name: &str) {
        let key = Key::namespaced("default", name);
        let claim = self.cluster.get::<PersistentVolumeClaim>(&key).await.unwrap();
        let Some(wanted) = claim.and_then(|claim| claim.requested()) else { return };
        let size = wanted.bytes() + GIB;
        self.sim.note(format_args!("claim {name} is to grow to {size}"));
        let patch = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": size.to_string()}}}}));
        // One that is not bound cannot grow.
        let _ = self.cluster.patch(&PersistentVolumeClaim::API, &key, None, patch).await;
    }

    /// A pod with a claim, or with an ephemeral one of this class; on this node, or anywhere.
    pub(crate) async fn pod(&self, name: &str, volume: Value, node: Option<&str>) {
        self.sim.note(format_args!("pod {name} on {node:?} with {volume}"));
        let selector = node.map(|node| json!({"host": node}));
        let mounts = json!([{"name": "data", "mountPath": "/data"}]);
        let mut volume = volume;
        volume["name"] = json!("data");
        self.make::<Pod>(json!({"metadata": {"name": name}, "spec": {
            "automountServiceAccountToken": false, "nodeSelector": selector, "volumes": [volume],
            "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}],
        }}))
        .await;
    }

    pub(crate) async fn delete<K: Kind>(&self, name: &str) {
        self.sim.note(format_args!("{} {name} is to go", K::API.kind));
        let key = Key::namespaced("default", name);
        // It may be gone already.
        let _ = self.cluster.delete(&K::API, &key, Preconditions::default()).await;
    }

    pub(crate) async fn all<K: Kind>(&self) -> Vec<K> {
        self.cluster.list::<K>(&WatchOptions::default()).await.unwrap().items
    }

    /// Whether something comes about within a time.
    pub(crate) async fn within(&self, patience: Duration, is: impl AsyncFn(&Self) -> bool) -> bool {
        let until = Instant::now() + patience;
        while !is(self).await {
            if Instant::now() >= until {
                return false;
            }
            sleep(LOOK).await;
        }
        true
    }
}
