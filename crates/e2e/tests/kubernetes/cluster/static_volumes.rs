//! Statically provisioned volumes, used through kubelet: they need no provisioner, only a registrar.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use wharf_linux::FsType;
use wharf_testkit::{
    ChildProcess, ClusterOptions, ScriptedDriver, TestCluster, TestPool, built_program, leftovers,
    node_sidecar,
};

use super::MINUTE;
use super::harness::mounts;
use super::objects;

const DRIVER: &str = "local.csi.wharf.dev";

/// A volume on each node, created and deleted with `wharf csi`, used by pods through kubelet.
#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn static_local_volumes_work_through_kubelet() {
    let pools = [TestPool::new(FsType::Xfs, 4 << 30), TestPool::new(FsType::Ext4, 4 << 30)];
    let cluster = TestCluster::start();
    cluster.apply(&csi_driver());
    let mut nodes: Vec<Node> =
        cluster.nodes().iter().zip(&pools).map(|(name, pool)| Node::start(&cluster, name, pool)).collect();
    let mut volumes = Vec::new();
    for (node, fs) in nodes.iter().zip(["xfs", "ext4"]) {
        let registered = format!("jsonpath={{.spec.drivers[0].name}}={DRIVER}");
        cluster.wait_for(&format!("csinode/{}", node.name), &registered, MINUTE);
        let name = format!("by-hand-on-{}", node.name);
        let created = node.csi(&["volume", "create", &name, "--size", "1GiB", "--fs-type", fs]).unwrap();
        let id = field(&created, "volume_id");
        cluster.apply(&volume_and_claim(node.name, &id, fs));
        volumes.push(id);
    }
    for Node { name, .. } in &nodes {
        let (claim, pod) = (format!("pvc/on-{name}"), format!("pod/on-{name}"));
        cluster.wait_for(&claim, "jsonpath={.status.phase}=Bound", MINUTE);
        cluster.apply(&objects::pod(&format!("on-{name}"), &format!("on-{name}"), ""));
        cluster.wait_for(&pod, "condition=Ready", MINUTE);
        // Only the volume's topology determines the node of the pod.
        let place = cluster.kubectl(&["get", &pod, "--output", "jsonpath={.spec.nodeName}"]);
        assert_eq!(place, *name);
        cluster.kubectl(&["exec", &pod, "--", "sh", "-c", "echo kept > /data/file && sync"]);
        let capacity = cluster.eventually("kubelet's statistics of the claim", MINUTE, |cluster| {
            statistic(&cluster.kubelet_metrics(name), "capacity_bytes", &format!("on-{name}"))
        });
        assert!((0.8..=1.0).contains(&(capacity / f64::from(1 << 30))), "{capacity} bytes");

        cluster.kubectl(&["delete", &pod]);
        cluster.apply(&objects::pod(&format!("on-{name}"), &format!("on-{name}"), ""));
        cluster.wait_for(&pod, "condition=Ready", MINUTE);
        assert_eq!(cluster.kubectl(&["exec", &pod, "--", "cat", "/data/file"]), "kept\n");
    }
    for ((node, pool), volume) in nodes.iter_mut().zip(&pools).zip(&volumes) {
        for kind in ["pod", "pvc", "pv"] {
            cluster.kubectl(&["delete", kind, &format!("on-{}", node.name), "--timeout=60s"]);
        }
        // Kubelet unstages after the pod is deleted. Until then the volume is in use, and the driver rejects its
        // deletion.
        let delete = ["volume", "delete", volume];
        cluster.eventually("the volume is deleted", MINUTE, |_| node.csi(&delete).ok());
        let staging = cluster.kubelet_root(node.name).join("plugins");
        cluster.eventually("the pool is empty", MINUTE, |_| {
            leftovers(pool.path(), &staging).is_empty().then_some(())
        });
        node.sidecar.stop();
        node.driver.stop();
    }
    let own = BTreeSet::from([cluster.directory().display().to_string()]);
    assert_eq!(mounts(cluster.directory()), own, "all mounts of the drivers must be gone");
}

