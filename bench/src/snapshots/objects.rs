//! Creates VolumeSnapshots and VolumeSnapshotContents in bulk.

use serde_json::{Value, json};
use wharf_cluster::{Cluster, Patch, Preconditions};
use wharf_model::{Key, Kind, VolumeSnapshot, VolumeSnapshotContent};

use crate::objects::{DRIVER, NAMESPACE, each, handle};

const CLASS: &str = "bench";

/// The VolumeSnapshotClass.
pub(super) fn class() -> String {
    format!(
        "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {{name: {CLASS}}}\n\
         driver: {DRIVER}\ndeletionPolicy: Delete\n"
    )
}

pub(super) fn key(name: &str) -> Key {
    Key::namespaced(NAMESPACE, name)
}

fn snapshot(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "bench"}},
        "spec": {"volumeSnapshotClassName": CLASS, "source": {"persistentVolumeClaimName": claim}},
    })
}

/// Creates snapshots, each of its claim.
pub(super) async fn take(cluster: &Cluster, snapshots: &[(String, String)]) {
    each(snapshots.to_owned(), |(name, claim)| {
        let cluster = cluster.clone();
        async move {
            cluster.create(&VolumeSnapshot::API, Some(NAMESPACE), &snapshot(&name, &claim)).await.map(drop)
        }
    })
    .await;
}

/// Requests the deletion of snapshots.
pub(super) async fn delete(cluster: &Cluster, snapshots: &[(String, String)]) {
    each(snapshots.to_owned(), |(name, _)| {
        let cluster = cluster.clone();
        async move { cluster.delete(&VolumeSnapshot::API, &key(&name), Preconditions::default()).await }
    })
    .await;
}

/// Creates ready snapshots with their contents, as API objects without real storage. No controller may run during this.
pub(super) async fn seed(cluster: &Cluster, numbers: std::ops::Range<usize>, claims: usize) {
    each(numbers, |number| {
        let cluster = cluster.clone();
        async move {
            let (name, claim) = (format!("seed-{number}"), format!("seed-{}", number % claims));
            let mut body = snapshot(&name, &claim);
            body["metadata"]["finalizers"] = json!([
                "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection",
                "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection",
            ]);
            let made = cluster.create(&VolumeSnapshot::API, Some(NAMESPACE), &body).await?;
            let content = format!("snapcontent-{}", made["metadata"]["uid"].as_str().unwrap_or_default());
            let body = json!({
                "apiVersion": "snapshot.storage.k8s.io/v1",
                "kind": "VolumeSnapshotContent",
                "metadata": {
                    "name": content,
                    "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
                },
                "spec": {
                    "driver": DRIVER, "deletionPolicy": "Delete", "volumeSnapshotClassName": CLASS,
                    "source": {"volumeHandle": handle(&claim)}, "sourceVolumeMode": "Filesystem",
                    "volumeSnapshotRef": {
                        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                        "namespace": NAMESPACE, "name": name, "uid": made["metadata"]["uid"],
                        "resourceVersion": made["metadata"]["resourceVersion"],
                    },
                },
            });
            cluster.create(&VolumeSnapshotContent::API, None, &body).await?;
            let cut = json!({"status": {
                "snapshotHandle": format!("snap-{name}"), "readyToUse": true, "restoreSize": 1 << 20,
                "creationTime": 1_700_000_000_000_000_000_i64,
            }});
            let (api, key) = (&VolumeSnapshotContent::API, Key::cluster(content.clone()));
            cluster.patch(api, &key, Some("status"), Patch::Merge(cut)).await?;
            let bound = json!({"status": {
                "boundVolumeSnapshotContentName": content, "readyToUse": true, "restoreSize": "1Mi",
                "creationTime": "2023-11-14T22:13:20Z",
            }});
            let (api, key) = (&VolumeSnapshot::API, self::key(&name));
            cluster.patch(api, &key, Some("status"), Patch::Merge(bound)).await.map(drop)
        }
    })
    .await;
}
