//! The roles that act on the cluster's objects, for a driver or for all: which of them run, under which leases, and how they
//! start and stop.
//!
//! - Without a choice, the roles are those that the driver's capabilities call for.
//! - Each role holds the lease that upstream's sidecar of that role would hold.
//! - A driver that restarts is waited for; one that comes back able to do other things gets its roles anew.
//! - The snapshot controller works for all drivers and waits for none; it runs only where it is named.
//! - On a stop, work under way may finish, then events are written and leases released. A lease is left to run out
//!   if work had to be cut short.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use wharf_cluster::{Cluster, ConnectError, ConnectOptions, Events, Leadership, LeaseOptions};
use wharf_csi::{Client, Endpoint, SocketIdentity};
use wharf_model::names::{LeaseRole, SNAPSHOT_CONTROLLER_LEASE};

use crate::attempts::Attempts;
use crate::context::{Context, Ground, OwnNode};
use crate::driver::{Capabilities, Driver, DriverInfo};
use crate::metrics::Metrics;
use crate::{attacher, health_monitor, provisioner, resizer, snapshot_controller, snapshotter};
use wharf_cluster::work::Gate;

/// How often the driver's socket is looked at, to see whether it is another one.
const LOOK: Duration = Duration::from_secs(5);
/// For the last words.
const FLUSH: Duration = Duration::from_secs(2);

/// What a sidecar does on the cluster's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Makes and deletes volumes, and tells their capacity.
    Provisioner,
    /// Attaches and detaches volumes.
    Attacher,
    /// Expands and modifies volumes.
    Resizer,
    /// Takes and deletes snapshots.
    Snapshotter,
    /// Tells what is wrong with volumes.
    HealthMonitor,
    /// Binds snapshots to contents, of all drivers.
    SnapshotController,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Provisioner,
        Self::Attacher,
        Self::Resizer,
        Self::Snapshotter,
        Self::HealthMonitor,
        Self::SnapshotController,
    ];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::Attacher => "attacher",
            Self::Resizer => "resizer",
            Self::Snapshotter => "snapshotter",
            Self::HealthMonitor => "health-monitor",
            Self::SnapshotController => "snapshot-controller",
        }
    }

    /// Whether it works for one driver, which has to be there.
    fn needs_driver(self) -> bool {
        self != Self::SnapshotController
    }

    /// The lease that upstream's program of this role would hold.
    fn lease(self, driver: &str) -> String {
        match self {
            Self::Provisioner => LeaseRole::Provisioner.lease_name(driver),
            Self::Attacher => LeaseRole::Attacher.lease_name(driver),
            Self::Resizer => LeaseRole::Resizer.lease_name(driver),
            Self::Snapshotter => LeaseRole::Snapshotter.lease_name(driver),
            Self::HealthMonitor => LeaseRole::HealthMonitor.lease_name(driver),
            Self::SnapshotController => SNAPSHOT_CONTROLLER_LEASE.to_owned(),
        }
    }

    /// Who tells events, as upstream's sidecar of this role names itself.
    fn component(self, driver: &str, identity: &str) -> String {
        match self {
            Self::Provisioner => format!("{driver}_{identity}"),
            Self::Attacher => format!("external-attacher {driver}"),
            Self::Resizer => format!("external-resizer {driver}"),
            Self::Snapshotter => format!("csi-snapshotter {driver}"),
            Self::HealthMonitor => format!("csi-pv-monitor-controller-{driver}"),
            Self::SnapshotController => "snapshot-controller".to_owned(),
        }
    }
}

/// The roles that a driver calls for.
pub fn called_for(can: &Capabilities) -> BTreeSet<Role> {
    let mut roles = BTreeSet::new();
    if can.controller_service && can.create_delete_volume {
        roles.insert(Role::Provisioner);
    }
    if can.controller_service && can.publish_unpublish_volume {
        roles.insert(Role::Attacher);
    }
    if can.controller_service && (can.expand_volume || can.node_expand_volume || can.modify_volume) {
        roles.insert(Role::Resizer);
    }
    if can.controller_service && can.create_delete_snapshot {
        roles.insert(Role::Snapshotter);
    }
    if health_monitor::Asks::of(can).is_some() {
        roles.insert(Role::HealthMonitor);
    }
    roles
}

