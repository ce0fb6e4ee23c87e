//! Attaches volumes to the nodes whose pods want them, and detaches what nobody wants; the contract is that of
//! kube-controller-manager's attach/detach controller.
//!
//! - It asks by VolumeAttachments, which drivers' attachers see to, and tells nodes what is attached. It waits by
//!   watch: for attachers, for nodes, for pods.
//! - A volume is worked on by one worker at a time, whatever nodes it is on. A volume for one node is never asked for
//!   on a second while an attachment of it is left.
//! - What a node that is well says it uses is not detached, for as long as it says so. Of a node that is not well it
//!   is, after a time that is a setting, or as soon as an operator says that nothing runs there.
//! - It keeps nothing to itself: what is attached and what is wanted is read from the objects, so a restart in the
//!   midst of anything leaves nothing dangling.
//! - Only CSI volumes, and only nodes that say that they leave attaching to a controller.
//!
//! Where upstream is worse, ours is the default and upstream's a setting: [`Settings::upstream`].
//!
//! Start reading at [`view`], then [`decide`]: the rules. [`wake`] says what calls for a look. [`waits_for`] tells
//! people what an attachment waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use wharf_cluster::work::{Outcome, Pace, feed, serve};
use wharf_cluster::{Backoff, Priority, Queue, Store, WatchOptions, now};
use wharf_model::whole::{Node, Pod};
use wharf_model::{CSIDriver, Key, PersistentVolume, PersistentVolumeClaim, VolumeAttachment, VolumeName};

use crate::Context;
use act::Then;
use decide::{Report, decide};
use memory::{Memories, note, take_back};
use view::View;
use wake::Subject;

pub use metrics::Metrics;
pub use view::Known;
pub use waits::{Blocker, Leaving, Waits, leaving, waits_for};

mod act;
mod decide;
mod memory;
mod metrics;
mod orphan;
mod report;
#[cfg(test)]
mod simulate;
mod tell;
#[cfg(test)]
mod testing;
mod view;
mod waits;
mod wake;

/// Who events come from.
pub const COMPONENT: &str = "attachdetach-controller";

/// The index of volumes by their unique names.
const BY_NAME: &str = "attach_detach/name";
/// The index of volumes, and of pods, by claim.
const BY_CLAIM: &str = "attach_detach/claim";
/// The index of claims, and of attachments, by volume.
const BY_VOLUME: &str = "attach_detach/volume";
/// The index of pods, and of attachments, by node.
const BY_NODE: &str = "attach_detach/node";
/// The longest pause after a report that the server did not take.
const UNWRITTEN: Duration = Duration::from_secs(30);
/// After so many steps a volume lets others have a turn.
const STEPS: usize = 64;
/// Everything is looked at this often, whether or not anything called for it.
const RESYNC: Duration = Duration::from_secs(600);

