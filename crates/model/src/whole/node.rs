//! Node: what can be placed on it, what is attached to it, and what it says of itself.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::claim::Condition;
use crate::kind::{Api, Kind};
use crate::words::nullable;
use crate::{Meta, Quantity};

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata.
    pub metadata: Meta,
    /// What people want of it.
    pub spec: NodeSpec,
    /// What it says.
    pub status: NodeStatus,
}

impl Kind for Node {
    const API: Api = crate::Node::API;

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Node {
    /// Whether its agent says that it is ready; silence is no.
    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True")
    }

    /// Whether a taint with this key is on it.
    pub fn has_taint(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == key)
    }
}

/// What people want of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// No new pods.
    #[serde(deserialize_with = "nullable")]
    pub unschedulable: bool,
    /// What keeps pods away.
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
}

/// What keeps pods away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Its name.
    pub key: String,
    /// Its value.
    #[serde(deserialize_with = "nullable")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// What a node says of itself, and what is said of its volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Its conditions.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
    /// What pods may have of it.
    #[serde(deserialize_with = "nullable")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// Unique names of volumes that the node may be using: they are not detached.
    #[serde(deserialize_with = "nullable")]
    pub volumes_in_use: Vec<String>,
    /// What the attach/detach controller has attached.
    #[serde(deserialize_with = "nullable")]
    pub volumes_attached: Vec<AttachedVolume>,
}

/// A volume that is attached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedVolume {
    /// Its unique name, `kubernetes.io/csi/<driver>^<handle>`.
    pub name: String,
    /// Where; CSI leaves it empty.
    #[serde(deserialize_with = "nullable")]
    pub device_path: String,
}
