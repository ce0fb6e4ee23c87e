//! Attaches and detaches volumes as VolumeAttachments ask; the contract is that of external-attacher.
//!
//! - A volume is worked on by one worker at a time, whatever nodes it is attached to: it never leaves one node
//!   and enters another at once. What failed for one attachment holds up no other.
//! - Attaches do not wait behind a burst of detaches, and neither behind a resync.
//! - Before the driver publishes, finalizers keep volume and attachment. They go when the driver has unpublished,
//!   and the volume's when the server says that no attachment is left.
//! - Where the driver tells what it has published, attachments that say another thing are seen to again.
//! - A driver that does not publish has nothing to do: its attachments are attached as soon as they are there.
//!
//! Start reading at [`view`], then [`decide`]: the rules. [`wake`] says what calls for a look.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use wharf_cluster::{Backoff, Change, Priority, Queue, Store, WatchOptions, now};
use wharf_model::names::{annotation, finalizer};
use wharf_model::{CSINode, Key, PersistentVolume, VolumeAttachment};

use crate::context::Context;
use act::{Hand, Then};
use decide::decide;
use memory::Memories;
use reconcile::Said;
use view::{Rules, Seen, Subject, View};
use wake::{Look, VolumeNews};
use wharf_cluster::work::{Outcome, Pace, Wish, feed, serve};

mod act;
mod decide;
mod memory;
mod patches;
mod reconcile;
mod request;
#[cfg(test)]
pub(crate) mod simulate;
mod trivial;
mod view;
mod wake;

/// For attempts.
const ROLE: &str = "attacher";
/// The index of attachments by what they are about.
const BY_SUBJECT: &str = "attacher/subject";
/// The index of attachments by node.
const BY_NODE: &str = "attacher/node";
/// So long questions for references are gathered, so that one answer does for many.
const BATCH: Duration = Duration::from_millis(200);
/// The longest pause after a write that the server did not take.
const UNWRITTEN: Duration = Duration::from_secs(30);
/// After so many steps a volume lets others have a turn.
const STEPS: usize = 64;
/// Every attachment is looked at this often, whether or not anything called for it.
const RESYNC: Duration = Duration::from_secs(600);

/// What the attacher is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once.
    pub pace: Pace,
    /// The file system where the volume names none.
    pub default_fstype: String,
    /// How often attachments are compared with what the driver lists.
    pub reconcile_interval: Duration,
    /// How many volumes the driver is asked for at once; 0 leaves it to the driver.
    pub max_entries: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pace: Pace::with_timeout(Duration::from_secs(15)),
            default_fstype: String::new(),
            reconcile_interval: Duration::from_secs(60),
            max_entries: 0,
        }
    }
}

/// Runs until the stop.
pub(crate) async fn run(context: Context, settings: Settings) {
    let attacher = Arc::new(Attacher::new(context, settings));
    let workers = attacher.settings.pace.workers;
    let one = |subject| {
        let attacher = Arc::clone(&attacher);
        async move { attacher.see_to(&subject).await }
    };
    let feeds = |besides: &mut JoinSet<()>| attacher.feeds(besides);
    serve(&attacher.context.gate, attacher.synced(), feeds, &attacher.queue, workers, one).await;
}

/// The attacher of one driver.
struct Attacher {
    context: Context,
    settings: Settings,
    rules: Rules,
    backoff: Backoff,
    attachments: Store<VolumeAttachment>,
    volumes: Store<PersistentVolume>,
    nodes: Store<CSINode>,
    queue: Queue<Subject>,
    memories: Memories,
}

