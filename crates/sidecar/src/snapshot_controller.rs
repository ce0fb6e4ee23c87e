//! Binds snapshots to contents, makes and deletes contents as snapshots come and go, and shows in each snapshot what
//! its content says: upstream's snapshot-controller. It works for all drivers and talks to none; what a driver has to
//! do is the snapshotter's, which stands beside it and watches contents.
//!
//! - All state is in the objects, as upstream writes it: a crash between any two writes, or a swap for upstream's
//!   controller, finds everything where it stands.
//! - A snapshot gets its finalizer before anything is made for it, and keeps it until what was made is gone or kept
//!   by its policy. A content is deleted only while its own snapshot is seen going.
//! - Nothing is concluded from an object's absence in a store: the server is asked.
//! - Every wait ends by the change that it waits for. Nothing is looked through again without a reason.
//!
//! The rules are in [`decide`], those for groups in [`groups`]; claims and contents have theirs in [`protect`].

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, timeout};
use wharf_cluster::{ApiError, Queue, Reach, Store, WatchOptions};
use wharf_model::snapshot::names;
use wharf_model::topology::reaches;
use wharf_model::{
    Key, Kind, Meta, Node, PersistentVolume, PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

use crate::context::Ground;
use crate::finalizer::Patching;
use groups::Groups;
use metrics::{Of, Operation, Operations};
use wake::{BY_CLAIM, BY_CLASS, BY_GROUP, BY_HANDLE, BY_SNAPSHOT, IS_DEFAULT, Subject, wish};
use wharf_cluster::work::{Outcome, Pace, feed, work};

mod act;
mod decide;
mod groups;
mod metrics;
mod mirror;
mod protect;
#[cfg(test)]
mod simulate;
mod view;
mod wake;
mod write;

/// In attempts, and as the queue's name.
const ROLE: &str = "snapshot-controller";
/// More steps than that in a row are not progress.
const ROUNDS: usize = 64;
/// Between looks at a kind that the server does not serve.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// For the server to tell of groups, or that it knows none. Single snapshots conclude nothing from a group that is not seen.
const GROUPS: Duration = Duration::from_secs(30);
/// Claims that are protected or let go at once.
const LOCKS: usize = 64;

/// What the snapshot controller is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once.
    pub pace: Pace,
    /// Write down in which mode a snapshot's volume was, so that nobody restores it in another one unasked.
    pub prevent_volume_mode_conversion: bool,
    /// Say of each content which node's snapshotter has to work on it.
    pub distributed: bool,
    /// Work on group snapshots too.
    pub groups: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // No driver is called.
            pace: Pace::with_timeout(Duration::from_secs(60)),
            prevent_volume_mode_conversion: true,
            distributed: false,
            groups: true,
        }
    }
}

/// Runs until the stop.
pub(crate) async fn run(ground: Ground, settings: Settings) {
    let controller = Arc::new(SnapshotController::new(ground, settings));
    let (queue, gate) = (controller.queue.clone(), controller.ground.gate.clone());
    let one = |subject| {
        let controller = Arc::clone(&controller);
        async move { controller.work_on(subject).await }
    };
    let worked = async {
        tokio::select! {
            biased;
            () = controller.served() => work(&queue, &gate, controller.settings.pace.workers, one).await,
            () = gate.stopped() => {}
        }
    };
    tokio::select! {
        biased;
        () = worked => {}
        () = controller.feed() => {}
    }
}

/// Everything that works on snapshots.
struct SnapshotController {
    ground: Ground,
    settings: Settings,
    queue: Queue<Subject>,
    snapshots: Store<VolumeSnapshot>,
    contents: Store<VolumeSnapshotContent>,
    classes: Store<VolumeSnapshotClass>,
    claims: Store<PersistentVolumeClaim>,
    /// `None`: nobody asks for nodes.
    nodes: Option<Store<Node>>,
    /// `None`: not asked for.
    groups: Option<Groups>,
    /// Watched from when the first group has members.
    volumes: OnceLock<Store<PersistentVolume>>,
    operations: Operations,
    /// Of claims.
    patching: Patching,
    locks: [Mutex<()>; LOCKS],
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Look again.
    Again,
    /// Until something changes.
    Done,
    /// After a pause.
    Later,
}

