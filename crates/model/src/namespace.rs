//! Namespace, slim: that it is there, and whether it ends.

use serde::Deserialize;

use crate::Meta;
use crate::kind::{Api, Kind, Scope};

/// A namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Metadata: names, identity, version and the deletion mark.
    #[serde(deserialize_with = "Meta::bare")]
    pub metadata: Meta,
}

impl Kind for Namespace {
    const API: Api =
        Api { group: "", version: "v1", kind: "Namespace", plural: "namespaces", scope: Scope::Cluster };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
