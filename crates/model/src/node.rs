//! Node: its name, labels and readiness.

use serde::{Deserialize, Deserializer};

use crate::decode::null_as_default;
use crate::kind::{ApiResource, Kind, Scope};
use crate::{Meta, Time};

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata without annotations: nodes have many, and we use none.
    #[serde(deserialize_with = "Meta::without_annotations")]
    pub metadata: Meta,
    /// Its Ready condition; `None` if it has none yet.
    #[serde(rename = "status", deserialize_with = "ready")]
    pub ready: Option<ReadyCondition>,
}

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
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireStatus {
    #[serde(deserialize_with = "null_as_default")]
    conditions: Vec<WireCondition>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireCondition {
    r#type: String,
    status: String,
    last_transition_time: Option<Time>,
}

fn ready<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ReadyCondition>, D::Error> {
    let WireStatus { conditions } = null_as_default(deserializer)?;
    let ready = conditions.into_iter().find(|condition| condition.r#type == "Ready");
    Ok(ready
        .map(|ready| ReadyCondition { is_ready: ready.status == "True", since: ready.last_transition_time }))
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
            let node: Node =
                serde_json::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap();
            assert_eq!(node.ready.map(|ready| ready.is_ready), expected, "{row}");
            let transition = node.ready.and_then(|ready| ready.since).map(|time| time.to_string());
            assert_eq!(transition.as_deref(), expected.map(|_| since), "{row}");
        }
    }
}