/// What the controller is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// How to reach the cluster.
    pub connect: ConnectOptions,
    /// The roles; `None`: those that the driver calls for.
    pub roles: Option<BTreeSet<Role>>,
    /// Who we are among replicas: the pod's name.
    pub identity: String,
    /// Our own namespace; `None`: that of the service account or kubeconfig.
    pub namespace: Option<String>,
    /// Compete for leases; `None`: nobody else works for this driver.
    pub election: Option<Election>,
    /// Heed where volumes can be used, if the driver says so.
    pub topology: bool,
    /// The node whose volumes alone are ours; `None`: all of the driver's.
    pub node: Option<String>,
    /// The provisioner's.
    pub provisioner: provisioner::Settings,
    /// The attacher's.
    pub attacher: attacher::Settings,
    /// The resizer's.
    pub resizer: resizer::Settings,
    /// The snapshotter's.
    pub snapshotter: snapshotter::Settings,
    /// The health monitor's.
    pub health_monitor: health_monitor::Settings,
    /// The snapshot controller's.
    pub snapshot_controller: snapshot_controller::Settings,
}

impl Config {
    /// Whether a role that needs a driver may run.
    fn needs_driver(&self) -> bool {
        self.roles.as_ref().is_none_or(|roles| roles.iter().any(|role| role.needs_driver()))
    }
}

/// How leases are held.
#[derive(Debug, Clone)]
pub struct Election {
    /// Their namespace; `None`: our own.
    pub namespace: Option<String>,
    /// Their labels, if we make them.
    pub labels: BTreeMap<String, String>,
    /// How long others wait for a holder they do not hear of.
    pub lease_duration: Duration,
    /// After so long without a renewal no new step begins.
    pub renew_deadline: Duration,
    /// Between two attempts.
    pub retry_period: Duration,
}

/// Times of an election that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "leader election: the lease duration ({lease_duration:?}) has to be longer than the renew deadline \
     ({renew_deadline:?}), and that longer than the retry period ({retry_period:?})"
)]
pub struct ElectionError {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

impl Election {
    /// Whether its times can work. If not, two could act at once, or nobody could renew in time.
    pub fn check(&self) -> Result<(), ElectionError> {
        let Self { lease_duration, renew_deadline, retry_period, .. } = *self;
        match lease_duration > renew_deadline && renew_deadline > retry_period {
            true => Ok(()),
            false => Err(ElectionError { lease_duration, renew_deadline, retry_period }),
        }
    }
}

impl Default for Election {
    /// Upstream's times.
    fn default() -> Self {
        Self {
            namespace: None,
            labels: BTreeMap::new(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
        }
    }
}

/// Runs the roles of a driver in this process until the stop, on a way to the API that is there already. Such a driver does
/// not become another one.
pub async fn run_here(cluster: Cluster, config: Config, driver: Client, stop: CancellationToken) {
    let controller = Controller::on(cluster, config, None, Metrics::new());
    let for_driver = async {
        tokio::select! {
            biased;
            driver = controller.discover(&driver) => controller.run_roles(driver, stop.clone()).await,
            () = stop.cancelled() => {}
        }
    };
    tokio::join!(for_driver, controller.run_for_all(&stop));
}

/// The controller; clones are the same one.
#[derive(Clone)]
pub(crate) struct Controller {
    config: Arc<Config>,
    /// The driver's, if a role needs one.
    socket: Option<Endpoint>,
    cluster: Cluster,
    metrics: Metrics,
    attempts: Attempts,
    state: Arc<Mutex<State>>,
}

/// How far it has come, for its pages.
#[derive(Default)]
struct State {
    /// The roles that run for the driver; `None` while it is not known.
    roles: Option<BTreeMap<Role, Option<Leadership>>>,
    /// Those that need none.
    for_all: BTreeMap<Role, Option<Leadership>>,
}

impl Controller {
    /// Sets up the way to the cluster; nothing is asked of it yet.
    pub(crate) async fn connect(
        config: Config,
        socket: Option<Endpoint>,
        metrics: Metrics,
    ) -> Result<Self, ConnectError> {
        let cluster = Cluster::connect(&config.connect).await?;
        Ok(Self::on(cluster, config, socket, metrics))
    }

