//! Creates, polls and deletes CSI snapshots and group snapshots for VolumeSnapshotContent and
//! VolumeGroupSnapshotContent objects. Implements the contract of csi-snapshotter.
//!
//! - One worker at a time handles a content. Before CreateSnapshot is called, the content carries the being-created
//!   annotation and our finalizer, so that after any crash it is known what may have to be deleted.
//! - A content that is deleted while its snapshot is being created is first completed and then deleted, so that
//!   nothing is left behind in the driver. If the driver does not answer conclusively for long enough
//!   ([`Doubt`](crate::doubt::Doubt)), what may exist is recorded as a suspect, and the deletion goes on.
//! - A snapshot that is not ready yet is polled with its own interval, from 1 s to `--retry-interval-max`.
//! - In a cluster without the snapshot CRDs the role waits and starts when they appear.
//! - With one sidecar per node, it handles the contents labelled with its own node, and labels those without a label
//!   that are its own ([`ownership`]).
//!
//! Start reading at [`view`], then [`decide`] for the rules. [`wake`] decides which changes enqueue a content.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use wharf_cluster::indexes::{VOLUMES_BY_HANDLE, handle_key};
use wharf_cluster::{Backoff, Change, Queue, Store, WatchOptions, monotonic};
use wharf_model::names::VolumeNaming;
use wharf_model::snapshot::names::MANAGED_BY;
use wharf_model::{
    Key, Kind, PersistentVolume, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

use crate::context::Context;
use act::{ReconcilePass, StepRunner};
use decide::decide;
use state::ContentStates;
use view::{Class, ContentKind, Object, Rules, View};
use wake::ContentChange;
use wharf_cluster::work::{
    EnqueueRequest, StepLimit, StepOutcome, Steps, WorkOutcome, WorkerOptions, enqueue_changes,
    reconcile_or_forget, resync, run_role,
};

mod act;
mod call;
mod decide;
mod ownership;
mod patches;
mod request;
#[cfg(test)]
mod simulation;
mod state;
mod view;
mod wake;

/// Role name in `/debug/attempts`.
const ROLE: &str = "snapshotter";
/// Index of unfinished contents by class name.
const BY_CLASS: &str = "snapshotter/class";
/// Longest backoff after the API server rejected a write.
const WRITE_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How often to check whether the snapshot CRDs are served. Reads our own store, which polls the server.
const SERVED_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A content takes about ten steps.
const STEP_LIMIT: StepLimit = StepLimit::BackOff(64);

/// Settings of the snapshotter role.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of workers, timeout and backoff.
    pub worker_options: WorkerOptions,
    /// Naming scheme of snapshots.
    pub naming: VolumeNaming,
    /// Naming scheme of group snapshots.
    pub group_naming: VolumeNaming,
    /// Pass the names of the VolumeSnapshot and its content to CreateSnapshot.
    pub extra_create_metadata: bool,
    /// Handle group snapshots if the driver supports them.
    pub groups: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let naming = |prefix: &str| VolumeNaming { prefix: prefix.to_owned(), uuid_length: None };
        Self {
            worker_options: WorkerOptions::with_timeout(Duration::from_secs(60)),
            naming: naming("snapshot"),
            group_naming: naming("groupsnapshot"),
            extra_create_metadata: false,
            groups: true,
        }
    }
}

/// Identifies a content. Only one worker handles a given content at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ContentKey {
    kind: ContentKind,
    name: String,
}

