//! The two sides: ours in one process, upstream's in a process for each role.

use std::path::Path;
use std::time::Duration;

use wharf_testkit::{Beside, ScriptedDriver, TestCluster, Usage, built, upstream};

/// Who works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Upstream's with the flags that they have by themselves.
    Defaults,
    /// The same, told to use as much of the API server as they can.
    Tuned,
    /// `wharf sidecar`, with nothing tuned.
    Ours,
}

impl Who {
    /// In names of objects.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Defaults => "defaults",
            Self::Tuned => "tuned",
            Self::Ours => "ours",
        }
    }
}

/// The roles that both sides have here.
pub(crate) const SAME_ROLES: &str = "provisioner,resizer";
/// Those for snapshots.
pub(crate) const SNAPSHOT_ROLES: &str = "snapshotter,snapshot-controller";

/// It has no driver.
const CONTROLLER: &str = "snapshot-controller";

/// Upstream, told to use as much of the API server as it can.
const TUNED: [&str; 2] = ["--kube-api-qps=1000", "--kube-api-burst=2000"];

/// One replica of a side.
pub(crate) struct Side {
    processes: Vec<Beside>,
}

impl Side {
    /// Starts a replica; `name` tells it from others.
    pub(crate) fn start(who: Who, name: &str, cluster: &TestCluster, driver: &ScriptedDriver) -> Self {
        match who {
            Who::Ours => Self::ours(name, cluster, driver, &["--roles", SAME_ROLES]),
            Who::Defaults => {
                Self::upstream(name, cluster, driver, [("csi-provisioner", &[]), ("csi-resizer", &[])])
            }
            Who::Tuned => {
                let provisioner = [&TUNED[..], &["--worker-threads=100"]].concat();
                let resizer = [&TUNED[..], &["--workers=100"]].concat();
                let programs = [("csi-provisioner", &provisioner[..]), ("csi-resizer", &resizer[..])];
                Self::upstream(name, cluster, driver, programs)
            }
        }
    }

    /// Starts a replica that takes snapshots.
    pub(crate) fn snapshots(who: Who, name: &str, cluster: &TestCluster, driver: &ScriptedDriver) -> Self {
        let tuned = [&TUNED[..], &["--worker-threads=100"]].concat();
        let more = match who {
            Who::Ours => return Self::ours(name, cluster, driver, &["--roles", SNAPSHOT_ROLES]),
            Who::Defaults => &[],
            Who::Tuned => &tuned[..],
        };
        Self::upstream(name, cluster, driver, [("csi-snapshotter", more), (CONTROLLER, more)])
    }

    /// Ours with other arguments.
    pub(crate) fn ours(name: &str, cluster: &TestCluster, driver: &ScriptedDriver, more: &[&str]) -> Self {
        let (socket, kubeconfig) = (text(&driver.socket()), text(&cluster.kubeconfig()));
        let mut args = vec!["sidecar", "--csi-address", &socket, "--kubeconfig", &kubeconfig];
        args.extend(["--http-endpoint", "127.0.0.1:0"]);
        args.extend(more);
        let log = cluster.directory().join(format!("log/{name}.log"));
        Self { processes: vec![Beside::start_with(&built("wharf"), &args, &[("POD_NAME", name)], &log)] }
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
            Beside::start_with(&upstream(program), &args, &[("POD_NAME", name)], &log)
        };
        Self { processes: programs.map(start).into() }
    }

    /// What all its processes have used.
    pub(crate) fn usage(&self) -> Usage {
        let none = Usage { rss_kib: 0, peak_kib: 0, cpu: Duration::ZERO };
        self.processes.iter().map(Beside::usage).fold(none, |sum, one| Usage {
            rss_kib: sum.rss_kib + one.rss_kib,
            peak_kib: sum.peak_kib + one.peak_kib,
            cpu: sum.cpu + one.cpu,
        })
    }

    /// Whether all of it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.processes.iter_mut().all(Beside::runs)
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
