//! Attaches volumes to the nodes of the pods that use them, and detaches unused volumes; the contract is that of
//! kube-controller-manager's attach/detach controller.
//!
//! - It creates and deletes VolumeAttachments, which the drivers' attachers carry out, and writes
//!   `status.volumesAttached` of nodes. It waits for attachers, nodes and pods by watch.
//! - One worker at a time handles a volume, on all its nodes. A single-node volume is never attached to a second node
//!   while a VolumeAttachment of it is left.
//! - A volume that a Ready node lists in `status.volumesInUse` is not detached. From a node that is not Ready it is
//!   detached after a configurable time, or as soon as an operator taints the node out of service.
//! - What is attached and what is wanted is read from the objects alone, so a restart at any point leaves no dangling
//!   attachment.
//! - It handles CSI volumes only, on nodes that leave attaching to the controller.
//!
//! The defaults differ from upstream where upstream is worse; [`Settings::upstream`] has upstream's behaviour.
//!
//! Start reading at `view`, then `decide`: the rules. `wake` maps changes to work items. `attach_status` and
//! `detach_status` explain to users what a volume waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::indexes::{
    ATTACHMENTS_BY_NODE, ATTACHMENTS_BY_VOLUME, CLAIMS_BY_VOLUME, PODS_BY_CLAIM, PODS_BY_NODE,
    VOLUMES_BY_CLAIM, VOLUMES_BY_HANDLE, handle_key,
};
use wharf_cluster::work::{
    RESYNC_INTERVAL, StepLimit, StepOutcome, Steps, WorkOutcome, WorkerOptions, enqueue_changes, resync,
    run_role,
};
use wharf_cluster::{Backoff, Queue, Store, WatchOptions, monotonic};
use wharf_model::{
    CSIDriver, Key, Node, PersistentVolume, PersistentVolumeClaim, Pod, UniqueVolumeName, VolumeAttachment,
};

use crate::Context;
use decide::{Report, decide};
use state::{AttachStates, cancel_announcements, update_timers};
use view::View;
use wake::WorkItem;

pub use metrics::Metrics;
pub use view::VolumeObjects;
pub use waits::{AttachStatus, BlockingNode, DetachStatus, attach_status, detach_status};

mod act;
mod decide;
mod messages;
mod metrics;
mod orphan;
mod report;
#[cfg(test)]
mod simulate;
mod state;
#[cfg(test)]
mod testing;
mod view;
mod waits;
mod wake;

/// The event source component; upstream's name.
pub const COMPONENT: &str = "attachdetach-controller";

/// The longest backoff after a failed update of a node's status.
const REPORT_RETRY_MAX: Duration = Duration::from_secs(30);
/// A volume takes a few steps for each of its nodes, and each node has its own backoff.
const STEP_LIMIT: StepLimit = StepLimit::Requeue(64);

/// Settings of the attach/detach controller.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of workers; how long an attacher may take before an event is recorded; backoff after failed requests.
    pub worker_options: WorkerOptions,
    /// How long a node that is not Ready may use a volume that no pod wants. Upstream: 6 minutes.
    pub max_wait_for_unmount: Duration,
    /// `max_wait_for_unmount` for single drivers: a driver that fences detached volumes needs no wait.
    pub max_wait_by_driver: BTreeMap<String, Duration>,
    /// Never force a detach after `max_wait_for_unmount` (`--disable-force-detach-on-timeout`).
    pub disable_force_detach_on_timeout: bool,
    /// Read from the API server whether a volume is in use also after `max_wait_for_unmount`. Upstream does not, even
    /// for Ready nodes.
    pub verify_after_timeout: bool,
    /// Honour the out-of-service taint only if the node is not Ready. Upstream detaches what a Ready node with that
    /// taint has mounted.
    pub out_of_service_only_if_not_ready: bool,
    /// Let an attachment block other nodes even if attaching or detaching failed. Upstream attaches to the second
    /// node and relies on the driver to reject it.
    pub uncertain_blocks: bool,
    /// Delete attachments that no attacher has started and whose volume was deleted. Upstream never deletes them.
    pub forget_orphans: bool,
    /// How long the detach of an unused volume from another node may take before a Multi-Attach event is recorded.
    /// Upstream records it at once, at every move.
    pub multi_attach_grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let worker_options = WorkerOptions {
            workers: 100,
            timeout: Duration::from_secs(120),
            retry_start: Duration::from_millis(500),
            retry_max: Duration::from_secs(122),
            resync: RESYNC_INTERVAL,
        };
        Self {
            worker_options,
            max_wait_for_unmount: Duration::from_secs(360),
            max_wait_by_driver: BTreeMap::new(),
            disable_force_detach_on_timeout: false,
            verify_after_timeout: true,
            out_of_service_only_if_not_ready: true,
            uncertain_blocks: true,
            forget_orphans: true,
            multi_attach_grace: Duration::from_secs(30),
        }
    }
}

