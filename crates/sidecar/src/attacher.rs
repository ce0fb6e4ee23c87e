//! Attaches and detaches volumes for VolumeAttachments, with the contract of external-attacher.
//!
//! - One worker at a time handles a volume, whatever nodes it is attached to, so a volume is never detached from one
//!   node and attached to another concurrently. A failure of one attachment does not delay the others.
//! - Attaches do not wait behind a burst of detaches, nor behind a resync.
//! - Before ControllerPublishVolume, finalizers protect the volume and the attachment. The attachment's finalizer is
//!   removed after ControllerUnpublishVolume, the volume's after the server confirms that no attachment is left.
//! - If the driver lists published volumes, attachments that differ from the list are reconciled again.
//! - If the driver does not publish volumes, attachments are marked as attached at once.
//!
//! Start with [`view`] (inputs), then [`decide`] (rules). [`wake`] determines which changes trigger a reconcile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use wharf_cluster::indexes::ATTACHMENTS_BY_NODE;
use wharf_cluster::{Backoff, Change, Priority, Queue, Store, WatchOptions, monotonic};
use wharf_model::migration::Plugin;
use wharf_model::names::{annotation, finalizer};
use wharf_model::{CSINode, Key, PersistentVolume, VolumeAttachment};

use crate::context::Context;
use crate::migration::warn_of_unserved_volumes;
use act::StepContext;
use decide::decide;
use reconcile::RecordedAttachment;
use state::AttachStates;
use view::{AttacherConfig, AttachmentInputs, Subject, VolumeView};
use wake::{VolumeChange, Wakeup};
use wharf_cluster::work::{
    EnqueueRequest, StepLimit, StepOutcome, Steps, WorkOutcome, WorkerOptions, enqueue_changes,
    reconcile_or_forget, resync, run_role,
};

mod act;
mod decide;
mod patches;
mod reconcile;
mod references;
mod request;
#[cfg(test)]
mod simulation;
mod state;
mod trivial;
mod view;
mod wake;

/// The role's name in `/debug/attempts`.
const ROLE: &str = "attacher";
/// The index of attachments by subject.
const BY_SUBJECT: &str = "attacher/subject";
/// Reference checks are collected for this long, so that one request serves many volumes.
const REFERENCE_CHECK_DELAY: Duration = Duration::from_millis(200);
/// Between two looks whether the store has reached the version that a reference check awaits. Needs no request.
const VERSION_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause after a failed write.
const MAX_WRITE_PAUSE: Duration = Duration::from_secs(30);
/// A volume takes a few steps for each of its attachments, and each attachment has its own backoff.
const STEP_LIMIT: StepLimit = StepLimit::Requeue(64);

/// Settings of the attacher.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Concurrency, timeout and backoff.
    pub worker_options: WorkerOptions,
    /// The file system if the volume names none.
    pub default_fstype: String,
    /// How often attachments are compared with the driver's ListVolumes.
    pub reconcile_interval: Duration,
    /// The page size of ListVolumes. 0 leaves it to the driver.
    pub max_entries: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            worker_options: WorkerOptions::with_timeout(Duration::from_secs(15)),
            default_fstype: String::new(),
            reconcile_interval: Duration::from_secs(60),
            max_entries: 0,
        }
    }
}

/// Runs until the gate stops.
pub(crate) async fn run(context: Context, settings: Settings) {
    let attacher = Arc::new(Attacher::new(context, settings));
    let workers = attacher.settings.worker_options.workers;
    let one = |subject| {
        let attacher = Arc::clone(&attacher);
        async move {
            let forget = || drop(attacher.states.retain(&subject, &BTreeSet::new()));
            reconcile_or_forget(ROLE, &subject, attacher.reconcile_volume(&subject), forget).await
        }
    };
    let feeds = |tasks: &mut JoinSet<()>| attacher.spawn_feeds(tasks);
    run_role(&attacher.context.gate, attacher.synced(), feeds, &attacher.queue, workers, one).await;
}

/// The attacher of one driver.
struct Attacher {
    context: Context,
    settings: Settings,
    config: AttacherConfig,
    backoff: Backoff,
    attachments: Store<VolumeAttachment>,
    volumes: Store<PersistentVolume>,
    nodes: Store<CSINode>,
    queue: Queue<Subject>,
    states: AttachStates,
}

