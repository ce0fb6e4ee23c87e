//! Pod: where it may be, what it runs, and which volumes it has.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::container::{Container, ContainerStatus};
use crate::claim::Condition;
use crate::kind::{Api, Kind};
use crate::pod::PodPhase;
use crate::selector::NodeSelector;
use crate::volume::SecretRef;
use crate::words::{nullable, words};
use crate::{Map, Meta, Quantity, Time};

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata.
    pub metadata: Meta,
    /// What it is to be.
    pub spec: PodSpec,
    /// What it is.
    pub status: PodStatus,
}

impl Kind for Pod {
    const API: Api = crate::Pod::API;

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Pod {
    /// Whether it has ended for good.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// The name of the claim behind a volume: the one it names, or the one made for it.
    pub fn claim_of(&self, volume: &PodVolume) -> Option<String> {
        match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{}-{}", self.metadata.name, volume.name)),
            (None, None) => None,
        }
    }

    /// Names of all claims it uses.
    pub fn claims(&self) -> impl Iterator<Item = String> + '_ {
        self.spec.volumes.iter().filter_map(|volume| self.claim_of(volume))
    }
}

/// What a pod is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Its node; empty while it has none.
    #[serde(deserialize_with = "nullable")]
    pub node_name: String,
    /// Whose it is to place; empty is `default-scheduler`.
    #[serde(deserialize_with = "nullable")]
    pub scheduler_name: String,
    /// While there is one, nobody places it.
    #[serde(deserialize_with = "nullable")]
    pub scheduling_gates: Vec<SchedulingGate>,
    /// Labels that its node must have.
    #[serde(deserialize_with = "nullable")]
    pub node_selector: BTreeMap<String, String>,
    /// More about its node.
    pub affinity: Option<Box<Affinity>>,
    /// Taints that it does not mind.
    #[serde(deserialize_with = "nullable")]
    pub tolerations: Vec<Toleration>,
    /// How important it is.
    pub priority: Option<i32>,
    /// What happens when a container ends; absent is Always.
    pub restart_policy: Option<RestartPolicy>,
    /// Seconds between the wish to stop and the end.
    pub termination_grace_period_seconds: Option<i64>,
    /// Seconds that the pod may run.
    pub active_deadline_seconds: Option<i64>,
    /// Its account.
    #[serde(deserialize_with = "nullable")]
    pub service_account_name: String,
    /// Whether the account's token is put into its containers; `None` leaves it to the account.
    pub automount_service_account_token: Option<bool>,
    /// Its host name, if not its own name.
    #[serde(deserialize_with = "nullable")]
    pub hostname: String,
    /// Who its processes are.
    pub security_context: Option<Box<PodSecurityContext>>,
    /// Run one after the other before the others.
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<Container>,
    /// What it runs.
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
    /// Its volumes.
    #[serde(deserialize_with = "nullable")]
    pub volumes: Vec<PodVolume>,
}

/// What keeps a pod from being placed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SchedulingGate {
    /// Its name.
    pub name: String,
}

/// What is asked of a pod's node; what is only preferred is not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// About the node.
    pub node_affinity: Option<RequiredAffinity>,
}

/// What must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequiredAffinity {
    /// `None`: nothing.
    pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

/// A taint that a pod does not mind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Which; empty with `Exists` is all.
    #[serde(deserialize_with = "nullable")]
    pub key: String,
    /// `Exists` or, if empty, `Equal`.
    #[serde(deserialize_with = "nullable")]
    pub operator: String,
    /// The value.
    #[serde(deserialize_with = "nullable")]
    pub value: String,
    /// Of which effect; empty is all.
    #[serde(deserialize_with = "nullable")]
    pub effect: String,
    /// For how long after NoExecute.
    pub toleration_seconds: Option<i64>,
}

/// Who a pod's processes are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSecurityContext {
    /// The user.
    pub run_as_user: Option<i64>,
    /// The group.
    pub run_as_group: Option<i64>,
    /// Refuse to run as root.
    pub run_as_non_root: Option<bool>,
    /// Further groups.
    #[serde(deserialize_with = "nullable")]
    pub supplemental_groups: Vec<i64>,
    /// The group that volumes get.
    pub fs_group: Option<i64>,
    /// `Always`, or `OnRootMismatch`.
    #[serde(deserialize_with = "nullable")]
    pub fs_group_change_policy: String,
    /// The label of SELinux.
    pub se_linux_options: Option<SeLinuxOptions>,
    /// `MountOption`, or `Recursive`.
    #[serde(deserialize_with = "nullable", rename = "seLinuxChangePolicy")]
    pub se_linux_change_policy: String,
}

/// A label of SELinux.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SeLinuxOptions {
    /// User.
    #[serde(deserialize_with = "nullable")]
    pub user: String,
    /// Role.
    #[serde(deserialize_with = "nullable")]
    pub role: String,
    /// Type.
    #[serde(deserialize_with = "nullable", rename = "type")]
    pub kind: String,
    /// Level.
    #[serde(deserialize_with = "nullable")]
    pub level: String,
}

