//! A simulated machine for one test: namespaces, a data directory, and `wharf up` in them. The test can kill and
//! restart `wharf up`, or reboot the machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use wharf_linux::{BlockDevices as _, Linux, MountTable};
use wharf_testkit::{ApiClient, TestPool, built_program, free_address};

use crate::namespaces::{NamespacedProcess, Namespaces};

pub(crate) const NODE: &str = "node-1";
pub(crate) const NAMESPACE: &str = "default";
/// Not `/tmp`: containers have their own, so files there would be hidden from pods for that reason alone.
pub(crate) const TEMP_DIR: &str = "/var/tmp";
/// The timeout of each wait, generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A simulated machine. Fields are dropped in this order.
pub(crate) struct Machine {
    up: NamespacedProcess,
    /// `None` only while the machine is off.
    namespaces: Option<Namespaces>,
    server: ApiClient,
    args: Vec<String>,
    /// The panics to inject (`WHARF_FAULT`); empty for none.
    faults: String,
    boots: u32,
    data: PathBuf,
    dir: TempDir,
    /// A separate disk for the data directory, if any.
    _disk: Option<TestPool>,
}

impl Machine {
    /// Starts `wharf up` with a pool of 4 GiB and waits until it is ready.
    pub(crate) fn new() -> Self {
        Self::with(&["--pool-size", "4Gi"])
    }

    /// Starts `wharf up` with other arguments.
    pub(crate) fn with(args: &[&str]) -> Self {
        Self::on(None, args)
    }

    /// Starts `wharf up` with injected panics.
    pub(crate) fn with_faults(faults: &[&str]) -> Self {
        Self::start_up(None, &["--pool-size", "4Gi"], faults.join(","))
    }

    /// Starts `wharf up` with the data directory on a separate disk.
    pub(crate) fn on(disk: Option<TestPool>, args: &[&str]) -> Self {
        Self::start_up(disk, args, String::new())
    }

    fn start_up(disk: Option<TestPool>, args: &[&str], faults: String) -> Self {
        let dir = tempfile::Builder::new().prefix("wharf-up-").tempdir_in(TEMP_DIR).unwrap();
        let around = disk.as_ref().map_or(dir.path(), TestPool::path);
        let data = around.canonicalize().unwrap().join("data");
        fs::create_dir(&data).unwrap();
        let mut all = ["up", "--node-name", NODE].map(str::to_owned).to_vec();
        all.extend(["--data-dir".to_owned(), data.display().to_string()]);
        if !args.contains(&"--listen") {
            all.extend(["--listen".to_owned(), free_address()]);
        }
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let namespaces = boot(dir.path(), 1);
        let up = start(&namespaces, &all, &faults, dir.path());
        let server = connect(&data, &up);
        let namespaces = Some(namespaces);
        let mut machine =
            Self { up, namespaces, server, args: all, faults, boots: 1, data, dir, _disk: disk };
        machine.wait_until_ready();
        machine
    }

    /// Waits until there are StorageClasses and a ready node.
    pub(crate) fn wait_until_ready(&mut self) {
        self.wait_until("wharf up is ready", |machine| {
            let node = machine.get(&format!("node/{NODE}")).ok_or("the node does not exist")?;
            let is = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            let conditions = node["status"]["conditions"].as_array();
            let ready = conditions.is_some_and(|all| all.iter().any(is));
            if ready { Ok(()) } else { Err(node["status"]["conditions"].to_string()) }
        });
    }

    /// The data directory.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// A directory next to the data directory; it survives reboots.
    pub(crate) fn work_dir(&self) -> &Path {
        self.dir.path()
    }

