//! Runs the roles that act on the cluster's objects: selects them, elects their leaders, starts and stops them.
//!
//! - If no roles are configured, the driver's capabilities select them.
//! - Each role holds the same lease as the upstream sidecar of that role.
//! - The controller waits for a driver that restarts. If its capabilities change, its roles are restarted.
//! - The snapshot controller works for all drivers and waits for none. It runs only if it is configured.
//! - A role that panics outside of a reconcile is started again after a backoff.
//! - If the driver does not answer Probe, its leases are given up until it does.
//! - On shutdown, running work may finish, then events are flushed and leases released. A lease expires instead if
//!   work had to be aborted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use wharf_cluster::{
    Attempts, Cluster, ConnectError, ConnectOptions, EventRecorder, Leadership, LeaseOptions, Standing,
    written_lease_duration,
};
use wharf_csi::{Client, Endpoint, SocketIdentity};
use wharf_model::Attempt;
use wharf_model::names::{LeaseRole, SNAPSHOT_CONTROLLER_LEASE};

use crate::context::{Context, LocalNode};
use crate::driver::{Capabilities, Driver, DriverInfo};
use crate::metrics::Metrics;
use crate::{attacher, health_monitor, provisioner, resizer, snapshotter};
use wharf_cluster::work::{Gate, restart};
use wharf_controllers::snapshot_controller;

mod driver_health;

/// How often the driver's socket is checked for a replacement.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for flushing events and for releasing a lease on shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A role that acts on the cluster's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Provisions and deletes volumes, and publishes CSIStorageCapacity objects.
    Provisioner,
    /// Attaches and detaches volumes.
    Attacher,
    /// Expands and modifies volumes.
    Resizer,
    /// Creates and deletes snapshots.
    Snapshotter,
    /// Reports abnormal volumes.
    HealthMonitor,
    /// Binds VolumeSnapshots to VolumeSnapshotContents, for all drivers.
    SnapshotController,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 6] = [
        Self::Provisioner,
        Self::Attacher,
        Self::Resizer,
        Self::Snapshotter,
        Self::HealthMonitor,
        Self::SnapshotController,
    ];

    /// The role's name on the command line.
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

    /// Whether the role works for one driver and needs its socket.
    fn needs_driver(self) -> bool {
        self != Self::SnapshotController
    }

    /// The lease of the upstream program of this role.
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

    /// The component name in events, as the upstream sidecar of this role reports it.
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

/// The roles that a driver's capabilities require.
pub fn required_roles(capabilities: &Capabilities) -> BTreeSet<Role> {
    let mut roles = BTreeSet::new();
    if capabilities.controller_service && capabilities.create_delete_volume {
        roles.insert(Role::Provisioner);
    }
    if capabilities.controller_service && capabilities.publish_unpublish_volume {
        roles.insert(Role::Attacher);
    }
    if capabilities.controller_service
        && (capabilities.expand_volume || capabilities.node_expand_volume || capabilities.modify_volume)
    {
        roles.insert(Role::Resizer);
    }
    if capabilities.controller_service && capabilities.create_delete_snapshot {
        roles.insert(Role::Snapshotter);
    }
    if health_monitor::HealthSource::from_capabilities(capabilities).is_some() {
        roles.insert(Role::HealthMonitor);
    }
    roles
}

/// Configuration of the controller.
#[derive(Debug, Clone)]
pub struct Config {
    /// How to connect to the cluster.
    pub connect: ConnectOptions,
    /// The roles. `None`: those that the driver's capabilities require.
    pub roles: Option<BTreeSet<Role>>,
    /// This replica's name in leases and events: the pod's name.
    pub identity: String,
    /// The sidecar's own namespace. `None`: that of the service account or kubeconfig.
    pub namespace: Option<String>,
    /// Leader election. `None`: this is the only replica.
    pub election: Option<Election>,
    /// Use topology if the driver supports it.
    pub topology: bool,
    /// With node deployment, the node whose volumes this sidecar manages. `None`: it manages all volumes of the driver.
    pub node: Option<String>,
    /// Settings of the provisioner.
    pub provisioner: provisioner::Settings,
    /// Settings of the attacher.
    pub attacher: attacher::Settings,
    /// Settings of the resizer.
    pub resizer: resizer::Settings,
    /// Settings of the snapshotter.
    pub snapshotter: snapshotter::Settings,
    /// Settings of the health monitor.
    pub health_monitor: health_monitor::Settings,
    /// Settings of the snapshot controller.
    pub snapshot_controller: snapshot_controller::Settings,
}

