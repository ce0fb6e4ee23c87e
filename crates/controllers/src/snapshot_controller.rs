//! The snapshot controller: binds VolumeSnapshots to contents, creates and deletes contents for them, and copies
//! each content's status to its snapshot. Replaces upstream's snapshot-controller. It serves all drivers and calls
//! none; the snapshotter next to each driver watches the contents and calls it.
//!
//! - All state is in the objects, in upstream's format. After a crash between any two writes, or after a switch
//!   from or to upstream's controller, work continues where it stopped.
//! - A snapshot gets its finalizer before anything is created for it, and keeps it until that is deleted, or
//!   retained by policy. A content is deleted only while its own snapshot is observed in deletion.
//! - An object missing from the cache proves nothing: the API server is queried.
//! - Every wait ends with the change it waits for, or with the next resync.
//!
//! Rules: [`decide`] for snapshots, [`groups`] for group snapshots, [`protect`] for the finalizers of claims and
//! contents.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, timeout};
use wharf_cluster::finalizer::FinalizerPatcher;
use wharf_cluster::indexes::VOLUMES_BY_HANDLE;
use wharf_cluster::{ApiError, Attempts, Queue, Store, SyncState, WatchOptions};
use wharf_model::snapshot::names;
use wharf_model::topology::is_accessible_from;
use wharf_model::{
    Key, Kind, Meta, Node, PersistentVolume, PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

use crate::Context;
use created::CreatedContents;
use groups::{Groups, RemovedGroups};
use metrics::{ObjectKind, Operation};
use wake::{BY_CLAIM, BY_CLASS, BY_GROUP, BY_HANDLE, BY_SNAPSHOT, IS_DEFAULT, WorkKey, enqueue_request};
use wharf_cluster::work::{StepLimit, WorkOutcome, WorkerOptions, enqueue_changes, resync, run_workers};

mod act;
mod created;
mod decide;
mod groups;
mod metrics;
mod mirror;
mod protect;
#[cfg(test)]
mod simulate;
mod status;
#[cfg(test)]
mod tests;
mod view;
mod wake;
mod write;

pub use groups::content_key as group_content_key;
pub use metrics::Metrics;
pub use status::{DeletionStatus, deletion_status};
pub use view::is_parent_group;

/// Role name in `/debug/attempts` and name of the queue.
const ROLE: &str = "snapshot-controller";
/// A snapshot takes about ten steps.
const STEP_LIMIT: StepLimit = StepLimit::BackOff(64);
/// How often to check whether a kind is served.
const SERVED_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait until it is known whether the server has group snapshots. Single snapshots conclude nothing
/// from a group that is not in the cache.
const GROUPS_WAIT: Duration = Duration::from_secs(30);
/// Number of locks that serialize changes of claim finalizers.
const CLAIM_LOCKS: usize = 64;

/// Settings of the snapshot controller.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of workers, timeout and backoff.
    pub worker_options: WorkerOptions,
    /// Record the volume mode of the source volume, so that it is not restored in another mode by accident.
    pub prevent_volume_mode_conversion: bool,
    /// Label each content with the node whose snapshotter has to handle it.
    pub distributed: bool,
    /// Handle group snapshots, too.
    pub groups: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // The timeout is unused: no driver is called.
            worker_options: WorkerOptions::with_timeout(Duration::from_secs(60)),
            prevent_volume_mode_conversion: true,
            distributed: false,
            groups: true,
        }
    }
}

/// Runs the controller until it is stopped.
pub async fn run(context: Context, settings: Settings, metrics: Metrics, attempts: Attempts) {
    let controller = Arc::new(SnapshotController::new(context, settings, metrics, attempts));
    let (queue, gate) = (controller.queue.clone(), controller.context.gate.clone());
    let reconcile = |item| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(item).await }
    };
    let worked = async {
        tokio::select! {
            biased;
            () = controller.wait_until_served() => run_workers(&queue, &gate, controller.settings.worker_options.workers, reconcile).await,
            () = gate.wait_stopped() => {}
        }
    };
    let follow_lease = async {
        loop {
            gate.wait_open().await;
            gate.wait_lost().await;
            controller.created.clear();
        }
    };
    tokio::select! {
        biased;
        () = worked => {}
        () = controller.feed() => {}
        () = follow_lease => {}
    }
}

/// The controller's stores, queue and locks.
struct SnapshotController {
    context: Context,
    settings: Settings,
    metrics: Metrics,
    attempts: Attempts,
    queue: Queue<WorkKey>,
    snapshots: Store<VolumeSnapshot>,
    contents: Store<VolumeSnapshotContent>,
    classes: Store<VolumeSnapshotClass>,
    claims: Store<PersistentVolumeClaim>,
    /// `None` unless contents are labelled with nodes.
    nodes: Option<Store<Node>>,
    /// `None` if group snapshots are disabled.
    groups: Option<Groups>,
    removed_groups: RemovedGroups,
    /// Watched once the first group has members.
    volumes: OnceLock<Store<PersistentVolume>>,
    /// Finalizer patches of claims.
    patching: FinalizerPatcher,
    locks: [Mutex<()>; CLAIM_LOCKS],
    created: CreatedContents,
}

