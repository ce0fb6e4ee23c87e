//! A container's record on disk: its directory and the files in it.
//!
//! - `order.json`: the request. Exists before the shim is started.
//! - `lock`: held by the process that creates the container, then by its shim until that exits for whatever reason.
//! - `running.json`: identities of the shim's and the program's processes.
//! - `exit.json`: how the container exited; never changed once written.
//!
//! Readable for root only: environments contain secrets.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wharf_linux::{Linux, PathBeneath, write_durably};
use wharf_model::Time;
use wharf_model::system::now;

use crate::sandbox::{ProcessHandle, boot_id};
use crate::spec::{Cause, ContainerSpec, Exit, State};

pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;

/// What the shim has to run; stored as `order.json` in the container's directory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The container.
    pub(crate) spec: ContainerSpec,
    /// Paths hidden from it.
    pub(crate) hidden: Vec<PathBuf>,
    /// Its log file.
    pub(crate) log: PathBuf,
    /// See [`crate::Settings::log_bytes`].
    pub(crate) log_bytes: u64,
    /// See [`crate::Settings::log_files`].
    pub(crate) log_files: usize,
    /// See [`crate::Settings::scratch_bytes`].
    pub(crate) scratch_bytes: u64,
}

/// Identity of a process across restarts of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    /// The pid.
    pub(crate) pid: u32,
    /// Its start time in kernel ticks, which distinguishes it from a later process with the same pid.
    pub(crate) start: u64,
}

impl ProcessIdentity {
    /// The identity of the calling process or of its child.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let start = ProcessHandle::open(pid)?.map(|process| process.start_time()).transpose()?.flatten();
        start.map(|start| Self { pid, start }).ok_or_else(|| io::Error::other("the process is gone"))
    }

    fn find(self) -> io::Result<Option<ProcessHandle>> {
        ProcessHandle::find(self.pid, self.start)
    }
}

/// The processes of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// The boot id: pids are meaningless after a reboot.
    pub(crate) boot: String,
    /// The shim.
    pub(crate) shim: ProcessIdentity,
    /// The program, or the init process that becomes it.
    pub(crate) program: ProcessIdentity,
    /// Start time of the program in milliseconds since 1970; `None` while the container is being set up.
    pub(crate) started: Option<i64>,
}

impl Running {
    /// Whether the node has not rebooted since. True if that cannot be determined.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        boot_id().map_or(true, |boot| boot == self.boot)
    }

    /// The program's process, if it exists.
    pub(crate) fn program(&self) -> io::Result<Option<ProcessHandle>> {
        if boot_id()? == self.boot { self.program.find() } else { Ok(None) }
    }

    /// The shim's process, if it exists.
    pub(crate) fn shim(&self) -> io::Result<Option<ProcessHandle>> {
        if boot_id()? == self.boot { self.shim.find() } else { Ok(None) }
    }
}

/// A container's directory.
#[derive(Debug, Clone)]
pub(crate) struct Record(PathBuf);