/// What the controller is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once; how long an attacher may take before pods are told; pauses after requests that failed.
    pub pace: Pace,
    /// How long a node that is not well may go on using a volume that nobody wants. Upstream: 6 minutes.
    pub max_wait_for_unmount: Duration,
    /// The same for volumes of single drivers: those that fence what they detach need no wait.
    pub max_wait_by_driver: BTreeMap<String, Duration>,
    /// Never detach by force because time has passed (`--disable-force-detach-on-timeout`).
    pub disable_force_detach_on_timeout: bool,
    /// Ask the server whether a volume is in use also after the time has passed. Upstream does not, even of nodes
    /// that are well.
    pub verify_after_timeout: bool,
    /// Believe that a node is out of service only if it does not say itself that it is well. Upstream detaches what
    /// such a node has mounted.
    pub out_of_service_only_if_not_ready: bool,
    /// Let an attachment stand in the way of another node even if it failed, or its end did. Upstream attaches beside
    /// it and leaves it to the driver to refuse.
    pub uncertain_blocks: bool,
    /// Delete attachments that were never begun and whose volume is gone. Upstream leaves them for ever.
    pub forget_orphans: bool,
    /// How long a volume that nobody uses may take to leave another node before pods are told of it. Upstream tells
    /// them at once, at every move.
    pub multi_attach_grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let pace = Pace {
            workers: 100,
            timeout: Duration::from_secs(120),
            retry_start: Duration::from_millis(500),
            retry_max: Duration::from_secs(122),
        };
        Self {
            pace,
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
    /// As Kubernetes 1.34 does it, in each thing that can be chosen.
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

/// Runs until the stop.
pub async fn run(context: Context, settings: Settings, metrics: Metrics) {
    let controller = Arc::new(AttachDetach::new(context, settings, metrics));
    let workers = controller.settings.pace.workers;
    let one = |subject| {
        let controller = Arc::clone(&controller);
        async move { controller.see_to(&subject).await }
    };
    let feeds = |besides: &mut JoinSet<()>| controller.feeds(besides);
    serve(&controller.context.gate, controller.synced(), feeds, &controller.queue, workers, one).await;
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
    queue: Queue<Subject>,
    memories: Memories,
    metrics: Metrics,
}

impl AttachDetach {
    fn new(context: Context, settings: Settings, metrics: Metrics) -> Self {
        let cluster = &context.cluster;
        let pods = cluster.store::<Pod>(WatchOptions::default());
        pods.index(BY_CLAIM, |pod| {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            pod.claims().map(|claim| Key::namespaced(namespace, claim).to_string()).collect()
        });
        pods.index(BY_NODE, |pod| vec![pod.spec.node_name.clone()]);
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        claims.index(BY_VOLUME, |claim| vec![claim.spec.volume_name.clone()]);
        let volumes = cluster.store::<PersistentVolume>(WatchOptions::default());
        volumes.index(BY_NAME, |volume| {
            VolumeName::of(&volume.spec).map(|name| name.to_string()).into_iter().collect()
        });
        volumes.index(BY_CLAIM, |volume| {
            volume.spec.claim_ref.as_ref().map(|claim| claim.key().to_string()).into_iter().collect()
        });
        let attachments = cluster.store::<VolumeAttachment>(WatchOptions::default());
        attachments.index(BY_VOLUME, |attachment| {
            attachment.spec.source.persistent_volume_name.clone().into_iter().collect()
        });
        attachments.index(BY_NODE, |attachment| vec![attachment.spec.node_name.clone()]);
        // The queue's own pauses are for reports to nodes; volumes have theirs in memory, one for each node.
        let backoff = settings.pace.backoff();
        let unwritten = Backoff { max: backoff.max.min(UNWRITTEN), ..backoff };
        Self {
            pods,
            claims,
            volumes,
            attachments,
            nodes: cluster.store(WatchOptions::default()),
            drivers: cluster.store(WatchOptions::default()),
            queue: Queue::new("attach_detach", unwritten, cluster.metrics()),
            memories: Memories::default(),
            metrics,
            context,
            settings,
        }
    }

    /// Of half the pods nothing follows: what they want would seem unwanted.
    async fn synced(&self) {
        self.pods.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        self.attachments.synced().await;
        self.nodes.synced().await;
        self.drivers.synced().await;
    }

    /// What brings work.
    fn feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = Arc::clone(self);
        into.spawn(feed(self.pods.clone(), self.queue.clone(), move |change| this.pod_changed(change)));
        let this = Arc::clone(self);
        into.spawn(feed(self.claims.clone(), self.queue.clone(), move |change| this.claim_changed(change)));
        let this = Arc::clone(self);
        into.spawn(feed(self.volumes.clone(), self.queue.clone(), move |change| this.volume_changed(change)));
        let this = Arc::clone(self);
        let wishes = move |change: &_| this.attachment_changed(change);
        into.spawn(feed(self.attachments.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        into.spawn(feed(self.nodes.clone(), self.queue.clone(), move |change| this.node_changed(change)));
        let this = Arc::clone(self);
        into.spawn(feed(self.drivers.clone(), self.queue.clone(), move |change| this.driver_changed(change)));
        let this = Arc::clone(self);
        into.spawn(async move {
            loop {
                sleep(RESYNC).await;
                this.look_at_all();
            }
        });
        let this = Arc::clone(self);
        into.spawn(async move {
            loop {
                this.context.gate.opened().await;
                this.context.gate.lost().await;
                // What somebody else did meanwhile we did not see: no wait has lasted since before.
                this.memories.forget();
            }
        });
    }

    fn look_at_all(&self) {
        let pods = self.pods.all();
        let nodes: BTreeSet<&str> = pods.iter().map(|pod| pod.spec.node_name.as_str()).collect();
        let used = nodes.into_iter().filter(|node| !node.is_empty()).flat_map(|node| self.volumes_on(node));
        let attachments = self.attachments.all();
        let attached = attachments.iter().filter_map(|attachment| self.volume_of_attachment(attachment));
        for volume in used.chain(attached).collect::<BTreeSet<_>>() {
            self.queue.add(Subject::Volume(volume), Priority::Low);
        }
        for orphan in attachments.iter().filter_map(|attachment| self.orphan(attachment)) {
            self.queue.add(orphan, Priority::Low);
        }
        self.memories.forget_gone(|node| !self.attachments.by_index(BY_NODE, node).is_empty());
        for node in self.nodes.all() {
            self.queue.add(Subject::Node(node.metadata.name.clone()), Priority::Low);
        }
    }

    /// One volume or node, step by step, until there is nothing to do for it now.
    async fn see_to(&self, subject: &Subject) -> Outcome {
        for _ in 0..STEPS {
            if !self.context.gate.is_open() {
                break;
            }
            let then = match subject {
                Subject::Volume(name) => {
                    let mut view = self.look(name, &[]);
                    take_back(&mut view);
                    // Only the volume's own worker writes down since when something is so.
                    self.memories.keep(&view);
                    let step = decide(&view, now());
                    self.act(&view, step).await
                }
                Subject::Node(name) => self.report(name).await,
                Subject::Orphan(name) => self.forget(name).await,
            };
            if let Then::End(outcome) = then {
                return outcome;
            }
        }
        Outcome::After(Duration::ZERO)
    }

    fn look(&self, name: &VolumeName, besides: &[&str]) -> View<'_> {
        let volumes = self.volumes.by_index(BY_NAME, &name.to_string());
        let mut keys = BTreeSet::new();
        let unheard = self.memories.unheard(name);
        let besides: Vec<&str> = besides.iter().copied().chain(unheard.iter().map(String::as_str)).collect();
        let mut nodes: BTreeSet<String> = besides.iter().map(|&node| node.to_owned()).collect();
        for volume in &volumes {
            let (spec, name) = (&volume.spec, &volume.metadata.name);
            keys.extend(spec.claim_ref.iter().map(|claim| claim.key()));
            keys.extend(self.claims.by_index(BY_VOLUME, name).iter().map(|claim| claim.metadata.key()));
            let attachments = self.attachments.by_index(BY_VOLUME, name);
            nodes.extend(attachments.iter().map(|attachment| attachment.spec.node_name.clone()));
        }
        let pods: Vec<Arc<Pod>> =
            keys.iter().flat_map(|claim| self.pods.by_index(BY_CLAIM, &claim.to_string())).collect();
        nodes.extend(pods.iter().map(|pod| pod.spec.node_name.clone()).filter(|node| !node.is_empty()));
        let attachment = |node: &String| self.attachments.get(&Key::cluster(name.attachment(node)));
        let known = Known {
            claims: keys.iter().filter_map(|key| self.claims.get(key)).collect(),
            attachments: nodes.iter().filter_map(attachment).collect(),
            nodes: nodes.iter().filter_map(|node| self.nodes.get(&Key::cluster(node.as_str()))).collect(),
            driver: self.drivers.get(&Key::cluster(name.driver.as_str())),
            volumes,
            pods,
        };
        let memory = |node: &str| self.memories.of(name, node);
        let in_use_last = |node: &str| self.memories.in_use_last(node);
        let mut view = View::of(&self.settings, name.clone(), &known, &besides, memory, in_use_last);
        note(&mut view, now());
        view
    }

    /// What a node is to be told of all that it is told of now and all that is attached to it.
    fn reports(&self, node: &Node) -> (Vec<View<'_>>, BTreeMap<String, Report>) {
        let name = node.metadata.name.as_str();
        let attachments = self.attachments.by_index(BY_NODE, name);
        let attached = attachments.iter().filter_map(|attachment| self.volume_of_attachment(attachment));
        let told = node.status.volumes_attached.iter().filter_map(|volume| VolumeName::parse(&volume.name));
        let volumes: BTreeSet<VolumeName> = attached.chain(told).collect();
        let views: Vec<View<'_>> = volumes.iter().map(|volume| self.look(volume, &[name])).collect();
        let report = |view: &View<'_>| (view.name.to_string(), decide::report(view, name, now()));
        let reports = views.iter().map(report).collect();
        (views, reports)
    }
}
