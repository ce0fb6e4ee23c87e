//! The containers of a pod: their configuration and status.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::decode::null_as_default;
use crate::pod::{FieldRef, ResourceFieldRef, SeLinuxOptions};
use crate::{Quantity, Time};

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its image.
    #[serde(deserialize_with = "null_as_default")]
    pub image: String,
    /// The program; overrides the image's entrypoint.
    #[serde(deserialize_with = "null_as_default")]
    pub command: Vec<String>,
    /// Its arguments.
    #[serde(deserialize_with = "null_as_default")]
    pub args: Vec<String>,
    /// Its working directory.
    #[serde(deserialize_with = "null_as_default")]
    pub working_dir: String,
    /// Its environment.
    #[serde(deserialize_with = "null_as_default")]
    pub env: Vec<EnvVar>,
    /// Secrets and ConfigMaps whose values are added to its environment.
    #[serde(deserialize_with = "null_as_default")]
    pub env_from: Vec<EnvFromSource>,
    /// Its ports.
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<ContainerPort>,
    /// Its resource requests and limits.
    pub resources: ContainerResources,
    /// Mounted volumes.
    #[serde(deserialize_with = "null_as_default")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Raw block volumes.
    #[serde(deserialize_with = "null_as_default")]
    pub volume_devices: Vec<VolumeDevice>,
    /// Its own restart policy: `Always` makes an init container a sidecar.
    #[serde(deserialize_with = "null_as_default")]
    pub restart_policy: String,
    /// User, group and privileges of its processes.
    pub security_context: Option<Box<SecurityContext>>,
    /// Checks whether it has started.
    pub startup_probe: Option<Box<Probe>>,
    /// Checks whether it must be restarted.
    pub liveness_probe: Option<Box<Probe>>,
    /// Checks whether it is ready for traffic.
    pub readiness_probe: Option<Box<Probe>>,
    /// Hooks after its start and before its termination.
    pub lifecycle: Option<Box<Lifecycle>>,
    /// Whether its stdin stays open.
    #[serde(deserialize_with = "null_as_default")]
    pub stdin: bool,
    /// Whether it has a terminal.
    #[serde(deserialize_with = "null_as_default")]
    pub tty: bool,
}

/// The resource requests and limits of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerResources {
    /// The minimum resources.
    #[serde(deserialize_with = "null_as_default")]
    pub requests: BTreeMap<String, Quantity>,
    /// The maximum resources.
    #[serde(deserialize_with = "null_as_default")]
    pub limits: BTreeMap<String, Quantity>,
}

/// An environment variable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value, in which `$(NAME)` is replaced by an earlier variable.
    #[serde(deserialize_with = "null_as_default")]
    pub value: String,
    /// The source of its value, instead of `value`.
    pub value_from: Option<Box<EnvVarSource>>,
}

/// The source of a variable's value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVarSource {
    /// A field of the pod.
    pub field_ref: Option<FieldRef>,
    /// A resource of a container.
    pub resource_field_ref: Option<ResourceFieldRef>,
    /// A value of a Secret.
    pub secret_key_ref: Option<KeySelector>,
    /// A value of a ConfigMap.
    pub config_map_key_ref: Option<KeySelector>,
}

/// Selects one value of a Secret or ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KeySelector {
    /// The name of the object.
    pub name: String,
    /// The key of the value.
    pub key: String,
    /// Whether the object or key may be missing.
    #[serde(deserialize_with = "null_as_default")]
    pub optional: bool,
}

/// All values of a Secret or ConfigMap as variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvFromSource {
    /// The prefix of each variable's name.
    #[serde(deserialize_with = "null_as_default")]
    pub prefix: String,
    /// The Secret.
    pub secret_ref: Option<EnvObjectRef>,
    /// The ConfigMap.
    pub config_map_ref: Option<EnvObjectRef>,
}

/// A reference to a Secret or ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EnvObjectRef {
    /// The name of the object.
    pub name: String,
    /// Whether the object may be missing.
    #[serde(deserialize_with = "null_as_default")]
    pub optional: bool,
}

/// A volume mounted in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMount {
    /// The volume.
    pub name: String,
    /// The path in the container.
    pub mount_path: String,
    /// Whether it is mounted read-only.
    #[serde(deserialize_with = "null_as_default")]
    pub read_only: bool,
    /// The path within the volume to mount; if empty, the root of the volume.
    #[serde(deserialize_with = "null_as_default")]
    pub sub_path: String,
    /// Like `sub_path`, with `$(NAME)` for variables.
    #[serde(deserialize_with = "null_as_default")]
    pub sub_path_expr: String,
    /// `None`, `HostToContainer` or `Bidirectional`.
    #[serde(deserialize_with = "null_as_default")]
    pub mount_propagation: String,
}

/// A raw block volume in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeDevice {
    /// The volume.
    pub name: String,
    /// The path of the device in the container.
    pub device_path: String,
}

