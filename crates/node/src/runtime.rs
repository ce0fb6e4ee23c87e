//! Containers as host processes.
//!
//! A container is a program of the host in namespaces of its own (mounts, processes, IPC, host name), with a root that
//! is the host's root under an overlay whose writes are thrown away. It sees its own volumes and no other ones, a `/dev`
//! of a few devices, and none of the places that [`Settings::hidden`] names.
//!
//! Each container has a shim: a process that makes it, writes its log, waits for it and notes how it ended. The shim is
//! no part of the agent: it goes on when the agent is killed, and [`Runtime::list`] finds its container again. If the
//! shim itself is killed, its container dies with it, and its state says so.

mod error;
mod spec;

use std::path::PathBuf;
use std::time::Duration;

use tokio::net::unix::pipe;

pub use error::{ExecError, ListError, LogError, OpenError, RemoveError, SignalError, StartError};
pub use spec::{
    Cause, ContainerDevice, ContainerId, ContainerMount, ContainerSpec, ExecSpec, Exit, Found, LogOptions,
    LogStream, Rights, State, TerminalSize, User,
};

/// How the runtime is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The program that calls [`helper`] before all else: the agent's own, as a rule.
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

/// The containers of this node.
#[derive(Debug, Clone)]
pub struct Runtime {}

impl Runtime {
    /// Makes the directories.
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        unimplemented!()
    }

    /// Starts a container; its program runs when this answers. Asked for the same attempt again, it answers the id of
    /// the container that is there, running or not.
    pub async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, StartError> {
        unimplemented!()
    }

    /// How a container is, now.
    pub fn state(&self, id: &ContainerId) -> State {
        unimplemented!()
    }

    /// Waits for a container's end; `None` if there is no such container.
    pub async fn exited(&self, id: &ContainerId) -> Option<Exit> {
        unimplemented!()
    }

    /// Sends a signal to a container's program.
    pub fn signal(&self, id: &ContainerId, signal: i32) -> Result<(), SignalError> {
        unimplemented!()
    }

    /// Stops a container: SIGTERM, and SIGKILL after `grace`. Answers how it ended; `None` if there is no such container.
    pub async fn stop(&self, id: &ContainerId, grace: Duration) -> Option<Exit> {
        unimplemented!()
    }

    /// Takes away the files and the log of a container that has ended. Done again, it does nothing.
    pub async fn remove(&self, id: &ContainerId) -> Result<(), RemoveError> {
        unimplemented!()
    }

    /// All containers, also those that an agent before us started.
    pub fn list(&self) -> Result<Vec<Found>, ListError> {
        unimplemented!()
    }

    /// Runs a program in a container: same identity, rights and environment.
    pub async fn exec(&self, id: &ContainerId, spec: ExecSpec) -> Result<ExecSession, ExecError> {
        unimplemented!()
    }

    /// Reads a container's log.
    pub async fn logs(&self, id: &ContainerId, options: LogOptions) -> Result<Logs, LogError> {
        unimplemented!()
    }
}

/// A program that runs in a container. Dropped, it is killed.
#[derive(Debug)]
pub struct ExecSession {
    /// What the program reads; drop it and the program's input is at its end.
    pub stdin: Option<pipe::Sender>,
    /// What it writes; with a terminal, errors too. At its end when nobody has it open any more.
    pub stdout: Option<pipe::Receiver>,
    /// Its errors; `None` with a terminal.
    pub stderr: Option<pipe::Receiver>,
}

impl ExecSession {
    /// Something that can tell the terminal's size while another one waits.
    pub fn resizer(&self) -> Resizer {
        unimplemented!()
    }

    /// Waits for the program's end; answers its exit code, 128 and the number if a signal ended it.
    pub async fn wait(&mut self) -> Result<i32, ExecError> {
        unimplemented!()
    }
}

/// Tells a terminal its size.
#[derive(Debug, Clone)]
pub struct Resizer {}

impl Resizer {
    /// From now on the terminal has this size. Nothing happens if the program has no terminal, or has ended.
    pub fn resize(&self, size: TerminalSize) {
        unimplemented!()
    }
}

/// A log that is being read.
#[derive(Debug)]
pub struct Logs {}

impl Logs {
    /// The next piece: whole lines, as `kubectl logs` prints them; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, LogError> {
        unimplemented!()
    }
}

/// What a program whose name is in [`Settings::program`] calls before all else, with its arguments: if it was started
/// for a container, this does the work and answers with the exit code. It must still have only one thread.
pub fn helper(args: impl Iterator<Item = std::ffi::OsString>) -> Option<std::process::ExitCode> {
    unimplemented!()
}
