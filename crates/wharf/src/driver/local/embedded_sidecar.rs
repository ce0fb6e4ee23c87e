//! The sidecar in the driver's own process (`--with-sidecar`): its configuration, and how the two start and stop together.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use wharf_cluster::ConnectOptions;
use wharf_controllers::snapshot_controller;
use wharf_csi::Endpoint;
use wharf_driver::{Driver, ServeOptions};
use wharf_sidecar::controller::{Config, Role};
use wharf_sidecar::process::{self, Address, Listen, Sidecar};
use wharf_sidecar::provisioner::{self, CapacitySettings, ImmediateBinding};
use wharf_sidecar::{attacher, health_monitor, registrar, resizer, snapshotter};
use wharf_upstream_flags::Environment;

/// How nodes compete for a claim that binds immediately. Upstream waits for 20 s to 1 min, because each competing node
/// sends many requests to the API server. Ours send one write, so a short delay is enough.
const IMMEDIATE: ImmediateBinding =
    ImmediateBinding { base_delay: Duration::from_millis(500), max_delay: Duration::from_secs(5) };

/// Flags of the embedded sidecar.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Embedded sidecar")]
pub(super) struct EmbeddedSidecarArgs {
    /// Run the Kubernetes sidecar in this process: provision, delete, expand and snapshot this node's volumes, publish its
    /// capacity, register with kubelet, serve health endpoints
    #[arg(long, env = "WHARF_WITH_SIDECAR", conflicts_with = "attach")]
    pub(super) with_sidecar: bool,
    /// Path of the driver's socket on the host, for kubelet [default: the path of --endpoint]
    #[arg(long, value_name = "PATH", requires = "with_sidecar")]
    kubelet_registration_path: Option<String>,
    /// Kubelet's plugins_registry directory, as mounted in this container
    #[arg(long, value_name = "DIR", default_value = "/registration")]
    plugin_registration_path: PathBuf,
    /// Kubeconfig file [default: the pod's service account, else KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE", requires = "with_sidecar")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the journal and of CSIStorageCapacity objects [default: the service account's or kubeconfig's]
    #[arg(long, env = "NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// Listen address of the sidecar's HTTP endpoints
    #[arg(long, value_name = "ADDRESS", default_value = ":9808")]
    http_endpoint: Address,
}

impl EmbeddedSidecarArgs {
    /// The configuration of the sidecar for the driver on this node.
    pub(super) fn into_sidecar(
        self,
        endpoint: &Endpoint,
        node_id: &str,
        environment: &Environment,
    ) -> Sidecar {
        let Self {
            with_sidecar: _,
            kubelet_registration_path,
            plugin_registration_path,
            kubeconfig,
            namespace,
            http_endpoint,
        } = self;
        let pod = environment.pod_name.clone();
        let controller = Config {
            connect: ConnectOptions { kubeconfig, ..ConnectOptions::default() },
            roles: Some(BTreeSet::from([
                Role::Provisioner,
                Role::Resizer,
                Role::Snapshotter,
                Role::HealthMonitor,
            ])),
            identity: pod.clone().unwrap_or_else(|| node_id.to_owned()),
            namespace: namespace.filter(|namespace| !namespace.is_empty()),
            // No leader election: each node has its own volumes.
            election: None,
            topology: true,
            node: Some(node_id.to_owned()),
            provisioner: provisioner::Settings {
                capacity: Some(CapacitySettings {
                    // Owned by the DaemonSet, so that capacities are garbage-collected with it. No owner outside a pod.
                    owner_level: if pod.is_some() { 1 } else { -1 },
                    pod,
                    ..CapacitySettings::default()
                }),
                immediate_binding: Some(IMMEDIATE),
                ..provisioner::Settings::default()
            },
            attacher: attacher::Settings::default(),
            resizer: resizer::Settings::default(),
            snapshotter: snapshotter::Settings::default(),
            health_monitor: health_monitor::Settings::default(),
            snapshot_controller: snapshot_controller::Settings::default(),
        };
        let default_path = || endpoint.path().display().to_string();
        Sidecar {
            driver: Some(endpoint.clone()),
            registrar: Some(registrar::Config {
                plugin_registration_path,
                kubelet_registration_path: kubelet_registration_path.unwrap_or_else(default_path),
                timeout: Duration::from_secs(1),
            }),
            probe_timeout: Some(Duration::from_secs(3)),
            controller: Some(controller),
            listen: vec![Listen {
                address: http_endpoint,
                health: true,
                metrics: Some("/metrics".to_owned()),
            }],
        }
    }
}

/// Serves the driver with its sidecar until `stop`. The sidecar stops first, because it calls the driver until its end. If
/// one of them fails, the other is stopped.
pub(super) async fn serve(
    driver: Driver,
    endpoint: &Endpoint,
    options: ServeOptions,
    sidecar: Sidecar,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let (sidecar_ended, driver_ended) = (CancellationToken::new(), CancellationToken::new());
    let driving = async {
        let ended = driver.serve(endpoint, options, sidecar_ended.cancelled()).await;
        driver_ended.cancel();
        ended
    };
    let stop = async {
        tokio::select! {
            () = stop => {}
            () = driver_ended.cancelled() => {}
        }
    };
    let running = async {
        let ended = process::run(sidecar, stop).await;
        sidecar_ended.cancel();
        ended
    };
    let (driven, ran) = tokio::join!(driving, running);
    driven?;
    ran?;
    Ok(())
}
