//! Schedules pods, above all by where their volumes are or can be provisioned; the contract is that of kube-scheduler's
//! default profile for volumes, resources, taints and node affinity.
//!
//! - One pod at a time is evaluated against all nodes, and each rule that rejects a node reports upstream's reason.
//! - What is assumed for a pod (its node, volumes, capacity for new volumes) is not available to other pods while the
//!   pod is being bound.
//! - Binding runs concurrently with the scheduling loop: it writes `claimRef` into volumes and `selected-node` into
//!   claims, and once the watch reports all claims as bound, it binds the pod to its node. A pod is never bound to a
//!   node on which it cannot have its volumes.
//! - An unschedulable pod is retried when a change may make it schedulable, and after five minutes at the latest.
//!
//! There is no preemption, no inter-pod affinity and no topology spreading: such constraints of pods are ignored.
//!
//! Start reading at `view`, then `decide`: the rules, with `volumes` at their core. `queue` orders the pods,
//! `wake` decides which changes retry which pods, `assume` records what is assumed, `bind` carries it out.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use wharf_cluster::indexes::{ATTACHMENTS_BY_NODE, PODS_BY_CLAIM, PODS_BY_NODE, VOLUMES_BY_CLAIM};
use wharf_cluster::work::{for_each_change, propagate_panic};
use wharf_cluster::{Change, Store, WatchOptions};
use wharf_model::names::annotation;
use wharf_model::panics::{catch, catch_sync};
use wharf_model::{
    CSIDriver, CSINode, CSIStorageCapacity, Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    StorageClass, VolumeAttachment, matching,
};

use crate::Context;
use assume::AssumeCache;
use decide::{Step, decide};
use queue::PodQueue;
use wake::Unblocks;
use wakeups::{Wakeups, WatchedObject};

mod assume;
mod bind;
mod capacity;
mod claims;
mod decide;
mod fit;
mod gather;
mod limits;
mod queue;
mod report;
mod requests;
#[cfg(test)]
mod testing;
mod view;
mod volumes;
mod wake;
mod wakeups;
mod zone;

/// The event source component; upstream's name.
pub const COMPONENT: &str = "default-scheduler";

/// The component in the log and in the metric of panics.
const PANIC_COMPONENT: &str = "scheduler";

/// Index of claims with a selected node and no volume, by class.
const PROVISIONING_CLAIMS_BY_CLASS: &str = "scheduler/provisioning";
/// Index of volumes, by the class in which they are available.
const AVAILABLE_VOLUMES_BY_CLASS: &str = "scheduler/available";
/// Index of CSIStorageCapacity objects, by class.
const CAPACITIES_BY_CLASS: &str = "scheduler/class";

/// Settings of the scheduler.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The `schedulerName` of the pods to schedule; pods without one are scheduled too.
    pub name: String,
    /// How long binding a pod's volumes may take before the pod is rescheduled.
    pub bind_timeout: Duration,
    /// How CSIStorageCapacity is checked.
    pub capacity_check: CapacityCheck,
    /// How nodes without a driver of the pod are treated.
    pub driver_check: DriverCheck,
    /// How pods that were created with a `nodeName` are treated.
    pub assigned_pods: AssignedPods,
    /// When a pod is retried after its own claims changed.
    pub own_changes: OwnChanges,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: COMPONENT.to_owned(),
            bind_timeout: Duration::from_secs(600),
            capacity_check: CapacityCheck::default(),
            driver_check: DriverCheck::default(),
            assigned_pods: AssignedPods::default(),
            own_changes: OwnChanges::default(),
        }
    }
}

/// How CSIStorageCapacity is checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CapacityCheck {
    /// All claims of the pod together, after subtracting volumes that are being provisioned.
    #[default]
    Summed,
    /// Each claim separately, as upstream.
    PerClaim,
}

/// How nodes whose CSINode lacks a driver of the pod are treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DriverCheck {
    /// They are rejected until the driver is registered.
    #[default]
    Registered,
    /// They accept any number of the driver's volumes, as upstream.
    Upstream,
}

/// How pods are treated that were created with a `nodeName` and whose claims wait for their first consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AssignedPods {
    /// Their claims are bound or provisioned for that node.
    #[default]
    BindVolumes,
    /// They stay pending, as upstream.
    Ignore,
}

