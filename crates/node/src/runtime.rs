//! Containers as host processes.
//!
//! A container is a program of the host in namespaces of its own (mounts, processes, IPC, host name), with a root that
//! is the host's root under an overlay whose writes are thrown away. It sees its own volumes and no other ones, a `/dev`
//! of a few devices, and none of the places that [`Settings::hidden`] names.
//!
//! Each container has a shim: a process that makes it, writes its log, waits for it and notes how it ended. The shim is
//! no part of the agent: it goes on when the agent is killed, and [`Runtime::list`] finds its container again. If the
//! shim itself is killed, its container dies with it, and its state says so.

mod capabilities;
mod enter;
mod error;
mod exec;
mod init;
mod layout;
mod log;
mod record;
mod report;
mod root;
mod shim;
mod short;
mod spec;

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe;
use wharf_linux::sandbox::{MountFlags, Process, Tree, inside};

pub use error::{ExecError, ListError, LogError, OpenError, RemoveError, SignalError, StartError};
pub use exec::{ExecSession, Resizer};
pub use log::reader::Logs;
use record::{Order, Record, SIGKILL, SIGTERM};
use report::{Failure, Started};
pub use spec::{
    Cause, ContainerDevice, ContainerId, ContainerMount, ContainerSpec, ExecSpec, Exit, Found, LogOptions,
    LogStream, Rights, State, TerminalSize, User,
};

/// The first argument of a shim.
const SHIM: &str = "container-shim";
/// The first argument of what becomes a container's program.
const INIT: &str = "container-init";
/// The first argument of what runs a program in a container.
const EXEC: &str = "container-exec";

/// How long a container may take to start: as long as kubelet waits for a container runtime.
const START: Duration = Duration::from_secs(120);
/// How long we wait for the end of a container that was killed before we kill it again.
const KILL: Duration = Duration::from_secs(1);
/// How long what is left of a start that failed may take to be gone.
const UNDONE: Duration = Duration::from_secs(5);
/// How often we look after a container that an agent before us was just starting.
const STARTING: Duration = Duration::from_millis(20);
/// How often we look after a container of which nothing can be told: a full disk is not full for long, or for very long.
const PUZZLED: Duration = Duration::from_secs(1);

/// How the runtime is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The program that calls [`helper`] before all else: as a rule the agent's own, `/proc/self/exe`.
    pub program: PathBuf,
    /// Where the runtime keeps what it knows of its containers. One runtime has it for itself.
    pub directory: PathBuf,
    /// Where logs are, as kubelet has them: `<namespace>_<pod>_<uid>/<container>/<attempt>.log`.
    pub logs: PathBuf,
    /// What no container sees: the data directory, kubelet's root, pools. The runtime's own directories need not be named.
    pub hidden: Vec<PathBuf>,
    /// A log is begun anew when it is longer than this.
    pub log_bytes: u64,
    /// So many files are kept of a log.
    pub log_files: usize,
    /// How much a container may write beside its volumes; it is in memory.
    pub scratch_bytes: u64,
}

impl Settings {
    /// With kubelet's limits for logs, and a gibibyte for what a container writes beside its volumes.
    pub fn new(program: impl Into<PathBuf>, directory: impl Into<PathBuf>, logs: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            directory: directory.into(),
            logs: logs.into(),
            hidden: Vec::new(),
            log_bytes: 10 << 20,
            log_files: 5,
            scratch_bytes: 1 << 30,
        }
    }
}

/// The containers of this node.
#[derive(Debug, Clone)]
pub struct Runtime {
    settings: Arc<Settings>,
    /// The helpers' program, on a mount that nobody can write through. A container could have its own program be the
    /// helper's, and so come by a descriptor of the host's file.
    program: Arc<Tree>,
}

impl Runtime {
    /// Makes the directories, and holds on to the program.
    pub fn open(mut settings: Settings) -> Result<Self, OpenError> {
        for (path, mode) in [(&mut settings.directory, 0o700), (&mut settings.logs, 0o755)] {
            let made = DirBuilder::new().recursive(true).mode(mode).create(&*path);
            // Without links, so that it can be hidden by its path.
            let whole = made.and_then(|()| fs::canonicalize(&*path));
            *path = whole.map_err(|source| OpenError { path: path.clone(), source })?;
        }
        let program = inside::open(&settings.program)
            .and_then(|file| Tree::copy(file, MountFlags { read_only: true, ..MountFlags::default() }))
            .map_err(|source| OpenError { path: settings.program.clone(), source })?;
        Ok(Self { settings: Arc::new(settings), program: Arc::new(program) })
    }

