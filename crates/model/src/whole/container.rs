//! Containers of a pod: what they run, with what, and how they are.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::pod::{FieldRef, ResourceFieldRef, SeLinuxOptions};
use crate::words::nullable;
use crate::{Quantity, Time};

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its image.
    #[serde(deserialize_with = "nullable")]
    pub image: String,
    /// The program, in place of the image's.
    #[serde(deserialize_with = "nullable")]
    pub command: Vec<String>,
    /// Its arguments.
    #[serde(deserialize_with = "nullable")]
    pub args: Vec<String>,
    /// Where it starts.
    #[serde(deserialize_with = "nullable")]
    pub working_dir: String,
    /// Its environment.
    #[serde(deserialize_with = "nullable")]
    pub env: Vec<EnvVar>,
    /// Whole secrets and config maps for its environment.
    #[serde(deserialize_with = "nullable")]
    pub env_from: Vec<EnvFrom>,
    /// Its ports, as far as they have names.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ContainerPort>,
    /// What it needs.
    pub resources: ContainerResources,
    /// Volumes with files.
    #[serde(deserialize_with = "nullable")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Volumes that are devices.
    #[serde(deserialize_with = "nullable")]
    pub volume_devices: Vec<VolumeDevice>,
    /// Whether it is started again on its own: `Always` makes an init container a sidecar.
    #[serde(deserialize_with = "nullable")]
    pub restart_policy: String,
    /// Who it is.
    pub security_context: Option<Box<SecurityContext>>,
    /// Whether it has started.
    pub startup_probe: Option<Box<Probe>>,
    /// Whether it lives.
    pub liveness_probe: Option<Box<Probe>>,
    /// Whether it can be used.
    pub readiness_probe: Option<Box<Probe>>,
    /// What is done after its start and before its end.
    pub lifecycle: Option<Box<Lifecycle>>,
    /// Whether it reads from somebody.
    #[serde(deserialize_with = "nullable")]
    pub stdin: bool,
    /// Whether it has a terminal.
    #[serde(deserialize_with = "nullable")]
    pub tty: bool,
}

/// What a container needs and may have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerResources {
    /// What it needs.
    #[serde(deserialize_with = "nullable")]
    pub requests: BTreeMap<String, Quantity>,
    /// What it may have.
    #[serde(deserialize_with = "nullable")]
    pub limits: BTreeMap<String, Quantity>,
}

/// One variable of the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value, in which `$(NAME)` stands for an earlier one.
    #[serde(deserialize_with = "nullable")]
    pub value: String,
    /// Where its value comes from instead.
    pub value_from: Option<Box<EnvSource>>,
}

/// Where a variable's value comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvSource {
    /// A field of the pod.
    pub field_ref: Option<FieldRef>,
    /// A resource of a container.
    pub resource_field_ref: Option<ResourceFieldRef>,
    /// A value of a secret.
    pub secret_key_ref: Option<ValueRef>,
    /// A value of a config map.
    pub config_map_key_ref: Option<ValueRef>,
}

/// One value of a secret or config map.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ValueRef {
    /// The object.
    pub name: String,
    /// The value.
    pub key: String,
    /// Whether it may be missing.
    #[serde(deserialize_with = "nullable")]
    pub optional: bool,
}

/// All values of a secret or config map as variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvFrom {
    /// What is put before each name.
    #[serde(deserialize_with = "nullable")]
    pub prefix: String,
    /// The secret.
    pub secret_ref: Option<WholeRef>,
    /// The config map.
    pub config_map_ref: Option<WholeRef>,
}

/// A whole secret or config map.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WholeRef {
    /// The object.
    pub name: String,
    /// Whether it may be missing.
    #[serde(deserialize_with = "nullable")]
    pub optional: bool,
}

/// A volume with files in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMount {
    /// The volume.
    pub name: String,
    /// Where it is.
    pub mount_path: String,
    /// For reading only.
    #[serde(deserialize_with = "nullable")]
    pub read_only: bool,
    /// Only this part of it.
    #[serde(deserialize_with = "nullable")]
    pub sub_path: String,
    /// The same, with `$(NAME)` for variables.
    #[serde(deserialize_with = "nullable")]
    pub sub_path_expr: String,
    /// `None`, `HostToContainer` or `Bidirectional`.
    #[serde(deserialize_with = "nullable")]
    pub mount_propagation: String,
}

/// A volume that is a device in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeDevice {
    /// The volume.
    pub name: String,
    /// Where it is.
    pub device_path: String,
}

