//! The Kubernetes API as controllers see it.
//!
//! kube's client carries requests and credentials; all else is here. Start reading at [`Cluster`] (requests,
//! shared watches), then [`Store`] (what controllers read), [`Queue`] (what they work on), [`Events`] (what they
//! tell), [`Leadership`] (whether they may), [`work`] (how they work).

mod clock;
mod cluster;
mod error;
mod events;
mod jitter;
mod lease;
mod limit;
mod metrics;
mod queue;
mod selector;
mod store;
#[cfg(test)]
mod testing;
mod transport;
mod version;
mod watch;
pub mod work;

pub use clock::now;
pub use cluster::{Cluster, ConnectError, ConnectOptions, Listed, Preconditions};
pub use error::{ApiError, Refusal};
pub use events::{Event, EventType, Events, Regarding};
pub use jitter::jitter;
pub use lease::{Leadership, LeaseOptions};
pub use metrics::Metrics;
pub use queue::{Backoff, Priority, Queue, QueueKey, Work};
pub use store::{Change, Changes, Notice, Reach, Store};
pub use version::{compare_versions, newer_than};
pub use watch::WatchOptions;
pub use wharf_model::patch::Patch;
