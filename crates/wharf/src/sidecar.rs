//! `wharf sidecar`: connects a CSI driver to Kubernetes, on a node or for the whole cluster.
//!
//! `roles` has the flags of `wharf sidecar`. The flags of the upstream sidecars, which the binary takes when it is called
//! under their names, are in `wharf_upstream_flags`.

mod roles;
mod snapshot_controller;

use std::path::PathBuf;
use std::time::Duration;

use wharf_csi::Endpoint;
use wharf_sidecar::process::{self, Address, Listen, Sidecar};
use wharf_sidecar::registrar::{self, legacy};
use wharf_upstream_flags::{Environment, HEALTH_PORT, Task};

use crate::signal::{received_stop_signal, stop_signal};
use roles::RolesArgs;

pub(crate) use snapshot_controller::{SnapshotControllerArgs, run as run_snapshot_controller};

const AFTER_HELP: &str = "\
The controller roles and what they replace:
  provisioner           external-provisioner
  attacher              external-attacher
  resizer               external-resizer
  snapshotter           csi-snapshotter
  health-monitor        external-health-monitor
  snapshot-controller   snapshot-controller, for all drivers; runs only if --roles names it

The driver's capabilities select the roles; --roles overrides them. Each role acts only while it holds the lease of the \
upstream sidecar that it replaces. The two never act at the same time if the upstream sidecar runs with \
--leader-election. The sidecar needs no permissions beyond upstream's. If the \
driver or the API server is unavailable, it waits and does not exit.

The node roles:
  With --node, the sidecar registers the driver with kubelet and serves its liveness probe, in place of \
node-driver-registrar and livenessprobe. With --node and --roles, one process runs both.

HTTP endpoints:
  /healthz                   --node: the driver responds to Probe; liveness probe of its container
  /healthz/registration      --node: the registration socket is served, kubelet did not refuse it
  /healthz/leader-election   the roles that hold their lease; 500 if one cannot renew it
  /readyz                    all of the above, and the driver has reported its capabilities
  /metrics                   Prometheus metrics
  /debug/attempts            the last attempt for each object and its result, as JSON

Examples:
  wharf sidecar --csi-address /csi/csi.sock
  wharf sidecar --csi-address /csi/csi.sock --roles provisioner,resizer --kubeconfig ~/.kube/config
  wharf sidecar --node --csi-address /csi/csi.sock \\
    --kubelet-registration-path /var/lib/kubelet/plugins/local.csi.wharf.dev/csi.sock

The environment variable POD_NAME identifies this replica in leases, together with a random part; the default is the host \
name.

If the binary is called csi-provisioner, csi-attacher, csi-resizer, csi-snapshotter, \
csi-external-health-monitor-controller, csi-node-driver-registrar or livenessprobe (a link of that name is enough), it takes \
that program's flags.";

/// Run the Kubernetes sidecars of a CSI driver in one process
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct SidecarArgs {
    /// The driver's socket, such as /csi/csi.sock
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket")]
    csi_address: Endpoint,
    /// Run the node roles: register the driver with kubelet and serve its liveness probe
    #[arg(long, requires = "kubelet_registration_path")]
    node: bool,
    /// Path of the driver's socket on the host, for kubelet
    #[arg(long, value_name = "PATH", requires = "node")]
    kubelet_registration_path: Option<String>,
    /// Kubelet's plugins_registry directory, as mounted in this container
    #[arg(long, value_name = "DIR", default_value = "/registration")]
    plugin_registration_path: PathBuf,
    /// Timeout of Probe calls to the driver
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "3s")]
    probe_timeout: Duration,
    /// Port of the HTTP endpoints, on all addresses
    #[arg(long, value_name = "PORT", default_value_t = HEALTH_PORT)]
    health_port: u16,
    /// Listen address of the HTTP endpoints, instead of --health-port, such as 127.0.0.1:9808 or :9808
    #[arg(long, value_name = "ADDRESS", conflicts_with = "health_port")]
    http_endpoint: Option<Address>,
    #[command(flatten)]
    roles: RolesArgs,
}

impl SidecarArgs {
    fn into_sidecar(self, environment: &Environment) -> anyhow::Result<Sidecar> {
        let Self {
            csi_address,
            node,
            kubelet_registration_path,
            plugin_registration_path,
            probe_timeout,
            health_port,
            http_endpoint,
            roles,
        } = self;
        let timeout = roles.timeout().unwrap_or(Duration::from_secs(1));
        let registrar = kubelet_registration_path.map(|kubelet_registration_path| registrar::Config {
            plugin_registration_path,
            kubelet_registration_path,
            timeout,
        });
        // A node's sidecar runs controller roles only if --roles names them.
        let runs_controllers = !node || roles.any_named();
        let address = http_endpoint.unwrap_or_else(|| Address::port(health_port));
        Ok(Sidecar {
            driver: Some(csi_address),
            registrar,
            probe_timeout: node.then_some(probe_timeout),
            controller: runs_controllers.then(|| roles.into_config(environment)).transpose()?,
            listen: vec![Listen { address, health: true, metrics: Some("/metrics".to_owned()) }],
        })
    }
}

/// Parses a duration in Go's format, as upstream's flags do. Zero is an error.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = wharf_upstream_flags::parse_duration(text).filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| {
        format!("{text:?} is not a duration: write numbers and units, such as 500ms, 30s or 1m30s")
    })
}

/// `wharf sidecar`.
pub(crate) async fn run(args: SidecarArgs) -> anyhow::Result<()> {
    run_task(Task::Sidecar(Box::new(args.into_sidecar(&Environment::read())?))).await
}

/// Runs the task until a stop signal.
pub(crate) async fn run_task(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Sidecar(sidecar) => process::run(*sidecar, stop_signal()?).await?,
        Task::SnapshotMetadata(config) => crate::snapshot_metadata::serve(*config).await?,
        Task::LegacyRegistrar(config) => legacy::run(config, received_stop_signal()?).await?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
