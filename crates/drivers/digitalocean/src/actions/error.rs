//! Why a volume was not attached, detached or resized.

use std::time::Duration;

use crate::client::ApiError;

/// See each; the CSI code that fits is named in brackets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// No such volume. (NOT_FOUND)
    #[error("there is no volume {0}")]
    NoVolume(String),
    /// No such droplet. (NOT_FOUND)
    #[error("there is no droplet {0}")]
    NoDroplet(u64),
    /// The volume is attached to another droplet. (FAILED_PRECONDITION)
    #[error("volume {volume} is attached to droplet {droplet}; it has to be detached there first")]
    AttachedElsewhere {
        /// The volume.
        volume: String,
        /// Where it is.
        droplet: u64,
    },
    /// The droplet can have no more volumes. `attached` is how many it has, where the API told. (RESOURCE_EXHAUSTED)
    #[error("droplet {droplet} can have no more volumes: {message}")]
    TooManyVolumes {
        /// Which.
        droplet: u64,
        /// How many it has now: the limit, as learnt.
        attached: Option<usize>,
        /// The API's own words.
        message: String,
    },
    /// The action failed, says the API; it gives no reasons. (INTERNAL)
    #[error("action {action} ({what}) ended in an error, says the API; its support knows more")]
    Errored {
        /// What was to be done.
        what: String,
        /// Its id.
        action: u64,
    },
    /// Other events on the droplet or volume did not end in time; nothing was begun. (ABORTED)
    #[error("{what}: not begun within {} s, others are still under way: {message}", waited.as_secs())]
    Busy {
        /// What was to be done.
        what: String,
        /// For how long.
        waited: Duration,
        /// What is in the way.
        message: String,
    },
    /// Begun, but whether it ended is not known; a repetition finds it. (UNAVAILABLE)
    #[error("{what}: not ended within {} s: {message}; a repetition takes it up", waited.as_secs())]
    Unfinished {
        /// What was to be done.
        what: String,
        /// For how long.
        waited: Duration,
        /// What was seen last.
        message: String,
    },
    /// The API refused, or could not be reached; see its kind.
    #[error("{what}: {error}")]
    Api {
        /// What was to be done.
        what: String,
        /// Why not.
        error: ApiError,
    },
}
