//! The two servers as processes, each in a directory of its own on the same disk. Gone with the value.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use wharf_testkit::{Beside, built, connect, free_address};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../test/cluster/cluster.sh");
/// How long a server may take to be ready.
const START: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(2);

/// Whose server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// kube-apiserver and etcd, which waits for the disk.
    Upstream,
    /// `wharf apiserver`.
    Ours,
}

/// A server that runs.
pub(crate) struct Side {
    processes: Vec<Beside>,
    kubeconfig: PathBuf,
    _dir: TempDir,
}

impl Side {
    /// Starts one with nothing in it. How many seconds it took to be ready.
    pub(crate) fn start(runtime: &Runtime, who: Who, disk: &Path) -> (Self, f64) {
        let dir = tempfile::tempdir_in(disk).expect("a directory for the server");
        let kubeconfig = dir.path().join("kubeconfig");
        let log = |name: &str| dir.path().join(format!("{name}.log"));
        let (processes, began) = match who {
            Who::Ours => {
                let (data, out) = (text(&dir.path().join("data")), text(&kubeconfig));
                let address = free_address();
                let args = ["apiserver", "--data-dir", &data, "--listen", &address, "--kubeconfig-out", &out];
                let began = Instant::now();
                (vec![Beside::start(&built("wharf"), &args, &log("wharf"))], began)
            }
            Who::Upstream => {
                let (run, ports) = (text(dir.path()), std::env::var("PORTS").expect("PORTS"));
                let env = [("RUN", run.as_str()), ("PORTS", &ports), ("NODES", ""), ("EXTRA_ETCD_FLAGS", "")];
                let part = |name: &str| Beside::start_with(Path::new(SCRIPT), &[name], &env, &log(name));
                let mut keys = part("credentials");
                while keys.runs() {
                    std::thread::sleep(LOOK);
                }
                let began = Instant::now();
                (vec![part("etcd"), part("kube_apiserver")], began)
            }
        };
        let mut side = Self { processes, kubeconfig, _dir: dir };
        side.ready(runtime);
        (side, began.elapsed().as_secs_f64())
    }

    /// Kills and starts all of it. How many seconds it took to be ready.
    pub(crate) fn restart(&mut self, runtime: &Runtime) -> f64 {
        self.processes.iter_mut().rev().for_each(Beside::kill);
        let began = Instant::now();
        self.processes.iter_mut().for_each(Beside::restart);
        self.ready(runtime);
        began.elapsed().as_secs_f64()
    }

    /// A client with a connection of its own.
    pub(crate) async fn client(&self) -> kube::Client {
        connect(&self.kubeconfig).await.expect("the server's kubeconfig")
    }

    /// Of all its processes, in MiB.
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
                let asked = http::Request::get("/readyz").body(Vec::new()).expect("a request");
                if runtime.block_on(client.request_text(asked)).is_ok() {
                    return;
                }
            }
            for process in &mut self.processes {
                assert!(process.runs(), "it has ended:\n{}", process.log());
            }
            assert!(Instant::now() < until, "it is not ready after {START:?}");
            std::thread::sleep(LOOK);
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
