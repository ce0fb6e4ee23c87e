//! Explains objects of a real API server, with and without permission to read them, and with a sidecar's attempts page.

#![allow(clippy::unwrap_used)] // test helpers: a panic fails the test

use std::convert::Infallible;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tower::Service as _;
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::store;
use wharf_cluster::{Cluster, Patch, Preconditions, now};
use wharf_explain::{Explanation, State, explain};
use wharf_model::snapshot::names;
use wharf_model::{
    CSINode, Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, UniqueVolumeName,
    VolumeAttachment, VolumeAttributesClass, VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

/// A server with a scheduled pod whose claim is bound and whose volume is not attached yet.
struct World {
    api: Api,
    cluster: Cluster,
    _dir: TempDir,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = store::Options { sync: false, ..store::Options::default() };
        let store = store::Store::open(dir.path(), options).unwrap();
        let api = Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let cluster = Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"));
        let world = Self { api, cluster, _dir: dir };
        let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        world.make::<Node>(json!({"metadata": {"name": "n", "annotations": managed}})).await;
        let drivers = json!([{"name": "d.test", "nodeID": "n", "topologyKeys": []}]);
        world.make::<CSINode>(json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}})).await;
        world.make::<StorageClass>(json!({"metadata": {"name": "fast"}, "provisioner": "d.test"})).await;
        let size = json!({"requests": {"storage": "1Gi"}});
        let claim = world
            .make::<PersistentVolumeClaim>(json!({
                "metadata": {"name": "data", "namespace": "default"},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": "pv",
                    "resources": size},
            }))
            .await;
        world
            .make::<PersistentVolume>(json!({
                "metadata": {"name": "pv"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "capacity": {"storage": "1Gi"},
                    "csi": {"driver": "d.test", "volumeHandle": "h"},
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
                        "name": "data", "uid": claim["metadata"]["uid"]},
                },
            }))
            .await;
        let bound = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        world.status::<PersistentVolumeClaim>(&Key::namespaced("default", "data"), bound).await;
        world.status::<PersistentVolume>(&Key::cluster("pv"), json!({"phase": "Bound"})).await;
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "volumes": volumes});
        world.make::<Pod>(json!({"metadata": {"name": "db", "namespace": "default"}, "spec": spec})).await;
        world
    }

    async fn make<K: Kind>(&self, mut body: Value) -> Value {
        body["apiVersion"] = json!(K::API.api_version());
        body["kind"] = json!(K::API.kind);
        let namespace = body["metadata"]["namespace"].as_str().map(str::to_owned);
        self.cluster.create(&K::API, namespace.as_deref(), &body).await.unwrap()
    }

    async fn status<K: Kind>(&self, key: &Key, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.cluster.patch(&K::API, key, Some("status"), patch).await.unwrap();
    }

    /// A client that is forbidden to read objects of this resource.
    fn without(&self, plural: &'static str) -> Cluster {
        let inner = self.api.service::<kube::client::Body>(User::admin());
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let mut inner = inner.clone();
            async move {
                if request.uri().path().split('/').any(|part| part == plural) {
                    let body = json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
                        "message": "forbidden"});
                    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
                    let response = Response::builder().status(403).body(body.boxed_unsync()).unwrap();
                    return Ok::<_, Infallible>(response);
                }
                inner.call(request).await
            }
        });
        Cluster::with_client(kube::Client::new(service, "default"))
    }

    async fn explanation(&self, cluster: &Cluster, subject: &str, attempts: Option<&str>) -> Explanation {
        explain(cluster, &subject.parse().unwrap(), attempts, now()).await.unwrap()
    }
}

#[tokio::test]
async fn claim_pod_and_volume_wait_for_the_same_step() {
    let world = World::new().await;
    for subject in ["pvc/data", "pod/db", "pv/pv"] {
        let explanation = world.explanation(&world.cluster, subject, None).await;
        let step = explanation.pending_step().unwrap();
        assert_eq!(
            (step.object.as_str(), step.state),
            ("volume pv", State::Waiting),
            "{subject}: {explanation}"
        );
        assert_eq!(step.waiting_for, "the attach/detach controller", "{subject}: {explanation}");
        assert!(step.since.is_some(), "{subject}: {explanation}");
        assert_eq!(explanation.exit_status(), 3);
        assert_eq!(explanation.missing, ["sidecar attempts unavailable; pass --attempts"], "{subject}");
    }
    let none = world.explanation(&world.cluster, "pvc/none", None).await;
    assert_eq!(none.pending_step().unwrap().message, "PersistentVolumeClaim default/none does not exist");
}

