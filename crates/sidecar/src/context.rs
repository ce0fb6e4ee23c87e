//! The dependencies of a controller role: the cluster, the driver, events, attempts and metrics.

use wharf_cluster::{Attempts, Cluster, EventRecorder, EventType};
use wharf_model::topology::{Segments, is_accessible_from};
use wharf_model::{Kind, PersistentVolume};

use crate::driver::Driver;
use crate::metrics::Metrics;
use wharf_cluster::work::Gate;

/// The dependencies of a role that works for one driver. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) cluster: Cluster,
    pub(crate) driver: Driver,
    /// Whether the role may act.
    pub(crate) gate: Gate,
    /// Records events under the component name of the upstream sidecar.
    pub(crate) events: EventRecorder,
    pub(crate) attempts: Attempts,
    pub(crate) metrics: Metrics,
    /// The sidecar's own namespace: leases, journal, capacities.
    pub(crate) namespace: String,
    /// With node deployment, the node whose volumes this sidecar manages. `None`: it manages all volumes of the driver.
    pub(crate) node: Option<LocalNode>,
}

/// The node that a sidecar with node deployment acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalNode {
    /// The name of the Node object.
    pub(crate) name: String,
    /// Its topology segments, as the driver reports them in NodeGetInfo.
    pub(crate) topology: Segments,
}

impl LocalNode {
    /// Whether the volume belongs to this node alone, judged by its node affinity. If nodes have topology, a volume
    /// without affinity may be on any node, and the driver on a wrong one would report that the volume does not exist.
    pub(crate) fn owns(&self, volume: &PersistentVolume) -> bool {
        let affinity = volume.csi_spec().node_affinity.as_ref();
        let is_restricted = affinity.is_some_and(|affinity| affinity.required.is_some());
        (is_restricted || self.topology.is_empty())
            && is_accessible_from(affinity, &self.name, &self.topology)
    }
}

impl Context {
    /// Records an event about an object.
    pub(crate) fn record_event<K: Kind>(
        &self,
        object: &K,
        kind: EventType,
        reason: &str,
        note: impl Into<String>,
    ) {
        self.events.record_for(object, kind, reason, note);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn node_owns_volumes_restricted_to_it() {
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
        let with_topology = LocalNode { name: "a".into(), topology: place };
        let without_topology = LocalNode { name: "a".into(), topology: Segments::new() };
        for (volume, owned_with, owned_without) in [
            (on("a"), true, false),
            (on("b"), false, false),
            (volume(Value::Null), false, true),
            (volume(json!({})), false, true),
        ] {
            let got = (with_topology.owns(&volume), without_topology.owns(&volume));
            assert_eq!(got, (owned_with, owned_without), "{:?}", volume.spec.node_affinity);
        }
    }
}
