//! Pod: its claims, scheduling constraints, containers and volumes.
//!
//! A slim view has only what components that manage volumes read: the pod's claims, its node and its phase. Pods
//! without claims are not cached: a cluster has many pods, and most of them use no claim.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::claim::{Condition, Presence};
use crate::container::{Container, ContainerStatus};
use crate::decode::{null_as_default, open_enum};
use crate::detail::{Detail, impl_empty};
use crate::kind::{ApiResource, Kind, Scope, View};
use crate::node::Taint;
use crate::selector::NodeSelector;
use crate::volume::SecretRef;
use crate::{Key, Meta, Quantity, StringMap, Time};

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Metadata. A slim view has only the name, UID, resource version and deletion timestamp.
    pub metadata: Meta,
    /// Its node; empty if it is not scheduled.
    pub node_name: String,
    /// Names of the claims it uses, including those of its ephemeral volumes.
    pub claims: Box<[String]>,
    /// Its phase.
    pub phase: PodPhase,
    /// The rest of the spec; empty in a slim view.
    pub spec: Detail<PodSpec>,
    /// The rest of the status; empty in a slim view.
    pub status: Detail<PodStatus>,
}

impl_empty!(PodSpec, PodStatus);

impl Kind for Pod {
    const API: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Pod", plural: "pods", scope: Scope::Namespaced };

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn decode<'de, D: Deserializer<'de>>(deserializer: D, view: View) -> Result<Self, D::Error> {
        match view {
            View::Full => Self::deserialize(deserializer),
            View::Slim => SlimPod::deserialize(deserializer).map(Self::from),
        }
    }

    /// Components with a slim view read only pods that use claims.
    fn is_cached(&self, view: View) -> bool {
        view == View::Full || !self.claims.is_empty()
    }

    fn field(path: &str) -> Option<fn(&Self) -> &str> {
        match path {
            "metadata.name" => Some(|pod| &pod.metadata.name),
            "spec.nodeName" => Some(|pod| &pod.node_name),
            "status.phase" => Some(|pod| pod.phase.as_str()),
            _ => None,
        }
    }
}

impl Pod {
    /// Whether the pod has finished (phase Succeeded or Failed) and no longer uses its claims.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// The name of a volume's claim: the one that the volume names, or the one created for an ephemeral volume.
    pub fn claim_name(&self, volume: &PodVolume) -> Option<String> {
        volume.claim_name(&self.metadata.name)
    }

    /// Whether the claim was created for this pod: the pod is the claim's controller.
    pub fn owns(&self, claim: &Meta) -> bool {
        let controller = claim.owner_references.iter().find(|owner| owner.controller == Some(true));
        claim.namespace == self.metadata.namespace
            && controller.is_some_and(|owner| owner.uid == self.metadata.uid)
    }

    /// Keys of all claims it uses.
    pub fn claim_keys(&self) -> impl Iterator<Item = Key> + '_ {
        let namespace = &self.metadata.namespace;
        self.claims.iter().map(|claim| Key { namespace: namespace.clone(), name: claim.clone() })
    }
}

/// The claim that a volume names, or `<pod>-<volume>`, the claim that Kubernetes creates for an ephemeral volume.
fn claim_name(pod: &str, volume: &str, claim: Option<&str>, is_ephemeral: bool) -> Option<String> {
    match claim {
        Some(claim) => Some(claim.to_owned()),
        None => is_ephemeral.then(|| format!("{pod}-{volume}")),
    }
}

impl<'de> Deserialize<'de> for Pod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct FullPod {
            metadata: Meta,
            spec: PodSpec,
            status: PodStatus,
        }

        let FullPod { metadata, mut spec, status } = FullPod::deserialize(deserializer)?;
        Ok(Self {
            node_name: std::mem::take(&mut spec.node_name),
            claims: spec.volumes.iter().filter_map(|volume| volume.claim_name(&metadata.name)).collect(),
            phase: status.phase,
            spec: spec.into(),
            status: status.into(),
            metadata,
        })
    }
}

