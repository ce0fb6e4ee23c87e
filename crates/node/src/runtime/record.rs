//! What is on disk of a container: its directory, and the files in it.
//!
//! - `order.json`: what was asked for. It is there before the shim is started.
//! - `lock`: held by whoever makes the container, then by its shim as long as that lives, whatever ends it.
//! - `running.json`: who the shim and the program are.
//! - `exit.json`: how it ended; never changed once it is there.
//!
//! All of it is readable for root alone: environments hold secrets.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wharf_cluster::now;
use wharf_linux::sandbox::{Process, boot_id};
use wharf_linux::{Beneath, Linux, write_durably};
use wharf_model::Time;

use super::spec::{Cause, ContainerSpec, Exit, State};

/// The signal that nobody can refuse.
pub(super) const SIGKILL: i32 = 9;
/// The signal that asks for an end.
pub(super) const SIGTERM: i32 = 15;

/// What the shim is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The container.
    pub(super) spec: ContainerSpec,
    /// What it must not see.
    pub(super) hidden: Vec<PathBuf>,
    /// Its log.
    pub(super) log: PathBuf,
    /// See [`super::Settings::log_bytes`].
    pub(super) log_bytes: u64,
    /// See [`super::Settings::log_files`].
    pub(super) log_files: usize,
    /// See [`super::Settings::scratch_bytes`].
    pub(super) scratch_bytes: u64,
}

/// A process that can be found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Who {
    /// Its number.
    pub(super) pid: u32,
    /// When it began, in the kernel's ticks.
    pub(super) start: u64,
}

impl Who {
    /// The process, which must be the caller or its child.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let start = Process::open(pid)?.map(|process| process.start()).transpose()?.flatten();
        start.map(|start| Self { pid, start }).ok_or_else(|| io::Error::other("the process is gone"))
    }

    fn find(self) -> io::Result<Option<Process>> {
        Process::find(self.pid, self.start)
    }
}

/// Who belongs to a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Running {
    /// Numbers mean nothing after the machine was started anew.
    pub(super) boot: String,
    /// The shim.
    pub(super) shim: Who,
    /// The program, or what is to become it.
    pub(super) program: Who,
    /// Since when the program itself runs, in milliseconds since 1970; `None` while its surroundings are made.
    pub(super) started: Option<i64>,
}

impl Running {
    /// Whether the machine was not started anew since. If nobody can tell, it was not.
    pub(super) fn is_of_this_boot(&self) -> bool {
        boot_id().map_or(true, |boot| boot == self.boot)
    }

    /// The program's process, if it is there.
    pub(super) fn program(&self) -> io::Result<Option<Process>> {
        if boot_id()? == self.boot { self.program.find() } else { Ok(None) }
    }

    /// The shim's process, if it is there.
    pub(super) fn shim(&self) -> io::Result<Option<Process>> {
        if boot_id()? == self.boot { self.shim.find() } else { Ok(None) }
    }
}

/// A container's directory.
#[derive(Debug, Clone)]
pub(super) struct Record(PathBuf);

impl Record {
    /// In this directory.
    pub(super) fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory with the order in it, and answers the lock, which is the shim's from then on; `None` if the
    /// container is there already. Since the lock is held from before the order is there until the shim ends, no moment
    /// looks like a shim that was lost.
    pub(super) fn create(&self, order: &Order) -> io::Result<Option<File>> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        let Some(lock) = self.lock()? else { return Ok(None) };
        // One that died in between left a directory without an order: nothing was started for it.
        if self.is_ordered()? {
            return Ok(None);
        }
        self.write("order.json", order)?;
        Ok(Some(lock))
    }

    /// Whether anything was asked for.
    pub(super) fn is_ordered(&self) -> io::Result<bool> {
        self.0.join("order.json").try_exists()
    }

    /// What was asked for; `None` if there is no such container.
    pub(super) fn order(&self) -> io::Result<Option<Order>> {
        self.read("order.json")
    }

    /// Who belongs to it; `None` before anybody does.
    pub(super) fn running(&self) -> io::Result<Option<Running>> {
        self.read("running.json")
    }

    /// Notes who belongs to it.
    pub(super) fn set_running(&self, running: &Running) -> io::Result<()> {
        self.write("running.json", running)
    }

    /// How it ended; `None` if that is not known yet.
    pub(super) fn exit(&self) -> io::Result<Option<Exit>> {
        self.read("exit.json")
    }

    /// Notes how it ended, durably: whether a pod has done its work must be known after a crash, too.
    pub(super) fn set_exit(&self, exit: &Exit) -> io::Result<()> {
        let bytes = serde_json::to_vec(exit)?;
        write_durably(&Linux::new(), &Beneath::new(&self.0, Path::new("exit.json")), &bytes)
            .map_err(io::Error::other)
    }

    /// The shim's lock; `None` if somebody has it.
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

    /// How the container is. If its shim is gone without a word, what is left of it is killed, and that it is lost is
    /// noted: nobody would write its log or see its end. It counts as running until that is proven, which is not waited for:
    /// a program in the middle of a write to a disk that hangs takes its time.
    pub(super) fn settle(&self) -> io::Result<State> {
        if let Some(exit) = self.exit()? {
            return Ok(State::Exited(exit));
        }
        if !self.is_ordered()? {
            return Ok(State::Unknown);
        }
        let lock = self.lock()?;
        // Read after the lock was tried: a shim notes the end before it lets go.
        if let Some(exit) = self.exit()? {
            return Ok(State::Exited(exit));
        }
        let running = match self.running() {
            // Nobody of ours leaves half a file. The machine was cut off while it was in memory alone, and with it all
            // that ran. While the lock is held, somebody lives who wrote it.
            Err(error) if lock.is_some() && is_torn(&error) => None,
            running => running?,
        };
        let started = running.as_ref().and_then(|running| running.started).map(Time);
        let pid = running.as_ref().map_or(0, |running| running.program.pid);
        if lock.is_none() {
            return Ok(State::Running { pid, started: started.unwrap_or_else(now) });
        }
        if let Some(program) = running.as_ref().map(Running::program).transpose()?.flatten() {
            program.signal(SIGKILL)?;
            if !program.ended_within(0)? {
                return Ok(State::Running { pid, started: started.unwrap_or_else(now) });
            }
        }
        let cause = if started.is_some() { Cause::Lost } else { Cause::NeverRan };
        let finished = now();
        let exit = Exit { code: 137, signal: Some(9), started: started.unwrap_or(finished), finished, cause };
        self.set_exit(&exit)?;
        Ok(State::Exited(exit))
    }

    /// Whether what was asked for is known no more: it was in memory alone when the machine was cut off.
    pub(super) fn is_torn(&self) -> bool {
        self.order().is_err_and(|error| is_torn(&error))
    }

    /// Removes what has no order: nothing was started for it, or it had ended and its removal was broken off. One that is
    /// just being made stays, and so does one whose shim lives.
    pub(super) fn abandon(&self) -> io::Result<()> {
        match self.lock()? {
            Some(_lock) if !self.is_ordered()? => self.remove(),
            _ => Ok(()),
        }
    }

    /// Removes it all; nothing happens if it is gone.
    pub(super) fn remove(&self) -> io::Result<()> {
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

    /// Whole or not at all, but not durably: after a crash of the machine nothing runs of which this would tell.
    fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        let temporary = self.0.join(format!("{name}.new"));
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(value)?)?;
        fs::rename(&temporary, self.0.join(name))
    }
}

/// Whether a file was read and is not whole.
fn is_torn(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
}