impl SnapshotController {
    fn new(context: Context, settings: Settings, metrics: Metrics, attempts: Attempts) -> Self {
        let cluster = &context.cluster;
        let snapshots = cluster.store::<VolumeSnapshot>(WatchOptions::default());
        snapshots.add_index(BY_CLAIM, wake::claim_index);
        snapshots.add_index(BY_CLASS, wake::class_index);
        snapshots.add_index(BY_GROUP, wake::group_index);
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        claims.add_index(BY_SNAPSHOT, |claim| claim.restore_sources().iter().map(Key::to_string).collect());
        let classes = cluster.store::<VolumeSnapshotClass>(WatchOptions::default());
        classes.add_index(IS_DEFAULT, |class| class.is_default().then(String::new).into_iter().collect());
        let contents = cluster.store::<VolumeSnapshotContent>(WatchOptions::default());
        contents.add_index(BY_HANDLE, wake::member_group_handle_index);
        Self {
            queue: Queue::new(ROLE, settings.worker_options.backoff(), cluster.metrics()),
            contents,
            nodes: settings.distributed.then(|| cluster.store(WatchOptions::slim())),
            groups: settings.groups.then(|| Groups::new(cluster)),
            removed_groups: RemovedGroups::default(),
            patching: FinalizerPatcher::default(),
            volumes: OnceLock::new(),
            locks: std::array::from_fn(|_| Mutex::new(())),
            created: CreatedContents::default(),
            snapshots,
            claims,
            classes,
            context,
            settings,
            metrics,
            attempts,
        }
    }

    /// Waits until all required kinds are listed. Group snapshots are optional.
    async fn wait_until_served(&self) {
        let nodes = async {
            if let Some(nodes) = &self.nodes {
                wait_until_served(nodes).await;
            }
        };
        let (snapshots, contents) = (wait_until_served(&self.snapshots), wait_until_served(&self.contents));
        tokio::join!(
            snapshots,
            contents,
            wait_until_served(&self.classes),
            wait_until_served(&self.claims),
            nodes
        );
        if let Some(groups) = &self.groups
            && timeout(GROUPS_WAIT, groups.settled()).await.is_err()
        {
            tracing::warn!(
                "failed to list group snapshots; handling single snapshots until they can be listed"
            );
        }
    }

    /// Enqueues work for changes of all watched kinds.
    async fn feed(&self) {
        let snapshots = enqueue_changes(self.snapshots.clone(), self.queue.clone(), |change| {
            if let (Some(deleted), None) = (&change.old, &change.new) {
                self.metrics.finish(Operation::Delete, ObjectKind::Snapshot, &deleted.metadata.uid, "");
            }
            wake::on_snapshot(change)
        });
        let contents = enqueue_changes(self.contents.clone(), self.queue.clone(), wake::on_content);
        let claims = enqueue_changes(self.claims.clone(), self.queue.clone(), |change| {
            let mut requests = wake::on_claim(change);
            let groups: Vec<_> = requests.iter().filter_map(|wish| self.parent_group_of(&wish.key)).collect();
            requests.extend(groups.into_iter().map(|key| enqueue_request(WorkKey::Group(key))));
            // For any change: labels are not part of the model, and few groups wait.
            if let Some(groups) = self.groups.as_ref().filter(|_| change.new.is_some()) {
                requests.extend(
                    groups.waiting_for_claim(&change.key).map(|key| enqueue_request(WorkKey::Group(key))),
                );
            }
            if wake::became_bound(change) {
                let waiting = self.snapshots.by_index(BY_CLAIM, &change.key.to_string());
                requests.extend(
                    waiting.iter().map(|snapshot| enqueue_request(WorkKey::Snapshot(snapshot.key()))),
                );
            }
            requests
        });
        let classes = enqueue_changes(self.classes.clone(), self.queue.clone(), |change| {
            let Some(class) = &change.new else { return Vec::new() };
            let mut waiting = self.snapshots.by_index(BY_CLASS, &class.metadata.name);
            if class.is_default() {
                waiting.extend(self.snapshots.by_index(BY_CLASS, ""));
            }
            waiting.iter().map(|snapshot| enqueue_request(WorkKey::Snapshot(snapshot.key()))).collect()
        });
        let groups = async {
            match &self.groups {
                Some(groups) => {
                    groups.feed(&self.queue, &self.snapshots, &self.contents, &self.metrics).await;
                }
                None => std::future::pending().await,
            }
        };
        let interval = self.settings.worker_options.resync;
        let resync = resync(self.queue.clone(), interval, || self.all_keys());
        tokio::join!(snapshots, contents, claims, classes, groups, resync);
    }

