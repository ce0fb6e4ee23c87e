//! Stories of a server: what is read of it, what may not be read, and a sidecar's page.

#![allow(clippy::unwrap_used)] // helpers of tests, where a panic is the answer

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
use wharf_explain::{State, Story, explain};
use wharf_model::snapshot::names;
use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSINode, Key, Kind, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment,
    VolumeAttributesClass, VolumeGroupSnapshot, VolumeName, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

/// A server on which a pod's claim is bound, and its volume not attached yet.
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

    /// A way to the server by which objects of this plural cannot be read.
    fn without(&self, plural: &'static str) -> Cluster {
        let inner = self.api.service::<kube::client::Body>(User::admin());
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let mut inner = inner.clone();
            async move {
                if request.uri().path().split('/').any(|part| part == plural) {
                    let body = json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
                        "message": "you may not"});
                    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
                    let answer = Response::builder().status(403).body(body.boxed_unsync()).unwrap();
                    return Ok::<_, Infallible>(answer);
                }
                inner.call(request).await
            }
        });
        Cluster::with_client(kube::Client::new(service, "default"))
    }

    async fn story(&self, cluster: &Cluster, subject: &str, attempts: Option<&str>) -> Story {
        explain(cluster, &subject.parse().unwrap(), attempts, now()).await.unwrap()
    }
}

/// From each end of the way, the same step is waited for.
#[tokio::test]
async fn from_every_end() {
    let world = World::new().await;
    for subject in ["pvc/data", "pod/db", "pv/pv"] {
        let story = world.story(&world.cluster, subject, None).await;
        let step = story.waits_for().unwrap();
        assert_eq!((step.object.as_str(), step.state), ("volume pv", State::Waits), "{subject}: {story}");
        assert_eq!(step.whose, "the attach/detach controller", "{subject}: {story}");
        assert!(step.since.is_some(), "{subject}: {story}");
        assert_eq!(story.exit_status(), 3);
        assert_eq!(story.missing, ["what the sidecars tried: nobody said where one tells"], "{subject}");
    }
    let none = world.story(&world.cluster, "pvc/none", None).await;
    assert_eq!(none.waits_for().unwrap().says, "there is no such claim");
}

/// What may not be read is told, and nothing is made up in its place.
#[tokio::test]
async fn what_may_not_be_read() {
    let world = World::new().await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
        "resources": {"requests": {"storage": "1Gi"}}});
    let by_hand = json!({"metadata": {"name": "by-hand", "namespace": "default"}, "spec": spec});
    world.make::<PersistentVolumeClaim>(by_hand).await;
    for (plural, subject, status) in [
        ("volumeattachments", "pvc/data", 5),
        ("nodes", "pvc/data", 5),
        ("pods", "pvc/data", 5),
        ("csidrivers", "pvc/data", 5),
        ("persistentvolumes", "pod/db", 5),
        ("persistentvolumes", "pvc/data", 5),
        ("persistentvolumes", "pvc/by-hand", 5),
        // The way is known without them.
        ("events", "pvc/data", 3),
    ] {
        let cluster = world.without(plural);
        let story = world.story(&cluster, subject, None).await;
        let told =
            story.missing.iter().any(|missing| missing.to_lowercase().contains(&plural[..plural.len() - 1]));
        assert!(told, "{plural}: {story}");
        assert_eq!(story.exit_status(), status, "{plural}: {story}");
    }
    // Without the subject itself there is no story.
    let subject = "pvc/data".parse().unwrap();
    assert!(explain(&world.without("persistentvolumeclaims"), &subject, None, now()).await.is_err());
}

