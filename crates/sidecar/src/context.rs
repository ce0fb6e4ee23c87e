//! What a role of the controller is handed: the cluster, the driver, and where to tell what it does.

use wharf_cluster::{Cluster, EventType, Events};
use wharf_model::topology::{Segments, reaches};
use wharf_model::{Kind, PersistentVolume};

use crate::attempts::Attempts;
use crate::driver::Driver;
use crate::metrics::Metrics;
use wharf_cluster::work::Gate;

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

/// What a role needs that has no driver; cheap to clone.
#[derive(Clone)]
pub(crate) struct Ground {
    /// The API.
    pub(crate) cluster: Cluster,
    /// Whether the role may act.
    pub(crate) gate: Gate,
    /// Where events go, under the name that upstream's program has.
    pub(crate) events: Events,
    /// What was tried.
    pub(crate) attempts: Attempts,
    /// What is counted.
    pub(crate) metrics: Metrics,
}

impl Ground {
    /// Tells users something about an object.
    pub(crate) fn event<K: Kind>(&self, object: &K, kind: EventType, reason: &str, note: impl Into<String>) {
        self.events.tell(object, kind, reason, note);
    }
}

/// The node that a node's own sidecar acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnNode {
    /// Its name in Kubernetes.
    pub(crate) name: String,
    /// Its place, as the driver tells it.
    pub(crate) place: Segments,
}

impl OwnNode {
    /// Whether a volume is this node's and no other's: its affinity says so. Where nodes have places, one without
    /// affinity may be on any of them; drivers of the wrong ones would answer for it that there is no such volume.
    pub(crate) fn has(&self, volume: &PersistentVolume) -> bool {
        let affinity = volume.spec.node_affinity.as_ref();
        let says = affinity.is_some_and(|affinity| affinity.required.is_some());
        (says || self.place.is_empty()) && reaches(affinity, &self.name, &self.place)
    }
}

impl Context {
    /// Tells users something about an object.
    pub(crate) fn event<K: Kind>(&self, object: &K, kind: EventType, reason: &str, note: impl Into<String>) {
        self.events.tell(object, kind, reason, note);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_nodes_own_volumes_say_so() {
        let volume = |affinity: Value| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": {"nodeAffinity": affinity}}))
                .unwrap()
        };
        let on = |node: &str| {
            volume(json!({"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "node", "operator": "In", "values": [node]}]},
            ]}}))
        };
        let place = [("node".to_owned(), "a".to_owned())].into();
        let placed = OwnNode { name: "a".into(), place };
        let unplaced = OwnNode { name: "a".into(), place: Segments::new() };
        for (volume, with_place, without) in [
            (on("a"), true, false),
            (on("b"), false, false),
            (volume(Value::Null), false, true),
            (volume(json!({})), false, true),
        ] {
            let got = (placed.has(&volume), unplaced.has(&volume));
            assert_eq!(got, (with_place, without), "{:?}", volume.spec.node_affinity);
        }
    }
}