/// When a pod is retried after it or its own claims changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OwnChanges {
    /// At once: most pods are created with a claim that is bound a moment later.
    #[default]
    RetryImmediately,
    /// After its backoff of at least a second, as upstream.
    AfterBackoff,
}

/// Runs until the gate is stopped. A pod whose attempt or binding panics is retried after its backoff.
pub async fn run(context: Context, settings: Settings) {
    let scheduler = Arc::new(Scheduler::new(context, settings));
    let gate = scheduler.context.gate.clone();
    tokio::select! {
        biased;
        () = scheduler.synced() => {}
        () = gate.wait_stopped() => return,
    }
    // These tasks end with this function; what a binding has written by then stays.
    let (mut tasks, mut bindings) = (JoinSet::new(), JoinSet::new());
    scheduler.spawn_feeds(&mut tasks);
    loop {
        let next = async {
            gate.wait_open().await;
            scheduler.next().await
        };
        let key = tokio::select! {
            biased;
            () = gate.wait_stopped() => return,
            Some(_) = bindings.join_next() => continue,
            () = propagate_panic(&mut tasks) => return,
            key = next => key,
        };
        let attempt = || scheduler.reconcile(&key, &mut bindings);
        if catch_sync(PANIC_COMPONENT, &key, attempt).is_err() {
            scheduler.queue().retry(&key, Instant::now());
        }
    }
}

struct Scheduler {
    context: Context,
    settings: Settings,
    pods: Store<Pod>,
    nodes: Store<Node>,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    classes: Store<StorageClass>,
    drivers: Store<CSIDriver>,
    csi_nodes: Store<CSINode>,
    capacities: Store<CSIStorageCapacity>,
    attachments: Store<VolumeAttachment>,
    queue: Mutex<PodQueue>,
    /// Notified when a pod may be ready.
    ready: Notify,
    assumed: Mutex<AssumeCache>,
    wakeups: Wakeups,
}

impl Scheduler {
    fn new(context: Context, settings: Settings) -> Self {
        let cluster = &context.cluster;
        let all = WatchOptions::default;
        let pods: Store<Pod> = cluster.store(all());
        pods.share_index(&PODS_BY_NODE);
        pods.share_index(&PODS_BY_CLAIM);
        let claims: Store<PersistentVolumeClaim> = cluster.store(all());
        claims.add_index(PROVISIONING_CLAIMS_BY_CLASS, |claim| {
            let provisioning = claim.selected_node().is_some() && claim.spec.volume_name.is_empty();
            claim.class().filter(|_| provisioning).map(str::to_owned).into_iter().collect()
        });
        let volumes: Store<PersistentVolume> = cluster.store(all());
        volumes.share_index(&VOLUMES_BY_CLAIM);
        volumes.add_index(AVAILABLE_VOLUMES_BY_CLASS, |volume| {
            matching::available_class(volume).map(str::to_owned).into_iter().collect()
        });
        let capacities: Store<CSIStorageCapacity> = cluster.store(all());
        capacities.add_index(CAPACITIES_BY_CLASS, |capacity| vec![capacity.storage_class_name.clone()]);
        let attachments: Store<VolumeAttachment> = cluster.store(all());
        attachments.share_index(&ATTACHMENTS_BY_NODE);
        Self {
            nodes: cluster.store(all()),
            classes: cluster.store(all()),
            drivers: cluster.store(all()),
            csi_nodes: cluster.store(all()),
            pods,
            claims,
            volumes,
            capacities,
            attachments,
            queue: Mutex::new(PodQueue::new(settings.own_changes == OwnChanges::RetryImmediately)),
            ready: Notify::new(),
            assumed: Mutex::default(),
            wakeups: Wakeups::default(),
            context,
            settings,
        }
    }

    async fn synced(&self) {
        self.pods.wait_synced().await;
        self.nodes.wait_synced().await;
        self.claims.wait_synced().await;
        self.volumes.wait_synced().await;
        self.classes.wait_synced().await;
        self.drivers.wait_synced().await;
        self.csi_nodes.wait_synced().await;
        self.capacities.wait_synced().await;
        self.attachments.wait_synced().await;
    }