impl SnapshotController {
    fn new(ground: Ground, settings: Settings) -> Self {
        let cluster = &ground.cluster;
        let snapshots = cluster.store::<VolumeSnapshot>(WatchOptions::default());
        snapshots.index(BY_CLAIM, wake::claims_of);
        snapshots.index(BY_CLASS, wake::classes_of);
        snapshots.index(BY_GROUP, wake::groups_of);
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        claims.index(BY_SNAPSHOT, |claim| wake::snapshots_of(claim).iter().map(Key::to_string).collect());
        let classes = cluster.store::<VolumeSnapshotClass>(WatchOptions::default());
        classes.index(IS_DEFAULT, |class| wake::is_default(&class.metadata, names::IS_DEFAULT_CLASS));
        let contents = cluster.store::<VolumeSnapshotContent>(WatchOptions::default());
        contents.index(BY_HANDLE, wake::group_handle_of);
        Self {
            queue: Queue::new(ROLE, settings.pace.backoff(), cluster.metrics()),
            contents,
            nodes: settings.distributed.then(|| cluster.store(WatchOptions::default())),
            groups: settings.groups.then(|| Groups::new(cluster)),
            operations: ground.metrics.family(Operations::register),
            patching: Patching::default(),
            volumes: OnceLock::new(),
            locks: std::array::from_fn(|_| Mutex::new(())),
            snapshots,
            claims,
            classes,
            ground,
            settings,
        }
    }

    /// Waits until everything that snapshots need is known. Groups are not needed: a cluster may have none.
    async fn served(&self) {
        let nodes = async {
            if let Some(nodes) = &self.nodes {
                served(nodes).await;
            }
        };
        let (snapshots, contents) = (served(&self.snapshots), served(&self.contents));
        tokio::join!(snapshots, contents, served(&self.classes), served(&self.claims), nodes);
        if let Some(groups) = &self.groups
            && timeout(GROUPS, groups.settled()).await.is_err()
        {
            tracing::warn!("group snapshots cannot be listed: going on with single ones until they can");
        }
    }

