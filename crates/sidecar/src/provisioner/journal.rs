//! The intent journal: records each CreateVolume before it is sent, so that a crash leaves no unknown volume behind.
//!
//! Intents are stored in Lease objects in the sidecar's own namespace, since that is the only kind that upstream's RBAC
//! rules for a provisioner allow it to create and delete there. Guarantees:
//!
//! - When [`Journal::write`] returns, the intent survives a crash. It stays until [`Journal::finish`], and perhaps a
//!   little longer: a process that finds an intent checks whether it is done already.
//! - Many intents cost one request. Finished ones are deleted off the critical path.
//! - Without permission to store a journal, intents are held in memory, as upstream does, and a warning is logged once.
//!   An intent that exceeds the size limit of Kubernetes is held in memory, too.
//! - After the lease was lost, the journal is read again before anything is written.
//!
//! The rules are in [`planner`] and [`removals`], the format of a segment in [`segment`], the requests in [`act`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use wharf_cluster::ApiError;
use wharf_model::panics::catch;

use self::act::JournalStore;
use self::planner::{Job, LoadOutcome, Planner, WriteId, WriteOutcome, WriteResults};
use self::removals::RemoveOutcome;
use self::segment::Owner;
use super::intent::Intent;
use crate::context::Context;
use wharf_cluster::work::Gate;

mod act;
mod planner;
mod removals;
mod segment;

#[cfg(feature = "fuzzing")]
pub use segment::rewrite_intent;

/// How long shutdown waits for finished intents to be deleted.
const FLUSH: Duration = Duration::from_secs(2);

/// Why an intent was not written. CreateVolume must not be sent.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum JournalError {
    /// Another intent is open for the volume and has to be handled first.
    #[error("another intent for volume {volume} is already open")]
    Exists { volume: String },
    /// Another replica may be writing the journal.
    #[error("the intent journal is closed: the lease was lost, or the sidecar is stopping")]
    Closed,
    /// The API server rejected the write.
    #[error("failed to write the intent: {0}")]
    Api(ApiError),
    /// The intent cannot be serialized.
    #[error("the intent for volume {volume} cannot be written as JSON: {reason}")]
    NotJson { volume: String, reason: String },
}

/// The journal. Clones share it.
#[derive(Clone)]
pub(crate) struct Journal {
    shared: Arc<Shared>,
    _tasks: Arc<[AbortOnDropHandle<()>; 2]>,
}

struct Shared {
    state: Mutex<State>,
    metrics: JournalMetrics,
    /// Notified when the writer may have a job.
    wake: Notify,
    /// Notified when the planner's state changed.
    changed: Notify,
    /// Cancelled when a task of the journal has panicked.
    broken: CancellationToken,
}

struct State {
    planner: Planner,
    waiting: HashMap<WriteId, oneshot::Sender<Result<(), JournalError>>>,
    last: WriteId,
    /// Whether the last log message reported the journal as durable.
    reported_durable: Option<bool>,
}

impl Journal {
    /// Waits for the lease and loads the journal. After a stop, returns a journal that rejects writes.
    pub(crate) async fn open(context: &Context) -> Self {
        let store = JournalStore {
            cluster: context.cluster.clone(),
            namespace: context.namespace.clone(),
            owner: Owner {
                driver: context.driver.name().to_owned(),
                node: context.node.as_ref().map(|node| node.name.clone()),
            },
        };
        let journal = Self::start(
            store,
            context.gate.clone(),
            context.metrics.get_or_register(JournalMetrics::register),
        );
        tokio::select! {
            biased;
            () = journal.ready() => {}
            () = journal.wait_broken() => {}
            () = context.gate.wait_stopped() => {}
        }
        journal
    }