impl Settings {
    /// The behaviour of Kubernetes 1.34 in every setting.
    pub fn upstream() -> Self {
        Self {
            verify_after_timeout: false,
            out_of_service_only_if_not_ready: false,
            uncertain_blocks: false,
            forget_orphans: false,
            multi_attach_grace: Duration::ZERO,
            ..Self::default()
        }
    }

    fn max_wait(&self, driver: &str) -> Duration {
        self.max_wait_by_driver.get(driver).copied().unwrap_or(self.max_wait_for_unmount)
    }
}

/// Runs until the gate is stopped.
pub async fn run(context: Context, settings: Settings, metrics: Metrics) {
    let controller = Arc::new(AttachDetach::new(context, settings, metrics));
    let workers = controller.settings.worker_options.workers;
    let one = |item| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&item).await }
    };
    let feeds = |extra_nodes: &mut JoinSet<()>| controller.spawn_feeds(extra_nodes);
    run_role(&controller.context.gate, controller.synced(), feeds, &controller.queue, workers, one).await;
}

struct AttachDetach {
    context: Context,
    settings: Settings,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    attachments: Store<VolumeAttachment>,
    nodes: Store<Node>,
    drivers: Store<CSIDriver>,
    queue: Queue<WorkItem>,
    states: AttachStates,
    metrics: Metrics,
}

impl AttachDetach {
    fn new(context: Context, settings: Settings, metrics: Metrics) -> Self {
        let cluster = &context.cluster;
        let pods = cluster.store::<Pod>(WatchOptions::default());
        pods.share_index(&PODS_BY_CLAIM);
        pods.share_index(&PODS_BY_NODE);
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        claims.share_index(&CLAIMS_BY_VOLUME);
        let volumes = cluster.store::<PersistentVolume>(WatchOptions::default());
        volumes.share_index(&VOLUMES_BY_HANDLE);
        volumes.share_index(&VOLUMES_BY_CLAIM);
        let attachments = cluster.store::<VolumeAttachment>(WatchOptions::default());
        attachments.share_index(&ATTACHMENTS_BY_VOLUME);
        attachments.share_index(&ATTACHMENTS_BY_NODE);
        // The queue's backoff is for node status updates. Volumes have one backoff for each node, in `AttachState`.
        let backoff = settings.worker_options.backoff();
        let report_backoff = Backoff { max: backoff.max.min(REPORT_RETRY_MAX), ..backoff };
        Self {
            pods,
            claims,
            volumes,
            attachments,
            nodes: cluster.store(WatchOptions::default()),
            drivers: cluster.store(WatchOptions::default()),
            queue: Queue::new("attach_detach", report_backoff, cluster.metrics()),
            states: AttachStates::default(),
            metrics,
            context,
            settings,
        }
    }

    /// Waits for all stores: without the pods, volumes in use would seem unused.
    async fn synced(&self) {
        self.pods.wait_synced().await;
        self.claims.wait_synced().await;
        self.volumes.wait_synced().await;
        self.attachments.wait_synced().await;
        self.nodes.wait_synced().await;
        self.drivers.wait_synced().await;
    }

