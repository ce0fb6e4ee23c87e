//! The control loop of a role: a gate that decides whether it may act, feeds that turn changes into keys, and workers
//! that take keys from a queue.
//!
//! Guarantees: no work starts while the gate is closed. Running work is dropped when the lease is lost; after a stop it may
//! finish within a grace period first. Dropping it is equivalent to a crash, and every step tolerates one. The gate
//! records that work was dropped: its call may still be running in the driver.
//!
//! Every wake-up has a safety net: [`resync`] enqueues all keys from time to time, and when changes were dropped.
//!
//! Start at [`run_role`]. A worker reconciles its key in [`Steps`], and [`write`](mod@write) has the API writes of a step.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{Backoff, Change, Leadership, Priority, Queue, QueueKey, Store, WorkItem};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use wharf_model::Kind;
use wharf_model::panics::{DebugKey, catch};

mod panics;
mod resync;

pub use panics::{for_each_change, propagate_panic, reconcile_or_forget, restart};

pub use resync::{RESYNC_INTERVAL, resync};
pub use steps::{StepLimit, StepOutcome, Steps};
pub use write::WriteOutcome;

mod steps;
pub mod write;

/// How long running work may continue after a stop.
const GRACE: Duration = Duration::from_secs(5);

/// Concurrency, timeout, retry delays and resync interval of a role.
#[derive(Debug, Clone, Copy)]
pub struct WorkerOptions {
    /// Keys processed concurrently.
    pub workers: usize,
    /// The timeout of a call to the driver.
    pub timeout: Duration,
    /// The delay after the first failure.
    pub retry_start: Duration,
    /// The maximum delay.
    pub retry_max: Duration,
    /// How often all objects are reconciled without a change; 0 is never. See [`resync`].
    pub resync: Duration,
}

impl WorkerOptions {
    /// Upstream's delays, and many workers: they wait for the driver most of the time.
    pub fn with_timeout(timeout: Duration) -> Self {
        Self {
            workers: 100,
            timeout,
            retry_start: Duration::from_secs(1),
            retry_max: Duration::from_secs(300),
            resync: RESYNC_INTERVAL,
        }
    }

    /// The retry delays, for a queue.
    pub fn backoff(&self) -> Backoff {
        Backoff { start: self.retry_start, max: self.retry_max, ..Backoff::default() }
    }
}

/// Whether steps may start.
#[derive(Clone)]
pub struct Gate {
    leadership: Option<Leadership>,
    stop: CancellationToken,
    /// When running work was last dropped.
    dropped_work: Arc<Mutex<Option<Instant>>>,
}

impl Gate {
    /// Open until `stop` is cancelled, and while the lease is held, if there is one.
    pub fn new(leadership: Option<Leadership>, stop: CancellationToken) -> Self {
        Self { leadership, stop, dropped_work: Arc::default() }
    }

    /// The candidate for the lease, if there is one.
    pub fn leadership(&self) -> Option<&Leadership> {
        self.leadership.as_ref()
    }

    /// Whether a step may start now. Checked before each step.
    pub fn is_open(&self) -> bool {
        let acts = |leadership: &Leadership| leadership.is_leader() && leadership.freshness().is_fresh();
        let leading = self.leadership.as_ref().is_none_or(acts);
        !self.stop.is_cancelled() && leading && self.settling_until().is_none()
    }

    /// Waits until the lease is held and the role's stores are as new, so that steps may start.
    pub async fn wait_open(&self) {
        let Some(leadership) = &self.leadership else { return };
        loop {
            leadership.wait_acquired().await;
            if let Some(until) = self.settling_until() {
                sleep_until(until).await;
                continue;
            }
            if leadership.is_leader() && leadership.freshness().is_fresh() {
                return;
            }
            tokio::select! {
                biased;
                () = leadership.wait_lost() => {}
                () = leadership.freshness().wait() => {}
            }
        }
    }

    /// Until when dropped work keeps the gate closed. This process may acquire the lease again at once; calls that were
    /// cancelled get the time that they have before another process takes over.
    fn settling_until(&self) -> Option<Instant> {
        let dropped = *self.dropped_work.lock().unwrap_or_else(PoisonError::into_inner);
        let until = dropped? + self.leadership.as_ref()?.handover();
        (Instant::now() < until).then_some(until)
    }

    /// Waits until the lease is lost; never returns without a lease.
    pub async fn wait_lost(&self) {
        match &self.leadership {
            Some(leadership) => leadership.wait_lost().await,
            None => std::future::pending().await,
        }
    }

