//! Expands and modifies volumes as their claims request.
//!
//! - All durable state is in the claim's status, in upstream's format. After a crash between any two writes, or when
//!   upstream's resizer takes over, the work continues from there.
//! - One queue, keyed by claim: expansion and modification of a claim never overlap, on the server or in the driver.
//!   Neither waits for the backoff of the other.
//! - A call that may still run in the driver is completed before another one is sent.
//! - Pods are watched only after the driver refused to expand a volume because it is in use, and only pods that use
//!   claims are stored.
//!
//! The rules are in [`decide`], the in-process state in [`state`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use wharf_cluster::indexes::PODS_BY_CLAIM;
use wharf_cluster::{Queue, Store, WatchOptions, monotonic};
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass};

use crate::context::Context;
use crate::migration::warn_of_unserved_volumes;
use decide::{ResizeStep, WaitReason, Waiting, decide};
use state::{Epoch, ResizeState, ResizeStates};
use view::{Classes, PodUse, ResizerCapabilities, View};
use wake::{BY_ATTRIBUTES_CLASS, work_item};
use wharf_cluster::work::{
    StepLimit, StepOutcome, Steps, WorkOutcome, WorkerOptions, enqueue_changes, reconcile_or_forget, resync,
    run_workers,
};

mod act;
mod decide;
#[cfg(test)]
mod simulation;
mod state;
mod view;
mod wake;
mod write;

/// Names in `/debug/attempts`. Expansion and modification have one each, so that the success of one does not hide the
/// failure of the other.
const ROLE: &str = "resizer";
const MODIFIER: &str = "modifier";
/// Expansion and modification take about ten steps each.
const STEP_LIMIT: StepLimit = StepLimit::BackOff(64);
/// Between checks for VolumeAttributesClasses that cannot be read.
const CLASSES_RECHECK: Duration = Duration::from_secs(5);
/// Selects pods that have not terminated: terminated pods use no volumes.
pub(crate) const NON_TERMINAL_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Settings of the resizer.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Concurrency, timeout and backoff.
    pub worker_options: WorkerOptions,
    /// If the driver refuses to expand a volume in use, wait until no pod uses it.
    pub handle_volume_inuse_error: bool,
    /// Pass the names of claim and volume to ControllerModifyVolume.
    pub extra_modify_metadata: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            worker_options: WorkerOptions::with_timeout(Duration::from_secs(10)),
            handle_volume_inuse_error: true,
            extra_modify_metadata: false,
        }
    }
}

/// Runs until the gate stops.
pub(crate) async fn run(context: Context, settings: Settings) {
    let Some(capabilities) = ResizerCapabilities::of(context.driver.capabilities()) else {
        let driver = context.driver.name();
        tracing::error!(
            driver,
            "driver supports neither expansion nor modification: disable the resizer role"
        );
        context.gate.wait_stopped().await;
        return;
    };
    let resizer = Arc::new(Resizer::new(context, settings, capabilities));
    let (queue, gate) = (resizer.queue.clone(), resizer.context.gate.clone());
    let one = |key| {
        let resizer = Arc::clone(&resizer);
        async move {
            let forget = || resizer.states.remove(&key);
            reconcile_or_forget(ROLE, &key, resizer.reconcile(key.clone()), forget).await
        }
    };
    let worked = run_workers(&queue, &gate, resizer.settings.worker_options.workers, one);
    tokio::select! {
        biased;
        () = worked => {}
        () = resizer.feed() => {}
    }
}

/// The resizer of one driver.
struct Resizer {
    context: Context,
    settings: Settings,
    capabilities: ResizerCapabilities,
    queue: Queue<Key>,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    /// `None`: the driver does not support modification.
    classes: Option<Store<VolumeAttributesClass>>,
    /// Empty until the driver refuses to expand a volume in use.
    pods: OnceLock<Store<Pod>>,
    pods_wanted: Notify,
    states: ResizeStates,
}

