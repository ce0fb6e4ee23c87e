//! A third-party driver: upstream's hostpath driver with attachments. Its capabilities select the roles.

use std::fs;

use wharf_testkit::{
    ChildProcess, ClusterOptions, TestCluster, built_program, free_address, http_get, upstream_program,
};

use super::MINUTE;
use super::objects::{claim, class, pod};

const DRIVER: &str = "hostpath.csi.k8s.io";
const READY: &str = "condition=Ready";

/// All controllers except those that ours replace.
const WITHOUT_VOLUMES: &str = "*,-persistentvolume-binder-controller,-persistentvolume-attach-detach-controller,\
    -persistentvolume-expander-controller,-persistentvolumeclaim-protection-controller,\
    -persistentvolume-protection-controller,-volumeattributesclass-protection-controller,-ephemeral-volume-controller";

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn hostpath_driver_works_with_our_sidecar() {
    flows(&TestCluster::start_with(ClusterOptions { nodes: &["node-a"], ..ClusterOptions::default() }));
}

/// The same with our controllers instead of kube-controller-manager's.
#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn hostpath_driver_works_with_our_controllers() {
    let options =
        ClusterOptions { nodes: &["node-a"], controllers: WITHOUT_VOLUMES, ..ClusterOptions::default() };
    let cluster = TestCluster::start_with(options);
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let log = cluster.directory().join("log/controllers.log");
    let mut controllers =
        ChildProcess::start(&built_program("wharf"), &["controllers", "--kubeconfig", &kubeconfig], &log);
    flows(&cluster);
    controllers.stop();
}

/// The flows of a volume, one after the other, on the one node that has its files.
fn flows(cluster: &TestCluster) {
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
    let _driver = ChildProcess::start(&upstream_program("hostpathplugin"), &driver, &log("hostpath"));
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
    let mut sidecar = ChildProcess::start(&built_program("wharf"), &sidecar, &log("sidecar"));
    cluster.apply(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {DRIVER}}}\n\
         spec: {{attachRequired: true, podInfoOnMount: true, fsGroupPolicy: File}}\n"
    ));
    cluster.wait_for("csinode/node-a", &format!("jsonpath={{.spec.drivers[0].name}}={DRIVER}"), MINUTE);
    let waits = "volumeBindingMode: WaitForFirstConsumer";
    cluster.apply(&[class("now", DRIVER, ""), class("waits", DRIVER, waits)].concat());

    // Claim, attachment, pod; with Immediate and WaitForFirstConsumer binding.
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

    // An ephemeral volume.
    cluster.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: scratch}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers: [{name: c, image: \"busybox:1.36\", imagePullPolicy: Never, command: [sleep, \"1000\"], volumeMounts: [{name: v, mountPath: /data}]}]\n  \
         volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: now, accessModes: \
         [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}}}}]\n",
    );
    cluster.wait_for("pod/scratch", READY, MINUTE);
    cluster.kubectl(&["delete", "pod", "scratch", "--timeout=60s"]);
    cluster.eventually("the pod's claim is gone", MINUTE, |cluster| {
        (!cluster.names("pvc").contains(&"scratch-v".to_owned())).then_some(())
    });

    // A claim in use is protected until its pod is deleted.
    cluster.kubectl(&["delete", "pvc", "copy", "--wait=false"]);
    assert!(cluster.names("pvc").contains(&"copy".to_owned()));

    let metrics = http_get(&address, "/metrics").unwrap();
    assert!(metrics.contains("csi_sidecar_operations_seconds"), "{metrics}");
    cluster.kubectl(&["delete", "pod", "one", "two", "copy", "--timeout=60s"]);
    cluster.kubectl(&["delete", "pvc", "one", "two", "copy", "--ignore-not-found", "--timeout=60s"]);
    cluster.eventually("everything is deleted", 2 * MINUTE, |cluster| {
        let left = [cluster.names("pv"), cluster.names("volumeattachment")].concat();
        left.is_empty().then_some(())
    });
    let files: Vec<_> = fs::read_dir(&state).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(files.iter().all(|name| name == "state.json"), "{files:?}");
    sidecar.stop();
}
