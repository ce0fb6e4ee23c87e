//! The sidecar in the driver's own process: what it is told, and how the two start and stop together.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use wharf_cluster::ConnectOptions;
use wharf_csi::Endpoint;
use wharf_driver::{Driver, ServeOptions};
use wharf_sidecar::controller::{Config, Role};
use wharf_sidecar::process::{self, Address, Listen, Sidecar};
use wharf_sidecar::provisioner::{self, CapacitySettings, ImmediateBinding};
use wharf_sidecar::{attacher, health_monitor, registrar, resizer, snapshot_controller, snapshotter};

use crate::sidecar::Environment;

/// How nodes compete for a claim that does not wait for a pod. Upstream waits for 20 s to 1 min, because each of its
/// nodes costs the API server dearly; ours write once, so people need not wait.
const IMMEDIATE: ImmediateBinding =
    ImmediateBinding { base_delay: Duration::from_millis(500), max_delay: Duration::from_secs(5) };

/// The sidecar in this process.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With a sidecar in the same process")]
pub(super) struct BesideArgs {
    /// Also join the driver to Kubernetes: provision, delete, expand and snapshot this node's volumes, tell its capacity,
    /// register with kubelet, answer for health
    #[arg(long, env = "WHARF_WITH_SIDECAR", conflicts_with = "attach")]
    pub(super) with_sidecar: bool,
    /// The driver's socket, as kubelet sees it on the host [default: the path of --endpoint]
    #[arg(long, value_name = "PATH", requires = "with_sidecar")]
    kubelet_registration_path: Option<String>,
    /// Kubelet's directory plugins_registry, as this process sees it
    #[arg(long, value_name = "DIR", default_value = "/registration")]
    plugin_registration_path: PathBuf,
    /// Credentials for the cluster [default: the pod's service account, or else your own kubeconfig]
    #[arg(long, value_name = "FILE", requires = "with_sidecar")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of journal and capacities [default: that of the service account or kubeconfig]
    #[arg(long, env = "NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// Address for the sidecar's pages
    #[arg(long, value_name = "ADDRESS", default_value = ":9808")]
    http_endpoint: Address,
}

impl BesideArgs {
    /// The sidecar for the driver on this node.
    pub(super) fn checked(self, endpoint: &Endpoint, node_id: &str, environment: &Environment) -> Sidecar {
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
            // Nodes do not compete: each has volumes of its own.
            election: None,
            topology: true,
            node: Some(node_id.to_owned()),
            provisioner: provisioner::Settings {
                capacity: Some(CapacitySettings {
                    immediate_binding: false,
                    poll_interval: Duration::from_secs(60),
                    // The DaemonSet, so that capacities go when it goes; nobody where there is no pod.
                    owner_level: if pod.is_some() { 1 } else { -1 },
                    pod,
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

/// Serves the driver with its sidecar until `stop`. The sidecar ends first, since it calls the driver until it has
/// ended; when one of them fails, the other one is stopped.
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
    let beside = async {
        let ended = process::run(sidecar, stop).await;
        sidecar_ended.cancel();
        ended
    };
    let (driven, ran) = tokio::join!(driving, beside);
    driven?;
    ran?;
    Ok(())
}
