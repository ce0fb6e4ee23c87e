//! A real Kubernetes cluster for one test, started by `test/cluster/cluster.sh`. Its processes, mounts, cgroups and
//! files are removed when the value is dropped or the test is killed. A machine runs one cluster at a time; the
//! next one waits. Tests that use it are `ignored` and in a module named `cluster`: `make test-cluster` runs those.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::ops::Deref;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::kubectl::{Kubectl, stdout_or_error};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test/cluster/cluster.sh");
const RBAC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test/rbac");

/// How a cluster is set up.
#[derive(Debug, Clone, Copy)]
pub struct ClusterOptions {
    /// The initial nodes; without any, only the API server and the controllers run.
    pub nodes: &'static [&'static str],
    /// Lift the request limits of the controller manager. With its defaults it binds four claims a second.
    pub tuned: bool,
    /// The controllers that run, as `--controllers` takes them.
    pub controllers: &'static str,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { nodes: &["node-a", "node-b"], tuned: true, controllers: "*" }
    }
}

/// A running cluster.
pub struct TestCluster {
    /// Ends the cluster when its stdin is closed.
    keeper: Child,
    run: PathBuf,
    nodes: &'static [&'static str],
    kubectl: Kubectl,
}

impl Deref for TestCluster {
    type Target = Kubectl;

    /// kubectl for this cluster.
    fn deref(&self) -> &Kubectl {
        &self.kubectl
    }
}

impl TestCluster {
    /// Starts a cluster of two ready nodes, `node-a` and `node-b`. Pods can be created in the namespace `default`.
    pub fn start() -> Self {
        Self::start_with(ClusterOptions::default())
    }

    /// Starts a cluster.
    pub fn start_with(options: ClusterOptions) -> Self {
        let rate = if options.tuned { "--kube-api-qps 1000 --kube-api-burst 2000" } else { "" };
        let flags = format!("--controllers={} {rate}", options.controllers);
        let mut keeper = Command::new(SCRIPT)
            .arg("run")
            .env("NODES", options.nodes.join(" "))
            .env("EXTRA_CONTROLLER_MANAGER_FLAGS", flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C must reach only the test; the cluster shuts down after it, in order.
            .process_group(0)
            .spawn()
            .expect("failed to run cluster.sh");
        let mut line = String::new();
        let stdout = keeper.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("failed to read the output of cluster.sh");
        let run = Path::new(line.trim_end()).parent().map(Path::to_owned).unwrap_or_default();
        let kubectl = Kubectl::new(run.join("bin/kubectl"), run.join("kubeconfig"));
        let cluster = Self { keeper, run, nodes: options.nodes, kubectl };
        assert!(!line.is_empty(), "cluster.sh failed to start a cluster; its error is above");
        cluster
    }

    /// Credentials of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.run.join("kubeconfig")
    }

    /// Credentials of an upstream sidecar (`provisioner`, `attacher`, `resizer`, `health-monitor`), limited to the
    /// rules in `test/rbac`. Its namespace is `wharf-rbac`.
    pub fn sidecar_kubeconfig(&self, sidecar: &str) -> PathBuf {
        let rules =
            fs::read_to_string(format!("{RBAC}/{sidecar}.yaml")).expect("failed to read the RBAC rules");
        self.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: wharf-rbac}\n");
        self.apply(&rules);
        let account = format!("csi-{sidecar}");
        let token =
            self.kubectl(&["create", "token", &account, "--namespace", "wharf-rbac", "--duration=10h"]);
        let admin =
            fs::read_to_string(self.kubeconfig()).expect("failed to read the administrator's kubeconfig");
        let server =
            admin.lines().find(|line| line.starts_with("clusters:")).expect("the kubeconfig has no clusters");
        let file = self.run.join(format!("kubeconfig-{sidecar}"));
        let text = format!(
            "apiVersion: v1\nkind: Config\n{server}\nusers: [{{name: it, user: {{token: {}}}}}]\n\
             contexts: [{{name: it, context: {{cluster: test, user: it, namespace: wharf-rbac}}}}]\n\
             current-context: it\n",
            token.trim()
        );
        fs::write(&file, text).expect("failed to write a kubeconfig");
        file
    }

    /// Credentials of a node: the same rights as its kubelet.
    pub fn node_kubeconfig(&self, node: &str) -> PathBuf {
        self.script(&["node_credentials", node]);
        self.run.join(format!("kubeconfig-{node}"))
    }

    /// The names of the initial nodes.
    pub fn nodes(&self) -> &'static [&'static str] {
        self.nodes
    }

    /// The root directory of a node's kubelet. Mounts below it propagate to that kubelet.
    pub fn kubelet_root(&self, node: &str) -> PathBuf {
        self.run.join(node).join("kubelet")
    }

    /// Adds a node and waits until it is Ready.
    pub fn join(&self, node: &str) {
        self.script(&["join", node]);
    }

    /// Sends a signal ("KILL", "STOP", "CONT") to `etcd`, `kube-apiserver`, `kube-controller-manager`,
    /// `kube-scheduler`, `containerd-<node>` or `kubelet-<node>`. A program that exits is restarted at once.
    pub fn signal(&self, program: &str, signal: &str) {
        self.script(&["signal", program, signal]);
    }

    /// Kills a program unless it has already exited: without its API server, a program of the cluster may exit on
    /// its own.
    pub fn kill(&self, program: &str) {
        let _ = self.try_script(&["signal", program, "KILL"]);
    }

    /// The log of a program of the cluster; the names are those of [`TestCluster::signal`].
    pub fn log(&self, program: &str) -> String {
        let text = fs::read(self.run.join("log").join(format!("{program}.log"))).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Calls `check` every 200 ms until it returns a value.
    pub fn eventually<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut check: impl FnMut(&Self) -> Option<T>,
    ) -> T {
        let until = Instant::now() + timeout;
        loop {
            if let Some(value) = check(self) {
                return value;
            }
            assert!(Instant::now() < until, "timed out after {timeout:?}: {what}");
            sleep(Duration::from_millis(200));
        }
    }

    /// The metrics of a node's kubelet.
    pub fn kubelet_metrics(&self, node: &str) -> String {
        self.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")])
    }

    /// The path of a program of the cluster, such as `kubectl`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.run.join("bin").join(name)
    }

    /// The directory of all the cluster's files.
    pub fn directory(&self) -> &Path {
        &self.run
    }

    /// The last lines of all logs, for a failed test.
    fn log_tails(&self) -> String {
        let mut tails = String::new();
        for entry in fs::read_dir(self.run.join("log")).into_iter().flatten().flatten() {
            let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(15)..].join("\n");
            // Writing to a String cannot fail.
            let _ = writeln!(tails, "== {}\n{end}", entry.path().display());
        }
        tails
    }

    fn script(&self, args: &[&str]) {
        self.try_script(args).unwrap_or_else(|error| panic!("{error}"));
    }

    fn try_script(&self, args: &[&str]) -> Result<String, String> {
        let output =
            Command::new(SCRIPT).args(args).env("RUN", &self.run).output().expect("failed to run cluster.sh");
        stdout_or_error(&format!("cluster.sh {}", args.join(" ")), &output)
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_tails());
        }
        drop(self.keeper.stdin.take());
        if let Err(error) = self.keeper.wait() {
            eprintln!("cluster.sh: {error}");
        }
    }
}