/// Runs the role until it is stopped.
pub(crate) async fn run(context: Context, settings: Settings) {
    if !context.driver.capabilities().create_delete_snapshot {
        let driver = context.driver.name();
        tracing::error!(
            driver,
            "driver does not support CREATE_DELETE_SNAPSHOT; disable the snapshotter role"
        );
        context.gate.wait_stopped().await;
        return;
    }
    let gate = context.gate.clone();
    let contents = Contents::new(&context);
    tokio::select! {
        biased;
        () = wait_until_served(&contents.owned) => {}
        () = gate.wait_stopped() => return,
    }
    let snapshotter = Arc::new(Snapshotter::new(context, settings, contents));
    let feeds = |tasks: &mut JoinSet<()>| {
        snapshotter.spawn_feeds(tasks);
        let this = Arc::clone(&snapshotter);
        tasks.spawn(async move { this.follow_lease().await });
    };
    let queue = snapshotter.queue.clone();
    let workers = snapshotter.settings.worker_options.workers;
    let reconcile = |content_key| {
        let snapshotter = Arc::clone(&snapshotter);
        async move {
            let forget = || snapshotter.states.remove(&content_key);
            reconcile_or_forget(ROLE, &content_key, snapshotter.reconcile(&content_key), forget).await
        }
    };
    run_role(&gate, std::future::ready(()), feeds, &queue, workers, reconcile).await;
}

/// Waits until a kind is served. The store has already logged that it is not.
async fn wait_until_served<K: Kind>(store: &Store<K>) {
    while !store.is_synced() {
        sleep(SERVED_POLL_INTERVAL).await;
    }
}

/// The snapshotter of one driver.
struct Snapshotter {
    context: Context,
    settings: Settings,
    rules: Rules,
    backoff: Backoff,
    contents: Contents,
    classes: Store<VolumeSnapshotClass>,
    /// `None`: the driver does not support group snapshots.
    groups: Option<Groups>,
    /// Only with one sidecar per node: tells on which node a volume is.
    volumes: Option<Store<PersistentVolume>>,
    queue: Queue<ContentKey>,
    states: ContentStates,
}

/// The contents of single snapshots.
struct Contents {
    /// All contents; with one sidecar per node, those labelled with this node.
    owned: Store<VolumeSnapshotContent>,
    /// Only with one sidecar per node: those without a label. Contents of other nodes are not watched.
    unlabelled: Option<Store<VolumeSnapshotContent>>,
}

impl Contents {
    fn new(context: &Context) -> Self {
        let store = |label_selector| {
            let options = WatchOptions { label_selector, ..WatchOptions::default() };
            let contents = context.cluster.store::<VolumeSnapshotContent>(options);
            contents.add_index(BY_CLASS, |content| {
                let ready = content.status.as_ref().and_then(|status| status.ready_to_use);
                let class = content.spec.volume_snapshot_class_name.as_ref();
                wake::waits_for_class(&content.metadata, ContentKind::Snapshot, ready, class)
            });
            contents
        };
        match &context.node {
            None => Self { owned: store(None), unlabelled: None },
            Some(node) => Self {
                owned: store(Some(format!("{MANAGED_BY}={}", node.name))),
                unlabelled: Some(store(Some(format!("!{MANAGED_BY}")))),
            },
        }
    }

    fn stores(&self) -> impl Iterator<Item = &Store<VolumeSnapshotContent>> {
        [&self.owned].into_iter().chain(&self.unlabelled)
    }

    fn get(&self, key: &Key) -> Option<Arc<VolumeSnapshotContent>> {
        self.stores().find_map(|store| store.get(key))
    }

    fn all(&self) -> impl Iterator<Item = Arc<VolumeSnapshotContent>> {
        self.stores().flat_map(Store::all)
    }

    fn waiting_for_class(&self, class: &str) -> impl Iterator<Item = Arc<VolumeSnapshotContent>> {
        self.stores().flat_map(move |store| store.by_index(BY_CLASS, class))
    }
}

/// Stores for group snapshots.
struct Groups {
    contents: Store<VolumeGroupSnapshotContent>,
    classes: Store<VolumeGroupSnapshotClass>,
}

impl Groups {
    fn new(context: &Context) -> Self {
        let cluster = &context.cluster;
        let contents = cluster.store::<VolumeGroupSnapshotContent>(WatchOptions::default());
        contents.add_index(BY_CLASS, |content| {
            let ready = content.status.as_ref().and_then(|status| status.ready_to_use);
            let class = content.spec.volume_group_snapshot_class_name.as_ref();
            wake::waits_for_class(&content.metadata, ContentKind::Group, ready, class)
        });
        Self { contents, classes: cluster.store(WatchOptions::default()) }
    }
}