/// The fields of a slim view.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SlimPod {
    #[serde(deserialize_with = "Meta::identity_only")]
    metadata: Meta,
    spec: SlimSpec,
    status: SlimStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimSpec {
    #[serde(deserialize_with = "null_as_default")]
    node_name: String,
    #[serde(deserialize_with = "null_as_default")]
    volumes: Vec<SlimVolume>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimVolume {
    name: String,
    persistent_volume_claim: Option<ClaimVolume>,
    ephemeral: Option<Presence>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SlimStatus {
    phase: PodPhase,
}

impl From<SlimPod> for Pod {
    fn from(SlimPod { metadata, spec, status }: SlimPod) -> Self {
        let claim = |volume: &SlimVolume| {
            let claim = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str());
            claim_name(&metadata.name, &volume.name, claim, volume.ephemeral.is_some())
        };
        Self {
            node_name: spec.node_name,
            claims: spec.volumes.iter().filter_map(claim).collect(),
            phase: status.phase,
            metadata,
            ..Self::default()
        }
    }
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

/// The spec of a pod, without its node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Decoded here because it is part of the spec; see [`Pod::node_name`].
    #[serde(deserialize_with = "null_as_default")]
    node_name: String,
    /// The scheduler that is responsible for it; if empty, `default-scheduler`.
    #[serde(deserialize_with = "null_as_default")]
    pub scheduler_name: String,
    /// Gates that prevent scheduling until they are removed.
    #[serde(deserialize_with = "null_as_default")]
    pub scheduling_gates: Vec<SchedulingGate>,
    /// Labels that its node must have.
    #[serde(deserialize_with = "null_as_default")]
    pub node_selector: BTreeMap<String, String>,
    /// Further constraints on its node.
    pub affinity: Option<Box<Affinity>>,
    /// Tolerated taints.
    #[serde(deserialize_with = "null_as_default")]
    pub tolerations: Vec<Toleration>,
    /// Its priority.
    pub priority: Option<i32>,
    /// When containers are restarted; default Always.
    pub restart_policy: Option<RestartPolicy>,
    /// Seconds that containers have to terminate before they are killed.
    pub termination_grace_period_seconds: Option<i64>,
    /// Seconds that the pod may be active.
    pub active_deadline_seconds: Option<i64>,
    /// Its service account.
    #[serde(deserialize_with = "null_as_default")]
    pub service_account_name: String,
    /// Whether the service account's token is mounted; `None` uses the service account's setting.
    pub automount_service_account_token: Option<bool>,
    /// The host name; if empty, the pod's name.
    #[serde(deserialize_with = "null_as_default")]
    pub hostname: String,
    /// User, groups and SELinux label of its processes.
    pub security_context: Option<Box<PodSecurityContext>>,
    /// Init containers. They run one after the other, before the other containers start.
    #[serde(deserialize_with = "null_as_default")]
    pub init_containers: Vec<Container>,
    /// Its containers.
    #[serde(deserialize_with = "null_as_default")]
    pub containers: Vec<Container>,
    /// Its volumes.
    #[serde(deserialize_with = "null_as_default")]
    pub volumes: Vec<PodVolume>,
}

/// A gate that prevents a pod from being scheduled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SchedulingGate {
    /// Its name.
    pub name: String,
}

/// The affinity of a pod; preferences are not decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// Node affinity.
    pub node_affinity: Option<RequiredAffinity>,
}

/// Required node affinity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequiredAffinity {
    /// The nodes that match; `None` matches all nodes.
    pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

/// A toleration of taints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// The taint's key; an empty key with `Exists` matches all taints.
    #[serde(deserialize_with = "null_as_default")]
    pub key: String,
    /// `Exists` or `Equal`; if empty, `Equal`.
    #[serde(deserialize_with = "null_as_default")]
    pub operator: String,
    /// The taint's value, for `Equal`.
    #[serde(deserialize_with = "null_as_default")]
    pub value: String,
    /// The taint's effect; if empty, all effects.
    #[serde(deserialize_with = "null_as_default")]
    pub effect: String,
    /// Seconds for which a NoExecute taint is tolerated; `None` is forever.
    pub toleration_seconds: Option<i64>,
}

