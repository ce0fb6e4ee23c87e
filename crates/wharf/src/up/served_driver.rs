//! Serves a driver in `wharf up`: creates its API objects and runs its sidecar.
//!
//! - A driver may start late, stop and restart at any time; nothing else waits for it. If it comes back with more
//!   capabilities, the missing objects are created.
//! - One snapshot controller binds the snapshots of all drivers. It runs even if no driver does.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_cluster::{Backoff, Cluster};
use wharf_csi::{Client, Endpoint, SocketIdentity};
use wharf_driver_local::DRIVER_NAME;
use wharf_sidecar::controller::{self, Role};
use wharf_sidecar::driver::{DriverInfo, discover};
use wharf_sidecar::health_registry::HealthRegistry;
use wharf_sidecar::process::{self, Sidecar, SidecarError};
use wharf_sidecar::provisioner::{self, CapacitySettings};
use wharf_sidecar::registrar;

use super::external_driver::DriverOptions;
use super::{DataDir, objects};

/// A driver that has not responded after this time is reported as missing.
const SLOW_START: Duration = Duration::from_secs(1);
/// How often the socket is checked for replacement, which means that the driver was restarted.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// A driver and the environment in which it is served.
#[derive(Clone)]
pub(super) struct ServedDriver {
    pub(super) endpoint: Endpoint,
    pub(super) options: DriverOptions,
    pub(super) cluster: Cluster,
    pub(super) data_dir: DataDir,
    pub(super) node: String,
    pub(super) health_registry: HealthRegistry,
}

impl ServedDriver {
    /// Serves the driver until `stop`. Sends to `ready` when the driver has responded and its objects exist.
    pub(super) async fn run(
        self,
        ready: oneshot::Sender<()>,
        stop: CancellationToken,
    ) -> Result<(), SidecarError> {
        let client = Client::new(&self.endpoint);
        let mut last_socket = SocketIdentity::of_path(self.endpoint.path()).ok();
        let info = tokio::select! {
            info = self.discover(&client) => info,
            () = stop.cancelled() => return Ok(()),
        };
        // The receiver may be gone: it stops waiting after a grace period.
        let _ = ready.send(());
        let watch_socket = async {
            loop {
                sleep(SOCKET_POLL_INTERVAL).await;
                let socket = SocketIdentity::of_path(self.endpoint.path()).ok();
                if socket.is_some() && socket != last_socket {
                    self.discover(&client).await;
                    last_socket = socket;
                }
            }
        };
        let registered_as = (info.name.clone(), self.health_registry.clone());
        let sidecar = sidecar_for(&self.data_dir, &self.endpoint, &info, &self.node);
        tokio::select! {
            result = process::run_with_registry(self.cluster.clone(), sidecar, registered_as, stop.cancelled()) => result,
            () = watch_socket => Ok(()),
        }
    }

    /// Waits for the driver and creates the API objects that its capabilities require.
    async fn discover(&self, client: &Client) -> DriverInfo {
        let discovery = discover(client);
        tokio::pin!(discovery);
        let info = match timeout(SLOW_START, &mut discovery).await {
            Ok(info) => info,
            Err(_) => {
                tracing::warn!(socket = %self.endpoint, "driver does not respond; waiting for it");
                discovery.await
            }
        };
        let backoff = Backoff { max: Duration::from_secs(10), ..Backoff::default() };
        let mut failures = 0;
        while let Err(error) = objects::create_missing(&self.cluster, objects_for(&info, &self.options)).await
        {
            tracing::warn!(driver = info.name, %error, "failed to create the driver's API objects; retrying");
            sleep(backoff.delay(failures)).await;
            failures += 1;
        }
        tracing::info!(driver = info.name, socket = %self.endpoint, "serving driver");
        info
    }
}

fn objects_for(info: &DriverInfo, options: &DriverOptions) -> Vec<objects::InitialObject> {
    let mut objects = vec![objects::csi_driver(&info.name, &info.capabilities, options)];
    let is_local = info.name == DRIVER_NAME;
    match is_local {
        true => objects.extend(objects::local_classes(&info.name)),
        false if info.capabilities.create_delete_volume => {
            objects.push(objects::class(&info.name, &info.capabilities, options))
        }
        false => {}
    }
    if info.capabilities.create_delete_snapshot {
        objects.push(objects::snapshot_class(
            if is_local { "local" } else { objects::class_name(&info.name, options) },
            &info.name,
        ));
    }
    objects
}

/// The sidecar of a driver: the same roles as in a cluster, but without leader election, because there is one replica.
fn sidecar_for(data_dir: &DataDir, endpoint: &Endpoint, info: &DriverInfo, node: &str) -> Sidecar {
    let capacity =
        (info.capabilities.get_capacity && info.capabilities.topology).then(CapacitySettings::default);
    Sidecar {
        driver: Some(endpoint.clone()),
        registrar: Some(registrar::Config {
            plugin_registration_path: data_dir.plugin_registry(),
            kubelet_registration_path: endpoint.path().display().to_string(),
            timeout: Duration::from_secs(10),
        }),
        probe_timeout: None,
        // The driver's current capabilities select the roles.
        controller: Some(controller::Config {
            provisioner: provisioner::Settings { capacity, ..provisioner::Settings::default() },
            ..config(node, None)
        }),
        // `wharf up` serves the status pages of all components together.
        listen: Vec::new(),
    }
}

/// The snapshot controller, for all drivers.
pub(super) fn snapshot_controller(node: &str) -> Sidecar {
    let roles = BTreeSet::from([Role::SnapshotController]);
    Sidecar {
        driver: None,
        registrar: None,
        probe_timeout: None,
        controller: Some(config(node, Some(roles))),
        listen: Vec::new(),
    }
}

fn config(node: &str, roles: Option<BTreeSet<Role>>) -> controller::Config {
    controller::Config {
        roles,
        namespace: Some("kube-system".to_owned()),
        ..controller::Config::new(node.to_owned())
    }
}
