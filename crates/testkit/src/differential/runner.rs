//! Runs one scenario for one side: its own driver and sidecars on the shared cluster, isolated by namespace and driver
//! name. All processes are stopped when the run ends, even if it fails.

use std::fmt;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use wharf_model::snapshot::names;

use super::normalize::{self, Names};
use super::scenario::{Process, Step, substitute};
use super::target::{ApiTarget, SidecarProcess};
use super::{Outcome, Scenario, SnapshotController};
use crate::scripted::entries;
use crate::server::short;
use crate::{ApiClient, ChildProcess, built_program};

/// The timeout of each wait in a scenario.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The interval between two reads.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A scenario has settled when nothing changes for this long, which exceeds the longest retry interval.
const QUIET: Duration = Duration::from_millis(2500);
/// Require at least this many reads without a change, because reads take longer on a busy machine.
const MIN_POLLS: u32 = 15;
/// The maximum time without changes that is required.
const MAX_QUIET: Duration = Duration::from_secs(6);

/// Arguments of the sidecars on both sides, so that they retry quickly.
pub(super) const ARGS: [&str; 5] = [
    "--retry-interval-start=100ms",
    "--retry-interval-max=1s",
    "--kube-api-qps=200",
    "--kube-api-burst=400",
    "--v=4",
];

/// Enables group snapshots, which upstream's programs ignore by default.
pub(super) const GROUPS: &str = "--feature-gates=CSIVolumeGroupSnapshot=true";
/// The health monitor, which has no retry flags.
const MONITOR: &str = "csi-external-health-monitor-controller";
/// The namespace that sidecars run in.
const SIDECARS: &str = "default";
/// Cluster-scoped kinds that have events.
const CLUSTER_WIDE: [&str; 3] = ["pv", "vsc", "vgsc"];

/// The implementation of the sidecars that a scenario runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Upstream's programs, in the versions that `test/upstream` pins.
    Upstream,
    /// `wharf`, started under the names of upstream's programs.
    Ours,
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Upstream => "upstream",
            Self::Ours => "ours",
        })
    }
}

/// Runs scenarios in one thread.
pub struct ScenarioRunner<'a> {
    server: ApiClient,
    controller: &'a Mutex<SnapshotController>,
    target: ApiTarget,
    /// Sockets and volume data.
    dir: PathBuf,
    /// The log directory. It is kept after the cluster is deleted.
    logs: PathBuf,
}

impl<'a> ScenarioRunner<'a> {
    /// Connects to the API of a target; logs are written to `logs`.
    pub fn new(
        target: &ApiTarget,
        logs: &Path,
        controller: &'a Mutex<SnapshotController>,
    ) -> Result<Self, String> {
        let (server, dir) = (target.connect()?, target.directory().join("d"));
        Ok(Self { server, controller, target: target.clone(), dir, logs: logs.to_owned() })
    }

    /// The log directory of a scenario.
    pub fn logs(&self, number: usize, side: Side) -> PathBuf {
        self.logs.join(format!("{number:03}-{side}"))
    }

    /// Runs a scenario. `number` makes its names unique. An error names the condition that was not met.
    pub fn run(&self, number: usize, scenario: &Scenario, side: Side) -> Result<Outcome, String> {
        // Both sides use names of equal length, because some names are sorted or truncated.
        let letter = match side {
            Side::Upstream => 'u',
            Side::Ours => 'o',
        };
        let id = format!("{letter}-{number:03}");
        let logs = self.logs(number, side);
        let dir = self.dir.join(&id);
        fs::create_dir_all(&logs)
            .and_then(|()| fs::create_dir_all(&dir))
            .map_err(|error| error.to_string())?;
        let mut run = Run {
            runner: self,
            scenario,
            side,
            driver_name: format!("{id}.test"),
            id,
            dir,
            logs,
            sidecars: Vec::new(),
            driver: None,
            uids: Vec::new(),
            objects: Vec::new(),
            others: Vec::new(),
            volumes: Vec::new(),
        };
        let outcome = run.execute();
        run.clean_up();
        let text = outcome.as_ref().map_or_else(Clone::clone, ToString::to_string);
        let _ = fs::write(run.logs.join("outcome"), text);
        outcome
    }
}

