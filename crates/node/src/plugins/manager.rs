//! The plugin manager: what brings sockets to its attention, and how they are looked at. Its steps are in `act`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use wharf_cluster::work::{Gate, Outcome, Wish, feed, work};
use wharf_cluster::{Backoff, Change, Cluster, Priority, Queue, Store, WatchOptions};
use wharf_csi::{SocketIdentity, SocketWatch};
use wharf_model::whole::Node;
use wharf_model::{CSIDriver, CSINode, Key};

use super::decide::{Step, decide};
use super::node_info::is_written;
use super::node_info::write::NodeInfo;
use super::view::{Entries, Facts, Rules};
use super::world::{Registration, World};
use super::{Plugins, Settings, sockets};
use crate::machine::{self, Health};

/// The part that [`Health`] knows.
const PART: &str = "CSINode";
/// Sockets worked on at once.
const WORKERS: usize = 64;
/// How often sockets are looked at without any news of them.
const LOOK: Duration = Duration::from_secs(10);
/// The longest pause after the CSINode could not be made.
const UNWRITTEN: Duration = Duration::from_secs(30);

/// What is worked on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    /// The CSINode itself.
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
    drivers: Store<CSIDriver>,
    pub(super) node_info: NodeInfo,
    queue: Queue<Subject>,
    world: Mutex<World>,
    /// The CSINode is there, and is this Node's.
    prepared: AtomicBool,
    started: Instant,
}

pub(super) async fn run(plugins: Plugins, cluster: Cluster, gate: Gate, health: Health, settings: Settings) {
    let manager = Arc::new(Manager::new(plugins, &cluster, health, settings));
    manager.health.trouble(PART, "CSINode is not yet initialized");
    let settled = async {
        manager.nodes.settled().await;
        // A node's own credentials do not allow to watch it: then we know of it what we read and wrote.
        manager.csi_nodes.settled().await;
        manager.drivers.settled().await;
    };
    tokio::select! {
        () = settled => {}
        () = gate.stopped() => return,
    }
    // These end with this function.
    let mut besides = JoinSet::new();
    manager.feeds(&mut besides);
    manager.queue.add(Subject::Node, Priority::High);
    let queue = manager.queue.clone();
    let one = |subject: Subject| {
        let manager = Arc::clone(&manager);
        async move {
            match subject {
                Subject::Node => manager.prepare().await,
                Subject::Socket(path) => manager.see_to(&path).await,
            }
        }
    };
    work(&queue, &gate, WORKERS, one).await;
}

