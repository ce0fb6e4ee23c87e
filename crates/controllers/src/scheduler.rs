//! Places pods on nodes, above all by where their volumes are or can be; the contract is that of kube-scheduler's
//! default profile, as far as volumes, resources, taints and node affinity go.
//!
//! - One pod at a time is looked at, all nodes at once, and each rule that refuses a node says so in upstream's words.
//! - What a pod is promised (a place, volumes, room for new ones) is promised to nobody else while it is being bound.
//! - Binding runs beside the loop: volumes are given to claims, nodes written into claims, and when a watch has told that
//!   all are bound, the pod gets its node. A pod never gets a node whose volumes it cannot have.
//! - Who has to wait is tried again when something changes that may help, never by turns.
//!
//! There is no preemption, no affinity between pods and no spreading: pods that ask for these are placed without.
//!
//! Start reading at [`view`], then [`decide`]: the rules, of which [`volumes`] is the heart. [`line`](mod@line) says who
//! is next, [`wake`] what helps whom, [`ledger`] what is promised, [`bind`] how it is kept.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use wharf_cluster::{Change, Notice, Store, WatchOptions};
use wharf_model::names::annotation;
use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSIDriver, CSINode, CSIStorageCapacity, Key, Kind, PersistentVolume, PersistentVolumeClaim, StorageClass,
    VolumeAttachment, matching,
};

use crate::Context;
use bells::{Bells, Subject};
use decide::{Step, decide};
use ledger::Ledger;
use line::Line;
use wake::Helps;

mod bells;
mod bind;
mod capacity;
mod claims;
mod decide;
mod fit;
mod ledger;
mod limits;
mod line;
mod look;
mod report;
mod requests;
#[cfg(test)]
mod testing;
mod view;
mod volumes;
mod wake;
mod zone;

/// Who tells events, as upstream calls it.
pub const COMPONENT: &str = "default-scheduler";

/// Indexes: pods and attachments by node, pods by claim, claims whose node was chosen by class, volumes by the claim they
/// are reserved for and by the class they are offered in, capacities by class.
const BY_NODE: &str = "scheduler/node";
const BY_CLAIM: &str = "scheduler/claim";
const SELECTED: &str = "scheduler/selected";
const RESERVED: &str = "scheduler/reserved";
const OFFERED: &str = "scheduler/offered";
const BY_CLASS: &str = "scheduler/class";

/// What the scheduler is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The `schedulerName` of the pods that are ours; those that name none are too.
    pub name: String,
    /// How long a pod's volumes may take until a node is chosen anew.
    pub bind_timeout: Duration,
    /// How room for new volumes is counted.
    pub capacity: CapacityCheck,
    /// What becomes of nodes that lack a pod's driver.
    pub drivers: DriverCheck,
    /// What becomes of pods that were put on a node by hand.
    pub assigned: AssignedPods,
    /// When a pod is tried again whose own claims have changed.
    pub own_changes: OwnChanges,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: COMPONENT.to_owned(),
            bind_timeout: Duration::from_secs(600),
            capacity: CapacityCheck::default(),
            drivers: DriverCheck::default(),
            assigned: AssignedPods::default(),
            own_changes: OwnChanges::default(),
        }
    }
}

/// How room for new volumes is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CapacityCheck {
    /// All claims of the pod together, after what is on its way for others.
    #[default]
    Summed,
    /// Each claim for itself: upstream's way.
    PerClaim,
}

/// What becomes of nodes whose CSINode does not name a driver that the pod needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DriverCheck {
    /// They are passed over until it does.
    #[default]
    Registered,
    /// They take any number of its volumes: upstream's way.
    Upstream,
}

/// What becomes of pods that were put on a node by hand and whose claims wait for their first consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AssignedPods {
    /// Their claims get volumes for that node.
    #[default]
    SeeToVolumes,
    /// They wait for ever: upstream's way.
    Leave,
}

/// When a pod is tried again whose own claims, or which itself, have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OwnChanges {
    /// At once: most pods come with a claim that is bound a moment later.
    #[default]
    AtOnce,
    /// After its pause, a second at least: upstream's way.
    AfterPause,
}

