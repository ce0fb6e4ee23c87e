//! Takes, looks at and deletes snapshots, alone and in groups, as their contents ask; the contract is that of
//! csi-snapshotter.
//!
//! - A content is worked on by one worker at a time. Before the driver is asked to make a snapshot the content says
//!   so and has our finalizer: whatever happens, somebody can find out what there is to delete.
//! - What goes while it is being made is made, and then deleted: nothing is left in the driver.
//! - "Not ready yet" is asked again at its own pace, from a second to a quarter of a minute.
//! - In a cluster without the kinds of snapshots it waits, and begins when they appear.
//! - Where each node has a sidecar of its own, it works on the contents that say that they are this node's.
//!
//! Start reading at [`view`], then [`decide`]: the rules. [`wake`] says what calls for a look.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use wharf_cluster::{Backoff, Change, Queue, Store, WatchOptions, now};
use wharf_model::names::VolumeNaming;
use wharf_model::snapshot::names::MANAGED_BY;
use wharf_model::{
    Key, Kind, PersistentVolume, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshotClass,
    VolumeSnapshotContent,
};

use crate::context::Context;
use act::{Hand, One, Then};
use decide::decide;
use memory::Memories;
use view::{Class, Object, Rules, View, Which};
use wake::News;
use wharf_cluster::work::{Outcome, Pace, Wish, feed, work};

mod act;
mod call;
mod decide;
mod groups;
mod memory;
mod request;
#[cfg(test)]
mod simulation;
mod status;
mod view;
mod wake;

/// For attempts.
const ROLE: &str = "snapshotter";
/// The index of contents that wait, by their class.
const BY_CLASS: &str = "snapshotter/class";
/// The index of volumes by driver and handle.
const BY_HANDLE: &str = "snapshotter/handle";
/// The longest pause after a write that the server did not take.
const UNWRITTEN: Duration = Duration::from_secs(30);
/// Between looks whether the kinds of snapshots have appeared: at our own store, which asks the server.
const APPEAR: Duration = Duration::from_secs(1);
/// After so many steps a content lets others have a turn.
const STEPS: usize = 32;

/// What the snapshotter is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once.
    pub pace: Pace,
    /// How snapshots are named.
    pub naming: VolumeNaming,
    /// How groups of snapshots are named.
    pub group_naming: VolumeNaming,
    /// Tell the driver the names of snapshot and content when a snapshot is taken.
    pub extra_create_metadata: bool,
    /// See to groups, if the driver can.
    pub groups: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let naming = |prefix: &str| VolumeNaming { prefix: prefix.to_owned(), uuid_length: None };
        Self {
            pace: Pace::with_timeout(Duration::from_secs(60)),
            naming: naming("snapshot"),
            group_naming: naming("groupsnapshot"),
            extra_create_metadata: false,
            groups: true,
        }
    }
}

/// A content: what is worked on at once by one worker only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Subject {
    which: Which,
    name: String,
}

/// Runs until the stop.
pub(crate) async fn run(context: Context, settings: Settings) {
    if !context.driver.can().create_delete_snapshot {
        let driver = context.driver.name();
        tracing::error!(driver, "the driver cannot take snapshots: leave the snapshotter out");
        context.gate.stopped().await;
        return;
    }
    let gate = context.gate.clone();
    let label_selector = context.node.as_ref().map(|node| format!("{MANAGED_BY}={}", node.name));
    let options = WatchOptions { label_selector, ..WatchOptions::default() };
    let contents = context.cluster.store::<VolumeSnapshotContent>(options);
    tokio::select! {
        biased;
        () = served(&contents) => {}
        () = gate.stopped() => return,
    }
    let snapshotter = Arc::new(Snapshotter::new(context, settings, contents));
    // These end with this function.
    let mut besides = JoinSet::new();
    snapshotter.feeds(&mut besides);
    let this = Arc::clone(&snapshotter);
    besides.spawn(async move { this.unsettle().await });
    let queue = snapshotter.queue.clone();
    let workers = snapshotter.settings.pace.workers;
    let one = |subject| {
        let snapshotter = Arc::clone(&snapshotter);
        async move { snapshotter.see_to(&subject).await }
    };
    work(&queue, &gate, workers, one).await;
}

