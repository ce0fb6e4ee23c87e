//! The containers of a node: start, observe, stop, remove, list.

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

use crate::error::{ExecError, ListError, LogError, OpenError, RemoveError, SignalError, StartError};
use crate::exec::ExecSession;
use crate::log::reader::Logs;
use crate::record::{Order, Record, SIGKILL, SIGTERM};
use crate::report::{Failure, Started};
use crate::sandbox::{DetachedMount, MountFlags, ProcessHandle, scoped_path};
use crate::spec::{ContainerId, ContainerInfo, ContainerSpec, ExecSpec, Exit, LogOptions, State};
use crate::{enter, init, layout, log, shim};

/// First argument of a shim process.
const SHIM: &str = "container-shim";
/// First argument of a container's init process, which becomes its program.
pub(crate) const INIT: &str = "container-init";
/// First argument of a process that runs a program in a container.
pub(crate) const EXEC: &str = "container-exec";

/// Timeout of a container start: kubelet's timeout for a container runtime.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Time to wait for a killed container before it is killed again.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to wait for the processes of a failed start to exit.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Poll interval for a container that an earlier agent was just starting.
const STARTING_POLL: Duration = Duration::from_millis(20);
/// Poll interval for a container whose state cannot be determined, for example because the disk is full.
const UNKNOWN_STATE_POLL: Duration = Duration::from_secs(1);

/// Settings of the runtime.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The program that calls [`run_helper`] first in `main`: usually the agent's own, `/proc/self/exe`.
    pub program: PathBuf,
    /// Directory of the containers' records. Must not be shared with another runtime.
    pub directory: PathBuf,
    /// Directory of logs, in kubelet's layout: `<namespace>_<pod>_<uid>/<container>/<attempt>.log`.
    pub logs: PathBuf,
    /// Paths hidden from containers: the data directory, kubelet's root, pools. The runtime's own directories are
    /// implied.
    pub hidden: Vec<PathBuf>,
    /// A log file is rotated at this size.
    pub log_bytes: u64,
    /// Maximum number of files of a log.
    pub log_files: usize,
    /// Maximum size of what a container writes outside its volumes; kept in memory.
    pub scratch_bytes: u64,
}

impl Settings {
    /// Defaults: kubelet's log limits, and 1 GiB for writes outside volumes.
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
    /// The helpers' program, on a read-only mount. A container could make its own program point to the helper and so
    /// obtain a descriptor of the host's file.
    program: Arc<DetachedMount>,
}

impl Runtime {
    /// Creates the directories and opens the program.
    pub fn open(mut settings: Settings) -> Result<Self, OpenError> {
        for (path, mode) in [(&mut settings.directory, 0o700), (&mut settings.logs, 0o755)] {
            let created = DirBuilder::new().recursive(true).mode(mode).create(&*path);
            // Without symlinks, so that it can be hidden by its path.
            let whole = created.and_then(|()| fs::canonicalize(&*path));
            *path = whole.map_err(|source| OpenError { path: path.clone(), source })?;
        }
        let program = scoped_path::open(&settings.program)
            .and_then(|file| {
                DetachedMount::copy(file, MountFlags { read_only: true, ..MountFlags::default() })
            })
            .map_err(|source| OpenError { path: settings.program.clone(), source })?;
        Ok(Self { settings: Arc::new(settings), program: Arc::new(program) })
    }