    /// On a way to the cluster that is there already.
    pub(crate) fn on(cluster: Cluster, config: Config, socket: Option<Endpoint>, metrics: Metrics) -> Self {
        let socket = socket.filter(|_| config.needs_driver());
        cluster.metrics().register(&mut metrics.registry());
        Self {
            config: Arc::new(config),
            socket,
            cluster,
            metrics,
            attempts: Attempts::default(),
            state: Arc::default(),
        }
    }

    /// Which leases are held. Only information: whoever has lost one competes for it again, so there is nothing
    /// that a restart would help.
    pub(crate) fn leases(&self) -> String {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let roles = state.roles.iter().flatten().chain(&state.for_all);
        let line = |(role, lease): (&Role, &Option<Leadership>)| match lease {
            None => format!("{}: needs no lease\n", role.name()),
            Some(lease) if lease.holds() => format!("{}: leading\n", role.name()),
            Some(_) => format!("{}: standing by\n", role.name()),
        };
        roles.map(line).collect()
    }

    /// Whether roles run, or stand by for their leases.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let known = self.state.lock().unwrap_or_else(PoisonError::into_inner).roles.is_some();
        match known || self.socket.is_none() {
            true => Ok(()),
            false => Err("the driver has not said yet what it can do".to_owned()),
        }
    }

    /// What was last tried for each object, in JSON.
    pub(crate) fn attempts(&self) -> serde_json::Value {
        self.attempts.page()
    }

    /// Runs the roles until the stop.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let for_driver = async {
            if let Some(socket) = &self.socket {
                self.run_for_driver(socket, &stop).await;
            }
        };
        tokio::join!(for_driver, self.run_for_all(&stop));
    }

    async fn run_for_driver(&self, socket: &Endpoint, stop: &CancellationToken) {
        let client = Client::new(socket);
        while !stop.is_cancelled() {
            let identity = SocketIdentity::of(socket.path()).ok();
            let driver = tokio::select! {
                biased;
                driver = self.discover(&client) => driver,
                () = stop.cancelled() => return,
            };
            let changed = self.becomes_another(socket, &client, identity, &driver.info);
            // Ends this round only; the outer one ends it too.
            let round = stop.child_token();
            let roles = self.run_roles(driver.clone(), round.clone());
            let ended = async {
                tokio::select! {
                    biased;
                    () = changed => tracing::info!("the driver can do other things than before: starting its roles anew"),
                    () = stop.cancelled() => {}
                }
                round.cancel();
            };
            tokio::join!(roles, ended);
        }
    }

    /// Runs the role that needs no driver, if it is named.
    async fn run_for_all(&self, stop: &CancellationToken) {
        let role = Role::SnapshotController;
        if !self.config.roles.as_ref().is_some_and(|roles| roles.contains(&role)) {
            return;
        }
        tracing::info!(roles = role.name(), "starting");
        let leadership = self.compete(role.lease(""));
        self.state.lock().unwrap_or_else(PoisonError::into_inner).for_all.insert(role, leadership.clone());
        let identity = self.config.identity.as_str();
        let ground = Ground {
            cluster: self.cluster.clone(),
            gate: Gate::new(leadership.clone(), stop.clone()),
            events: Events::start(&self.cluster, role.component("", identity), identity),
            attempts: self.attempts.clone(),
            metrics: self.metrics.clone(),
        };
        let (events, gate) = (ground.events.clone(), ground.gate.clone());
        snapshot_controller::run(ground, self.config.snapshot_controller.clone()).await;
        end(events, gate, leadership).await;
    }

    /// Our own namespace.
    fn namespace(&self) -> &str {
        self.config.namespace.as_deref().unwrap_or_else(|| self.cluster.default_namespace())
    }

    /// Competes for a lease, if others may work beside us.
    fn compete(&self, name: String) -> Option<Leadership> {
        let election = self.config.election.as_ref()?;
        let namespace = election.namespace.as_deref().unwrap_or_else(|| self.namespace());
        let options = LeaseOptions {
            labels: election.labels.clone(),
            lease_duration: election.lease_duration,
            renew_deadline: election.renew_deadline,
            retry_period: election.retry_period,
            ..LeaseOptions::new(namespace, name, self.config.identity.as_str())
        };
        Some(Leadership::start(&self.cluster, options))
    }

    /// Waits for the driver, and asks it what it can do.
    async fn discover(&self, client: &Client) -> Driver {
        let mut driver = Driver::discover(client, &self.metrics, self.config.node.is_some()).await;
        if !self.config.topology {
            Arc::make_mut(&mut driver.info).can.topology = false;
        }
        driver
    }

    /// Waits until another driver, or one that can do other things, is behind the socket.
    async fn becomes_another(
        &self,
        socket: &Endpoint,
        client: &Client,
        mut seen: Option<SocketIdentity>,
        info: &DriverInfo,
    ) {
        loop {
            sleep(LOOK).await;
            let identity = SocketIdentity::of(socket.path()).ok();
            if identity == seen || identity.is_none() {
                continue;
            }
            let now = self.discover(client).await;
            if *now.info != *info {
                return;
            }
            seen = identity;
        }
    }

    async fn run_roles(&self, driver: Driver, stop: CancellationToken) {
        let Config { roles, identity, node, .. } = &*self.config;
        let mut wanted = roles.clone().unwrap_or_else(|| called_for(driver.can()));
        wanted.retain(|role| role.needs_driver());
        let names: Vec<_> = wanted.iter().map(|role| role.name()).collect();
        tracing::info!(driver = driver.name(), roles = names.join(","), "starting");
        let node = node.as_ref().map(|name| OwnNode { name: name.clone(), place: driver.info.place.clone() });
        let (mut running, mut leases) = (JoinSet::new(), BTreeMap::new());
        for role in wanted {
            let leadership = self.compete(role.lease(driver.name()));
            leases.insert(role, leadership.clone());
            let component = role.component(driver.name(), identity);
            let context = Context {
                cluster: self.cluster.clone(),
                driver: driver.clone(),
                gate: Gate::new(leadership.clone(), stop.clone()),
                events: Events::start(&self.cluster, component, identity.as_str()),
                attempts: self.attempts.clone(),
                metrics: self.metrics.clone(),
                namespace: self.namespace().to_owned(),
                node: node.clone(),
            };
            let (events, gate) = (context.events.clone(), context.gate.clone());
            let config = Arc::clone(&self.config);
            running.spawn(async move {
                match role {
                    Role::Provisioner => provisioner::run(context, config.provisioner.clone()).await,
                    Role::Attacher => attacher::run(context, config.attacher.clone()).await,
                    Role::Resizer => resizer::run(context, config.resizer.clone()).await,
                    Role::Snapshotter => snapshotter::run(context, config.snapshotter.clone()).await,
                    Role::HealthMonitor => health_monitor::run(context, config.health_monitor.clone()).await,
                    // It runs beside these, whatever the driver does.
                    Role::SnapshotController => {}
                }
                end(events, gate, leadership).await;
            });
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).roles = Some(leases);
        while running.join_next().await.is_some() {}
    }
}

