//! Worker processes: everything that touches a path on an NFS mount runs in one of them.
//!
//! A thread that waits for an NFS server cannot be cancelled, a process can be killed. [`Workers`] is the driver's side: it
//! starts workers by executing this program again with the hidden argument [`SUBCOMMAND`], sends requests with deadlines,
//! and kills a worker that exceeds one. [`main`] is the worker's side. `docs/design-nfs.md` describes the three kinds of
//! workers. Requests go through standard input, so neither secrets nor paths appear in the process list.
//!
//! Code that needs an export takes a [`ShareClient`], so that tests can use a directory in the same process.

mod child;
mod exports;
mod jobs;
mod log;
mod node_request;
mod process;
mod protocol;
mod serve;
mod workers;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use wharf_driver::backend::BackendError;

use crate::mount::MountFailure;
use crate::share;

pub use exports::Exports;
pub use log::WorkerLog;
pub use node_request::{MountPermissions, NodeRequest, NodeResponse, UnmountMode};
pub use process::WorkerProgram;
pub use protocol::Root;
pub use serve::{made_progress, main, report_progress};
pub use workers::{WorkerOptions, Workers};

/// The hidden subcommand that runs a worker: `wharf nfs-worker share|job|node`, then what it logs.
pub const SUBCOMMAND: &str = "nfs-worker";

/// An export of a server, and the options to mount it with.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Export {
    /// Host name or address, as users write it; an IPv6 address without brackets.
    pub server: String,
    /// Path of the export on the server, with a leading slash.
    pub share: String,
    /// Mount options. They can come from a secret, so they are never printed.
    pub options: Vec<String>,
}

impl Export {
    /// An export with mount options.
    pub fn new(server: &str, share: &str, options: &[String]) -> Self {
        let share = format!("/{}", share.trim_matches('/'));
        Self { server: server.to_owned(), share, options: options.to_vec() }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} with {} options", self.options.len())
    }
}

/// `server:/share`.
impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.share)
    }
}

/// Runs requests on exports. [`Workers`] runs them in worker processes.
#[async_trait]
pub trait ShareClient: Send + Sync + 'static {
    /// Runs one request. It ends by its deadline: if the server does not answer, with [`WorkerError::TimedOut`], and then
    /// it is not known whether the request took effect.
    async fn call(
        &self,
        export: &Export,
        request: share::Request,
        deadline: Duration,
    ) -> Result<share::Response, WorkerError>;

    /// Runs a long request in the background, in a process of its own. `key` identifies it: a job with this key that is
    /// running already is success. The job is killed when it makes no progress for `stall`. Its result is on the share;
    /// read it with [`Self::call`].
    async fn start_job(
        &self,
        export: &Export,
        key: &str,
        request: share::Request,
        stall: Duration,
    ) -> Result<(), WorkerError>;

    /// Whether a job with this key runs now in this process.
    fn job_runs(&self, key: &str) -> bool;

    /// Whether the last run of a recovery or a purge with this key did not succeed, or has not ended.
    fn job_failed(&self, key: &str) -> bool;
}

/// Why a worker did not return a response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The server's name cannot be resolved, or it does not answer an RPC NULL call.
    #[error("NFS server {server} is not reachable: {reason}")]
    Unreachable {
        /// The server.
        server: String,
        /// What failed.
        reason: String,
    },
    /// The request exceeded its deadline, and the worker was killed.
    #[error("{subject} did not finish within {:.1}s: the NFS server {server} does not answer, or is too slow", deadline.as_secs_f32())]
    TimedOut {
        /// The server.
        server: String,
        /// What was done.
        subject: String,
        /// The deadline.
        deadline: Duration,
    },
    /// Too many workers for this server are blocked in the kernel.
    #[error(
        "{blocked} processes are blocked on the NFS server {server}; no more are started until it answers an RPC NULL call, or \
         until they end"
    )]
    Suspended {
        /// The server.
        server: String,
        /// Number of blocked processes.
        blocked: usize,
    },
    /// The mount failed.
    #[error(transparent)]
    Mount(#[from] MountFailure),
    /// The worker ended before it answered: another request exceeded its deadline, or the worker crashed.
    #[error("the worker for {subject} ended before it answered: {reason}; the request can be repeated")]
    Lost {
        /// The export or path.
        subject: String,
        /// Why it ended.
        reason: String,
    },
    /// The driver is shutting down.
    #[error("the driver is shutting down; the request can be repeated")]
    ShuttingDown,
    /// The worker could not be started, or broke the protocol.
    #[error("worker process: {0}")]
    Internal(String),
}

/// What a caller can do about a [`WorkerError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WorkerErrorKind {
    /// The same request may succeed later. (UNAVAILABLE)
    Unavailable,
    /// The server refuses this client. (PERMISSION_DENIED)
    Denied,
    /// The export or directory does not exist. (NOT_FOUND)
    NotFound,
    /// The mount options or the address are wrong. (INVALID_ARGUMENT)
    Invalid,
    /// Something that the mount needs is not running on this node. (FAILED_PRECONDITION)
    Precondition,
    /// A bug or a failure of this node. (INTERNAL)
    Internal,
}

impl WorkerError {
    /// The class of this error.
    pub fn kind(&self) -> WorkerErrorKind {
        match self {
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Suspended { .. }
            | Self::Lost { .. }
            | Self::ShuttingDown => WorkerErrorKind::Unavailable,
            Self::Mount(failure) => failure.kind,
            Self::Internal(_) => WorkerErrorKind::Internal,
        }
    }
}

/// For operations whose error type has no variant for a missing export or invalid options.
impl From<WorkerError> for BackendError {
    fn from(error: WorkerError) -> Self {
        let message = error.to_string();
        match error.kind() {
            WorkerErrorKind::Unavailable => Self::Unavailable(message),
            WorkerErrorKind::Denied => Self::Forbidden(message),
            WorkerErrorKind::NotFound
            | WorkerErrorKind::Invalid
            | WorkerErrorKind::Precondition
            | WorkerErrorKind::Internal => Self::Internal(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn export_normalizes_its_share_and_hides_its_options() {
        for (share, normal) in [("/", "/"), ("", "/"), ("/a", "/a"), ("a/b/", "/a/b"), ("//a//", "/a")] {
            assert_eq!(Export::new("nas", share, &[]).share, normal, "{share:?}");
        }
        let export = Export::new("nas", "/a", &["password=hunter2".to_owned()]);
        assert_eq!(format!("{export:?} {export}"), "nas:/a with 1 options nas:/a");
    }
}