/// A claim that no class makes a volume for: of all volumes, one that fits it is found.
#[tokio::test]
async fn a_volume_made_by_hand() {
    let world = World::new().await;
    let modes = json!(["ReadWriteOnce"]);
    world
        .make::<PersistentVolumeClaim>(json!({
            "metadata": {"name": "by-hand", "namespace": "default"},
            "spec": {"accessModes": modes, "storageClassName": "manual",
                "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .await;
    let answer = async || {
        let story = world.story(&world.cluster, "pvc/by-hand", None).await;
        let step = story.waits_for().unwrap();
        (step.whose.clone(), step.says.clone())
    };
    let (whose, says) = answer().await;
    assert!(whose.starts_with("you: make the class") && says.contains("no volume"), "{whose} {says}");
    for (name, class) in [("other", "fast"), ("fits", "manual")] {
        world
            .make::<PersistentVolume>(json!({
                "metadata": {"name": name},
                "spec": {"accessModes": modes, "storageClassName": class, "capacity": {"storage": "1Gi"},
                    "csi": {"driver": "d.test", "volumeHandle": name}},
            }))
            .await;
        world.status::<PersistentVolume>(&Key::cluster(name), json!({"phase": "Available"})).await;
    }
    let (whose, says) = answer().await;
    assert!(whose.contains("binder") && says.starts_with("volume fits is there for it"), "{whose} {says}");
}

/// A snapshot of what is there already: its content is read, and no class is asked for. Of one that is to be taken, the
/// default class is one of its volume's driver.
#[tokio::test]
async fn snapshots() {
    let world = World::new().await;
    let answer = async |subject: &str| {
        let story = world.story(&world.cluster, subject, None).await;
        let step = story.waits_for().unwrap();
        (step.whose.clone(), step.says.clone())
    };
    let default = json!({"snapshot.storage.kubernetes.io/is-default-class": "true"});
    let class = |name: &str, driver: &str| json!({"metadata": {"name": name, "annotations": default}, "driver": driver, "deletionPolicy": "Delete"});
    let snapshot = |name: &str, source: Value| json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"source": source}});
    world.make::<VolumeSnapshot>(snapshot("there", json!({"volumeSnapshotContentName": "by-hand"}))).await;
    world.make::<VolumeSnapshot>(snapshot("new", json!({"persistentVolumeClaimName": "data"}))).await;
    let (whose, says) = answer("vs/there").await;
    assert_eq!(whose, "you: make content by-hand", "{says}");
    world.make::<VolumeSnapshotClass>(class("theirs", "other.test")).await;
    let (whose, says) = answer("vs/new").await;
    assert!(whose.starts_with("you: name a class"), "{whose} {says}");
    world.make::<VolumeSnapshotClass>(class("ours", "d.test")).await;
    let (whose, says) = answer("vs/new").await;
    assert_eq!(whose, "the snapshot controller", "{says}");
}

/// A snapshot that is to go: its group and the claims that are restored from it are looked for, by identity and name.
#[tokio::test]
async fn a_snapshot_that_goes() {
    let world = World::new().await;
    let source = json!({"source": {"persistentVolumeClaimName": "data"}});
    let claims = json!({"source": {"selector": {"matchLabels": {"app": "db"}}}});
    let group = world
        .make::<VolumeGroupSnapshot>(
            json!({"metadata": {"name": "g", "namespace": "default"}, "spec": claims}),
        )
        .await;
    for (name, owner, whose) in [
        ("member", &group["metadata"]["uid"], "you: delete the group snapshot"),
        ("orphan", &json!("earlier"), "the snapshot controller"),
        ("wanted", &json!("earlier"), "whoever restores these claims, or you: delete them"),
    ] {
        let owners = json!([{"apiVersion": VolumeGroupSnapshot::API.api_version(), "name": "g",
            "kind": VolumeGroupSnapshot::API.kind, "uid": owner}]);
        let metadata = json!({"name": name, "namespace": "default", "ownerReferences": owners,
            "finalizers": [names::BOUND_PROTECTION]});
        let made = world.make::<VolumeSnapshot>(json!({"metadata": metadata, "spec": source})).await;
        let uid = made["metadata"]["uid"].as_str().unwrap();
        let spec = json!({"driver": "d.test", "deletionPolicy": "Delete", "source": {"volumeHandle": "h"},
            "volumeSnapshotRef": {"namespace": "default", "name": name, "uid": uid}});
        let metadata = json!({"name": names::content_name(uid)});
        world.make::<VolumeSnapshotContent>(json!({"metadata": metadata, "spec": spec})).await;
        let key = Key::namespaced("default", name);
        world.cluster.delete(&VolumeSnapshot::API, &key, Preconditions::default()).await.unwrap();
        let from = json!({"apiGroup": VolumeSnapshot::API.group, "kind": "VolumeSnapshot", "name": "wanted"});
        if name == "wanted" {
            let spec = json!({"accessModes": ["ReadWriteOnce"], "dataSource": from,
                "resources": {"requests": {"storage": "1Gi"}}});
            let metadata = json!({"name": "restored", "namespace": "default"});
            world.make::<PersistentVolumeClaim>(json!({"metadata": metadata, "spec": spec})).await;
        }
        let story = world.story(&world.cluster, &format!("vs/{name}"), None).await;
        assert_eq!(story.waits_for().unwrap().whose, whose, "{story}");
    }
    let story = world.story(&world.without("persistentvolumeclaims"), "vs/wanted", None).await;
    assert_eq!(story.exit_status(), 5, "{story}");
}

/// A claim that wants an attributes class: whether that exists is looked up.
#[tokio::test]
async fn an_attributes_class() {
    let world = World::new().await;
    let key = Key::namespaced("default", "data");
    let wants = Patch::Merge(json!({"spec": {"volumeAttributesClassName": "gold"}}));
    world.cluster.patch(&PersistentVolumeClaim::API, &key, None, wants).await.unwrap();
    let gold = json!({"metadata": {"name": "gold"}, "driverName": "d.test", "parameters": {"iops": "1"}});
    for whose in ["you: make the class, or name another", "the resizer of d.test"] {
        let story = world.story(&world.cluster, "pvc/data", None).await;
        assert_eq!(story.waits_for().unwrap().whose, whose, "{story}");
        if whose.starts_with("you") {
            world.make::<VolumeAttributesClass>(gold.clone()).await;
        }
    }
    let story = world.story(&world.without("volumeattributesclasses"), "pvc/data", None).await;
    assert_eq!(story.exit_status(), 5, "{story}");
}

/// The sidecar's own words, where it can be asked; where not, that is told.
#[tokio::test]
async fn a_sidecars_page() {
    let world = World::new().await;
    let name = VolumeName { driver: "d.test".into(), handle: "h".into() }.attachment("n");
    let source = json!({"persistentVolumeName": "pv"});
    let spec = json!({"attacher": "d.test", "nodeName": "n", "source": source});
    world.make::<VolumeAttachment>(json!({"metadata": {"name": name}, "spec": spec})).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let page = json!([{"role": "attacher", "object": name, "time": "2026-11-15T10:00:00Z",
        "step": "ControllerPublishVolume", "error": "no slot is free", "failures": 3}]);
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = [0; 1024];
        let length = stream.read(&mut asked).await.unwrap();
        assert!(asked[..length].starts_with(b"GET /debug/attempts "));
        let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{page}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    let story = world.story(&world.cluster, "pod/db", Some(&address)).await;
    served.await.unwrap();
    let step = story.waits_for().unwrap();
    assert_eq!((step.state, step.whose.as_str()), (State::Failed, "the attacher of d.test"), "{story}");
    assert_eq!(step.error.as_ref().unwrap().text, "no slot is free");
    assert!(story.missing.is_empty(), "{story}");

    let story = world.story(&world.cluster, "pod/db", Some(&address)).await;
    assert_eq!(story.waits_for().unwrap().state, State::Waits);
    assert!(story.missing[0].starts_with("what the sidecar tried (127.0.0.1"), "{story}");
}
