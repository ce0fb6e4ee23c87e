//! The interface between pods and the container runtime.
//!
//! Pods depend on [`Containers`] only. [`crate::Runtime`] is the one implementation: host processes. A
//! client of a CRI socket could be a second one without a change to any pod rule: [`ContainerSpec`] describes the
//! container completely, with host paths for its volumes. Logs and interactive exec are not part of it: they are methods
//! of the runtime itself.

use std::time::Duration;

use async_trait::async_trait;

use crate::{ContainerId, ContainerInfo, ContainerSpec, Exit, ListError, RemoveError, StartError, State};

/// A container runtime. Containers outlive the agent: they keep running when it exits and are found again on restart.
#[async_trait]
pub trait Containers: Send + Sync {
    /// Lists all containers, including those that an earlier agent started.
    fn list(&self) -> Result<Vec<ContainerInfo>, ListError>;

    /// Returns a container's current state. Called often and with locks held, so it must not block. If the state
    /// cannot be determined, it reports running: a container wrongly reported as exited would lose its volumes.
    fn state(&self, id: &ContainerId) -> State;

    /// Waits until a container exits; `None` if it does not exist.
    async fn exited(&self, id: &ContainerId) -> Option<Exit>;

    /// Starts a container and returns once its program runs. A repeated call for the same attempt returns the id of the
    /// existing container, running or not. A failed start leaves nothing behind and can be retried.
    async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, StartError>;

    /// Stops a container: SIGTERM first, SIGKILL after `grace`. Returns how it exited; `None` if it does not exist.
    async fn stop(&self, id: &ContainerId, grace: Duration) -> Option<Exit>;

    /// Removes what is left of an exited container. Idempotent.
    async fn remove(&self, id: &ContainerId) -> Result<(), RemoveError>;

    /// Runs a short program in a container to completion, for at most `limit`: probes and hooks.
    async fn run(&self, id: &ContainerId, command: &[String], limit: Duration) -> RunResult;
}

/// Result of a short program.
#[derive(Debug, PartialEq, Eq)]
pub enum RunResult {
    /// It exited.
    Ended {
        /// Its exit code.
        code: i32,
        /// The beginning of its output.
        output: String,
    },
    /// It did not exit in time and was killed.
    TimedOut,
    /// It could not be run, or its exit status is unknown.
    Failed(String),
}
