//! A machine for one test: namespaces, a data directory, and `wharf up` in them, which may be killed and started again,
//! and the machine with it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use wharf_linux::{Devices as _, Linux, MountTable};
use wharf_testkit::{Server, TestPool, built, free_address};

use crate::inside::{Inside, Namespaces};

pub(crate) const NODE: &str = "node-1";
pub(crate) const NAMESPACE: &str = "default";
/// Not in `/tmp`, which is a container's own: what is there would be hidden from pods by that alone.
pub(crate) const PLACE: &str = "/var/tmp";
/// How long anything may take, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(5);

/// See the module. The order is that in which its parts go.
pub(crate) struct Machine {
    up: Inside,
    /// None only while the machine is off.
    namespaces: Option<Namespaces>,
    server: Server,
    args: Vec<String>,
    boots: u32,
    data: PathBuf,
    dir: TempDir,
    /// What the data directory is on, if that is not the disk that all have.
    _disk: Option<TestPool>,
}

impl Machine {
    /// Starts `wharf up` with a pool of 4 GiB, and waits until it can be worked with.
    pub(crate) fn new() -> Self {
        Self::with(&["--pool-size", "4Gi"])
    }

    /// The same with other arguments.
    pub(crate) fn with(args: &[&str]) -> Self {
        Self::on(None, args)
    }

    /// The same with the data directory on a disk of its own.
    pub(crate) fn on(disk: Option<TestPool>, args: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("wharf-up-").tempdir_in(PLACE).unwrap();
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
        let up = start(&namespaces, &all, dir.path());
        let server = connect(&data, &up);
        let namespaces = Some(namespaces);
        let mut machine = Self { up, namespaces, server, args: all, boots: 1, data, dir, _disk: disk };
        machine.ready();
        machine
    }