impl Attacher {
    fn new(context: Context, settings: Settings) -> Self {
        let rules = Rules {
            driver: context.driver.name().to_owned(),
            finalizer: finalizer::attacher(context.driver.name()),
            can: *context.driver.can(),
            default_fstype: settings.default_fstype.clone(),
            node: context.node.as_ref().map(|node| node.name.clone()),
        };
        let cluster = &context.cluster;
        let attachments = cluster.store::<VolumeAttachment>(WatchOptions::default());
        attachments.index(BY_SUBJECT, |attachment| vec![Subject::of(attachment).index()]);
        attachments.index(BY_NODE, |attachment| vec![attachment.spec.node_name.clone()]);
        // The queue's own pauses are for writes that the server did not take; the driver's failures have theirs
        // in memory, one for each attachment.
        let backoff = settings.pace.backoff();
        let unwritten = Backoff { max: backoff.max.min(UNWRITTEN), ..backoff };
        Self {
            rules,
            backoff,
            attachments,
            volumes: cluster.store(WatchOptions::default()),
            nodes: cluster.store(WatchOptions::default()),
            queue: Queue::new(ROLE, unwritten, cluster.metrics()),
            memories: Memories::default(),
            context,
            settings,
        }
    }

    async fn synced(&self) {
        self.attachments.synced().await;
        self.volumes.synced().await;
        self.nodes.synced().await;
    }

