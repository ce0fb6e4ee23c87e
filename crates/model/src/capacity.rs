//! CSIStorageCapacity, slim.

use serde::Deserialize;

use crate::kind::{Api, Kind, Scope};
use crate::selector::LabelSelector;
use crate::{Meta, Quantity};

/// How much room there is for volumes of one class in one place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CSIStorageCapacity {
    /// Metadata.
    pub metadata: Meta,
    /// The place; `None` is nowhere.
    pub node_topology: Option<LabelSelector>,
    /// The class.
    pub storage_class_name: String,
    /// Room in all.
    pub capacity: Option<Quantity>,
    /// Room for one volume.
    pub maximum_volume_size: Option<Quantity>,
}

impl Kind for CSIStorageCapacity {
    const API: Api = Api {
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSIStorageCapacity",
        plural: "csistoragecapacities",
        scope: Scope::Namespaced,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
