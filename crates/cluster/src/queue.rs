//! Keyed work queues. The key is the unit of mutual exclusion: the volume for attach and detach, the claim for resize
//! and modify.
//!
//! Guarantees: one worker at a time processes a key. A key added while it is being processed is processed again
//! afterwards; a key added while it waits is processed once. A work item that is dropped (a panic, a cancelled task)
//! counts as failed and is retried. No priority starves.

use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::Metrics;
use crate::jitter::exponential;
use crate::metrics::{Gauged, Gauges};
use core::Core;

mod core;

/// Which work is processed first. Each priority has a share, so none starves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A user or pod is waiting for it.
    High,
    /// In order of arrival.
    Normal,
    /// Resyncs and clean-up.
    Low,
}

impl Priority {
    fn index(self) -> usize {
        self as usize
    }
}

/// The backoff of failed keys: `start`, doubled by each failure up to `max`, shortened by up to a quarter.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The delay after the first failure.
    pub start: Duration,
    /// The maximum delay.
    pub max: Duration,
    /// Returns a number in `0.0..1.0`; [`jitter`](crate::jitter) outside tests.
    pub jitter: fn() -> f64,
}

impl Backoff {
    /// A backoff without jitter: for a loop that does not compete with others, and for tests.
    pub const fn without_jitter(start: Duration, max: Duration) -> Self {
        Self { start, max, jitter: || 0.0 }
    }

    /// The delay after this many failures, the last one included.
    pub fn after(&self, failures: u32) -> Duration {
        self.delay(failures.saturating_sub(1))
    }

    /// The delay after a failure, given the number of earlier failures.
    pub fn delay(&self, failures: u32) -> Duration {
        exponential(self.start, self.max, failures, (self.jitter)())
    }
}

impl Default for Backoff {
    /// Upstream's: 1 s to 5 min.
    fn default() -> Self {
        Self { start: Duration::from_secs(1), max: Duration::from_secs(300), jitter: crate::jitter }
    }
}

/// A work queue; clones share it.
pub struct Queue<K: QueueKey> {
    inner: Arc<Inner<K>>,
}

/// A type that can be the key of a queue.
pub trait QueueKey: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static {}

impl<K: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static> QueueKey for K {}

struct Inner<K: QueueKey> {
    name: &'static str,
    backoff: Backoff,
    metrics: Metrics,
    state: Mutex<State<K>>,
    wake: Notify,
    /// Wakes the resync of the role.
    resync: Notify,
}

struct State<K> {
    core: Core<K>,
    closed: bool,
}

impl<K: QueueKey> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: QueueKey> Queue<K> {
    /// An empty queue. Metrics are labelled with its name.
    pub fn new(name: &'static str, backoff: Backoff, metrics: &Metrics) -> Self {
        let state = Mutex::new(State { core: Core::new(), closed: false });
        let (metrics_of_queue, wake, resync) = (metrics.clone(), Notify::new(), Notify::new());
        let inner = Arc::new(Inner { name, backoff, metrics: metrics_of_queue, state, wake, resync });
        let gauged: Weak<dyn Gauged> = Arc::<Inner<K>>::downgrade(&inner) as Weak<dyn Gauged>;
        metrics.watch_queue(gauged);
        Self { inner }
    }