    /// Waits until it can be worked with: there are classes, and a node that is ready.
    pub(crate) fn ready(&mut self) {
        self.until("wharf up is ready", |machine| {
            let node = machine.get(&format!("node/{NODE}")).ok_or("there is no node")?;
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

    /// A directory beside it, which is there from the machine's first start to its last.
    pub(crate) fn beside(&self) -> &Path {
        self.dir.path()
    }

    /// A path as the machine sees it: with its mounts.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.namespaces().first()));
        root.join(path.strip_prefix("/").unwrap())
    }

    fn namespaces(&self) -> &Namespaces {
        self.namespaces.as_ref().expect("the machine is on")
    }

    /// kill -9 of `wharf up`.
    pub(crate) fn kill(&mut self) {
        self.up.kill();
    }

    /// SIGTERM of `wharf up`; it has to end well.
    pub(crate) fn stop(&mut self) {
        self.up.stop();
    }

    /// kill -9, and the next start; it is not waited for.
    pub(crate) fn restart(&mut self) {
        self.up.restart();
    }

    /// Power off and on: no process is left, nothing is mounted, no loop device is there; what is on disk is.
    /// Meanwhile something is done to the disk.
    pub(crate) fn reboot(&mut self, meanwhile: impl FnOnce(&Self)) {
        self.up.kill();
        self.namespaces = None;
        release_devices(&self.data);
        meanwhile(self);
        self.boots += 1;
        let namespaces = boot(self.dir.path(), self.boots);
        self.up = start(&namespaces, &self.args, self.dir.path());
        self.namespaces = Some(namespaces);
    }

    /// Starts another program on the machine.
    pub(crate) fn start(&self, program: &str, args: &[&str], log: &str) -> Inside {
        let env = [("RUST_LOG", "info,wharf_sidecar=debug")];
        self.namespaces().start(&built(program), args, &env, &self.dir.path().join(log))
    }

    /// Runs a command on the machine to its end, and gives what it said.
    pub(crate) fn run(&self, command: &[&str]) -> String {
        run(self.namespaces(), command)
    }

    /// What `wharf up` has logged in all its lives.
    pub(crate) fn log(&self) -> String {
        self.up.log()
    }

    /// Whether it runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.up.runs()
    }

    /// An object, if it is there and somebody answers.
    pub(crate) fn get(&self, object: &str) -> Option<Value> {
        self.server.get(NAMESPACE, object).ok().flatten()
    }

    /// An object, or that there is none; or why nobody answers.
    pub(crate) fn try_get(&self, object: &str) -> Result<Option<Value>, String> {
        self.server.get(NAMESPACE, object)
    }

    /// All objects of a kind. Somebody has to answer.
    pub(crate) fn list(&mut self, kind: &str) -> Vec<Value> {
        self.insist(kind, |server| server.list(NAMESPACE, kind, ""))
    }

    /// All objects of a kind, or why nobody answers.
    pub(crate) fn try_list(&self, kind: &str) -> Result<Vec<Value>, String> {
        self.server.list(NAMESPACE, kind, "")
    }

    /// Makes an object. It may have been made although nobody heard of it.
    pub(crate) fn create(&mut self, object: &Value) -> Value {
        let what = format!("create {} {}", object["kind"], object["metadata"]["name"]);
        self.insist(&what, |server| match server.create(NAMESPACE, object) {
            Err(error) if error.contains("AlreadyExists") || error.contains("already exists") => {
                Ok(Value::Null)
            }
            made => made,
        })
    }

    /// Makes an object, or hears why not.
    pub(crate) fn try_create(&self, object: &Value) -> Result<Value, String> {
        self.server.create(NAMESPACE, object)
    }

    /// Changes an object.
    pub(crate) fn patch(&mut self, object: &str, patch: &Value) {
        self.insist(object, |server| server.patch(NAMESPACE, object, false, patch));
    }

    /// Changes an object, or hears why not.
    pub(crate) fn try_patch(&self, object: &str, patch: &Value) -> Result<(), String> {
        self.server.patch(NAMESPACE, object, false, patch)
    }

    /// Asks for an object's deletion; gone already is as good.
    pub(crate) fn delete(&mut self, object: &str) {
        self.insist(object, |server| match server.delete(NAMESPACE, object) {
            Err(error) if server.get(NAMESPACE, object)?.is_some() => Err(error),
            _ => Ok(()),
        });
    }

    /// The messages of an object's events with this reason, or why nobody answers.
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

    /// Again and again, until somebody hears it.
    fn insist<T>(&mut self, what: &str, ask: impl Fn(&Server) -> Result<T, String>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            match ask(&self.server) {
                Ok(answer) => return answer,
                Err(error) => assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}: {error}"),
            }
            assert!(self.up.runs(), "{what}: wharf up has ended");
            std::thread::sleep(LOOK);
        }
    }

    /// Looks until it is so.
    pub(crate) fn until<T>(&mut self, what: &str, look: impl Fn(&Self) -> Result<T, String>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            match look(self) {
                Ok(seen) => return seen,
                Err(seen) => assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}: {seen}"),
            }
            assert!(self.up.runs(), "{what}: wharf up has ended");
            std::thread::sleep(LOOK);
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
        assert!(pool.len() <= 1, "the pool's disk is attached twice: {pool:?}");
        volumes
    }

    /// Names in a directory of the data directory, as the machine sees it.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        names(&self.seen(&self.data.join(directory)))
    }

    /// What a pod's containers said, in all their lives.
    pub(crate) fn said(&self, pod: &str) -> String {
        let logs = self.data.join("logs");
        let of_pod = |name: &String| name.starts_with(&format!("{NAMESPACE}_{pod}_"));
        let mut said = String::new();
        for directory in names(&logs).into_iter().filter(of_pod) {
            let containers = names(&logs.join(&directory)).into_iter();
            let lives = containers.flat_map(|container| {
                let lives = logs.join(&directory).join(container);
                names(&lives).into_iter().map(move |life| lives.join(life))
            });
            for life in lives {
                let log = fs::read_to_string(life).unwrap_or_default();
                for line in log.lines() {
                    // Time, stream, whole or part.
                    said += line.splitn(4, ' ').nth(3).unwrap_or_default();
                    said.push('\n');
                }
            }
        }
        said
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.up.kill();
        // The mounts go with the namespaces.
        self.namespaces = None;
        release_devices(&self.data);
    }
}

/// Lets go of loop devices which a machine that is off had.
fn release_devices(data: &Path) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let (pool, volumes) = devices(data);
        if pool.is_empty() && volumes.is_empty() {
            return;
        }
        // Volumes first: their images keep the pool's disk busy. The kernel lets go of mounts a moment after their
        // namespace is gone.
        let both = volumes.iter().chain(&pool);
        let refused: Vec<_> = both.filter_map(|device| Linux::new().loop_detach(device).err()).collect();
        if Instant::now() > until {
            eprintln!("loop devices stay: {refused:?}");
            return;
        }
        std::thread::sleep(LOOK);
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

fn start(namespaces: &Namespaces, args: &[String], dir: &Path) -> Inside {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let env = [("RUST_LOG", "info,wharf_node=debug,wharf_controllers=debug,wharf_sidecar=debug")];
    namespaces.start(&built("wharf"), &args, &env, &dir.join("up.log"))
}

/// Connects once there are credentials.
fn connect(data: &Path, up: &Inside) -> Server {
    let kubeconfig = data.join("kubeconfig");
    let until = Instant::now() + PATIENCE;
    loop {
        if kubeconfig.exists()
            && let Ok(server) = Server::connect(&kubeconfig)
        {
            return server;
        }
        assert!(Instant::now() < until, "there are no credentials:\n{}", up.log());
        std::thread::sleep(LOOK);
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The loop devices of the pool's disk, and those of volumes in it.
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
