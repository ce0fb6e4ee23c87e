//! Both servers, each with an administrator kubeconfig.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wharf_testkit::{ChildProcess, ClusterOptions, TestCluster, built_program};

/// A real API server and the embedded one. On the real one only those controllers run that the embedded one has
/// too.
pub(crate) struct Servers {
    cluster: TestCluster,
    ours: ChildProcess,
    directory: tempfile::TempDir,
}

const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller,\
    root-ca-certificate-publisher-controller";
/// The ConfigMap that a new namespace gets shortly after its creation.
pub(crate) const AUTHORITY: &str = "kube-root-ca.crt";
/// How long that may take.
pub(crate) const MOMENT: Duration = Duration::from_secs(20);

impl Servers {
    pub(crate) fn start() -> Self {
        let cluster = TestCluster::start_with(ClusterOptions {
            nodes: &[],
            controllers: CONTROLLERS,
            ..ClusterOptions::default()
        });
        // The scheduler would report for each pod that no node fits.
        cluster.signal("kube-scheduler", "STOP");
        let directory = tempfile::tempdir().unwrap();
        let (data, kubeconfig) = (directory.path().join("data"), directory.path().join("kubeconfig"));
        let (data, kubeconfig) = (data.to_str().unwrap(), kubeconfig.to_str().unwrap());
        let args =
            ["apiserver", "--data-dir", data, "--listen", "127.0.0.1:0", "--kubeconfig-out", kubeconfig];
        let ours = ChildProcess::start(&built_program("wharf"), &args, &directory.path().join("log"));
        let servers = Self { cluster, ours, directory };
        servers.until(Side::Ours, &["get", "namespace", "default"]);
        servers.install_snapshots();
        servers
    }

    /// Runs kubectl until it succeeds.
    pub(crate) fn until(&self, side: Side, args: &[&str]) {
        let until = Instant::now() + MOMENT;
        while !self.run(side, args, None).success {
            assert!(Instant::now() < until, "{side:?} did not succeed with {args:?}:\n{}", self.ours.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Installs the snapshot CRDs on the real server; they are built into the embedded one.
    fn install_snapshots(&self) {
        let status = Command::new(built_program("wharf"))
            .args(["install", "crds", "--kubeconfig"])
            .arg(self.kubeconfig(Side::Theirs))
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }

    /// Compacts the history of the real server before this revision, as it does by itself after five minutes. The
    /// embedded server compacts when its history is full.
    pub(crate) fn compact(&self, side: Side, revision: &str) {
        use std::io::{Read as _, Write as _};
        if side == Side::Ours {
            return;
        }
        // The etcd address in test/cluster/cluster.sh: the first one.
        let ports = std::env::var("PORTS").unwrap_or_else(|_| "16400".to_owned());
        let body = format!("{{\"revision\": \"{revision}\"}}");
        let mut etcd = std::net::TcpStream::connect(format!("127.0.0.1:{ports}")).unwrap();
        let head = "POST /v3/kv/compaction HTTP/1.1\r\nhost: etcd\r\nconnection: close";
        write!(etcd, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut response = String::new();
        etcd.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "failed to compact to revision {revision}: {response}");
    }

    pub(crate) fn kubeconfig(&self, side: Side) -> PathBuf {
        match side {
            Side::Theirs => self.cluster.kubeconfig(),
            Side::Ours => self.directory.path().join("kubeconfig"),
        }
    }

    /// Runs kubectl.
    pub(crate) fn run(&self, side: Side, args: &[&str], stdin: Option<&str>) -> Printed {
        self.run_while(side, args, stdin, || ())
    }

    /// Runs kubectl, and runs `then` when it has started to print.
    pub(crate) fn run_while(
        &self,
        side: Side,
        args: &[&str],
        stdin: Option<&str>,
        meanwhile: impl FnOnce(),
    ) -> Printed {
        use std::io::{Read as _, Write as _};
        let mut command = Command::new(self.cluster.program("kubectl"));
        // Each server has its own discovery cache, and terminal warnings must not appear in the output.
        let cache = self.directory.path().join(format!("cache-{side:?}"));
        command
            .args(args)
            .env("KUBECONFIG", self.kubeconfig(side))
            .env("KUBECACHEDIR", cache)
            .env("HOME", "/nonexistent");
        command
            .current_dir(Path::new("/"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // If kubectl exits early, its own error is reported below.
        let _ = input.write_all(stdin.unwrap_or_default().as_bytes());
        drop(input);
        let mut stdout = child.stdout.take().unwrap();
        let mut first = vec![0; 64 << 10];
        let length = stdout.read(&mut first).unwrap();
        first.truncate(length);
        meanwhile();
        stdout.read_to_end(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Printed { success: output.status.success(), stdout: text(first), stderr: text(output.stderr) }
    }
}

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Theirs,
    Ours,
}

/// The output of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Printed {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}