    /// A helper for the container in `directory`.
    fn helper(&self, role: &str, directory: &Path) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_fd().as_raw_fd()));
        command.arg0("wharf").arg(role).arg(directory).env_clear().current_dir("/");
        command
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn directory(&self, id: &ContainerId) -> PathBuf {
        self.settings.directory.join(id.as_str())
    }

    fn record(&self, id: &ContainerId) -> Record {
        Record::at(self.directory(id))
    }

    fn log(&self, spec: &ContainerSpec) -> PathBuf {
        let pod = format!("{}_{}_{}", spec.namespace, spec.pod, spec.pod_uid);
        self.settings.logs.join(pod).join(&spec.container).join(format!("{}.log", spec.attempt))
    }

    /// Starts a container; its program runs when this answers. Asked for the same attempt again, it answers the id of
    /// the container that is there, running or not. If it fails nothing is left of it, and it can be tried again.
    pub async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, StartError> {
        layout::check(&spec).map_err(StartError::Config)?;
        let (id, container) = (spec.id(), spec.container.clone());
        let record = self.record(&id);
        let order = self.order(spec);
        let machine = |step: &str, error: io::Error| Failure::machine(step, error).into_error(&container);
        let Some(lock) = record.create(&order).map_err(|error| machine("record", error))? else {
            return Ok(id);
        };
        let started = match self.spawn_shim(&record, lock.into()) {
            Ok(started) => tokio::time::timeout(START, started).await.unwrap_or_else(|_| {
                Err(Failure::machine("start", "it took too long: does a volume or the disk hang?"))
            }),
            Err(error) => Err(Failure::machine("shim", error)),
        };
        match started {
            Ok(()) => Ok(id),
            Err(failure) => {
                self.undo(&id, &order.log).await;
                Err(failure.into_error(&container))
            }
        }
    }

    /// What no container sees, without links: the runtime's own directories too.
    pub fn hidden(&self) -> Vec<PathBuf> {
        let Settings { directory, logs, hidden, .. } = self.settings();
        let own = [directory, logs].into_iter().chain(hidden);
        // One that is not there has no other name, and needs no hiding until it is.
        own.map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone())).collect()
    }

    fn order(&self, spec: ContainerSpec) -> Order {
        let Settings { program: _, directory: _, logs: _, hidden: _, log_bytes, log_files, scratch_bytes } =
            self.settings();
        let hidden = self.hidden();
        let log = self.log(&spec);
        Order {
            spec,
            hidden,
            log,
            log_bytes: *log_bytes,
            log_files: *log_files,
            scratch_bytes: *scratch_bytes,
        }
    }

    /// Starts the shim, which gets the lock. What it says comes later.
    fn spawn_shim(
        &self,
        record: &Record,
        lock: OwnedFd,
    ) -> io::Result<impl Future<Output = Result<(), Failure>> + use<>> {
        let mut errors = OpenOptions::new();
        let errors = errors.create(true).append(true).mode(0o600).open(record.path().join("shim.log"))?;
        let (said, saying) = io::pipe()?;
        let mut shim = self.helper(SHIM, record.path());
        shim.stdin(lock).stdout(saying).stderr(errors);
        let child = shim.spawn()?;
        let process = Process::open(child.id())?;
        // It holds the lock and the pipe's other end, which are the shim's alone from now on.
        drop(shim);
        reap(child)?;
        let said = pipe::Receiver::from_owned_fd(said.into())?;
        Ok(async move {
            // Whoever gives up waiting has the shim killed, and the container with it.
            let mut guard = Guard(process);
            let mut lines = BufReader::new(said).lines();
            let line = lines.next_line().await.map_err(|error| Failure::machine("shim", error))?;
            let line = line.ok_or_else(|| Failure::machine("shim", "it has ended without a word"))?;
            match serde_json::from_str(&line) {
                Ok(Started::Running) => {
                    guard.0 = None;
                    Ok(())
                }
                Ok(Started::Failed(failure)) => Err(failure),
                Err(error) => Err(Failure::machine("shim", error)),
            }
        })
    }

    /// Takes back a start that failed. What cannot be taken back is found later, as a container that never ran.
    async fn undo(&self, id: &ContainerId, log: &Path) {
        // The shim is not quite gone, or what was to become the program.
        if tokio::time::timeout(UNDONE, self.exited(id)).await.is_ok() {
            let _ = log::file::remove(log);
            let _ = self.record(id).remove();
        }
    }

    /// How a container is, now. If that cannot be found out it counts as running: who believes that it has ended would
    /// take its volumes away.
    pub fn state(&self, id: &ContainerId) -> State {
        self.tell(id).unwrap_or_else(|| State::Running { pid: 0, started: wharf_cluster::now() })
    }

    /// How a container is; `None` if that cannot be found out.
    fn tell(&self, id: &ContainerId) -> Option<State> {
        let told = self.record(id).settle().inspect_err(|error| {
            tracing::warn!(container = %id, %error, "cannot tell how a container is; it counts as running");
        });
        told.ok()
    }

    /// Waits for a container's end; `None` if there is no such container.
    pub async fn exited(&self, id: &ContainerId) -> Option<Exit> {
        loop {
            match self.tell(id) {
                Some(State::Unknown) => return None,
                Some(State::Exited(exit)) => return Some(exit),
                Some(State::Running { .. }) => {}
                None => {
                    tokio::time::sleep(PUZZLED).await;
                    continue;
                }
            }
            let running = self.record(id).running().ok().flatten();
            let (shim, program) =
                running.map_or((None, None), |running| (living(running.shim()), living(running.program())));
            match (shim, program) {
                (Some(shim), _) => ended(shim.into_descriptor()).await,
                // It was killed when its shim was seen to be gone. If that was only just now, the next look does it.
                (None, Some(program)) => {
                    let _ = tokio::time::timeout(KILL, ended(program.into_descriptor())).await;
                }
                (None, None) => tokio::time::sleep(STARTING).await,
            }
        }
    }

    /// Sends a signal to a container's program.
    pub fn signal(&self, id: &ContainerId, signal: i32) -> Result<(), SignalError> {
        if !(1..=64).contains(&signal) {
            return Err(SignalError::NoSuchSignal(signal));
        }
        let refused = |source| SignalError::Refused { id: id.clone(), signal, source };
        let running = self.record(id).running().map_err(refused)?;
        let program = running.map(|running| running.program()).transpose().map_err(refused)?.flatten();
        match program.map(|program| program.signal(signal)).transpose().map_err(refused)? {
            Some(true) => Ok(()),
            Some(false) | None => Err(SignalError::NotRunning(id.clone())),
        }
    }

    /// Stops a container: SIGTERM, and SIGKILL after `grace`. Answers how it ended; `None` if there is no such container.
    pub async fn stop(&self, id: &ContainerId, grace: Duration) -> Option<Exit> {
        let (mut signal, mut patience) = (SIGTERM, grace);
        loop {
            match self.signal(id, signal) {
                Ok(()) | Err(SignalError::NotRunning(_)) => {}
                Err(error) => tracing::warn!(%error, "a container is not stopped"),
            }
            if let Ok(exit) = tokio::time::timeout(patience, self.exited(id)).await {
                return exit;
            }
            // Again and again: one that an agent before us was just starting may have had nobody to signal yet.
            (signal, patience) = (SIGKILL, KILL);
        }
    }

    /// Takes away the files and the log of a container that has ended. Done again, it does nothing.
    pub async fn remove(&self, id: &ContainerId) -> Result<(), RemoveError> {
        let record = self.record(id);
        let failed =
            |path: &Path, source| RemoveError::Files { id: id.clone(), path: path.to_owned(), source };
        match self.state(id) {
            State::Running { .. } => return Err(RemoveError::Running(id.clone())),
            State::Exited(_) | State::Unknown => {}
        }
        // The log first: without the record nobody knows where it is.
        if let Ok(Some(order)) = record.order() {
            log::file::remove(&order.log).map_err(|error| failed(&order.log, error))?;
        }
        record.remove().map_err(|error| failed(record.path(), error))
    }

    /// All containers, also those that an agent before us started. An error if there is one that cannot be told: who does
    /// not know of it would start a second one beside it, on the same volumes.
    pub fn list(&self) -> Result<Vec<Found>, ListError> {
        let failed = |source| ListError { path: self.settings.directory.clone(), source };
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.settings.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(id) = name.to_str().and_then(ContainerId::parse) else { continue };
            let order = match self.record(&id).order() {
                Ok(Some(order)) => order,
                // Given up before anything was started, or half removed.
                Ok(None) => {
                    if let Err(error) = self.record(&id).abandon() {
                        tracing::warn!(container = %id, %error, "what is left of a container stays");
                    }
                    continue;
                }
                Err(error) => {
                    self.sweep(&id, error)?;
                    continue;
                }
            };
            let state = self.state(&id);
            let this_boot = match &state {
                State::Running { .. } => true,
                // Half a record was written before the power failed.
                State::Exited(_) | State::Unknown => {
                    let running = self.record(&id).running().ok().flatten();
                    running.is_some_and(|running| running.is_of_this_boot())
                }
            };
            let ContainerSpec { namespace, pod, pod_uid, container, attempt, labels, .. } = order.spec;
            found.push(Found { id, namespace, pod, pod_uid, container, attempt, labels, this_boot, state });
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// Takes away a record of which nobody can tell whose it was, once it is proven that nothing of it runs. One that
    /// cannot be read for another reason may be read later.
    fn sweep(&self, id: &ContainerId, error: io::Error) -> Result<(), ListError> {
        let record = self.record(id);
        if !record.is_torn() || !matches!(self.state(id), State::Exited(_)) {
            return Err(ListError { path: record.path().to_owned(), source: error });
        }
        tracing::warn!(container = %id, %error, "a container's record is torn, and goes");
        if let Err(error) = record.remove() {
            tracing::warn!(container = %id, %error, "what is left of a container stays");
        }
        Ok(())
    }

    /// Runs a program in a container: same identity, rights and environment.
    pub async fn exec(&self, id: &ContainerId, spec: ExecSpec) -> Result<ExecSession, ExecError> {
        ExecSession::start(self, id, spec).await
    }

    /// Reads a container's log.
    pub async fn logs(&self, id: &ContainerId, options: LogOptions) -> Result<Logs, LogError> {
        let order = self.record(id).order();
        let order = order.map_err(|source| LogError::File { path: self.directory(id), source })?;
        let order = order.ok_or_else(|| LogError::NoSuchContainer(id.clone()))?;
        Logs::open(self.clone(), id.clone(), order.log, options)
    }
}