    /// The queue's name.
    pub fn name(&self) -> &'static str {
        self.inner.name
    }

    /// Enqueues a key for immediate processing. If it is queued already, the higher priority applies.
    pub fn add(&self, key: K, priority: Priority) {
        if self.inner.lock().core.add(&key, priority, Instant::now()) {
            self.inner.metrics.queue_add(self.inner.name);
            self.inner.wake.notify_one();
        }
    }

    /// Enqueues a key for a resync, with low priority, unless it waits for the backoff of a failure.
    pub(crate) fn add_for_resync(&self, key: &K) {
        if self.inner.lock().core.add_for_resync(key, Instant::now()) {
            self.inner.metrics.queue_add(self.inner.name);
            self.inner.wake.notify_one();
        }
    }

    /// Requests a resync of all keys: changes were dropped that may have been the only wake-up of any key. Requests are
    /// combined until [`resync`](crate::work::resync) handles them.
    pub fn request_resync(&self) {
        self.inner.resync.notify_one();
    }

    /// Waits for a requested resync. Cancel-safe.
    pub(crate) async fn resync_requested(&self) {
        self.inner.resync.notified().await;
    }

    /// A number in `0.0..1.0`, from the source of the backoff's jitter.
    pub(crate) fn jitter(&self) -> f64 {
        (self.inner.backoff.jitter)()
    }

    /// Enqueues a key after a delay. Of several delays the earliest applies.
    pub fn add_after(&self, key: K, after: Duration) {
        self.inner.lock().core.add_at(&key, Priority::Normal, Instant::now() + after);
        self.inner.wake.notify_one();
    }

    /// Resets a key's failures because its object has changed. If it waits for its backoff, it is enqueued now.
    pub fn reset_backoff(&self, key: &K) {
        self.inner.lock().core.reset_backoff(key, Instant::now());
        self.inner.wake.notify_one();
    }

    /// Resets a key's failures because its work succeeded, although it is to be processed again. A delayed key stays
    /// delayed.
    pub fn clear_failures(&self, key: &K) {
        self.inner.lock().core.clear_failures(key);
    }

    /// The next work item; `None` once the queue is closed. Cancel-safe.
    pub async fn next(&self) -> Option<WorkItem<K>> {
        loop {
            let due = {
                let mut state = self.inner.lock();
                if state.closed {
                    // Wake the next waiter, which returns as well.
                    self.inner.wake.notify_one();
                    return None;
                }
                let now = Instant::now();
                if let Some(taken) = state.core.take(now) {
                    if state.core.depth() > 0 {
                        self.inner.wake.notify_one();
                    }
                    drop(state);
                    self.inner.metrics.queue_waited(self.inner.name, taken.waited);
                    return Some(WorkItem {
                        inner: Arc::clone(&self.inner),
                        key: taken.key,
                        priority: taken.priority,
                        failures: taken.failures,
                        started: now,
                        finished: false,
                    });
                }
                state.core.next_due()
            };
            match due {
                Some(due) => tokio::select! {
                    biased;
                    () = self.inner.wake.notified() => {}
                    () = sleep_until(due) => {}
                },
                None => self.inner.wake.notified().await,
            }
        }
    }

    /// Closes the queue: no more work items are returned; running ones may finish.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.inner.wake.notify_waiters();
        self.inner.wake.notify_one();
    }

    /// The number of waiting keys.
    pub fn depth(&self) -> usize {
        self.inner.lock().core.depth()
    }

    /// How long the oldest waiting key has been waiting.
    pub fn oldest_age(&self) -> Duration {
        self.inner.lock().core.ages(Instant::now()).0
    }
}

impl<K: QueueKey> Inner<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<K: QueueKey> Gauged for Inner<K> {
    fn gauges(&self) -> Gauges {
        let state = self.lock();
        let (oldest, running, longest_running) = state.core.ages(Instant::now());
        Gauges { name: self.name, depth: state.core.depth(), oldest, running, longest_running }
    }
}

/// A key to process, exclusively until it is finished.
#[must_use = "a dropped work item counts as failed"]
pub struct WorkItem<K: QueueKey> {
    inner: Arc<Inner<K>>,
    key: K,
    priority: Priority,
    failures: u32,
    started: Instant,
    finished: bool,
}

impl<K: QueueKey> WorkItem<K> {
    /// The key to process.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The number of consecutive failures.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Processing succeeded; resets the failures.
    pub fn done(mut self) {
        self.finish(|core, work| core.done(&work.key));
    }

    /// Processing failed: requeues the key after its backoff, or immediately if it was added meanwhile.
    pub fn retry(mut self) {
        self.fail();
    }

    /// Requeues the key after a delay, or immediately if it was added meanwhile. The failures are unchanged.
    pub fn retry_after(mut self, after: Duration) {
        self.finish(|core, work| {
            core.finish_and_requeue_at(&work.key, work.priority, Instant::now() + after)
        });
    }

    fn fail(&mut self) {
        let backoff = self.inner.backoff;
        self.inner.metrics.queue_retry(self.inner.name);
        self.finish(|core, work| {
            // A reset during processing applies: the failures are read now, not at the start.
            let after = backoff.delay(core.failures(&work.key));
            core.retry(&work.key, work.priority, Instant::now() + after);
        });
    }

    fn finish(&mut self, how: impl FnOnce(&mut Core<K>, &Self)) {
        let inner = Arc::clone(&self.inner);
        how(&mut inner.lock().core, self);
        self.finished = true;
        inner.metrics.queue_worked(inner.name, self.started.elapsed());
        inner.wake.notify_one();
    }
}

impl<K: QueueKey> Drop for WorkItem<K> {
    fn drop(&mut self) {
        if !self.finished {
            self.fail();
        }
    }
}

impl<K: QueueKey> fmt::Debug for WorkItem<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("key", &self.key).field("failures", &self.failures).finish()
    }
}

#[cfg(test)]
mod tests;