impl Config {
    /// The configuration of the only replica, with default settings and the roles that the driver's capabilities
    /// require.
    pub fn new(identity: String) -> Self {
        Self {
            connect: ConnectOptions::default(),
            roles: None,
            identity,
            namespace: None,
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

    /// Whether any configured role may need a driver.
    fn needs_driver(&self) -> bool {
        self.roles.as_ref().is_none_or(|roles| roles.iter().any(|role| role.needs_driver()))
    }
}

/// Leader election settings.
#[derive(Debug, Clone)]
pub struct Election {
    /// The namespace of the leases. `None`: the sidecar's own.
    pub namespace: Option<String>,
    /// Labels of leases that this process creates.
    pub labels: BTreeMap<String, String>,
    /// How long other replicas wait before they take over a lease that is not renewed.
    pub lease_duration: Duration,
    /// After this time without a successful renewal, no new step starts.
    pub renew_deadline: Duration,
    /// Time between attempts to acquire or renew.
    pub retry_period: Duration,
    /// After this time without a good answer to Probe, the leases of a driver are given up.
    pub driver_timeout: Duration,
}

/// Leader election durations that contradict each other.
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
    /// Validates the durations. With wrong ones two replicas could act at once, or none could renew in time.
    pub fn validate(&self) -> Result<(), ElectionError> {
        let Self { renew_deadline, retry_period, .. } = *self;
        // What the lease contains, which is what other replicas wait for.
        let lease_duration = written_lease_duration(self.lease_duration);
        match lease_duration > renew_deadline && renew_deadline > retry_period {
            true => Ok(()),
            false => Err(ElectionError { lease_duration, renew_deadline, retry_period }),
        }
    }
}

impl Default for Election {
    /// Upstream's defaults.
    fn default() -> Self {
        Self {
            namespace: None,
            labels: BTreeMap::new(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
            driver_timeout: Duration::from_secs(15),
        }
    }
}

/// Runs the roles of a driver in this process until `stop`, on an existing API connection. The driver's capabilities
/// are read once: an in-process driver is not replaced.
pub async fn run_in_process(cluster: Cluster, config: Config, driver: Client, stop: CancellationToken) {
    let controller = Controller::with_cluster(cluster, config, None, Metrics::new());
    let for_driver = async {
        tokio::select! {
            biased;
            driver = controller.discover(&driver) => controller.run_roles(driver, stop.clone()).await,
            () = stop.cancelled() => {}
        }
    };
    tokio::join!(for_driver, controller.run_driverless_roles(&stop));
}

/// The controller. Clones share its state.
#[derive(Clone)]
pub(crate) struct Controller {
    config: Arc<Config>,
    /// The driver's socket, if a role needs a driver.
    socket: Option<Endpoint>,
    cluster: Cluster,
    metrics: Metrics,
    attempts: Attempts,
    state: Arc<Mutex<State>>,
}

/// Which roles run, for the health pages.
#[derive(Default)]
struct State {
    /// The roles that run for the driver. `None` until the driver is discovered.
    roles: Option<BTreeMap<Role, Option<Leadership>>>,
    /// The roles that need no driver.
    driverless: BTreeMap<Role, Option<Leadership>>,
}

impl Controller {
    /// Creates a controller with its own client. Sends no request yet.
    pub(crate) async fn connect(
        config: Config,
        socket: Option<Endpoint>,
        metrics: Metrics,
    ) -> Result<Self, ConnectError> {
        let cluster = Cluster::connect(&config.connect).await?.with_slim_views();
        Ok(Self::with_cluster(cluster, config, socket, metrics))
    }

    /// Creates a controller on an existing client.
    pub(crate) fn with_cluster(
        cluster: Cluster,
        config: Config,
        socket: Option<Endpoint>,
        metrics: Metrics,
    ) -> Self {
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

    /// One line for each role with the state of its lease. `Err`: a role cannot renew a lease that names it as the
    /// holder.
    pub(crate) fn lease_status(&self) -> Result<String, String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let roles = state.roles.iter().flatten().chain(&state.driverless);
        let (mut lines, mut healthy) = (String::new(), true);
        for (role, lease) in roles {
            let text = match lease {
                None => "needs no lease".to_owned(),
                Some(lease) => match lease.check_renewal() {
                    Ok(()) if lease.is_leader() => "leading".to_owned(),
                    Ok(()) => "standing by".to_owned(),
                    Err(reason) => {
                        healthy = false;
                        reason
                    }
                },
            };
            lines.push_str(&format!("{}: {text}\n", role.name()));
        }
        if healthy { Ok(lines) } else { Err(lines) }
    }

