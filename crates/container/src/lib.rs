//! Container runtime: containers as host processes.
//!
//! A container is a host program in its own namespaces (mount, PID, IPC, UTS). Its root is the host's root under an
//! overlay whose writes are discarded. It sees its own volumes and no others, a `/dev` with a few devices, and none
//! of the directories in [`Settings::hidden`].
//!
//! Each container has a shim: a process that creates it, writes its log, waits for it and records its exit. The shim
//! is not part of the agent: it keeps running when the agent is killed, and [`Runtime::list`] finds its container
//! again. If the shim itself is killed, its container is killed with it and reported as lost.
//!
//! Start at [`Runtime`]. [`Containers`] is the part of it that pods depend on. The processes are in `shim` (watches a
//! container), `init` (becomes its program) and `enter` (exec); `layout` decides what a container's root looks like, `root`
//! mounts it, with the kernel features in `sandbox`. [`hidden`] keeps pods out of host directories.

mod capabilities;
mod containers;
mod enter;
mod error;
mod exec;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod hidden;
mod host_memory;
mod init;
mod layout;
mod log;
mod record;
mod report;
mod root;
mod runtime;
mod sandbox;
mod shim;
mod short;
mod spec;

pub use containers::{Containers, RunResult};
pub use error::{ExecError, ListError, LogError, OpenError, RemoveError, SignalError, StartError};
pub use exec::{ExecSession, Resizer};
pub use log::reader::Logs;
pub use runtime::{Runtime, Settings, run_helper};
pub use spec::{
    Cause, ContainerDevice, ContainerId, ContainerInfo, ContainerMount, ContainerSpec, ExecSpec, Exit,
    LogOptions, LogStream, Rights, State, TerminalSize, User,
};