#[tokio::test]
async fn forbidden_objects_are_reported_as_unknown() {
    let world = World::new().await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
        "resources": {"requests": {"storage": "1Gi"}}});
    let unbound = json!({"metadata": {"name": "static", "namespace": "default"}, "spec": spec});
    world.make::<PersistentVolumeClaim>(unbound).await;
    for (plural, subject, status) in [
        ("volumeattachments", "pvc/data", 5),
        ("nodes", "pvc/data", 5),
        ("pods", "pvc/data", 5),
        ("csidrivers", "pvc/data", 5),
        ("persistentvolumes", "pod/db", 5),
        ("persistentvolumes", "pvc/data", 5),
        ("persistentvolumes", "pvc/static", 5),
        // The steps are known without them.
        ("events", "pvc/data", 3),
    ] {
        let cluster = world.without(plural);
        let explanation = world.explanation(&cluster, subject, None).await;
        let reported = explanation
            .missing
            .iter()
            .any(|missing| missing.to_lowercase().contains(&plural[..plural.len() - 1]));
        assert!(reported, "{plural}: {explanation}");
        assert_eq!(explanation.exit_status(), status, "{plural}: {explanation}");
    }
    // The subject itself must be readable.
    let subject = "pvc/data".parse().unwrap();
    assert!(explain(&world.without("persistentvolumeclaims"), &subject, None, now()).await.is_err());
}

