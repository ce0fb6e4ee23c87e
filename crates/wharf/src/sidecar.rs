//! `wharf sidecar`: what stands between a CSI driver and Kubernetes, on a node or for the whole cluster. Called by
//! the name of an upstream sidecar, the binary takes that program's flags and does its work.

mod environment;
mod goflags;
mod roles;
mod snapshots;
mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use wharf_csi::Endpoint;
use wharf_sidecar::process::{self, Address, Listen, Sidecar};
use wharf_sidecar::registrar::{self, legacy};

use crate::signal::{stop_signal, which_signal};
use roles::RolesArgs;

pub(crate) use environment::Environment;
pub(crate) use snapshots::{SnapshotControllerArgs, run as run_snapshot_controller};
pub(crate) use upstream::{Asked, Program, Work};

const EXPLANATION: &str = "\
For the cluster it makes, attaches, expands and deletes the driver's volumes and tells of their health, in place of
external-provisioner, external-attacher, external-resizer and external-health-monitor. The driver says which of
these roles it needs; --roles says it instead.
Each role works while it holds the lease that upstream's sidecar would hold, so the two never act side by side,
and asks for no permissions that upstream's does not have. It waits for a driver or an API server that is away.

With --node it registers the driver with kubelet and answers for its health, in place of node-driver-registrar
and livenessprobe. With --node and --roles it does both.

  /healthz                   the driver answers Probe (--node); made for the driver's container
  /healthz/registration      the registration socket is served and kubelet did not refuse the driver (--node)
  /healthz/leader-election   the process is well
  /readyz                    all of it, and the driver has said what it can do
  /metrics                   for Prometheus
  /debug/attempts            what was last tried for each object, and what came of it

Examples:
  wharf sidecar --csi-address /csi/csi.sock
  wharf sidecar --csi-address /csi/csi.sock --roles provisioner,resizer --kubeconfig ~/.kube/config
  wharf sidecar --node --csi-address /csi/csi.sock \\
    --kubelet-registration-path /var/lib/kubelet/plugins/local.csi.wharf.dev/csi.sock

POD_NAME names this replica among others; without it the host's name does.

With --roles snapshot-controller it also binds the snapshots of all drivers, as `wharf snapshot-controller` does.

Called as csi-provisioner, csi-attacher, csi-resizer, csi-external-health-monitor-controller,
csi-node-driver-registrar or livenessprobe (by a link of that name), the binary takes the flags of that program.";

/// Run what a CSI driver needs beside it in Kubernetes
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct SidecarArgs {
    /// The driver's socket, such as /csi/csi.sock
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket")]
    csi_address: Endpoint,
    /// Run the roles of a node: register the driver with kubelet, and answer for its health
    #[arg(long, requires = "kubelet_registration_path")]
    node: bool,
    /// The driver's socket, as kubelet sees it on the host
    #[arg(long, value_name = "PATH", requires = "node")]
    kubelet_registration_path: Option<String>,
    /// Kubelet's directory plugins_registry, as this process sees it
    #[arg(long, value_name = "DIR", default_value = "/registration")]
    plugin_registration_path: PathBuf,
    /// How long the driver may take to answer a Probe
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "3s")]
    probe_timeout: Duration,
    /// Port for the pages, on all addresses
    #[arg(long, value_name = "PORT", default_value_t = upstream::HEALTH_PORT)]
    health_port: u16,
    /// Address for the pages instead, such as 127.0.0.1:9808 or :9808
    #[arg(long, value_name = "ADDRESS", conflicts_with = "health_port")]
    http_endpoint: Option<Address>,
    #[command(flatten)]
    roles: RolesArgs,
}

impl SidecarArgs {
    fn checked(self, environment: &Environment) -> anyhow::Result<Sidecar> {
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
        // A node's sidecar has no business with the cluster unless it is told so.
        let controls = !node || roles.are_named();
        let address = http_endpoint.unwrap_or_else(|| Address::port(health_port));
        Ok(Sidecar {
            driver: Some(csi_address),
            registrar,
            probe_timeout: node.then_some(probe_timeout),
            controller: controls.then(|| roles.checked(environment)).transpose()?,
            listen: vec![Listen { address, health: true, metrics: Some("/metrics".to_owned()) }],
        })
    }
}

/// A time of more than nothing, as upstream's flags take it.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let some = goflags::parse_duration(text).filter(|time| !time.is_zero());
    some.ok_or_else(|| {
        format!("{text:?} is not a duration: write numbers and units, such as 500ms, 30s or 1m30s")
    })
}

/// `wharf sidecar`.
pub(crate) async fn run(args: SidecarArgs) -> anyhow::Result<()> {
    work(Work::Sidecar(Box::new(args.checked(&Environment::read())?))).await
}

/// Works until a signal says to stop.
pub(crate) async fn work(work: Work) -> anyhow::Result<()> {
    match work {
        Work::Sidecar(sidecar) => process::run(*sidecar, stop_signal()?).await?,
        Work::SnapshotMetadata(config) => crate::snapshot_metadata::serve(*config).await?,
        Work::Legacy(config) => legacy::run(config, which_signal()?).await?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