impl Toleration {
    /// Whether it tolerates the taint, for however long.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        (self.effect.is_empty() || self.effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && match self.operator.as_str() {
                "" | "Equal" => self.value == taint.value,
                "Exists" => true,
                _ => false,
            }
    }
}

/// User, groups and SELinux label of a pod's processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSecurityContext {
    /// The user ID of the processes.
    pub run_as_user: Option<i64>,
    /// The group ID of the processes.
    pub run_as_group: Option<i64>,
    /// Whether running as root is rejected.
    pub run_as_non_root: Option<bool>,
    /// Supplemental groups.
    #[serde(deserialize_with = "null_as_default")]
    pub supplemental_groups: Vec<i64>,
    /// The group that owns the pod's volumes.
    pub fs_group: Option<i64>,
    /// `Always`, or `OnRootMismatch`.
    #[serde(deserialize_with = "null_as_default")]
    pub fs_group_change_policy: String,
    /// The SELinux label.
    pub se_linux_options: Option<SeLinuxOptions>,
    /// `MountOption`, or `Recursive`.
    #[serde(deserialize_with = "null_as_default", rename = "seLinuxChangePolicy")]
    pub se_linux_change_policy: String,
}

/// An SELinux label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SeLinuxOptions {
    /// The user part of the label.
    #[serde(deserialize_with = "null_as_default")]
    pub user: String,
    /// The role part of the label.
    #[serde(deserialize_with = "null_as_default")]
    pub role: String,
    /// The type part of the label.
    #[serde(deserialize_with = "null_as_default", rename = "type")]
    pub kind: String,
    /// The level part of the label.
    #[serde(deserialize_with = "null_as_default")]
    pub level: String,
}

/// A volume of a pod: a name and one source. For an unknown source all source fields are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodVolume {
    /// Its name in the pod.
    pub name: String,
    /// A claim.
    pub persistent_volume_claim: Option<ClaimVolume>,
    /// A claim that is created for the pod.
    pub ephemeral: Option<Box<EphemeralVolume>>,
    /// An inline CSI volume.
    pub csi: Option<Box<InlineCsiVolume>>,
    /// An empty directory.
    pub empty_dir: Option<EmptyDir>,
    /// A path on the node.
    pub host_path: Option<HostPath>,
    /// The values of a Secret as files.
    pub secret: Option<Box<ObjectFilesSource>>,
    /// The values of a ConfigMap as files.
    pub config_map: Option<Box<ObjectFilesSource>>,
    /// Fields of the pod as files.
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<Box<DownwardApi>>,
    /// Several sources in one directory.
    pub projected: Option<Box<Projected>>,
}

impl PodVolume {
    fn claim_name(&self, pod: &str) -> Option<String> {
        let claim = self.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str());
        claim_name(pod, &self.name, claim, self.ephemeral.is_some())
    }
}

/// A volume from a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimVolume {
    /// The claim.
    pub claim_name: String,
    /// Whether it is mounted read-only.
    #[serde(deserialize_with = "null_as_default")]
    pub read_only: bool,
}

/// A generic ephemeral volume: a claim that is created for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EphemeralVolume {
    /// The template of the claim: its metadata and spec, which are copied unchanged.
    pub volume_claim_template: Option<Value>,
}

/// An inline CSI volume, which the driver creates for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InlineCsiVolume {
    /// The driver.
    pub driver: String,
    /// Whether it is mounted read-only.
    #[serde(deserialize_with = "null_as_default")]
    pub read_only: bool,
    /// The file system type; if empty, the driver's default.
    #[serde(deserialize_with = "null_as_default")]
    pub fs_type: String,
    /// Attributes for the driver.
    #[serde(deserialize_with = "null_as_default")]
    pub volume_attributes: StringMap,
    /// A secret in the pod's namespace; the reference itself has no namespace.
    pub node_publish_secret_ref: Option<SecretRef>,
}

/// An empty directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EmptyDir {
    /// `Memory` for a tmpfs; if empty, the node's disk.
    #[serde(deserialize_with = "null_as_default")]
    pub medium: String,
    /// Its size limit.
    pub size_limit: Option<Quantity>,
}

