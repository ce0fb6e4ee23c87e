//! Node: its taints, allocatable resources, attached volumes and conditions.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::claim::Condition;
use crate::decode::null_as_default;
use crate::kind::{ApiResource, Kind};
use crate::{Meta, Quantity};

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata.
    pub metadata: Meta,
    /// The spec.
    pub spec: NodeSpec,
    /// The status.
    pub status: NodeStatus,
}

impl Kind for Node {
    const API: ApiResource = crate::Node::API;

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Node {
    /// Whether its Ready condition is True; false if it has none.
    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True")
    }

    /// Whether it has a taint with this key.
    pub fn has_taint(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == key)
    }
}

/// The spec of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Whether the node is cordoned.
    #[serde(deserialize_with = "null_as_default")]
    pub unschedulable: bool,
    /// Its taints.
    #[serde(deserialize_with = "null_as_default")]
    pub taints: Vec<Taint>,
}

/// A taint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Its key, such as `node.kubernetes.io/not-ready`.
    pub key: String,
    /// Its value.
    #[serde(deserialize_with = "null_as_default")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The status of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Its conditions.
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    /// The resources available to pods.
    #[serde(deserialize_with = "null_as_default")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// Unique names of volumes that the node may be using. They must not be detached.
    #[serde(deserialize_with = "null_as_default")]
    pub volumes_in_use: Vec<String>,
    /// The volumes that the attach/detach controller has attached.
    #[serde(deserialize_with = "null_as_default")]
    pub volumes_attached: Vec<AttachedVolume>,
}

/// A volume attached to a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedVolume {
    /// Its unique name, `kubernetes.io/csi/<driver>^<handle>`.
    pub name: String,
    /// The device path; empty for CSI.
    #[serde(deserialize_with = "null_as_default")]
    pub device_path: String,
}
