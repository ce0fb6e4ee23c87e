//! `wharf sidecar` with the local driver on the embedded API, as the programs that they are on a cluster: a claim from
//! its creation over a snapshot, a copy and an expansion to its end, and nothing is left.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wharf_linux::FsType;
use wharf_testkit::differential::Place;
use wharf_testkit::{Beside, Embedded, Server, TestPool, built, leftovers};

use crate::controllers::Controllers;

const DRIVER: &str = "local.csi.wharf.dev";
const NODE: &str = "here";
const PATIENCE: Duration = Duration::from_secs(60);

struct Story {
    server: Server,
}

impl Story {
    fn make(&self, object: Value) {
        self.server.create("default", &object).unwrap();
    }

    fn until(&self, object: &str, at: &str, is: &Value) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.server.get("default", object).unwrap();
            if found.as_ref().and_then(|found| found.pointer(at)).unwrap_or(&Value::Null) == is {
                return;
            }
            assert!(Instant::now() < until, "{object} {at} is not {is}: {found:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn gone(&self, object: &str) {
        self.until(object, "", &Value::Null);
    }

    fn claim(&self, name: &str, source: Value) {
        let mut spec = json!({
            "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "64Mi"}},
        });
        if !source.is_null() {
            spec["dataSource"] = source;
        }
        self.make(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}));
        self.until(&format!("pvc/{name}"), "/status/phase", &json!("Bound"));
    }
}

#[test]
fn claims_of_the_local_driver() {
    let pool = TestPool::new(FsType::Xfs, 1 << 30);
    let server = Embedded::start();
    let place = Place::embedded(&server);
    let _controllers = Controllers::start(&place);
    let (work, nothing) = (server.directory(), tempfile::tempdir().unwrap());
    let socket = work.join("csi.sock");
    let (socket, endpoint) = (socket.display().to_string(), format!("unix://{}", socket.display()));
    let (path, kubeconfig) =
        (pool.path().display().to_string(), server.kubeconfig_of_sidecar().display().to_string());
    let driver = ["driver", "local", "--node-id", NODE, "--pool", &path, "--endpoint", &endpoint];
    let mut driver = Beside::start(&built("wharf"), &driver, &work.join("driver.log"));
    let sidecar =
        ["sidecar", "--csi-address", &socket, "--kubeconfig", &kubeconfig, "--http-endpoint", "127.0.0.1:0"];
    let sidecar =
        [&sidecar[..], &["--roles", "provisioner,resizer,snapshotter,snapshot-controller"]].concat();
    let mut sidecar = Beside::start(&built("wharf"), &sidecar, &work.join("sidecar.log"));

    let story = Story { server: Server::connect(server.kubeconfig()).unwrap() };
    let topology = format!("{DRIVER}/node");
    story.make(
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {&topology: NODE}}}),
    );
    story.make(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": NODE},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": NODE, "topologyKeys": [&topology]}]},
    }));
    story.make(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local"}, "provisioner": DRIVER,
        "allowVolumeExpansion": true, "parameters": {"csi.storage.k8s.io/fstype": "ext4"},
    }));
    story.make(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "local"},
        "driver": DRIVER, "deletionPolicy": "Delete",
    }));
    story.claim("first", Value::Null);
    story.make(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "snap"},
        "spec": {"volumeSnapshotClassName": "local", "source": {"persistentVolumeClaimName": "first"}},
    }));
    story.until("vs/snap", "/status/readyToUse", &json!(true));
    let group = "snapshot.storage.k8s.io";
    story.claim("copy", json!({"apiGroup": group, "kind": "VolumeSnapshot", "name": "snap"}));
    let larger = json!({"spec": {"resources": {"requests": {"storage": "128Mi"}}}});
    story.server.patch("default", "pvc/first", false, &larger).unwrap();
    let first = story.server.get("default", "pvc/first").unwrap().unwrap();
    let volume = format!("pv/{}", first["spec"]["volumeName"].as_str().unwrap());
    story.until(&volume, "/spec/capacity/storage", &json!("128Mi"));

    for object in ["vs/snap", "pvc/copy", "pvc/first"] {
        story.server.delete("default", object).unwrap();
        story.gone(object);
    }
    story.gone(&volume);
    let until = Instant::now() + PATIENCE;
    while let left @ [_, ..] = leftovers(pool.path(), nothing.path()).as_slice() {
        assert!(Instant::now() < until, "{left:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    sidecar.stop();
    driver.stop();
}