    /// Whether the roles were started. Roles that wait for their leases count as started.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let known = self.state.lock().unwrap_or_else(PoisonError::into_inner).roles.is_some();
        match known || self.socket.is_none() {
            true => Ok(()),
            false => Err("waiting for the driver to report its capabilities".to_owned()),
        }
    }

    /// The last attempt for each object, as JSON.
    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        self.attempts.list()
    }

    /// Runs the roles until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let for_driver = async {
            if let Some(socket) = &self.socket {
                self.run_for_driver(socket, &stop).await;
            }
        };
        tokio::join!(for_driver, self.run_driverless_roles(&stop));
    }

    async fn run_for_driver(&self, socket: &Endpoint, stop: &CancellationToken) {
        let client = Client::new(socket);
        while !stop.is_cancelled() {
            let identity = SocketIdentity::of_path(socket.path()).ok();
            let driver = tokio::select! {
                biased;
                driver = self.discover(&client) => driver,
                () = stop.cancelled() => return,
            };
            let changed = self.wait_for_driver_change(socket, &client, identity, &driver.info);
            // Stops these roles only. Cancelling `stop` cancels the child token, too.
            let roles_stop = stop.child_token();
            let roles = self.run_roles(driver.clone(), roles_stop.clone());
            let restart = async {
                tokio::select! {
                    biased;
                    () = changed => tracing::info!("driver capabilities changed; restarting roles"),
                    () = stop.cancelled() => {}
                }
                roles_stop.cancel();
            };
            tokio::join!(roles, restart);
        }
    }

    /// Runs the roles that need no driver, if they are configured.
    async fn run_driverless_roles(&self, stop: &CancellationToken) {
        let role = Role::SnapshotController;
        if !self.config.roles.as_ref().is_some_and(|roles| roles.contains(&role)) {
            return;
        }
        tracing::info!(roles = role.name(), "starting roles");
        let leadership = self.start_election(role.lease(""));
        self.state.lock().unwrap_or_else(PoisonError::into_inner).driverless.insert(role, leadership.clone());
        let identity = self.config.identity.as_str();
        let context = wharf_controllers::Context {
            cluster: self.cluster.fenced(leadership.as_ref()),
            gate: Gate::new(leadership.clone(), stop.clone()),
            events: EventRecorder::start(&self.cluster, role.component("", identity), identity),
        };
        let (events, gate) = (context.events.clone(), context.gate.clone());
        let metrics = self.metrics.get_or_register(snapshot_controller::Metrics::register);
        let (settings, attempts) = (&self.config.snapshot_controller, &self.attempts);
        let run =
            || snapshot_controller::run(context.clone(), settings.clone(), metrics.clone(), attempts.clone());
        restart(role.name(), "role", Some(&gate), run).await;
        shut_down(events, gate, leadership).await;
    }

    /// The sidecar's own namespace.
    fn namespace(&self) -> &str {
        self.config.namespace.as_deref().unwrap_or_else(|| self.cluster.default_namespace())
    }

    /// Starts leader election for a lease, if leader election is on.
    fn start_election(&self, name: String) -> Option<Leadership> {
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

    /// Waits for the driver and reads its capabilities.
    async fn discover(&self, client: &Client) -> Driver {
        let mut driver = Driver::discover(client, &self.metrics, self.config.node.is_some()).await;
        if !self.config.topology {
            Arc::make_mut(&mut driver.info).capabilities.topology = false;
        }
        driver
    }

    /// Waits until the socket is replaced and the driver behind it has another name or other capabilities.
    async fn wait_for_driver_change(
        &self,
        socket: &Endpoint,
        client: &Client,
        mut known: Option<SocketIdentity>,
        info: &DriverInfo,
    ) {
        loop {
            sleep(SOCKET_POLL_INTERVAL).await;
            let identity = SocketIdentity::of_path(socket.path()).ok();
            if identity == known || identity.is_none() {
                continue;
            }
            let current = self.discover(client).await;
            if *current.info != *info {
                return;
            }
            known = identity;
        }
    }

    async fn run_roles(&self, driver: Driver, stop: CancellationToken) {
        let Config { roles, identity, node, .. } = &*self.config;
        let mut wanted = roles.clone().unwrap_or_else(|| required_roles(driver.capabilities()));
        wanted.retain(|role| role.needs_driver());
        let names: Vec<_> = wanted.iter().map(|role| role.name()).collect();
        tracing::info!(driver = driver.name(), roles = names.join(","), "starting roles");
        let node = node
            .as_ref()
            .map(|name| LocalNode { name: name.clone(), topology: driver.info.node_topology.clone() });
        let (mut running, mut leases, mut held) = (JoinSet::new(), BTreeMap::new(), Vec::new());
        for role in wanted {
            let leadership = self.start_election(role.lease(driver.name()));
            leases.insert(role, leadership.clone());
            let component = role.component(driver.name(), identity);
            let context = Context {
                cluster: self.cluster.fenced(leadership.as_ref()),
                driver: driver.fenced(leadership.as_ref()),
                gate: Gate::new(leadership.clone(), stop.clone()),
                events: EventRecorder::start(&self.cluster, component, identity.as_str()),
                attempts: self.attempts.clone(),
                metrics: self.metrics.clone(),
                namespace: self.namespace().to_owned(),
                node: node.clone(),
            };
            let (events, gate) = (context.events.clone(), context.gate.clone());
            held.extend(leadership.clone().map(|leadership| (leadership, gate.clone())));
            let config = Arc::clone(&self.config);
            running.spawn(async move {
                // A role rebuilds its state when it starts.
                let run = || run_role(role, context.clone(), Arc::clone(&config));
                restart(role.name(), context.driver.name(), Some(&gate), run).await;
                shut_down(events, gate, leadership).await;
            });
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).roles = Some(leases);
        let stopped = async { while running.join_next().await.is_some() {} };
        tokio::select! {
            biased;
            () = stopped => {}
            () = self.watch_driver(&driver, held) => {}
        }
    }

    /// Gives up the leases while the driver does not answer; never returns.
    async fn watch_driver(&self, driver: &Driver, held: Vec<(Leadership, Gate)>) {
        if let Some(election) = self.config.election.as_ref().filter(|_| !held.is_empty()) {
            let metrics = self.metrics.get_or_register(driver_health::HealthMetrics::register);
            let watch = || driver_health::watch(driver, election.driver_timeout, &held, &metrics);
            restart("driver health", driver.name(), None, watch).await;
        }
        std::future::pending().await
    }
}

