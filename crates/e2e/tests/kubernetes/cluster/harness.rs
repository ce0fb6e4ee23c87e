//! The test cluster itself: it runs pods, restarts programs that are killed, and leaves nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use wharf_linux::FsType;
use wharf_testkit::{TestCluster, TestPool};

use super::MINUTE;

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn cluster_runs_pods_on_both_nodes_and_cleans_up() {
    let others = (cgroups_of_containers(), network_devices());
    let started = Instant::now();
    let cluster = TestCluster::start();
    println!("two nodes Ready in {:.1?}", started.elapsed());
    for node in cluster.nodes() {
        cluster.apply(&pod(node));
    }
    for node in cluster.nodes() {
        let name = format!("pod/on-{node}");
        cluster.wait_for(&name, "condition=Ready", MINUTE);
        assert_eq!(cluster.kubectl(&["logs", &name]), format!("I am on {node}\n"));
        assert_eq!(cluster.kubectl(&["exec", &name, "--", "hostname"]), format!("on-{node}\n"));
    }
    assert_ne!(
        others,
        (cgroups_of_containers(), network_devices()),
        "the checks below must be able to find leftovers"
    );

    let run = cluster.directory().to_owned();
    assert!(!processes(&run).is_empty());
    let ending = Instant::now();
    drop(cluster);
    println!("ended in {:.1?}", ending.elapsed());

    assert!(!run.exists(), "{} still exists", run.display());
    assert_eq!(processes(&run), BTreeSet::new());
    assert_eq!(mounts(&run), BTreeSet::new());
    assert_eq!(cgroups_of_containers(), others.0);
    // The kernel removes a network namespace in the background.
    let until = Instant::now() + Duration::from_secs(10);
    while network_devices() != others.1 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(network_devices(), others.1);
}

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn killed_programs_restart_and_nodes_join_late() {
    let pool = TestPool::new(FsType::Ext4, 1 << 30);
    let cluster = TestCluster::start();
    let started = Instant::now();
    drop(pool);
    assert!(started.elapsed() < Duration::from_secs(1), "the cluster must release mounts of other programs");

    cluster.signal("kube-apiserver", "KILL");
    cluster.signal("kubelet-node-b", "KILL");
    cluster.eventually("the API server is back", MINUTE, |cluster| {
        cluster.try_kubectl(&["get", "--raw", "/readyz"]).ok()
    });
    cluster.join("node-c");
    cluster.apply(&pod("node-b"));
    cluster.apply(&pod("node-c"));
    cluster.wait_for("pod/on-node-b", "condition=Ready", MINUTE);
    cluster.wait_for("pod/on-node-c", "condition=Ready", MINUTE);
}

fn pod(node: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: on-{node}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.36
    imagePullPolicy: Never
    command: [sh, -c, "echo I am on {node}; exec sleep 100000"]
"#
    )
}

/// The processes of this cluster: all of them inherit the name of its directory.
fn processes(run: &Path) -> BTreeSet<String> {
    let mark = format!("RUN={}", run.display());
    let of_cluster = |process: &Path| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let ours = all.filter(|path| of_cluster(path));
    ours.map(|path| fs::read_to_string(path.join("comm")).unwrap_or_default()).collect()
}

pub(super) fn mounts(run: &Path) -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| Path::new(point).starts_with(run)).map(str::to_owned).collect()
}

fn cgroups_of_containers() -> BTreeSet<String> {
    fn below(dir: &Path, depth: u8, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if depth > 0 && path.is_dir() {
                if path.components().any(|part| part.as_os_str() == "k8s.io") {
                    found.insert(path.display().to_string());
                }
                below(&path, depth - 1, found);
            }
        }
    }
    let mut found = BTreeSet::new();
    below(Path::new("/sys/fs/cgroup"), 3, &mut found);
    found
}

fn network_devices() -> BTreeSet<String> {
    let devices = fs::read_dir("/sys/class/net").unwrap().flatten();
    devices.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
