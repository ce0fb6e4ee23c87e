//! Provisions volumes for claims and deletes released volumes.
//!
//! The lifecycle of a volume: a claim needs it → the complete request is written to the [`journal`] → CreateVolume →
//! the PersistentVolume is created → the intent is removed. When the claim is deleted and the reclaim policy is
//! Delete, the volume is deleted by the rules of [`reclaim`]. Guarantees:
//!
//! - No volume leaks in a crash: the same call is repeated from the journal and completed or undone, even if the claim,
//!   its class and its node no longer exist.
//! - No intent waits without end for a driver that does not answer conclusively, unless a claim needs the answer. Before
//!   such an intent is dropped, the volume that may exist is recorded as a [suspect](crate::suspects). A driver that
//!   reports a [request error](wharf_csi::is_request_error) although it created the volume is believed.
//! - Creation and deletion of one volume never run concurrently: the queue's key is the volume's name.
//! - A volume that the driver created is deleted only if no PersistentVolume refers to it.
//! - The provisioner stores none of its own state on users' objects.
//!
//! Start with [`view`] (inputs), then [`decide`] (rules) and [`act`] (effects). [`stores`] looks up the objects of a
//! volume.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use wharf_cluster::{Change, Priority, Queue, monotonic, now};
use wharf_model::claim::ClaimPhase;
use wharf_model::volume::VolumePhase;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, topology};

use self::act::{Actor, ProvisionStates, ROLE, RecordedSuspects};
use self::capacity::CapacityHandle;
use self::decide::decide;
use self::journal::Journal;
use self::metrics::ProvisionerMetrics;
use self::stores::Stores;
use self::view::{Now, ProvisionerConfig};
use crate::context::Context;
use crate::migration::warn_of_unserved_volumes;
use wharf_cluster::work::{
    EnqueueRequest, StepLimit, StepOutcome, Steps, WorkOutcome, enqueue_changes, propagate_panic,
    reconcile_or_forget, resync, run_workers,
};

mod act;
mod capacity;
mod competition;
mod decide;
mod intent;
mod journal;
mod metrics;
mod protection;
mod reclaim;
mod request;
mod settings;
#[cfg(test)]
mod simulation;
mod source;
mod stores;
#[cfg(test)]
pub(crate) mod testing;
mod view;
mod volume;

#[cfg(feature = "fuzzing")]
pub use journal::rewrite_intent;
pub use settings::{CapacitySettings, ImmediateBinding, Settings};

/// The maximum number of steps of one reconciliation; a volume needs about ten.
const STEP_LIMIT: StepLimit = StepLimit::BackOff(64);

/// Runs until the gate stops. Does nothing while it does not hold the lease. After it has acquired the lease again, it
/// reconciles everything from scratch, since another process may have acted in between.
pub(crate) async fn run(context: Context, settings: Settings) {
    let config = Arc::new(ProvisionerConfig {
        driver: context.driver.name().to_owned(),
        capabilities: *context.driver.capabilities(),
        identity: identity(&context),
        node: context.node.clone(),
        settings,
    });
    let stores = Stores::watch(&context.cluster, &config);
    let capacity = CapacityHandle::default();
    let capacity_loop = async {
        if let Some(settings) = config.settings.capacity.clone() {
            capacity::run(context.clone(), config.settings.worker_options, settings, capacity.clone()).await;
        }
    };
    let leader_loop = async {
        let mut warned = false;
        loop {
            let ready = async {
                context.gate.wait_open().await;
                stores.synced().await;
            };
            tokio::select! {
                biased;
                () = context.gate.wait_stopped() => return,
                () = ready => {}
            }
            if !std::mem::replace(&mut warned, true) {
                warn_of_unserved_volumes(ROLE, &config.driver, &stores.volumes);
            }
            run_term(&context, &config, &stores, &capacity).await;
        }
    };
    tokio::join!(leader_loop, capacity_loop);
}

/// The delay before the next leadership term after a panic in the journal.
const JOURNAL_RESTART_DELAY: Duration = Duration::from_secs(5);