/// A role has ended: its last events are written, and its lease is given back.
async fn end(events: Events, gate: Gate, leadership: Option<Leadership>) {
    events.flush(FLUSH).await;
    match leadership {
        // What was dropped may still run in the driver. Until the lease runs out it has time to end.
        Some(_) if gate.was_cut() => tracing::warn!("calls were cut short: the lease runs out by itself"),
        Some(leadership) => leadership.release(FLUSH).await,
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.2 "Handler choice", 1.3 "Start", 1.6 "Needs".
    #[test]
    fn roles_follow_capabilities() {
        let controller = Capabilities { controller_service: true, ..Capabilities::default() };
        for (can, roles) in [
            (Capabilities::default(), &[][..]),
            (Capabilities { create_delete_volume: true, ..Capabilities::default() }, &[]),
            (Capabilities { create_delete_volume: true, ..controller }, &[Role::Provisioner]),
            (Capabilities { publish_unpublish_volume: true, ..controller }, &[Role::Attacher]),
            (Capabilities { expand_volume: true, ..controller }, &[Role::Resizer]),
            (Capabilities { node_expand_volume: true, ..controller }, &[Role::Resizer]),
            (Capabilities { modify_volume: true, ..controller }, &[Role::Resizer]),
            (Capabilities { create_delete_snapshot: true, ..controller }, &[Role::Snapshotter]),
            (Capabilities { list_volume_health: true, ..controller }, &[Role::HealthMonitor]),
        ] {
            assert_eq!(called_for(&can), roles.iter().copied().collect(), "{can:?}");
        }
    }
}