    /// Starts the tasks that turn changes into work items.
    fn spawn_feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = Arc::clone(self);
        into.spawn(enqueue_changes(self.pods.clone(), self.queue.clone(), move |change| {
            this.pod_changed(change)
        }));
        let this = Arc::clone(self);
        into.spawn(enqueue_changes(self.claims.clone(), self.queue.clone(), move |change| {
            this.claim_changed(change)
        }));
        let this = Arc::clone(self);
        into.spawn(enqueue_changes(self.volumes.clone(), self.queue.clone(), move |change| {
            this.volume_changed(change)
        }));
        let this = Arc::clone(self);
        let requests = move |change: &_| this.attachment_changed(change);
        into.spawn(enqueue_changes(self.attachments.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        into.spawn(enqueue_changes(self.nodes.clone(), self.queue.clone(), move |change| {
            this.node_changed(change)
        }));
        let this = Arc::clone(self);
        into.spawn(enqueue_changes(self.drivers.clone(), self.queue.clone(), move |change| {
            this.driver_changed(change)
        }));
        let this = Arc::clone(self);
        into.spawn(resync(self.queue.clone(), self.settings.worker_options.resync, move || this.all_items()));
        let this = Arc::clone(self);
        into.spawn(async move {
            loop {
                this.context.gate.wait_open().await;
                this.context.gate.wait_lost().await;
                // Another leader may have acted since: no wait can be counted from before.
                this.states.clear();
            }
        });
    }

    /// What a resync reconciles: every volume that is used or attached, every orphan, and every node.
    fn all_items(&self) -> Vec<WorkItem> {
        let pods = self.pods.all();
        let nodes: BTreeSet<&str> = pods.iter().map(|pod| pod.node_name.as_str()).collect();
        let used = nodes.into_iter().filter(|node| !node.is_empty()).flat_map(|node| self.volumes_on(node));
        let attachments = self.attachments.all();
        let attached = attachments.iter().filter_map(|attachment| self.volume_of_attachment(attachment));
        let volumes: BTreeSet<_> = used.chain(attached).collect();
        let mut items: Vec<_> = volumes.into_iter().map(WorkItem::Volume).collect();
        items.extend(attachments.iter().filter_map(|attachment| self.orphan(attachment)));
        self.states.prune_deleted_nodes(|node| !self.attachments.find(&ATTACHMENTS_BY_NODE, node).is_empty());
        items.extend(self.nodes.all().iter().map(|node| WorkItem::Node(node.metadata.name.clone())));
        items
    }

    /// Reconciles one work item, step by step, until there is nothing to do for it now.
    async fn reconcile(&self, item: &WorkItem) -> WorkOutcome {
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let result = match item {
                WorkItem::Volume(name) => {
                    let mut view = self.view(name, &[]);
                    cancel_announcements(&mut view);
                    // Only the volume's own worker stores the start of waits.
                    self.states.store(&view);
                    let step = decide(&view, monotonic());
                    self.act(&view, step).await
                }
                WorkItem::Node(name) => self.report_attached(name).await,
                WorkItem::Orphan(name) => self.delete_orphan(name).await,
            };
            if let StepOutcome::Finish(outcome) = result {
                return outcome;
            }
        }
        steps.unfinished(item)
    }

    fn view(&self, name: &UniqueVolumeName, extra_nodes: &[&str]) -> View<'_> {
        let volumes = self.volumes.find(&VOLUMES_BY_HANDLE, &handle_key(&name.driver, &name.handle));
        let mut keys = BTreeSet::new();
        let unconfirmed = self.states.unconfirmed_nodes(name);
        let extra_nodes: Vec<&str> =
            extra_nodes.iter().copied().chain(unconfirmed.iter().map(String::as_str)).collect();
        let mut nodes: BTreeSet<String> = extra_nodes.iter().map(|&node| node.to_owned()).collect();
        for volume in &volumes {
            let (spec, name) = (&volume.spec, &volume.metadata.name);
            keys.extend(spec.claim_ref.iter().map(|claim| claim.key()));
            keys.extend(self.claims.find(&CLAIMS_BY_VOLUME, name).iter().map(|claim| claim.metadata.key()));
            let attachments = self.attachments.find(&ATTACHMENTS_BY_VOLUME, name);
            nodes.extend(attachments.iter().map(|attachment| attachment.spec.node_name.clone()));
        }
        let pods: Vec<Arc<Pod>> =
            keys.iter().flat_map(|claim| self.pods.find(&PODS_BY_CLAIM, &claim.to_string())).collect();
        nodes.extend(pods.iter().map(|pod| pod.node_name.clone()).filter(|node| !node.is_empty()));
        let attachment = |node: &String| self.attachments.get(&Key::cluster(name.attachment_name(node)));
        let objects = VolumeObjects {
            claims: keys.iter().filter_map(|key| self.claims.get(key)).collect(),
            attachments: nodes.iter().filter_map(attachment).collect(),
            nodes: nodes.iter().filter_map(|node| self.nodes.get(&Key::cluster(node.as_str()))).collect(),
            driver: self.drivers.get(&Key::cluster(name.driver.as_str())),
            volumes,
            pods,
        };
        let state = |node: &str| self.states.get(name, node);
        let last_in_use = |node: &str| self.states.last_in_use(node);
        let mut view = View::of(&self.settings, name.clone(), &objects, &extra_nodes, state, last_in_use);
        update_timers(&mut view, monotonic());
        view
    }

    /// The reports for all volumes that a node's status lists or that are attached to it.
    fn reports(&self, node: &Node) -> (Vec<View<'_>>, BTreeMap<String, Report>) {
        let name = node.metadata.name.as_str();
        let attachments = self.attachments.find(&ATTACHMENTS_BY_NODE, name);
        let attached = attachments.iter().filter_map(|attachment| self.volume_of_attachment(attachment));
        let listed =
            node.status.volumes_attached.iter().filter_map(|volume| UniqueVolumeName::parse(&volume.name));
        let volumes: BTreeSet<UniqueVolumeName> = attached.chain(listed).collect();
        let views: Vec<View<'_>> = volumes.iter().map(|volume| self.view(volume, &[name])).collect();
        let report = |view: &View<'_>| (view.name.to_string(), decide::report(view, name, monotonic()));
        let reports = views.iter().map(report).collect();
        (views, reports)
    }
}