    /// The same gate with its own stop token: for tasks that run from acquiring the lease to losing it.
    pub fn leadership_term(&self) -> (Self, CancellationToken) {
        let stop = self.stop.child_token();
        (
            Self {
                leadership: self.leadership.clone(),
                stop: stop.clone(),
                dropped_work: Arc::clone(&self.dropped_work),
            },
            stop,
        )
    }

    /// Whether running work was dropped within the last lease duration: then the lease should not be released
    /// immediately, because a call of that work may still be running.
    pub fn dropped_work(&self) -> bool {
        let dropped = *self.dropped_work.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = self.leadership.as_ref().map_or(Duration::MAX, Leadership::lease_duration);
        dropped.is_some_and(|dropped| dropped.elapsed() < kept)
    }

    fn record_dropped_work(&self) {
        *self.dropped_work.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Waits until the role is stopped.
    pub async fn wait_stopped(&self) {
        self.stop.cancelled().await;
    }
}

/// The result of processing a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkOutcome {
    /// Nothing to do until something changes.
    Done,
    /// It failed: retry after the backoff.
    Retry,
    /// Process it again after this delay, independent of failures.
    RetryAfter(Duration),
}

/// Runs a role until it is stopped: waits for `synced`, lets `feeds` spawn the tasks that enqueue keys, and runs the
/// workers. The feed tasks stop with the workers.
///
/// # Panics
///
/// If a feed task panics: without it the role would miss changes and nothing would show it.
pub async fn run_role<K, F>(
    gate: &Gate,
    synced: impl Future<Output = ()>,
    feeds: impl FnOnce(&mut JoinSet<()>),
    queue: &Queue<K>,
    workers: usize,
    reconcile: impl Fn(K) -> F,
) where
    K: QueueKey,
    F: Future<Output = WorkOutcome> + Send + 'static,
{
    tokio::select! {
        biased;
        () = synced => {}
        () = gate.wait_stopped() => return,
    }
    // Aborted when this function returns.
    let mut feed_tasks = JoinSet::new();
    feeds(&mut feed_tasks);
    tokio::select! {
        biased;
        () = run_workers(queue, gate, workers, reconcile) => {}
        () = propagate_panic(&mut feed_tasks) => {}
    }
}

/// Processes a queue's keys, each in its own task, until the role is stopped. A key whose reconcile panics is retried
/// with backoff; other keys are not affected. When the lease is lost, running reconciles are dropped; their keys wait
/// until it is acquired again.
pub async fn run_workers<K, F>(queue: &Queue<K>, gate: &Gate, workers: usize, reconcile: impl Fn(K) -> F)
where
    K: QueueKey,
    F: Future<Output = WorkOutcome> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(workers.max(1)));
    let mut work_in_progress = WorkInProgress { tasks: JoinSet::new(), gate };
    let running = &mut work_in_progress.tasks;
    loop {
        let next = async {
            gate.wait_open().await;
            // The semaphore is never closed, so a slot always becomes available.
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            (slot, queue.next().await)
        };
        let (slot, work) = tokio::select! {
            biased;
            () = gate.wait_stopped() => break,
            next = next => next,
            Some(_) = running.join_next() => continue,
        };
        let Some(work) = work else { break };
        if !gate.is_open() {
            // The lease was lost while we waited for work.
            work.retry_after(Duration::ZERO);
            continue;
        }
        let key = work.key().clone();
        let reconciling = catch(queue.name(), DebugKey(key.clone()), reconcile(key));
        let gate = gate.clone();
        running.spawn(async move {
            let outcome = tokio::select! {
                biased;
                () = gate.wait_lost() => {
                    gate.record_dropped_work();
                    WorkOutcome::RetryAfter(Duration::ZERO)
                }
                // A panic is retried with backoff, like a failure.
                outcome = reconciling => outcome.unwrap_or(WorkOutcome::Retry),
            };
            finish(work, outcome);
            drop(slot);
        });
    }
    let ended = timeout(GRACE, async { while running.join_next().await.is_some() {} });
    if ended.await.is_err() {
        tracing::warn!(
            running = running.len(),
            "stopped with work in progress; it will be resumed at the next start"
        );
    }
}

/// The running reconciles of a role. If they are dropped before they end, because the role stops or panics, the gate
/// records that: the lease must not be released while their calls may still run.
struct WorkInProgress<'a> {
    tasks: JoinSet<()>,
    gate: &'a Gate,
}

impl Drop for WorkInProgress<'_> {
    fn drop(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        if !self.tasks.is_empty() {
            self.gate.record_dropped_work();
        }
    }
}

fn finish<K: QueueKey>(work: WorkItem<K>, outcome: WorkOutcome) {
    match outcome {
        WorkOutcome::Done => work.done(),
        WorkOutcome::Retry => work.retry(),
        WorkOutcome::RetryAfter(pause) => work.retry_after(pause),
    }
}