/// User, group and privileges of a container's processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityContext {
    /// The user.
    pub run_as_user: Option<i64>,
    /// The group.
    pub run_as_group: Option<i64>,
    /// Whether running as root is rejected.
    pub run_as_non_root: Option<bool>,
    /// Whether it is privileged.
    pub privileged: Option<bool>,
    /// Whether its root file system is read-only.
    pub read_only_root_filesystem: Option<bool>,
    /// Whether its processes can gain privileges.
    pub allow_privilege_escalation: Option<bool>,
    /// Added and dropped capabilities.
    pub capabilities: Option<Capabilities>,
    /// The SELinux label.
    pub se_linux_options: Option<SeLinuxOptions>,
}

/// Changes of a container's default capabilities.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Added capabilities.
    #[serde(deserialize_with = "null_as_default")]
    pub add: Vec<String>,
    /// Dropped capabilities.
    #[serde(deserialize_with = "null_as_default")]
    pub drop: Vec<String>,
}

/// A health check of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    /// Runs a program in the container.
    pub exec: Option<ExecAction>,
    /// Sends an HTTP request.
    pub http_get: Option<HttpGetAction>,
    /// Opens a TCP connection.
    pub tcp_socket: Option<TcpSocketAction>,
    /// Sends a gRPC health check.
    pub grpc: Option<Value>,
    /// Seconds before the first check.
    pub initial_delay_seconds: Option<i32>,
    /// The timeout of a check in seconds.
    pub timeout_seconds: Option<i32>,
    /// Seconds between two checks.
    pub period_seconds: Option<i32>,
    /// Consecutive successes after a failure that count as success.
    pub success_threshold: Option<i32>,
    /// Consecutive failures that count as failure.
    pub failure_threshold: Option<i32>,
    /// Seconds to terminate after a failed probe.
    pub termination_grace_period_seconds: Option<i64>,
}

/// An HTTP GET request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpGetAction {
    /// The path with its query; if empty, `/`.
    #[serde(deserialize_with = "null_as_default")]
    pub path: String,
    /// A number, or the name of one of the container's ports.
    pub port: Value,
    /// The host; if empty, the pod's IP.
    #[serde(deserialize_with = "null_as_default")]
    pub host: String,
    /// `HTTP` or `HTTPS`; if empty, `HTTP`.
    #[serde(deserialize_with = "null_as_default")]
    pub scheme: String,
    /// Additional headers.
    #[serde(deserialize_with = "null_as_default")]
    pub http_headers: Vec<HttpHeader>,
}

/// A header of an HTTP request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HttpHeader {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A TCP connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TcpSocketAction {
    /// A number, or the name of one of the container's ports.
    pub port: Value,
    /// The host; if empty, the pod's IP.
    #[serde(deserialize_with = "null_as_default")]
    pub host: String,
}

/// A port of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Its name, if it has one.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// Its number.
    pub container_port: u16,
}

/// A program to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExecAction {
    /// The program and its arguments.
    #[serde(deserialize_with = "null_as_default")]
    pub command: Vec<String>,
}

/// The lifecycle hooks of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    /// Runs after the start.
    pub post_start: Option<LifecycleHandler>,
    /// Runs before the termination.
    pub pre_stop: Option<LifecycleHandler>,
}

/// The action of a lifecycle hook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LifecycleHandler {
    /// Runs a program in the container.
    pub exec: Option<ExecAction>,
    /// Sends an HTTP request.
    pub http_get: Option<HttpGetAction>,
    /// Sleeps.
    pub sleep: Option<Sleep>,
}

/// A sleep action.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Sleep {
    /// The duration in seconds.
    pub seconds: i64,
}

/// The status of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// Whether it is ready.
    #[serde(deserialize_with = "null_as_default")]
    pub ready: bool,
    /// Whether it has passed its startup probe.
    #[serde(deserialize_with = "null_as_default")]
    pub started: bool,
    /// The number of restarts.
    #[serde(deserialize_with = "null_as_default")]
    pub restart_count: i32,
    /// Its present state.
    pub state: ContainerState,
    /// Its last termination state.
    pub last_state: ContainerState,
    /// The runtime's ID of the container.
    #[serde(deserialize_with = "null_as_default", rename = "containerID")]
    pub container_id: String,
}

/// The state of a container: one of these, or none yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// It is waiting to start.
    pub waiting: Option<Waiting>,
    /// It is running.
    pub running: Option<Running>,
    /// It has terminated.
    pub terminated: Option<Terminated>,
}

/// Why a container is waiting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// A CamelCase word.
    #[serde(deserialize_with = "null_as_default")]
    pub reason: String,
    /// A human-readable message.
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
}

/// A running container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Running {
    /// When it was started.
    pub started_at: Option<Time>,
}

/// A terminated container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// The exit code.
    #[serde(deserialize_with = "null_as_default")]
    pub exit_code: i32,
    /// A CamelCase word.
    #[serde(deserialize_with = "null_as_default")]
    pub reason: String,
    /// When it was started.
    pub started_at: Option<Time>,
    /// When it terminated.
    pub finished_at: Option<Time>,
}