/// One leadership term: from acquiring the lease until it is lost or the gate stops.
async fn run_term(
    context: &Context,
    config: &Arc<ProvisionerConfig>,
    stores: &Stores,
    capacity: &CapacityHandle,
) {
    let (gate, term_end) = context.gate.leadership_term();
    let context = Context { gate, ..context.clone() };
    let journal = Journal::open(&context).await;
    if journal.is_broken() {
        // Without the intents, sources that are still needed would lose their finalizers.
        return delay_next_term(&context).await;
    }
    let queue: Queue<String> =
        Queue::new("volumes", config.settings.worker_options.backoff(), context.cluster.metrics());
    let mut background = spawn_feeds(&context, stores, &journal, &queue);
    let intents = journal.clone();
    background.spawn(protection::run(
        context.clone(),
        stores.claims.clone(),
        stores.volumes.clone(),
        Arc::new(move || intents.volumes().iter().filter_map(|volume| intents.get(volume)).collect()),
        config.settings.clone(),
    ));
    let actor = Actor {
        context: context.clone(),
        config: Arc::clone(config),
        journal: journal.clone(),
        states: ProvisionStates::default(),
        metrics: context.metrics.get_or_register(ProvisionerMetrics::register),
        capacity: capacity.clone(),
        suspects: RecordedSuspects::default(),
    };
    let workers = run_workers(&queue, &context.gate, config.settings.worker_options.workers, |volume| {
        let (stores, actor) = (stores.clone(), actor.clone());
        async move {
            let forget = || actor.states.remove(&volume);
            reconcile_or_forget(ROLE, &volume, reconcile(volume.clone(), stores, actor.clone()), forget).await
        }
    });
    let lost = async {
        context.gate.wait_lost().await;
        // The workers drop running work; the journal and the feeds end with the term.
        term_end.cancel();
        std::future::pending().await
    };
    tokio::select! {
        biased;
        () = workers => {}
        () = lost => {}
        () = propagate_panic(&mut background) => {}
        // The next term opens the journal again.
        () = journal.wait_broken() => {
            background.abort_all();
            delay_next_term(&context).await;
        }
    }
    background.abort_all();
    journal.flush().await;
}

async fn delay_next_term(context: &Context) {
    tokio::select! {
        () = sleep(JOURNAL_RESTART_DELAY) => {}
        () = context.gate.wait_stopped() => {}
    }
}

/// Reconciles a volume, step by step, until it has to wait.
async fn reconcile(volume: String, stores: Stores, actor: Actor) -> WorkOutcome {
    let mut steps = Steps::new(&actor.context.gate, STEP_LIMIT);
    while steps.start_next() {
        let inputs = stores.inputs(&volume, &actor.journal, &actor.states);
        let step = decide(&inputs.view(&volume, &stores), Now { wall: now(), monotonic: monotonic() });
        if let StepOutcome::Finish(outcome) = actor.act(&volume, &inputs, step).await {
            return outcome;
        }
    }
    steps.unfinished(&volume)
}

