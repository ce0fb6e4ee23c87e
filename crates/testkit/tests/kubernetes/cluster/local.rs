//! The local driver with its sidecar in one process on each node, and nothing else: what a user of it does, from the
//! first StatefulSet to empty pools. One cluster for all of it, each story on objects of its own.

mod expansion;
mod workloads;

use std::cell::RefCell;
use std::fs;
use std::time::Instant;

use wharf_linux::FsType;
use wharf_testkit::{Beside, TestCluster, TestPool, built, leftovers};

use super::MINUTE;
use super::objects::class;

pub(super) const DRIVER: &str = "local.csi.wharf.dev";
pub(super) const BOUND: &str = "jsonpath={.status.phase}=Bound";
pub(super) const READY: &str = "condition=Ready";
pub(super) const GIB: u64 = 1 << 30;

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn one_process_on_each_node_is_all_it_takes() {
    let cluster = TestCluster::start();
    let story = Story::new(&cluster);
    let tell = |name: &str, story_of: &dyn Fn(&Story<'_>)| {
        let began = Instant::now();
        story_of(&story);
        println!("{name}: {:.1?}", began.elapsed());
    };
    story.add_node("node-a", FsType::Xfs, 2 * GIB);
    story.add_node("node-b", FsType::Xfs, 8 * GIB);
    story.classes();
    tell("a StatefulSet keeps its data and its nodes", &workloads::stateful_set);
    tell("too big for one node", &workloads::too_big_for_one_node);
    tell("raw block", &workloads::raw_block);
    tell("clone", &workloads::clone);
    tell("one pod only", &workloads::one_pod_only);
    tell("without waiting for a pod", &workloads::immediate);
    tell("retained, then not", &workloads::retain);
    tell("online expansion", &expansion::online);
    tell("offline expansion", &expansion::offline);
    tell("a failed expansion is recovered", &expansion::recovered);
    tell("a node that joins late", &workloads::late_node);
    story.end();
}

/// The cluster, and what runs on its nodes.
pub(super) struct Story<'a> {
    pub(super) cluster: &'a TestCluster,
    nodes: RefCell<Vec<Node>>,
}

struct Node {
    name: String,
    process: Beside,
    pool: TestPool,
}

impl<'a> Story<'a> {
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

    /// A pool, and the driver on it.
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
        let process = Beside::start(&built("wharf"), &args, &log);
        let registered = format!("jsonpath={{.spec.drivers[0].name}}={DRIVER}");
        cluster.wait_for(&format!("csinode/{name}"), &registered, MINUTE);
        self.nodes.borrow_mut().push(Node { name: name.to_owned(), process, pool });
    }

    /// The classes, and the room that each node tells for them.
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

    /// The node tells its room for all classes that wait for a pod.
    fn wait_for_capacity(&self, node: &str) {
        self.cluster.eventually(&format!("the capacities of {node}"), MINUTE, |cluster| {
            let path =
                "jsonpath={range .items[*]}{.storageClassName} {.nodeTopology.matchLabels}{'\\n'}{end}";
            let all = cluster.kubectl(&["get", "csistoragecapacities", "--output", path]);
            let label = format!("\"{DRIVER}/node\":\"{node}\"");
            (all.lines().filter(|line| line.contains(&label)).count() == 3).then_some(())
        });
    }

    /// The node of a pod.
    pub(super) fn place(&self, pod: &str) -> String {
        self.cluster.field(&format!("pod/{pod}"), ".spec.nodeName")
    }

    /// What a command in a pod prints.
    pub(super) fn run(&self, pod: &str, command: &str) -> String {
        self.cluster.kubectl(&["exec", pod, "--", "sh", "-c", command])
    }

    /// Asks for another size of a claim.
    fn resize(&self, claim: &str, size: &str) {
        let patch = format!(r#"{{"spec": {{"resources": {{"requests": {{"storage": "{size}"}}}}}}}}"#);
        self.cluster.kubectl(&["patch", "pvc", claim, "--patch", &patch]);
    }

    /// Deletes a pod and its claim, and waits for the volume's end.
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

    /// Nothing is left on any node, and each process ends cleanly.
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