/// A path on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HostPath {
    /// The path.
    pub path: String,
    /// The required type: `Directory`, `File`, `DirectoryOrCreate` and so on; if empty, any type.
    #[serde(deserialize_with = "null_as_default", rename = "type")]
    pub kind: String,
}

/// The values of a Secret or ConfigMap as files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectFilesSource {
    /// The Secret.
    #[serde(deserialize_with = "null_as_default")]
    pub secret_name: String,
    /// The ConfigMap; in a projection, the Secret or ConfigMap.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// The values and their files; if empty, all values.
    #[serde(deserialize_with = "null_as_default")]
    pub items: Vec<KeyToPath>,
    /// Permissions of the files.
    pub default_mode: Option<i32>,
    /// Whether the object or key may be missing.
    #[serde(deserialize_with = "null_as_default")]
    pub optional: bool,
}

/// One value as a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KeyToPath {
    /// The key of the value.
    pub key: String,
    /// The relative path of the file.
    pub path: String,
    /// Its permissions.
    pub mode: Option<i32>,
}

/// Fields of the pod as files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DownwardApi {
    /// The files.
    #[serde(deserialize_with = "null_as_default")]
    pub items: Vec<DownwardApiFile>,
    /// Their permissions.
    pub default_mode: Option<i32>,
}

/// One field as a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DownwardApiFile {
    /// The file.
    pub path: String,
    /// A field of the pod.
    pub field_ref: Option<FieldRef>,
    /// A resource of a container.
    pub resource_field_ref: Option<ResourceFieldRef>,
    /// Its permissions.
    pub mode: Option<i32>,
}

/// A field of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FieldRef {
    /// The field path, such as `metadata.name`.
    pub field_path: String,
}

/// A resource of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceFieldRef {
    /// The container; if empty, the container that contains the reference.
    #[serde(deserialize_with = "null_as_default")]
    pub container_name: String,
    /// The resource, such as `limits.memory`.
    pub resource: String,
    /// The divisor of the value.
    pub divisor: Option<Quantity>,
}

/// Several sources in one directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Projected {
    /// The sources.
    #[serde(deserialize_with = "null_as_default")]
    pub sources: Vec<Projection>,
    /// Permissions of the files.
    pub default_mode: Option<i32>,
}

/// One source of a projection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Projection {
    /// A Secret.
    pub secret: Option<ObjectFilesSource>,
    /// A ConfigMap.
    pub config_map: Option<ObjectFilesSource>,
    /// Fields of the pod.
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<DownwardApi>,
    /// A token of the pod's service account.
    pub service_account_token: Option<TokenProjection>,
}

/// A service account token as a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenProjection {
    /// The audience; if empty, the API server.
    #[serde(deserialize_with = "null_as_default")]
    pub audience: String,
    /// The token's lifetime in seconds.
    pub expiration_seconds: Option<i64>,
    /// The file.
    pub path: String,
}

/// The status of a pod, without its phase.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Decoded here because it is part of the status; see [`Pod::phase`].
    phase: PodPhase,
    /// Conditions, set by all components.
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    /// Why it is in this phase, as a CamelCase word.
    #[serde(deserialize_with = "null_as_default")]
    pub reason: String,
    /// Why it is in this phase, as a human-readable message.
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
    /// When the kubelet admitted the pod.
    pub start_time: Option<Time>,
    /// Its init containers.
    #[serde(deserialize_with = "null_as_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Its containers.
    #[serde(deserialize_with = "null_as_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Its ephemeral containers, which were added for debugging.
    #[serde(deserialize_with = "null_as_default")]
    pub ephemeral_container_statuses: Vec<ContainerStatus>,
}

impl PodStatus {
    /// The statuses of init containers and containers, without ephemeral containers.
    pub fn own_container_statuses(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.init_container_statuses.iter().chain(&self.container_statuses)
    }
}

open_enum! {
    /// When containers are restarted.
    RestartPolicy {
        /// Whenever they terminate.
        Always = "Always",
        /// When they terminate with a failure.
        OnFailure = "OnFailure",
        /// Never.
        Never = "Never",
    }
}

#[cfg(test)]
mod tests;