/// A volume of a pod: a name, and one source. Sources that we do not know leave all of these empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodVolume {
    /// Its name in the pod.
    pub name: String,
    /// A claim.
    pub persistent_volume_claim: Option<ClaimVolume>,
    /// A claim that is made for the pod.
    pub ephemeral: Option<Box<EphemeralVolume>>,
    /// A volume that a driver makes for the pod.
    pub csi: Option<Box<InlineVolume>>,
    /// An empty directory.
    pub empty_dir: Option<EmptyDir>,
    /// A path of the node.
    pub host_path: Option<HostPath>,
    /// A secret's values as files.
    pub secret: Option<Box<FilesOf>>,
    /// A config map's values as files.
    pub config_map: Option<Box<FilesOf>>,
    /// Fields of the pod as files.
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<Box<DownwardApi>>,
    /// Several of these in one directory.
    pub projected: Option<Box<Projected>>,
}

/// A claim as a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimVolume {
    /// The claim.
    pub claim_name: String,
    /// For reading only.
    #[serde(deserialize_with = "nullable")]
    pub read_only: bool,
}

/// A claim that is made for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EphemeralVolume {
    /// Metadata and spec of the claim, as they are copied into it.
    pub volume_claim_template: Option<Value>,
}

/// A volume that a driver makes for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InlineVolume {
    /// The driver.
    pub driver: String,
    /// For reading only.
    #[serde(deserialize_with = "nullable")]
    pub read_only: bool,
    /// The file system; empty leaves it to the driver.
    #[serde(deserialize_with = "nullable")]
    pub fs_type: String,
    /// What the driver is told.
    #[serde(deserialize_with = "nullable")]
    pub volume_attributes: Map,
    /// A secret of the pod's namespace; it has no namespace here.
    pub node_publish_secret_ref: Option<SecretRef>,
}

/// An empty directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EmptyDir {
    /// `Memory` is a tmpfs.
    #[serde(deserialize_with = "nullable")]
    pub medium: String,
    /// The most it may hold.
    pub size_limit: Option<Quantity>,
}

/// A path of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HostPath {
    /// The path.
    pub path: String,
    /// What must be there: `Directory`, `File`, `DirectoryOrCreate` and so on; empty is anything.
    #[serde(deserialize_with = "nullable", rename = "type")]
    pub kind: String,
}

/// Values as files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FilesOf {
    /// The secret.
    #[serde(deserialize_with = "nullable")]
    pub secret_name: String,
    /// The config map, or in a projection either.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Which values, and as which files; empty is all.
    #[serde(deserialize_with = "nullable")]
    pub items: Vec<KeyToPath>,
    /// Permissions of the files.
    pub default_mode: Option<i32>,
    /// Whether it may be missing.
    #[serde(deserialize_with = "nullable")]
    pub optional: bool,
}

/// One value as a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KeyToPath {
    /// The value.
    pub key: String,
    /// The file.
    pub path: String,
    /// Its permissions.
    pub mode: Option<i32>,
}

/// Fields of the pod as files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DownwardApi {
    /// The files.
    #[serde(deserialize_with = "nullable")]
    pub items: Vec<DownwardFile>,
    /// Their permissions.
    pub default_mode: Option<i32>,
}

/// One field as a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DownwardFile {
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
    /// Which, such as `metadata.name`.
    pub field_path: String,
}

/// A resource of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceFieldRef {
    /// The container; empty is the one that asks.
    #[serde(deserialize_with = "nullable")]
    pub container_name: String,
    /// Which, such as `limits.memory`.
    pub resource: String,
    /// What it is divided by.
    pub divisor: Option<Quantity>,
}

/// Several sources in one directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Projected {
    /// The sources.
    #[serde(deserialize_with = "nullable")]
    pub sources: Vec<Projection>,
    /// Permissions of the files.
    pub default_mode: Option<i32>,
}

/// One source of a projection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Projection {
    /// A secret.
    pub secret: Option<FilesOf>,
    /// A config map.
    pub config_map: Option<FilesOf>,
    /// Fields of the pod.
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<DownwardApi>,
    /// A token of the pod's account.
    pub service_account_token: Option<TokenFile>,
}

/// A token as a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenFile {
    /// For whom; empty is the API server.
    #[serde(deserialize_with = "nullable")]
    pub audience: String,
    /// How long it holds.
    pub expiration_seconds: Option<i64>,
    /// The file.
    pub path: String,
}

/// What a pod is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// How far it has come.
    pub phase: PodPhase,
    /// Conditions of all who write some.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
    /// Why it is in this phase, in one word.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    /// The same as a sentence.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    /// Since when its node knows it.
    pub start_time: Option<Time>,
    /// Its containers that run first.
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Its containers.
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Containers that were added to look at the others.
    #[serde(deserialize_with = "nullable")]
    pub ephemeral_container_statuses: Vec<ContainerStatus>,
}

impl PodStatus {
    /// The pod's own containers, those that run first at the head.
    pub fn own_container_statuses(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.init_container_statuses.iter().chain(&self.container_statuses)
    }
}

words! {
    /// What happens when a container ends.
    RestartPolicy {
        /// It is started again.
        Always = "Always",
        /// It is started again if it failed.
        OnFailure = "OnFailure",
        /// Nothing.
        Never = "Never",
    }
}
