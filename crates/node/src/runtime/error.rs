//! What can go wrong with containers, one enum for each operation.

use std::io;
use std::path::PathBuf;

use super::spec::ContainerId;

/// What the runtime needs cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {source}; the node agent needs it for its containers, and needs to be root", path.display())]
pub struct OpenError {
    /// A directory, or the helpers' program.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// A container did not start. Nothing of it runs or is mounted; [`super::Runtime::remove`] takes away its files.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The pod asked for something that it does not allow itself, or that cannot be. Kubelet's reason is
    /// `CreateContainerConfigError`: it will not work until the pod or its volumes change.
    #[error("{0}")]
    Config(String),
    /// The program cannot be run. Kubelet's reason is `StartError`, with exit code 128.
    #[error("{0}")]
    Program(String),
    /// The machine did not do what it should. Kubelet's reason is `RunContainerError`.
    #[error("container {container}: {step}: {reason}")]
    Machine {
        /// The container.
        container: String,
        /// What was tried.
        step: String,
        /// What the kernel said.
        reason: String,
    },
}

/// A signal could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SignalError {
    /// It has ended, or there is no such container.
    #[error("container {0} does not run")]
    NotRunning(ContainerId),
    /// Not a signal's number.
    #[error("there is no signal {0}")]
    NoSuchSignal(i32),
    /// The kernel refused.
    #[error("container {id}: signal {signal}: {source}")]
    Refused {
        /// The container.
        id: ContainerId,
        /// The signal.
        signal: i32,
        /// Why.
        source: io::Error,
    },
}

/// A container's files could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// It runs: stop it first.
    #[error("container {0} is running; stop it before its files are removed")]
    Running(ContainerId),
    /// The file system refused.
    #[error("container {id}: cannot remove {}: {source}", path.display())]
    Files {
        /// The container.
        id: ContainerId,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The containers could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the containers in {}: {source}", path.display())]
pub struct ListError {
    /// The directory of all, or of the one that cannot be told.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// A program did not start in a container.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// It has ended, or there is no such container.
    #[error("container {0} does not run")]
    NotRunning(ContainerId),
    /// The program cannot be run; `code` is what a shell would say: 127 if it is not there, 126 otherwise.
    #[error("{message}")]
    Program {
        /// 126 or 127.
        code: i32,
        /// Which program, and why.
        message: String,
    },
    /// The machine did not do what it should.
    #[error("container {id}: exec: {reason}")]
    Machine {
        /// The container.
        id: ContainerId,
        /// What happened.
        reason: String,
    },
}

/// A log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// There is no such container.
    #[error("there is no container {0}")]
    NoSuchContainer(ContainerId),
    /// The file cannot be read.
    #[error("cannot read the log {}: {source}", path.display())]
    File {
        /// The log.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}