    fn queue(&self) -> MutexGuard<'_, PodQueue> {
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn assumed(&self) -> MutexGuard<'_, AssumeCache> {
        self.assumed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next pod to schedule. Cancel-safe.
    async fn next(&self) -> Key {
        loop {
            let due = {
                let mut queue = self.queue();
                if let Some(key) = queue.take(Instant::now()) {
                    return key;
                }
                queue.next_due()
            };
            match due {
                Some(due) => tokio::select! {
                    biased;
                    () = self.ready.notified() => {}
                    () = sleep_until(due) => {}
                },
                None => self.ready.notified().await,
            }
        }
    }

    /// Schedules one pod: decides, and starts the binding or reports why not.
    fn reconcile(self: &Arc<Self>, key: &Key, bindings: &mut JoinSet<()>) {
        // The store may not show yet that a pod was just bound.
        let waiting = |pod: &Arc<Pod>| self.should_schedule(pod) && !self.assumed().is_bound(pod);
        let Some(pod) = self.pods.get(key).filter(waiting) else {
            return self.queue().done(key);
        };
        let now = Instant::now();
        match decide(&self.gather(&pod)) {
            Step::Ignore => self.queue().done(key),
            Step::Schedule { node, plan } => {
                self.assumed().assume(&pod, &node, &plan);
                bindings.spawn(Arc::clone(self).bind_or_retry(pod, node, plan));
            }
            Step::Unschedulable { message, causes } => {
                self.queue().park(key, causes, now);
                self.spawn_report(pod, report::UNSCHEDULABLE, message, bindings);
            }
            Step::Error { message } => {
                self.queue().retry(key, now);
                self.spawn_report(pod, report::ERROR, message, bindings);
            }
        }
        self.ready.notify_one();
    }

    fn spawn_report(
        self: &Arc<Self>,
        pod: Arc<Pod>,
        reason: &'static str,
        message: String,
        bindings: &mut JoinSet<()>,
    ) {
        // An empty message: other controllers report on these claims.
        if message.is_empty() {
            return;
        }
        let this = Arc::clone(self);
        bindings.spawn(async move {
            let key = pod.metadata.key();
            let _ = catch(PANIC_COMPONENT, key, this.report(&pod, reason, &message)).await;
        });
    }

    /// Binds the pod. After a panic, the pod may be bound or not: its place is kept until the watch shows which.
    async fn bind_or_retry(self: Arc<Self>, pod: Arc<Pod>, node: String, plan: volumes::Plan) {
        let key = pod.metadata.key();
        if catch(PANIC_COMPONENT, &key, Arc::clone(&self).bind(Arc::clone(&pod), node, plan)).await.is_err() {
            self.assumed().retain_place(&pod, assume::Retained::MaybeBound);
            self.finish(&pod, |queue, key| queue.retry(key, Instant::now()));
        }
    }

    /// After a binding: updates the pod's queue entry, unless another pod of that name has it by now.
    fn finish(&self, pod: &Pod, update: impl FnOnce(&mut PodQueue, &Key)) {
        let key = pod.metadata.key();
        // Another pod that is created from now on has to wait for the lock, and is added afterwards.
        let mut queue = self.queue();
        let another = self.pods.get(&key).is_some_and(|now| now.metadata.uid != pod.metadata.uid);
        if !another {
            update(&mut queue, &key);
        }
        drop(queue);
        self.ready.notify_one();
    }

    /// Whether the scheduler has anything to do for a pod.
    fn should_schedule(&self, pod: &Pod) -> bool {
        if pod.has_ended() || pod.metadata.is_deleting() {
            return false;
        }
        match pod.node_name.as_str() {
            "" => {
                let named = &pod.spec.scheduler_name;
                (named.is_empty() || *named == self.settings.name) && pod.spec.scheduling_gates.is_empty()
            }
            _ => self.settings.assigned_pods == AssignedPods::BindVolumes && self.waits_for_volumes(pod),
        }
    }

    /// Whether a claim of the pod has neither a volume nor a selected node.
    fn waits_for_volumes(&self, pod: &Pod) -> bool {
        pod.claim_keys().any(|key| {
            self.claims.get(&key).is_some_and(|claim| {
                claim.spec.volume_name.is_empty()
                    && claim.metadata.annotation(annotation::SELECTED_NODE).is_none()
            })
        })
    }

