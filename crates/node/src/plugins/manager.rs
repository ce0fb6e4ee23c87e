//! The plugin manager's control loop: what enqueues sockets, and how one is reconciled. Its steps are in `act`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use wharf_cluster::work::{EnqueueRequest, Gate, WorkOutcome, enqueue_changes, run_role};
use wharf_cluster::{Backoff, Change, Cluster, Priority, Queue, Store, WatchOptions};
use wharf_csi::{SocketIdentity, SocketWatch};
use wharf_model::Node;
use wharf_model::panics::catch;
use wharf_model::{CSIDriver, CSINode, Key};

use super::decide::{Step, decide};
use super::node_info::is_written;
use super::node_info::write::NodeInfo;
use super::view::{Entries, Facts, Rules};
use super::world::{Registration, World};
use super::{Plugins, Settings, sockets};
use crate::machine::{self, Health};

/// The component name in [`Health`].
const COMPONENT: &str = "CSINode";
/// Sockets reconciled concurrently.
const WORKERS: usize = 64;
/// Interval of full rescans, in addition to inotify events.
const RESCAN: Duration = Duration::from_secs(10);
/// Maximum retry delay after the CSINode could not be created.
const MAX_CSI_NODE_RETRY: Duration = Duration::from_secs(30);

/// A key in the work queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    /// The CSINode object.
    Node,
    /// A registration socket.
    Socket(PathBuf),
}

pub(super) struct Manager {
    pub(super) plugins: Plugins,
    pub(super) settings: Settings,
    rules: Rules,
    pub(super) backoff: Backoff,
    health: Health,
    key: Key,
    nodes: Store<Node>,
    csi_nodes: Store<CSINode>,
    privileged_client: Option<Cluster>,
    drivers: Store<CSIDriver>,
    pub(super) node_info: NodeInfo,
    queue: Queue<Subject>,
    world: Mutex<World>,
    /// The CSINode exists and is owned by this Node.
    prepared: AtomicBool,
    started: Instant,
}

pub(super) async fn run(
    plugins: Plugins,
    cluster: Cluster,
    privileged_client: Option<Cluster>,
    gate: Gate,
    health: Health,
    settings: Settings,
) {
    let manager = Arc::new(Manager::new(plugins, &cluster, privileged_client, health, settings));
    manager.health.report_problem(COMPONENT, "CSINode is not yet initialized");
    let settled = async {
        manager.nodes.wait_settled().await;
        // Node credentials do not allow watching the CSINode: then the store holds what we read and wrote.
        manager.csi_nodes.wait_settled().await;
        manager.drivers.wait_settled().await;
    };
    let feeds = |tasks: &mut JoinSet<()>| {
        manager.start_watches(tasks);
        manager.queue.add(Subject::Node, Priority::High);
    };
    let queue = manager.queue.clone();
    let one = |subject: Subject| {
        let manager = Arc::clone(&manager);
        async move {
            match subject {
                Subject::Node => manager.prepare().await,
                Subject::Socket(path) => manager.reconcile(&path).await,
            }
        }
    };
    run_role(&gate, settled, feeds, &queue, WORKERS, one).await;
}

impl Manager {
    fn new(
        plugins: Plugins,
        cluster: &Cluster,
        privileged_client: Option<Cluster>,
        health: Health,
        settings: Settings,
    ) -> Self {
        let field_selector = Some(format!("metadata.name={}", settings.node));
        let backoff = Backoff { start: settings.retry_start, max: settings.retry_max, ..Backoff::default() };
        let unwritten = Backoff { max: backoff.max.min(MAX_CSI_NODE_RETRY), ..backoff };
        Self {
            rules: Rules::from(&settings),
            key: Key::cluster(&*settings.node),
            nodes: machine::store(cluster, &settings.node),
            csi_nodes: privileged_client
                .as_ref()
                .unwrap_or(cluster)
                .store(WatchOptions { field_selector, ..WatchOptions::default() }),
            privileged_client,
            drivers: cluster.store(WatchOptions::default()),
            node_info: NodeInfo::new(cluster.clone(), &settings.node, settings.migrated.clone()),
            queue: Queue::new("plugins", unwritten, cluster.metrics()),
            world: Mutex::default(),
            prepared: AtomicBool::new(false),
            started: Instant::now(),
            plugins,
            settings,
            backoff,
            health,
        }
    }