impl Manager {
    fn new(plugins: Plugins, cluster: &Cluster, health: Health, settings: Settings) -> Self {
        let field_selector = Some(format!("metadata.name={}", settings.node));
        let backoff = Backoff { start: settings.retry_start, max: settings.retry_max, ..Backoff::default() };
        let unwritten = Backoff { max: backoff.max.min(UNWRITTEN), ..backoff };
        Self {
            rules: Rules::from(&settings),
            key: Key::cluster(&*settings.node),
            nodes: machine::store(cluster, &settings.node),
            csi_nodes: cluster.store(WatchOptions { field_selector, ..WatchOptions::default() }),
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

    /// What is known. Never held while something waits.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since the start.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// These are to be looked at.
    pub(super) fn add(&self, paths: Vec<PathBuf>) {
        for path in paths {
            self.queue.add(Subject::Socket(path), Priority::Normal);
        }
    }

    /// What brings work.
    fn feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.node_changed(change);
        into.spawn(feed(self.nodes.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.csi_node_changed(change);
        into.spawn(feed(self.csi_nodes.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<CSIDriver>| this.wishes_of(&change.key.name);
        into.spawn(feed(self.drivers.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        into.spawn(async move { this.watch_wishes().await });
        let this = Arc::clone(self);
        into.spawn(async move { this.watch_sockets().await });
    }

    fn node_changed(&self, change: &Change<Node>) -> Vec<Wish<Subject>> {
        let of =
            |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.metadata.clone()).unwrap_or_default();
        let (old, new) = (of(&change.old), of(&change.new));
        let mut wishes = Vec::new();
        if old.uid != new.uid {
            self.prepared.store(false, Ordering::Relaxed);
            wishes.push(wish(Subject::Node));
        }
        // It may have been the Node that something failed for: it was not there, or said otherwise. Annotations are
        // left out: a failure takes ours back, and must not wake itself by that.
        if old.uid != new.uid || old.labels != new.labels {
            let woken = self.world().wake_all();
            wishes.extend(woken.into_iter().map(|path| wish(Subject::Socket(path))));
        }
        if (old.uid, old.labels, old.annotations) != (new.uid, new.labels, new.annotations) {
            wishes.extend(self.wishes_of_all());
        }
        wishes
    }

    fn csi_node_changed(&self, change: &Change<CSINode>) -> Vec<Wish<Subject>> {
        let mut wishes = self.wishes_of_all();
        if change.new.is_none() && self.settings.restore {
            self.prepared.store(false, Ordering::Relaxed);
            wishes.push(wish(Subject::Node));
        }
        wishes
    }

    fn wishes_of_all(&self) -> Vec<Wish<Subject>> {
        self.world().registered().into_iter().map(|(path, _)| wish(Subject::Socket(path))).collect()
    }

    fn wishes_of(&self, driver: &str) -> Vec<Wish<Subject>> {
        let registered = self.world().registered();
        let same = registered.into_iter().filter(|(_, name)| name == driver);
        same.map(|(path, _)| wish(Subject::Socket(path))).collect()
    }

    /// Wishes to ask drivers again.
    async fn watch_wishes(&self) {
        let mut wanted = self.plugins.wanted.subscribe();
        while wanted.changed().await.is_ok() {
            let drivers: BTreeMap<String, u64> = wanted.borrow_and_update().clone();
            for wish in drivers.keys().flat_map(|driver| self.wishes_of(driver)) {
                self.queue.add(wish.key, wish.priority);
            }
        }
    }

    /// Sockets that come and go: plugins' beneath the registry directory, and the drivers' own.
    async fn watch_sockets(&self) {
        let (registry, drivers) = (SocketWatch::new(), SocketWatch::new());
        let mut registered = self.plugins.changed();
        loop {
            match sockets::scan(&self.settings.registry, &registry) {
                Ok(found) => {
                    let changed = self.world().saw(&found, self.now());
                    self.add(changed);
                }
                Err(error) => {
                    let registry = self.settings.registry.display();
                    tracing::warn!(%registry, %error, "nobody knows which plugins are there");
                }
            }
            let endpoints: Vec<_> =
                registered.borrow_and_update().values().map(|plugin| plugin.endpoint.clone()).collect();
            // Watched before it is looked at, so that nothing comes unseen.
            endpoints.iter().filter_map(|endpoint| endpoint.path().parent()).for_each(|at| drivers.add(at));
            let changed = self.world().saw_drivers(|path| SocketIdentity::of(path).ok());
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
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Until it is there, the node is not ready.
    async fn prepare(&self) -> Outcome {
        if self.prepared.swap(true, Ordering::Relaxed) {
            return Outcome::Done;
        }
        match self.node_info.prepare().await {
            Ok(()) => {
                self.health.well(PART);
                Outcome::Done
            }
            Err(error) => {
                self.prepared.store(false, Ordering::Relaxed);
                self.health.trouble(PART, format!("Failed to initialize CSINode: {error}"));
                tracing::warn!(node = self.settings.node, %error, "the CSINode is not there");
                Outcome::Retry
            }
        }
    }

    /// One socket, step by step, until there is nothing to do for it now.
    async fn see_to(&self, path: &Path) -> Outcome {
        loop {
            let view = self.world().view(path, |registration| self.facts(registration));
            let Some(view) = view else { return Outcome::Done };
            let now = self.now();
            self.world().begin(path);
            match decide(&view, self.rules, now) {
                Step::Register | Step::Replace => self.register(path).await,
                Step::Deregister => self.deregister(path).await,
                Step::Forget => self.world().forget(path),
                Step::Tell => self.tell(path).await,
                Step::Ask => self.ask(path).await,
                Step::Write => self.write(path).await,
                Step::Wait(None) => return Outcome::Done,
                Step::Wait(Some(until)) => return Outcome::After(until.saturating_sub(now)),
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
            told: registration.told,
            entries: self.entries(registration),
            driver: registration.driver(),
            asked_at: registration.asked_at,
            period: seconds.map(Duration::from_secs),
            wanted: self.wishes(name) > registration.answered,
        }
    }

    /// How often somebody wished the driver to be asked again.
    pub(super) fn wishes(&self, driver: &str) -> u64 {
        self.plugins.wanted.borrow().get(driver).copied().unwrap_or_default()
    }

    /// What Node and CSINode say of a driver, as far as we see them.
    pub(super) fn entries(&self, registration: &Registration) -> Entries {
        if !registration.written {
            return Entries::Outdated;
        }
        let (Some(node), csi_node) = (self.nodes.get(&self.key), self.csi_nodes.get(&self.key)) else {
            // Without a Node there is nothing to write into.
            return Entries::Right;
        };
        let plugin = &registration.plugin;
        match csi_node {
            Some(csi_node) if is_written(&node, &csi_node, &plugin.name, &plugin.into()) => Entries::Right,
            Some(_) => Entries::Disturbed,
            None if self.csi_nodes.served() => Entries::Disturbed,
            None => Entries::Right,
        }
    }
}

fn wish(key: Subject) -> Wish<Subject> {
    Wish { key, priority: Priority::Normal }
}