/// Runs until the stop.
pub async fn run(context: Context, settings: Settings) {
    let scheduler = Arc::new(Scheduler::new(context, settings));
    let gate = scheduler.context.gate.clone();
    tokio::select! {
        biased;
        () = scheduler.synced() => {}
        () = gate.stopped() => return,
    }
    // These end with this function; what a binding has written by then holds.
    let (mut besides, mut bindings) = (JoinSet::new(), JoinSet::new());
    scheduler.feeds(&mut besides);
    loop {
        let next = async {
            gate.opened().await;
            scheduler.next().await
        };
        let key = tokio::select! {
            biased;
            () = gate.stopped() => return,
            Some(_) = bindings.join_next() => continue,
            key = next => key,
        };
        scheduler.see_to(&key, &mut bindings);
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
    line: Mutex<Line>,
    /// Rung when somebody may be ready.
    ready: Notify,
    ledger: Mutex<Ledger>,
    bells: Bells,
}

impl Scheduler {
    fn new(context: Context, settings: Settings) -> Self {
        let cluster = &context.cluster;
        let all = WatchOptions::default;
        let pods: Store<Pod> = cluster.store(all());
        pods.index(BY_NODE, |pod| vec![pod.spec.node_name.clone()]);
        pods.index(BY_CLAIM, |pod| {
            let key = |name| Key { namespace: pod.metadata.namespace.clone(), name }.to_string();
            pod.claims().map(key).collect()
        });
        let claims: Store<PersistentVolumeClaim> = cluster.store(all());
        claims.index(SELECTED, |claim| {
            let waits = claim.selected_node().is_some() && claim.spec.volume_name.is_empty();
            claim.class().filter(|_| waits).map(str::to_owned).into_iter().collect()
        });
        let volumes: Store<PersistentVolume> = cluster.store(all());
        volumes.index(RESERVED, |volume| matching::reserved_for(volume).into_iter().collect());
        volumes
            .index(OFFERED, |volume| matching::offered_in(volume).map(str::to_owned).into_iter().collect());
        let capacities: Store<CSIStorageCapacity> = cluster.store(all());
        capacities.index(BY_CLASS, |capacity| vec![capacity.storage_class_name.clone()]);
        let attachments: Store<VolumeAttachment> = cluster.store(all());
        attachments.index(BY_NODE, |attachment| vec![attachment.spec.node_name.clone()]);
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
            line: Mutex::new(Line::new(settings.own_changes == OwnChanges::AtOnce)),
            ready: Notify::new(),
            ledger: Mutex::default(),
            bells: Bells::default(),
            context,
            settings,
        }
    }

    async fn synced(&self) {
        self.pods.synced().await;
        self.nodes.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        self.drivers.synced().await;
        self.csi_nodes.synced().await;
        self.capacities.synced().await;
        self.attachments.synced().await;
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next pod to see to. Safe to drop while it waits.
    async fn next(&self) -> Key {
        loop {
            let due = {
                let mut line = self.line();
                if let Some(key) = line.take(Instant::now()) {
                    return key;
                }
                line.next_due()
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

    /// One pod: looks, decides, and sets going what was decided.
    fn see_to(self: &Arc<Self>, key: &Key, bindings: &mut JoinSet<()>) {
        // One that was bound just now may not be seen on its node yet.
        let waits = |pod: &Arc<Pod>| self.is_ours(pod) && !self.ledger().is_bound(pod);
        let Some(pod) = self.pods.get(key).filter(waits) else {
            return self.line().done(key);
        };
        let now = Instant::now();
        match decide(&self.look(&pod)) {
            Step::Leave => self.line().done(key),
            Step::Place { node, plan } => {
                self.ledger().promise(&pod, &node, &plan);
                bindings.spawn(Arc::clone(self).bind(pod, node, plan));
            }
            Step::Refuse { message, causes } => {
                self.line().park(key, causes, now);
                self.tell(pod, report::UNSCHEDULABLE, message, bindings);
            }
            Step::Fail { message } => {
                self.line().retry(key, now);
                self.tell(pod, report::ERROR, message, bindings);
            }
        }
        self.ready.notify_one();
    }

    fn tell(
        self: &Arc<Self>,
        pod: Arc<Pod>,
        reason: &'static str,
        message: String,
        bindings: &mut JoinSet<()>,
    ) {
        // Of claims that others see to, those others tell.
        if message.is_empty() {
            return;
        }
        let this = Arc::clone(self);
        bindings.spawn(async move { this.report(&pod, reason, &message).await });
    }

    /// After a binding: what becomes of the pod's place in the line, unless it is another pod's by now.
    fn finish(&self, pod: &Pod, then: impl FnOnce(&mut Line, &Key)) {
        let key = pod.metadata.key();
        // Another that comes from now on finds the line locked, and stands in it afterwards.
        let mut line = self.line();
        let another = self.pods.get(&key).is_some_and(|now| now.metadata.uid != pod.metadata.uid);
        if !another {
            then(&mut line, &key);
        }
        drop(line);
        self.ready.notify_one();
    }

    /// Whether there is anything to do for a pod.
    fn is_ours(&self, pod: &Pod) -> bool {
        if pod.has_ended() || pod.metadata.is_deleting() {
            return false;
        }
        match pod.spec.node_name.as_str() {
            "" => {
                let named = &pod.spec.scheduler_name;
                (named.is_empty() || *named == self.settings.name) && pod.spec.scheduling_gates.is_empty()
            }
            _ => self.settings.assigned == AssignedPods::SeeToVolumes && self.waits_for_volumes(pod),
        }
    }

    /// Whether a claim of the pod has no volume and, as far as can be seen, nobody who chooses its node.
    fn waits_for_volumes(&self, pod: &Pod) -> bool {
        pod.claims().any(|name| {
            let key = Key { namespace: pod.metadata.namespace.clone(), name };
            self.claims.get(&key).is_some_and(|claim| {
                claim.spec.volume_name.is_empty()
                    && claim.metadata.annotation(annotation::SELECTED_NODE).is_none()
            })
        })
    }

    /// What brings work.
    fn feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = || Arc::clone(self);
        into.spawn(this().feed(self.pods.clone(), |this, change| this.pod_changed(change)));
        into.spawn(this().feed(self.claims.clone(), |this, change| this.claim_changed(change)));
        into.spawn(this().feed(self.volumes.clone(), |this, change| {
            let of = |volume: &Option<Arc<PersistentVolume>>| {
                volume.as_ref().and_then(|volume| volume.spec.claim_ref.as_ref()).map(|claim| claim.key())
            };
            for claim in [of(&change.old), of(&change.new)].into_iter().flatten() {
                this.bells.ring(&Subject::Claim(claim));
            }
            this.wake(wake::by_volume(change));
        }));
        into.spawn(this().feed(self.nodes.clone(), |this, change| {
            this.bells.ring(&Subject::Node(change.key.name.clone()));
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

    /// A store's changes, for as long as it lives.
    async fn feed<O: Kind>(self: Arc<Self>, store: Store<O>, take: impl Fn(&Self, &Change<O>)) {
        let mut changes = store.changes();
        while let Some(notice) = changes.next().await {
            match notice {
                Notice::Change(change) => take(&self, &change),
                Notice::Resync => {
                    self.drop_the_gone();
                    for object in store.all() {
                        take(&self, &Change { key: object.key(), old: None, new: Some(object) });
                    }
                    self.bells.ring_all();
                    self.wake(wake::ALL);
                }
            }
        }
    }

    /// Pods of whose end nobody told.
    fn drop_the_gone(&self) {
        let mut line = self.line();
        for key in line.keys().iter().filter(|key| self.pods.get(key).is_none()) {
            line.remove(key);
        }
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let Change { key, old, new } = change;
        self.bells.ring(&Subject::Pod(key.clone()));
        let replaced = matches!((old, new), (Some(old), Some(new)) if old.metadata.uid != new.metadata.uid);
        if replaced {
            self.line().remove(key);
        }
        match new.as_deref().filter(|pod| self.is_ours(pod)) {
            None => self.line().remove(key),
            Some(pod) => {
                // Its status is mostly our own word.
                let same = |old: &Pod| old.spec == pod.spec && old.metadata.labels == pod.metadata.labels;
                if replaced || !old.as_deref().is_some_and(same) {
                    self.line().add(key, pod.spec.priority.unwrap_or_default(), Instant::now());
                    self.ready.notify_one();
                }
            }
        }
        self.wake(wake::by_pod(change));
    }

    fn claim_changed(&self, change: &Change<PersistentVolumeClaim>) {
        self.bells.ring(&Subject::Claim(change.key.clone()));
        let now = Instant::now();
        for pod in self.pods.by_index(BY_CLAIM, &change.key.to_string()) {
            match pod.spec.node_name.as_str() {
                "" => self.line().nudge(&pod.metadata.key(), now),
                // A pod that was put on a node may have waited for this claim to be made, or given back.
                _ if self.is_ours(&pod) => {
                    self.line().add(&pod.metadata.key(), pod.spec.priority.unwrap_or_default(), now);
                }
                _ => continue,
            }
            self.ready.notify_one();
        }
        self.wake(wake::by_claim(change));
    }

    fn wake(&self, helps: Helps) {
        if !helps.is_empty() {
            self.line().wake(helps, Instant::now());
            self.ready.notify_one();
        }
    }
}
