//! CSINode: the drivers registered on a node, with their node IDs and topology keys.

use serde::Deserialize;

use crate::Meta;
use crate::decode::null_as_default;
use crate::kind::{ApiResource, Kind, Scope};

/// The CSI drivers of a node. It has the name of its Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CSINode {
    /// Metadata.
    pub metadata: Meta,
    /// The drivers.
    pub spec: CSINodeSpec,
}

impl Kind for CSINode {
    const API: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSINode",
        plural: "csinodes",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl CSINode {
    /// A driver on the node; `None` if it is not registered.
    pub fn driver(&self, name: &str) -> Option<&CSINodeDriver> {
        self.spec.drivers.iter().find(|driver| driver.name == name)
    }
}

/// The drivers of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CSINodeSpec {
    /// The drivers.
    #[serde(deserialize_with = "null_as_default")]
    pub drivers: Vec<CSINodeDriver>,
}

/// One driver on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CSINodeDriver {
    /// Its name.
    pub name: String,
    /// The driver's ID of the node; `nodeID` in JSON.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// The labels of the Node that form its topology.
    #[serde(deserialize_with = "null_as_default")]
    pub topology_keys: Vec<String>,
    /// The driver's limits on the node.
    pub allocatable: Option<Allocatable>,
}

/// A driver's limits on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Allocatable {
    /// The maximum number of the driver's volumes; `None` is no limit.
    pub count: Option<i32>,
}
