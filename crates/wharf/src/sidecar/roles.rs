//! Flags of `wharf sidecar` for the controller roles. They have the names and meanings of upstream's flags. Defaults differ
//! where upstream limits its own resource usage.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_controllers::snapshot_controller;
use wharf_model::names::VolumeNaming;
use wharf_sidecar::controller::{Config, Election, ElectionError, Role};
use wharf_sidecar::provisioner::{CapacitySettings, ImmediateBinding};
use wharf_sidecar::{WorkerOptions, attacher, health_monitor, provisioner, resizer, snapshotter};
use wharf_upstream_flags::Environment;

use super::parse_duration;
use health::HealthArgs;

mod health;

/// The roles and the connection to the cluster.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Controller roles")]
pub(super) struct RolesArgs {
    /// Roles to run: provisioner, attacher, resizer, snapshotter, health-monitor, snapshot-controller [default: according to the driver's capabilities]
    #[arg(long, value_name = "ROLE,…", value_delimiter = ',', value_parser = parse_role)]
    roles: Option<Vec<Role>>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Namespace of leases, journal and CSIStorageCapacity objects [default: the service account's or kubeconfig's]
    #[arg(long, env = "NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    election: ElectionArgs,
    #[command(flatten)]
    driver: DriverHealthArgs,
    #[command(flatten)]
    worker_options: WorkerArgs,
    #[command(flatten)]
    volumes: VolumeArgs,
    #[command(flatten)]
    snapshots: SnapshotArgs,
    #[command(flatten)]
    health: HealthArgs,
    #[command(flatten)]
    node: NodeArgs,
}

/// The connection to the API server.
#[derive(Debug, clap::Args)]
pub(super) struct ConnectArgs {
    /// Kubeconfig file [default: the pod's service account, else KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Maximum number of requests per second to the API server [default: no limit]
    #[arg(long, value_name = "N")]
    kube_api_qps: Option<f32>,
    /// Burst of requests above --kube-api-qps [default: twice --kube-api-qps]
    #[arg(long, value_name = "N", requires = "kube_api_qps")]
    kube_api_burst: Option<u32>,
}

/// Leader election between replicas.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(super) struct ElectionArgs {
    /// Run each role only while this replica holds its lease; leases have upstream's names
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    leader_election: bool,
    /// Namespace of the leases [default: --namespace]
    #[arg(long, value_name = "NAME")]
    leader_election_namespace: Option<String>,
    /// Labels of created leases, such as app:csi,tier:storage
    #[arg(long, value_name = "KEY:VALUE,…", value_delimiter = ',', value_parser = parse_label)]
    leader_election_labels: Vec<(String, String)>,
    /// How long other replicas wait for a holder that does not renew its lease
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "15s")]
    leader_election_lease_duration: Duration,
    /// How long after its last renewal a holder may work; then its calls are cancelled
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s")]
    leader_election_renew_deadline: Duration,
    /// Interval between attempts to acquire or renew a lease
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5s")]
    leader_election_retry_period: Duration,
}

/// Leader election if each replica has its own driver process.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
struct DriverHealthArgs {
    /// How long the driver may fail to answer Probe before this replica releases its leases; it competes again when the
    /// driver answers
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "15s")]
    leader_election_driver_timeout: Duration,
}

/// Concurrency, timeouts and retries.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Concurrency and retries")]
struct WorkerArgs {
    /// Number of objects that each role processes concurrently
    #[arg(long, visible_alias = "workers", value_name = "N", default_value_t = 100)]
    worker_threads: usize,
    /// Timeout of calls to the driver [default: 15s to attach, 1m for snapshots, 1s for the driver's name, 10s for other calls]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Backoff after the first failure; it doubles with each further failure
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    retry_interval_start: Duration,
    /// Maximum backoff
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    retry_interval_max: Duration,
}

/// Provisioning, attachment and expansion of volumes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Volumes")]
struct VolumeArgs {
    /// File system of volumes whose StorageClass or PersistentVolume sets none [default: the driver's choice]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    default_fstype: String,
    /// Prefix of volume names
    #[arg(long, value_name = "TEXT", default_value = "pvc", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    volume_name_prefix: String,
    /// Number of digits of the claim's UID in volume names [default: the whole UID]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    volume_name_uuid_length: Option<i64>,
    /// Pass the names of claim and PersistentVolume to CreateVolume, and of snapshot and content to CreateSnapshot
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    extra_create_metadata: bool,
    /// Pass the names of claim and PersistentVolume to ControllerModifyVolume
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    extra_modify_metadata: bool,
    /// Pass only the topology of the selected node to CreateVolume, without alternatives
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    strict_topology: bool,
    /// Pass the cluster's topology to CreateVolume also if no node is selected
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    immediate_topology: bool,
    /// Refuse to restore a snapshot in another volume mode than its source's
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    prevent_volume_mode_conversion: bool,
    /// Mark PersistentVolumes of ReadOnlyMany claims as read-only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    controller_publish_readonly: bool,
    /// If the driver refuses to expand a volume in use, wait until no pod uses it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    handle_volume_inuse_error: bool,
    /// Label each snapshot content with the node whose snapshotter must take it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    enable_distributed_snapshotting: bool,
    /// Interval between comparisons of attachments with the driver's list
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1m")]
    reconcile_sync: Duration,
    /// Maximum number of volumes per ListVolumes call; 0 is the driver's choice
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_entries: i32,
    /// Publish CSIStorageCapacity objects for the scheduler
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    enable_capacity: bool,
    /// Also publish capacities for StorageClasses with immediate binding
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    capacity_for_immediate_binding: bool,
    /// Interval between GetCapacity calls if nothing has changed
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1m")]
    capacity_poll_interval: Duration,
    /// Owner of CSIStorageCapacity objects: 0 this pod, 1 its controller, …; -1 no owner
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    capacity_ownerref_level: i32,
}

