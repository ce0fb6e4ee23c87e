//! `wharf driver local` as a process, used through `wharf csi` and `wharf local`.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A driver with its own pool; killed at the end of the test.
struct Driver {
    dir: TempDir,
    child: Child,
}

impl Driver {
    fn start() -> Self {
        // In memory: a pool on a disk that is 95 percent full provisions nothing.
        let dir = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .expect("failed to create a directory");
        std::fs::create_dir(dir.path().join("pool")).expect("failed to create a directory for the pool");
        let child = Command::new(env!("CARGO_BIN_EXE_wharf"))
            .args(["driver", "local", "--create-pool", "--node-id", "n1", "--log-format", "json"])
            .arg("--endpoint")
            .arg(dir.path().join("csi.sock"))
            .arg("--pool")
            .arg(dir.path().join("pool"))
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("log")).expect("a log"))
            .spawn()
            .expect("failed to start the driver");
        let driver = Self { dir, child };
        driver.wait_until("the driver listens", || driver.socket().exists());
        driver
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("csi.sock")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn wait_until(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < deadline, "timed out waiting: {what}; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn csi(&self, words: &[&str]) -> Output {
        wharf(&[&["csi", "--endpoint", &self.path("csi.sock"), "--output", "json"], words].concat())
    }

    fn local(&self, words: &[&str]) -> Output {
        wharf(&[words, &["--pool", &self.path("pool"), "--output", "json"]].concat())
    }

    /// Sends the signal and returns the exit status.
    fn stop(&mut self, signal: &str) -> Option<i32> {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("failed to run kill").success());
        self.child.wait().expect("failed to wait for the driver").code()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Fails if the process has already exited, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wharf(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wharf"))
        .args(words)
        .env_remove("RUST_LOG")
        .output()
        .expect("failed to start wharf")
}

fn json(output: Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON on stdout")
}

#[test]
fn pool_is_served_inspected_and_purged() {
    let mut driver = Driver::start();
    let info = json(driver.csi(&["identity", "info"]));
    assert_eq!(info["name"], "local.csi.wharf.dev");
    let created = json(driver.csi(&["volume", "create", "data", "--size", "64Mi"]));
    assert_eq!(created["capacity_bytes"], 64 << 20);
    assert_eq!(created["accessible_topology"][0]["segments"]["local.csi.wharf.dev/node"], "n1");
    let id = created["volume_id"].as_str().expect("an id").to_owned();
    let listed = json(driver.csi(&["volume", "list"]));
    assert_eq!(listed["entries"][0]["volume"]["volume_id"], id.as_str());

    // Reading needs no lock; changing does.
    let contents = json(driver.local(&["local", "list"]));
    assert_eq!(contents["volumes"][0]["name"], "data");
    // Ignore findings about the free space of this machine's disk.
    let mut findings = json(driver.local(&["local", "check"]))["findings"].take();
    findings.as_array_mut().expect("findings").retain(|finding| finding["object"] != "pool");
    assert_eq!(findings, Value::Array(vec![]));
    let refused = driver.local(&["local", "purge"]);
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains("in use"), "{stderr}");

    let conflicting = driver.csi(&["volume", "create", "data", "--size", "128Mi"]);
    assert_eq!(conflicting.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&conflicting.stderr).into_owned();
    assert!(stderr.starts_with("ALREADY_EXISTS: "), "{stderr}");

    assert_eq!(driver.stop("-TERM"), Some(0), "{}", driver.log());
    assert!(!driver.socket().exists(), "the socket was not removed");
    assert_eq!(json(driver.local(&["local", "purge"]))["removed"], Value::Array(vec![]));
    // A missing image is an error, which the exit status reports, too.
    std::fs::remove_file(driver.dir.path().join("pool/volumes").join(&id).join("image"))
        .expect("failed to remove");
    let check = driver.local(&["local", "check"]);
    assert_eq!(check.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&check.stdout).expect("JSON on stdout");
    let findings = found["findings"].as_array().expect("findings");
    assert!(findings.iter().any(|finding| finding["object"] == id.as_str()), "{found}");
}

#[test]
fn json_log_lines_parse_and_sigint_stops_the_driver() {
    let mut driver = Driver::start();
    assert_eq!(driver.stop("-INT"), Some(0), "{}", driver.log());
    let log = driver.log();
    for line in log.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    assert!(log.contains("SIGINT"), "{log}");
}

#[test]
fn missing_pool_directory_is_an_error_and_not_created() {
    let dir = tempfile::tempdir().expect("failed to create a directory");
    let missing = dir.path().join("pool");
    let socket = dir.path().join("csi.sock").display().to_string();
    let pool = missing.display().to_string();
    let output = wharf(&["driver", "local", "--node-id", "n1", "--endpoint", &socket, "--pool", &pool]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("does not exist"));
    assert!(!missing.exists() && !Path::new(&socket).exists());
}

/// N-H3
#[test]
fn pool_is_created_by_init_and_not_by_the_driver() {
    let dir = tempfile::tempdir().expect("failed to create a directory");
    let pool = dir.path().display().to_string();
    let output =
        wharf(&["driver", "local", "--node-id", "n1", "--endpoint", "/nowhere/socket", "--pool", &pool]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains(&format!("wharf local init --pool {pool}")), "{message}");
    assert!(std::fs::read_dir(dir.path()).is_ok_and(|mut names| names.next().is_none()));
    let id = || json(wharf(&["local", "init", "--pool", &pool, "--output", "json"]))["poolId"].take();
    let created = id();
    assert!(created.is_string(), "{created}");
    assert_eq!(id(), created);
}