impl Snapshotter {
    fn new(context: Context, settings: Settings, contents: Contents) -> Self {
        let rules = Rules {
            driver: context.driver.name().to_owned(),
            capabilities: *context.driver.capabilities(),
            naming: settings.naming.clone(),
            group_naming: settings.group_naming.clone(),
            extra_create_metadata: settings.extra_create_metadata,
            poll_interval_max: settings.worker_options.retry_max,
            node: context.node.as_ref().map(|node| node.name.clone()),
        };
        let volumes = context.node.as_ref().map(|_| {
            let volumes = context.cluster.store::<PersistentVolume>(WatchOptions::default());
            volumes.share_index(&VOLUMES_BY_HANDLE);
            volumes
        });
        let groups = (settings.groups && rules.capabilities.group_snapshot).then(|| Groups::new(&context));
        // The queue's backoff is for rejected writes. Driver failures have their own backoff in the content state.
        let backoff = settings.worker_options.backoff();
        let write_backoff = Backoff { max: backoff.max.min(WRITE_BACKOFF_MAX), ..backoff };
        Self {
            rules,
            backoff,
            contents,
            classes: context.cluster.store(WatchOptions::default()),
            groups,
            volumes,
            queue: Queue::new(ROLE, write_backoff, context.cluster.metrics()),
            states: ContentStates::default(),
            context,
            settings,
        }
    }

    /// Conclusions from our own calls hold only while no other replica calls the driver.
    async fn follow_lease(&self) {
        loop {
            self.context.gate.wait_open().await;
            self.context.gate.wait_lost().await;
            self.states.lease_lost();
        }
    }

