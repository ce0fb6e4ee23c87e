//! Node: its labels and readiness, taints, allocatable resources and attached volumes.
//!
//! A slim view has only labels and readiness.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::claim::Condition;
use crate::decode::null_as_default;
use crate::detail::{Detail, impl_empty};
use crate::kind::{ApiResource, Kind, Scope, View};
use crate::{Meta, Quantity, Time};

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Metadata. A slim view has no annotations: nodes have many.
    pub metadata: Meta,
    /// Its Ready condition; `None` if it has none yet.
    pub ready: Option<ReadyCondition>,
    /// The spec; empty in a slim view.
    pub spec: Detail<NodeSpec>,
    /// The status; empty in a slim view.
    pub status: Detail<NodeStatus>,
}

impl_empty!(NodeSpec, NodeStatus);

/// The condition `Ready` of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyCondition {
    /// Whether its status is `True`, not `False` or `Unknown`.
    pub is_ready: bool,
    /// Its last transition.
    pub since: Option<Time>,
}

impl Kind for Node {
    const API: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Node", plural: "nodes", scope: Scope::Cluster };

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn decode<'de, D: Deserializer<'de>>(deserializer: D, view: View) -> Result<Self, D::Error> {
        match view {
            View::Full => Self::deserialize(deserializer),
            View::Slim => SlimNode::deserialize(deserializer).map(Self::from),
        }
    }
}

impl Node {
    /// Whether its Ready condition is True; false if it has none.
    pub fn is_ready(&self) -> bool {
        self.ready.is_some_and(|ready| ready.is_ready)
    }

    /// Whether it has a taint with this key.
    pub fn has_taint(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == key)
    }
}

/// Finds the Ready condition among others.
fn ready<'a>(
    conditions: impl IntoIterator<Item = (&'a str, &'a str, Option<Time>)>,
) -> Option<ReadyCondition> {
    let mut conditions = conditions.into_iter();
    let (_, status, since) = conditions.find(|(kind, _, _)| *kind == "Ready")?;
    Some(ReadyCondition { is_ready: status == "True", since })
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct FullNode {
            metadata: Meta,
            spec: NodeSpec,
            #[serde(deserialize_with = "null_as_default")]
            status: NodeStatus,
        }

        let FullNode { metadata, spec, status } = FullNode::deserialize(deserializer)?;
        let conditions = status.conditions.iter();
        let conditions = conditions.map(|found| (&*found.kind, &*found.status, found.last_transition_time));
        Ok(Self { ready: ready(conditions), spec: spec.into(), status: status.into(), metadata })
    }
}

/// The fields of a slim view.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SlimNode {
    #[serde(deserialize_with = "Meta::without_annotations")]
    metadata: Meta,
    #[serde(deserialize_with = "null_as_default")]
    status: SlimStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SlimStatus {
    #[serde(deserialize_with = "null_as_default")]
    conditions: Vec<SlimCondition>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimCondition {
    r#type: String,
    status: String,
    last_transition_time: Option<Time>,
}

impl From<SlimNode> for Node {
    fn from(SlimNode { metadata, status }: SlimNode) -> Self {
        let conditions = status.conditions.iter();
        let conditions = conditions.map(|found| (&*found.r#type, &*found.status, found.last_transition_time));
        Self { metadata, ready: ready(conditions), ..Self::default() }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_ready_condition_counts() {
        let since = "2026-11-15T10:00:00Z";
        let of = |status: &str| json!({"type": "Ready", "status": status, "lastTransitionTime": since});
        let pressure = json!({"type": "DiskPressure", "status": "True"});
        for (status, expected) in [
            (json!(null), None),
            (json!({}), None),
            (json!({"conditions": [pressure]}), None),
            (json!({"conditions": [pressure, of("True")]}), Some(true)),
            (json!({"conditions": [of("False")]}), Some(false)),
            (json!({"conditions": [of("Unknown")]}), Some(false)),
        ] {
            let row = status.to_string();
            for view in [View::Slim, View::Full] {
                let object = json!({"metadata": {"name": "n"}, "status": status});
                let node = Node::decode(object, view).unwrap();
                assert_eq!(node.ready.map(|ready| ready.is_ready), expected, "{row} {view:?}");
                assert_eq!(node.is_ready(), expected == Some(true), "{row} {view:?}");
                let transition = node.ready.and_then(|ready| ready.since).map(|time| time.to_string());
                assert_eq!(transition.as_deref(), expected.map(|_| since), "{row} {view:?}");
            }
        }
    }

    #[test]
    fn slim_view_has_labels_but_no_annotations_and_no_details() {
        let object = json!({
            "metadata": {"name": "n", "labels": {"zone": "a"}, "annotations": {"c": "d"}},
            "spec": {"unschedulable": true, "taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {"volumesInUse": ["v"]},
        });
        let (slim, full) = (Node::decode(object.clone(), View::Slim), Node::decode(object, View::Full));
        let (slim, full) = (slim.unwrap(), full.unwrap());
        assert_eq!(slim.metadata.labels, full.metadata.labels);
        assert!(slim.metadata.annotations.is_empty() && !full.metadata.annotations.is_empty());
        assert!(full.has_taint("k") && full.spec.unschedulable && full.status.volumes_in_use == ["v"]);
        assert_eq!((&slim.spec, &slim.status), (&Detail::default(), &Detail::default()));
    }
}
