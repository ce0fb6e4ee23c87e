//! End-to-end test of the local driver with its sidecar in one process on each node, without any other Wharf process.
//! The steps cover what users do, from a StatefulSet to the deletion of all volumes. They share one cluster; each has
//! its own objects.

mod expansion;
mod workloads;

use std::cell::RefCell;
use std::fs;
use std::time::Instant;

use wharf_linux::FsType;
use wharf_testkit::{ChildProcess, TestCluster, TestPool, built_program, leftovers};

use super::MINUTE;
use super::objects::class;

pub(super) const DRIVER: &str = "local.csi.wharf.dev";
pub(super) const BOUND: &str = "jsonpath={.status.phase}=Bound";
pub(super) const READY: &str = "condition=Ready";
pub(super) const GIB: u64 = 1 << 30;

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn local_driver_works_with_one_process_per_node() {
    let cluster = TestCluster::start();
    let local = LocalCluster::new(&cluster);
    let run_step = |name: &str, step: &dyn Fn(&LocalCluster<'_>)| {
        let started = Instant::now();
        step(&local);
        println!("{name}: {:.1?}", started.elapsed());
    };
    local.add_node("node-a", FsType::Xfs, 2 * GIB);
    local.add_node("node-b", FsType::Xfs, 8 * GIB);
    local.classes();
    run_step("a StatefulSet keeps its data and its nodes", &workloads::stateful_set);
    run_step("too big for one node", &workloads::too_big_for_one_node);
    run_step("raw block", &workloads::raw_block);
    run_step("clone", &workloads::clone);
    run_step("one pod only", &workloads::one_pod_only);
    run_step("without waiting for a pod", &workloads::immediate);
    run_step("retained, then not", &workloads::retain);
    run_step("online expansion", &expansion::online);
    run_step("offline expansion", &expansion::offline);
    run_step("a failed expansion is recovered", &expansion::recovered);
    run_step("a node that joins late", &workloads::late_node);
    local.end();
}

/// The cluster and the driver processes on its nodes.
pub(super) struct LocalCluster<'a> {
    pub(super) cluster: &'a TestCluster,
    nodes: RefCell<Vec<Node>>,
}

struct Node {
    name: String,
    process: ChildProcess,
    pool: TestPool,
}

impl<'a> LocalCluster<'a> {
    pub(super) fn new(cluster: &'a TestCluster) -> Self {
        cluster.apply(&format!(
            r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {DRIVER}}}
spec: {{attachRequired: false, podInfoOnMount: false, fsGroupPolicy: File, storageCapacity: true}}
"#
        ));
        Self { cluster, nodes: RefCell::default() }
    }

    /// Creates a pool on a node and starts the driver on it.
    pub(super) fn add_node(&self, name: &str, fs: FsType, size: u64) {
        let cluster = self.cluster;
        let root = cluster.kubelet_root(name);
        let plugin = root.join("plugins").join(DRIVER);
        fs::create_dir_all(&plugin).unwrap();
        let pool = TestPool::new(fs, size);
        let args = [
            "driver",
            "local",
            "--with-sidecar",
            "--create-pool",
            "--node-id",
            name,
            "--pool",
            &pool.path().display().to_string(),
            "--endpoint",
            &format!("unix://{}", plugin.join("csi.sock").display()),
            "--plugin-registration-path",
            &root.join("plugins_registry").display().to_string(),
            "--kubeconfig",
            &cluster.kubeconfig().display().to_string(),
            "--http-endpoint",
            "127.0.0.1:0",
        ];
        let log = cluster.directory().join(format!("log/wharf-{name}.log"));
        let process = ChildProcess::start(&built_program("wharf"), &args, &log);
        let registered = format!("jsonpath={{.spec.drivers[0].name}}={DRIVER}");
        cluster.wait_for(&format!("csinode/{name}"), &registered, MINUTE);
        self.nodes.borrow_mut().push(Node { name: name.to_owned(), process, pool });
    }

    /// Creates the StorageClasses and waits until each node reports its capacity for them.
    pub(super) fn classes(&self) {
        let waits = "volumeBindingMode: WaitForFirstConsumer";
        let of = |fs: &str| format!("parameters: {{csi.storage.k8s.io/fstype: {fs}}}\n{waits}");
        self.cluster.apply(
            &[
                class("xfs", DRIVER, &of("xfs")),
                class("ext4", DRIVER, &of("ext4")),
                class("retain", DRIVER, &format!("reclaimPolicy: Retain\n{waits}")),
                class("immediate", DRIVER, ""),
            ]
            .concat(),
        );
        self.wait_for_capacity("node-a");
        self.wait_for_capacity("node-b");
    }

    /// Waits until the node reports its capacity for all WaitForFirstConsumer classes.
    fn wait_for_capacity(&self, node: &str) {
        self.cluster.eventually(&format!("node {node} reports its capacity"), MINUTE, |cluster| {
            let path =
                "jsonpath={range .items[*]}{.storageClassName} {.nodeTopology.matchLabels}{'\\n'}{end}";
            let all = cluster.kubectl(&["get", "csistoragecapacities", "--output", path]);
            let label = format!("\"{DRIVER}/node\":\"{node}\"");
            (all.lines().filter(|line| line.contains(&label)).count() == 3).then_some(())
        });
    }

    /// The node of a pod.
    pub(super) fn node_of(&self, pod: &str) -> String {
        self.cluster.field(&format!("pod/{pod}"), ".spec.nodeName")
    }

    /// The output of a command in a pod.
    pub(super) fn run(&self, pod: &str, command: &str) -> String {
        self.cluster.kubectl(&["exec", pod, "--", "sh", "-c", command])
    }

    /// Changes the requested size of a claim.
    fn resize(&self, claim: &str, size: &str) {
        let patch = format!(r#"{{"spec": {{"resources": {{"requests": {{"storage": "{size}"}}}}}}}}"#);
        self.cluster.kubectl(&["patch", "pvc", claim, "--patch", &patch]);
    }

    /// Deletes pods and claims, and waits until the volumes are deleted.
    pub(super) fn delete(&self, pods: &[&str], claims: &[&str]) {
        let volumes: Vec<String> = claims
            .iter()
            .map(|claim| self.cluster.field(&format!("pvc/{claim}"), ".spec.volumeName"))
            .collect();
        self.cluster.kubectl(&[&["delete", "pod", "--ignore-not-found", "--timeout=60s"], pods].concat());
        self.cluster.kubectl(&[&["delete", "pvc", "--timeout=60s"], claims].concat());
        for volume in volumes.iter().filter(|name| !name.is_empty()) {
            self.cluster.kubectl(&["wait", "--for=delete", &format!("pv/{volume}"), "--timeout=60s"]);
        }
    }

    /// Asserts that nothing is left on any node, and that each process exits cleanly.
    pub(super) fn end(&self) {
        assert_eq!(self.cluster.names("pv"), Vec::<String>::new());
        for node in self.nodes.borrow_mut().iter_mut() {
            let staging = self.cluster.kubelet_root(&node.name).join("plugins");
            self.cluster.eventually("the pool is empty", MINUTE, |_| {
                leftovers(node.pool.path(), &staging).is_empty().then_some(())
            });
            let memory = node.process.usage();
            println!(
                "{}: {} KiB, at most {} KiB, {:.1?} of CPU",
                node.name, memory.rss_kib, memory.peak_kib, memory.cpu
            );
            node.process.stop();
        }
        super::no_leak::no_intent_is_left(self.cluster);
    }
}
