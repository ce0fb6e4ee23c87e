//! Flags of `wharf sidecar` for the roles that work on the cluster's objects. Where upstream has a flag, this one has
//! its name and its meaning; defaults differ where upstream's are there to spare a slow program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_model::names::VolumeNaming;
use wharf_sidecar::controller::{Config, Election, ElectionError, Role};
use wharf_sidecar::provisioner::{CapacitySettings, ImmediateBinding};
use wharf_sidecar::{Pace, attacher, health_monitor, provisioner, resizer, snapshot_controller, snapshotter};

use super::{Environment, parse_duration};
use health::HealthArgs;

mod health;

/// The roles, and how they reach the cluster.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Roles of the controller")]
pub(super) struct RolesArgs {
    /// Roles to run: provisioner, attacher, resizer, snapshotter, health-monitor, snapshot-controller [default: those that the driver's capabilities call for]
    #[arg(long, value_name = "ROLE,…", value_delimiter = ',', value_parser = parse_role)]
    roles: Option<Vec<Role>>,
    /// Credentials for the cluster [default: the pod's service account, or else your own kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Requests to the API server a second [default: no limit]
    #[arg(long, value_name = "N")]
    kube_api_qps: Option<f32>,
    /// Requests at once before --kube-api-qps holds [default: twice as many]
    #[arg(long, value_name = "N", requires = "kube_api_qps")]
    kube_api_burst: Option<u32>,
    /// Namespace of leases, journal and capacities [default: that of the service account or kubeconfig]
    #[arg(long, env = "NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    election: ElectionArgs,
    #[command(flatten)]
    pace: PaceArgs,
    #[command(flatten)]
    volumes: VolumeArgs,
    #[command(flatten)]
    snapshots: SnapshotArgs,
    #[command(flatten)]
    health: HealthArgs,
    #[command(flatten)]
    node: NodeArgs,
}

/// Who works, of several replicas.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(super) struct ElectionArgs {
    /// Work only while holding each role's lease, which has the name that upstream's sidecar gives it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    leader_election: bool,
    /// Namespace of the leases [default: --namespace]
    #[arg(long, value_name = "NAME")]
    leader_election_namespace: Option<String>,
    /// Labels of leases that are made, such as app:csi,tier:storage
    #[arg(long, value_name = "KEY:VALUE,…", value_delimiter = ',', value_parser = parse_label)]
    leader_election_labels: Vec<(String, String)>,
    /// How long others wait for a holder that is silent
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "15s")]
    leader_election_lease_duration: Duration,
    /// How long after its last renewal a holder begins nothing new
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s")]
    leader_election_renew_deadline: Duration,
    /// Between two attempts to get or renew a lease
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5s")]
    leader_election_retry_period: Duration,
}

/// How much at once.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Pace")]
struct PaceArgs {
    /// How many objects each role works on at once
    #[arg(long, visible_alias = "workers", value_name = "N", default_value_t = 100)]
    worker_threads: usize,
    /// How long a call to the driver may take [default: 15s to attach, 1m for snapshots, 10s for the rest, 1s for its name]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Pause after a first failure; it doubles with each further one
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    retry_interval_start: Duration,
    /// The longest pause
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    retry_interval_max: Duration,
}

