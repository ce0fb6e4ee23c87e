//! Errors of attach, detach and resize.

use std::time::Duration;

use crate::client::ApiError;

/// Why a volume was not attached, detached or resized. Each variant names its CSI code in parentheses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// The volume does not exist. (NOT_FOUND)
    #[error("there is no volume {0}")]
    NoVolume(String),
    /// The droplet does not exist. (NOT_FOUND)
    #[error("there is no droplet {0}")]
    NoDroplet(u64),
    /// The volume is attached to another droplet. (FAILED_PRECONDITION)
    #[error("volume {volume} is attached to droplet {droplet}; detach it there first")]
    AttachedElsewhere {
        /// The volume.
        volume: String,
        /// The droplet it is attached to.
        droplet: u64,
    },
    /// The droplet's volume limit is reached. (RESOURCE_EXHAUSTED)
    #[error("droplet {droplet} cannot have more volumes: {message}")]
    TooManyVolumes {
        /// The droplet.
        droplet: u64,
        /// Number of attached volumes, which is the droplet's limit, if the API reports it.
        attached: Option<usize>,
        /// The API's message.
        message: String,
    },
    /// The API reports that the action failed; it gives no reason. (INTERNAL)
    #[error("action {action} ({what}) failed in the API without a reason; contact DigitalOcean support")]
    Errored {
        /// The operation.
        what: String,
        /// The action's id.
        action: u64,
    },
    /// Other events on the droplet or volume did not end in time; no action was started. (ABORTED)
    #[error("{what}: not started within {} s, other operations are in progress: {message}", waited.as_secs())]
    Busy {
        /// The operation.
        what: String,
        /// How long the operation waited.
        waited: Duration,
        /// What blocked it.
        message: String,
    },
    /// The action was started, but its result is unknown; a retry finds it. (UNAVAILABLE)
    #[error("{what}: not finished within {} s: {message}; a retry resumes it", waited.as_secs())]
    Unfinished {
        /// The operation.
        what: String,
        /// How long the operation waited.
        waited: Duration,
        /// The last observed state or error.
        message: String,
    },
    /// The API refused or was unreachable; see the error's kind.
    #[error("{what}: {error}")]
    Api {
        /// The operation.
        what: String,
        /// The cause.
        error: ApiError,
    },
}
