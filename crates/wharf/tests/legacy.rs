//! Runs the legacy driver-registrar as a process in both of its modes, with a real driver and a fake API server. The
//! fake server stores one CSIDriver and one Node. A CSIDriver can be created and deleted but not read, as under the
//! RBAC rules of that time.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const WHARF: &str = env!("CARGO_BIN_EXE_wharf");
const DRIVER: &str = "local.csi.wharf.dev";
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

#[derive(Default)]
struct Objects {
    driver: Option<Value>,
    node: Value,
    /// How many CSIDrivers were created.
    created: u32,
}

/// The fake API server. Its threads run until the test process exits.
#[derive(Clone, Default)]
struct Server {
    objects: Arc<Mutex<Objects>>,
}

impl Server {
    fn start(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("failed to listen");
        let port = listener.local_addr().expect("an address").port();
        let server = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        port
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let (mut request, mut length) = (String::new(), 0);
        reader.read_line(&mut request).expect("a request");
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).expect("a header");
            match header.to_ascii_lowercase().trim().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().expect("a length"),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let words: Vec<&str> = request.split_whitespace().collect();
        let path = words[1].split('?').next().unwrap_or_default();
        let (status, response) = self.respond(words[0], path, &body);
        let response = response.to_string();
        let head = format!("HTTP/1.1 {status} x\r\ncontent-type: application/json\r\nconnection: close\r\n");
        // The client may have disconnected.
        let _ = write!(reader.into_inner(), "{head}content-length: {}\r\n\r\n{response}", response.len());
    }

    fn respond(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let refuse = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": reason}),
            )
        };
        let drivers = "/apis/storage.k8s.io/v1/csidrivers";
        let mut objects = self.objects.lock().expect("the lock is not poisoned");
        match (method, path) {
            ("POST", path) if path == drivers && objects.driver.is_some() => refuse(409, "AlreadyExists"),
            ("POST", path) if path == drivers => {
                objects.created += 1;
                let mut driver = body.clone();
                driver["metadata"]["uid"] = json!(format!("u{}", objects.created));
                objects.driver = Some(driver.clone());
                (201, driver)
            }
            ("DELETE", path) if path == format!("{drivers}/{DRIVER}") => match &objects.driver {
                Some(driver) if driver["metadata"]["uid"] == body["preconditions"]["uid"] => {
                    objects.driver = None;
                    (200, json!({"kind": "Status", "status": "Success"}))
                }
                Some(_) => refuse(409, "Conflict"),
                None => refuse(404, "NotFound"),
            },
            ("GET", "/api/v1/nodes/n1") => (200, objects.node.clone()),
            ("PATCH", "/api/v1/nodes/n1") => {
                assert_eq!(body["metadata"]["resourceVersion"], objects.node["metadata"]["resourceVersion"]);
                let annotation = body["metadata"]["annotations"][NODE_ID].clone();
                objects.node["metadata"]["annotations"][NODE_ID] = annotation;
                objects.node["metadata"]["resourceVersion"] = json!("2");
                (200, objects.node.clone())
            }
            _ => refuse(403, "Forbidden"),
        }
    }

    fn wait_for<T>(&self, what: &str, found: impl Fn(&Objects) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = found(&self.objects.lock().expect("the lock is not poisoned")) {
                return found;
            }
            assert!(Instant::now() < deadline, "timed out waiting: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A child process that is killed at the end of the test.
struct Process(Child);

impl Process {
    fn start(program: &Path, arguments: &[&str], log: &Path) -> Self {
        let log = std::fs::File::create(log).expect("failed to create the log");
        let mut command = Command::new(program);
        command.args(arguments).env("KUBE_NODE_NAME", "n1").env_remove("RUST_LOG");
        Self(command.stdin(Stdio::null()).stderr(log).spawn().expect("failed to start the process"))
    }

    /// Sends a signal and returns the exit status.
    fn stop(&mut self, signal: &str) -> Option<i32> {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(sent.expect("failed to run kill").success());
        self.0.wait().expect("failed to wait for the process").code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has already exited, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node with a running driver, on which tests start a registrar.
struct Node {
    dir: TempDir,
    server: Server,
    _driver: Process,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::create_dir(path("pool")).expect("a pool");
        symlink(WHARF, path("driver-registrar")).expect("failed to create the link");
        let flags = [
            "driver",
            "local",
            "--create-pool",
            "--node-id=id-1",
            "--endpoint",
            &path("csi.sock"),
            "--pool",
            &path("pool"),
        ];
        let driver = Process::start(Path::new(WHARF), &flags, &dir.path().join("driver.log"));
        let server = Server::default();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{}", server.start())}}],
            "users": [{"name": "u", "user": {}}],
        });
        std::fs::write(path("kubeconfig"), config.to_string()).expect("failed to write the file");
        Self { dir, server, _driver: driver }
    }

    fn registrar(&self, flags: &[&str]) -> Process {
        let path = |name: &str| self.dir.path().join(name);
        let own = [
            format!("--csi-address={}", path("csi.sock").display()),
            format!("--kubeconfig={}", path("kubeconfig").display()),
        ];
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        Process::start(&path("driver-registrar"), &[&own, flags].concat(), &path("registrar.log"))
    }
}

/// sidecars.md 1.7, legacy driver-registrar: `kubernetes-register`
#[test]
fn csi_driver_object_is_created_and_deleted_only_on_sigint() {
    let node = Node::new();
    let exists = |objects: &Objects| objects.driver.clone();
    let mut registrar = node.registrar(&["--mode=kubernetes-register", "--pod-info-mount-version=v1"]);
    let driver = node.server.wait_for("CSIDriver is created", exists);
    assert_eq!(driver["metadata"]["name"], DRIVER);
    assert_eq!(driver["spec"], json!({"attachRequired": false, "podInfoOnMount": true}));
    assert_eq!(registrar.stop("-TERM"), Some(0));
    node.server.wait_for("CSIDriver remains", exists);

    node.server.objects.lock().expect("the lock is not poisoned").driver = None;
    let mut registrar = node.registrar(&["--mode=kubernetes-register"]);
    node.server.wait_for("CSIDriver is created again", exists);
    assert_eq!(registrar.stop("-INT"), Some(0));
    let objects = node.server.objects.lock().expect("the lock is not poisoned");
    assert_eq!((&objects.driver, objects.created), (&None, 2));
}

/// sidecars.md 1.7, legacy driver-registrar: `node-register` without a socket
#[test]
fn node_id_annotation_keeps_entries_of_other_drivers() {
    let node = Node::new();
    node.server.objects.lock().expect("the lock is not poisoned").node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "uid": "u", "resourceVersion": "1", "annotations": {NODE_ID: r#"{"other":"x"}"#}},
    });
    let annotation = |objects: &Objects| objects.node["metadata"]["annotations"][NODE_ID].clone();
    let mut registrar = node.registrar(&["--mode=node-register"]);
    let expected = json!(r#"{"local.csi.wharf.dev":"id-1","other":"x"}"#);
    node.server.wait_for("annotation is written", |objects| (annotation(objects) == expected).then_some(()));
    assert_eq!(registrar.stop("-INT"), Some(0));
    assert_eq!(
        annotation(&node.server.objects.lock().expect("the lock is not poisoned")),
        json!(r#"{"other":"x"}"#)
    );
}