/// Waits until a kind is served. That it is not, the store itself has said once.
async fn served<K: Kind>(store: &Store<K>) {
    while !store.served() {
        sleep(APPEAR).await;
    }
}

/// The snapshotter of one driver.
struct Snapshotter {
    context: Context,
    settings: Settings,
    rules: Rules,
    backoff: Backoff,
    contents: Store<VolumeSnapshotContent>,
    classes: Store<VolumeSnapshotClass>,
    /// `None`: the driver has no groups.
    groups: Option<Groups>,
    queue: Queue<Subject>,
    memories: Memories,
}

/// What is needed for groups.
struct Groups {
    contents: Store<VolumeGroupSnapshotContent>,
    classes: Store<VolumeGroupSnapshotClass>,
    /// Where nodes have sidecars of their own: to see on which of them a group is.
    volumes: Option<Store<PersistentVolume>>,
}

impl Groups {
    fn new(context: &Context) -> Self {
        let cluster = &context.cluster;
        let contents = cluster.store::<VolumeGroupSnapshotContent>(WatchOptions::default());
        contents.index(BY_CLASS, |content| {
            let ready = content.status.as_ref().and_then(|status| status.ready_to_use);
            let class = content.spec.volume_group_snapshot_class_name.as_ref();
            wake::waits_for_class(&content.metadata, Which::Group, ready, class)
        });
        let volumes = context.node.as_ref().map(|_| {
            let volumes = cluster.store::<PersistentVolume>(WatchOptions::default());
            volumes.index(BY_HANDLE, |volume| {
                let csi = volume.spec.csi.as_ref();
                csi.map(|csi| by_handle(&csi.driver, &csi.volume_handle)).into_iter().collect()
            });
            volumes
        });
        Self { contents, classes: cluster.store(WatchOptions::default()), volumes }
    }
}

fn by_handle(driver: &str, handle: &str) -> String {
    format!("{driver}/{handle}")
}

impl Snapshotter {
    fn new(context: Context, settings: Settings, contents: Store<VolumeSnapshotContent>) -> Self {
        let rules = Rules {
            driver: context.driver.name().to_owned(),
            can: *context.driver.can(),
            naming: settings.naming.clone(),
            group_naming: settings.group_naming.clone(),
            extra_create_metadata: settings.extra_create_metadata,
            node: context.node.as_ref().map(|node| node.name.clone()),
        };
        contents.index(BY_CLASS, |content| {
            let ready = content.status.as_ref().and_then(|status| status.ready_to_use);
            let class = content.spec.volume_snapshot_class_name.as_ref();
            wake::waits_for_class(&content.metadata, Which::Snapshot, ready, class)
        });
        let groups = (settings.groups && rules.can.group_snapshot).then(|| Groups::new(&context));
        // The queue's own pauses are for writes that the server did not take; the driver's failures have theirs in
        // memory.
        let backoff = settings.pace.backoff();
        let unwritten = Backoff { max: backoff.max.min(UNWRITTEN), ..backoff };
        Self {
            rules,
            backoff,
            contents,
            classes: context.cluster.store(WatchOptions::default()),
            groups,
            queue: Queue::new(ROLE, unwritten, context.cluster.metrics()),
            memories: Memories::default(),
            context,
            settings,
        }
    }

    /// What is known of calls holds only while nobody else makes any.
    async fn unsettle(&self) {
        loop {
            self.context.gate.opened().await;
            self.context.gate.lost().await;
            self.memories.unsettle();
        }
    }

