//! Who is measured: our one process, or upstream's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use wharf_testkit::{Beside, ScriptedDriver, TestCluster, built, upstream};

/// A side, as it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// `wharf sidecar` without further flags.
    Wharf,
    /// Upstream's provisioner and resizer at their defaults.
    UpstreamDefaults,
    /// The same with as many requests and workers as ours has.
    UpstreamTuned,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Wharf => "wharf",
            Self::UpstreamDefaults => "upstream, defaults",
            Self::UpstreamTuned => "upstream, tuned",
        }
    }

    /// Starts all its processes as a replica of this name.
    pub(crate) fn start(self, bench: &Bench<'_>, roles: &str, replica: &str) -> Running {
        let kubeconfig = bench.kubeconfig.display().to_string();
        let socket = bench.driver.socket().display().to_string();
        let log = |of: &str| bench.cluster.directory().join(format!("log/{replica}-{of}.log"));
        let common = ["--csi-address", &socket, "--kubeconfig", &kubeconfig];
        let processes = match self {
            Self::Wharf => {
                let more = ["--roles", roles, "--http-endpoint", "127.0.0.1:0"];
                let args = [&["sidecar"], &common[..], &more[..]].concat();
                let env = [("POD_NAME", replica), ("RUST_LOG", "warn")];
                vec![Beside::start_with(&built("wharf"), &args, &env, &log("wharf"))]
            }
            Self::UpstreamDefaults | Self::UpstreamTuned => ["csi-provisioner", "csi-resizer"]
                .into_iter()
                .map(|program| {
                    let tuned: &[&str] = match (self, program) {
                        (Self::UpstreamTuned, "csi-resizer") => {
                            &["--kube-api-qps=1000", "--kube-api-burst=2000", "--workers=100"]
                        }
                        (Self::UpstreamTuned, _) => {
                            &["--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100"]
                        }
                        _ => &[],
                    };
                    let election = ["--leader-election", "--leader-election-namespace=default"];
                    let file = upstream(program).display().to_string();
                    // The host's name is a replica's name; each has its own.
                    let script = format!("hostname {replica}; exec \"$0\" \"$@\"");
                    let args =
                        [&["--uts", "sh", "-c", &script, &file], &common[..], &election, tuned].concat();
                    Beside::start(Path::new("unshare"), &args, &log(program))
                })
                .collect(),
        };
        Running { processes }
    }
}

/// What both sides share.
pub(crate) struct Bench<'a> {
    pub(crate) cluster: &'a TestCluster,
    pub(crate) driver: ScriptedDriver,
    /// Credentials of a user whose requests the server counts by themselves.
    pub(crate) kubeconfig: PathBuf,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(cluster: &'a TestCluster, driver: &str) -> Self {
        cluster.apply(COUNTED);
        let options = ["--node-capabilities", "STAGE_UNSTAGE_VOLUME"];
        let driver = ScriptedDriver::start(cluster, driver, &options);
        Self { cluster, driver, kubeconfig: cluster.kubeconfig_of_account("default", "counted") }
    }

    /// How many requests the sidecars have sent so far.
    pub(crate) fn requests(&self) -> f64 {
        let metrics = self.cluster.kubectl(&["get", "--raw", "/metrics"]);
        let lines = metrics.lines().filter(|line| {
            line.starts_with("apiserver_flowcontrol_dispatched_requests_total{")
                && line.contains("flow_schema=\"counted\"")
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

/// The processes of one side.
pub(crate) struct Running {
    pub(crate) processes: Vec<Beside>,
}

impl Running {
    pub(crate) fn cpu(&self) -> Duration {
        self.processes.iter().map(|process| process.usage().cpu).sum()
    }

    pub(crate) fn rss_mib(&self) -> f64 {
        let kib: u64 = self.processes.iter().map(|process| process.usage().rss_kib).sum();
        kib as f64 / 1024.0
    }

    pub(crate) fn end(mut self) {
        for process in &mut self.processes {
            process.end();
        }
    }

    pub(crate) fn kill(mut self) {
        for process in &mut self.processes {
            process.kill();
        }
    }
}

/// An administrator of its own, so that its requests have a counter of their own.
const COUNTED: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: counted, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: counted}
subjects: [{kind: ServiceAccount, name: counted, namespace: default}]
roleRef: {kind: ClusterRole, name: cluster-admin, apiGroup: rbac.authorization.k8s.io}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: counted}
spec:
  matchingPrecedence: 10
  priorityLevelConfiguration: {name: exempt}
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {name: counted, namespace: default}}]
    resourceRules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"], clusterScope: true, namespaces: ["*"]}]
"#;