/// The inputs of one decision about a claim.
struct Inputs {
    key: Key,
    uid: String,
    claim: Option<Arc<PersistentVolumeClaim>>,
    volume: Option<Arc<PersistentVolume>>,
    requested: Option<Arc<VolumeAttributesClass>>,
    target: Option<Arc<VolumeAttributesClass>>,
    classes_known: bool,
    is_local: bool,
    pod_use: PodUse,
    epoch: Epoch,
    state: ResizeState,
}

impl Inputs {
    fn classes(&self) -> Classes<'_> {
        Classes {
            known: self.classes_known,
            requested: self.requested.as_deref(),
            target: self.target.as_deref(),
        }
    }

    fn view<'a>(&'a self, driver: &'a str, capabilities: ResizerCapabilities) -> View<'a> {
        View {
            claim: self.claim.as_deref(),
            volume: self.volume.as_deref(),
            driver,
            capabilities,
            is_local: self.is_local,
            pod_use: self.pod_use,
            classes: self.classes(),
            state: &self.state,
        }
    }
}

impl Resizer {
    fn new(context: Context, settings: Settings, capabilities: ResizerCapabilities) -> Self {
        let cluster = &context.cluster;
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        let volumes = cluster.store(WatchOptions::default());
        let classes = capabilities.modify.then(|| cluster.store(WatchOptions::default()));
        if capabilities.modify {
            claims.add_index(BY_ATTRIBUTES_CLASS, wake::classes_of);
        }
        Self {
            queue: Queue::new(ROLE, settings.worker_options.backoff(), cluster.metrics()),
            claims,
            volumes,
            classes,
            pods: OnceLock::new(),
            pods_wanted: Notify::new(),
            states: ResizeStates::default(),
            context,
            settings,
            capabilities,
        }
    }

    /// Fills the queue.
    async fn feed(&self) {
        let driver = self.context.driver.name();
        let claims = enqueue_changes(self.claims.clone(), self.queue.clone(), |change| {
            let known = self.states.contains(&change.key);
            wake::claim_needs_reconcile(change, known)
                .then(|| work_item(change.key.clone()))
                .into_iter()
                .collect()
        });
        let volumes = enqueue_changes(self.volumes.clone(), self.queue.clone(), |change| {
            let needs_work = |key: &Key| self.claims.get(key).is_some_and(|claim| wake::needs_work(&claim));
            wake::claim_of_volume(change, driver, needs_work).map(work_item).into_iter().collect()
        });
        let resync = resync(self.queue.clone(), self.settings.worker_options.resync, || {
            let needs_work = |claim: &&Arc<PersistentVolumeClaim>| {
                wake::needs_work(claim) || self.states.contains(&claim.metadata.key())
            };
            self.claims.all().iter().filter(needs_work).map(|claim| claim.metadata.key()).collect()
        });
        let warning = async {
            self.volumes.wait_synced().await;
            warn_of_unserved_volumes(ROLE, driver, &self.volumes);
        };
        let (classes, pods) = (self.feed_classes(), self.feed_pods());
        tokio::join!(claims, volumes, classes, pods, resync, warning, self.clear_on_lease_loss());
    }

    async fn feed_classes(&self) {
        let Some(classes) = &self.classes else { return };
        enqueue_changes(classes.clone(), self.queue.clone(), |change| {
            let Some(class) = wake::added_class(change) else { return Vec::new() };
            let claims = self.claims.by_index(BY_ATTRIBUTES_CLASS, class);
            claims.iter().map(|claim| work_item(claim.metadata.key())).collect()
        })
        .await;
    }

    /// Watches pods once they are needed.
    async fn feed_pods(&self) {
        self.pods_wanted.notified().await;
        tracing::info!("driver does not expand volumes in use; watching pods");
        let field_selector = Some(NON_TERMINAL_PODS.to_owned());
        let options = WatchOptions { field_selector, ..WatchOptions::slim() };
        let pods = self.context.cluster.store::<Pod>(options);
        pods.share_index(&PODS_BY_CLAIM);
        let pods = self.pods.get_or_init(|| pods).clone();
        enqueue_changes(pods, self.queue.clone(), |change| {
            let waiting = wake::released(change).into_iter().filter(|key| self.states.contains(key));
            waiting.map(work_item).collect()
        })
        .await;
    }

