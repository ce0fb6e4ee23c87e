//! CSIDriver, slim: what Kubernetes was told about a driver.

use serde::Deserialize;

use crate::Meta;
use crate::kind::{Api, Kind, Scope};

/// A driver, as its deployer described it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CSIDriver {
    /// Metadata.
    pub metadata: Meta,
    /// The description.
    pub spec: CSIDriverSpec,
}

impl Kind for CSIDriver {
    const API: Api = Api {
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSIDriver",
        plural: "csidrivers",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The description of a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CSIDriverSpec {
    /// Whether volumes are attached before they are mounted; `None` is yes.
    pub attach_required: Option<bool>,
    /// Whether the scheduler reads CSIStorageCapacity objects; `None` is no.
    pub storage_capacity: Option<bool>,
}
