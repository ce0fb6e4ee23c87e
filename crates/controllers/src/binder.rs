//! Binds claims to volumes, with the contract of kube-controller-manager's persistentvolume-binder.
//!
//! - One worker at a time handles a claim and the volumes that reference it, so no two workers write the same binding.
//!   Everything else runs in parallel.
//! - A binding is four writes, in order, each skipped if it is not needed. The next reconcile completes a binding
//!   that a crash interrupted. After a conflict the binder re-reads the object and continues at once, without waiting
//!   for a resync.
//! - When a volume becomes available, only as many pending claims are enqueued as can be bound. Claims that are
//!   reconciled in parallel choose different volumes.
//! - The binder provisions and deletes nothing: an annotation assigns a claim to its provisioner, and the phase
//!   Released lets external deleters delete a volume. The binder reads from the API server before it marks a claim lost or
//!   a volume released.
//!
//! Start reading at `view` (inputs), then `decide` (rules). `wake` maps changes to work items, `offers` decides which
//! claim may take which volume.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::indexes::{CLAIMS_BY_VOLUME, PODS_BY_CLAIM, VOLUMES_BY_CLAIM};
use wharf_cluster::work::{
    EnqueueRequest, RESYNC_INTERVAL, StepLimit, StepOutcome, Steps, WorkOutcome, enqueue_changes, resync,
    run_role,
};
use wharf_cluster::{Backoff, Change, Priority, Queue, Store, WatchOptions};
use wharf_model::class::VolumeBindingMode;
use wharf_model::matching::{MatchFor, available_class, class_or_empty, find_matching_volume};
use wharf_model::{Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass};

use crate::Context;
use act::BindState;
use decide::{decide, decide_unclaimed};
use offers::Offers;
use view::{LiveObject, LiveReads, Rules, View, WorkItem, default_class, index, is_terminated, is_waiting};

mod act;
mod decide;
pub(crate) mod migration;
mod offers;
mod view;
mod wake;
mod write;

pub use decide::missing_deleter_message;
pub use migration::csi_provisioner;

/// The event source component; upstream's name.
pub const COMPONENT: &str = "persistentvolume-controller";
/// A binding takes four writes and a few reads.
const STEP_LIMIT: StepLimit = StepLimit::BackOff(64);

/// Settings of the binder.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Claims and volumes reconciled in parallel; upstream has one worker for each kind.
    pub workers: usize,
    /// The backoff after a first failure; upstream waits for its resync, every 15 s.
    pub retry_start: Duration,
    /// The longest backoff.
    pub retry_max: Duration,
    /// Clear `selected-node` of a claim whose node was deleted, so that the scheduler chooses again. Upstream leaves
    /// it, and the claim stays pending (kubernetes/kubernetes#100485).
    pub clear_selected_node: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 100,
            retry_start: Duration::from_millis(200),
            retry_max: Duration::from_secs(30),
            clear_selected_node: true,
        }
    }
}

/// Runs until the gate is stopped.
pub async fn run(context: Context, settings: Settings) {
    let binder = Arc::new(Binder::new(context, settings));
    let reconcile = |item| {
        let binder = Arc::clone(&binder);
        async move { binder.reconcile(&item).await }
    };
    let start_feeds = |tasks: &mut JoinSet<()>| {
        // Every volume must be offered before the first claim is matched.
        for volume in binder.volumes.all() {
            binder.offers.update(&volume.metadata.name, Some(&volume));
        }
        binder.spawn_feeds(tasks);
    };
    let workers = binder.settings.workers;
    run_role(&binder.context.gate, binder.synced(), start_feeds, &binder.queue, workers, reconcile).await;
}

struct Binder {
    context: Context,
    settings: Settings,
    rules: Rules,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    classes: Store<StorageClass>,
    nodes: Store<Node>,
    pods: Store<Pod>,
    offers: Offers,
    queue: Queue<WorkItem>,
}

impl Binder {
    fn new(context: Context, settings: Settings) -> Self {
        let cluster = &context.cluster;
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        claims.share_index(&CLAIMS_BY_VOLUME);
        let waiting =
            |claim: &PersistentVolumeClaim| is_waiting(claim).then(|| class_or_empty(claim).to_owned());
        claims.add_index(index::WAITING, move |claim| waiting(claim).into_iter().collect());
        claims.add_index(index::BY_NODE, |claim| {
            claim.selected_node().filter(|_| is_waiting(claim)).map(str::to_owned).into_iter().collect()
        });
        let volumes = cluster.store::<PersistentVolume>(WatchOptions::default());
        volumes.share_index(&VOLUMES_BY_CLAIM);
        let pods = cluster.store::<Pod>(WatchOptions::default());
        pods.share_index(&PODS_BY_CLAIM);
        let backoff = Backoff { start: settings.retry_start, max: settings.retry_max, ..Backoff::default() };
        Self {
            rules: Rules { clear_selected_node: settings.clear_selected_node },
            claims,
            volumes,
            classes: cluster.store(WatchOptions::default()),
            nodes: cluster.store(WatchOptions::default()),
            pods,
            offers: Offers::default(),
            queue: Queue::new("binder", backoff, cluster.metrics()),
            context,
            settings,
        }
    }