/// Kills a process unless told otherwise.
struct Guard(Option<Process>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            // It may have ended by itself.
            let _ = process.signal(SIGKILL);
        }
    }
}

/// Sees to it that no child of ours stays behind as a zombie.
fn reap(mut child: Child) -> io::Result<()> {
    let Some(process) = Process::open(child.id())? else { return Ok(()) };
    tokio::spawn(async move {
        ended(process.into_descriptor()).await;
        // It has ended, so this does not wait.
        let _ = child.wait();
    });
    Ok(())
}

/// A process that has not ended. One that has and that nobody waited for is still there to be found.
fn living(process: io::Result<Option<Process>>) -> Option<Process> {
    process.ok().flatten().filter(|process| matches!(process.ended_within(0), Ok(false)))
}

/// Ready when the process has ended.
async fn ended(process: OwnedFd) {
    // Not a pipe, but readable when there is news, like one.
    match pipe::Receiver::from_owned_fd_unchecked(process) {
        Ok(process) => drop(process.readable().await),
        Err(error) => {
            tracing::warn!(%error, "cannot wait for a process");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// What a program whose name is in [`Settings::program`] calls before all else, with its arguments: if it was started
/// for a container, this does the work and answers with the exit code. It must still have only one thread.
pub fn helper(args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let args: Vec<OsString> = args.skip(1).take(4).collect();
    let text = |index: usize| args.get(index).and_then(|arg| arg.to_str());
    let directory = Path::new(args.get(1)?);
    let result = match (text(0)?, text(2).map(str::parse)) {
        (SHIM, None) => shim::run(directory),
        (INIT, Some(Ok(socket))) => init::run(directory, socket),
        (EXEC, None) => enter::run(directory),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("container {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    })
}
