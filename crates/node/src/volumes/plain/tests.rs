//! Plain volumes on real directories and, for tmpfs volumes, on the real kernel: needs root.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};
use tempfile::TempDir;
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::rest::{self, Api as ApiServer};
use wharf_apiserver::store::{self, Store};
use wharf_cluster::Patch;
use wharf_linux::{Linux, Mounts as _};
use wharf_model::{ConfigMap, Key, Kind as _, Secret};

use super::*;

/// An API server and a node's root directory. Drop unmounts everything.
struct TestNode {
    cluster: Cluster,
    kernel: Arc<dyn Kernel>,
    root: Root,
    _dir: TempDir,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let table = Linux::new().mount_table().unwrap();
        let ours = |mount: &&wharf_linux::Mount| mount.mount_point.starts_with(self.root.path());
        for mount in table.mounts().iter().rev().filter(ours) {
            _ = Linux::new().unmount(&mount.mount_point);
        }
    }
}

async fn node() -> TestNode {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), store::Options { sync: false, ..store::Options::default() }).unwrap();
    let api = ApiServer::new(store, Access::generate().unwrap(), rest::Options::default());
    api.prepare().await.unwrap();
    let cluster = Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"));
    let path = dir.path().canonicalize().unwrap().join("kubelet");
    TestNode { cluster, kernel: Arc::new(Linux::new()), root: Root::new(path), _dir: dir }
}

impl TestNode {
    async fn create<K: wharf_model::Kind>(&self, body: Value) -> Value {
        self.cluster.create(&K::API, Some("default"), &body).await.unwrap()
    }

    /// Creates a pod with this one volume.
    async fn pod(&self, name: &str, volume: Value, security: Value) -> Pod {
        let mut volume = volume;
        volume["name"] = "v".into();
        let created = self
            .create::<Pod>(json!({
                "metadata": {"name": name, "labels": {"app": name}},
                "spec": {
                    "automountServiceAccountToken": false, "nodeName": "n", "securityContext": security,
                    "containers": [{"name": "c", "image": "i"}], "volumes": [volume],
                },
            }))
            .await;
        serde_json::from_value(created).unwrap()
    }

    async fn set_up_first(&self, pod: &Pod) -> Result<PathBuf, String> {
        let volume_path =
            set_up(&self.cluster, &self.root, &self.kernel, pod, &pod.spec.volumes[0], &[]).await;
        match volume_path.map_err(|error| error.to_string())? {
            VolumePath::Directory { path, .. } | VolumePath::Host { path } => Ok(path),
            VolumePath::Device { .. } => panic!("no device"),
        }
    }

    async fn tear_down_all(&self, pod: &Pod) {
        let uid = &pod.metadata.uid;
        let found = found(&self.root, uid).unwrap();
        assert_eq!(found.len(), 1);
        for (plugin, volume) in found {
            tear_down(&self.root, &self.kernel, uid, &plugin, &volume).await.unwrap();
            tear_down(&self.root, &self.kernel, uid, &plugin, &volume).await.unwrap();
        }
        assert_eq!(super::found(&self.root, uid).unwrap(), []);
    }

    fn is_tmpfs(&self, path: &Path) -> bool {
        self.kernel.mount_table().unwrap().at(path).is_some_and(|mount| mount.fs_type == "tmpfs")
    }
}

#[tokio::test]
async fn empty_dir_is_created_once() {
    let node = node().await;
    let pod = node.pod("p", json!({"emptyDir": {}}), json!({"fsGroup": 7})).await;
    let path = node.set_up_first(&pod).await.unwrap();
    assert!(path.ends_with("volumes/kubernetes.io~empty-dir/v"), "{path:?}");
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.mode() & 0o7777, found.gid()), (0o2777, 7));
    fs::write(path.join("mine"), "data").unwrap();
    assert_eq!(node.set_up_first(&pod).await.unwrap(), path);
    assert_eq!(fs::read_to_string(path.join("mine")).unwrap(), "data");
    node.tear_down_all(&pod).await;
}