impl Record {
    /// The record in this directory.
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the directory with the order and returns the lock, which is passed to the shim; `None` if the
    /// container exists already. The lock is held from before the order exists until the shim exits, so a container
    /// being created never looks like one whose shim was lost.
    pub(crate) fn create(&self, order: &Order) -> io::Result<Option<File>> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        let Some(lock) = self.lock()? else { return Ok(None) };
        // A process that crashed in between left a directory without an order: nothing was started.
        if self.has_order()? {
            return Ok(None);
        }
        self.write("order.json", order)?;
        Ok(Some(lock))
    }

    /// Whether the order exists.
    pub(crate) fn has_order(&self) -> io::Result<bool> {
        self.0.join("order.json").try_exists()
    }

    /// The order; `None` if there is no such container.
    pub(crate) fn order(&self) -> io::Result<Option<Order>> {
        self.read("order.json")
    }

    /// The container's processes; `None` before they exist.
    pub(crate) fn running(&self) -> io::Result<Option<Running>> {
        self.read("running.json")
    }

    /// Records the container's processes.
    pub(crate) fn set_running(&self, running: &Running) -> io::Result<()> {
        self.write("running.json", running)
    }

    /// How it exited; `None` if not known yet.
    pub(crate) fn exit(&self) -> io::Result<Option<Exit>> {
        self.read("exit.json")
    }

    /// Records the exit durably: whether a pod has completed must survive a crash.
    pub(crate) fn set_exit(&self, exit: &Exit) -> io::Result<()> {
        let bytes = serde_json::to_vec(exit)?;
        write_durably(&Linux::new(), &PathBeneath::new(&self.0, Path::new("exit.json")), &bytes)
            .map_err(io::Error::other)
    }

    /// Takes the shim's lock; `None` if another process holds it.
    fn lock(&self) -> io::Result<Option<File>> {
        let open = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.0.join("lock"))?;
        match flock(&open, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(open)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Determines the container's state. If its shim is gone without having recorded an exit, kills what is left and
    /// records the container as lost: nothing would write its log or observe its exit. Until the program is gone it
    /// counts as running; this does not wait for it, because a program blocked on a hanging disk may take long.
    pub(crate) fn determine_state(&self) -> io::Result<State> {
        if let Some(exit) = self.exit()? {
            return Ok(State::Exited(exit));
        }
        if !self.has_order()? {
            return Ok(State::Unknown);
        }
        let lock = self.lock()?;
        // Read again after trying the lock: a shim records the exit before it releases the lock.
        if let Some(exit) = self.exit()? {
            return Ok(State::Exited(exit));
        }
        let running = match self.running() {
            // Our own writes are atomic, so a truncated file means that the node lost power before it was written
            // back, and with it everything that ran. While the lock is held, its writer is alive.
            Err(error) if lock.is_some() && is_truncated(&error) => None,
            running => running?,
        };
        let started = running.as_ref().and_then(|running| running.started).map(Time);
        let pid = running.as_ref().map_or(0, |running| running.program.pid);
        if lock.is_none() {
            return Ok(State::Running { pid, started: started.unwrap_or_else(now) });
        }
        if let Some(program) = running.as_ref().map(Running::program).transpose()?.flatten() {
            program.signal(SIGKILL)?;
            if !program.exited_within(0)? {
                return Ok(State::Running { pid, started: started.unwrap_or_else(now) });
            }
        }
        let cause = if started.is_some() { Cause::Lost } else { Cause::NeverRan };
        let finished = now();
        let exit = Exit { code: 137, signal: Some(9), started: started.unwrap_or(finished), finished, cause };
        self.set_exit(&exit)?;
        Ok(State::Exited(exit))
    }

    /// Whether the order is truncated: it was not written back when the node lost power.
    pub(crate) fn is_truncated(&self) -> bool {
        self.order().is_err_and(|error| is_truncated(&error))
    }

    /// Removes a record without an order: nothing was started, or its removal was interrupted. A record that is being
    /// created, or whose shim is alive, stays.
    pub(crate) fn remove_if_unordered(&self) -> io::Result<()> {
        match self.lock()? {
            Some(_lock) if !self.has_order()? => self.remove(),
            _ => Ok(()),
        }
    }

    /// Removes the record; a missing one is success.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        match fs::read(self.0.join(name)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Atomic but not durable: after a power failure nothing runs that this would describe.
    fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        let temporary = self.0.join(format!("{name}.new"));
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(value)?)?;
        fs::rename(&temporary, self.0.join(name))
    }
}

/// Whether a file was read but is incomplete.
fn is_truncated(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
}

/// Reads a file of a container's record and writes it again, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub fn rewrite_container_record(file: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    fn rewrite<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<Vec<u8>> {
        serde_json::from_slice::<T>(bytes).ok().and_then(|value| serde_json::to_vec(&value).ok())
    }
    match file {
        "order.json" => rewrite::<Order>(bytes),
        "running.json" => rewrite::<Running>(bytes),
        _ => rewrite::<Exit>(bytes),
    }
}
