//! CSINode, slim: which drivers a node has, under which identity, and by which labels they tell places apart.

use serde::Deserialize;

use crate::Meta;
use crate::kind::{Api, Kind, Scope};
use crate::words::nullable;

/// A node, as CSI drivers see it. It has the name of its Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CSINode {
    /// Metadata.
    pub metadata: Meta,
    /// The drivers.
    pub spec: CSINodeSpec,
}

impl Kind for CSINode {
    const API: Api = Api {
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
    /// This driver on the node; `None` while it is not registered there.
    pub fn driver(&self, name: &str) -> Option<&CSINodeDriver> {
        self.spec.drivers.iter().find(|driver| driver.name == name)
    }
}

/// The drivers of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CSINodeSpec {
    /// The drivers.
    #[serde(deserialize_with = "nullable")]
    pub drivers: Vec<CSINodeDriver>,
}

/// One driver on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CSINodeDriver {
    /// Its name.
    pub name: String,
    /// What the driver calls the node. Spelled as Kubernetes does, `nodeID`.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// Labels of the Node that say where it is.
    #[serde(deserialize_with = "nullable")]
    pub topology_keys: Vec<String>,
    /// What fits on the node.
    pub allocatable: Option<Allocatable>,
}

/// What fits on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Allocatable {
    /// How many volumes of the driver; `None` is no limit.
    pub count: Option<i32>,
}