/// For a claim without dynamic provisioning, a matching volume is found among all.
#[tokio::test]
async fn matching_static_volume_is_found() {
    let world = World::new().await;
    let modes = json!(["ReadWriteOnce"]);
    world
        .make::<PersistentVolumeClaim>(json!({
            "metadata": {"name": "static", "namespace": "default"},
            "spec": {"accessModes": modes, "storageClassName": "manual",
                "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .await;
    let first_pending = async || {
        let explanation = world.explanation(&world.cluster, "pvc/static", None).await;
        let step = explanation.pending_step().unwrap();
        (step.waiting_for.clone(), step.message.clone())
    };
    let (waiting_for, message) = first_pending().await;
    assert!(
        waiting_for.starts_with("you to create the StorageClass") && message.contains("no existing"),
        "{waiting_for} {message}"
    );
    for (name, class) in [("other", "fast"), ("matching", "manual")] {
        world
            .make::<PersistentVolume>(json!({
                "metadata": {"name": name},
                "spec": {"accessModes": modes, "storageClassName": class, "capacity": {"storage": "1Gi"},
                    "csi": {"driver": "d.test", "volumeHandle": name}},
            }))
            .await;
        world.status::<PersistentVolume>(&Key::cluster(name), json!({"phase": "Available"})).await;
    }
    let (waiting_for, message) = first_pending().await;
    assert!(
        waiting_for.contains("binder") && message.starts_with("PersistentVolume matching matches"),
        "{waiting_for} {message}"
    );
}

/// A pre-provisioned snapshot needs its content and no class. A dynamic one needs a default class of its volume's
/// driver.
#[tokio::test]
async fn snapshot_needs_content_or_default_class() {
    let world = World::new().await;
    let first_pending = async |subject: &str| {
        let explanation = world.explanation(&world.cluster, subject, None).await;
        let step = explanation.pending_step().unwrap();
        (step.waiting_for.clone(), step.message.clone())
    };
    let default = json!({"snapshot.storage.kubernetes.io/is-default-class": "true"});
    let class = |name: &str, driver: &str| json!({"metadata": {"name": name, "annotations": default}, "driver": driver, "deletionPolicy": "Delete"});
    let snapshot = |name: &str, source: Value| json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"source": source}});
    world.make::<VolumeSnapshot>(snapshot("existing", json!({"volumeSnapshotContentName": "static"}))).await;
    world.make::<VolumeSnapshot>(snapshot("new", json!({"persistentVolumeClaimName": "data"}))).await;
    let (waiting_for, message) = first_pending("vs/existing").await;
    assert_eq!(waiting_for, "you to create VolumeSnapshotContent static", "{message}");
    world.make::<VolumeSnapshotClass>(class("theirs", "other.test")).await;
    let (waiting_for, message) = first_pending("vs/new").await;
    assert!(waiting_for.starts_with("you to name a class"), "{waiting_for} {message}");
    world.make::<VolumeSnapshotClass>(class("ours", "d.test")).await;
    let (waiting_for, message) = first_pending("vs/new").await;
    assert_eq!(waiting_for, "the snapshot controller", "{message}");
}

/// Its group is matched by UID, the claims that are being restored from it by name.
#[tokio::test]
async fn snapshot_in_deletion_waits_for_group_and_restores() {
    let world = World::new().await;
    let source = json!({"source": {"persistentVolumeClaimName": "data"}});
    let claims = json!({"source": {"selector": {"matchLabels": {"app": "db"}}}});
    let group = world
        .make::<VolumeGroupSnapshot>(
            json!({"metadata": {"name": "g", "namespace": "default"}, "spec": claims}),
        )
        .await;
    for (name, owner, waiting_for) in [
        ("snapshot-member", &group["metadata"]["uid"], "you to delete the group snapshot"),
        ("snapshot-orphan", &json!("earlier"), "the snapshot controller"),
        ("snapshot-wanted", &json!("earlier"), "the provisioner of these claims, or you to delete them"),
    ] {
        let owners = json!([{"apiVersion": VolumeGroupSnapshot::API.api_version(), "name": "g",
            "kind": VolumeGroupSnapshot::API.kind, "uid": owner}]);
        let metadata = json!({"name": name, "namespace": "default", "ownerReferences": owners,
            "finalizers": [names::BOUND_PROTECTION]});
        let created = world.make::<VolumeSnapshot>(json!({"metadata": metadata, "spec": source})).await;
        let uid = created["metadata"]["uid"].as_str().unwrap();
        let spec = json!({"driver": "d.test", "deletionPolicy": "Delete", "source": {"volumeHandle": "h"},
            "volumeSnapshotRef": {"namespace": "default", "name": name, "uid": uid}});
        // Snapshot and content of a member have the same suffix.
        let metadata = json!({"name": name.replace("snapshot-", "snapcontent-")});
        world.make::<VolumeSnapshotContent>(json!({"metadata": metadata, "spec": spec})).await;
        let key = Key::namespaced("default", name);
        world.cluster.delete(&VolumeSnapshot::API, &key, Preconditions::default()).await.unwrap();
        let from = json!({"apiGroup": VolumeSnapshot::API.group, "kind": "VolumeSnapshot", "name": name});
        if name == "snapshot-wanted" {
            let spec = json!({"accessModes": ["ReadWriteOnce"], "dataSource": from,
                "resources": {"requests": {"storage": "1Gi"}}});
            let metadata = json!({"name": "restored", "namespace": "default"});
            world.make::<PersistentVolumeClaim>(json!({"metadata": metadata, "spec": spec})).await;
        }
        let explanation = world.explanation(&world.cluster, &format!("vs/{name}"), None).await;
        assert_eq!(explanation.pending_step().unwrap().waiting_for, waiting_for, "{explanation}");
    }
    let explanation =
        world.explanation(&world.without("persistentvolumeclaims"), "vs/snapshot-wanted", None).await;
    assert_eq!(explanation.exit_status(), 5, "{explanation}");
}

/// Whether the requested class exists is read.
#[tokio::test]
async fn requested_attributes_class_is_looked_up() {
    let world = World::new().await;
    let key = Key::namespaced("default", "data");
    let request = Patch::Merge(json!({"spec": {"volumeAttributesClassName": "gold"}}));
    world.cluster.patch(&PersistentVolumeClaim::API, &key, None, request).await.unwrap();
    let gold = json!({"metadata": {"name": "gold"}, "driverName": "d.test", "parameters": {"iops": "1"}});
    for waiting_for in ["you to create the class, or name another", "the resizer of d.test"] {
        let explanation = world.explanation(&world.cluster, "pvc/data", None).await;
        assert_eq!(explanation.pending_step().unwrap().waiting_for, waiting_for, "{explanation}");
        if waiting_for.starts_with("you") {
            world.make::<VolumeAttributesClass>(gold.clone()).await;
        }
    }
    let explanation = world.explanation(&world.without("volumeattributesclasses"), "pvc/data", None).await;
    assert_eq!(explanation.exit_status(), 5, "{explanation}");
}

/// The sidecar's error is reported; if its page cannot be read, that is.
#[tokio::test]
async fn sidecar_attempts_are_reported() {
    let world = World::new().await;
    let name = UniqueVolumeName { driver: "d.test".into(), handle: "h".into() }.attachment_name("n");
    let source = json!({"persistentVolumeName": "pv"});
    let spec = json!({"attacher": "d.test", "nodeName": "n", "source": source});
    world.make::<VolumeAttachment>(json!({"metadata": {"name": name}, "spec": spec})).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let page = json!([{"role": "attacher", "object": name, "time": "2026-11-15T10:00:00Z",
        "step": "ControllerPublishVolume", "error": "no slot is free", "failures": 3}]);
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let length = stream.read(&mut request).await.unwrap();
        assert!(request[..length].starts_with(b"GET /debug/attempts "));
        let response = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{page}");
        stream.write_all(response.as_bytes()).await.unwrap();
    });
    let explanation = world.explanation(&world.cluster, "pod/db", Some(&address)).await;
    served.await.unwrap();
    let step = explanation.pending_step().unwrap();
    assert_eq!(
        (step.state, step.waiting_for.as_str()),
        (State::Failed, "the attacher of d.test"),
        "{explanation}"
    );
    assert_eq!(step.error.as_ref().unwrap().text, "no slot is free");
    assert!(explanation.missing.is_empty(), "{explanation}");

    let explanation = world.explanation(&world.cluster, "pod/db", Some(&address)).await;
    assert_eq!(explanation.pending_step().unwrap().state, State::Waiting);
    assert!(explanation.missing[0].starts_with("sidecar attempts (127.0.0.1"), "{explanation}");
}
