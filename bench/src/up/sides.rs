//! The sides as processes, each in a temporary directory. Dropping a side removes everything.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wharf_testkit::{
    ChildProcess, ClusterOptions, Kubectl, TestCluster, built_program, free_address, upstream_program,
};

/// Startup timeout of a side.
const START: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(2);
const NODE: &str = "node-a";
const HOSTPATH: &str = "hostpath.csi.k8s.io";
/// The Kubernetes components that `wharf up` replaces. Container runtime, sidecars and driver are excluded.
const PROGRAMS: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet-node-a"];

/// The system under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// A single-node Kubernetes with upstream's hostpath driver and provisioner. Attacher and registrar are not available
    /// as packages, so ours are used.
    Kubernetes,
    /// `wharf up` with the same driver.
    Wharf,
    /// `wharf up` with its own driver, which formats volumes.
    Local,
}

/// A running side.
pub(crate) struct Side {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) driver: &'static str,
    up: Option<ChildProcess>,
    /// Dropped before the cluster whose node they serve.
    _sidecars: Vec<ChildProcess>,
    cluster: Option<TestCluster>,
    dir: TempDir,
}

impl Drop for Side {
    /// Stops the pods and unmounts the pool: a killed `wharf up` would leave them.
    fn drop(&mut self) {
        if self.up.is_some() {
            let data = self.dir.path().join("data");
            let mut down = Command::new(built_program("wharf"));
            // Its output must not mix with the report on stdout.
            let ended = down.arg("down").arg("--data-dir").arg(data).stdout(Stdio::null()).status();
            if !ended.is_ok_and(|status| status.success()) {
                eprintln!("`wharf down` failed: pods, mounts and loop devices may be left");
            }
        }
    }
}

impl Side {
    /// Starts an empty side; returns it and the seconds until it was up.
    pub(crate) fn start(contender: Contender) -> (Self, f64) {
        let dir = tempfile::tempdir().expect("a directory");
        let started = Instant::now();
        match contender {
            Contender::Kubernetes => {
                let options = ClusterOptions { nodes: &[NODE], ..ClusterOptions::default() };
                let cluster = TestCluster::start_with(options);
                let took = started.elapsed().as_secs_f64();
                let processes = sidecars(&cluster);
                let kubeconfig = cluster.kubeconfig();
                let cluster = Some(cluster);
                (Self { kubeconfig, driver: HOSTPATH, up: None, _sidecars: processes, cluster, dir }, took)
            }
            Contender::Wharf => {
                let socket = dir.path().join("csi.sock");
                let driver = hostpath(&socket, dir.path(), &dir.path().join("hostpath.log"));
                wait_until(|| socket.exists(), "the driver's socket");
                let endpoint = format!("unix://{}", socket.display());
                Self::up(dir, HOSTPATH, &["--no-local", "--csi", &endpoint], vec![driver])
            }
            Contender::Local => Self::up(dir, "local.csi.wharf.dev", &[], Vec::new()),
        }
    }

    fn up(dir: TempDir, driver: &'static str, more: &[&str], processes: Vec<ChildProcess>) -> (Self, f64) {
        let data = dir.path().join("data");
        let (kubeconfig, data) = (data.join("kubeconfig"), data.display().to_string());
        let address = free_address();
        let mut args = vec!["up", "--data-dir", &data, "--listen", &address, "--node-name", NODE];
        args.extend(more);
        let log = dir.path().join("up.log");
        let kubectl = Kubectl::with_kubeconfig(kubeconfig.clone());
        let started = Instant::now();
        let up = ChildProcess::start(&built_program("wharf"), &args, &log);
        // Up means the same as on the other side: the node is Ready. Here the driver is registered as well.
        let is_up = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("wharf is up"));
        wait_until(is_up, "the message that it is up");
        kubectl.kubectl(&["wait", "--for=condition=Ready", &format!("node/{NODE}"), "--timeout=90s"]);
        let took = started.elapsed().as_secs_f64();
        (Self { kubeconfig, driver, up: Some(up), _sidecars: processes, cluster: None, dir }, took)
    }

    /// Memory of the Kubernetes components, in MiB.
    pub(crate) fn memory(&self) -> f64 {
        self.processes().iter().map(|process| status(process, "VmRSS:") / 1024.0).sum()
    }

    /// Processor seconds of the Kubernetes components.
    pub(crate) fn cpu(&self) -> f64 {
        self.processes().iter().map(|process| cpu(process)).sum()
    }

    /// Their directories in /proc.
    fn processes(&self) -> Vec<PathBuf> {
        let own = self.up.iter().map(|up| PathBuf::from(format!("/proc/{}", up.pid())));
        let of_cluster = self.cluster.iter().flat_map(|cluster| PROGRAMS.map(|name| inside(cluster, name)));
        own.chain(of_cluster).collect()
    }
}

