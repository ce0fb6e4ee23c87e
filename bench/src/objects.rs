//! Creates the objects that a measurement needs, in bulk: claims, volumes and pods as in a real cluster.

use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_cluster::{ApiError, Cluster, Patch, Preconditions};
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment};

/// The driver that both sides use.
pub(crate) const DRIVER: &str = "bench.test.wharf.dev";
/// The StorageClass of its claims.
pub(crate) const CLASS: &str = "bench";
/// A node with the driver, but without a kubelet.
pub(crate) const NODE: &str = "bench-node";
pub(crate) const NAMESPACE: &str = "default";

/// The objects that all others refer to.
pub(crate) fn base_objects() -> String {
    format!(
        r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {CLASS}}}
provisioner: {DRIVER}
allowVolumeExpansion: true
---
apiVersion: v1
kind: Node
metadata: {{name: {NODE}}}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {{name: {NODE}}}
spec: {{drivers: [{{name: {DRIVER}, nodeID: {NODE}, topologyKeys: []}}]}}
"#
    )
}

pub(crate) fn claim_key(name: &str) -> Key {
    Key::namespaced(NAMESPACE, name)
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "bench"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS,
            "resources": {"requests": {"storage": "1Mi"}},
        },
    })
}

/// Runs `one` for each item, as concurrently as the client allows.
pub(crate) async fn each<T, F>(items: impl IntoIterator<Item = T>, one: impl Fn(T) -> F)
where
    F: Future<Output = Result<(), ApiError>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for item in items {
        running.spawn(one(item));
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("a request does not panic").expect("the API server takes it");
    }
}

/// Creates claims. With `asked`, they carry the annotations with which the controller manager requests a volume, so
/// that it does not affect the measurement.
pub(crate) async fn create_claims(cluster: &Cluster, names: &[String], asked: bool) {
    each(names.to_owned(), |name| {
        let cluster = cluster.clone();
        async move {
            let mut body = claim(&name);
            if asked {
                body["metadata"]["annotations"] = json!({
                    "volume.kubernetes.io/storage-provisioner": DRIVER,
                    "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
                });
            }
            cluster.create(&PersistentVolumeClaim::API, Some(NAMESPACE), &body).await.map(drop)
        }
    })
    .await;
}

/// Requests a larger size for each claim.
pub(crate) async fn enlarge(cluster: &Cluster, names: &[String]) {
    each(names.to_owned(), |name| {
        let cluster = cluster.clone();
        async move {
            let patch = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Mi"}}}}));
            cluster.patch(&PersistentVolumeClaim::API, &claim_key(&name), None, patch).await.map(drop)
        }
    })
    .await;
}

/// Requests the deletion of claims.
pub(crate) async fn delete_claims(cluster: &Cluster, names: &[String]) {
    each(names.to_owned(), |name| {
        let cluster = cluster.clone();
        async move {
            cluster.delete(&PersistentVolumeClaim::API, &claim_key(&name), Preconditions::default()).await
        }
    })
    .await;
}

/// Binds claims to their volumes, as the controller manager would.
pub(crate) async fn bind(cluster: &Cluster, pairs: &[(String, String)]) {
    each(pairs.to_owned(), |(claim, volume)| {
        let cluster = cluster.clone();
        async move {
            let (claim, phase) = (claim_key(&claim), json!({"status": {"phase": "Bound"}}));
            let spec = json!({
                "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"volumeName": volume},
            });
            let mut status = phase.clone();
            status["status"]["accessModes"] = json!(["ReadWriteOnce"]);
            status["status"]["capacity"] = json!({"storage": "1Mi"});
            let (claims, volumes) = (&PersistentVolumeClaim::API, &PersistentVolume::API);
            cluster.patch(volumes, &Key::cluster(volume), Some("status"), Patch::Merge(phase)).await?;
            cluster.patch(claims, &claim, None, Patch::Merge(spec)).await?;
            cluster.patch(claims, &claim, Some("status"), Patch::Merge(status)).await.map(drop)
        }
    })
    .await;
}

/// Deletes claims and removes the controller manager's protection finalizers from them and their volumes.
pub(crate) async fn unprotect(cluster: &Cluster, pairs: &[(String, String)]) {
    const MINE: &str = "external-provisioner.volume.kubernetes.io/finalizer";
    each(pairs.to_owned(), |(claim, volume)| {
        let cluster = cluster.clone();
        async move {
            let claim = claim_key(&claim);
            let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            let kept = Patch::Merge(json!({"metadata": {"finalizers": [MINE]}}));
            cluster.patch(&PersistentVolumeClaim::API, &claim, None, bare).await?;
            cluster.delete(&PersistentVolumeClaim::API, &claim, Preconditions::default()).await?;
            cluster.patch(&PersistentVolume::API, &Key::cluster(volume), None, kept).await.map(drop)
        }
    })
    .await;
}