    /// What a resync reconciles: everything except claims without our finalizer.
    fn all_keys(&self) -> Vec<WorkKey> {
        let claims = self.claims.all();
        let protected = claims.iter().filter(|claim| claim.metadata.has_finalizer(names::CLAIM_PROTECTION));
        let mut keys: Vec<_> = protected.map(|claim| WorkKey::Claim(claim.key())).collect();
        keys.extend(self.contents.all().iter().map(|content| WorkKey::Content(content.key())));
        keys.extend(self.snapshots.all().iter().map(|snapshot| WorkKey::Snapshot(snapshot.key())));
        keys.extend(self.groups.iter().flat_map(Groups::all_keys));
        keys
    }

    /// The group of a snapshot, which may have waited for a restore from that snapshot to end.
    fn parent_group_of(&self, item: &WorkKey) -> Option<Key> {
        let WorkKey::Snapshot(key) = item else { return None };
        self.snapshots.get(key)?.parent_group().map(|(group, _)| group)
    }

    /// Handles one object step by step until it has to wait.
    async fn reconcile(&self, item: WorkKey) -> WorkOutcome {
        let worked = match &item {
            WorkKey::Snapshot(key) => self.reconcile_snapshot(key).await,
            WorkKey::Content(key) => self.reconcile_content(key).await,
            WorkKey::Claim(key) => self.reconcile_claim(key).await,
            WorkKey::Group(key) => self.reconcile_group(key).await,
            WorkKey::GroupContent(key) => self.reconcile_group_content(key).await,
        };
        match worked {
            Ok(outcome) => outcome,
            // The object was deleted. The store has that by the next attempt.
            Err(ApiError::NotFound(_)) => WorkOutcome::Retry,
            Err(error) => {
                tracing::warn!(key = ?item, %error, "failed to reconcile object; retrying");
                self.record_attempt(&item, Some(error.to_string()));
                WorkOutcome::Retry
            }
        }
    }

    /// Records the result of the last attempt under the object's key.
    fn record_attempt(&self, item: &WorkKey, error: Option<String>) {
        let (step, key) = attempt_of(item);
        self.attempts.record(ROLE, &format!("{step} {key}"), step, error);
    }

    /// Removes the attempt of an object that no longer exists.
    fn remove_attempt(&self, item: &WorkKey) {
        let (step, key) = attempt_of(item);
        self.attempts.remove(ROLE, &format!("{step} {key}"));
    }

    /// Serializes decisions about a claim's finalizer with the write that follows.
    async fn lock_claim(&self, claim: &Key) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(claim);
        self.locks[hash as usize % CLAIM_LOCKS].lock().await
    }

    /// The first node that can reach all of the volumes, if any.
    fn node_reaching(&self, volumes: &[&PersistentVolume]) -> Option<String> {
        let reached = |node: &Node| {
            let Meta { name, labels, .. } = &node.metadata;
            let labels = labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            volumes.iter().all(|volume| is_accessible_from(volume.spec.node_affinity.as_ref(), name, &labels))
        };
        let nodes = self.nodes.as_ref()?.all();
        nodes.iter().find(|node| reached(node)).map(|node| node.metadata.name.clone())
    }

    /// All PersistentVolumes, indexed by volume handle.
    async fn volume_store(&self) -> &Store<PersistentVolume> {
        let volumes = self.volumes.get_or_init(|| {
            let volumes = self.context.cluster.store::<PersistentVolume>(WatchOptions::default());
            volumes.share_index(&VOLUMES_BY_HANDLE);
            volumes
        });
        volumes.wait_synced().await;
        volumes
    }
}

/// The step of an attempt, and the key of its object.
fn attempt_of(item: &WorkKey) -> (&'static str, &Key) {
    match item {
        WorkKey::Snapshot(key) => ("snapshot", key),
        WorkKey::Content(key) => ("content", key),
        WorkKey::Claim(key) => ("claim", key),
        WorkKey::Group(key) => ("group snapshot", key),
        WorkKey::GroupContent(key) => ("group's content", key),
    }
}

/// Whether the volume is reachable from certain nodes only.
fn has_node_affinity(volume: &PersistentVolume) -> bool {
    volume.spec.node_affinity.as_ref().is_some_and(|affinity| affinity.required.is_some())
}

/// Waits until a kind is served. Upstream's controller exits if its CRDs are not installed in time; this one waits.
async fn wait_until_served<K: Kind>(store: &Store<K>) {
    let mut warned = false;
    while !store.is_synced() {
        if !warned && matches!(store.sync_state(), SyncState::NotServed | SyncState::Forbidden) {
            warned = true;
            tracing::warn!(
                kind = K::API.plural,
                "waiting for kind: it is not served or access is denied; run `wharf install crds` and grant list and watch"
            );
        }
        sleep(SERVED_POLL_INTERVAL).await;
    }
}