impl Attacher {
    fn new(context: Context, settings: Settings) -> Self {
        let config = AttacherConfig {
            driver: context.driver.name().to_owned(),
            finalizer: finalizer::attacher(context.driver.name()),
            capabilities: *context.driver.capabilities(),
            default_fstype: settings.default_fstype.clone(),
            node: context.node.as_ref().map(|node| node.name.clone()),
        };
        let cluster = &context.cluster;
        let attachments = cluster.store::<VolumeAttachment>(WatchOptions::default());
        attachments.add_index(BY_SUBJECT, |attachment| vec![Subject::of(attachment).index()]);
        attachments.share_index(&ATTACHMENTS_BY_NODE);
        // The queue's backoff is for failed writes. Failures of the driver have a backoff for each attachment, in its
        // state.
        let backoff = settings.worker_options.backoff();
        let unwritten = Backoff { max: backoff.max.min(MAX_WRITE_PAUSE), ..backoff };
        Self {
            config,
            backoff,
            attachments,
            volumes: cluster.store(WatchOptions::default()),
            nodes: cluster.store(WatchOptions::default()),
            queue: Queue::new(ROLE, unwritten, cluster.metrics()),
            states: AttachStates::default(),
            context,
            settings,
        }
    }

    async fn synced(&self) {
        self.attachments.wait_synced().await;
        self.volumes.wait_synced().await;
        self.nodes.wait_synced().await;
        warn_of_unserved_volumes(ROLE, &self.config.driver, &self.volumes);
    }