    /// Clears the state when the lease is lost: it is valid only while no other process acts.
    async fn clear_on_lease_loss(&self) {
        loop {
            self.context.gate.wait_open().await;
            self.context.gate.wait_lost().await;
            self.states.clear();
        }
    }

    /// Reconciles a claim, step by step, until it has to wait.
    async fn reconcile(&self, key: Key) -> WorkOutcome {
        let driver = self.context.driver.name();
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let mut inputs = self.inputs(&key);
            let now = monotonic();
            let step = decide(&inputs.view(driver, self.capabilities), now);
            let (claim, volume) = match (&step, inputs.claim.clone(), inputs.volume.clone()) {
                (ResizeStep::Wait(waiting), _, _) => return self.wait(&key, waiting, now),
                (_, Some(claim), Some(volume)) => (claim, volume),
                // The claim is gone: drop its state.
                _ => {
                    self.states.remove(&key);
                    for role in [ROLE, MODIFIER] {
                        self.context.attempts.remove(role, &key.to_string());
                    }
                    return WorkOutcome::Done;
                }
            };
            tracing::debug!(pvc = %key, pv = volume.metadata.name, ?step, "decided next step");
            let written = self.act(&mut inputs, &claim, &volume, &step).await;
            let outcome = written.next_step(|error| {
                tracing::warn!(pvc = %key, pv = volume.metadata.name, ?step, %error, "failed to update claim or volume; retrying");
                self.context.attempts.record(
                    ROLE,
                    &key.to_string(),
                    format!("{step:?}"),
                    Some(error.to_string()),
                );
            });
            if let StepOutcome::Finish(outcome) = outcome {
                return outcome;
            }
        }
        steps.unfinished(&key)
    }

    fn wait(&self, key: &Key, waiting: &Waiting, now: wharf_model::Monotonic) -> WorkOutcome {
        let Waiting { expansion, modification } = waiting;
        tracing::debug!(pvc = %key, %expansion, %modification, "waiting");
        match waiting.until() {
            Some(until) => WorkOutcome::RetryAfter(until.since(now)),
            None if *modification == WaitReason::ClassesUnknown => WorkOutcome::RetryAfter(CLASSES_RECHECK),
            None => WorkOutcome::Done,
        }
    }

    /// The current inputs for deciding about a claim.
    fn inputs(&self, key: &Key) -> Inputs {
        let claim = self.claims.get(key);
        let volume = claim.as_ref().filter(|claim| !claim.spec.volume_name.is_empty());
        let volume = volume.and_then(|claim| self.volumes.get(&Key::cluster(&claim.spec.volume_name)));
        let class = |name: Option<&String>| {
            let name = name.filter(|name| !name.is_empty())?;
            self.classes.as_ref()?.get(&Key::cluster(name))
        };
        let requested = claim.as_ref().and_then(|claim| claim.spec.volume_attributes_class_name.as_ref());
        let status = claim.as_ref().and_then(|claim| claim.status.modify_volume_status.as_ref());
        let (requested, target) =
            (class(requested), class(status.map(|status| &status.target_volume_attributes_class_name)));
        let uid = claim.as_ref().map(|claim| claim.metadata.uid.clone()).unwrap_or_default();
        let (epoch, state) = self.states.get(key, &uid);
        // With node deployment, only volumes of the local node are handled.
        let own = self.context.node.as_ref();
        let is_local = volume.as_ref().is_none_or(|volume| own.is_none_or(|node| node.owns(volume)));
        let classes_known = self.classes.as_ref().is_some_and(Store::is_synced);
        let (key, pod_use) = (key.clone(), self.pod_use(key));
        Inputs { key, uid, claim, volume, requested, target, classes_known, is_local, pod_use, epoch, state }
    }

    fn pod_use(&self, key: &Key) -> PodUse {
        match self.pods.get().filter(|pods| pods.is_synced()) {
            None => PodUse::Unknown,
            Some(pods) if pods.find(&PODS_BY_CLAIM, &key.to_string()).iter().all(|pod| pod.has_ended()) => {
                PodUse::Unused
            }
            Some(_) => PodUse::InUse,
        }
    }
}
