//! `wharf sidecar` with the local driver on the embedded API, as the same programs that run on a cluster: a claim
//! is created, snapshotted, cloned, expanded and deleted, and nothing is left.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wharf_linux::FsType;
use wharf_testkit::differential::ApiTarget;
use wharf_testkit::{ApiClient, ChildProcess, EmbeddedServer, TestPool, built_program, leftovers};

use crate::controllers::Controllers;

const DRIVER: &str = "local.csi.wharf.dev";
const NODE: &str = "here";
const TIMEOUT: Duration = Duration::from_secs(60);

struct TestApi {
    server: ApiClient,
}

impl TestApi {
    fn create(&self, object: Value) {
        self.server.create("default", &object).unwrap();
    }

    fn wait_for_field(&self, object: &str, at: &str, is: &Value) {
        let until = Instant::now() + TIMEOUT;
        loop {
            let found = self.server.get("default", object).unwrap();
            if found.as_ref().and_then(|found| found.pointer(at)).unwrap_or(&Value::Null) == is {
                return;
            }
            assert!(Instant::now() < until, "timed out waiting for {object} {at} to be {is}: {found:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_until_gone(&self, object: &str) {
        self.wait_for_field(object, "", &Value::Null);
    }

    fn claim(&self, name: &str, source: Value) {
        let mut spec = json!({
            "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "64Mi"}},
        });
        if !source.is_null() {
            spec["dataSource"] = source;
        }
        self.create(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}));
        self.wait_for_field(&format!("pvc/{name}"), "/status/phase", &json!("Bound"));
    }
}

#[test]
fn local_driver_claim_lifecycle_leaves_nothing_behind() {
    let pool = TestPool::new(FsType::Xfs, 1 << 30);
    let server = EmbeddedServer::start();
    let target = ApiTarget::embedded(&server);
    let _controllers = Controllers::start(&target);
    let (work, nothing) = (server.directory(), tempfile::tempdir().unwrap());
    let socket = work.join("csi.sock");
    let (socket, endpoint) = (socket.display().to_string(), format!("unix://{}", socket.display()));
    let (path, kubeconfig) =
        (pool.path().display().to_string(), server.sidecar_kubeconfig().display().to_string());
    let driver =
        ["driver", "local", "--create-pool", "--node-id", NODE, "--pool", &path, "--endpoint", &endpoint];
    let mut driver = ChildProcess::start(&built_program("wharf"), &driver, &work.join("driver.log"));
    let sidecar =
        ["sidecar", "--csi-address", &socket, "--kubeconfig", &kubeconfig, "--http-endpoint", "127.0.0.1:0"];
    let sidecar =
        [&sidecar[..], &["--roles", "provisioner,resizer,snapshotter,snapshot-controller"]].concat();
    let mut sidecar = ChildProcess::start(&built_program("wharf"), &sidecar, &work.join("sidecar.log"));

    let api = TestApi { server: ApiClient::connect(server.kubeconfig()).unwrap() };
    let topology = format!("{DRIVER}/node");
    api.create(
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {&topology: NODE}}}),
    );
    api.create(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": NODE},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": NODE, "topologyKeys": [&topology]}]},
    }));
    api.create(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local"}, "provisioner": DRIVER,
        "allowVolumeExpansion": true, "parameters": {"csi.storage.k8s.io/fstype": "ext4"},
    }));
    api.create(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "local"},
        "driver": DRIVER, "deletionPolicy": "Delete",
    }));
    api.claim("first", Value::Null);
    api.create(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "snap"},
        "spec": {"volumeSnapshotClassName": "local", "source": {"persistentVolumeClaimName": "first"}},
    }));
    api.wait_for_field("vs/snap", "/status/readyToUse", &json!(true));
    let group = "snapshot.storage.k8s.io";
    api.claim("copy", json!({"apiGroup": group, "kind": "VolumeSnapshot", "name": "snap"}));
    let larger = json!({"spec": {"resources": {"requests": {"storage": "128Mi"}}}});
    api.server.patch("default", "pvc/first", false, &larger).unwrap();
    let first = api.server.get("default", "pvc/first").unwrap().unwrap();
    let volume = format!("pv/{}", first["spec"]["volumeName"].as_str().unwrap());
    api.wait_for_field(&volume, "/spec/capacity/storage", &json!("128Mi"));

    for object in ["vs/snap", "pvc/copy", "pvc/first"] {
        api.server.delete("default", object).unwrap();
        api.wait_until_gone(object);
    }
    api.wait_until_gone(&volume);
    let until = Instant::now() + TIMEOUT;
    while let left @ [_, ..] = leftovers(pool.path(), nothing.path()).as_slice() {
        assert!(Instant::now() < until, "{left:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    sidecar.stop();
    driver.stop();
}