    /// The state of all sockets. Never held across an await.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the start.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Enqueues sockets.
    pub(super) fn add(&self, paths: Vec<PathBuf>) {
        for path in paths {
            self.queue.add(Subject::Socket(path), Priority::Normal);
        }
    }

    /// Starts the tasks that enqueue work.
    fn start_watches(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.node_changed(change);
        into.spawn(enqueue_changes(self.nodes.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.csi_node_changed(change);
        into.spawn(enqueue_changes(self.csi_nodes.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        let requests = move |change: &Change<CSIDriver>| this.requests_for(&change.key.name);
        into.spawn(enqueue_changes(self.drivers.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        into.spawn(async move { this.watch_refresh_requests().await });
        let this = Arc::clone(self);
        into.spawn(async move { this.watch_sockets().await });
    }

    fn node_changed(&self, change: &Change<Node>) -> Vec<EnqueueRequest<Subject>> {
        let of =
            |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.metadata.clone()).unwrap_or_default();
        let (old, new) = (of(&change.old), of(&change.new));
        let mut requests = Vec::new();
        if old.uid != new.uid {
            self.prepared.store(false, Ordering::Relaxed);
            requests.push(enqueue_request(Subject::Node));
        }
        // The failure may have been caused by the Node: it did not exist, or a label differed. Annotations are ignored:
        // a failure reverts ours and must not wake itself by that.
        if old.uid != new.uid || old.labels != new.labels {
            let woken = self.world().wake_all();
            requests.extend(woken.into_iter().map(|path| enqueue_request(Subject::Socket(path))));
        }
        if (old.uid, old.labels, old.annotations) != (new.uid, new.labels, new.annotations) {
            requests.extend(self.requests_for_all());
        }
        requests
    }

    fn csi_node_changed(&self, change: &Change<CSINode>) -> Vec<EnqueueRequest<Subject>> {
        let mut requests = self.requests_for_all();
        if change.new.is_none() && self.settings.restore_entries {
            self.prepared.store(false, Ordering::Relaxed);
            requests.push(enqueue_request(Subject::Node));
        }
        requests
    }

    fn requests_for_all(&self) -> Vec<EnqueueRequest<Subject>> {
        self.world()
            .registered()
            .into_iter()
            .map(|(path, _)| enqueue_request(Subject::Socket(path)))
            .collect()
    }

    fn requests_for(&self, driver: &str) -> Vec<EnqueueRequest<Subject>> {
        let registered = self.world().registered();
        let same = registered.into_iter().filter(|(_, name)| name == driver);
        same.map(|(path, _)| enqueue_request(Subject::Socket(path))).collect()
    }

    /// Enqueues drivers for which a refresh was requested.
    async fn watch_refresh_requests(&self) {
        let mut requests = self.plugins.refresh_requests.subscribe();
        while requests.changed().await.is_ok() {
            let drivers: BTreeMap<String, u64> = requests.borrow_and_update().clone();
            for request in drivers.keys().flat_map(|driver| self.requests_for(driver)) {
                self.queue.add(request.key, request.priority);
            }
        }
    }

    /// Watches sockets: registration sockets beneath the registry directory, and the drivers' own.
    async fn watch_sockets(&self) {
        let (registry, drivers) = (SocketWatch::new(), SocketWatch::new());
        let mut registered = self.plugins.subscribe();
        loop {
            match sockets::scan(&self.settings.registry, &registry) {
                Ok(found) => {
                    let changed = self.world().observe(&found, self.now());
                    self.add(changed);
                }
                Err(error) => {
                    let registry = self.settings.registry.display();
                    tracing::warn!(path = %registry, %error, "failed to scan plugin registry directory");
                }
            }
            let endpoints: Vec<_> =
                registered.borrow_and_update().values().map(|plugin| plugin.endpoint.clone()).collect();
            // Watched before it is read, so that no change is missed.
            endpoints.iter().filter_map(|endpoint| endpoint.path().parent()).for_each(|at| drivers.add(at));
            let changed = self.world().observe_drivers(|path| SocketIdentity::of_path(path).ok());
            self.add(changed);
            let names: Vec<OsString> = endpoints
                .iter()
                .filter_map(|endpoint| Some(endpoint.path().file_name()?.to_owned()))
                .collect();
            tokio::select! {
                biased;
                () = registry.changed(|name| !name.as_encoded_bytes().starts_with(b".")) => {}
                () = drivers.changed(|name| names.iter().any(|known| known == name)) => {}
                Ok(()) = registered.changed() => {}
                () = sleep(RESCAN) => {}
            }
        }
    }

    /// Creates the CSINode. Until it exists, the node is not ready.
    async fn prepare(&self) -> WorkOutcome {
        if self.prepared.swap(true, Ordering::Relaxed) {
            return WorkOutcome::Done;
        }
        // A panic must not leave the CSINode marked as prepared.
        let prepared = catch("plugins", &self.settings.node, self.node_info.prepare()).await;
        match prepared
            .map_err(|panic| panic.to_string())
            .and_then(|done| done.map_err(|error| error.to_string()))
        {
            Ok(()) => {
                self.health.clear_problem(COMPONENT);
                WorkOutcome::Done
            }
            Err(error) => {
                self.prepared.store(false, Ordering::Relaxed);
                self.health.report_problem(COMPONENT, format!("Failed to initialize CSINode: {error}"));
                tracing::warn!(node = self.settings.node, %error, "failed to initialize CSINode");
                WorkOutcome::Retry
            }
        }
    }

    /// Reconciles one socket, step by step, until nothing is left to do now.
    async fn reconcile(&self, path: &Path) -> WorkOutcome {
        loop {
            let view = self.world().view(path, |registration| self.facts(registration));
            let Some(view) = view else { return WorkOutcome::Done };
            let now = self.now();
            self.world().begin(path);
            match decide(&view, self.rules, now) {
                Step::Register | Step::Replace => self.register(path).await,
                Step::Deregister => self.deregister(path).await,
                Step::DropState => self.world().drop_record(path),
                Step::Notify => self.notify(path).await,
                Step::Query => self.query(path).await,
                Step::Write => self.write(path).await,
                Step::Wait(None) => return WorkOutcome::Done,
                Step::Wait(Some(until)) => return WorkOutcome::RetryAfter(until.saturating_sub(now)),
            }
        }
    }

    fn facts(&self, registration: &Registration) -> Facts {
        let name = &registration.plugin.name;
        let seconds = self
            .drivers
            .get(&Key::cluster(&**name))
            .and_then(|driver| driver.spec.node_allocatable_update_period_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0 && self.settings.refresh_limits);
        Facts {
            notified: registration.notified,
            entries: self.entries(registration),
            driver: registration.driver(),
            queried_at: registration.queried_at,
            period: seconds.map(Duration::from_secs),
            refresh_requested: self.refresh_requests(name) > registration.refreshes_served,
        }
    }

    /// Reads the CSINode into the store: it was written with other credentials than those that watch it.
    pub(super) async fn refresh_csi_node(&self) {
        if let Some(privileged_client) = &self.privileged_client
            && let Err(error) = privileged_client.get::<CSINode>(&self.key).await
        {
            tracing::debug!(%error, "failed to read CSINode; waiting for the watch");
        }
    }

    /// Number of refresh requests for the driver.
    pub(super) fn refresh_requests(&self, driver: &str) -> u64 {
        self.plugins.refresh_requests.borrow().get(driver).copied().unwrap_or_default()
    }

    /// State of a driver's entries in Node and CSINode, from the stores.
    pub(super) fn entries(&self, registration: &Registration) -> Entries {
        if !registration.written {
            return Entries::Outdated;
        }
        let (Some(node), csi_node) = (self.nodes.get(&self.key), self.csi_nodes.get(&self.key)) else {
            // Without a Node there is nothing to write to.
            return Entries::Current;
        };
        let plugin = &registration.plugin;
        match csi_node {
            Some(csi_node) if is_written(&node, &csi_node, &plugin.name, &plugin.into()) => Entries::Current,
            Some(_) => Entries::Modified,
            None if self.csi_nodes.is_synced() => Entries::Modified,
            None => Entries::Current,
        }
    }
}

fn enqueue_request(key: Subject) -> EnqueueRequest<Subject> {
    EnqueueRequest { key, priority: Priority::Normal }
}