/// A running scenario.
struct Run<'a> {
    runner: &'a ScenarioRunner<'a>,
    scenario: &'a Scenario,
    side: Side,
    /// Its namespace, and the prefix of all names.
    id: String,
    driver_name: String,
    dir: PathBuf,
    logs: PathBuf,
    sidecars: Vec<SidecarProcess>,
    driver: Option<ChildProcess>,
    /// The UIDs of created objects, with the objects' names.
    uids: Vec<(String, String)>,
    /// The objects to compare at the end, as short kind and name.
    objects: Vec<String>,
    /// Other created objects.
    others: Vec<String>,
    /// Pre-existing volumes in the driver, which can be members of group snapshots.
    volumes: Vec<String>,
}

impl Run<'_> {
    fn execute(&mut self) -> Result<Outcome, String> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.id}});
        self.runner.server.create(&self.id, &namespace)?;
        self.faults(&self.scenario.faults)?;
        self.start(Process::Driver)?;
        self.start(Process::Sidecars)?;
        for (number, step) in self.scenario.steps.iter().enumerate() {
            self.step(step).map_err(|error| format!("step {}: {error}", number + 1))?;
        }
        self.settle()
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let server = &self.runner.server;
        match step {
            Step::Create(objects) => objects.iter().try_for_each(|object| self.create(object)),
            Step::Patch { object, with } => {
                server.patch(&self.id, &self.resolve_name(object), false, &self.substituted(with))
            }
            Step::PatchStatus { object, with } => {
                server.patch(&self.id, &self.resolve_name(object), true, &self.substituted(with))
            }
            Step::Delete(object) => server.delete(&self.id, &self.resolve_name(object)),
            Step::Await { object, at, is, has } => {
                let (name, wanted) =
                    (self.resolve_name(object), self.substituted(has.as_ref().unwrap_or(is)));
                self.wait_until(&format!("{object} {at} = {wanted}"), |run| {
                    let found = run.runner.server.get(&run.id, &name)?.unwrap_or_default();
                    let found = found.pointer(at).unwrap_or(&Value::Null);
                    let among = || found.as_array().is_some_and(|list| list.contains(&wanted));
                    Ok(if has.is_some() { among() } else { *found == wanted })
                })
            }
            Step::AwaitEvent { object, reason } => {
                let object = self.resolve_name(object);
                self.wait_until(&format!("{object} has an event {reason}"), |run| {
                    let (kind, name) =
                        object.split_once('/').ok_or("the object is not in the form kind/name")?;
                    // Events on cluster-scoped objects are in the namespace `default`.
                    let namespace = if CLUSTER_WIDE.contains(&kind) { "default" } else { &run.id };
                    let selector = format!("involvedObject.name={name},reason={reason}");
                    Ok(!run.runner.server.events(namespace, &selector)?.is_empty())
                })
            }
            Step::Called { method, with, times, code } => {
                self.wait_until(&format!("{method} was called {times} times"), |run| {
                    let calls = entries(&run.log());
                    let matching = calls.iter().filter(|call| {
                        call.method == *method
                            && with.iter().all(|(field, wanted)| call.fields.get(field) == Some(wanted))
                            && code.as_ref().is_none_or(|code| *code == call.code)
                    });
                    Ok(matching.count() >= *times)
                })
            }
            Step::Held(method) => self.wait_until(&format!("{method} is held by the driver"), |run| {
                let held = fs::read_to_string(run.dir.join("faults.held")).unwrap_or_default();
                Ok(held.lines().any(|line| line == method))
            }),
            Step::Faults(faults) => self.faults(faults),
            Step::Conditions(conditions) => self.write_driver_file("state/conditions", conditions),
            Step::Kill(Process::Sidecars) => {
                // Dropping a sidecar kills it.
                self.sidecars.clear();
                Ok(())
            }
            Step::Kill(Process::Driver) => {
                self.driver = None;
                Ok(())
            }
            Step::Kill(Process::Controller) => {
                self.controller().kill();
                Ok(())
            }
            Step::Start(process) => self.start(*process),
            Step::Pause(milliseconds) => {
                sleep(Duration::from_millis(*milliseconds));
                Ok(())
            }
            Step::Volume { id, bytes } => {
                let record =
                    json!({"request": "", "mutable": {}, "published": {}, "mounted": {}, "bytes": bytes});
                self.volumes.push(id.clone());
                self.record("volumes", id, record)
            }
            Step::Snapshot { id, volume, bytes, group } => {
                let record = json!({"volume": volume, "bytes": bytes, "seconds": 1, "ready_at_ms": 0,
                    "looks_left": 0, "group": group});
                self.record("snapshots", id, record)
            }
            Step::Group { id, volumes, members } => {
                self.record("groups", id, json!({"volumes": volumes, "members": members}))
            }
        }
    }

    fn create(&mut self, object: &Value) -> Result<(), String> {
        let object = self.substituted(object);
        let created = self.runner.server.create(&self.id, &object)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&created["metadata"]["name"]);
        let uid = text(&created["metadata"]["uid"]);
        self.uids.push((uid.clone(), format!("UID({name})").replace(&self.id, "ID")));
        // Compare the object together with the objects that the sidecars create for it.
        match created["kind"].as_str() {
            Some("PersistentVolumeClaim") => {
                self.objects.extend([format!("pvc/{name}"), self.resolve_name(&format!("pv/@{name}"))]);
            }
            Some("PersistentVolume") => self.objects.push(format!("pv/{name}")),
            Some("VolumeAttachment") => self.objects.push(format!("va/{name}")),
            Some("VolumeSnapshot") => {
                self.objects.extend([format!("vs/{name}"), self.resolve_name(&format!("vsc/@{name}"))]);
            }
            Some("VolumeSnapshotContent") => self.objects.push(format!("vsc/{name}")),
            Some("VolumeGroupSnapshot") => {
                self.objects.extend([format!("vgs/{name}"), self.resolve_name(&format!("vgsc/@{name}"))]);
                for volume in &self.volumes {
                    let (snapshot, content) = names::member_names(&uid, volume);
                    if let Some(digest) = snapshot.strip_prefix("snapshot-") {
                        self.uids.push((digest.to_owned(), format!("MEMBER({name}/{volume})")));
                    }
                    self.objects.extend([format!("vs/{snapshot}"), format!("vsc/{content}")]);
                }
            }
            Some("VolumeGroupSnapshotContent") => self.objects.push(format!("vgsc/{name}")),
            other => self.others.extend(other.and_then(short).map(|kind| format!("{kind}/{name}"))),
        }
        Ok(())
    }

    /// Deletes all objects of the run, so that the sidecars of later scenarios do not watch them. Objects that are
    /// missing or cannot be deleted are ignored.
    fn clean_up(&mut self) {
        (self.sidecars, self.driver) = (Vec::new(), None);
        let server = &self.runner.server;
        for object in self.objects.iter().chain(&self.others) {
            // The controllers that would remove the finalizers have exited.
            if server.delete(&self.id, object).is_ok() {
                let _ = server.patch(&self.id, object, false, &json!({"metadata": {"finalizers": null}}));
            }
        }
        for capacity in self.capacities().unwrap_or_default() {
            let name = capacity["metadata"]["name"].as_str().unwrap_or_default();
            let _ = server.delete(SIDECARS, &format!("csc/{name}"));
        }
    }

    /// The CSIStorageCapacity objects of the provisioner, if enabled. The server generates their names.
    fn capacities(&self) -> Result<Vec<Value>, String> {
        if !self.scenario.args.iter().any(|arg| arg.starts_with("--enable-capacity")) {
            return Ok(Vec::new());
        }
        let of = format!("csi.storage.k8s.io/drivername={}", self.driver_name);
        self.runner.server.list(SIDECARS, "csc", &of)
    }

    /// Resolves references: `pv/@claim` is the volume provisioned for a claim, `vsc/@snapshot` the content of a
    /// snapshot, `vgsc/@group` the content of a group; `vs/@group/volume` and `vsc/@group/volume` are a group's
    /// member for that volume.
    fn resolve_name(&self, object: &str) -> String {
        let object = object.replace("${id}", &self.id);
        let Some((kind, of)) = object.split_once("/@") else {
            return object;
        };
        let marked = if of.contains('/') { format!("MEMBER({of})") } else { format!("UID({of})") };
        let uid = self.uids.iter().rev().find(|(_, name)| *name == marked).map_or("", |(uid, _)| uid);
        let prefix = match kind {
            "vs" => "snapshot",
            "vsc" => "snapcontent",
            "vgsc" => "groupsnapcontent",
            _ => "pvc",
        };
        format!("{kind}/{prefix}-{uid}")
    }

    /// Substitutes the placeholders whose values are known only during a run.
    fn substituted(&self, value: &Value) -> Value {
        let mut value = value.clone();
        let mut placeholders =
            vec![("${id}".to_owned(), self.id.clone()), ("${driver}".to_owned(), self.driver_name.clone())];
        placeholders.extend(self.uids.iter().map(|(uid, name)| (format!("${{{name}}}"), uid.clone())));
        substitute(&mut value, &placeholders);
        value
    }

    fn faults(&self, faults: &Map<String, Value>) -> Result<(), String> {
        self.write_driver_file("faults", faults)
    }

    /// Replaces a file of the driver atomically.
    fn write_driver_file(&self, file: &str, content: &Map<String, Value>) -> Result<(), String> {
        let (file, temporary) = (self.dir.join(file), self.dir.join("new"));
        fs::create_dir_all(file.parent().unwrap_or(&self.dir))
            .and_then(|()| fs::write(&temporary, json!(content).to_string()))
            .and_then(|()| fs::rename(&temporary, &file))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))
    }

    /// Adds a record to the backend, as a storage administrator would.
    fn record(&self, kind: &str, id: &str, mut record: Value) -> Result<(), String> {
        record["id"] = id.into();
        let state = self.dir.join("state");
        // The driver may not have created the directory yet.
        fs::create_dir_all(state.join("data").join(id))
            .and_then(|()| fs::create_dir_all(state.join(kind)))
            .and_then(|()| fs::write(state.join(kind).join(id), record.to_string()))
            .map_err(|error| format!("failed to add {kind} record {id}: {error}"))
    }

    fn log(&self) -> PathBuf {
        self.logs.join("calls")
    }

    fn start(&mut self, process: Process) -> Result<(), String> {
        let text = |path: PathBuf| path.display().to_string();
        let socket = self.dir.join("csi.sock");
        match process {
            Process::Driver => {
                let endpoint = format!("unix://{}", socket.display());
                let (state, log) = (text(self.dir.join("state")), text(self.log()));
                let faults = text(self.dir.join("faults"));
                let mut args = vec!["--endpoint", &endpoint, "--name", &self.driver_name, "--no-sync"];
                args.extend(["--state", &state, "--log", &log, "--fault-file", &faults]);
                let options: Vec<String> =
                    self.scenario.driver.iter().map(|option| option.replace("${id}", &self.id)).collect();
                args.extend(options.iter().map(String::as_str));
                let stderr = self.logs.join("driver.log");
                self.driver = Some(ChildProcess::start(&built_program("scripted-driver"), &args, &stderr));
                self.wait_until("the driver listens", |_| Ok(UnixStream::connect(&socket).is_ok()))
            }
            Process::Sidecars => {
                let socket = text(socket);
                for program in &self.scenario.sidecars {
                    let mut args = vec!["--csi-address", &socket];
                    // The health monitor retries only in its next round.
                    args.extend(ARGS.iter().filter(|arg| program != MONITOR || !arg.starts_with("--retry-")));
                    args.push("--timeout=5s");
                    args.extend(self.scenario.args.iter().map(String::as_str));
                    let log = self.logs.join(format!("{program}.log"));
                    let target = &self.runner.target;
                    self.sidecars.push(target.start(self.side, program, &args, &self.id, &self.dir, &log)?);
                }
                Ok(())
            }
            Process::Controller => self.controller().start(),
        }
    }

    fn controller(&self) -> std::sync::MutexGuard<'_, SnapshotController> {
        self.runner.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restarts processes that exited on their own, as kubelet would: upstream's sidecars exit with their driver.
    fn restart_if_exited(&mut self) {
        self.sidecars.iter_mut().for_each(SidecarProcess::restart_if_exited);
        if let Some(driver) = &mut self.driver
            && !driver.is_running()
        {
            driver.restart();
        }
    }

    fn wait_until(
        &mut self,
        what: &str,
        mut ask: impl FnMut(&Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let end = Instant::now() + TIMEOUT;
        while !ask(self)? {
            if Instant::now() > end {
                return Err(format!("timed out after {TIMEOUT:?}: {what}"));
            }
            sleep(POLL_INTERVAL);
            self.restart_if_exited();
        }
        Ok(())
    }

    /// Waits until nothing changes any more and returns the outcome.
    fn settle(&mut self) -> Result<Outcome, String> {
        let end = Instant::now() + TIMEOUT;
        let (mut last, mut since, mut slowest) = (self.read_outcome()?, Instant::now(), Duration::ZERO);
        while since.elapsed() < QUIET.max(slowest * MIN_POLLS).min(MAX_QUIET) {
            sleep(QUIET / 10);
            self.restart_if_exited();
            let started = Instant::now();
            let now = self.read_outcome()?;
            slowest = slowest.max(started.elapsed());
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if Instant::now() > end {
                return Err(format!("not settled after {TIMEOUT:?}:\n{last}"));
            }
        }
        Ok(last)
    }

    fn read_outcome(&self) -> Result<Outcome, String> {
        let server = &self.runner.server;
        let mut names = self.uids.clone();
        names.push((self.id.clone(), "ID".to_owned()));
        // Generated names may contain the beginning of a UID.
        names.extend(
            self.uids
                .iter()
                .filter_map(|(uid, name)| Some((uid.split('-').next()?.to_owned(), format!("SHORT-{name}")))),
        );
        let names = Names::new(names);
        let (mut objects, mut events) = (Vec::new(), server.events(&self.id, "")?);
        let mut wanted = self.objects.clone();
        wanted.sort();
        wanted.dedup();
        for object in &wanted {
            if let Some(found) = server.get(&self.id, object)? {
                objects.extend(normalize::object(&names, &found));
            }
            // Events on cluster-scoped objects, even deleted ones.
            if let Some((kind, name)) = object.split_once('/')
                && CLUSTER_WIDE.contains(&kind)
            {
                events.extend(server.events("default", &format!("involvedObject.name={name}"))?);
            }
        }
        for mut capacity in self.capacities()? {
            // List items do not carry their kind.
            capacity["kind"] = "CSIStorageCapacity".into();
            capacity["metadata"]["name"] = capacity["storageClassName"].take();
            objects.extend(normalize::object(&names, &capacity));
        }
        objects.sort();
        Ok(Outcome {
            objects,
            events: normalize::events(&names, &events),
            calls: normalize::calls(&names, &entries(&self.log())),
        })
    }
}
