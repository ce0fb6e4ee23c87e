//! A driver that nobody here wrote: upstream's hostpath driver with attachments. What it can do selects the roles.

use std::fs;

use wharf_testkit::{Beside, ClusterOptions, TestCluster, built, free_address, page, upstream};

use super::MINUTE;
use super::objects::{claim, class, pod};

const DRIVER: &str = "hostpath.csi.k8s.io";
const READY: &str = "condition=Ready";

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn upstreams_hostpath_driver() {
    // Its volumes are files of one node.
    let cluster = TestCluster::start_with(ClusterOptions { nodes: &["node-a"], ..ClusterOptions::default() });
    let root = cluster.kubelet_root("node-a");
    let plugin = root.join("plugins").join(DRIVER);
    let state = cluster.directory().join("hostpath");
    fs::create_dir_all(&plugin).unwrap();
    fs::create_dir_all(&state).unwrap();
    let socket = plugin.join("csi.sock").display().to_string();
    let log = |name: &str| cluster.directory().join(format!("log/{name}.log"));
    let driver = [
        "--endpoint",
        &format!("unix://{socket}"),
        "--nodeid=node-a",
        "--enable-attach",
        "--statedir",
        &state.display().to_string(),
        "--v=5",
    ];
    let _driver = Beside::start(&upstream("hostpathplugin"), &driver, &log("hostpath"));
    let address = free_address();
    let sidecar = [
        "sidecar",
        "--csi-address",
        &socket,
        "--kubeconfig",
        &cluster.kubeconfig().display().to_string(),
        "--node",
        "--roles",
        "provisioner,attacher,resizer",
        "--kubelet-registration-path",
        &socket,
        "--plugin-registration-path",
        &root.join("plugins_registry").display().to_string(),
        "--http-endpoint",
        &address,
    ];
    let mut sidecar = Beside::start(&built("wharf"), &sidecar, &log("sidecar"));
    cluster.apply(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {DRIVER}}}\n\
         spec: {{attachRequired: true, podInfoOnMount: true, fsGroupPolicy: File}}\n"
    ));
    cluster.wait_for("csinode/node-a", &format!("jsonpath={{.spec.drivers[0].name}}={DRIVER}"), MINUTE);
    let waits = "volumeBindingMode: WaitForFirstConsumer";
    cluster.apply(&[class("now", DRIVER, ""), class("waits", DRIVER, waits)].concat());

    // Claim, attachment, pod; at once and when a pod comes.
    let objects = [claim("one", "now", "16Mi", ""), claim("two", "waits", "16Mi", "")];
    cluster.apply(&[objects.concat(), pod("one", "one", ""), pod("two", "two", "")].concat());
    for name in ["one", "two"] {
        cluster.wait_for(&format!("pod/{name}"), READY, MINUTE);
        cluster.kubectl(&["exec", name, "--", "sh", "-c", "echo data > /data/file && sync"]);
    }
    let attached =
        cluster.kubectl(&["get", "volumeattachment", "--output", "jsonpath={.items[*].status.attached}"]);
    assert_eq!(attached, "true true");

    cluster.apply(
        &[
            claim("copy", "now", "16Mi", "dataSource: {kind: PersistentVolumeClaim, name: one}"),
            pod("copy", "copy", ""),
        ]
        .concat(),
    );
    cluster.wait_for("pod/copy", READY, MINUTE);
    assert_eq!(cluster.kubectl(&["exec", "copy", "--", "cat", "/data/file"]), "data\n");

    let bigger = r#"{"spec": {"resources": {"requests": {"storage": "32Mi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "one", "--patch", bigger]);
    cluster.wait_for("pvc/one", "jsonpath={.status.capacity.storage}=32Mi", 2 * MINUTE);

    let metrics = page(&address, "/metrics").unwrap();
    assert!(metrics.contains("csi_sidecar_operations_seconds"), "{metrics}");
    cluster.kubectl(&["delete", "pod", "one", "two", "copy", "--timeout=60s"]);
    cluster.kubectl(&["delete", "pvc", "one", "two", "copy", "--timeout=60s"]);
    cluster.eventually("everything is deleted", 2 * MINUTE, |cluster| {
        let left = [cluster.names("pv"), cluster.names("volumeattachment")].concat();
        left.is_empty().then_some(())
    });
    let files: Vec<_> = fs::read_dir(&state).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(files.iter().all(|name| name == "state.json"), "{files:?}");
    sidecar.stop();
}
