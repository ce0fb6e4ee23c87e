//! VolumeAttributesClass, slim.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Meta;
use crate::kind::{Api, Kind, Scope};
use crate::words::nullable;

/// Properties of a volume that can be changed while it lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttributesClass {
    /// Metadata.
    pub metadata: Meta,
    /// The driver.
    pub driver_name: String,
    /// Words for the driver.
    #[serde(deserialize_with = "nullable")]
    pub parameters: BTreeMap<String, String>,
}

impl Kind for VolumeAttributesClass {
    const API: Api = Api {
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
