//! Both servers, each with an administrator's kubeconfig.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wharf_testkit::{Beside, ClusterOptions, TestCluster, built};

/// A real one and ours. Nobody but the controllers that ours has too acts on the real one.
pub(crate) struct Servers {
    cluster: TestCluster,
    ours: Beside,
    directory: tempfile::TempDir,
}

const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller,\
    root-ca-certificate-publisher-controller";
/// What a new namespace has a moment later.
pub(crate) const AUTHORITY: &str = "kube-root-ca.crt";
/// How long that moment may be.
pub(crate) const MOMENT: Duration = Duration::from_secs(20);

impl Servers {
    pub(crate) fn start() -> Self {
        let cluster = TestCluster::start_with(ClusterOptions {
            nodes: &[],
            controllers: CONTROLLERS,
            ..ClusterOptions::default()
        });
        // It would say of each pod that it has no node for it.
        cluster.signal("kube-scheduler", "STOP");
        let directory = tempfile::tempdir().unwrap();
        let (data, kubeconfig) = (directory.path().join("data"), directory.path().join("kubeconfig"));
        let (data, kubeconfig) = (data.to_str().unwrap(), kubeconfig.to_str().unwrap());
        let args =
            ["apiserver", "--data-dir", data, "--listen", "127.0.0.1:0", "--kubeconfig-out", kubeconfig];
        let ours = Beside::start(&built("wharf"), &args, &directory.path().join("log"));
        let servers = Self { cluster, ours, directory };
        servers.until(Side::Ours, &["get", "namespace", "default"]);
        servers.install_snapshots();
        servers
    }

    /// Runs kubectl until it succeeds.
    pub(crate) fn until(&self, side: Side, args: &[&str]) {
        let until = Instant::now() + MOMENT;
        while !self.run(side, args, None).success {
            assert!(Instant::now() < until, "{side:?} does not come to {args:?}:\n{}", self.ours.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The snapshot kinds are built into ours, and CRDs on a cluster.
    fn install_snapshots(&self) {
        let status = Command::new(built("wharf"))
            .args(["install", "crds", "--kubeconfig"])
            .arg(self.kubeconfig(Side::Theirs))
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }

    /// Makes the real one forget all states before this revision, as it does by itself when they are five minutes old.
    /// Ours forgets when its history is full.
    pub(crate) fn forget(&self, side: Side, revision: &str) {
        use std::io::{Read as _, Write as _};
        if side == Side::Ours {
            return;
        }
        // As test/cluster/cluster.sh has it; etcd is at the first.
        let ports = std::env::var("PORTS").unwrap_or_else(|_| "16400".to_owned());
        let body = format!("{{\"revision\": \"{revision}\"}}");
        let mut etcd = std::net::TcpStream::connect(format!("127.0.0.1:{ports}")).unwrap();
        let head = "POST /v3/kv/compaction HTTP/1.1\r\nhost: etcd\r\nconnection: close";
        write!(etcd, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        etcd.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{revision} is not forgotten: {answer}");
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

    /// Runs kubectl, and does this when it has begun to print.
    pub(crate) fn run_while(
        &self,
        side: Side,
        args: &[&str],
        stdin: Option<&str>,
        meanwhile: impl FnOnce(),
    ) -> Printed {
        use std::io::{Read as _, Write as _};
        let mut command = Command::new(self.cluster.program("kubectl"));
        // Each server has its own cache of discovery; and a warning for a terminal is none for a test.
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
        // One that ends early tells why.
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

/// What a program printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Printed {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}