/// Marks volumes as Released, as the controller manager would.
pub(crate) async fn release(cluster: &Cluster, volumes: &[String]) {
    each(volumes.to_owned(), |volume| {
        let cluster = cluster.clone();
        async move {
            let patch = Patch::Merge(json!({"status": {"phase": "Released"}}));
            let key = Key::cluster(volume);
            cluster.patch(&PersistentVolume::API, &key, Some("status"), patch).await.map(drop)
        }
    })
    .await;
}

/// Creates VolumeAttachments for the node.
pub(crate) async fn attach(cluster: &Cluster, volumes: &[String]) {
    each(volumes.to_owned(), |volume| {
        let cluster = cluster.clone();
        async move {
            let body = json!({
                "apiVersion": "storage.k8s.io/v1",
                "kind": "VolumeAttachment",
                "metadata": {"name": format!("csi-{volume}")},
                "spec": {"attacher": DRIVER, "nodeName": NODE, "source": {"persistentVolumeName": volume}},
            });
            cluster.create(&VolumeAttachment::API, None, &body).await.map(drop)
        }
    })
    .await;
}

/// Deletes these VolumeAttachments.
pub(crate) async fn detach(cluster: &Cluster, volumes: &[String]) {
    each(volumes.to_owned(), |volume| {
        let cluster = cluster.clone();
        async move {
            let key = Key::cluster(format!("csi-{volume}"));
            cluster.delete(&VolumeAttachment::API, &key, Preconditions::default()).await
        }
    })
    .await;
}

/// Deletes PersistentVolumes, regardless of their finalizers.
pub(crate) async fn delete_volumes(cluster: &Cluster, volumes: &[String]) {
    each(volumes.to_owned(), |volume| {
        let cluster = cluster.clone();
        async move {
            let (api, key) = (&PersistentVolume::API, Key::cluster(volume));
            let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            cluster.patch(api, &key, None, bare).await?;
            cluster.delete(api, &key, Preconditions::default()).await
        }
    })
    .await;
}

/// The volume handle of the volume seeded for a claim.
pub(crate) fn handle(claim: &str) -> String {
    format!("handle-{claim}")
}

/// Creates claims bound to volumes of the driver, as API objects without real storage.
pub(crate) async fn seed_volumes(cluster: &Cluster, numbers: std::ops::Range<usize>) {
    each(numbers, |number| {
        let cluster = cluster.clone();
        async move {
            let name = format!("seed-{number}");
            let made = cluster.create(&PersistentVolumeClaim::API, Some(NAMESPACE), &bound(&name)).await?;
            let body = volume(&name, &made["metadata"]["uid"]);
            cluster.create(&PersistentVolume::API, None, &body).await?;
            let phase = json!({"status": {"phase": "Bound"}});
            let key = Key::cluster(format!("pvc-{name}"));
            cluster.patch(&PersistentVolume::API, &key, Some("status"), Patch::Merge(phase.clone())).await?;
            let mut status = phase;
            status["status"]["accessModes"] = json!(["ReadWriteOnce"]);
            status["status"]["capacity"] = json!({"storage": "1Mi"});
            let key = claim_key(&name);
            let patch = Patch::Merge(status);
            cluster.patch(&PersistentVolumeClaim::API, &key, Some("status"), patch).await.map(drop)
        }
    })
    .await;
}

fn bound(name: &str) -> Value {
    let mut body = claim(name);
    body["metadata"]["annotations"] = json!({
        "pv.kubernetes.io/bind-completed": "yes",
        "pv.kubernetes.io/bound-by-controller": "yes",
        "volume.kubernetes.io/storage-provisioner": DRIVER,
        "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
    });
    body["spec"]["volumeName"] = json!(format!("pvc-{name}"));
    body
}

fn volume(name: &str, claim_uid: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": format!("pvc-{name}"),
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Mi"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": name,
                "uid": claim_uid,
            },
            "csi": {
                "driver": DRIVER,
                "volumeHandle": handle(name),
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": format!("1-{DRIVER}")},
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": CLASS,
            "volumeMode": "Filesystem",
        },
    })
}

/// Creates pods that do not use the driver and are ignored by schedulers.
pub(crate) async fn seed_pods(cluster: &Cluster, count: usize) {
    each(0..count, |number| {
        let cluster = cluster.clone();
        async move {
            let body = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": format!("unrelated-{number}"),
                    "labels": {"app": "unrelated", "pod-template-hash": "6d4cf56db6"},
                },
                "spec": {
                    "schedulerName": "nobody",
                    "containers": [{
                        "name": "main",
                        "image": "registry.example/team/application:1.2.3",
                        "env": [{"name": "LEVEL", "value": "info"}, {"name": "PORT", "value": "8080"}],
                        "ports": [{"containerPort": 8080}],
                        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
                        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                    }],
                    "volumes": [{"name": "scratch", "emptyDir": {}}],
                },
            });
            cluster.create(&Pod::API, Some(NAMESPACE), &body).await.map(drop)
        }
    })
    .await;
}
