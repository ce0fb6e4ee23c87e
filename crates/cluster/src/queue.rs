//! Keyed work queues. The key is the thing over which exclusion must hold: the volume for attach and detach, the
//! claim for resize and modify.
//!
//! Promise: a key is worked on by one worker at a time; what is added while it is worked on makes it run again
//! afterwards; what is added while it waits is one piece of work; work that is dropped (a panic, a cancelled task)
//! counts as failed and is tried again. No priority waits for ever.

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

/// Which work goes first. Each keeps a share, so none starves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for it.
    High,
    /// As it comes.
    Normal,
    /// Resyncs and clean-up.
    Low,
}

impl Priority {
    fn line(self) -> usize {
        self as usize
    }
}

/// How long a failed key waits: `start`, doubled by each failure up to `max`, shortened by up to a quarter.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// After the first failure.
    pub start: Duration,
    /// Never longer.
    pub max: Duration,
    /// A number in `0.0..1.0`, [`jitter`](crate::jitter) outside tests.
    pub jitter: fn() -> f64,
}

impl Backoff {
    /// The pause after a failure that so many others came before.
    pub fn after(&self, failures: u32) -> Duration {
        exponential(self.start, self.max, failures, (self.jitter)())
    }
}

impl Default for Backoff {
    /// Upstream's: 1 s to 5 min.
    fn default() -> Self {
        Self { start: Duration::from_secs(1), max: Duration::from_secs(300), jitter: crate::jitter }
    }
}

/// A queue; clones are the same queue.
pub struct Queue<K: QueueKey> {
    inner: Arc<Inner<K>>,
}

/// What a queue can be keyed by.
pub trait QueueKey: Clone + Eq + Hash + Send + Sync + 'static {}

impl<K: Clone + Eq + Hash + Send + Sync + 'static> QueueKey for K {}

struct Inner<K: QueueKey> {
    name: &'static str,
    backoff: Backoff,
    metrics: Metrics,
    state: Mutex<State<K>>,
    wake: Notify,
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
    /// An empty queue. Its name stands in metrics.
    pub fn new(name: &'static str, backoff: Backoff, metrics: &Metrics) -> Self {
        let state = Mutex::new(State { core: Core::new(), closed: false });
        let inner = Arc::new(Inner { name, backoff, metrics: metrics.clone(), state, wake: Notify::new() });
        let gauged: Weak<dyn Gauged> = Arc::<Inner<K>>::downgrade(&inner) as Weak<dyn Gauged>;
        metrics.watch_queue(gauged);
        Self { inner }
    }

    /// Wants a key worked on now. The higher of two priorities counts.
    pub fn add(&self, key: K, priority: Priority) {
        if self.inner.lock().core.add(&key, priority, Instant::now()) {
            self.inner.metrics.queue_add(self.inner.name);
            self.inner.wake.notify_one();
        }
    }

    /// Wants a key worked on after a while. Of several such wishes the earliest counts.
    pub fn add_after(&self, key: K, after: Duration) {
        self.inner.lock().core.add_at(&key, Priority::Normal, Instant::now() + after);
        self.inner.wake.notify_one();
    }

    /// The key's object changed: earlier failures say nothing any more. What waits for its backoff runs now.
    pub fn reset(&self, key: &K) {
        self.inner.lock().core.reset(key, Instant::now());
        self.inner.wake.notify_one();
    }

    /// Work on the key went well, though it is to be done again: earlier failures say nothing any more. What waits
    /// for its moment goes on waiting.
    pub fn forgive(&self, key: &K) {
        self.inner.lock().core.forgive(key);
    }

    /// The next piece of work; `None` once the queue is closed. Safe to drop while it waits.
    pub async fn next(&self) -> Option<Work<K>> {
        loop {
            let due = {
                let mut state = self.inner.lock();
                if state.closed {
                    // Who else waits shall know too.
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
                    return Some(Work {
                        inner: Arc::clone(&self.inner),
                        key: taken.key,
                        priority: taken.priority,
                        failures: taken.failures,
                        began: now,
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

    /// No more work is given out; work that runs may end.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.inner.wake.notify_waiters();
        self.inner.wake.notify_one();
    }

    /// Keys that wait now.
    pub fn depth(&self) -> usize {
        self.inner.lock().core.depth()
    }

    /// How long the oldest of them has waited.
    pub fn oldest(&self) -> Duration {
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

/// A key to be worked on, exclusively until it is finished.
#[must_use = "work that is dropped counts as failed"]
pub struct Work<K: QueueKey> {
    inner: Arc<Inner<K>>,
    key: K,
    priority: Priority,
    failures: u32,
    began: Instant,
    finished: bool,
}

impl<K: QueueKey> Work<K> {
    /// What to work on.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// How often it has failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// It ended well; its failures are forgotten.
    pub fn done(mut self) {
        self.finish(|core, work| core.done(&work.key));
    }

    /// It failed: again after the backoff, or at once if the key was added meanwhile.
    pub fn retry(mut self) {
        self.fail();
    }

    /// Again after this long, or at once if the key was added meanwhile. Failures stay as they are.
    pub fn retry_after(mut self, after: Duration) {
        self.finish(|core, work| core.leave_until(&work.key, work.priority, Instant::now() + after));
    }

    fn fail(&mut self) {
        let backoff = self.inner.backoff;
        self.inner.metrics.queue_retry(self.inner.name);
        self.finish(|core, work| {
            // A reset while it ran counts: the failures are read now, not when it began.
            let after = backoff.after(core.failures(&work.key));
            core.retry(&work.key, work.priority, Instant::now() + after);
        });
    }

    fn finish(&mut self, how: impl FnOnce(&mut Core<K>, &Self)) {
        let inner = Arc::clone(&self.inner);
        how(&mut inner.lock().core, self);
        self.finished = true;
        inner.metrics.queue_worked(inner.name, self.began.elapsed());
        inner.wake.notify_one();
    }
}

impl<K: QueueKey> Drop for Work<K> {
    fn drop(&mut self) {
        if !self.finished {
            self.fail();
        }
    }
}

impl<K: QueueKey + fmt::Debug> fmt::Debug for Work<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("key", &self.key).field("failures", &self.failures).finish()
    }
}

#[cfg(test)]
mod tests;
