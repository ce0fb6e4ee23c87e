//! Node, slim: name and labels.

use serde::Deserialize;

use crate::Meta;
use crate::kind::{Api, Kind, Scope};

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata without annotations, of which nodes have many and we use none.
    #[serde(deserialize_with = "Meta::without_annotations")]
    pub metadata: Meta,
}

impl Kind for Node {
    const API: Api = Api { group: "", version: "v1", kind: "Node", plural: "nodes", scope: Scope::Cluster };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
