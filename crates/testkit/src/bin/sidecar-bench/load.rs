//! Objects by the thousand, and the look at what becomes of them: by watches, so that looking costs little.

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wharf_cluster::{Cluster, ConnectOptions, Preconditions, WatchOptions};
use wharf_model::{Key, Kind, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment};
use wharf_testkit::TestCluster;

/// How many requests are on their way at once.
const AT_ONCE: usize = 32;

/// The cluster as an administrator sees it.
pub(crate) struct Load {
    cluster: Cluster,
}

impl Load {
    pub(crate) async fn connect(cluster: &TestCluster) -> Self {
        let options = ConnectOptions { kubeconfig: Some(cluster.kubeconfig()), ..ConnectOptions::default() };
        Self { cluster: Cluster::connect(&options).await.expect("a connection to the test cluster") }
    }

    /// Creates objects of a kind.
    pub(crate) async fn create<K: Kind>(&self, objects: Vec<Value>) {
        self.each(objects, |cluster, object| async move {
            let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
            cluster.create(&K::API, namespace.as_deref(), &object).await.map(drop)
        })
        .await;
    }

    /// Deletes all objects of a kind.
    pub(crate) async fn delete_all<K: Kind>(&self) {
        let keys: Vec<Key> = self.store::<K>().await.all().iter().map(|object| object.key()).collect();
        self.each(keys, |cluster, key| async move {
            cluster.delete(&K::API, &key, Preconditions::default()).await
        })
        .await;
    }

    /// Waits until so many objects of a kind are as they should be; answers with when that was.
    pub(crate) async fn until<K: Kind>(&self, count: usize, is: impl Fn(&K) -> bool) -> Instant {
        let store = self.store::<K>().await;
        let until = Instant::now() + Duration::from_secs(3600);
        loop {
            if store.len() >= count && store.all().iter().filter(|object| is(object)).count() == count {
                return Instant::now();
            }
            assert!(Instant::now() < until, "{} of {} {}", store.len(), count, K::API.plural);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until there is no object of a kind.
    pub(crate) async fn until_none<K: Kind>(&self) -> Instant {
        let store = self.store::<K>().await;
        while !store.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Instant::now()
    }

    /// The view of a kind, once it is complete.
    pub(crate) async fn store<K: Kind>(&self) -> wharf_cluster::Store<K> {
        let store = self.cluster.store::<K>(WatchOptions::default());
        store.synced().await;
        store
    }

    async fn each<T, F>(&self, items: Vec<T>, what: impl Fn(Cluster, T) -> F)
    where
        F: Future<Output = Result<(), wharf_cluster::ApiError>> + 'static,
    {
        let local = tokio::task::LocalSet::new();
        let mut items = items.into_iter();
        local
            .run_until(async {
                let mut running = tokio::task::JoinSet::new();
                loop {
                    while running.len() < AT_ONCE {
                        let Some(item) = items.next() else { break };
                        running.spawn_local(what(self.cluster.clone(), item));
                    }
                    match running.join_next().await {
                        Some(done) => done.expect("a task of ours").expect("a request to the test cluster"),
                        None => return,
                    }
                }
            })
            .await;
    }
}

pub(crate) fn class(driver: &str) -> Value {
    json!({
        "apiVersion": StorageClass::API.api_version(), "kind": "StorageClass", "metadata": {"name": driver},
        "provisioner": driver, "allowVolumeExpansion": true,
    })
}

pub(crate) fn claim(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    })
}

/// A volume and the claim that it belongs to, as a provisioner and the binder leave them.
pub(crate) fn volume_and_claim(name: &str, driver: &str) -> (Value, Value) {
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {
                "pv.kubernetes.io/provisioned-by": driver,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": driver,
            "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem",
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name},
            "csi": {"driver": driver, "volumeHandle": name, "volumeAttributes": {
                "scripted": "true",
                "storage.kubernetes.io/csiProvisionerIdentity": format!("1794800000000-1234-{driver}"),
            }},
        },
    });
    let mut claim = claim(name, driver);
    claim["spec"]["volumeName"] = json!(name);
    claim["metadata"]["annotations"] = json!({
        "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
        "volume.kubernetes.io/storage-provisioner": driver,
    });
    (volume, claim)
}

/// A pod that nobody schedules.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": Pod::API.kind, "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{
                "name": "main", "image": "busybox", "command": ["sleep", "1"],
                "env": [{"name": "A", "value": "some value"}], "resources": {"requests": {"cpu": "10m"}},
            }],
        },
    })
}

pub(crate) fn attachment(name: &str, driver: &str, node: &str) -> Value {
    json!({
        "apiVersion": VolumeAttachment::API.api_version(), "kind": "VolumeAttachment", "metadata": {"name": name},
        "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": name}},
    })
}

pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.phase == wharf_model::claim::ClaimPhase::Bound
}
