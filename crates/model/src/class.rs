//! The StorageClass kind.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Meta;
use crate::decode::{null_as_default, open_enum};
use crate::kind::{ApiResource, Kind, Scope};
use crate::names::annotation;
use crate::volume::ReclaimPolicy;

/// A StorageClass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    /// Metadata.
    pub metadata: Meta,
    /// The driver.
    pub provisioner: String,
    /// Parameters for the driver and, with a prefix, for the sidecars; see [`crate::parameters`].
    #[serde(deserialize_with = "null_as_default")]
    pub parameters: BTreeMap<String, String>,
    /// The reclaim policy of its volumes; default Delete.
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// Whether its claims can be expanded; default false.
    pub allow_volume_expansion: Option<bool>,
    /// Mount options.
    #[serde(deserialize_with = "null_as_default")]
    pub mount_options: Vec<String>,
    /// When volumes are provisioned and bound.
    pub volume_binding_mode: Option<VolumeBindingMode>,
    /// The topologies that volumes may be created in; empty allows all.
    #[serde(deserialize_with = "null_as_default")]
    pub allowed_topologies: Vec<TopologySelectorTerm>,
}

impl Kind for StorageClass {
    const API: ApiResource = ApiResource {
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
    /// The reclaim policy of its volumes.
    pub fn reclaim_policy(&self) -> ReclaimPolicy {
        self.reclaim_policy.unwrap_or(ReclaimPolicy::Delete)
    }

    /// Whether it is a default class. There may be several; the newest is used.
    pub fn is_default(&self) -> bool {
        let marked = |annotation| self.metadata.annotation(annotation) == Some("true");
        marked(annotation::IS_DEFAULT_CLASS) || marked(annotation::BETA_IS_DEFAULT_CLASS)
    }

    /// Whether its binding mode is WaitForFirstConsumer.
    pub fn waits_for_first_consumer(&self) -> bool {
        self.volume_binding_mode == Some(VolumeBindingMode::WaitForFirstConsumer)
    }
}

/// A term of `allowedTopologies`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologySelectorTerm {
    /// Expressions that must all match.
    #[serde(deserialize_with = "null_as_default")]
    pub match_label_expressions: Vec<TopologySelectorExpression>,
}

/// Matches if the label has one of the values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TopologySelectorExpression {
    /// The label.
    pub key: String,
    /// Its values.
    #[serde(deserialize_with = "null_as_default")]
    pub values: Vec<String>,
}

open_enum! {
    /// When volumes are provisioned and bound.
    VolumeBindingMode {
        /// When the claim is created.
        Immediate = "Immediate",
        /// When a pod that uses the claim is scheduled.
        WaitForFirstConsumer = "WaitForFirstConsumer",
    }
}
