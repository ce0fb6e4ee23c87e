//! `wharf apiserver` for one test: a separate process with its own port and directory, which the test can kill and
//! restart at any time. Dropping the value ends it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::server::connect;
use crate::{ChildProcess, Usage, built_program, free_address};

/// How long the server may take to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The embedded API server as a child process.
pub struct EmbeddedServer {
    process: ChildProcess,
    kubeconfig: PathBuf,
    sidecar: PathBuf,
    dir: TempDir,
    runtime: tokio::runtime::Runtime,
}

impl EmbeddedServer {
    /// Starts a server without data and waits until it is ready.
    pub fn start() -> Self {
        Self::start_in(&std::env::temp_dir(), &built_program("wharf"))
    }

    /// Starts `program` as the server, with its files below `parent`, and waits until it is ready.
    pub fn start_in(parent: &Path, program: &Path) -> Self {
        let dir = tempfile::tempdir_in(parent).expect("failed to create the server's directory");
        let [kubeconfig, sidecar] = ["kubeconfig", "kubeconfig-sidecar"].map(|file| dir.path().join(file));
        let data = dir.path().join("data");
        let (data, out) = (data.display().to_string(), kubeconfig.display().to_string());
        // The address stays the same across restarts, so that clients can reconnect.
        let address = free_address();
        let args = ["apiserver", "--data-dir", &data, "--listen", &address, "--kubeconfig-out", &out];
        let process = ChildProcess::start(program, &args, &dir.path().join("log"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("failed to start a runtime");
        let mut server = Self { process, kubeconfig, sidecar, dir, runtime };
        server.wait_until_ready();
        let (url, out) = (format!("https://{address}"), server.sidecar.display().to_string());
        let args =
            ["apiserver", "kubeconfig", "--data-dir", &data, "--identity", "sidecar", "--server", &url];
        let written =
            Command::new(program).args(args).args(["--out", &out]).status().expect("failed to start wharf");
        assert!(written.success(), "wharf apiserver kubeconfig failed for the identity sidecar");
        server
    }

    /// Credentials of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Credentials of a sidecar: they allow only what the built-in role allows.
    pub fn sidecar_kubeconfig(&self) -> &Path {
        &self.sidecar
    }

    /// The directory of the server's files. Callers may put related files here.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Resource usage of the current process.
    pub fn usage(&self) -> Usage {
        self.process.usage()
    }

    /// Kills the server with SIGKILL and restarts it. Returns the time from the start until it is ready.
    pub fn restart(&mut self) -> Duration {
        self.process.kill();
        let started = Instant::now();
        self.process.restart();
        self.wait_until_ready();
        started.elapsed()
    }

    /// Waits until `/readyz` succeeds.
    fn wait_until_ready(&mut self) {
        let until = Instant::now() + START_TIMEOUT;
        let mut client = None;
        loop {
            // The server writes its kubeconfig before it serves requests.
            if client.is_none() && self.kubeconfig.exists() {
                client = self.runtime.block_on(connect(&self.kubeconfig)).ok();
            }
            if let Some(client) = &client {
                let request = http::Request::get("/readyz").body(Vec::new()).expect("the request is valid");
                if self.runtime.block_on(client.request_text(request)).is_ok() {
                    return;
                }
            }
            assert!(self.process.is_running(), "wharf apiserver exited:\n{}", self.process.log());
            assert!(Instant::now() < until, "wharf apiserver did not become ready:\n{}", self.process.log());
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
