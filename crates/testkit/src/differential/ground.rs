//! Where a scenario runs: a driver and sidecars of its own beside the one cluster, told apart from all others by their
//! namespace and the driver's name. Everything that was started ends with the run, however it ends.

use std::fmt;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use wharf_model::snapshot::names;

use super::normal::{self, Names};
use super::place::{Place, Program};
use super::scenario::{Process, Step, substitute};
use super::{Controller, Outcome, Scenario};
use crate::scripted::entries;
use crate::server::short;
use crate::{Beside, Server, built};

/// How long anything may take that a scenario waits for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Nothing new for so long is the end. Longer than the longest pause between two attempts.
const QUIET: Duration = Duration::from_millis(2500);
/// And not shorter than so many looks take: on a machine that has other things to do, all that is waited for takes longer.
const LOOKS: u32 = 15;
/// But no longer than this.
const QUIET_MOST: Duration = Duration::from_secs(6);

/// The same for both sides: failures are tried again at once, and soon again.
pub(super) const ARGS: [&str; 5] = [
    "--retry-interval-start=100ms",
    "--retry-interval-max=1s",
    "--kube-api-qps=200",
    "--kube-api-burst=400",
    "--v=4",
];

/// Group snapshots, which upstream's programs leave alone without it.
pub(super) const GROUPS: &str = "--feature-gates=CSIVolumeGroupSnapshot=true";
/// It takes no pace of retries.
const MONITOR: &str = "csi-external-health-monitor-controller";
/// The namespace that sidecars are told is theirs.
const SIDECARS: &str = "default";
/// Kinds without a namespace that events are about.
const CLUSTER_WIDE: [&str; 3] = ["pv", "vsc", "vgsc"];

/// Whose sidecars.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Upstream's, as `test/upstream` pins them.
    Upstream,
    /// `wharf`, called by upstream's names.
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

/// A cluster as one thread sees it.
pub struct Ground<'a> {
    server: Server,
    controller: &'a Mutex<Controller>,
    place: Place,
    /// Sockets and volumes.
    dir: PathBuf,
    /// Logs, which outlive the cluster.
    logs: PathBuf,
}

impl<'a> Ground<'a> {
    /// Connects to the API of a place; logs go to a directory of one's choice.
    pub fn new(place: &Place, logs: &Path, controller: &'a Mutex<Controller>) -> Result<Self, String> {
        let (server, dir) = (place.connect()?, place.directory().join("d"));
        Ok(Self { server, controller, place: place.clone(), dir, logs: logs.to_owned() })
    }

    /// Where a scenario's logs are.
    pub fn logs(&self, number: usize, side: Side) -> PathBuf {
        self.logs.join(format!("{number:03}-{side}"))
    }

    /// Goes through a scenario. The number tells it apart from others; the error says what did not happen.
    pub fn run(&self, number: usize, scenario: &Scenario, side: Side) -> Result<Outcome, String> {
        // Of the same length, since names are sorted and cut here and there.
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
            ground: self,
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
        let outcome = run.go();
        run.clean_up();
        let text = outcome.as_ref().map_or_else(Clone::clone, ToString::to_string);
        let _ = fs::write(run.logs.join("outcome"), text);
        outcome
    }
}

/// One scenario under way.
struct Run<'a> {
    ground: &'a Ground<'a>,
    scenario: &'a Scenario,
    side: Side,
    /// Its namespace, and the beginning of all names.
    id: String,
    driver_name: String,
    dir: PathBuf,
    logs: PathBuf,
    sidecars: Vec<Program>,
    driver: Option<Beside>,
    /// The uids of what was made, with the names of the objects.
    uids: Vec<(String, String)>,
    /// What is looked at in the end, as short kind and name.
    objects: Vec<String>,
    /// What else was made.
    others: Vec<String>,
    /// The volumes that the driver has had all along: what groups can be taken of.
    volumes: Vec<String>,
}