/// A driver with only a Node service: existing volumes, and kubelet's statistics of them.
#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn node_only_driver_works_without_controller() {
    const NODE_ONLY: &str = "node-only.test.wharf.dev";
    let cluster = TestCluster::start_with(ClusterOptions { nodes: &["node-a"], ..ClusterOptions::default() });
    let mut driver = ScriptedDriver::start(&cluster, NODE_ONLY, &["--capabilities="]);
    driver.join(&cluster, "node-a", &["--capabilities="]);
    driver.add_volume("there-already");
    let objects = volume_and_claim("node-a", "there-already", "ext4").replace(DRIVER, NODE_ONLY);
    // Its volumes are accessible on every node.
    let (volume, rest) = objects.split_once("  nodeAffinity:").unwrap();
    let (_, claim) = rest.split_once("---").unwrap();
    cluster.apply(&format!("{volume}---{claim}---{}", objects::pod("on-node-a", "on-node-a", "")));
    cluster.wait_for("pod/on-node-a", "condition=Ready", MINUTE);
    let capacity = cluster.eventually("kubelet's statistics of the claim", MINUTE, |cluster| {
        statistic(&cluster.kubelet_metrics("node-a"), "capacity_bytes", "on-node-a")
    });
    assert!(capacity > 0.0);
    for object in ["pod", "pvc", "pv"] {
        cluster.kubectl(&["delete", object, "on-node-a", "--timeout=60s"]);
    }
    // A pod without a grace period is deleted from the API before kubelet has cleaned up.
    cluster.eventually("kubelet releases the volume", MINUTE, |_| {
        driver.calls().iter().any(|call| call.method == "NodeUnstageVolume").then_some(())
    });
    assert!(driver.calls().iter().all(|call| call.method.starts_with("Node") || call.method == "Probe"));
    driver.assert_no_violation();
}

/// A driver and its sidecar on a node.
struct Node {
    name: &'static str,
    endpoint: String,
    sidecar: ChildProcess,
    driver: ChildProcess,
}

impl Node {
    fn start(cluster: &TestCluster, name: &'static str, pool: &TestPool) -> Self {
        let plugin = cluster.kubelet_root(name).join("plugins").join(DRIVER);
        fs::create_dir_all(&plugin).unwrap();
        let socket = plugin.join("csi.sock");
        let (pool, endpoint) = (pool.path().display().to_string(), format!("unix://{}", socket.display()));
        let log = |of: &str| cluster.directory().join(format!("log/{of}-{name}.log"));
        let driver = ChildProcess::start(
            &built_program("wharf"),
            &[
                "driver",
                "local",
                "--create-pool",
                "--node-id",
                name,
                "--pool",
                &pool,
                "--endpoint",
                &endpoint,
            ],
            &log("driver"),
        );
        let sidecar = node_sidecar(cluster, name, &socket, &log("sidecar"));
        Self { name, endpoint, sidecar, driver }
    }

    /// Runs `wharf csi` on this node's driver; returns its output or its error.
    fn csi(&self, args: &[&str]) -> Result<String, String> {
        let global = ["csi", "--endpoint", &self.endpoint, "--output", "json"];
        let output = Command::new(built_program("wharf")).args(global).args(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

/// A string field of a JSON object that is printed with one field per line.
fn field(json: &str, name: &str) -> String {
    let start = format!("\"{name}\": \"");
    let (_, rest) = json.split_once(&start).unwrap_or_else(|| panic!("no {name} in {json}"));
    rest.split('"').next().unwrap().to_owned()
}

/// The value of a kubelet statistic for a claim.
pub(super) fn statistic(metrics: &str, name: &str, claim: &str) -> Option<f64> {
    let start = format!("kubelet_volume_stats_{name}{{");
    let claim = format!("persistentvolumeclaim=\"{claim}\"");
    let line = metrics.lines().find(|line| line.starts_with(&start) && line.contains(&claim))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn csi_driver() -> String {
    format!(
        r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {DRIVER}}}
spec: {{attachRequired: false, podInfoOnMount: false, fsGroupPolicy: File}}
"#
    )
}

fn volume_and_claim(node: &str, volume: &str, fs: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: PersistentVolume
metadata: {{name: on-{node}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {{namespace: default, name: on-{node}}}
  csi: {{driver: {DRIVER}, volumeHandle: {volume}, fsType: {fs}}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{{key: {DRIVER}/node, operator: In, values: [{node}]}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: on-{node}}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: on-{node}
  resources: {{requests: {{storage: 1Gi}}}}
"#
    )
}