/// How volumes are made, attached and expanded.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Volumes")]
struct VolumeArgs {
    /// File system where neither class nor volume names one [default: the driver's choice]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    default_fstype: String,
    /// What volumes' names begin with
    #[arg(long, value_name = "TEXT", default_value = "pvc", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    volume_name_prefix: String,
    /// Digits of the claim's UID in a volume's name [default: the whole UID]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    volume_name_uuid_length: Option<i64>,
    /// Tell the driver the names of claim and volume when a volume is made, of snapshot and content when a snapshot is
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    extra_create_metadata: bool,
    /// Tell the driver the names of claim and volume when a volume is modified
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    extra_modify_metadata: bool,
    /// Ask for the selected node's place alone, not for others that would do
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    strict_topology: bool,
    /// Tell the driver about places also where no node is selected yet
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    immediate_topology: bool,
    /// Restore snapshots only in the volume mode of their source
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    prevent_volume_mode_conversion: bool,
    /// Mark volumes for many readers as read-only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    controller_publish_readonly: bool,
    /// Keep an expansion that the driver refuses in use until no pod uses the volume
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    handle_volume_inuse_error: bool,
    /// Say of each snapshot which node's snapshotter has to take it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    enable_distributed_snapshotting: bool,
    /// How often attachments are compared with what the driver lists
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1m")]
    reconcile_sync: Duration,
    /// How many volumes the driver is asked for at once; 0 leaves it to the driver
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_entries: i32,
    /// Keep CSIStorageCapacity objects for the scheduler
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    enable_capacity: bool,
    /// Keep them also for classes that bind at once
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    capacity_for_immediate_binding: bool,
    /// How often the driver is asked for its capacity without another reason
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1m")]
    capacity_poll_interval: Duration,
    /// Who owns CSIStorageCapacity objects: 0 this pod, 1 what controls it, …; -1 nobody
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    capacity_ownerref_level: i32,
}

/// How snapshots are taken.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Snapshots")]
struct SnapshotArgs {
    /// What snapshots' names begin with
    #[arg(long, value_name = "TEXT", default_value = "snapshot", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    snapshot_name_prefix: String,
    /// Digits of the VolumeSnapshot's UID in a snapshot's name [default: the whole UID]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    snapshot_name_uuid_length: Option<i64>,
    /// What group snapshots' names begin with
    #[arg(long, value_name = "TEXT", default_value = "groupsnapshot", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    groupsnapshot_name_prefix: String,
    /// Digits of the VolumeGroupSnapshot's UID in a group snapshot's name [default: the whole UID]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    groupsnapshot_name_uuid_length: Option<i64>,
}

/// Where each node has its own.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "On each node")]
struct NodeArgs {
    /// Work only on the volumes of this node: for drivers whose volumes cannot leave it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    node_deployment: bool,
    /// This node's name in Kubernetes
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Compete with other nodes for claims that are not to wait for a pod
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    node_deployment_immediate_binding: bool,
    /// The shortest wait before a node takes such a claim
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "20s")]
    node_deployment_base_delay: Duration,
    /// The longest
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1m")]
    node_deployment_max_delay: Duration,
}

impl RolesArgs {
    /// Whether any role is named.
    pub(super) fn are_named(&self) -> bool {
        self.roles.is_some()
    }

    /// The deadline of calls to the driver, if it was given.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.pace.timeout
    }

    /// What the controller is told.
    pub(super) fn checked(self, environment: &Environment) -> anyhow::Result<Config> {
        let Self {
            roles,
            kubeconfig,
            kube_api_qps,
            kube_api_burst,
            namespace,
            election,
            pace,
            volumes,
            snapshots,
            health,
            node,
        } = self;
        let roles = roles.map(|roles| roles.into_iter().collect::<BTreeSet<_>>());
        let own_node = match (node.node_deployment, &node.node_name) {
            (false, _) => None,
            (true, Some(name)) if !name.is_empty() => Some(name.clone()),
            (true, _) => {
                anyhow::bail!("--node-deployment needs the node's name: set --node-name or NODE_NAME")
            }
        };
        Ok(Config {
            connect: ConnectOptions {
                kubeconfig: kubeconfig.filter(|path| !path.as_os_str().is_empty()),
                qps: kube_api_qps,
                burst: kube_api_burst,
                ..ConnectOptions::default()
            },
            roles,
            identity: environment.identity(),
            namespace: namespace.filter(|namespace| !namespace.is_empty()),
            // Nodes do not compete: each has volumes of its own.
            election: (election.leader_election && own_node.is_none())
                .then(|| election.checked())
                .transpose()?,
            provisioner: volumes.provisioner(&pace, own_node.is_some().then_some(&node), environment)?,
            attacher: volumes.attacher(&pace),
            resizer: volumes.resizer(&pace),
            snapshotter: snapshots.snapshotter(&pace, volumes.extra_create_metadata),
            health_monitor: health.checked(&pace),
            snapshot_controller: volumes.snapshot_controller(&pace),
            topology: true,
            node: own_node,
        })
    }
}

