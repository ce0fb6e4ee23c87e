//! What a role of the controller is handed: the cluster, the driver, and where to tell what it does.

use wharf_cluster::{Cluster, Event, EventType, Events, Regarding};
use wharf_model::topology::Segments;
use wharf_model::{Kind, Meta};

use crate::attempts::Attempts;
use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::work::Gate;

/// Everything a role needs; cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    /// The API.
    pub(crate) cluster: Cluster,
    /// The driver.
    pub(crate) driver: Driver,
    /// Whether the role may act.
    pub(crate) gate: Gate,
    /// Where events go, under the name that upstream's sidecar of this role has.
    pub(crate) events: Events,
    /// What was tried.
    pub(crate) attempts: Attempts,
    /// What is counted.
    pub(crate) metrics: Metrics,
    /// The sidecar's own namespace: leases, journal, capacities.
    pub(crate) namespace: String,
    /// The node whose volumes alone are ours; `None`: all of the driver's.
    pub(crate) node: Option<OwnNode>,
}

/// The node that a node's own sidecar acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnNode {
    /// Its name in Kubernetes.
    pub(crate) name: String,
    /// Its place, as the driver tells it.
    pub(crate) place: Segments,
}

impl Context {
    /// Tells users something about an object.
    pub(crate) fn event<K: Kind>(&self, object: &K, kind: EventType, reason: &str, note: impl Into<String>) {
        let Meta { uid, .. } = object.meta();
        let regarding = Regarding {
            api_version: K::API.api_version(),
            kind: K::API.kind.to_owned(),
            key: object.key(),
            uid: uid.clone(),
        };
        self.events.record(Event { regarding, kind, reason: reason.to_owned(), note: note.into() });
    }
}