    /// Starts the tasks that handle changes.
    fn spawn_feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = || Arc::clone(self);
        into.spawn(this().feed(self.pods.clone(), |this, change| this.pod_changed(change)));
        into.spawn(this().feed(self.claims.clone(), |this, change| this.claim_changed(change)));
        into.spawn(this().feed(self.volumes.clone(), |this, change| {
            let of = |volume: &Option<Arc<PersistentVolume>>| {
                volume.as_ref().and_then(|volume| volume.spec.claim_ref.as_ref()).map(|claim| claim.key())
            };
            for claim in [of(&change.old), of(&change.new)].into_iter().flatten() {
                this.wakeups.wake(&WatchedObject::Claim(claim));
            }
            this.wake(wake::by_volume(change));
        }));
        into.spawn(this().feed(self.nodes.clone(), |this, change| {
            this.wakeups.wake(&WatchedObject::Node(change.key.name.clone()));
            this.wake(wake::by_node(change));
        }));
        into.spawn(this().feed(self.classes.clone(), |this, change| this.wake(wake::by_class(change))));
        into.spawn(this().feed(self.drivers.clone(), |this, change| this.wake(wake::by_driver(change))));
        into.spawn(this().feed(self.csi_nodes.clone(), |this, change| this.wake(wake::by_csi_node(change))));
        into.spawn(this().feed(self.capacities.clone(), |this, change| this.wake(wake::by_capacity(change))));
        into.spawn(
            this().feed(self.attachments.clone(), |this, change| this.wake(wake::by_attachment(change))),
        );
    }

    /// Handles a store's changes until the store is closed.
    async fn feed<O: Kind>(self: Arc<Self>, store: Store<O>, take: impl Fn(&Self, &Change<O>)) {
        let resynced = || {
            self.remove_deleted_pods();
            self.wakeups.wake_all();
            self.wake(wake::EVERYTHING);
        };
        for_each_change("scheduler-changes", store, |change| take(&self, change), resynced).await;
    }

    /// Removes pods whose deletion the watch missed.
    fn remove_deleted_pods(&self) {
        let mut queue = self.queue();
        for key in queue.keys().iter().filter(|key| self.pods.get(key).is_none()) {
            queue.remove(key);
        }
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let Change { key, old, new } = change;
        self.wakeups.wake(&WatchedObject::Pod(key.clone()));
        let replaced = matches!((old, new), (Some(old), Some(new)) if old.metadata.uid != new.metadata.uid);
        if replaced {
            self.queue().remove(key);
        }
        match new.as_deref().filter(|pod| self.should_schedule(pod)) {
            None => self.queue().remove(key),
            Some(pod) => {
                // Status changes are mostly the scheduler's own.
                let same = |old: &Pod| {
                    old.node_name == pod.node_name
                        && old.spec == pod.spec
                        && old.metadata.labels == pod.metadata.labels
                };
                if replaced || !old.as_deref().is_some_and(same) {
                    self.queue().add(key, pod.spec.priority.unwrap_or_default(), Instant::now());
                    self.ready.notify_one();
                }
            }
        }
        self.wake(wake::by_pod(change));
    }

    fn claim_changed(&self, change: &Change<PersistentVolumeClaim>) {
        self.wakeups.wake(&WatchedObject::Claim(change.key.clone()));
        let now = Instant::now();
        for pod in self.pods.find(&PODS_BY_CLAIM, &change.key.to_string()) {
            match pod.node_name.as_str() {
                "" => self.queue().nudge(&pod.metadata.key(), now),
                // A pod with a nodeName may have waited for this claim to be created, or for its node to be cleared.
                _ if self.should_schedule(&pod) => {
                    self.queue().add(&pod.metadata.key(), pod.spec.priority.unwrap_or_default(), now);
                }
                _ => continue,
            }
            self.ready.notify_one();
        }
        self.wake(wake::by_claim(change));
    }

    fn wake(&self, unblocks: Unblocks) {
        if !unblocks.is_empty() {
            self.queue().wake(unblocks, Instant::now());
            self.ready.notify_one();
        }
    }
}
