//! `wharf sidecar` and the upstream programs that it replaces, as processes with a real driver and a fake kubelet.
//! There is no API server: roles that need one wait for it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wharf_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use wharf_csi::{Client, Endpoint, SocketIdentity};

const DRIVER: &str = "local.csi.wharf.dev";
const WHARF: &str = env!("CARGO_BIN_EXE_wharf");

/// A process that is killed at the end of the test.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(program: &Path, arguments: &[&str], log: PathBuf) -> Self {
        let child = Command::new(program)
            .args(arguments)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("failed to create the log"))
            .spawn()
            .expect("failed to start the process");
        Self { child, log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("failed to run kill").success());
    }

    /// Sends SIGTERM and returns the exit status.
    fn stop(&mut self) -> Option<i32> {
        self.signal("-TERM");
        self.child.wait().expect("failed to wait for the process").code()
    }

    /// The address of its HTTP endpoints.
    fn address(&self) -> String {
        let found = || {
            let log = self.log();
            let line = log.lines().find(|line| line.contains("serving HTTP endpoints"))?.to_owned();
            Some(line.split_once("address=\"")?.1.split_once('"')?.0.to_owned())
        };
        wait_for("HTTP endpoints are served", found)
    }

    /// Status and body of a GET request.
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address()).expect("failed to connect");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .expect("failed to send the request");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("failed to read the response");
        let (head, text) = response.split_once("\r\n\r\n").expect("an HTTP response");
        (head[9..12].parse().expect("a status"), text.to_owned())
    }

    fn wait_for_status(&self, path: &str, status: u16) -> String {
        wait_for(&format!("{path} is {status}"), || {
            let (found, text) = self.get(path);
            (found == status).then_some(text)
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has already exited, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.log());
        }
    }
}

fn wait_for<T>(what: &str, found: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A node with a directory for the driver and kubelet's plugin directory.
struct Node {
    dir: TempDir,
    kubelet: tokio::runtime::Runtime,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        for name in ["pool", "registration"] {
            std::fs::create_dir(dir.path().join(name)).expect("failed to create a directory");
        }
        let kubelet = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { dir, kubelet }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// A kubeconfig for an API server that is not running.
    fn kubeconfig(&self) -> String {
        let path = self.path("kubeconfig");
        let text = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
                    clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}";
        std::fs::write(&path, text).expect("failed to write the file");
        path
    }

    fn driver(&self, node_id: &str) -> Process {
        let (endpoint, pool) = (self.path("csi.sock"), self.path("pool"));
        let flags = [
            "driver",
            "local",
            "--create-pool",
            "--node-id",
            node_id,
            "--endpoint",
            &endpoint,
            "--pool",
            &pool,
        ];
        let driver = Process::start(Path::new(WHARF), &flags, self.dir.path().join("driver.log"));
        wait_for("the driver listens", || Path::new(&endpoint).exists().then_some(()));
        driver
    }

    fn sidecar(&self) -> Process {
        self.named_sidecar("sidecar.log")
    }

    fn named_sidecar(&self, log: &str) -> Process {
        let (socket, registration) = (self.path("csi.sock"), self.path("registration"));
        let flags = [
            "sidecar",
            "--node",
            "--csi-address",
            &socket,
            "--kubelet-registration-path",
            "/host/csi.sock",
            "--plugin-registration-path",
            &registration,
            "--http-endpoint",
            "127.0.0.1:0",
        ];
        Process::start(Path::new(WHARF), &flags, self.dir.path().join(log))
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(format!("registration/{DRIVER}-reg.sock"))
    }

    fn identity(&self) -> Option<SocketIdentity> {
        SocketIdentity::of_path(&self.socket()).ok()
    }

    /// Waits for a socket that differs from this one.
    fn next_socket(&self, before: Option<&SocketIdentity>) -> SocketIdentity {
        wait_for("a new socket", || self.identity().filter(|found| Some(found) != before))
    }

    fn call<T>(
        &self,
        call: impl AsyncFnOnce(Client) -> Result<T, tonic::Status>,
    ) -> Result<T, tonic::Status> {
        let endpoint: Endpoint = self.socket().to_str().expect("a path").parse().expect("an endpoint");
        self.kubelet
            .block_on(async { call(Client::new(&endpoint).with_deadline(Duration::from_secs(5))).await })
    }

    /// Calls GetInfo, as kubelet does when a socket appears. Retries, because a new socket may not listen yet.
    fn info(&self) -> PluginInfo {
        wait_for("GetInfo succeeds", || {
            self.call(async |client| Ok(client.registration().get_info(InfoRequest {}).await?.into_inner()))
                .ok()
        })
    }

    fn notify(&self, plugin_registered: bool, error: &str) {
        let status = RegistrationStatus { plugin_registered, error: error.to_owned() };
        let notified = self
            .call(async |client| client.registration().notify_registration_status(status).await.map(|_| ()));
        notified.expect("failed to call NotifyRegistrationStatus");
    }
}