    async fn synced(&self) {
        self.claims.wait_synced().await;
        self.volumes.wait_synced().await;
        self.classes.wait_synced().await;
        self.nodes.wait_synced().await;
        self.pods.wait_synced().await;
    }

    /// Starts the tasks that turn changes into work items.
    fn spawn_feeds(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let requests =
            |change: &Change<PersistentVolumeClaim>| vec![enqueue(WorkItem::Claim(change.key.clone()))];
        tasks.spawn(enqueue_changes(self.claims.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.volume_changed(change);
        tasks.spawn(enqueue_changes(self.volumes.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.class_changed(change);
        tasks.spawn(enqueue_changes(self.classes.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| {
            let claims = wake::by_node(change).map(|node| this.claims.by_index(index::BY_NODE, node));
            claims.into_iter().flatten().map(|claim| enqueue(WorkItem::Claim(claim.key()))).collect()
        };
        tasks.spawn(enqueue_changes(self.nodes.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.pod_changed(change);
        tasks.spawn(enqueue_changes(self.pods.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        tasks.spawn(resync(self.queue.clone(), RESYNC_INTERVAL, move || this.all_items()));
    }

    fn volume_changed(&self, change: &Change<PersistentVolume>) -> Vec<EnqueueRequest<WorkItem>> {
        let name = &change.key.name;
        self.offers.update(name, change.new.as_deref());
        let wakeups = wake::by_volume(change);
        let mut requests: Vec<_> = wakeups.items.into_iter().map(enqueue).collect();
        if wakeups.wake_claims_by_name {
            let claims = self.claims.find(&CLAIMS_BY_VOLUME, name);
            requests.extend(claims.iter().map(|claim| enqueue(WorkItem::Claim(claim.key()))));
        }
        requests
    }

    fn class_changed(&self, change: &Change<StorageClass>) -> Vec<EnqueueRequest<WorkItem>> {
        if !wake::by_class(change) {
            return Vec::new();
        }
        let of_class = self.claims.by_index(index::WAITING, &change.key.name);
        let without_class = self.claims.by_index(index::WAITING, "");
        of_class.iter().chain(&without_class).map(|claim| enqueue(WorkItem::Claim(claim.key()))).collect()
    }

    fn pod_changed(&self, change: &Change<Pod>) -> Vec<EnqueueRequest<WorkItem>> {
        let is_affected = |key: &Key| self.claims.get(key).is_none_or(|claim| is_waiting(&claim));
        wake::by_pod(change)
            .into_iter()
            .filter(is_affected)
            .map(|key| enqueue(WorkItem::Claim(key)))
            .collect()
    }

    /// Reconciles one work item, step by step, until there is nothing to do for it now.
    async fn reconcile(&self, item: &WorkItem) -> WorkOutcome {
        match item {
            WorkItem::Claim(key) => self.reconcile_claim(key).await,
            WorkItem::Volume(name) => self.reconcile_volume(name).await,
            WorkItem::Class(name) => self.reconcile_class(name),
        }
    }

    async fn reconcile_claim(&self, key: &Key) -> WorkOutcome {
        let mut state = BindState::new(self.offers.reserve_for(key));
        let outcome = self.reconcile_in_steps(key, &mut state).await;
        // Volumes that were reserved for this claim and are still available: another claim may need one of them.
        let reserved =
            state.reservation.all_reserved().filter_map(|name| self.volumes.get(&Key::cluster(name)));
        let classes: BTreeSet<String> =
            reserved.filter_map(|volume| available_class(&volume).map(str::to_owned)).collect();
        drop(state);
        for class in classes {
            match outcome {
                WorkOutcome::Done => self.queue.add(WorkItem::Class(class), Priority::Normal),
                // This claim is retried first, after its own backoff.
                WorkOutcome::Retry | WorkOutcome::RetryAfter(_) => {
                    self.queue.add_after(WorkItem::Class(class), self.settings.retry_max);
                }
            }
        }
        outcome
    }

    async fn reconcile_in_steps(&self, key: &Key, state: &mut BindState) -> WorkOutcome {
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let view = self.view(key, state);
            let step = decide(&view);
            if let StepOutcome::Finish(outcome) = self.act(key, &view, step, state).await {
                return outcome;
            }
        }
        steps.unfinished(key)
    }

    async fn reconcile_volume(&self, name: &str) -> WorkOutcome {
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let volume = self.volumes.get(&Key::cluster(name));
            let Some(volume) = volume.filter(|volume| volume.spec.claim_ref.is_none()) else {
                return WorkOutcome::Done;
            };
            let step = decide_unclaimed(&volume);
            let view = View { volumes: vec![volume], ..self.empty_view() };
            if let StepOutcome::Finish(outcome) = self.act_on_volume(&view, step).await {
                return outcome;
            }
        }
        steps.unfinished(name)
    }

    /// Enqueues the claims that wait for a volume of the class and can get one, the oldest first.
    fn reconcile_class(&self, name: &str) -> WorkOutcome {
        let class = self.classes.get(&Key::cluster(name));
        if class.is_some_and(|class| class.waits_for_first_consumer()) {
            // The scheduler chooses among these volumes.
            return WorkOutcome::Done;
        }
        let mut waiting = self.claims.by_index(index::WAITING, name);
        waiting.sort_by_key(|claim| claim.metadata.creation_timestamp);
        let volumes_of =
            |claim: &PersistentVolumeClaim| self.volumes.find(&VOLUMES_BY_CLAIM, &claim.key().to_string());
        let waiting = waiting
            .iter()
            .map(|claim| &**claim)
            .filter(|claim| !has_matching_volume(claim, &volumes_of(claim)));
        let served = self.offers.claims_to_wake(name, waiting, |name| self.volumes.get(&Key::cluster(name)));
        for claim in served {
            self.queue.add(WorkItem::Claim(claim), Priority::Normal);
        }
        WorkOutcome::Done
    }

    fn empty_view(&self) -> View {
        View {
            rules: self.rules,
            claim: None,
            class: None,
            default_class: None,
            named_volume: None,
            volumes: Vec::new(),
            offer: None,
            unscheduled: Vec::new(),
            users: Vec::new(),
            selected_node_known: true,
            live: LiveReads::default(),
        }
    }

    fn view(&self, key: &Key, state: &mut BindState) -> View {
        let claim = self.claims.get(key).filter(|_| state.live.claim != Some(LiveObject::Absent));
        let volumes = self.volumes.find(&VOLUMES_BY_CLAIM, &key.to_string());
        let users: Vec<Arc<Pod>> = self.pods.find(&PODS_BY_CLAIM, &key.to_string());
        let users = users.iter().filter(|pod| !is_terminated(pod));
        let mut view = View {
            volumes,
            users: users.clone().map(|pod| pod.key().to_string()).collect(),
            live: state.live.clone(),
            ..self.empty_view()
        };
        let Some(claim) = claim else { return view };
        if !claim.spec.volume_name.is_empty() {
            view.named_volume = self.volumes.get(&Key::cluster(&claim.spec.volume_name));
        } else if is_waiting(&claim) {
            let by_name = |name: &str| self.classes.get(&Key::cluster(name));
            view.class = Some(class_or_empty(&claim)).filter(|name| !name.is_empty()).and_then(by_name);
            let immediate = Some(VolumeBindingMode::Immediate);
            // A claim that has a volume must not reserve another.
            if view.class.as_ref().is_none_or(|class| class.volume_binding_mode == immediate)
                && !has_matching_volume(&claim, &view.volumes)
            {
                view.offer = state.reservation.take(&claim, |name| self.volumes.get(&Key::cluster(name)));
            }
            if claim.class().is_none() {
                view.default_class = default_class(&self.classes.all());
            }
            let unscheduled = users.filter(|pod| pod.node_name.is_empty());
            view.unscheduled = unscheduled.map(|pod| pod.metadata.name.clone()).collect();
            view.selected_node_known =
                claim.selected_node().is_none_or(|node| self.nodes.get(&Key::cluster(node)).is_some());
        }
        view.claim = Some(claim);
        view
    }

    /// What a resync reconciles: every claim and volume.
    fn all_items(&self) -> Vec<WorkItem> {
        let (claims, volumes) = (self.claims.all(), self.volumes.all());
        let claims = claims.iter().map(|claim| WorkItem::Claim(claim.key()));
        claims.chain(volumes.iter().map(|volume| WorkItem::of(volume))).collect()
    }
}

fn enqueue(key: WorkItem) -> EnqueueRequest<WorkItem> {
    EnqueueRequest { key, priority: Priority::Normal }
}

/// Whether one of the volumes that reference the claim matches it. Then the claim needs no other volume.
fn has_matching_volume(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>]) -> bool {
    find_matching_volume(claim, volumes.iter().map(|volume| &**volume), MatchFor::Binder { delayed: false })
        .is_some()
}

#[cfg(test)]
mod tests;
