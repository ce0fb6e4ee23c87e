//! The VolumeAttributesClass kind.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Meta;
use crate::decode::null_as_default;
use crate::kind::{ApiResource, Kind, Scope};

/// A VolumeAttributesClass: properties of a volume that can be changed after it was created.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttributesClass {
    /// Metadata.
    pub metadata: Meta,
    /// The name of the CSI driver.
    pub driver_name: String,
    /// Parameters for the driver.
    #[serde(deserialize_with = "null_as_default")]
    pub parameters: BTreeMap<String, String>,
}

impl Kind for VolumeAttributesClass {
    const API: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "VolumeAttributesClass",
        plural: "volumeattributesclasses",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
