//! The seam between pods and what runs their containers.
//!
//! Pods know containers by [`Containers`] alone. [`crate::runtime::Runtime`] is the one implementation: host processes. A client of
//! a CRI socket would be another, beside it, and no rule about pods would change: what a pod's container is to be is in
//! [`ContainerSpec`], with paths of the host for its volumes. Logs and commands of users have a seam of their own:
//! [`wharf_apiserver::rest::PodStreams`].

use std::time::Duration;

use async_trait::async_trait;

use crate::runtime::{ContainerId, ContainerSpec, Exit, Found, ListError, RemoveError, StartError, State};

/// What runs containers. It outlives its user: containers go on when the agent dies, and are found again.
#[async_trait]
pub trait Containers: Send + Sync {
    /// All containers, also those that an agent before us started.
    fn list(&self) -> Result<Vec<Found>, ListError>;

    /// How a container is, now; asked often, and with locks held, so it must not wait for anybody. If that cannot be found
    /// out it counts as running: who believes that it has ended would take its volumes away.
    fn state(&self, id: &ContainerId) -> State;

    /// Waits for a container's end; `None` if there is no such container.
    async fn exited(&self, id: &ContainerId) -> Option<Exit>;

    /// Starts a container; its program runs when this answers. Asked for the same attempt again, it answers the id of the
    /// container that is there, running or not. If it fails nothing is left of it, and it can be tried again.
    async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, StartError>;

    /// Stops a container: asked first, killed after `grace`. Answers how it ended; `None` if there is no such container.
    async fn stop(&self, id: &ContainerId, grace: Duration) -> Option<Exit>;

    /// Takes away what is left of a container that has ended. Done again, it does nothing.
    async fn remove(&self, id: &ContainerId) -> Result<(), RemoveError>;

    /// Runs a short program in a container to its end, at most for so long: probes and hooks.
    async fn run(&self, id: &ContainerId, command: &[String], limit: Duration) -> Ran;
}

/// What came of a short program.
#[derive(Debug, PartialEq, Eq)]
pub enum Ran {
    /// It ended.
    Ended {
        /// Its exit code.
        code: i32,
        /// The beginning of what it said.
        output: String,
    },
    /// It did not end in time, and was killed.
    TimedOut,
    /// It could not be run, or nobody knows how it ended.
    Failed(String),
}