impl ElectionArgs {
    /// How the lease is held; `None` if nobody competes for it.
    pub(super) fn asked(self) -> Result<Option<Election>, ElectionError> {
        self.leader_election.then(|| self.checked()).transpose()
    }

    fn checked(self) -> Result<Election, ElectionError> {
        let election = Election {
            namespace: self.leader_election_namespace,
            labels: self.leader_election_labels.into_iter().collect::<BTreeMap<_, _>>(),
            lease_duration: self.leader_election_lease_duration,
            renew_deadline: self.leader_election_renew_deadline,
            retry_period: self.leader_election_retry_period,
        };
        election.check()?;
        Ok(election)
    }
}

impl PaceArgs {
    fn or(&self, default: Pace) -> Pace {
        Pace {
            workers: self.worker_threads,
            timeout: self.timeout.unwrap_or(default.timeout),
            retry_start: self.retry_interval_start,
            retry_max: self.retry_interval_max,
        }
    }
}

impl VolumeArgs {
    fn provisioner(
        &self,
        pace: &PaceArgs,
        own_node: Option<&NodeArgs>,
        environment: &Environment,
    ) -> anyhow::Result<provisioner::Settings> {
        if self.enable_capacity && self.capacity_ownerref_level >= 0 && environment.pod_name.is_none() {
            anyhow::bail!(
                "--enable-capacity needs POD_NAME, to find who owns the capacities; \
                 set it, or --capacity-ownerref-level=-1 for no owner"
            );
        }
        let default = provisioner::Settings::default();
        Ok(provisioner::Settings {
            pace: pace.or(default.pace),
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
            }),
            immediate_binding: own_node.filter(|node| node.node_deployment_immediate_binding).map(|node| {
                ImmediateBinding {
                    base_delay: node.node_deployment_base_delay,
                    max_delay: node.node_deployment_max_delay,
                }
            }),
            orphan_sweep: default.orphan_sweep,
        })
    }

    fn attacher(&self, pace: &PaceArgs) -> attacher::Settings {
        let default = attacher::Settings::default();
        attacher::Settings {
            pace: pace.or(default.pace),
            default_fstype: self.default_fstype.clone(),
            reconcile_interval: self.reconcile_sync,
            max_entries: self.max_entries,
        }
    }

    fn resizer(&self, pace: &PaceArgs) -> resizer::Settings {
        let default = resizer::Settings::default();
        resizer::Settings {
            pace: pace.or(default.pace),
            handle_volume_inuse_error: self.handle_volume_inuse_error,
            extra_modify_metadata: self.extra_modify_metadata,
        }
    }
}

impl VolumeArgs {
    fn snapshot_controller(&self, pace: &PaceArgs) -> snapshot_controller::Settings {
        let default = snapshot_controller::Settings::default();
        snapshot_controller::Settings {
            pace: pace.or(default.pace),
            prevent_volume_mode_conversion: self.prevent_volume_mode_conversion,
            distributed: self.enable_distributed_snapshotting,
            groups: default.groups,
        }
    }
}

impl SnapshotArgs {
    fn snapshotter(self, pace: &PaceArgs, extra_create_metadata: bool) -> snapshotter::Settings {
        let default = snapshotter::Settings::default();
        // As upstream: a negative number means the whole UID.
        let digits = |length: Option<i64>| length.and_then(|length| usize::try_from(length).ok());
        snapshotter::Settings {
            pace: pace.or(default.pace),
            naming: VolumeNaming {
                prefix: self.snapshot_name_prefix,
                uuid_length: digits(self.snapshot_name_uuid_length),
            },
            group_naming: VolumeNaming {
                prefix: self.groupsnapshot_name_prefix,
                uuid_length: digits(self.groupsnapshot_name_uuid_length),
            },
            extra_create_metadata,
            groups: default.groups,
        }
    }
}

fn parse_role(text: &str) -> Result<Role, String> {
    let named = Role::ALL.into_iter().find(|role| role.name() == text.trim());
    let names = || Role::ALL.map(Role::name).join(", ");
    named.ok_or_else(|| format!("there is no role {text:?}; the roles are {}", names()))
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once(':').ok_or_else(|| format!("{text:?} is not a label: write key:value"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
