//! Pod, slim: who uses which claim, and whether still. A cluster has many pods, so hardly anything is kept.

use serde::{Deserialize, Deserializer};

use crate::Meta;
use crate::kind::{Api, Kind, Scope};
use crate::words::{nullable, words};

/// A user of claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Metadata: only names, identity, version and the deletion mark.
    pub metadata: Meta,
    /// The node it is on; empty while it has none.
    pub node_name: String,
    /// Names of the claims it uses, also those made for its ephemeral volumes.
    pub claims: Vec<String>,
    /// How far it has come.
    pub phase: PodPhase,
}

impl Kind for Pod {
    const API: Api = Api { group: "", version: "v1", kind: "Pod", plural: "pods", scope: Scope::Namespaced };

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    /// Most pods of a cluster use no claim.
    fn is_kept(&self) -> bool {
        !self.claims.is_empty()
    }
}

impl Pod {
    /// Whether it has ended for good: it uses its claims no longer.
    pub fn is_terminated(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }
}

impl<'de> Deserialize<'de> for Pod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let pod = &wire.metadata.name;
        let claims = wire
            .spec
            .volumes
            .into_iter()
            .filter_map(|volume| match (volume.persistent_volume_claim, volume.ephemeral) {
                (Some(claim), _) => Some(claim.claim_name),
                // Kubernetes names the claim of an ephemeral volume so.
                (None, Some(_)) => Some(format!("{pod}-{}", volume.name)),
                (None, None) => None,
            })
            .collect();
        Ok(Self { claims, node_name: wire.spec.node_name, phase: wire.status.phase, metadata: wire.metadata })
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire {
    #[serde(deserialize_with = "Meta::bare")]
    metadata: Meta,
    spec: WireSpec,
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    #[serde(deserialize_with = "nullable")]
    node_name: String,
    #[serde(deserialize_with = "nullable")]
    volumes: Vec<WireVolume>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireVolume {
    name: String,
    persistent_volume_claim: Option<WireClaim>,
    ephemeral: Option<crate::claim::Present>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireClaim {
    claim_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireStatus {
    phase: PodPhase,
}

words! {
    /// How far a pod has come.
    PodPhase {
        /// Not all of it runs yet.
        Pending = "Pending",
        /// It runs.
        Running = "Running",
        /// All of it ended well.
        Succeeded = "Succeeded",
        /// All of it ended, some not well.
        Failed = "Failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_names_only() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "db-0", "namespace": "shop", "uid": "u", "labels": {"a": "b"}, "annotations": {"c": "d"},
                "ownerReferences": [{"kind": "StatefulSet", "name": "db"}],
            },
            "spec": {
                "nodeName": "node-a",
                "containers": [{"name": "c", "image": "i"}],
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}},
                    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
                    {"name": "token", "projected": {"sources": []}},
                ],
            },
            "status": {"phase": "Running"},
        }))
        .unwrap();
        assert_eq!(pod.claims, ["data-db-0", "db-0-scratch"]);
        assert_eq!((pod.node_name.as_str(), pod.phase), ("node-a", PodPhase::Running));
        assert_eq!(pod.key(), crate::Key::namespaced("shop", "db-0"));
        assert!(pod.metadata.labels.is_empty() && pod.metadata.annotations.is_empty());
        assert!(pod.metadata.owner_references.is_empty());
    }

    #[test]
    fn only_an_end_ends_the_use() {
        for (phase, terminated) in
            [("Pending", false), ("Running", false), ("Succeeded", true), ("Failed", true), ("Odd", false)]
        {
            let pod: Pod = serde_json::from_value(serde_json::json!({"status": {"phase": phase}})).unwrap();
            assert_eq!(pod.is_terminated(), terminated, "{phase}");
        }
    }
}
