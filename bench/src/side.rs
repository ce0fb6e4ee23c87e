//! The two sides: ours in one process, upstream's in one process per role.

use std::path::Path;
use std::time::Duration;

use wharf_testkit::{ChildProcess, ScriptedDriver, TestCluster, Usage, built_program, upstream_program};

/// The sidecars under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Upstream's with default flags.
    Defaults,
    /// Upstream's with high API server limits.
    Tuned,
    /// `wharf sidecar` with default flags.
    Ours,
}

impl Contender {
    /// The name used in object names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Defaults => "defaults",
            Self::Tuned => "tuned",
            Self::Ours => "ours",
        }
    }
}

/// The roles that both sides run.
pub(crate) const COMMON_ROLES: &str = "provisioner,resizer";
/// The snapshot roles.
pub(crate) const SNAPSHOT_ROLES: &str = "snapshotter,snapshot-controller";

/// This program takes no driver socket.
const CONTROLLER: &str = "snapshot-controller";

/// Upstream's flags for high API server limits.
const TUNED: [&str; 2] = ["--kube-api-qps=1000", "--kube-api-burst=2000"];

/// One replica of a side.
pub(crate) struct Side {
    processes: Vec<ChildProcess>,
}

impl Side {
    /// Starts a replica with a unique `name`.
    pub(crate) fn start(
        contender: Contender,
        name: &str,
        cluster: &TestCluster,
        driver: &ScriptedDriver,
    ) -> Self {
        match contender {
            Contender::Ours => Self::ours(name, cluster, driver, &["--roles", COMMON_ROLES]),
            Contender::Defaults => {
                Self::upstream(name, cluster, driver, [("csi-provisioner", &[]), ("csi-resizer", &[])])
            }
            Contender::Tuned => {
                let provisioner = [&TUNED[..], &["--worker-threads=100"]].concat();
                let resizer = [&TUNED[..], &["--workers=100"]].concat();
                let programs = [("csi-provisioner", &provisioner[..]), ("csi-resizer", &resizer[..])];
                Self::upstream(name, cluster, driver, programs)
            }
        }
    }

    /// Starts a replica that takes snapshots.
    pub(crate) fn snapshots(
        contender: Contender,
        name: &str,
        cluster: &TestCluster,
        driver: &ScriptedDriver,
    ) -> Self {
        let tuned = [&TUNED[..], &["--worker-threads=100"]].concat();
        let more = match contender {
            Contender::Ours => return Self::ours(name, cluster, driver, &["--roles", SNAPSHOT_ROLES]),
            Contender::Defaults => &[],
            Contender::Tuned => &tuned[..],
        };
        Self::upstream(name, cluster, driver, [("csi-snapshotter", more), (CONTROLLER, more)])
    }

    /// Starts ours with additional arguments.
    pub(crate) fn ours(name: &str, cluster: &TestCluster, driver: &ScriptedDriver, more: &[&str]) -> Self {
        let (socket, kubeconfig) = (text(&driver.socket()), text(&cluster.kubeconfig()));
        let mut args = vec!["sidecar", "--csi-address", &socket, "--kubeconfig", &kubeconfig];
        args.extend(["--http-endpoint", "127.0.0.1:0"]);
        args.extend(more);
        let log = cluster.directory().join(format!("log/{name}.log"));
        Self {
            processes: vec![ChildProcess::start_with(
                &built_program("wharf"),
                &args,
                &[("POD_NAME", name)],
                &log,
            )],
        }
    }

    fn upstream(
        name: &str,
        cluster: &TestCluster,
        driver: &ScriptedDriver,
        programs: [(&str, &[&str]); 2],
    ) -> Self {
        let start = |(program, more): (&str, &[&str])| {
            let (socket, kubeconfig) = (text(&driver.socket()), text(&cluster.kubeconfig()));
            let mut args = vec!["--kubeconfig", &kubeconfig];
            args.extend(["--leader-election", "--leader-election-namespace=default"]);
            if program != CONTROLLER {
                args.extend(["--csi-address", &socket]);
            }
            args.extend(more);
            let log = cluster.directory().join(format!("log/{program}-{name}.log"));
            ChildProcess::start_with(&upstream_program(program), &args, &[("POD_NAME", name)], &log)
        };
        Self { processes: programs.map(start).into() }
    }

    /// The resource usage of all its processes.
    pub(crate) fn usage(&self) -> Usage {
        let none = Usage { rss_kib: 0, peak_kib: 0, cpu: Duration::ZERO };
        self.processes.iter().map(ChildProcess::usage).fold(none, |sum, one| Usage {
            rss_kib: sum.rss_kib + one.rss_kib,
            peak_kib: sum.peak_kib + one.peak_kib,
            cpu: sum.cpu + one.cpu,
        })
    }

    /// Whether all its processes are running.
    pub(crate) fn runs(&mut self) -> bool {
        self.processes.iter_mut().all(ChildProcess::is_running)
    }

    /// Sends SIGTERM, and does not wait.
    pub(crate) fn terminate(&self) {
        for process in &self.processes {
            process.signal(rustix::process::Signal::TERM);
        }
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        for process in &mut self.processes {
            process.kill();
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
