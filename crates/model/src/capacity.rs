//! The CSIStorageCapacity kind.

use serde::Deserialize;

use crate::kind::{ApiResource, Kind, Scope};
use crate::selector::LabelSelector;
use crate::{Meta, Quantity};

/// The available capacity for volumes of one class in one topology.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CSIStorageCapacity {
    /// Metadata.
    pub metadata: Meta,
    /// Selects the nodes of the topology; `None` selects none.
    pub node_topology: Option<LabelSelector>,
    /// The class.
    pub storage_class_name: String,
    /// The total available capacity.
    pub capacity: Option<Quantity>,
    /// The maximum size of one volume.
    pub maximum_volume_size: Option<Quantity>,
}

impl Kind for CSIStorageCapacity {
    const API: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSIStorageCapacity",
        plural: "csistoragecapacities",
        scope: Scope::Namespaced,
    };
    const HAS_LABELS: bool = true;

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