/// A request to enqueue a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnqueueRequest<K> {
    /// The key to enqueue.
    pub key: K,
    /// Its priority.
    pub priority: Priority,
}

/// Enqueues the keys that a store's changes affect, until the store is dropped. This also resets a key's backoff:
/// `requests` must ignore changes that the role wrote itself to report its failures. If it panics for a change, that
/// change is retried with backoff. If changes were dropped, all objects of the store count as changed, and the queue's
/// role is resynced: a key of another kind may have waited for a change of an object, and its present state does not
/// show that it changed.
pub async fn enqueue_changes<O: Kind, K: QueueKey>(
    store: Store<O>,
    queue: Queue<K>,
    requests: impl Fn(&Change<O>) -> Vec<EnqueueRequest<K>>,
) {
    let enqueue = |change: &Change<O>| {
        for EnqueueRequest { key, priority } in requests(change) {
            queue.reset_backoff(&key);
            queue.add(key, priority);
        }
    };
    let started = AtomicBool::new(false);
    let resynced = || {
        // A subscription starts with a resync. Each further one replaces dropped changes.
        if started.swap(true, Ordering::Relaxed) {
            queue.request_resync();
        }
    };
    for_each_change(queue.name(), store, enqueue, resynced).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.0 "Release on exit": only when no work is running.
    #[tokio::test(start_paused = true)]
    async fn dropped_work_is_recorded_at_stop() {
        for (takes, dropped_work) in [(GRACE / 2, false), (GRACE * 2, true)] {
            let stop = CancellationToken::new();
            let gate = Gate::new(None, stop.clone());
            let queue = Queue::new("test", Backoff::default(), &crate::Metrics::default());
            queue.add(1, Priority::Normal);
            let reconcile = move |_| async move {
                tokio::time::sleep(takes).await;
                WorkOutcome::Done
            };
            let (term, _) = gate.leadership_term();
            let stopping = async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                stop.cancel();
            };
            tokio::join!(run_workers(&queue, &term, 1, reconcile), stopping);
            assert_eq!(gate.dropped_work(), dropped_work, "{takes:?}");
        }
    }

    /// A role that panics drops its workers. Their calls may still run, so the lease must not be released.
    #[tokio::test(start_paused = true)]
    async fn dropped_workers_are_recorded_as_dropped_work() {
        for (work, dropped_work) in [(0, false), (1, true)] {
            let gate = Gate::new(None, CancellationToken::new());
            let queue = Queue::new("test", Backoff::default(), &crate::Metrics::default());
            (0..work).for_each(|key| queue.add(key, Priority::Normal));
            let (term, _) = gate.leadership_term();
            let working = run_workers(&queue, &term, 1, |_| std::future::pending::<WorkOutcome>());
            assert!(timeout(Duration::from_secs(1), working).await.is_err());
            assert_eq!(gate.dropped_work(), dropped_work, "{work} work items");
        }
    }

    /// Without the retry, one bad object would stop itself for good; without the isolation, all others.
    #[tokio::test(start_paused = true)]
    async fn panic_in_reconcile_retries_the_key_and_leaves_others_alone() {
        let stop = CancellationToken::new();
        let queue = Queue::new("test", Backoff::default(), &crate::Metrics::default());
        queue.add(1, Priority::Normal);
        queue.add(2, Priority::Normal);
        let runs = Arc::new(std::sync::Mutex::new(Vec::new()));
        let reconcile = {
            let (runs, stop) = (Arc::clone(&runs), stop.clone());
            move |key| {
                let (runs, stop) = (Arc::clone(&runs), stop.clone());
                async move {
                    let first = !runs.lock().unwrap().contains(&key);
                    runs.lock().unwrap().push(key);
                    assert!(key != 1 || !first, "a planted panic");
                    if key == 1 {
                        stop.cancel();
                    }
                    WorkOutcome::Done
                }
            }
        };
        run_workers(&queue, &Gate::new(None, stop), 1, reconcile).await;
        assert_eq!(*runs.lock().unwrap(), [1, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn panic_in_a_feed_ends_the_role() {
        let role = tokio::spawn(async {
            let queue = Queue::new("test", Backoff::default(), &crate::Metrics::default());
            let feeds = |tasks: &mut JoinSet<()>| {
                tasks.spawn(async { panic!("a planted panic") });
            };
            let gate = Gate::new(None, CancellationToken::new());
            run_role(&gate, async {}, feeds, &queue, 1, |_: u8| async { WorkOutcome::Done }).await;
        });
        assert!(role.await.unwrap_err().is_panic());
    }
}