#[tokio::test]
async fn memory_empty_dir_enforces_its_size_limit() {
    let node = node().await;
    let pod = node.pod("p", json!({"emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}}), json!({})).await;
    let path = node.set_up_first(&pod).await.unwrap();
    assert!(node.is_tmpfs(&path));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    fs::write(path.join("fits"), vec![0; 32 << 10]).unwrap();
    assert!(fs::write(path.join("does not"), vec![0; 64 << 10]).is_err());
    node.set_up_first(&pod).await.unwrap();
    let mounts = node.kernel.mount_table().unwrap();
    assert_eq!(mounts.mounts().iter().filter(|mount| mount.mount_point == path).count(), 1);
    node.tear_down_all(&pod).await;
    assert!(!node.is_tmpfs(&path));
}

#[tokio::test]
async fn secret_volume_is_in_memory_and_follows_its_object() {
    let node = node().await;
    let wanted = json!({"secret": {"secretName": "s", "defaultMode": 0o400}});
    let pod = node.pod("p", wanted, json!({"fsGroup": 7})).await;
    assert_eq!(node.set_up_first(&pod).await.unwrap_err(), "secret \"s\" not found");
    node.create::<Secret>(json!({"metadata": {"name": "s"}, "data": {"a": "MQ=="}})).await;
    let path = node.set_up_first(&pod).await.unwrap();
    assert!(node.is_tmpfs(&path));
    assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
    let file = fs::metadata(path.join("a")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.gid()), (0o440, 7));
    let before = fs::read_link(path.join("..data")).unwrap();
    node.set_up_first(&pod).await.unwrap();
    assert_eq!(fs::read_link(path.join("..data")).unwrap(), before, "unchanged");
    let change = Patch::Merge(json!({"data": {"a": null, "b": "Mg=="}}));
    node.cluster.patch(&Secret::API, &Key::namespaced("default", "s"), None, change).await.unwrap();
    node.set_up_first(&pod).await.unwrap();
    assert_eq!(fs::read_to_string(path.join("b")).unwrap(), "2");
    assert!(!path.join("a").exists());
    node.tear_down_all(&pod).await;
    assert!(!node.is_tmpfs(&path));
}

#[tokio::test]
async fn projected_volume_combines_token_config_map_and_fields() {
    let node = node().await;
    node.create::<ConfigMap>(json!({"metadata": {"name": "m"}, "data": {"color": "red"}})).await;
    let sources = json!({"projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "m", "items": [{"key": "color", "path": "deep/color"}]}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]}});
    let pod = node.pod("p", sources, json!({})).await;
    let path = node.set_up_first(&pod).await.unwrap();
    let read = |file: &str| fs::read_to_string(path.join(file)).unwrap();
    let token = read("token");
    assert_eq!(token.split('.').count(), 3, "a token");
    assert_eq!((read("deep/color").as_str(), read("labels").as_str()), ("red", "app=\"p\""));
    node.set_up_first(&pod).await.unwrap();
    assert_eq!(read("token"), token, "a fresh token is reused");
    node.tear_down_all(&pod).await;
}

/// Foreign mounts in a volume prevent its removal.
#[tokio::test]
async fn tear_down_refuses_a_volume_with_a_foreign_mount() {
    let node = node().await;
    let pod = node.pod("p", json!({"emptyDir": {}}), json!({})).await;
    let path = node.set_up_first(&pod).await.unwrap();
    let inside = path.join("inside");
    fs::create_dir(&inside).unwrap();
    mount_memory(&*node.kernel, &inside, &[]).unwrap();
    fs::write(inside.join("data"), "x").unwrap();
    let (uid, tear_down_all) = (&pod.metadata.uid, EMPTY_DIR);
    let error = tear_down(&node.root, &node.kernel, uid, tear_down_all, "v").await.unwrap_err();
    assert!(matches!(error, PlainError::Busy { .. }), "{error}");
    assert_eq!(fs::read_to_string(inside.join("data")).unwrap(), "x");
    node.kernel.unmount(&inside).unwrap();
    node.tear_down_all(&pod).await;
}

#[test]
fn plain_volumes_are_recognized() {
    for (volume, plain, directory) in [
        (json!({"emptyDir": {}}), true, Some("kubernetes.io~empty-dir")),
        (json!({"hostPath": {"path": "/"}}), true, None),
        (json!({"secret": {}}), true, Some("kubernetes.io~secret")),
        (json!({"configMap": {}}), true, Some("kubernetes.io~configmap")),
        (json!({"projected": {}}), true, Some("kubernetes.io~projected")),
        (json!({"downwardAPI": {}}), true, Some("kubernetes.io~downward-api")),
        (json!({"csi": {"driver": "d"}}), false, None),
        (json!({"persistentVolumeClaim": {"claimName": "c"}}), false, None),
        (json!({"nfs": {"server": "s"}}), false, None),
    ] {
        let read: PodVolume = serde_json::from_value(volume.clone()).unwrap();
        assert_eq!((is_plain(&read), plugin(&read)), (plain, directory), "{volume}");
    }
}