    /// What brings work.
    fn feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        self.feed(into, self.contents.clone(), |this, change: &Change<VolumeSnapshotContent>| {
            this.content_changed(Which::Snapshot, &change.key, &change.into())
        });
        self.feed(into, self.classes.clone(), |this, change: &Change<VolumeSnapshotClass>| {
            let waiting = this.contents.by_index(BY_CLASS, &change.key.name);
            this.wake(waiting.into_iter().map(Object::Snapshot))
        });
        let Some(groups) = &self.groups else { return };
        self.feed(into, groups.contents.clone(), |this, change: &Change<VolumeGroupSnapshotContent>| {
            this.content_changed(Which::Group, &change.key, &change.into())
        });
        self.feed(into, groups.classes.clone(), |this, change: &Change<VolumeGroupSnapshotClass>| {
            let Some(groups) = &this.groups else { return Vec::new() };
            let waiting = groups.contents.by_index(BY_CLASS, &change.key.name);
            this.wake(waiting.into_iter().map(Object::Group))
        });
    }

    fn feed<K: Kind>(
        self: &Arc<Self>,
        into: &mut JoinSet<()>,
        store: Store<K>,
        wishes: impl Fn(&Self, &Change<K>) -> Vec<Wish<Subject>> + Send + Sync + 'static,
    ) {
        let this = Arc::clone(self);
        into.spawn(feed(store, self.queue.clone(), move |change: &Change<K>| wishes(&this, change)));
    }

    fn content_changed(&self, which: Which, key: &Key, news: &News) -> Vec<Wish<Subject>> {
        let Some(priority) = wake::by_content(news, &self.rules.driver) else { return Vec::new() };
        let subject = Subject { which, name: key.name.clone() };
        self.memories.wake(&subject);
        vec![Wish { key: subject, priority }]
    }

    /// What contents waited for may be there.
    fn wake(&self, waiting: impl Iterator<Item = Object>) -> Vec<Wish<Subject>> {
        let ours = waiting.filter(|object| object.driver() == self.rules.driver);
        let wish = |object: Object| {
            let subject = Subject { which: object.which(), name: object.meta().name.clone() };
            self.memories.wake(&subject);
            Wish { key: subject, priority: wake::priority(&object) }
        };
        ours.map(wish).collect()
    }

    /// One content, step by step, until there is nothing to do for it now.
    async fn see_to(&self, subject: &Subject) -> Outcome {
        let mut hand = Hand::default();
        for _ in 0..STEPS {
            if !self.context.gate.is_open() {
                break;
            }
            let Some(object) = self.object(subject) else {
                self.memories.forget(subject);
                self.context.attempts.forget(ROLE, &subject.name);
                return Outcome::Done;
            };
            let step = self.next(subject, &object, hand.confirmed);
            let one = One { snapshotter: self, subject, object: &object };
            if let Then::End(outcome) = one.act(step, &mut hand).await {
                if outcome == Outcome::Done && object.is_settled() {
                    self.memories.forget(subject);
                }
                return outcome;
            }
        }
        Outcome::After(Duration::ZERO)
    }

    fn object(&self, subject: &Subject) -> Option<Object> {
        let key = Key::cluster(subject.name.as_str());
        match subject.which {
            Which::Snapshot => self.contents.get(&key).map(Object::Snapshot),
            Which::Group => self.groups.as_ref()?.contents.get(&key).map(Object::Group),
        }
    }

    fn next(&self, subject: &Subject, object: &Object, confirmed: bool) -> decide::Step {
        let memory = self.memories.of(subject, &object.meta().uid);
        let volumes = self.groups.as_ref().and_then(|groups| groups.volumes.as_ref());
        let listed = volumes.is_some_and(Store::served);
        let place = groups::place(object, self.rules.node.as_deref(), listed, |handle| self.is_here(handle));
        let view = |class: Class<'_>| {
            let (rules, memory) = (&self.rules, &memory);
            decide(&View { rules, object, class, place, memory, confirmed }, now())
        };
        let Some(name) = object.class() else { return view(Class::None) };
        let key = Key::cluster(name);
        match (subject.which, &self.groups) {
            (Which::Group, Some(Groups { classes, .. })) => match classes.get(&key) {
                Some(class) => view(Class::Found { driver: &class.driver, parameters: &class.parameters }),
                None => view(absent(classes, name)),
            },
            (Which::Snapshot, _) | (Which::Group, None) => match self.classes.get(&key) {
                Some(class) => view(Class::Found { driver: &class.driver, parameters: &class.parameters }),
                None => view(absent(&self.classes, name)),
            },
        }
    }

    /// Whether a volume is on this node; `None` if nobody knows it.
    fn is_here(&self, handle: &str) -> Option<bool> {
        let volumes = self.groups.as_ref()?.volumes.as_ref()?;
        let volume = volumes.first_by_index(BY_HANDLE, &by_handle(&self.rules.driver, handle))?;
        Some(self.context.node.as_ref()?.has(&volume))
    }
}

/// A class that is not in the store: gone, if the store has all of them.
fn absent<'a, K: Kind>(classes: &Store<K>, name: &'a str) -> Class<'a> {
    if classes.served() { Class::Gone(name) } else { Class::Unknown }
}