/// The driver and sidecars that Kubernetes needs.
fn sidecars(cluster: &TestCluster) -> Vec<ChildProcess> {
    let root = cluster.kubelet_root(NODE);
    let plugin = root.join("plugins").join(HOSTPATH);
    std::fs::create_dir_all(&plugin).expect("a directory");
    let socket = plugin.join("csi.sock");
    let log = |name: &str| cluster.directory().join(format!("log/{name}.log"));
    let driver = hostpath(&socket, &cluster.directory().join("hostpath"), &log("hostpath"));
    wait_until(|| socket.exists(), "the driver's socket");
    cluster.apply(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {HOSTPATH}}}\n\
         spec: {{attachRequired: true}}\n"
    ));
    let (socket, kubeconfig) = (socket.display().to_string(), cluster.kubeconfig().display().to_string());
    let registry = root.join("plugins_registry").display().to_string();
    let ours = [
        "sidecar",
        "--csi-address",
        &socket,
        "--kubeconfig",
        &kubeconfig,
        "--node",
        "--roles",
        "attacher",
        "--kubelet-registration-path",
        &socket,
        "--plugin-registration-path",
        &registry,
        "--http-endpoint",
        "127.0.0.1:0",
    ];
    let ours = ChildProcess::start(&built_program("wharf"), &ours, &log("sidecar"));
    let registered = format!("jsonpath={{.spec.drivers[0].name}}={HOSTPATH}");
    cluster.wait_for(&format!("csinode/{NODE}"), &registered, START);
    let args = ["--csi-address", &socket, "--kubeconfig", &kubeconfig];
    vec![driver, ours, ChildProcess::start(&upstream_program("csi-provisioner"), &args, &log("provisioner"))]
}

fn hostpath(socket: &Path, state: &Path, log: &Path) -> ChildProcess {
    std::fs::create_dir_all(state).expect("a directory");
    let (endpoint, state) = (format!("unix://{}", socket.display()), state.join("volumes"));
    let (node, state) = (format!("--nodeid={NODE}"), state.display().to_string());
    let args = ["--endpoint", &endpoint, &node, "--enable-attach", "--statedir", &state];
    ChildProcess::start(&upstream_program("hostpathplugin"), &args, log)
}

/// A program of the cluster, which has its own PID namespace.
fn inside(cluster: &TestCluster, name: &str) -> PathBuf {
    let file = cluster.directory().join("pid").join(name);
    let number = std::fs::read_to_string(&file).expect("a program of the cluster");
    let program = name.trim_end_matches("-node-a");
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let is_it = |process: &PathBuf| {
        let text = std::fs::read_to_string(process.join("status")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        // The kernel truncates process names to fifteen characters.
        let named = text.lines().next().and_then(|line| line.split_whitespace().nth(1));
        line.split_whitespace().count() > 1
            && line.split_whitespace().next_back() == Some(number.trim())
            && named.is_some_and(|named| named.starts_with(&program[..program.len().min(15)]))
    };
    processes.into_iter().find(is_it).unwrap_or_else(|| panic!("{name} runs"))
}

fn status(process: &Path, field: &str) -> f64 {
    let text = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// User and system time in seconds; the kernel counts a hundred ticks per second.
fn cpu(process: &Path) -> f64 {
    let text = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn wait_until(condition: impl Fn() -> bool, what: &str) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < START, "timeout after {START:?}: {what}");
        std::thread::sleep(LOOK);
    }
}
