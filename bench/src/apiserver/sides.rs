//! The two servers as processes, each in its own directory on the same disk. Dropping a side stops it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use wharf_testkit::{ChildProcess, built_program, connect, free_address};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../test/cluster/cluster.sh");
/// Startup timeout of a server.
const START: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// kube-apiserver and etcd, which waits for the disk.
    Upstream,
    /// `wharf apiserver`.
    Ours,
}

/// A running server.
pub(crate) struct Side {
    processes: Vec<ChildProcess>,
    kubeconfig: PathBuf,
    _dir: TempDir,
}

impl Side {
    /// Starts an empty server; returns it and the seconds until it was ready.
    pub(crate) fn start(runtime: &Runtime, contender: Contender, disk: &Path) -> (Self, f64) {
        let dir = tempfile::tempdir_in(disk).expect("a directory for the server");
        let kubeconfig = dir.path().join("kubeconfig");
        let log = |name: &str| dir.path().join(format!("{name}.log"));
        let (processes, started) = match contender {
            Contender::Ours => {
                let (data, out) = (text(&dir.path().join("data")), text(&kubeconfig));
                let address = free_address();
                let args = ["apiserver", "--data-dir", &data, "--listen", &address, "--kubeconfig-out", &out];
                let started = Instant::now();
                (vec![ChildProcess::start(&built_program("wharf"), &args, &log("wharf"))], started)
            }
            Contender::Upstream => {
                let (run, ports) = (text(dir.path()), std::env::var("PORTS").expect("PORTS"));
                let env = [("RUN", run.as_str()), ("PORTS", &ports), ("NODES", ""), ("EXTRA_ETCD_FLAGS", "")];
                let part =
                    |name: &str| ChildProcess::start_with(Path::new(SCRIPT), &[name], &env, &log(name));
                let mut keys = part("credentials");
                while keys.is_running() {
                    std::thread::sleep(POLL_INTERVAL);
                }
                let started = Instant::now();
                (vec![part("etcd"), part("kube_apiserver")], started)
            }
        };
        let mut side = Self { processes, kubeconfig, _dir: dir };
        side.ready(runtime);
        (side, started.elapsed().as_secs_f64())
    }

    /// Kills and restarts all processes; returns the seconds until ready.
    pub(crate) fn restart(&mut self, runtime: &Runtime) -> f64 {
        self.processes.iter_mut().rev().for_each(ChildProcess::kill);
        let started = Instant::now();
        self.processes.iter_mut().for_each(ChildProcess::restart);
        self.ready(runtime);
        started.elapsed().as_secs_f64()
    }

    /// A client with its own connection.
    pub(crate) async fn client(&self) -> kube::Client {
        connect(&self.kubeconfig).await.expect("the server's kubeconfig")
    }

    /// Memory of all its processes, in MiB.
    pub(crate) fn memory(&self) -> f64 {
        self.processes.iter().map(|process| process.usage().rss_kib as f64 / 1024.0).sum()
    }

    /// Processor seconds of all its processes.
    pub(crate) fn cpu(&self) -> f64 {
        self.processes.iter().map(|process| process.usage().cpu.as_secs_f64()).sum()
    }

    fn ready(&mut self, runtime: &Runtime) {
        let until = Instant::now() + START;
        let mut client = None;
        loop {
            if client.is_none() && self.kubeconfig.exists() {
                client = runtime.block_on(connect(&self.kubeconfig)).ok();
            }
            if let Some(client) = &client {
                let request = http::Request::get("/readyz").body(Vec::new()).expect("a request");
                if runtime.block_on(client.request_text(request)).is_ok() {
                    return;
                }
            }
            for process in &mut self.processes {
                assert!(process.is_running(), "it has ended:\n{}", process.log());
            }
            assert!(Instant::now() < until, "it is not ready after {START:?}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
