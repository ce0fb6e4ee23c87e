//! Pod: which claims it uses, and whether it still does. A cluster has many pods, so only a few fields are cached.

use serde::{Deserialize, Deserializer};

use crate::Meta;
use crate::decode::{null_as_default, open_enum};
use crate::kind::{ApiResource, Kind, Scope};

/// A pod that uses claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Metadata: only the name, UID, resource version and deletion timestamp.
    pub metadata: Meta,
    /// Its node; empty if it is not scheduled.
    pub node_name: String,
    /// Names of the claims it uses, including those of its ephemeral volumes.
    pub claims: Vec<String>,
    /// Its phase.
    pub phase: PodPhase,
}

impl Kind for Pod {
    const API: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Pod", plural: "pods", scope: Scope::Namespaced };

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    /// Most pods of a cluster use no claim.
    fn is_cached(&self) -> bool {
        !self.claims.is_empty()
    }
}

impl Pod {
    /// Whether it has finished and no longer uses its claims.
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
                // The name that Kubernetes gives to the claim of an ephemeral volume.
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
    #[serde(deserialize_with = "Meta::identity_only")]
    metadata: Meta,
    spec: WireSpec,
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    #[serde(deserialize_with = "null_as_default")]
    node_name: String,
    #[serde(deserialize_with = "null_as_default")]
    volumes: Vec<WireVolume>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireVolume {
    name: String,
    persistent_volume_claim: Option<WireClaim>,
    ephemeral: Option<crate::claim::Presence>,
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

open_enum! {
    /// The phase of a pod.
    PodPhase {
        /// Not all containers have started.
        Pending = "Pending",
        /// At least one container is running, starting or restarting.
        Running = "Running",
        /// All containers have succeeded.
        Succeeded = "Succeeded",
        /// All containers have terminated, at least one with a failure.
        Failed = "Failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_are_decoded() {
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
    fn only_finished_phases_are_terminated() {
        for (phase, terminated) in
            [("Pending", false), ("Running", false), ("Succeeded", true), ("Failed", true), ("Odd", false)]
        {
            let pod: Pod = serde_json::from_value(serde_json::json!({"status": {"phase": phase}})).unwrap();
            assert_eq!(pod.is_terminated(), terminated, "{phase}");
        }
    }
}
