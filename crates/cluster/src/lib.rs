//! A Kubernetes client for controllers: requests, shared watches, work queues, events and leases.
//!
//! kube's client sends requests and handles credentials; everything else is here. Start reading at [`Cluster`]
//! (requests, shared watches), then [`Store`] (cached objects), [`Queue`] (keys to reconcile), `EventRecorder`,
//! [`Leadership`] (leader election) and [`work`] (the control loop that ties them together). [`finalizer`] adds and removes
//! finalizers; [`Attempts`] records the last result for each object.

mod attempts;
mod clock;
mod cluster;
mod error;
mod events;
pub mod finalizer;
pub mod indexes;
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

pub use attempts::Attempts;
pub use clock::{monotonic, now};
pub use cluster::{Cluster, ConnectError, ConnectOptions, FirstPage, ObjectList, Preconditions};
pub use error::{ApiError, Refusal};
pub use events::{Event, EventRecorder, EventType, ObjectReference};
pub use jitter::jitter;
pub use lease::{Fence, Leadership, LeaseOptions, Standing, written_lease_duration};
pub use metrics::{Metrics, register_panics};
pub use queue::{Backoff, Priority, Queue, QueueKey, WorkItem};
pub use store::{Change, Index, Store, StoreEvent, Subscription, SyncState};
pub use version::{compare_versions, is_newer_version};
pub use watch::WatchOptions;
pub use wharf_model::patch::Patch;