    /// A helper command for the container in `directory`.
    pub(crate) fn helper_command(&self, role: &str, directory: &Path) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_fd().as_raw_fd()));
        command.arg0("wharf").arg(role).arg(directory).env_clear().current_dir("/");
        command
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn directory(&self, id: &ContainerId) -> PathBuf {
        self.settings.directory.join(id.as_str())
    }

    fn record(&self, id: &ContainerId) -> Record {
        Record::at(self.directory(id))
    }

    fn log(&self, spec: &ContainerSpec) -> PathBuf {
        let pod = format!("{}_{}_{}", spec.namespace, spec.pod, spec.pod_uid);
        self.settings.logs.join(pod).join(&spec.container).join(format!("{}.log", spec.attempt))
    }

    /// Starts a container and returns once its program runs. A repeated call for the same attempt returns the id of the
    /// existing container, running or not. A failed start leaves nothing behind and can be retried.
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
            Ok(started) => tokio::time::timeout(START_TIMEOUT, started).await.unwrap_or_else(|_| {
                Err(Failure::machine("start", "timed out; a volume or the disk may hang"))
            }),
            Err(error) => Err(Failure::machine("shim", error)),
        };
        match started {
            Ok(()) => Ok(id),
            Err(failure) => {
                self.clean_up(&id, &order.log).await;
                Err(failure.into_error(&container))
            }
        }
    }

    /// Paths hidden from containers, without symlinks; includes the runtime's own directories.
    pub fn hidden(&self) -> Vec<PathBuf> {
        let Settings { directory, logs, hidden, .. } = self.settings();
        let own = [directory, logs].into_iter().chain(hidden);
        // A path that does not exist has no other name and does not have to be hidden yet.
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

    /// Starts the shim and passes it the lock. The returned future resolves to the result of the start.
    fn spawn_shim(
        &self,
        record: &Record,
        lock: OwnedFd,
    ) -> io::Result<impl Future<Output = Result<(), Failure>> + use<>> {
        let mut errors = OpenOptions::new();
        let errors = errors.create(true).append(true).mode(0o600).open(record.path().join("shim.log"))?;
        let (messages, sender) = io::pipe()?;
        let mut shim = self.helper_command(SHIM, record.path());
        shim.stdin(lock).stdout(sender).stderr(errors);
        let child = shim.spawn()?;
        let process = ProcessHandle::open(child.id())?;
        // Close our copies of the lock and of the pipe's write end: from now on only the shim holds them.
        drop(shim);
        reap(child)?;
        let messages = pipe::Receiver::from_owned_fd(messages.into())?;
        Ok(async move {
            // Dropping the future kills the shim, and the container with it.
            let mut guard = Guard(process);
            let mut lines = BufReader::new(messages).lines();
            let line = lines.next_line().await.map_err(|error| Failure::machine("shim", error))?;
            let line = line.ok_or_else(|| Failure::machine("shim", "the shim exited without a result"))?;
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

    /// Cleans up after a failed start. What cannot be removed is found later, as a container that never ran.
    async fn clean_up(&self, id: &ContainerId, log: &Path) {
        // The shim or the init process may still be exiting.
        if tokio::time::timeout(CLEANUP_TIMEOUT, self.exited(id)).await.is_ok() {
            let _ = log::file::remove(log);
            let _ = self.record(id).remove();
        }
    }

    /// Returns a container's current state. If it cannot be determined, reports running: a container wrongly reported
    /// as exited would lose its volumes.
    pub fn state(&self, id: &ContainerId) -> State {
        self.try_state(id).unwrap_or_else(|| State::Running { pid: 0, started: wharf_model::system::now() })
    }

    /// Returns a container's state; `None` if it cannot be determined.
    fn try_state(&self, id: &ContainerId) -> Option<State> {
        let state = self.record(id).determine_state().inspect_err(|error| {
            tracing::warn!(container = %id, %error, "failed to determine container state; assuming it is running");
        });
        state.ok()
    }

    /// Waits until a container exits; `None` if it does not exist.
    pub async fn exited(&self, id: &ContainerId) -> Option<Exit> {
        loop {
            match self.try_state(id) {
                Some(State::Unknown) => return None,
                Some(State::Exited(exit)) => return Some(exit),
                Some(State::Running { .. }) => {}
                None => {
                    tokio::time::sleep(UNKNOWN_STATE_POLL).await;
                    continue;
                }
            }
            let running = self.record(id).running().ok().flatten();
            let (shim, program) =
                running.map_or((None, None), |running| (alive(running.shim()), alive(running.program())));
            match (shim, program) {
                (Some(shim), _) => ended(shim.into_pidfd()).await,
                // It was killed when its shim was found dead. If that just happened, the next iteration kills it.
                (None, Some(program)) => {
                    let _ = tokio::time::timeout(KILL_TIMEOUT, ended(program.into_pidfd())).await;
                }
                (None, None) => tokio::time::sleep(STARTING_POLL).await,
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

    /// Stops a container: SIGTERM, then SIGKILL after `grace`. Returns how it exited; `None` if it does not exist.
    pub async fn stop(&self, id: &ContainerId, grace: Duration) -> Option<Exit> {
        let (mut signal, mut wait_time) = (SIGTERM, grace);
        loop {
            match self.signal(id, signal) {
                Ok(()) | Err(SignalError::NotRunning(_)) => {}
                Err(error) => tracing::warn!(%error, "failed to signal container"),
            }
            if let Ok(exit) = tokio::time::timeout(wait_time, self.exited(id)).await {
                return exit;
            }
            // Repeated: a container that an earlier agent was just starting may not have had a process to signal yet.
            (signal, wait_time) = (SIGKILL, KILL_TIMEOUT);
        }
    }

    /// Removes the files and the log of an exited container. Idempotent.
    pub async fn remove(&self, id: &ContainerId) -> Result<(), RemoveError> {
        let record = self.record(id);
        let failed =
            |path: &Path, source| RemoveError::Files { id: id.clone(), path: path.to_owned(), source };
        match self.state(id) {
            State::Running { .. } => return Err(RemoveError::Running(id.clone())),
            State::Exited(_) | State::Unknown => {}
        }
        // The log first: its path is in the record.
        if let Ok(Some(order)) = record.order() {
            log::file::remove(&order.log).map_err(|error| failed(&order.log, error))?;
        }
        record.remove().map_err(|error| failed(record.path(), error))
    }

    /// Lists all containers, including those started by an earlier agent. Fails if one cannot be read: a caller that
    /// does not know of it would start a second one on the same volumes.
    pub fn list(&self) -> Result<Vec<ContainerInfo>, ListError> {
        let failed = |source| ListError { path: self.settings.directory.clone(), source };
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.settings.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(id) = name.to_str().and_then(ContainerId::parse) else { continue };
            let order = match self.record(&id).order() {
                Ok(Some(order)) => order,
                // Never started, or partly removed.
                Ok(None) => {
                    if let Err(error) = self.record(&id).remove_if_unordered() {
                        tracing::warn!(container = %id, %error, "failed to remove container record");
                    }
                    continue;
                }
                Err(error) => {
                    self.remove_truncated(&id, error)?;
                    continue;
                }
            };
            let state = self.state(&id);
            let this_boot = match &state {
                State::Running { .. } => true,
                // A truncated record was written before a power failure.
                State::Exited(_) | State::Unknown => {
                    let running = self.record(&id).running().ok().flatten();
                    running.is_some_and(|running| running.is_of_this_boot())
                }
            };
            let ContainerSpec { namespace, pod, pod_uid, container, attempt, labels, .. } = order.spec;
            found.push(ContainerInfo {
                id,
                namespace,
                pod,
                pod_uid,
                container,
                attempt,
                labels,
                this_boot,
                state,
            });
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// Removes a truncated record after verifying that nothing of the container runs. A record that is unreadable for
    /// another reason may become readable later.
    fn remove_truncated(&self, id: &ContainerId, error: io::Error) -> Result<(), ListError> {
        let record = self.record(id);
        if !record.is_truncated() || !matches!(self.state(id), State::Exited(_)) {
            return Err(ListError { path: record.path().to_owned(), source: error });
        }
        tracing::warn!(container = %id, %error, "removing truncated container record");
        if let Err(error) = record.remove() {
            tracing::warn!(container = %id, %error, "failed to remove container record");
        }
        Ok(())
    }

    /// Runs a program in a container, with the container's user, privileges and environment.
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

/// Kills a process on drop, unless disarmed.
struct Guard(Option<ProcessHandle>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            // It may have exited already.
            let _ = process.signal(SIGKILL);
        }
    }
}

/// Reaps a child when it exits, so that it does not stay a zombie.
pub(crate) fn reap(mut child: Child) -> io::Result<()> {
    let Some(process) = ProcessHandle::open(child.id())? else { return Ok(()) };
    tokio::spawn(async move {
        ended(process.into_pidfd()).await;
        // It has exited, so this does not block.
        let _ = child.wait();
    });
    Ok(())
}

/// A process that has not exited. An unreaped one can still be opened, so that is checked.
fn alive(process: io::Result<Option<ProcessHandle>>) -> Option<ProcessHandle> {
    process.ok().flatten().filter(|process| matches!(process.exited_within(0), Ok(false)))
}

/// Waits until the process has exited.
async fn ended(process: OwnedFd) {
    // A pidfd is not a pipe, but becomes readable like one.
    match pipe::Receiver::from_owned_fd_unchecked(process) {
        Ok(process) => drop(process.readable().await),
        Err(error) => {
            tracing::warn!(%error, "failed to wait for process");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Entry point of helper processes: the program in [`Settings::program`] calls this first in `main`, with its
/// arguments. If it was started as a helper, this does the work and returns the exit code. Must be called while
/// single-threaded.
pub fn run_helper(args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
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