/// sidecars.md 1.7 "Socket", "API", "Health"; 1.8 "/healthz"
#[test]
fn driver_is_registered_and_its_health_is_served() {
    let node = Node::new();
    // A killed registrar leaves its socket behind.
    drop(UnixListener::bind(node.socket()).expect("a stale socket"));
    let stale = node.identity().expect("the stale socket");
    let mut sidecar = node.sidecar();
    assert_eq!(sidecar.get("/healthz").0, 500);
    let (status, text) = sidecar.get("/healthz/registration");
    assert_eq!(status, 404, "{text}");
    assert!(text.contains("driver socket"), "{text}");

    let _driver = node.driver("n1");
    node.next_socket(Some(&stale));
    assert_eq!(std::fs::metadata(node.socket()).expect("the socket").mode() & 0o777, 0o600);
    let info = node.info();
    let facts = (info.r#type.as_str(), info.name.as_str(), info.endpoint.as_str());
    assert_eq!(facts, ("CSIPlugin", DRIVER, "/host/csi.sock"));
    assert_eq!(info.supported_versions, ["1.0.0"]);
    assert_eq!(sidecar.get("/healthz"), (200, "ok".to_owned()));
    assert_eq!(sidecar.get("/healthz/registration"), (200, "ok".to_owned()));
    assert_eq!(sidecar.get("/readyz"), (200, "ok".to_owned()));
    assert_eq!(sidecar.get("/nonsense").0, 404);

    node.notify(true, "");
    wait_for("registered", || {
        sidecar.get("/metrics").1.contains("wharf_registrar_registered 1").then_some(())
    });
    let metrics = sidecar.get("/metrics").1;
    let call =
        format!("driver_name=\"{DRIVER}\",method_name=\"/csi.v1.Identity/Probe\",grpc_status_code=\"OK\"");
    assert!(metrics.contains(&call), "{metrics}");
    assert_eq!(sidecar.stop(), Some(0), "{}", sidecar.log());
    assert!(!node.socket().exists(), "the socket was not removed");
}

/// sidecars.md 1.7 "API": NotifyRegistrationStatus(false)
#[test]
fn refused_driver_is_registered_again_with_backoff() {
    let node = Node::new();
    let _driver = node.driver("n1");
    let sidecar = node.sidecar();
    let first = node.next_socket(None);
    node.info();
    node.notify(false, "no such node");
    let text = sidecar.wait_for_status("/healthz/registration", 500);
    assert!(text.contains("no such node"), "{text}");
    assert_eq!(sidecar.get("/healthz").0, 200, "a refusal is not a failure of the driver");
    assert_eq!(sidecar.get("/readyz").0, 500);

    let second = node.next_socket(Some(&first));
    node.info();
    assert_eq!(sidecar.get("/healthz/registration").0, 500, "kubelet has not accepted the driver yet");
    node.notify(false, "still not");
    let refused = Instant::now();
    node.next_socket(Some(&second));
    assert!(refused.elapsed() > Duration::from_millis(1500), "the backoff did not grow");
    node.info();
    node.notify(true, "");
    sidecar.wait_for_status("/healthz/registration", 200);
    assert!(sidecar.get("/metrics").1.contains(r#"wharf_registrar_registrations_total{result="refused"} 2"#));
}

#[test]
fn restarted_driver_is_registered_again_only_if_its_node_info_changed() {
    let node = Node::new();
    let mut driver = node.driver("n1");
    let sidecar = node.sidecar();
    let first = node.next_socket(None);
    node.info();
    node.notify(true, "");
    // The sidecar records the node info that kubelet received.
    let call = "method_name=\"/csi.v1.Node/NodeGetInfo\",grpc_status_code=\"OK\"";
    let wait_for_node_info_calls = |times: usize| {
        let count = format!("_count{{driver_name=\"{DRIVER}\",{call}}} {times}\n");
        wait_for("NodeGetInfo was called", || sidecar.get("/metrics").1.contains(&count).then_some(()));
    };
    wait_for_node_info_calls(1);

    assert_eq!(driver.stop(), Some(0));
    sidecar.wait_for_status("/healthz", 500);
    assert_eq!(sidecar.get("/healthz/registration").0, 200, "a driver that restarts stays registered");
    let mut driver = node.driver("n1");
    sidecar.wait_for_status("/healthz", 200);
    wait_for_node_info_calls(2);
    assert_eq!(node.identity().as_ref(), Some(&first), "an unchanged driver was registered again");

    driver.stop();
    let _driver = node.driver("n2");
    node.next_socket(Some(&first));
    node.info();
    assert!(sidecar.get("/metrics").1.contains(r#"wharf_registrar_sockets_total{reason="node-changed"} 1"#));
}

#[test]
fn removed_socket_or_directory_is_restored() {
    let node = Node::new();
    let _driver = node.driver("n1");
    let sidecar = node.sidecar();
    let first = node.next_socket(None);
    node.info();
    std::fs::remove_file(node.socket()).expect("failed to remove the socket");
    let removed = Instant::now();
    let second = node.next_socket(Some(&first));
    assert!(removed.elapsed() < Duration::from_secs(5), "only the periodic check noticed the removal");
    node.info();

    // The directory itself is removed and created again, as when a node is set up again.
    let directory = node.dir.path().join("registration");
    std::fs::remove_dir_all(&directory).expect("failed to remove the directory");
    sidecar.wait_for_status("/healthz/registration", 404);
    std::fs::create_dir(&directory).expect("failed to create the directory again");
    node.next_socket(Some(&second));
    node.info();
    sidecar.wait_for_status("/healthz/registration", 200);
}

/// sidecars.md 1.7 "Socket": non-socket file → error
#[test]
fn existing_file_that_is_not_a_socket_is_an_error() {
    let node = Node::new();
    std::fs::write(node.socket(), "precious").expect("failed to write the file");
    let _driver = node.driver("n1");
    let mut sidecar = node.sidecar();
    assert_eq!(sidecar.child.wait().expect("failed to wait for the process").code(), Some(1));
    assert!(sidecar.log().contains("is not a socket"), "{}", sidecar.log());
    assert_eq!(std::fs::read_to_string(node.socket()).expect("the file"), "precious");
}

/// In a rolling update, the new sidecar starts before the old one exits.
#[test]
fn newer_sidecar_takes_over_and_older_one_keeps_its_socket() {
    let node = Node::new();
    let _driver = node.driver("n1");
    let mut old = node.sidecar();
    let first = node.next_socket(None);
    let new = node.named_sidecar("new.log");
    let second = node.next_socket(Some(&first));
    node.info();
    assert_eq!(old.get("/healthz/registration").0, 200, "the driver is registered");
    assert_eq!(old.stop(), Some(0));
    assert_eq!(node.identity().as_ref(), Some(&second), "the old sidecar removed the new one's socket");
    assert_eq!(new.get("/healthz/registration").0, 200);
}

/// Driver, registrar, liveness probe and controller roles in one process: all start, and stop in order.
#[test]
fn driver_with_embedded_sidecar_starts_and_stops_together() {
    let node = Node::new();
    let (endpoint, pool, registration) =
        (node.path("csi.sock"), node.path("pool"), node.path("registration"));
    let kubeconfig = node.kubeconfig();
    let flags = [
        "driver",
        "local",
        "--with-sidecar",
        "--create-pool",
        "--node-id=n1",
        "--endpoint",
        &endpoint,
        "--pool",
        &pool,
        "--plugin-registration-path",
        &registration,
        "--kubeconfig",
        &kubeconfig,
        "--http-endpoint=127.0.0.1:0",
    ];
    let mut both = Process::start(Path::new(WHARF), &flags, node.dir.path().join("both.log"));
    node.next_socket(None);
    assert_eq!(node.info().endpoint, endpoint, "kubelet did not get the driver's own socket");
    assert_eq!(both.wait_for_status("/healthz", 200), "ok");
    both.wait_for_status("/readyz", 200);
    assert_eq!(both.get("/debug/attempts").0, 200);
    wait_for("its roles start", || {
        both.log().contains(r#"roles="provisioner,resizer,snapshotter,health-monitor""#).then_some(())
    });
    assert_eq!(both.stop(), Some(0), "{}", both.log());
    assert!(!node.socket().exists() && !Path::new(&endpoint).exists(), "sockets were not removed");

    // A socket that cannot be created ends both: the driver alone would never be used.
    std::fs::write(node.socket(), "precious").expect("failed to write the file");
    let mut both = Process::start(Path::new(WHARF), &flags, node.dir.path().join("failed.log"));
    assert_eq!(both.child.wait().expect("failed to wait for the process").code(), Some(1));
    assert!(both.log().contains("is not a socket") && !Path::new(&endpoint).exists(), "{}", both.log());
}

/// sidecars.md 1.0 "Connect", "Readiness": unlike upstream, the process does not exit; "HTTP"
#[test]
fn controllers_wait_for_the_driver_and_the_api_server() {
    let node = Node::new();
    let (socket, kubeconfig) = (node.path("csi.sock"), format!("--kubeconfig={}", node.kubeconfig()));
    let address = format!("--csi-address={socket}");
    let flags = ["sidecar", &address, &kubeconfig, "--http-endpoint=127.0.0.1:0"];
    let mut sidecar = Process::start(Path::new(WHARF), &flags, node.dir.path().join("all.log"));
    assert_eq!(sidecar.get("/readyz").0, 500, "the driver has not reported its capabilities yet");
    let _driver = node.driver("n1");
    sidecar.wait_for_status("/readyz", 200);
    let chosen = r#"roles="provisioner,resizer,snapshotter,health-monitor""#;
    wait_for("its roles start", || sidecar.log().contains(chosen).then_some(()));

    for (name, role) in [
        ("csi-provisioner", "provisioner"),
        ("csi-attacher", "attacher"),
        ("csi-resizer", "resizer"),
        ("csi-snapshotter", "snapshotter"),
    ] {
        let program = node.dir.path().join(name);
        symlink(WHARF, &program).expect("failed to create the link");
        let flags = [
            &*address,
            &kubeconfig,
            "-v=5",
            "--leader-election",
            "--http-endpoint=127.0.0.1:0",
            "--connection-timeout=1s",
        ];
        let mut replacement = Process::start(&program, &flags, node.dir.path().join(format!("{name}.log")));
        replacement.wait_for_status("/readyz", 200);
        let leases = (200, format!("{role}: standing by\n"));
        assert_eq!(replacement.get("/healthz/leader-election"), leases);
        assert_eq!(replacement.get("/healthz/registration").0, 404);
        let log = replacement.log();
        assert!(log.contains(&format!("roles=\"{role}\"")), "{log}");
        assert!(log.contains("flag -connection-timeout is ignored"), "{log}");
        assert_eq!(replacement.stop(), Some(0), "{}", replacement.log());
    }
    assert_eq!(sidecar.stop(), Some(0), "{}", sidecar.log());
}

/// sidecars.md 1.7 "Health", 1.8 "/healthz": 500 on error
#[test]
fn upstream_program_names_and_flags_are_accepted() {
    let node = Node::new();
    let driver = node.driver("n1");
    let called = |name: &str, flags: &[&str]| {
        let program = node.dir.path().join(name);
        symlink(WHARF, &program).expect("failed to create the link");
        Process::start(&program, flags, node.dir.path().join(format!("{name}.log")))
    };
    let address = format!("--csi-address={}", node.path("csi.sock"));
    let directory = format!("-plugin-registration-path={}", node.path("registration"));
    let flags = ["-v=2", "--http-endpoint=127.0.0.1:0", "--kubelet-registration-path=/k", "--enable-pprof"];
    let mut registrar = called("csi-node-driver-registrar", &[&flags[..], &[&address, &directory]].concat());
    node.next_socket(None);
    assert_eq!(node.info().endpoint, "/k");
    assert_eq!(registrar.get("/healthz"), (200, "ok".to_owned()));
    assert!(registrar.log().contains("flag -enable-pprof is ignored"), "{}", registrar.log());
    assert_eq!(registrar.stop(), Some(0));
    assert!(!node.socket().exists());

    let flags = ["--http-endpoint=127.0.0.1:0", "--probe-timeout=300ms", &address];
    let mut probe = called("livenessprobe", &flags);
    assert_eq!(probe.get("/healthz"), (200, "ok".to_owned()));
    driver.signal("-STOP");
    let (status, text) = probe.get("/healthz");
    driver.signal("-CONT");
    assert_eq!(status, 500);
    assert!(text.starts_with("DeadlineExceeded"), "{text}");
    probe.wait_for_status("/healthz", 200);
    assert!(probe.get("/metrics").1.contains("csi_sidecar_operations_seconds_bucket"));
    assert_eq!(probe.stop(), Some(0));

    let mode = ["--kubelet-registration-path=/k", "--mode=kubelet-registration-probe"];
    assert_eq!(
        called("node-driver-registrar", &mode).child.wait().expect("failed to wait for the process").code(),
        Some(0)
    );
    std::fs::remove_file(node.path("livenessprobe")).expect("failed to remove the link");
    let mut invalid = called("livenessprobe", &["--nonsense=1"]);
    assert_eq!(invalid.child.wait().expect("failed to wait for the process").code(), Some(2));
    assert_eq!(invalid.log(), "livenessprobe: unknown flag \"--nonsense=1\"; -help lists all flags\n");
}