async fn run_role(role: Role, context: Context, config: Arc<Config>) {
    match role {
        Role::Provisioner => provisioner::run(context, config.provisioner.clone()).await,
        Role::Attacher => attacher::run(context, config.attacher.clone()).await,
        Role::Resizer => resizer::run(context, config.resizer.clone()).await,
        Role::Snapshotter => snapshotter::run(context, config.snapshotter.clone()).await,
        Role::HealthMonitor => health_monitor::run(context, config.health_monitor.clone()).await,
        // `run_driverless_roles` runs it, independently of the driver.
        Role::SnapshotController => {}
    }
}

/// Flushes a stopped role's events and releases its lease.
async fn shut_down(events: EventRecorder, gate: Gate, leadership: Option<Leadership>) {
    events.flush(FLUSH_TIMEOUT).await;
    match leadership {
        // Aborted calls may still run in the driver. They get the time until the lease expires.
        Some(leadership) if gate.dropped_work() => {
            tracing::warn!("aborted calls to the driver; leaving the lease to expire");
            leadership.set_standing(Standing::Expire);
        }
        Some(leadership) => leadership.release(FLUSH_TIMEOUT).await,
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.2 "Handler choice", 1.3 "Start", 1.6 "Needs".
    #[test]
    fn capabilities_select_roles() {
        let controller = Capabilities { controller_service: true, ..Capabilities::default() };
        for (capabilities, roles) in [
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
            assert_eq!(required_roles(&capabilities), roles.iter().copied().collect(), "{capabilities:?}");
        }
    }

    /// A lease contains whole seconds; see [`written_lease_duration`].
    #[test]
    fn election_durations_are_validated_as_written() {
        for (lease, renew, retry, valid) in [
            (15_000, 10_000, 5_000, true),
            (10_000, 10_000, 5_000, false),
            (15_000, 5_000, 5_000, false),
            // Written as 2 s.
            (1_900, 1_500, 500, true),
            (1_100, 2_000, 500, false),
            (500, 900, 100, true),
            (500, 1_000, 100, false),
        ] {
            let millis = Duration::from_millis;
            let election = Election {
                lease_duration: millis(lease),
                renew_deadline: millis(renew),
                retry_period: millis(retry),
                ..Election::default()
            };
            assert_eq!(election.validate().is_ok(), valid, "{lease} {renew} {retry}");
        }
    }
}