/// Starts the tasks that enqueue volumes when objects change.
fn spawn_feeds(context: &Context, stores: &Stores, journal: &Journal, queue: &Queue<String>) -> JoinSet<()> {
    let mut feeds = JoinSet::new();
    let work_item = |key, priority| EnqueueRequest { key, priority };

    // A claim is enqueued while it is pending and once more when it no longer is. When it becomes bound, the claims that
    // wait to clone it are enqueued too.
    let (lookup, attempts) = (stores.clone(), context.attempts.clone());
    feeds.spawn(enqueue_changes(stores.claims.clone(), queue.clone(), move |change| {
        if change.new.is_none() {
            attempts.remove(ROLE, &change.key.to_string());
        }
        let was_pending = change.old.as_ref().filter(|old| old.spec.volume_name.is_empty());
        let is_pending = change.new.as_ref().filter(|new| new.spec.volume_name.is_empty());
        let clones = match became(change, |claim| claim.status.phase == ClaimPhase::Bound) {
            true => lookup.pending_clones_of(&change.key),
            false => Vec::new(),
        };
        let claims = is_pending.or(was_pending).into_iter().chain(&clones);
        claims
            .filter_map(|claim| lookup.volume_name_for(claim))
            .map(|key| work_item(key, Priority::High))
            .collect()
    }));

    let (lookup, intents) = (stores.clone(), journal.clone());
    feeds.spawn(enqueue_changes(stores.volumes.clone(), queue.clone(), move |change| {
        let volume = change.new.as_ref().or(change.old.as_ref());
        let Some(volume) = volume.filter(|volume| lookup.is_relevant(volume, &intents)) else {
            return Vec::new();
        };
        let mut items = vec![work_item(change.key.name.clone(), Priority::Normal)];
        // Volumes with the same handle wait until this one is deleted or its reclaim policy changes.
        let siblings = lookup.siblings(volume);
        let others = siblings.iter().filter(|other| other.metadata.name != change.key.name);
        items.extend(others.map(|other| work_item(other.metadata.name.clone(), Priority::Normal)));
        // The watch may report the claim as bound before the volume. A clone needs both.
        if let (true, Some(claim)) = (became(change, is_bound), &volume.spec.claim_ref) {
            let clones = lookup.pending_clones_of(&claim.key());
            items.extend(
                clones
                    .iter()
                    .filter_map(|claim| lookup.volume_name_for(claim))
                    .map(|key| work_item(key, Priority::High)),
            );
        }
        items
    }));

    let lookup = stores.clone();
    feeds.spawn(enqueue_changes(stores.classes.clone(), queue.clone(), move |change| {
        let pending = lookup.pending_for_class(&change.key.name);
        pending
            .iter()
            .filter_map(|claim| lookup.volume_name_for(claim))
            .map(|key| work_item(key, Priority::High))
            .collect()
    }));

    if let Some(nodes) = &stores.nodes {
        let lookup = stores.clone();
        feeds.spawn(enqueue_changes(nodes.csi_nodes.clone(), queue.clone(), move |change| {
            let driver = lookup.config.driver.as_str();
            let keys = |node: &Option<Arc<_>>| {
                node.as_ref().map(|node| topology::topology_keys(node, driver).to_vec())
            };
            if keys(&change.old) == keys(&change.new) {
                return Vec::new();
            }
            // A new node does not end the backoff of claims that did not wait for it.
            let pending = lookup.pending_claims();
            pending
                .iter()
                .filter(|claim| may_wait_for_node(claim, &change.key.name))
                .filter_map(|claim| lookup.volume_name_for(claim))
                .map(|key| work_item(key, Priority::High))
                .collect()
        }));
    }

    let (intents, recovered) = (journal.clone(), queue.clone());
    feeds.spawn(async move {
        loop {
            for volume in intents.next_found().await {
                tracing::info!(pv = volume, "found intent in journal; completing or undoing it");
                recovered.add(volume, Priority::High);
            }
        }
    });

    let (lookup, intents) = (stores.clone(), journal.clone());
    let interval = stores.config.settings.worker_options.resync;
    feeds.spawn(resync(queue.clone(), interval, move || lookup.volumes_to_resync(&intents)));

    // A released volume waits until its attachments are deleted.
    if let Some(attachments) = &stores.attachments {
        feeds.spawn(enqueue_changes(attachments.clone(), queue.clone(), move |change: &Change<_>| {
            let deleted = change.old.as_ref().filter(|_| change.new.is_none());
            let volume = deleted.and_then(|deleted| deleted.spec.source.persistent_volume_name.clone());
            volume.map(|key| work_item(key, Priority::Normal)).into_iter().collect()
        }));
    }
    feeds
}

/// Whether a claim may have waited for this node: the node is selected for it, or no node is.
fn may_wait_for_node(claim: &PersistentVolumeClaim, node: &str) -> bool {
    claim.selected_node().is_none_or(|selected| selected == node)
}

/// Whether the condition holds for the new object and did not hold for the old one.
fn became<K>(change: &Change<K>, condition: impl Fn(&K) -> bool) -> bool {
    let holds = |object: &Option<Arc<K>>| object.as_ref().is_some_and(|object| condition(object));
    holds(&change.new) && !holds(&change.old)
}

fn is_bound(volume: &PersistentVolume) -> bool {
    volume.status.phase == VolumePhase::Bound
}

/// The provisioner's identity, different for each process. Like upstream, it is stored in the attributes of each volume.
fn identity(context: &Context) -> String {
    let mut random = [0; 2];
    // If randomness is unavailable, the time alone makes it unique.
    let _ = wharf_model::system::fill_random(&mut random);
    let random = u16::from_le_bytes(random) % 10_000;
    let mut identity = format!("{}-{random}-{}", now().0, context.driver.name());
    if let Some(node) = &context.node {
        identity = format!("{identity}-{}", node.name);
    }
    identity
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provisioner::testing::claim;

    #[test]
    fn new_node_wakes_only_claims_that_may_wait_for_it() {
        let selected = |node: &str| {
            claim(json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}}))
        };
        for (claim, expected) in [(claim(json!({})), true), (selected("a"), true), (selected("b"), false)] {
            assert_eq!(may_wait_for_node(&claim, "a"), expected, "{claim:?}");
        }
    }
}