    /// A path inside the machine's mount namespace.
    pub(crate) fn path_in_machine(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.namespaces().first()));
        root.join(path.strip_prefix("/").unwrap())
    }

    fn namespaces(&self) -> &Namespaces {
        self.namespaces.as_ref().expect("the machine is on")
    }

    /// Kills `wharf up` with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.up.kill();
    }

    /// Sends SIGTERM to `wharf up`; it must exit cleanly.
    pub(crate) fn stop(&mut self) {
        self.up.stop();
    }

    /// Kills `wharf up` with SIGKILL and restarts it without waiting.
    pub(crate) fn restart(&mut self) {
        self.up.restart();
    }

    /// Reboots: no process, mount or loop device is left, and the disk keeps its content. `while_off` runs while
    /// the machine is off.
    pub(crate) fn reboot(&mut self, while_off: impl FnOnce(&Self)) {
        self.up.kill();
        self.namespaces = None;
        release_devices(&self.data);
        while_off(self);
        self.boots += 1;
        let namespaces = boot(self.dir.path(), self.boots);
        self.up = start(&namespaces, &self.args, &self.faults, self.dir.path());
        self.namespaces = Some(namespaces);
    }

    /// Starts another program on the machine.
    pub(crate) fn start(&self, program: &str, args: &[&str], log: &str) -> NamespacedProcess {
        let env = [("RUST_LOG", "info,wharf_sidecar=debug")];
        self.namespaces().start(&built_program(program), args, &env, &self.dir.path().join(log))
    }

    /// Runs a command on the machine and returns its output.
    pub(crate) fn run(&self, command: &[&str]) -> String {
        run(self.namespaces(), command)
    }

    /// The log of `wharf up`, across restarts.
    pub(crate) fn log(&self) -> String {
        self.up.log()
    }

    /// Whether `wharf up` is running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.up.is_running()
    }

    /// Waits until `wharf up` has exited. It runs under nsenter, which exits a moment after it.
    pub(crate) fn wait_until_stopped(&mut self) {
        for _ in 0..1000 {
            if !self.up.is_running() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("wharf up is still running");
    }

    /// An object, if it exists and the API responds.
    pub(crate) fn get(&self, object: &str) -> Option<Value> {
        self.server.get(NAMESPACE, object).ok().flatten()
    }

    /// An object, `None` if it does not exist, or the error if the API does not respond.
    pub(crate) fn try_get(&self, object: &str) -> Result<Option<Value>, String> {
        self.server.get(NAMESPACE, object)
    }

    /// The metrics of the API server.
    pub(crate) fn api_metrics(&self) -> Result<String, String> {
        self.server.text("/metrics")
    }

    /// All objects of a kind; retries until the API responds.
    pub(crate) fn list(&mut self, kind: &str) -> Vec<Value> {
        self.retry(kind, |server| server.list(NAMESPACE, kind, ""))
    }

    /// All objects of a kind, or the error if the API does not respond.
    pub(crate) fn try_list(&self, kind: &str) -> Result<Vec<Value>, String> {
        self.server.list(NAMESPACE, kind, "")
    }

    /// Creates an object, with retries. A failed request may have created it.
    pub(crate) fn create(&mut self, object: &Value) -> Value {
        let what = format!("create {} {}", object["kind"], object["metadata"]["name"]);
        self.retry(&what, |server| match server.create(NAMESPACE, object) {
            Err(error) if error.contains("AlreadyExists") || error.contains("already exists") => {
                Ok(Value::Null)
            }
            made => made,
        })
    }

    /// Creates an object, or returns the error.
    pub(crate) fn try_create(&self, object: &Value) -> Result<Value, String> {
        self.server.create(NAMESPACE, object)
    }

    /// Patches an object, with retries.
    pub(crate) fn patch(&mut self, object: &str, patch: &Value) {
        self.retry(object, |server| server.patch(NAMESPACE, object, false, patch));
    }

    /// Patches an object, or returns the error.
    pub(crate) fn try_patch(&self, object: &str, patch: &Value) -> Result<(), String> {
        self.server.patch(NAMESPACE, object, false, patch)
    }

    /// Deletes an object; a missing object is success.
    pub(crate) fn delete(&mut self, object: &str) {
        self.retry(object, |server| match server.delete(NAMESPACE, object) {
            Err(error) if server.get(NAMESPACE, object)?.is_some() => Err(error),
            _ => Ok(()),
        });
    }

    /// The messages of an object's events with this reason, or the error if the API does not respond.
    pub(crate) fn try_events(&self, name: &str, reason: &str) -> Result<Vec<String>, String> {
        let selector = format!("involvedObject.name={name},reason={reason}");
        let events = self.server.events(NAMESPACE, &selector)?;
        Ok(events.iter().filter_map(|event| event["message"].as_str().map(str::to_owned)).collect())
    }

    /// The API's port.
    pub(crate) fn port(&self) -> String {
        let address = self.args.iter().skip_while(|arg| *arg != "--listen").nth(1);
        address.and_then(|address| address.rsplit(':').next()).unwrap().to_owned()
    }

    /// Retries a request until it succeeds.
    fn retry<T>(&mut self, what: &str, request: impl Fn(&ApiClient) -> Result<T, String>) -> T {
        let until = Instant::now() + TIMEOUT;
        loop {
            match request(&self.server) {
                Ok(answer) => return answer,
                Err(error) => assert!(Instant::now() < until, "{what}: timed out after {TIMEOUT:?}: {error}"),
            }
            assert!(self.up.is_running(), "{what}: wharf up exited");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Calls `check` until it succeeds.
    pub(crate) fn wait_until<T>(&mut self, what: &str, check: impl Fn(&Self) -> Result<T, String>) -> T {
        let until = Instant::now() + TIMEOUT;
        loop {
            match check(self) {
                Ok(seen) => return seen,
                Err(seen) => assert!(Instant::now() < until, "{what}: timed out after {TIMEOUT:?}: {seen}"),
            }
            assert!(self.up.is_running(), "{what}: wharf up exited");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The mount points beneath kubelet's directory, in their order.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let text = fs::read(format!("/proc/{}/mountinfo", self.namespaces().first())).unwrap();
        let table = MountTable::parse(&text).unwrap();
        let ours = table.mounts().iter().map(|mount| mount.mount_point.clone());
        ours.filter(|path| path.starts_with(self.data.join("kubelet"))).collect()
    }

    /// The loop devices of volumes.
    pub(crate) fn devices(&self) -> BTreeSet<PathBuf> {
        let (pool, volumes) = devices(&self.data);
        assert!(pool.len() <= 1, "the pool's disk has several loop devices: {pool:?}");
        volumes
    }

    /// The names in a directory of the data directory, in the machine's mount namespace.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        names(&self.path_in_machine(&self.data.join(directory)))
    }

    /// The output of a pod's containers, across restarts.
    pub(crate) fn container_logs(&self, pod: &str) -> String {
        let logs = self.data.join("logs");
        let of_pod = |name: &String| name.starts_with(&format!("{NAMESPACE}_{pod}_"));
        let mut output = String::new();
        for directory in names(&logs).into_iter().filter(of_pod) {
            let containers = names(&logs.join(&directory)).into_iter();
            let lives = containers.flat_map(|container| {
                let lives = logs.join(&directory).join(container);
                names(&lives).into_iter().map(move |life| lives.join(life))
            });
            for life in lives {
                let log = fs::read_to_string(life).unwrap_or_default();
                for line in log.lines() {
                    // Time, stream, full or partial line.
                    output += line.splitn(4, ' ').nth(3).unwrap_or_default();
                    output.push('\n');
                }
            }
        }
        output
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.up.kill();
        // The mounts end with the namespaces.
        self.namespaces = None;
        release_devices(&self.data);
    }
}

/// Detaches the loop devices of a machine that is off.
fn release_devices(data: &Path) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let (pool, volumes) = devices(data);
        if pool.is_empty() && volumes.is_empty() {
            return;
        }
        // Volumes first: their images keep the pool's disk busy. The kernel releases mounts shortly after their
        // namespace ends.
        let both = volumes.iter().chain(&pool);
        let refused: Vec<_> =
            both.filter_map(|device| Linux::new().loop_detach(device, None).err()).collect();
        if Instant::now() > until {
            eprintln!("failed to detach loop devices: {refused:?}");
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn run(namespaces: &Namespaces, command: &[&str]) -> String {
    let output = Command::new("nsenter").args(namespaces.enter()).args(command).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn boot_file(dir: &Path, number: u32) -> PathBuf {
    let file = dir.join("boot-id");
    fs::write(&file, format!("00000000-0000-4000-8000-{number:012}\n")).unwrap();
    file
}

fn boot(dir: &Path, number: u32) -> Namespaces {
    Namespaces::new(&boot_file(dir, number), &dir.join("boot.log"))
}

fn start(namespaces: &Namespaces, args: &[String], faults: &str, dir: &Path) -> NamespacedProcess {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let level = "info,wharf_node=debug,wharf_controllers=debug,wharf_sidecar=debug";
    let env = [("RUST_LOG", level), ("WHARF_FAULT", faults)];
    namespaces.start(&built_program("wharf"), &args, &env, &dir.join("up.log"))
}

/// Connects as soon as the kubeconfig exists.
fn connect(data: &Path, up: &NamespacedProcess) -> ApiClient {
    let kubeconfig = data.join("kubeconfig");
    let until = Instant::now() + TIMEOUT;
    loop {
        if kubeconfig.exists()
            && let Ok(server) = ApiClient::connect(&kubeconfig)
        {
            return server;
        }
        assert!(Instant::now() < until, "wharf up wrote no kubeconfig:\n{}", up.log());
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The loop devices of the pool's disk, and those of its volumes.
fn devices(data: &Path) -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
    let Ok(image) = fs::metadata(data.join("pool.img")) else { return Default::default() };
    let all = Linux::new().loop_devices().unwrap();
    let of = |device: u64, inode: Option<u64>| -> BTreeSet<PathBuf> {
        let is = |backing: &wharf_linux::FileId| {
            backing.device == device && inode.is_none_or(|inode| inode == backing.inode)
        };
        all.iter().filter(|device| is(&device.backing)).map(|device| device.path.clone()).collect()
    };
    let pool = of(image.dev(), Some(image.ino()));
    let within = pool.iter().filter_map(|device| Some(fs::metadata(device).ok()?.rdev()));
    let volumes = within.flat_map(|device| of(device, None)).collect();
    (pool, volumes)
}