impl Run<'_> {
    fn go(&mut self) -> Result<Outcome, String> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.id}});
        self.ground.server.create(&self.id, &namespace)?;
        self.faults(&self.scenario.faults)?;
        self.start(Process::Driver)?;
        self.start(Process::Sidecars)?;
        for (number, step) in self.scenario.steps.iter().enumerate() {
            self.step(step).map_err(|error| format!("step {}: {error}", number + 1))?;
        }
        self.settle()
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let server = &self.ground.server;
        match step {
            Step::Create(objects) => objects.iter().try_for_each(|object| self.create(object)),
            Step::Patch { object, with } => {
                server.patch(&self.id, &self.named(object), false, &self.placed(with))
            }
            Step::PatchStatus { object, with } => {
                server.patch(&self.id, &self.named(object), true, &self.placed(with))
            }
            Step::Delete(object) => server.delete(&self.id, &self.named(object)),
            Step::Await { object, at, is, has } => {
                let (name, wanted) = (self.named(object), self.placed(has.as_ref().unwrap_or(is)));
                self.until(&format!("{object} {at} = {wanted}"), |run| {
                    let found = run.ground.server.get(&run.id, &name)?.unwrap_or_default();
                    let found = found.pointer(at).unwrap_or(&Value::Null);
                    let among = || found.as_array().is_some_and(|list| list.contains(&wanted));
                    Ok(if has.is_some() { among() } else { *found == wanted })
                })
            }
            Step::AwaitEvent { object, reason } => {
                let object = self.named(object);
                self.until(&format!("{object} has an event {reason}"), |run| {
                    let (kind, name) = object.split_once('/').ok_or("it is not kind/name")?;
                    // Events about what has no namespace are in this one.
                    let namespace = if CLUSTER_WIDE.contains(&kind) { "default" } else { &run.id };
                    let selector = format!("involvedObject.name={name},reason={reason}");
                    Ok(!run.ground.server.events(namespace, &selector)?.is_empty())
                })
            }
            Step::Called { method, with, times, code } => {
                self.until(&format!("{method} was called {times} times"), |run| {
                    let calls = entries(&run.log());
                    let asked = calls.iter().filter(|call| {
                        call.method == *method
                            && with.iter().all(|(field, wanted)| call.fields.get(field) == Some(wanted))
                            && code.as_ref().is_none_or(|code| *code == call.code)
                    });
                    Ok(asked.count() >= *times)
                })
            }
            Step::Held(method) => self.until(&format!("{method} stands still at the driver"), |run| {
                let held = fs::read_to_string(run.dir.join("faults.held")).unwrap_or_default();
                Ok(held.lines().any(|line| line == method))
            }),
            Step::Faults(faults) => self.faults(faults),
            Step::Conditions(conditions) => self.place("state/conditions", conditions),
            Step::Kill(Process::Sidecars) => {
                // Dropping kills.
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
        let object = self.placed(object);
        let made = self.ground.server.create(&self.id, &object)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&made["metadata"]["name"]);
        let uid = text(&made["metadata"]["uid"]);
        self.uids.push((uid.clone(), format!("UID({name})").replace(&self.id, "ID")));
        // With what the sidecars make of it.
        match made["kind"].as_str() {
            Some("PersistentVolumeClaim") => {
                self.objects.extend([format!("pvc/{name}"), self.named(&format!("pv/@{name}"))]);
            }
            Some("PersistentVolume") => self.objects.push(format!("pv/{name}")),
            Some("VolumeAttachment") => self.objects.push(format!("va/{name}")),
            Some("VolumeSnapshot") => {
                self.objects.extend([format!("vs/{name}"), self.named(&format!("vsc/@{name}"))]);
            }
            Some("VolumeSnapshotContent") => self.objects.push(format!("vsc/{name}")),
            Some("VolumeGroupSnapshot") => {
                self.objects.extend([format!("vgs/{name}"), self.named(&format!("vgsc/@{name}"))]);
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

    /// Takes everything away: others would go on to watch it. What is not there, or does not go, is left alone.
    fn clean_up(&mut self) {
        (self.sidecars, self.driver) = (Vec::new(), None);
        let server = &self.ground.server;
        for object in self.objects.iter().chain(&self.others) {
            // Whoever would take the finalizers off is gone.
            if server.delete(&self.id, object).is_ok() {
                let _ = server.patch(&self.id, object, false, &json!({"metadata": {"finalizers": null}}));
            }
        }
        for capacity in self.capacities().unwrap_or_default() {
            let name = capacity["metadata"]["name"].as_str().unwrap_or_default();
            let _ = server.delete(SIDECARS, &format!("csc/{name}"));
        }
    }

    /// What the provisioner has told of its driver's room, if it is to. Names are made up by the server.
    fn capacities(&self) -> Result<Vec<Value>, String> {
        if !self.scenario.args.iter().any(|arg| arg.starts_with("--enable-capacity")) {
            return Ok(Vec::new());
        }
        let of = format!("csi.storage.k8s.io/drivername={}", self.driver_name);
        self.ground.server.list(SIDECARS, "csc", &of)
    }

    /// `pv/@claim` is the volume that is made for a claim, `vsc/@snapshot` the content of a snapshot, `vgsc/@group` that
    /// of a group; `vs/@group/volume` and `vsc/@group/volume` are a group's member of that volume.
    fn named(&self, object: &str) -> String {
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

    /// With the words that only a run knows.
    fn placed(&self, value: &Value) -> Value {
        let mut value = value.clone();
        let mut words =
            vec![("${id}".to_owned(), self.id.clone()), ("${driver}".to_owned(), self.driver_name.clone())];
        words.extend(self.uids.iter().map(|(uid, name)| (format!("${{{name}}}"), uid.clone())));
        substitute(&mut value, &words);
        value
    }

    fn faults(&self, faults: &Map<String, Value>) -> Result<(), String> {
        self.place("faults", faults)
    }

    /// Writes a file of the driver's; it sees the old one or the new one.
    fn place(&self, file: &str, content: &Map<String, Value>) -> Result<(), String> {
        let (file, temporary) = (self.dir.join(file), self.dir.join("new"));
        fs::create_dir_all(file.parent().unwrap_or(&self.dir))
            .and_then(|()| fs::write(&temporary, json!(content).to_string()))
            .and_then(|()| fs::rename(&temporary, &file))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))
    }

    /// Puts something into the backend, as an administrator of it would.
    fn record(&self, kind: &str, id: &str, mut record: Value) -> Result<(), String> {
        record["id"] = id.into();
        let state = self.dir.join("state");
        // The driver may not have come so far.
        fs::create_dir_all(state.join("data").join(id))
            .and_then(|()| fs::create_dir_all(state.join(kind)))
            .and_then(|()| fs::write(state.join(kind).join(id), record.to_string()))
            .map_err(|error| format!("{id} cannot be made: {error}"))
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
                self.driver = Some(Beside::start(&built("scripted-driver"), &args, &stderr));
                self.until("the driver listens", |_| Ok(UnixStream::connect(&socket).is_ok()))
            }
            Process::Sidecars => {
                let socket = text(socket);
                for program in &self.scenario.sidecars {
                    let mut args = vec!["--csi-address", &socket];
                    // Nothing that a monitor does is tried again before its next round.
                    args.extend(ARGS.iter().filter(|arg| program != MONITOR || !arg.starts_with("--retry-")));
                    args.push("--timeout=5s");
                    args.extend(self.scenario.args.iter().map(String::as_str));
                    let log = self.logs.join(format!("{program}.log"));
                    let place = &self.ground.place;
                    self.sidecars.push(place.start(self.side, program, &args, &self.id, &self.dir, &log)?);
                }
                Ok(())
            }
            Process::Controller => self.controller().start(),
        }
    }

    fn controller(&self) -> std::sync::MutexGuard<'_, Controller> {
        self.ground.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever has ended by itself is started again, as kubelet would: upstream's sidecars end with their driver.
    fn keep_alive(&mut self) {
        self.sidecars.iter_mut().for_each(Program::keep_alive);
        if let Some(driver) = &mut self.driver
            && !driver.runs()
        {
            driver.restart();
        }
    }

    fn until(
        &mut self,
        what: &str,
        mut ask: impl FnMut(&Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while !ask(self)? {
            if Instant::now() > end {
                return Err(format!("not within {PATIENCE:?}: {what}"));
            }
            sleep(LOOK);
            self.keep_alive();
        }
        Ok(())
    }

    /// Waits until nothing changes any more, and tells how it is then.
    fn settle(&mut self) -> Result<Outcome, String> {
        let end = Instant::now() + PATIENCE;
        let (mut last, mut since, mut slowest) = (self.look()?, Instant::now(), Duration::ZERO);
        while since.elapsed() < QUIET.max(slowest * LOOKS).min(QUIET_MOST) {
            sleep(QUIET / 10);
            self.keep_alive();
            let began = Instant::now();
            let now = self.look()?;
            slowest = slowest.max(began.elapsed());
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if Instant::now() > end {
                return Err(format!("not quiet within {PATIENCE:?}:\n{last}"));
            }
        }
        Ok(last)
    }

    fn look(&self) -> Result<Outcome, String> {
        let server = &self.ground.server;
        let mut names = self.uids.clone();
        names.push((self.id.clone(), "ID".to_owned()));
        // Names may be made of a uid's beginning.
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
                objects.extend(normal::object(&names, &found));
            }
            // Of objects without a namespace, even after their end.
            if let Some((kind, name)) = object.split_once('/')
                && CLUSTER_WIDE.contains(&kind)
            {
                events.extend(server.events("default", &format!("involvedObject.name={name}"))?);
            }
        }
        for mut capacity in self.capacities()? {
            // In a list they do not say what they are.
            capacity["kind"] = "CSIStorageCapacity".into();
            capacity["metadata"]["name"] = capacity["storageClassName"].take();
            objects.extend(normal::object(&names, &capacity));
        }
        objects.sort();
        Ok(Outcome {
            objects,
            events: normal::events(&names, &events),
            calls: normal::calls(&names, &entries(&self.log())),
        })
    }
}
