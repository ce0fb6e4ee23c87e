//! Drivers as `wharf up` serves them: what it makes of each in the API, and the sidecar between the two.
//!
//! - Nobody waits for a driver of somebody else: all others work meanwhile, and it is served when it comes. One that goes
//!   and comes back goes on as it was; if it can do more than before, it gets what that calls for.
//! - Snapshots are bound by one controller for all drivers, which needs none of them.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_cluster::{Backoff, Cluster, ConnectOptions};
use wharf_csi::{Client, Endpoint, SocketIdentity};
use wharf_driver_local::DRIVER_NAME;
use wharf_sidecar::board::Board;
use wharf_sidecar::controller::{self, Role};
use wharf_sidecar::driver::{DriverInfo, describe};
use wharf_sidecar::process::{self, Sidecar, SidecarError};
use wharf_sidecar::provisioner::{self, CapacitySettings};
use wharf_sidecar::{attacher, health_monitor, registrar, resizer, snapshot_controller, snapshotter};

use super::drivers::Described;
use super::{Place, objects};

/// A driver that has not answered for so long is said to be waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often its socket is looked at, to see whether it is another one.
const LOOK: Duration = Duration::from_secs(5);

/// A driver, and where it is served.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) endpoint: Endpoint,
    pub(super) described: Described,
    pub(super) cluster: Cluster,
    pub(super) place: Place,
    pub(super) node: String,
    pub(super) board: Board,
}

impl Served {
    /// Serves it until the stop. `known` hears when it has answered, and its objects are there.
    pub(super) async fn run(
        self,
        known: oneshot::Sender<()>,
        stop: CancellationToken,
    ) -> Result<(), SidecarError> {
        let client = Client::new(&self.endpoint);
        let mut seen = SocketIdentity::of(self.endpoint.path()).ok();
        let info = tokio::select! {
            info = self.introduce(&client) => info,
            () = stop.cancelled() => return Ok(()),
        };
        // Whoever has stopped listening will see the objects.
        let _ = known.send(());
        let again = async {
            loop {
                sleep(LOOK).await;
                let now = SocketIdentity::of(self.endpoint.path()).ok();
                if now.is_some() && now != seen {
                    self.introduce(&client).await;
                    seen = now;
                }
            }
        };
        let shown = (info.name.clone(), self.board.clone());
        let sidecar = sidecar_of(&self.place, &self.endpoint, &info, &self.node);
        tokio::select! {
            ended = process::run_shown(self.cluster.clone(), sidecar, shown, stop.cancelled()) => ended,
            () = again => Ok(()),
        }
    }

    /// Waits for the driver, and makes what it calls for.
    async fn introduce(&self, client: &Client) -> DriverInfo {
        let asking = describe(client);
        tokio::pin!(asking);
        let info = match timeout(PATIENCE, &mut asking).await {
            Ok(info) => info,
            Err(_) => {
                tracing::warn!(socket = %self.endpoint, "the driver does not answer: it is served as soon as it does");
                asking.await
            }
        };
        let backoff = Backoff { max: Duration::from_secs(10), ..Backoff::default() };
        let mut failures = 0;
        while let Err(error) = objects::make(&self.cluster, what_is_made(&info, &self.described)).await {
            tracing::warn!(driver = info.name, %error, "its objects are not made, trying again");
            sleep(backoff.after(failures)).await;
            failures += 1;
        }
        tracing::info!(driver = info.name, socket = %self.endpoint, "served");
        info
    }
}

fn what_is_made(info: &DriverInfo, described: &Described) -> Vec<objects::Made> {
    let mut made = vec![objects::csi_driver(&info.name, &info.can, described)];
    let local = info.name == DRIVER_NAME;
    match local {
        true => made.extend(objects::local_classes(&info.name)),
        false if info.can.create_delete_volume => made.push(objects::class(&info.name, &info.can)),
        false => {}
    }
    if info.can.create_delete_snapshot {
        made.push(objects::snapshot_class(if local { "local" } else { &info.name }, &info.name));
    }
    made
}

/// What stands between a driver and the API: as on a cluster, with no lease, since nobody else is here.
fn sidecar_of(place: &Place, endpoint: &Endpoint, info: &DriverInfo, node: &str) -> Sidecar {
    let capacity = (info.can.get_capacity && info.can.topology).then(|| CapacitySettings {
        immediate_binding: false,
        poll_interval: Duration::from_secs(60),
        owner_level: -1,
        pod: None,
    });
    Sidecar {
        driver: Some(endpoint.clone()),
        registrar: Some(registrar::Config {
            plugin_registration_path: place.registry(),
            kubelet_registration_path: endpoint.path().display().to_string(),
            timeout: Duration::from_secs(10),
        }),
        probe_timeout: None,
        // Its roles are what it can do, at any time.
        controller: Some(controller::Config {
            provisioner: provisioner::Settings { capacity, ..provisioner::Settings::default() },
            ..config(node, None)
        }),
        // All parts have their pages in one place.
        listen: Vec::new(),
    }
}

/// Binds snapshots, of all drivers.
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
        // It is handed the cluster of this process.
        connect: ConnectOptions::default(),
        roles,
        identity: node.to_owned(),
        namespace: Some("kube-system".to_owned()),
        election: None,
        topology: true,
        node: None,
        provisioner: provisioner::Settings::default(),
        attacher: attacher::Settings::default(),
        resizer: resizer::Settings::default(),
        snapshotter: snapshotter::Settings::default(),
        health_monitor: health_monitor::Settings::default(),
        snapshot_controller: snapshot_controller::Settings::default(),
    }
}
