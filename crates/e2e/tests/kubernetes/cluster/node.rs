//! Our node agent instead of a kubelet, with only a node's credentials: real API server with Node authorizer and
//! NodeRestriction, real controllers and scheduler, upstream's hostpath driver.

use std::fs;
use std::path::Path;

use wharf_testkit::{ChildProcess, TestCluster, built_program, free_address};

use super::host::{HOSTPATH, Sweep, assert_empty, hostpath};
use super::objects::{claim, class};
use super::{API_ONLY, MINUTE};

const NODE: &str = "node-w";
const READY: &str = "condition=Ready";

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn node_agent_replaces_kubelet() {
    let cluster = TestCluster::start_with(API_ONLY);
    let root = cluster.kubelet_root(NODE);
    let state = cluster.directory().join("hostpath");
    let plugin = root.join("plugins").join(HOSTPATH);
    fs::create_dir_all(&plugin).unwrap();
    let _sweep = Sweep { directory: cluster.directory().join(NODE), containers: root.join("containers") };
    let socket = plugin.join("csi.sock");
    let log = |name: &str| cluster.directory().join(format!("log/{name}.log"));
    let _driver = hostpath(&socket, &state, NODE, &log("hostpath"));
    let credentials = cluster.node_kubeconfig(NODE);
    let agent = [
        "node",
        "--node-name",
        NODE,
        "--kubeconfig",
        &credentials.display().to_string(),
        "--root-dir",
        &root.display().to_string(),
        "--log-dir",
        &cluster.directory().join(NODE).join("logs").display().to_string(),
    ];
    let mut agent = ChildProcess::start(&built_program("wharf"), &agent, &log("wharf-node"));
    let registry = root.join("plugins_registry");
    cluster.eventually("drivers can register", MINUTE, |_| registry.exists().then_some(()));
    let mut sidecar = sidecar(&cluster, &socket.display().to_string());
    cluster.apply(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {HOSTPATH}}}\n\
         spec: {{attachRequired: true, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral]}}\n"
    ));

    // Registration: Node, CSINode, and the driver's node information.
    let node = format!("node/{NODE}");
    cluster.wait_for(&node, "create", MINUTE);
    cluster.wait_for(&node, READY, MINUTE);
    cluster.wait_for(
        &format!("csinode/{NODE}"),
        &format!("jsonpath={{.spec.drivers[0].name}}={HOSTPATH}"),
        MINUTE,
    );
    assert_eq!(cluster.field(&node, r".metadata.labels.topology\.hostpath\.csi/node"), NODE);
    let holder = "jsonpath={.spec.holderIdentity}";
    let lease = ["get", "lease", NODE, "--namespace", "kube-node-lease", "--output", holder];
    cluster.eventually("the node's heartbeat", MINUTE, |cluster| {
        (cluster.try_kubectl(&lease).as_deref() == Ok(NODE)).then_some(())
    });

    // A pod that the scheduler assigns to it; the real controllers attach its volume.
    let waits = "volumeBindingMode: WaitForFirstConsumer";
    cluster.apply(&[class("waits", HOSTPATH, waits), claim("one", "waits", "16Mi", "")].concat());
    cluster.apply(&around());
    cluster.apply(&pod("one", "persistentVolumeClaim: {claimName: one}"));
    cluster.wait_for("pod/one", READY, 2 * MINUTE);
    assert_eq!(cluster.field("pod/one", ".spec.nodeName"), NODE);
    let volume = cluster.field("pvc/one", ".spec.volumeName");
    let handle = cluster.field(&format!("pv/{volume}"), ".spec.csi.volumeHandle");
    let unique = format!("kubernetes.io/csi/{HOSTPATH}^{handle}");
    assert_eq!(cluster.field(&node, ".status.volumesInUse[*]"), unique);
    assert_eq!(cluster.field(&node, ".status.volumesAttached[*].name"), unique);
    let written = || fs::read_to_string(state.join(&handle).join("file")).unwrap_or_default();
    assert_eq!(written(), "blue red\n", "the pod must have written to the driver's directory");

    // Online expansion, at the agent's next sync.
    let bigger = r#"{"spec": {"resources": {"requests": {"storage": "32Mi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "one", "--patch", bigger]);
    cluster.wait_for("pvc/one", "jsonpath={.status.capacity.storage}=32Mi", 3 * MINUTE);

    // Generic ephemeral volumes and CSI inline volumes.
    let template = "ephemeral: {volumeClaimTemplate: {spec: {storageClassName: waits, accessModes: \
                    [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}}}";
    cluster.apply(&pod("scratch", template));
    cluster.apply(&pod("inline", &format!("csi: {{driver: {HOSTPATH}}}")));
    for name in ["scratch", "inline"] {
        cluster.wait_for(&format!("pod/{name}"), READY, 2 * MINUTE);
    }

    // A new agent finds the state of the previous one and publishes its volumes again, as kubelet does. (This
    // release of the driver loses track of a published inline volume when it is published again, so that one is
    // deleted first.)
    cluster.kubectl(&["delete", "pod", "inline", "--timeout=60s"]);
    cluster.eventually("the inline volume is deleted", MINUTE, |_| {
        (!names(&state).iter().any(|name| name.starts_with("csi-"))).then_some(())
    });
    let container = cluster.field("pod/one", ".status.containerStatuses[0].containerID");
    agent.restart();
    cluster.apply(&pod("after", "emptyDir: {}"));
    cluster.wait_for("pod/after", READY, MINUTE);
    assert_eq!(cluster.field("pod/one", ".status.containerStatuses[0].containerID"), container);
    assert_eq!(cluster.field("pod/one", ".status.containerStatuses[0].restartCount"), "0");
    assert_eq!(cluster.field(&node, ".status.volumesInUse[*]").split(' ').count(), 2);

    cluster.kubectl(&["delete", "pod", "one", "scratch", "after", "--timeout=120s"]);
    cluster.eventually("the volumes are detached", 2 * MINUTE, |cluster| {
        let in_use = cluster.field(&node, ".status.volumesInUse[*]");
        (cluster.names("volumeattachment").is_empty() && in_use.is_empty()).then_some(())
    });
    cluster.kubectl(&["delete", "pvc", "one", "--timeout=60s"]);
    cluster.eventually("the volumes are deleted", 2 * MINUTE, |cluster| {
        let left = [cluster.names("pv"), cluster.names("pvc")].concat();
        left.is_empty().then_some(())
    });
    assert_empty(&state);
    cluster.eventually("nothing is left of the pods", MINUTE, |_| {
        names(&root.join("pods")).is_empty().then_some(())
    });

    // The agent makes no request that a node is not allowed to make, except for a watch of its own CSINode, which
    // depends on the server.
    let log = agent.log().to_lowercase();
    let refused: Vec<&str> =
        log.lines().filter(|line| line.contains("forbidden") && !line.contains("csinodes")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    agent.stop();
    sidecar.stop();
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The other objects that the pods refer to.
fn around() -> String {
    "apiVersion: v1\nkind: Secret\nmetadata: {name: colour}\nstringData: {colour: blue}\n---\n\
     apiVersion: v1\nkind: ConfigMap\nmetadata: {name: colour}\ndata: {colour: red}\n---\n"
        .to_owned()
}

/// A pod that writes its inputs to its volume: a secret from an environment variable, a ConfigMap from a file.
fn pod(name: &str, volume: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, "echo $COLOUR $(cat /etc/colour/colour) > /data/file && sync && touch /tmp/done && exec sleep 100000"]
    env: [{{name: COLOUR, valueFrom: {{secretKeyRef: {{name: colour, key: colour}}}}}}]
    readinessProbe: {{exec: {{command: [cat, /tmp/done]}}, periodSeconds: 1}}
    volumeMounts: [{{name: data, mountPath: /data}}, {{name: colour, mountPath: /etc/colour}}]
  volumes:
  - name: data
    {volume}
  - name: colour
    configMap: {{name: colour}}
---"#
    )
}

fn sidecar(cluster: &TestCluster, socket: &str) -> ChildProcess {
    let args = [
        "sidecar",
        "--csi-address",
        socket,
        "--kubeconfig",
        &cluster.kubeconfig().display().to_string(),
        "--node",
        "--roles",
        "provisioner,attacher,resizer",
        "--kubelet-registration-path",
        socket,
        "--plugin-registration-path",
        &cluster.kubelet_root(NODE).join("plugins_registry").display().to_string(),
        "--http-endpoint",
        &free_address(),
    ];
    ChildProcess::start(&built_program("wharf"), &args, &cluster.directory().join("log/sidecar.log"))
}