    /// Keeps the queue filled.
    async fn feed(&self) {
        let snapshots = feed(self.snapshots.clone(), self.queue.clone(), |change| {
            if let (Some(gone), None) = (&change.old, &change.new) {
                self.operations.done(Operation::Delete, Of::Snapshot, &gone.metadata.uid, "");
            }
            wake::of_snapshot(change)
        });
        let contents = feed(self.contents.clone(), self.queue.clone(), wake::of_content);
        let claims = feed(self.claims.clone(), self.queue.clone(), |change| {
            let mut wishes = wake::of_claim(change);
            let groups: Vec<_> = wishes.iter().filter_map(|wish| self.group_of(&wish.key)).collect();
            wishes.extend(groups.into_iter().map(|key| wish(Subject::Group(key))));
            // Of any change: labels are not in the view, and few groups wait.
            if let Some(groups) = self.groups.as_ref().filter(|_| change.new.is_some()) {
                wishes.extend(groups.waiting(&change.key).map(|key| wish(Subject::Group(key))));
            }
            if wake::is_bound_now(change) {
                let waiting = self.snapshots.by_index(BY_CLAIM, &change.key.to_string());
                wishes.extend(waiting.iter().map(|snapshot| wish(Subject::Snapshot(snapshot.key()))));
            }
            wishes
        });
        let classes = feed(self.classes.clone(), self.queue.clone(), |change| {
            let Some(class) = &change.new else { return Vec::new() };
            let mut waiting = self.snapshots.by_index(BY_CLASS, &class.metadata.name);
            if class.metadata.annotation(names::IS_DEFAULT_CLASS) == Some("true") {
                waiting.extend(self.snapshots.by_index(BY_CLASS, ""));
            }
            waiting.iter().map(|snapshot| wish(Subject::Snapshot(snapshot.key()))).collect()
        });
        let groups = async {
            match &self.groups {
                Some(groups) => {
                    groups.feed(&self.queue, &self.snapshots, &self.contents, &self.operations).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::join!(snapshots, contents, claims, classes, groups);
    }

    /// The group that waits for a snapshot that is being restored from.
    fn group_of(&self, subject: &Subject) -> Option<Key> {
        let Subject::Snapshot(key) = subject else { return None };
        view::parent(&*self.snapshots.get(key)?).map(|(group, _)| group)
    }

    /// Works on one thing, step by step, until it has to wait.
    async fn work_on(&self, subject: Subject) -> Outcome {
        let worked = match &subject {
            Subject::Snapshot(key) => self.snapshot(key).await,
            Subject::Content(key) => self.content(key).await,
            Subject::Claim(key) => self.claim(key).await,
            Subject::Group(key) => self.group(key).await,
            Subject::GroupContent(key) => self.group_content(key).await,
        };
        match worked {
            Ok(Next::Done) => Outcome::Done,
            // Not even open: whoever has the lease goes on.
            Ok(Next::Again) => Outcome::After(Duration::ZERO),
            Ok(Next::Later) => Outcome::Retry,
            Err(error) => {
                tracing::warn!(?subject, %error, "the API server refuses a step, trying again");
                self.note(&subject, Some(error.to_string()));
                Outcome::Retry
            }
        }
    }

    /// Notes what came of the last attempt, by the object's key.
    fn note(&self, subject: &Subject, error: Option<String>) {
        let (Subject::Snapshot(key)
        | Subject::Content(key)
        | Subject::Claim(key)
        | Subject::Group(key)
        | Subject::GroupContent(key)) = subject;
        let step = match subject {
            Subject::Snapshot(_) => "snapshot",
            Subject::Content(_) => "content",
            Subject::Claim(_) => "claim",
            Subject::Group(_) => "group snapshot",
            Subject::GroupContent(_) => "group's content",
        };
        self.ground.attempts.note(ROLE, &format!("{step} {key}"), step, error);
    }

    /// Whoever holds this looks at a claim and changes its finalizer as if nobody else did.
    async fn lock(&self, claim: &Key) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(claim);
        self.locks[hash as usize % LOCKS].lock().await
    }

    /// The first node from which all of the volumes can be reached; `None` if there is none.
    fn node(&self, volumes: &[&PersistentVolume]) -> Option<String> {
        let reached = |node: &Node| {
            let Meta { name, labels, .. } = &node.metadata;
            let labels = labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            volumes.iter().all(|volume| reaches(volume.spec.node_affinity.as_ref(), name, &labels))
        };
        let nodes = self.nodes.as_ref()?.all();
        nodes.iter().find(|node| reached(node)).map(|node| node.metadata.name.clone())
    }

    /// All volumes, by their handles.
    async fn volumes(&self) -> &Store<PersistentVolume> {
        let volumes = self.volumes.get_or_init(|| {
            let volumes = self.ground.cluster.store::<PersistentVolume>(WatchOptions::default());
            volumes.index(wake::BY_HANDLE, wake::handles_of);
            volumes
        });
        volumes.synced().await;
        volumes
    }

    /// Reads an object that was not as it was seen. The error stands if it still is.
    async fn reread<K: Kind>(&self, seen: &K, error: ApiError) -> Result<(), ApiError> {
        match error {
            ApiError::NotFound(_) | ApiError::Conflict(_) | ApiError::Invalid(_) => {}
            error => return Err(error),
        }
        let same = |now: &K| now.meta().resource_version == seen.meta().resource_version;
        match self.ground.cluster.get::<K>(&seen.key()).await? {
            Some(now) if same(&now) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Whether a volume says from which nodes it can be reached.
fn is_placed(volume: &PersistentVolume) -> bool {
    volume.spec.node_affinity.as_ref().is_some_and(|affinity| affinity.required.is_some())
}

/// Waits until a kind is known. Upstream's controller ends if its kinds are not there in time; this one waits.
async fn served<K: Kind>(store: &Store<K>) {
    let mut told = false;
    while !store.served() {
        if !told && matches!(store.reach(), Reach::NotServed | Reach::Forbidden) {
            told = true;
            tracing::warn!(
                kind = K::API.plural,
                "waiting for this kind: make it known by `wharf install crds`, and let us list and watch it"
            );
        }
        sleep(LOOK_AGAIN).await;
    }
}
