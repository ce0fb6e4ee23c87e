//! `wharf apiserver` for one test: a process of its own, on a port and a directory of its own, which may be killed and
//! started again as often as one likes. Gone with the value.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::server::connect;
use crate::{Beside, Usage, built, free_address};

/// How long it may take to answer.
const START: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(2);

/// The embedded API as a process.
pub struct Embedded {
    process: Beside,
    kubeconfig: PathBuf,
    sidecar: PathBuf,
    dir: TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Embedded {
    /// Starts one that has nothing yet, and waits until it is ready.
    pub fn start() -> Self {
        Self::start_in(&std::env::temp_dir(), &built("wharf"))
    }

    /// The same with its files beneath a directory of one's choice, and a program of one's choice.
    pub fn start_in(parent: &Path, program: &Path) -> Self {
        let dir = tempfile::tempdir_in(parent).expect("a directory for the server");
        let [kubeconfig, sidecar] = ["kubeconfig", "kubeconfig-sidecar"].map(|file| dir.path().join(file));
        let data = dir.path().join("data");
        let (data, out) = (data.display().to_string(), kubeconfig.display().to_string());
        // The same at each start, for those who stay connected.
        let address = free_address();
        let args = ["apiserver", "--data-dir", &data, "--listen", &address, "--kubeconfig-out", &out];
        let process = Beside::start(program, &args, &dir.path().join("log"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut server = Self { process, kubeconfig, sidecar, dir, runtime };
        server.ready();
        let (url, out) = (format!("https://{address}"), server.sidecar.display().to_string());
        let args =
            ["apiserver", "kubeconfig", "--data-dir", &data, "--identity", "sidecar", "--server", &url];
        let written = Command::new(program).args(args).args(["--out", &out]).status().expect("wharf");
        assert!(written.success(), "there are no credentials for a sidecar");
        server
    }

    /// Credentials of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Credentials of a sidecar: no more than what the built-in role allows.
    pub fn kubeconfig_of_sidecar(&self) -> &Path {
        &self.sidecar
    }

    /// Where everything of it is kept, and others may keep what goes with it.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// What it has used in this life.
    pub fn usage(&self) -> Usage {
        self.process.usage()
    }

    /// kill -9, and starts it again; returns when it is ready, and how long that took from the start.
    pub fn restart(&mut self) -> Duration {
        self.process.kill();
        let began = Instant::now();
        self.process.restart();
        self.ready();
        began.elapsed()
    }

    /// Waits until it answers.
    fn ready(&mut self) {
        let until = Instant::now() + START;
        let mut client = None;
        loop {
            // It writes them before it answers.
            if client.is_none() && self.kubeconfig.exists() {
                client = self.runtime.block_on(connect(&self.kubeconfig)).ok();
            }
            if let Some(client) = &client {
                let asked = http::Request::get("/readyz").body(Vec::new()).expect("a request");
                if self.runtime.block_on(client.request_text(asked)).is_ok() {
                    return;
                }
            }
            assert!(self.process.runs(), "the server has ended:\n{}", self.process.log());
            assert!(Instant::now() < until, "the server does not answer:\n{}", self.process.log());
            std::thread::sleep(LOOK);
        }
    }
}