    /// Starts the tasks that fill the queue.
    fn spawn_feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = Arc::clone(self);
        let items = move |change: &Change<_>| this.attachment_changed(change);
        into.spawn(enqueue_changes(self.attachments.clone(), self.queue.clone(), items));
        let this = Arc::clone(self);
        let items = move |change: &Change<_>| this.volume_changed(change);
        into.spawn(enqueue_changes(self.volumes.clone(), self.queue.clone(), items));
        let this = Arc::clone(self);
        let items = move |change: &Change<_>| this.node_changed(change);
        into.spawn(enqueue_changes(self.nodes.clone(), self.queue.clone(), items));
        let (this, interval) = (Arc::clone(self), self.settings.worker_options.resync);
        into.spawn(resync(self.queue.clone(), interval, move || this.all_subjects()));
        let capabilities = &self.config.capabilities;
        if capabilities.publish_unpublish_volume
            && capabilities.list_volumes
            && capabilities.list_volumes_published_nodes
        {
            let this = Arc::clone(self);
            into.spawn(async move { this.reconcile_with_driver().await });
        }
    }

    fn attachment_changed(&self, change: &Change<VolumeAttachment>) -> Vec<EnqueueRequest<Subject>> {
        let Some(Wakeup { subject, priority, end_backoff_of }) = wake::by_attachment(change, &self.config)
        else {
            return Vec::new();
        };
        if let Some(attachment) = end_backoff_of {
            self.states.wake(&subject, &attachment);
        }
        vec![EnqueueRequest { key: subject, priority }]
    }

    fn volume_changed(&self, change: &Change<PersistentVolume>) -> Vec<EnqueueRequest<Subject>> {
        let Some(change_kind) = wake::by_volume(change, &self.config) else { return Vec::new() };
        let subject = Subject::Volume(change.key.name.clone());
        match change_kind {
            VolumeChange::Deleting => vec![EnqueueRequest { key: subject, priority: Priority::Low }],
            VolumeChange::Usable => self.wake(self.attachments.by_index(BY_SUBJECT, &subject.index())),
        }
    }

    fn node_changed(&self, change: &Change<CSINode>) -> Vec<EnqueueRequest<Subject>> {
        match wake::by_node(change, &self.config) {
            Some(node) => self.wake(self.attachments.find(&ATTACHMENTS_BY_NODE, node)),
            None => Vec::new(),
        }
    }

    /// Enqueues unfinished attachments after something that they may have waited for changed.
    fn wake(&self, attachments: Vec<Arc<VolumeAttachment>>) -> Vec<EnqueueRequest<Subject>> {
        let needs_work = |attachment: &&Arc<VolumeAttachment>| {
            let settled = attachment.status.attached && !attachment.metadata.is_deleting();
            self.config.owns(attachment) && !settled
        };
        let item = |attachment: &Arc<VolumeAttachment>| {
            let key = Subject::of(attachment);
            self.states.wake(&key, &attachment.metadata.name);
            EnqueueRequest { key, priority: wake::priority(attachment) }
        };
        attachments.iter().filter(needs_work).map(item).collect()
    }

    /// Reconciles one volume, step by step, until it has to wait.
    async fn reconcile_volume(&self, subject: &Subject) -> WorkOutcome {
        if *subject == Subject::References {
            return self.check_references().await;
        }
        let mut step_context = StepContext::default();
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let view = self.view(subject);
            let step = decide(&view, monotonic());
            if let StepOutcome::Finish(outcome) = self.act(subject, &view, step, &mut step_context).await {
                return outcome;
            }
        }
        steps.unfinished(subject)
    }

    fn view(&self, subject: &Subject) -> VolumeView<'_> {
        let all = self.attachments.by_index(BY_SUBJECT, &subject.index());
        let volume = subject.volume().and_then(|name| self.volumes.get(&Key::cluster(name)));
        let (ours, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|attachment| self.config.owns(attachment));
        let guarded =
            volume.as_ref().is_some_and(|volume| volume.metadata.has_finalizer(&self.config.finalizer));
        self.states.expire_unreferenced(subject, guarded);
        let present: BTreeSet<&str> =
            ours.iter().map(|attachment| attachment.metadata.name.as_str()).collect();
        for removed in self.states.retain(subject, &present) {
            self.context.attempts.remove(ROLE, &removed);
        }
        let inputs = |attachment: Arc<VolumeAttachment>| AttachmentInputs {
            node_id: self.node_id(&attachment),
            state: self.states.get(subject, &attachment),
            attachment,
        };
        VolumeView {
            config: &self.config,
            volume,
            attachments: ours.into_iter().map(inputs).collect(),
            has_foreign_attachments: !others.is_empty(),
            complete: self.attachments.is_synced(),
            unreferenced: self.states.unreferenced(subject),
        }
    }

    fn node_id(&self, attachment: &VolumeAttachment) -> Option<String> {
        let node = self.nodes.get(&Key::cluster(attachment.spec.node_name.as_str()))?;
        Some(node.driver(&self.config.driver)?.node_id.clone())
    }

    /// sidecars.md 1.2 "Requeue filter": what a resync reconciles: all attachments, and volumes in deletion.
    fn all_subjects(&self) -> Vec<Subject> {
        let (attachments, volumes) = (self.attachments.all(), self.volumes.all());
        let attached = attachments.iter().filter(|attachment| self.config.owns(attachment));
        let deleting = volumes.iter().filter(|volume| {
            volume.metadata.is_deleting() && volume.metadata.has_finalizer(&self.config.finalizer)
        });
        let deleting = deleting.map(|volume| Subject::Volume(volume.metadata.name.clone()));
        attached.map(|attachment| Subject::of(attachment)).chain(deleting).collect()
    }

    /// sidecars.md 1.2 "Reconcile".
    async fn reconcile_with_driver(&self) {
        if self.settings.reconcile_interval.is_zero() {
            return;
        }
        loop {
            sleep(self.settings.reconcile_interval).await;
            if !self.context.gate.is_open() {
                continue;
            }
            // Read before the call: attachments that change during the call are left for the next time.
            let recorded = self.recorded_attachments();
            if recorded.is_empty() {
                continue;
            }
            let Settings { worker_options, max_entries, .. } = &self.settings;
            match reconcile::list(&self.context.driver, worker_options.timeout, *max_entries).await {
                Ok(published) => self.force(reconcile::differing(&recorded, &published)),
                Err(status) => {
                    let error = format!("{:?}: {}", status.code(), status.message());
                    tracing::warn!(error, "failed to list volumes; not comparing them with attachments");
                }
            }
        }
    }

    fn recorded_attachments(&self) -> Vec<RecordedAttachment> {
        let recorded = |attachment: &Arc<VolumeAttachment>| {
            let source = &attachment.spec.source;
            let volume = source.persistent_volume_name.as_ref();
            let annotated = || attachment.metadata.annotation(annotation::NODE_ID).map(str::to_owned);
            let node_id = self.node_id(attachment).or_else(annotated)?;
            let handle = match (volume, &source.inline_volume_spec) {
                (Some(name), _) => {
                    let volume = self.volumes.get(&Key::cluster(name))?;
                    let plugin = volume.spec.migrated.as_ref().map(|migrated| migrated.plugin);
                    reconcile::listed_handle(volume.csi_source()?, plugin, &node_id)?
                }
                // Inline volumes have a VolumeAttachment only if they are migrated.
                (None, Some(inline)) => {
                    let csi = inline.csi.as_ref()?;
                    reconcile::listed_handle(csi, Plugin::replaced_by(&csi.driver), &node_id)?
                }
                (None, None) => return None,
            };
            Some(RecordedAttachment {
                subject: Subject::of(attachment),
                attachment: attachment.metadata.name.clone(),
                version: attachment.metadata.resource_version.clone(),
                handle,
                node_id,
                attached: attachment.status.attached,
            })
        };
        self.attachments
            .all()
            .iter()
            .filter(|attachment| self.config.owns(attachment))
            .filter_map(recorded)
            .collect()
    }

    fn force(&self, differing: Vec<&RecordedAttachment>) {
        for recorded in differing {
            let Some(attachment) = self.attachments.get(&Key::cluster(recorded.attachment.as_str())) else {
                continue;
            };
            if attachment.metadata.resource_version != recorded.version {
                continue;
            }
            let RecordedAttachment { subject, attachment: name, node_id, attached, .. } = recorded;
            tracing::warn!(
                volume_attachment = name,
                node = node_id,
                attached,
                "driver's list differs from VolumeAttachment; calling the driver again"
            );
            self.states.update(subject, &attachment, |state| state.forced = Some(recorded.version.clone()));
            self.queue.add(subject.clone(), Priority::Normal);
        }
    }
}
