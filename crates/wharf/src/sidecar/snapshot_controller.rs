//! `wharf snapshot-controller`: the snapshot controller with Wharf's own flags.

use std::time::Duration;

use wharf_controllers::snapshot_controller;
use wharf_sidecar::WorkerOptions;
use wharf_sidecar::controller::{Config, Role};
use wharf_sidecar::process::{Address, Listen, Sidecar};
use wharf_upstream_flags::{Environment, Task};

use super::parse_duration;
use super::roles::{ConnectArgs, ElectionArgs};

const AFTER_HELP: &str = "\
Run one snapshot controller per cluster; it serves all drivers. It binds VolumeSnapshots to VolumeSnapshotContents, and \
creates and deletes contents. The snapshotter role of each driver's sidecar makes the calls to the driver.

The controller acts only while it holds the lease snapshot-controller-leader, as upstream's does, and needs no permissions \
beyond upstream's. It waits until the snapshot CRDs are installed: run `wharf install crds`.

HTTP endpoints:
  /healthz/leader-election   whether this replica holds the lease; 500 if it cannot renew it
  /readyz                    the controller runs, or waits for its lease
  /metrics                   Prometheus metrics
  /debug/attempts            the last attempt for each object and its result, as JSON

Examples:
  wharf snapshot-controller
  wharf snapshot-controller --kubeconfig ~/.kube/config --leader-election=false

If the binary is called snapshot-controller (a link of that name is enough), it takes that program's flags. To run the \
controller together with a sidecar, use `wharf sidecar --roles`.";

/// Bind, create and delete snapshots of all drivers, in place of snapshot-controller
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct SnapshotControllerArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Namespace of the lease [default: the service account's or kubeconfig's]
    #[arg(long, env = "NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// Listen address of the HTTP endpoints, such as 127.0.0.1:9809 or :9809 [default: not served]
    #[arg(long, value_name = "ADDRESS")]
    http_endpoint: Option<Address>,
    /// Number of objects processed concurrently
    #[arg(long, visible_alias = "workers", value_name = "N", default_value_t = 100)]
    worker_threads: usize,
    /// Backoff after the first failure; it doubles with each further failure
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    retry_interval_start: Duration,
    /// Maximum backoff
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    retry_interval_max: Duration,
    /// Refuse to restore a snapshot in another volume mode than its source's
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    prevent_volume_mode_conversion: bool,
    /// Label each snapshot content with the node whose snapshotter must take it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    enable_distributed_snapshotting: bool,
    #[command(flatten)]
    election: ElectionArgs,
}

impl SnapshotControllerArgs {
    fn into_sidecar(self, environment: &Environment) -> anyhow::Result<Sidecar> {
        let Self {
            connect,
            namespace,
            http_endpoint,
            worker_threads,
            retry_interval_start,
            retry_interval_max,
            prevent_volume_mode_conversion,
            enable_distributed_snapshotting,
            election,
        } = self;
        let default = snapshot_controller::Settings::default();
        let config = Config {
            connect: connect.into_options(),
            roles: Some([Role::SnapshotController].into()),
            namespace: namespace.filter(|namespace| !namespace.is_empty()),
            election: election.into_config()?,
            snapshot_controller: snapshot_controller::Settings {
                worker_options: WorkerOptions {
                    workers: worker_threads,
                    retry_start: retry_interval_start,
                    retry_max: retry_interval_max,
                    ..default.worker_options
                },
                prevent_volume_mode_conversion,
                distributed: enable_distributed_snapshotting,
                groups: default.groups,
            },
            ..Config::new(environment.identity())
        };
        let listen = |address| Listen { address, health: true, metrics: Some("/metrics".to_owned()) };
        Ok(Sidecar {
            driver: None,
            registrar: None,
            probe_timeout: None,
            controller: Some(config),
            listen: http_endpoint.map(listen).into_iter().collect(),
        })
    }
}

/// `wharf snapshot-controller`.
pub(crate) async fn run(args: SnapshotControllerArgs) -> anyhow::Result<()> {
    super::run_task(Task::Sidecar(Box::new(args.into_sidecar(&Environment::read())?))).await
}
