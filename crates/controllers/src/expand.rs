//! Reports claims that wait for expansion; the contract is that of kube-controller-manager's
//! persistentvolume-expander. The resizer and the node do the expansion itself.
//!
//! - A bound claim that requests more than its capacity gets an event.
//! - If its volume was migrated from an in-tree plugin to a CSI driver, the claim is also annotated for that driver's
//!   resizer.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::work::{EnqueueRequest, RESYNC_INTERVAL, WorkOutcome, enqueue_changes, resync, run_role};
use wharf_cluster::{ApiError, Backoff, Change, EventType, Priority, Queue, Store, WatchOptions};
use wharf_model::names::annotation::STORAGE_RESIZER;
use wharf_model::names::reason::EXTERNAL_EXPANDING;
use wharf_model::patch::annotate;
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim};

use crate::Context;
use decide::{Step, decide, needs_check, newly_bound_claim, waits_for_expansion};

mod decide;

/// The event source component; upstream's name.
pub const COMPONENT: &str = "volume_expand";

/// Claims reconciled in parallel; upstream's number.
const WORKERS: usize = 10;
/// The backoff after a first failure.
const RETRY_START: Duration = Duration::from_millis(200);
/// The longest backoff.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Runs until the gate is stopped.
pub async fn run(context: Context) {
    let controller = Arc::new(ExpandController::new(context));
    let one = |claim| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&claim).await }
    };
    let feeds = |tasks: &mut JoinSet<()>| controller.spawn_feeds(tasks);
    run_role(&controller.context.gate, controller.synced(), feeds, &controller.queue, WORKERS, one).await;
}

struct ExpandController {
    context: Context,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    queue: Queue<Key>,
}

impl ExpandController {
    fn new(context: Context) -> Self {
        let cluster = &context.cluster;
        let backoff = Backoff { start: RETRY_START, max: RETRY_MAX, ..Backoff::default() };
        let queue = Queue::new("expand", backoff, cluster.metrics());
        let (claims, volumes) =
            (cluster.store(WatchOptions::default()), cluster.store(WatchOptions::default()));
        Self { claims, volumes, queue, context }
    }

    async fn synced(&self) {
        self.claims.wait_synced().await;
        self.volumes.wait_synced().await;
    }

    fn spawn_feeds(&self, into: &mut JoinSet<()>) {
        let requests = |change: &Change<PersistentVolumeClaim>| match needs_check(change) {
            true => vec![enqueue(change.key.clone())],
            false => Vec::new(),
        };
        into.spawn(enqueue_changes(self.claims.clone(), self.queue.clone(), requests));
        // The watch may report a claim as bound before it reports its volume.
        let requests = |change: &Change<PersistentVolume>| {
            newly_bound_claim(change).map(enqueue).into_iter().collect::<Vec<_>>()
        };
        into.spawn(enqueue_changes(self.volumes.clone(), self.queue.clone(), requests));
        let claims = self.claims.clone();
        into.spawn(resync(self.queue.clone(), RESYNC_INTERVAL, move || {
            let all = claims.all();
            all.iter().filter(|claim| waits_for_expansion(claim)).map(|claim| claim.metadata.key()).collect()
        }));
    }

    async fn reconcile(&self, key: &Key) -> WorkOutcome {
        let Some(claim) = self.claims.get(key) else { return WorkOutcome::Done };
        if !self.context.gate.is_open() {
            return WorkOutcome::RetryAfter(Duration::ZERO);
        }
        let volume = self.volumes.get(&Key::cluster(&claim.spec.volume_name));
        let Step { event, resizer } = decide(&claim, volume.as_deref());
        if let Some(note) = event {
            self.context.events.record_for(&*claim, EventType::Normal, EXTERNAL_EXPANDING, note);
        }
        let Some(resizer) = resizer else { return WorkOutcome::Done };
        let patch = annotate(&claim.metadata, &[(STORAGE_RESIZER, Some(resizer))]);
        match self.context.cluster.patch(&PersistentVolumeClaim::API, key, None, patch).await {
            Ok(_) | Err(ApiError::NotFound(_)) => WorkOutcome::Done,
            Err(error) => {
                tracing::warn!(pvc = %key, driver = resizer, %error, "failed to annotate claim with its resizer");
                let note = format!("error setting resizer annotation to pvc {key}, with error {error}");
                self.context.events.record_for(&*claim, EventType::Warning, EXTERNAL_EXPANDING, note);
                WorkOutcome::Retry
            }
        }
    }
}

fn enqueue(key: Key) -> EnqueueRequest<Key> {
    EnqueueRequest { key, priority: Priority::Normal }
}