    /// What brings work.
    fn feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.attachment_changed(change);
        into.spawn(feed(self.attachments.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.volume_changed(change);
        into.spawn(feed(self.volumes.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.node_changed(change);
        into.spawn(feed(self.nodes.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        into.spawn(async move { this.resync().await });
        let can = &self.rules.can;
        if can.publish_unpublish_volume && can.list_volumes && can.list_volumes_published_nodes {
            let this = Arc::clone(self);
            into.spawn(async move { this.reconcile().await });
        }
    }

    fn attachment_changed(&self, change: &Change<VolumeAttachment>) -> Vec<Wish<Subject>> {
        let Some(Look { subject, priority, woken }) = wake::by_attachment(change, &self.rules) else {
            return Vec::new();
        };
        if let Some(attachment) = woken {
            self.memories.wake(&subject, &attachment);
        }
        vec![Wish { key: subject, priority }]
    }

    fn volume_changed(&self, change: &Change<PersistentVolume>) -> Vec<Wish<Subject>> {
        let Some(news) = wake::by_volume(change, &self.rules) else { return Vec::new() };
        let subject = Subject::Volume(change.key.name.clone());
        match news {
            VolumeNews::Going => vec![Wish { key: subject, priority: Priority::Low }],
            VolumeNews::Usable => self.wake(self.attachments.by_index(BY_SUBJECT, &subject.index())),
        }
    }

    fn node_changed(&self, change: &Change<CSINode>) -> Vec<Wish<Subject>> {
        match wake::by_node(change, &self.rules) {
            Some(node) => self.wake(self.attachments.by_index(BY_NODE, node)),
            None => Vec::new(),
        }
    }

    /// What attachments waited for may be there: those that still want something are looked at.
    fn wake(&self, attachments: Vec<Arc<VolumeAttachment>>) -> Vec<Wish<Subject>> {
        let wants = |attachment: &&Arc<VolumeAttachment>| {
            let settled = attachment.status.attached && !attachment.metadata.is_deleting();
            self.rules.owns(attachment) && !settled
        };
        let wish = |attachment: &Arc<VolumeAttachment>| {
            let key = Subject::of(attachment);
            self.memories.wake(&key, &attachment.metadata.name);
            Wish { key, priority: wake::priority(attachment) }
        };
        attachments.iter().filter(wants).map(wish).collect()
    }

    /// One volume, step by step, until there is nothing to do for it now.
    async fn see_to(&self, subject: &Subject) -> Outcome {
        if *subject == Subject::References {
            return self.ask_references().await;
        }
        let mut hand = Hand::default();
        for _ in 0..STEPS {
            if !self.context.gate.is_open() {
                break;
            }
            let view = self.look(subject);
            let step = decide(&view, now());
            if let Then::End(outcome) = self.act(subject, &view, step, &mut hand).await {
                return outcome;
            }
        }
        Outcome::After(Duration::ZERO)
    }

    fn look(&self, subject: &Subject) -> View<'_> {
        let all = self.attachments.by_index(BY_SUBJECT, &subject.index());
        let volume = subject.volume().and_then(|name| self.volumes.get(&Key::cluster(name)));
        let (ours, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|attachment| self.rules.owns(attachment));
        let guarded =
            volume.as_ref().is_some_and(|volume| volume.metadata.has_finalizer(&self.rules.finalizer));
        self.memories.keep_unreferenced(subject, guarded);
        let present: BTreeSet<&str> =
            ours.iter().map(|attachment| attachment.metadata.name.as_str()).collect();
        for gone in self.memories.keep(subject, &present) {
            self.context.attempts.forget(ROLE, &gone);
        }
        let seen = |attachment: Arc<VolumeAttachment>| Seen {
            node_id: self.node_id(&attachment),
            memory: self.memories.of(subject, &attachment),
            attachment,
        };
        View {
            rules: &self.rules,
            volume,
            attachments: ours.into_iter().map(seen).collect(),
            elsewhere: !others.is_empty(),
            complete: self.attachments.served(),
            unreferenced: self.memories.unreferenced(subject),
        }
    }

    fn node_id(&self, attachment: &VolumeAttachment) -> Option<String> {
        let node = self.nodes.get(&Key::cluster(attachment.spec.node_name.as_str()))?;
        Some(node.driver(&self.rules.driver)?.node_id.clone())
    }

    /// sidecars.md 1.2 "Requeue filter": everything once in a while, behind all else.
    async fn resync(&self) {
        loop {
            sleep(RESYNC).await;
            for attachment in self.attachments.all().iter().filter(|attachment| self.rules.owns(attachment)) {
                self.queue.add(Subject::of(attachment), Priority::Low);
            }
        }
    }

    /// sidecars.md 1.2 "Reconcile".
    async fn reconcile(&self) {
        if self.settings.reconcile_interval.is_zero() {
            return;
        }
        loop {
            sleep(self.settings.reconcile_interval).await;
            if !self.context.gate.is_open() {
                continue;
            }
            // Taken before the driver is asked: what changes meanwhile is left for the next time.
            let said = self.said();
            if said.is_empty() {
                continue;
            }
            let Settings { pace, max_entries, .. } = &self.settings;
            match reconcile::list(&self.context.driver, pace.timeout, *max_entries).await {
                Ok(published) => self.force(reconcile::differing(&said, &published)),
                Err(status) => {
                    let error = format!("{:?}: {}", status.code(), status.message());
                    tracing::warn!(error, "the driver's volumes cannot be compared with attachments");
                }
            }
        }
    }

    fn said(&self) -> Vec<Said> {
        let said = |attachment: &Arc<VolumeAttachment>| {
            let source = &attachment.spec.source;
            let volume = source.persistent_volume_name.as_ref();
            let handle = match (volume, &source.inline_volume_spec) {
                (Some(name), _) => {
                    self.volumes.get(&Key::cluster(name))?.spec.csi.as_ref()?.volume_handle.clone()
                }
                (None, Some(inline)) => inline.csi.as_ref()?.volume_handle.clone(),
                (None, None) => return None,
            };
            let annotated = || attachment.metadata.annotation(annotation::NODE_ID).map(str::to_owned);
            Some(Said {
                subject: Subject::of(attachment),
                attachment: attachment.metadata.name.clone(),
                version: attachment.metadata.resource_version.clone(),
                handle,
                node_id: self.node_id(attachment).or_else(annotated)?,
                attached: attachment.status.attached,
            })
        };
        self.attachments
            .all()
            .iter()
            .filter(|attachment| self.rules.owns(attachment))
            .filter_map(said)
            .collect()
    }

    fn force(&self, differing: Vec<&Said>) {
        for said in differing {
            let Some(attachment) = self.attachments.get(&Key::cluster(said.attachment.as_str())) else {
                continue;
            };
            if attachment.metadata.resource_version != said.version {
                continue;
            }
            let Said { subject, attachment: name, node_id, attached, .. } = said;
            tracing::warn!(
                attachment = name,
                node = node_id,
                attached,
                "the driver says otherwise: once more"
            );
            self.memories.change(subject, &attachment, |memory| memory.forced = Some(said.version.clone()));
            self.queue.add(subject.clone(), Priority::Normal);
        }
    }
}