/// Who a container is, and what it may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityContext {
    /// The user.
    pub run_as_user: Option<i64>,
    /// The group.
    pub run_as_group: Option<i64>,
    /// Refuse to run as root.
    pub run_as_non_root: Option<bool>,
    /// All that root may do.
    pub privileged: Option<bool>,
    /// Whether its root is for reading only.
    pub read_only_root_filesystem: Option<bool>,
    /// Whether it can gain rights.
    pub allow_privilege_escalation: Option<bool>,
    /// What it may do more or less than others.
    pub capabilities: Option<Capabilities>,
    /// The label of SELinux.
    pub se_linux_options: Option<SeLinuxOptions>,
}

/// What a container may do more or less than others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// More.
    #[serde(deserialize_with = "nullable")]
    pub add: Vec<String>,
    /// Less.
    #[serde(deserialize_with = "nullable")]
    pub drop: Vec<String>,
}

/// How a container is asked how it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    /// By a program in it.
    pub exec: Option<Exec>,
    /// By HTTP.
    pub http_get: Option<HttpGet>,
    /// By a connection.
    pub tcp_socket: Option<TcpSocket>,
    /// By gRPC.
    pub grpc: Option<Value>,
    /// Seconds before the first time.
    pub initial_delay_seconds: Option<i32>,
    /// Seconds for an answer.
    pub timeout_seconds: Option<i32>,
    /// Seconds between two.
    pub period_seconds: Option<i32>,
    /// So many times in a row it is well.
    pub success_threshold: Option<i32>,
    /// So many times in a row it is not.
    pub failure_threshold: Option<i32>,
    /// Seconds to stop, after it was not.
    pub termination_grace_period_seconds: Option<i64>,
}

/// A page to ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpGet {
    /// With its query; empty is `/`.
    #[serde(deserialize_with = "nullable")]
    pub path: String,
    /// A number, or the name of one of the container's ports.
    pub port: Value,
    /// Where; empty is the pod itself.
    #[serde(deserialize_with = "nullable")]
    pub host: String,
    /// `HTTP` or `HTTPS`; empty is the former.
    #[serde(deserialize_with = "nullable")]
    pub scheme: String,
    /// What is said besides.
    #[serde(deserialize_with = "nullable")]
    pub http_headers: Vec<HttpHeader>,
}

/// A header of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HttpHeader {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A port to connect to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TcpSocket {
    /// A number, or the name of one of the container's ports.
    pub port: Value,
    /// Where; empty is the pod itself.
    #[serde(deserialize_with = "nullable")]
    pub host: String,
}

/// A port of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Its name, if it has one.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Its number.
    pub container_port: u16,
}

/// A program to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Exec {
    /// The program and its arguments.
    #[serde(deserialize_with = "nullable")]
    pub command: Vec<String>,
}

/// What is done after a container's start and before its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    /// After the start.
    pub post_start: Option<Handler>,
    /// Before the end.
    pub pre_stop: Option<Handler>,
}

/// What is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Handler {
    /// A program in the container.
    pub exec: Option<Exec>,
    /// A page that is asked for.
    pub http_get: Option<HttpGet>,
    /// A pause.
    pub sleep: Option<Sleep>,
}

/// A pause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Sleep {
    /// How long.
    pub seconds: i64,
}

/// How a container is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// Whether it can be used.
    #[serde(deserialize_with = "nullable")]
    pub ready: bool,
    /// Whether its start is over.
    #[serde(deserialize_with = "nullable")]
    pub started: bool,
    /// How often it was started again.
    #[serde(deserialize_with = "nullable")]
    pub restart_count: i32,
    /// What it is doing.
    pub state: ContainerState,
    /// What it did before.
    pub last_state: ContainerState,
    /// Which process group it is.
    #[serde(deserialize_with = "nullable", rename = "containerID")]
    pub container_id: String,
}

/// What a container is doing: one of these, or nothing yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// It waits.
    pub waiting: Option<Waiting>,
    /// It runs.
    pub running: Option<Running>,
    /// It has ended.
    pub terminated: Option<Terminated>,
}

/// Why a container waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// In a word.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    /// As a sentence.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
}

/// A container that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Running {
    /// Since when.
    pub started_at: Option<Time>,
}

/// A container that has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// How.
    #[serde(deserialize_with = "nullable")]
    pub exit_code: i32,
    /// In a word.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    /// When it was started.
    pub started_at: Option<Time>,
    /// When it ended.
    pub finished_at: Option<Time>,
}