/// Names of snapshots.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Snapshots")]
struct SnapshotArgs {
    /// Prefix of snapshot names
    #[arg(long, value_name = "TEXT", default_value = "snapshot", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    snapshot_name_prefix: String,
    /// Number of digits of the VolumeSnapshot's UID in snapshot names [default: the whole UID]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    snapshot_name_uuid_length: Option<i64>,
    /// Prefix of group snapshot names
    #[arg(long, value_name = "TEXT", default_value = "groupsnapshot", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    groupsnapshot_name_prefix: String,
    /// Number of digits of the VolumeGroupSnapshot's UID in group snapshot names [default: the whole UID]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    groupsnapshot_name_uuid_length: Option<i64>,
}

/// Deployment with one sidecar per node.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "One sidecar per node")]
struct NodeArgs {
    /// Act only on the volumes of this node, for drivers whose volumes cannot leave their node
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    node_deployment: bool,
    /// Name of this node
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Compete with other nodes for claims with immediate binding
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    node_deployment_immediate_binding: bool,
    /// Minimum delay before a node takes such a claim
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "20s")]
    node_deployment_base_delay: Duration,
    /// Maximum delay before a node takes such a claim
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1m")]
    node_deployment_max_delay: Duration,
}

impl RolesArgs {
    /// Whether --roles is set.
    pub(super) fn any_named(&self) -> bool {
        self.roles.is_some()
    }

    /// The timeout of calls to the driver, if it is set.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.worker_options.timeout
    }

    /// Validates the flags and converts them into the controller's configuration.
    pub(super) fn into_config(self, environment: &Environment) -> anyhow::Result<Config> {
        let Self {
            roles,
            connect,
            namespace,
            election,
            driver,
            worker_options,
            volumes,
            snapshots,
            health,
            node,
        } = self;
        let driver_timeout = driver.leader_election_driver_timeout;
        let roles = roles.map(|roles| roles.into_iter().collect::<BTreeSet<_>>());
        let own_node = match (node.node_deployment, &node.node_name) {
            (false, _) => None,
            (true, Some(name)) if !name.is_empty() => Some(name.clone()),
            (true, _) => {
                anyhow::bail!("--node-deployment needs the node's name: set --node-name or NODE_NAME")
            }
        };
        Ok(Config {
            connect: connect.into_options(),
            roles,
            identity: environment.identity(),
            namespace: namespace.filter(|namespace| !namespace.is_empty()),
            // No leader election: each node has its own volumes.
            election: (election.leader_election && own_node.is_none())
                .then(|| election.validated())
                .transpose()?
                .map(|election| Election { driver_timeout, ..election }),
            provisioner: volumes.provisioner(
                &worker_options,
                own_node.is_some().then_some(&node),
                environment,
            )?,
            attacher: volumes.attacher(&worker_options),
            resizer: volumes.resizer(&worker_options),
            snapshotter: snapshots.snapshotter(&worker_options, volumes.extra_create_metadata),
            health_monitor: health.into_settings(&worker_options),
            snapshot_controller: volumes.snapshot_controller(&worker_options),
            topology: true,
            node: own_node,
        })
    }
}

impl ConnectArgs {
    pub(super) fn into_options(self) -> ConnectOptions {
        ConnectOptions {
            kubeconfig: self.kubeconfig.filter(|path| !path.as_os_str().is_empty()),
            qps: self.kube_api_qps,
            burst: self.kube_api_burst,
            ..ConnectOptions::default()
        }
    }
}

impl ElectionArgs {
    /// The leader election settings; `None` if it is disabled.
    pub(super) fn into_config(self) -> Result<Option<Election>, ElectionError> {
        self.leader_election.then(|| self.validated()).transpose()
    }

    fn validated(self) -> Result<Election, ElectionError> {
        let election = Election {
            namespace: self.leader_election_namespace,
            labels: self.leader_election_labels.into_iter().collect::<BTreeMap<_, _>>(),
            lease_duration: self.leader_election_lease_duration,
            renew_deadline: self.leader_election_renew_deadline,
            retry_period: self.leader_election_retry_period,
            ..Election::default()
        };
        election.validate()?;
        Ok(election)
    }
}

