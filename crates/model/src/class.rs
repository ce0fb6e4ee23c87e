//! StorageClass, slim.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Meta;
use crate::kind::{Api, Kind, Scope};
use crate::names::annotation;
use crate::volume::ReclaimPolicy;
use crate::words::{nullable, words};

/// How volumes of a class are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    /// Metadata.
    pub metadata: Meta,
    /// The driver.
    pub provisioner: String,
    /// Words for the driver and, with a prefix, for us: see [`crate::parameters`].
    #[serde(deserialize_with = "nullable")]
    pub parameters: BTreeMap<String, String>,
    /// What becomes of a volume when its claim goes; `None` is Delete.
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// Whether claims of it may grow; `None` is no.
    pub allow_volume_expansion: Option<bool>,
    /// Options for mounting.
    #[serde(deserialize_with = "nullable")]
    pub mount_options: Vec<String>,
    /// When a volume is made.
    pub volume_binding_mode: Option<VolumeBindingMode>,
    /// Where volumes may be; empty is everywhere.
    #[serde(deserialize_with = "nullable")]
    pub allowed_topologies: Vec<TopologySelectorTerm>,
}

impl Kind for StorageClass {
    const API: Api = Api {
        group: "storage.k8s.io",
        version: "v1",
        kind: "StorageClass",
        plural: "storageclasses",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl StorageClass {
    /// What becomes of a volume when its claim goes.
    pub fn reclaim_policy(&self) -> ReclaimPolicy {
        self.reclaim_policy.unwrap_or(ReclaimPolicy::Delete)
    }

    /// Whether it is the class of claims that name none; there may be several, and the newest counts.
    pub fn is_default(&self) -> bool {
        let marked = |annotation| self.metadata.annotation(annotation) == Some("true");
        marked(annotation::IS_DEFAULT_CLASS) || marked(annotation::BETA_IS_DEFAULT_CLASS)
    }

    /// Whether a volume is made only once a pod that needs it has a node.
    pub fn waits_for_first_consumer(&self) -> bool {
        self.volume_binding_mode == Some(VolumeBindingMode::WaitForFirstConsumer)
    }
}

/// A place: all of its expressions hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologySelectorTerm {
    /// All of them hold.
    #[serde(deserialize_with = "nullable")]
    pub match_label_expressions: Vec<TopologySelectorExpression>,
}

/// The label has one of the values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TopologySelectorExpression {
    /// The label.
    pub key: String,
    /// Its values.
    #[serde(deserialize_with = "nullable")]
    pub values: Vec<String>,
}

words! {
    /// When a volume is made.
    VolumeBindingMode {
        /// At once.
        Immediate = "Immediate",
        /// Once a pod that needs it has a node.
        WaitForFirstConsumer = "WaitForFirstConsumer",
    }
}