    /// Spawns the watches that enqueue contents.
    fn spawn_feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        for contents in self.contents.stores() {
            self.feed(into, contents.clone(), |this, change: &Change<VolumeSnapshotContent>| {
                this.content_changed(ContentKind::Snapshot, &change.key, &change.into())
            });
        }
        self.feed(into, self.classes.clone(), |this, change: &Change<VolumeSnapshotClass>| {
            this.wake(this.contents.waiting_for_class(&change.key.name).map(Object::Snapshot))
        });
        let (this, interval) = (Arc::clone(self), self.settings.worker_options.resync);
        into.spawn(resync(self.queue.clone(), interval, move || this.unsettled_contents()));
        let Some(groups) = &self.groups else { return };
        self.feed(into, groups.contents.clone(), |this, change: &Change<VolumeGroupSnapshotContent>| {
            this.content_changed(ContentKind::Group, &change.key, &change.into())
        });
        self.feed(into, groups.classes.clone(), |this, change: &Change<VolumeGroupSnapshotClass>| {
            let Some(groups) = &this.groups else { return Vec::new() };
            let waiting = groups.contents.by_index(BY_CLASS, &change.key.name);
            this.wake(waiting.into_iter().map(Object::Group))
        });
    }

    /// What a resync reconciles: the driver's contents that need work.
    fn unsettled_contents(&self) -> Vec<ContentKey> {
        let groups = self.groups.iter().flat_map(|groups| groups.contents.all()).map(Object::Group);
        let objects = self.contents.all().map(Object::Snapshot).chain(groups);
        let unsettled = objects.filter(|object| object.driver() == self.rules.driver && !object.is_settled());
        unsettled.map(|object| ContentKey { kind: object.kind(), name: object.meta().name.clone() }).collect()
    }

    fn feed<K: Kind>(
        self: &Arc<Self>,
        into: &mut JoinSet<()>,
        store: Store<K>,
        wishes: impl Fn(&Self, &Change<K>) -> Vec<EnqueueRequest<ContentKey>> + Send + Sync + 'static,
    ) {
        let this = Arc::clone(self);
        into.spawn(enqueue_changes(store, self.queue.clone(), move |change: &Change<K>| {
            wishes(&this, change)
        }));
    }

    fn content_changed(
        &self,
        kind: ContentKind,
        key: &Key,
        change: &ContentChange,
    ) -> Vec<EnqueueRequest<ContentKey>> {
        let Some(priority) = wake::priority_for_change(change, &self.rules.driver) else { return Vec::new() };
        let content_key = ContentKey { kind, name: key.name.clone() };
        self.states.reset_backoff(&content_key);
        vec![EnqueueRequest { key: content_key, priority }]
    }

    /// Enqueues contents after an object that they waited for changed.
    fn wake(&self, waiting: impl Iterator<Item = Object>) -> Vec<EnqueueRequest<ContentKey>> {
        let ours = waiting.filter(|object| object.driver() == self.rules.driver);
        let wish = |object: Object| {
            let content_key = ContentKey { kind: object.kind(), name: object.meta().name.clone() };
            self.states.reset_backoff(&content_key);
            EnqueueRequest { key: content_key, priority: wake::priority(&object) }
        };
        ours.map(wish).collect()
    }

    /// Handles one content step by step until nothing is left to do for now.
    async fn reconcile(&self, content_key: &ContentKey) -> WorkOutcome {
        let mut pass = ReconcilePass::default();
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let Some(object) = self.object(content_key) else {
                self.states.remove(content_key);
                self.context.attempts.remove(ROLE, &content_key.name);
                return WorkOutcome::Done;
            };
            let step = self.next(content_key, &object, pass.confirmed);
            let runner = StepRunner { snapshotter: self, content_key, object: &object };
            if let StepOutcome::Finish(outcome) = runner.act(step, &mut pass).await {
                if outcome == WorkOutcome::Done && object.is_settled() {
                    self.states.remove(content_key);
                }
                return outcome;
            }
        }
        steps.unfinished(content_key)
    }

    fn object(&self, content_key: &ContentKey) -> Option<Object> {
        let key = Key::cluster(content_key.name.as_str());
        match content_key.kind {
            ContentKind::Snapshot => self.contents.get(&key).map(Object::Snapshot),
            ContentKind::Group => self.groups.as_ref()?.contents.get(&key).map(Object::Group),
        }
    }

    fn next(&self, content_key: &ContentKey, object: &Object, confirmed: bool) -> decide::Step {
        let state = self.states.get(content_key, &object.meta().uid);
        let listed = self.volumes.as_ref().is_some_and(Store::is_synced);
        let (node, is_local) = (self.rules.node.as_deref(), |handle: &str| self.is_local(handle));
        let ownership = ownership::ownership(object, node, listed, is_local, state.found);
        let view = |class: Class<'_>| {
            let (rules, state) = (&self.rules, &state);
            decide(&View { rules, object, class, ownership, state, confirmed }, monotonic())
        };
        let Some(name) = object.class() else { return view(Class::None) };
        let key = Key::cluster(name);
        match (content_key.kind, &self.groups) {
            (ContentKind::Group, Some(Groups { classes, .. })) => match classes.get(&key) {
                Some(class) => view(Class::Found { driver: &class.driver, parameters: &class.parameters }),
                None => view(missing_class(classes, name)),
            },
            (ContentKind::Snapshot, _) | (ContentKind::Group, None) => match self.classes.get(&key) {
                Some(class) => view(Class::Found { driver: &class.driver, parameters: &class.parameters }),
                None => view(missing_class(&self.classes, name)),
            },
        }
    }

    /// Whether a volume is on this node; `None` if no PersistentVolume has this handle.
    fn is_local(&self, handle: &str) -> Option<bool> {
        let found = self.volumes.as_ref()?.find(&VOLUMES_BY_HANDLE, &handle_key(&self.rules.driver, handle));
        let (volume, node) = (found.first()?, self.context.node.as_ref()?);
        // A volume without affinity may be on any node.
        let is_known = node.topology.is_empty() || volume.csi_spec().node_affinity.is_some();
        is_known.then(|| node.owns(volume))
    }
}

/// For a class that is not in the store: not found if the store is complete.
fn missing_class<'a, K: Kind>(classes: &Store<K>, name: &'a str) -> Class<'a> {
    if classes.is_synced() { Class::NotFound(name) } else { Class::NotListed }
}
