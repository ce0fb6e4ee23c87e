//! Kubernetes' own half of storage, beside the drivers and their sidecars: what binds claims to volumes, attaches
//! volumes to nodes, places pods, and keeps what is in use.
//!
//! Each controller has four rooms: what it sees (`view`), its rules (`decide`), its effects (`act`), and its story, the
//! module's own file. They run on the embedded API and on a cluster's, in place of kube-controller-manager's and
//! kube-scheduler's.

pub mod attach_detach;
pub mod binder;
pub mod ephemeral;
pub mod expand;
pub mod protection;
pub mod scheduler;

use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, Events};

/// What every controller is handed; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The API.
    pub cluster: Cluster,
    /// Whether steps may begin.
    pub gate: Gate,
    /// Where events go, under the name that upstream's controller has.
    pub events: Events,
}
