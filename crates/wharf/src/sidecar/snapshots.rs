//! `wharf snapshot-controller`: upstream's snapshot-controller, by our own flags.

use std::path::PathBuf;
use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_sidecar::controller::{Config, Role};
use wharf_sidecar::process::{Address, Listen, Sidecar};
use wharf_sidecar::{Pace, attacher, health_monitor, provisioner, resizer, snapshot_controller, snapshotter};

use super::roles::ElectionArgs;
use super::{Environment, Work, parse_duration};

const EXPLANATION: &str = "\
There is one for the whole cluster, for the snapshots of all drivers. It binds VolumeSnapshots to
VolumeSnapshotContents, and makes and deletes contents; what a driver has to do, its csi-snapshotter asks it for.
It works while it holds the lease snapshot-controller-leader, as upstream's does, and asks for no permissions that
upstream's does not have. Kinds that are not there are waited for: `wharf install crds` makes them known.

  /healthz/leader-election   the process is well
  /readyz                    it runs, or stands by for its lease
  /metrics                   for Prometheus
  /debug/attempts            what was last tried for each object, and what came of it

Examples:
  wharf snapshot-controller
  wharf snapshot-controller --kubeconfig ~/.kube/config --leader-election=false

Called as snapshot-controller (by a link of that name), the binary takes the flags of that program. In
`wharf sidecar --roles` it can be one of the roles of a process.";

/// Bind, make and delete snapshots of all drivers, in place of snapshot-controller
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct SnapshotControllerArgs {
    /// Credentials for the cluster [default: the pod's service account, or else your own kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Requests to the API server a second [default: no limit]
    #[arg(long, value_name = "N")]
    kube_api_qps: Option<f32>,
    /// Requests at once before --kube-api-qps holds [default: twice as many]
    #[arg(long, value_name = "N", requires = "kube_api_qps")]
    kube_api_burst: Option<u32>,
    /// Namespace of the lease [default: that of the service account or kubeconfig]
    #[arg(long, env = "NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// Address for the pages, such as 127.0.0.1:9809 or :9809 [default: no pages]
    #[arg(long, value_name = "ADDRESS")]
    http_endpoint: Option<Address>,
    /// How many objects are worked on at once
    #[arg(long, visible_alias = "workers", value_name = "N", default_value_t = 100)]
    worker_threads: usize,
    /// Pause after a first failure; it doubles with each further one
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    retry_interval_start: Duration,
    /// The longest pause
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    retry_interval_max: Duration,
    /// Restore snapshots only in the volume mode of their source
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    prevent_volume_mode_conversion: bool,
    /// Say of each snapshot which node's snapshotter has to take it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    enable_distributed_snapshotting: bool,
    #[command(flatten)]
    election: ElectionArgs,
}

impl SnapshotControllerArgs {
    fn checked(self, environment: &Environment) -> anyhow::Result<Sidecar> {
        let Self {
            kubeconfig,
            kube_api_qps,
            kube_api_burst,
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
            connect: ConnectOptions {
                kubeconfig: kubeconfig.filter(|path| !path.as_os_str().is_empty()),
                qps: kube_api_qps,
                burst: kube_api_burst,
                ..ConnectOptions::default()
            },
            roles: Some([Role::SnapshotController].into()),
            identity: environment.identity(),
            namespace: namespace.filter(|namespace| !namespace.is_empty()),
            election: election.asked()?,
            topology: true,
            node: None,
            provisioner: provisioner::Settings::default(),
            attacher: attacher::Settings::default(),
            resizer: resizer::Settings::default(),
            snapshotter: snapshotter::Settings::default(),
            health_monitor: health_monitor::Settings::default(),
            snapshot_controller: snapshot_controller::Settings {
                pace: Pace {
                    workers: worker_threads,
                    retry_start: retry_interval_start,
                    retry_max: retry_interval_max,
                    ..default.pace
                },
                prevent_volume_mode_conversion,
                distributed: enable_distributed_snapshotting,
                groups: default.groups,
            },
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
    super::work(Work::Sidecar(Box::new(args.checked(&Environment::read())?))).await
}