    fn start(store: JournalStore, gate: Gate, metrics: JournalMetrics) -> Self {
        let state =
            State { planner: Planner::new(), waiting: HashMap::new(), last: 0, reported_durable: None };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            metrics,
            wake: Notify::new(),
            changed: Notify::new(),
            broken: CancellationToken::new(),
        });
        let writer = tokio::spawn(Arc::clone(&shared).until_broken(Arc::clone(&shared).run(store)));
        let watcher = tokio::spawn(Arc::clone(&shared).until_broken(Arc::clone(&shared).follow_lease(gate)));
        Self { shared, _tasks: Arc::new([writer, watcher].map(AbortOnDropHandle::new)) }
    }

    /// Waits until a task of the journal panics. From then on nothing is written: open the journal again.
    pub(crate) async fn wait_broken(&self) {
        self.shared.broken.cancelled().await;
    }

    /// Whether a task of the journal panicked. It may not have loaded all intents.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.broken.is_cancelled()
    }

    async fn ready(&self) {
        self.shared.wait_for(|planner| planner.is_ready().then_some(())).await;
    }

    /// The open intent of a volume.
    pub(crate) fn get(&self, volume: &str) -> Option<Arc<Intent>> {
        self.shared.lock().planner.get(volume)
    }

    /// The volumes with open intents.
    pub(crate) fn volumes(&self) -> Vec<String> {
        self.shared.lock().planner.volumes()
    }

    /// Waits for intents that this process did not write and returns their volumes: after the start, and after the
    /// journal was read again because the lease had been lost. Returns each once. Cancel-safe.
    pub(crate) async fn next_found(&self) -> Vec<String> {
        self.shared.wait_for(|planner| Some(planner.take_found()).filter(|found| !found.is_empty())).await
    }

    /// Writes an intent. Writing the same intent again has no effect; a different one for the same volume is rejected.
    pub(crate) async fn write(&self, intent: Intent) -> Result<(), JournalError> {
        let text = serde_json::to_string(&intent).map_err(|error| JournalError::NotJson {
            volume: intent.volume.clone(),
            reason: error.to_string(),
        })?;
        if !segment::fits(&text) {
            self.shared.metrics.too_large.inc();
            tracing::warn!(
                pv = intent.volume,
                bytes = text.len(),
                "intent is too large for the journal: the volume may leak if the sidecar crashes during CreateVolume; \
                --strict-topology reduces its size"
            );
        }
        let result = {
            let mut state = self.shared.lock();
            state.last += 1;
            let write_id = state.last;
            match state.planner.write(write_id, Arc::new(intent), text.into(), Instant::now()) {
                Some(result) => {
                    self.shared.update_gauges(&state);
                    return result;
                }
                None => {
                    let (sender, result) = oneshot::channel();
                    state.waiting.insert(write_id, sender);
                    result
                }
            }
        };
        self.shared.wake.notify_one();
        // The writer runs as long as the journal exists.
        result.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Closes the intent: the volume is saved as a PersistentVolume, or certainly does not exist.
    pub(crate) fn finish(&self, volume: &str) {
        let mut state = self.shared.lock();
        state.planner.finish(volume, Instant::now());
        self.shared.update_gauges(&state);
        self.shared.wake.notify_one();
    }

    /// Deletes finished intents before shutdown. The next start finds the rest and closes them.
    pub(crate) async fn flush(&self) {
        self.shared.lock().planner.removals.expedite(Instant::now());
        self.shared.wake.notify_one();
        let idle = self.shared.wait_for(|planner| planner.removals.is_idle(Instant::now()).then_some(()));
        if timeout(FLUSH, idle).await.is_err() {
            tracing::warn!("finished intents remain in the journal; the next start removes them");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The planner's state is consistent between any two calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the planner returns a result.
    async fn wait_for<T>(&self, mut result: impl FnMut(&mut Planner) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before the check, so that no notification is missed.
            changed.as_mut().enable();
            if let Some(result) = result(&mut self.lock().planner) {
                return result;
            }
            changed.await;
        }
    }

    /// Runs a task of the journal, and records its panic.
    async fn until_broken(self: Arc<Self>, task: impl Future<Output = ()>) {
        if catch("journal", "tasks", task).await.is_err() {
            self.broken.cancel();
        }
    }

    /// Notifies the planner when the lease is acquired and when it is lost.
    async fn follow_lease(self: Arc<Self>, gate: Gate) {
        loop {
            gate.wait_open().await;
            self.lock().planner.lease_acquired(Instant::now());
            self.wake.notify_one();
            gate.wait_lost().await;
            self.update(Planner::lease_lost);
            tracing::info!("lease lost; closed the intent journal until it is acquired again");
        }
    }

    /// Runs the planner's jobs. Never returns.
    async fn run(self: Arc<Self>, store: JournalStore) {
        let mut running: JoinSet<JobResult> = JoinSet::new();
        loop {
            let due = loop {
                let mut state = self.lock();
                match state.planner.next(Instant::now(), || store.owner.segment_name(random())) {
                    Some(job) => {
                        if let Job::Write { intents, .. } = &job {
                            self.metrics.writes.inc();
                            self.metrics.batch.observe(intents.len() as f64);
                        }
                        running.spawn(work(store.clone(), job));
                    }
                    None => break state.planner.due(),
                }
            };
            let due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(ended) = running.join_next() => match ended {
                    Ok(ended) => self.job_ended(ended),
                    // The planner would wait for this job.
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
                () = self.wake.notified() => {}
                () = due => {}
            }
        }
    }

    fn job_ended(&self, ended: JobResult) {
        let refused = match &ended {
            JobResult::Load(LoadOutcome::Forbidden(error))
            | JobResult::Write(_, WriteOutcome::Forbidden(error)) => Some(error.clone()),
            _ => None,
        };
        self.update(|planner| {
            let now = Instant::now();
            match ended {
                JobResult::Load(outcome) => planner.loaded(outcome, now),
                JobResult::Write(name, outcome) => planner.written(&name, outcome, now),
                JobResult::Remove(name, outcome) => {
                    planner.removals.ended(&name, outcome, now);
                    WriteResults::new()
                }
            }
        });
        if let Some(error) = refused {
            self.warn_if_unavailable(&error);
        }
    }

    /// Updates the planner and sends results to waiting writers.
    fn update(&self, change: impl FnOnce(&mut Planner) -> WriteResults) {
        let mut state = self.lock();
        let before = state.planner.is_durable();
        for (write_id, result) in change(&mut state.planner) {
            if let Some(waiting) = state.waiting.remove(&write_id) {
                // The writer may have been dropped.
                let _ = waiting.send(result);
            }
        }
        if !before && state.planner.is_durable() && state.reported_durable.replace(true) == Some(false) {
            tracing::info!("intent journal is available again");
        }
        self.update_gauges(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    fn warn_if_unavailable(&self, error: &ApiError) {
        let mut state = self.lock();
        if !state.planner.is_durable() && state.reported_durable.replace(false) != Some(false) {
            tracing::warn!(
                %error,
                "intent journal is unavailable: volumes may leak if the sidecar crashes during CreateVolume; \
                grant create, list and delete on leases in the sidecar's namespace"
            );
        }
    }

    fn update_gauges(&self, state: &State) {
        let (intents, segments) = state.planner.sizes();
        self.metrics.intents.set(intents as i64);
        self.metrics.segments.set(segments as i64);
        self.metrics.available.set(i64::from(state.planner.is_durable()));
    }
}

enum JobResult {
    Load(LoadOutcome),
    Write(String, WriteOutcome),
    Remove(String, RemoveOutcome),
}

async fn work(store: JournalStore, job: Job) -> JobResult {
    match job {
        Job::Load => JobResult::Load(store.load().await),
        Job::Write { name, intents } => {
            let outcome = store.write(&name, &intents).await;
            JobResult::Write(name, outcome)
        }
        Job::Remove { name, uid } => {
            let outcome = store.remove(&name, uid).await;
            JobResult::Remove(name, outcome)
        }
    }
}

/// A number for a segment's name. If randomness is unavailable, the clock is used: the server rejects a name that
/// exists.
fn random() -> u64 {
    let mut bytes = [0; 8];
    match wharf_model::system::fill_random(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => wharf_cluster::now().0 as u64,
    }
}

/// The journal's metrics.
#[derive(Clone)]
struct JournalMetrics {
    available: Gauge,
    intents: Gauge,
    segments: Gauge,
    writes: Counter,
    batch: Histogram,
    too_large: Counter,
}

impl JournalMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            available: Gauge::default(),
            intents: Gauge::default(),
            segments: Gauge::default(),
            writes: Counter::default(),
            batch: Histogram::new([1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]),
            too_large: Counter::default(),
        };
        registry.register(
            "wharf_provisioner_journal_available",
            "1 if intents survive a crash, 0 if they are held in memory only",
            metrics.available.clone(),
        );
        registry.register("wharf_provisioner_journal_intents", "Open intents", metrics.intents.clone());
        registry.register(
            "wharf_provisioner_journal_segments",
            "Lease objects with open intents",
            metrics.segments.clone(),
        );
        registry.register(
            "wharf_provisioner_journal_writes",
            "Lease objects written",
            metrics.writes.clone(),
        );
        registry.register(
            "wharf_provisioner_journal_batch_size",
            "Number of intents in a written Lease object",
            metrics.batch.clone(),
        );
        registry.register(
            "wharf_provisioner_journal_too_large",
            "Intents that were too large for the journal",
            metrics.too_large.clone(),
        );
        metrics
    }
}

#[cfg(test)]
pub(super) mod testing;