impl WorkerArgs {
    fn override_defaults(&self, default: WorkerOptions) -> WorkerOptions {
        WorkerOptions {
            workers: self.worker_threads,
            timeout: self.timeout.unwrap_or(default.timeout),
            retry_start: self.retry_interval_start,
            retry_max: self.retry_interval_max,
            ..default
        }
    }
}

impl VolumeArgs {
    fn provisioner(
        &self,
        worker_options: &WorkerArgs,
        own_node: Option<&NodeArgs>,
        environment: &Environment,
    ) -> anyhow::Result<provisioner::Settings> {
        if self.enable_capacity && self.capacity_ownerref_level >= 0 && environment.pod_name.is_none() {
            anyhow::bail!(
                "--enable-capacity needs POD_NAME, to find the owner of CSIStorageCapacity objects; \
                 set it, or set --capacity-ownerref-level=-1 for no owner"
            );
        }
        let default = provisioner::Settings::default();
        Ok(provisioner::Settings {
            worker_options: worker_options.override_defaults(default.worker_options),
            naming: VolumeNaming {
                prefix: self.volume_name_prefix.clone(),
                // As upstream: a negative number means the whole UID.
                uuid_length: self.volume_name_uuid_length.and_then(|length| usize::try_from(length).ok()),
            },
            default_fstype: self.default_fstype.clone(),
            extra_create_metadata: self.extra_create_metadata,
            strict_topology: self.strict_topology,
            immediate_topology: self.immediate_topology,
            prevent_volume_mode_conversion: self.prevent_volume_mode_conversion,
            controller_publish_readonly: self.controller_publish_readonly,
            capacity: self.enable_capacity.then(|| CapacitySettings {
                immediate_binding: self.capacity_for_immediate_binding,
                poll_interval: self.capacity_poll_interval,
                owner_level: self.capacity_ownerref_level,
                pod: environment.pod_name.clone(),
                ..CapacitySettings::default()
            }),
            immediate_binding: own_node.filter(|node| node.node_deployment_immediate_binding).map(|node| {
                ImmediateBinding {
                    base_delay: node.node_deployment_base_delay,
                    max_delay: node.node_deployment_max_delay,
                }
            }),
            orphan_sweep: default.orphan_sweep,
            cloning_protection_threads: default.cloning_protection_threads,
        })
    }

    fn attacher(&self, worker_options: &WorkerArgs) -> attacher::Settings {
        let default = attacher::Settings::default();
        attacher::Settings {
            worker_options: worker_options.override_defaults(default.worker_options),
            default_fstype: self.default_fstype.clone(),
            reconcile_interval: self.reconcile_sync,
            max_entries: self.max_entries,
        }
    }

    fn resizer(&self, worker_options: &WorkerArgs) -> resizer::Settings {
        let default = resizer::Settings::default();
        resizer::Settings {
            worker_options: worker_options.override_defaults(default.worker_options),
            handle_volume_inuse_error: self.handle_volume_inuse_error,
            extra_modify_metadata: self.extra_modify_metadata,
        }
    }
}

impl VolumeArgs {
    fn snapshot_controller(&self, worker_options: &WorkerArgs) -> snapshot_controller::Settings {
        let default = snapshot_controller::Settings::default();
        snapshot_controller::Settings {
            worker_options: worker_options.override_defaults(default.worker_options),
            prevent_volume_mode_conversion: self.prevent_volume_mode_conversion,
            distributed: self.enable_distributed_snapshotting,
            groups: default.groups,
        }
    }
}

impl SnapshotArgs {
    fn snapshotter(self, worker_options: &WorkerArgs, extra_create_metadata: bool) -> snapshotter::Settings {
        let default = snapshotter::Settings::default();
        // As upstream: a negative number means the whole UID.
        let to_length = |length: Option<i64>| length.and_then(|length| usize::try_from(length).ok());
        snapshotter::Settings {
            worker_options: worker_options.override_defaults(default.worker_options),
            naming: VolumeNaming {
                prefix: self.snapshot_name_prefix,
                uuid_length: to_length(self.snapshot_name_uuid_length),
            },
            group_naming: VolumeNaming {
                prefix: self.groupsnapshot_name_prefix,
                uuid_length: to_length(self.groupsnapshot_name_uuid_length),
            },
            extra_create_metadata,
            groups: default.groups,
        }
    }
}

fn parse_role(text: &str) -> Result<Role, String> {
    let role = Role::ALL.into_iter().find(|role| role.name() == text.trim());
    let names = || Role::ALL.map(Role::name).join(", ");
    role.ok_or_else(|| format!("unknown role {text:?}; the roles are {}", names()))
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once(':').ok_or_else(|| format!("{text:?} is not a label: write key:value"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
