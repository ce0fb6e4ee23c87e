//! Creates the claims of generic ephemeral volumes; the contract is that of kube-controller-manager's
//! ephemeral-volume-controller.
//!
//! - A pod with an ephemeral volume gets a claim `<pod>-<volume>` from the volume's template. The pod owns it, so it is
//!   deleted with the pod.
//! - A claim of that name that the pod does not own is never used: an event on the pod says so, and the pod waits until
//!   that claim is deleted.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use wharf_cluster::indexes::PODS_BY_CLAIM;
use wharf_cluster::work::{
    EnqueueRequest, RESYNC_INTERVAL, StepLimit, Steps, WorkOutcome, enqueue_changes, resync, run_role,
};
use wharf_cluster::{ApiError, Backoff, Change, EventType, Priority, Queue, Store, WatchOptions};
use wharf_model::names::reason::FAILED_BINDING;
use wharf_model::{Key, Kind, PersistentVolumeClaim, Pod};

use crate::Context;
use decide::{Step, decide, needs_claims, ownership_changed};

mod decide;

/// The event source component; upstream's name.
pub const COMPONENT: &str = "ephemeral_volume";

/// A pod takes one step for each of its ephemeral volumes.
const STEP_LIMIT: StepLimit = StepLimit::Requeue(64);
/// Pods reconciled in parallel.
const WORKERS: usize = 30;
/// The backoff after a first failure.
const RETRY_START: Duration = Duration::from_millis(200);
/// The longest backoff.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Runs until the gate is stopped.
pub async fn run(context: Context) {
    let controller = Arc::new(EphemeralController::new(context));
    let one = |pod| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&pod).await }
    };
    let feeds = |tasks: &mut JoinSet<()>| controller.spawn_feeds(tasks);
    run_role(&controller.context.gate, controller.synced(), feeds, &controller.queue, WORKERS, one).await;
}

struct EphemeralController {
    context: Context,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    queue: Queue<Key>,
}

impl EphemeralController {
    fn new(context: Context) -> Self {
        let cluster = &context.cluster;
        let pods = cluster.store::<Pod>(WatchOptions::default());
        pods.share_index(&PODS_BY_CLAIM);
        let backoff = Backoff { start: RETRY_START, max: RETRY_MAX, ..Backoff::default() };
        let queue = Queue::new("ephemeral", backoff, cluster.metrics());
        Self { pods, claims: cluster.store(WatchOptions::default()), queue, context }
    }

    async fn synced(&self) {
        self.pods.wait_synced().await;
        self.claims.wait_synced().await;
    }

    /// Starts the tasks that enqueue pods: new pods, and pods whose claim was deleted or changed its owner.
    fn spawn_feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let requests = |change: &Change<Pod>| {
            let known = change.old.as_ref().map(|old| &old.metadata.uid);
            let new = change.new.as_ref().filter(|new| known != Some(&new.metadata.uid) && needs_claims(new));
            new.map(|_| enqueue(change.key.clone())).into_iter().collect()
        };
        into.spawn(enqueue_changes(self.pods.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        let requests = move |change: &Change<PersistentVolumeClaim>| {
            if !ownership_changed(change) {
                return Vec::new();
            }
            let users = this.pods.find(&PODS_BY_CLAIM, &change.key.to_string());
            users.iter().filter(|pod| needs_claims(pod)).map(|pod| enqueue(pod.key())).collect()
        };
        into.spawn(enqueue_changes(self.claims.clone(), self.queue.clone(), requests));
        let pods = self.pods.clone();
        into.spawn(resync(self.queue.clone(), RESYNC_INTERVAL, move || {
            pods.all().iter().filter(|pod| needs_claims(pod)).map(|pod| pod.key()).collect()
        }));
    }

    /// Reconciles one pod, claim by claim.
    async fn reconcile(&self, key: &Key) -> WorkOutcome {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let Some(pod) = self.pods.get(key) else { return WorkOutcome::Done };
            let (volume, name, body) =
                match decide(&pod, |name| self.claims.get(&Key::namespaced(namespace, name))) {
                    Step::Idle => return WorkOutcome::Done,
                    // The pod is enqueued again when the claim is deleted or changes its owner.
                    Step::Conflict { volume, reason } => {
                        self.record_failure(&pod, &volume, &reason);
                        return WorkOutcome::Done;
                    }
                    Step::CreateClaim { volume, claim, body } => (volume, claim, body),
                };
            if let Err(error) = self.create_claim(namespace, &name, &body).await {
                let pvc = Key::namespaced(namespace, &name);
                tracing::warn!(pod = %key, %pvc, %error, "failed to create claim of ephemeral volume");
                self.record_failure(&pod, &volume, &format!("create PVC {name}: {error}"));
                return WorkOutcome::Retry;
            }
        }
        steps.unfinished(key)
    }

    async fn create_claim(&self, namespace: &str, name: &str, body: &Value) -> Result<(), ApiError> {
        let cluster = &self.context.cluster;
        match cluster.create(&PersistentVolumeClaim::API, Some(namespace), body).await {
            Ok(_) => {
                tracing::info!(pvc = %Key::namespaced(namespace, name), "created claim of ephemeral volume");
                Ok(())
            }
            // Created before a crash, or not the pod's: this read updates the store, and the next step decides.
            Err(error @ ApiError::AlreadyExists(_)) => {
                match cluster.get::<PersistentVolumeClaim>(&Key::namespaced(namespace, name)).await? {
                    Some(_) => Ok(()),
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn record_failure(&self, pod: &Pod, volume: &str, reason: &str) {
        let note = format!("ephemeral volume {volume}: {reason}");
        self.context.events.record_for(pod, EventType::Warning, FAILED_BINDING, note);
    }
}

fn enqueue(key: Key) -> EnqueueRequest<Key> {
    EnqueueRequest { key, priority: Priority::Normal }
}
