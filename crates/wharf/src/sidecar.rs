//! `wharf sidecar`: what stands between a CSI driver and Kubernetes. So far the roles of a node. Called by
//! the name of an upstream sidecar, the binary takes that program's flags and does its work.

mod goflags;
mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use wharf_csi::Endpoint;
use wharf_sidecar::process::{self, Address, Listen, Sidecar};
use wharf_sidecar::registrar;

use crate::signal::stop_signal;
use crate::size::parse_duration;

pub(crate) use upstream::{Asked, Program};

const EXPLANATION: &str = "\
With --node it registers the driver with kubelet and answers for its health, in place of node-driver-registrar
and livenessprobe:

  /healthz                the driver answers Probe; made for the driver's container
  /healthz/registration   the registration socket is served and kubelet did not refuse the driver
  /readyz                 both
  /metrics                for Prometheus

Example:
  wharf sidecar --node --csi-address /csi/csi.sock \\
    --kubelet-registration-path /var/lib/kubelet/plugins/local.csi.wharf.dev/csi.sock

Called as csi-node-driver-registrar, node-driver-registrar or livenessprobe (by a link of that name), the
binary takes the flags of that program.";

/// Run what a CSI driver needs beside it in Kubernetes
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct SidecarArgs {
    /// The driver's socket, such as /csi/csi.sock
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket")]
    csi_address: Endpoint,
    /// Run the roles of a node: register the driver with kubelet, and answer for its health
    #[arg(long, required = true)]
    node: bool,
    /// The driver's socket, as kubelet sees it on the host
    #[arg(long, value_name = "PATH")]
    kubelet_registration_path: String,
    /// Kubelet's directory plugins_registry, as this process sees it
    #[arg(long, value_name = "DIR", default_value = "/registration")]
    plugin_registration_path: PathBuf,
    /// How long the driver may take to say its name
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    timeout: Duration,
    /// How long the driver may take to answer a Probe
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "3s")]
    probe_timeout: Duration,
    /// Port for the pages, on all addresses
    #[arg(long, value_name = "PORT", default_value_t = upstream::HEALTH_PORT)]
    health_port: u16,
    /// Address for the pages instead, such as 127.0.0.1:9808 or :9808
    #[arg(long, value_name = "ADDRESS", conflicts_with = "health_port")]
    http_endpoint: Option<Address>,
}

impl SidecarArgs {
    fn checked(self) -> Sidecar {
        let Self {
            csi_address,
            // Required: there are no other roles.
            node: _,
            kubelet_registration_path,
            plugin_registration_path,
            timeout,
            probe_timeout,
            health_port,
            http_endpoint,
        } = self;
        let address = http_endpoint.unwrap_or_else(|| Address::port(health_port));
        Sidecar {
            driver: csi_address,
            registrar: Some(registrar::Config {
                plugin_registration_path,
                kubelet_registration_path,
                timeout,
            }),
            probe_timeout: Some(probe_timeout),
            controller: None,
            listen: vec![Listen { address, health: true, metrics: Some("/metrics".to_owned()) }],
        }
    }
}

/// `wharf sidecar`.
pub(crate) async fn run(args: SidecarArgs) -> anyhow::Result<()> {
    serve(args.checked()).await
}

/// Runs the roles until a signal says to stop.
pub(crate) async fn serve(node: Sidecar) -> anyhow::Result<()> {
    let stop = stop_signal()?;
    process::run(node, stop).await?;
    Ok(())
}
