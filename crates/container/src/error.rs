//! Errors of the runtime, one enum per operation.

use std::io;
use std::path::PathBuf;

use crate::spec::ContainerId;

/// A directory or the helpers' program cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {source}; the node agent needs it to run containers and must run as root", path.display())]
pub struct OpenError {
    /// A directory, or the helpers' program.
    pub path: PathBuf,
    /// The error.
    pub source: io::Error,
}

/// A container did not start. Nothing of it runs or is mounted; [`crate::Runtime::remove`] removes its files.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The spec is invalid or violates the pod's own policy. Kubelet's reason is `CreateContainerConfigError`: it
    /// does not work until the pod or its volumes change.
    #[error("{0}")]
    Config(String),
    /// The program cannot be executed. Kubelet's reason is `StartError`, with exit code 128.
    #[error("{0}")]
    Program(String),
    /// A system call failed. Kubelet's reason is `RunContainerError`.
    #[error("container {container}: {step}: {reason}")]
    Machine {
        /// The container.
        container: String,
        /// The failed step.
        step: String,
        /// The system error.
        reason: String,
    },
}

/// A signal could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SignalError {
    /// The container has exited or does not exist.
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    /// Not a valid signal number.
    #[error("there is no signal {0}")]
    NoSuchSignal(i32),
    /// The system call failed.
    #[error("container {id}: signal {signal}: {source}")]
    Refused {
        /// The container.
        id: ContainerId,
        /// The signal.
        signal: i32,
        /// The error.
        source: io::Error,
    },
}

/// A container's files could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The container is running: stop it first.
    #[error("container {0} is running; stop it before its files are removed")]
    Running(ContainerId),
    /// The file system reported an error.
    #[error("container {id}: cannot remove {}: {source}", path.display())]
    Files {
        /// The container.
        id: ContainerId,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// The containers could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("failed to list containers in {}: {source}", path.display())]
pub struct ListError {
    /// The directory of all containers, or of the unreadable one.
    pub path: PathBuf,
    /// The error.
    pub source: io::Error,
}

/// A program did not start in a container.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The container has exited or does not exist.
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    /// The program cannot be executed; `code` is what a shell would return: 127 if it is not found, 126 otherwise.
    #[error("{message}")]
    Program {
        /// 126 or 127.
        code: i32,
        /// The program and the reason.
        message: String,
    },
    /// A system call failed.
    #[error("container {id}: exec: {reason}")]
    Machine {
        /// The container.
        id: ContainerId,
        /// The failure.
        reason: String,
    },
}

/// A log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The container does not exist.
    #[error("container {0} does not exist")]
    NoSuchContainer(ContainerId),
    /// The file cannot be read.
    #[error("failed to read container log {}: {source}", path.display())]
    File {
        /// The log file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}
