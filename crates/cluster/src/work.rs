//! How a role works: a gate that says whether it may, feeds that turn changes into keys, and workers that take
//! keys from a queue.
//!
//! Promise: no work begins while the gate is shut; after a stop, work that runs may finish within its grace and
//! is then dropped, which is what a crash would do, and every step is made for that. The gate remembers that work was
//! dropped: its call may still run in the driver.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{Backoff, Change, Leadership, Notice, Priority, Queue, QueueKey, Store, Work};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use wharf_model::Kind;

/// How long work may go on after a stop.
const GRACE: Duration = Duration::from_secs(5);

/// How much a role does at once, and how it goes on after failures.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Keys worked on at once.
    pub workers: usize,
    /// How long a call to the driver may take.
    pub timeout: Duration,
    /// The pause after a first failure.
    pub retry_start: Duration,
    /// The longest pause.
    pub retry_max: Duration,
}

impl Pace {
    /// Upstream's pauses, and many at once: workers wait for the driver most of the time.
    pub fn with_timeout(timeout: Duration) -> Self {
        Self {
            workers: 100,
            timeout,
            retry_start: Duration::from_secs(1),
            retry_max: Duration::from_secs(300),
        }
    }

    /// The pauses, for a queue.
    pub fn backoff(&self) -> Backoff {
        Backoff { start: self.retry_start, max: self.retry_max, ..Backoff::default() }
    }
}

/// Whether steps may begin.
#[derive(Clone)]
pub struct Gate {
    leadership: Option<Leadership>,
    stop: CancellationToken,
    /// Whether work was dropped at the end.
    cut: Arc<AtomicBool>,
}

impl Gate {
    /// Open while the lease is held (always, without one) and nobody has said stop.
    pub fn new(leadership: Option<Leadership>, stop: CancellationToken) -> Self {
        Self { leadership, stop, cut: Arc::default() }
    }

    /// Whether a step may begin now. Asked before each.
    pub fn is_open(&self) -> bool {
        !self.stop.is_cancelled() && self.leadership.as_ref().is_none_or(Leadership::holds)
    }

    /// Waits until steps may begin.
    pub async fn opened(&self) {
        if let Some(leadership) = &self.leadership {
            leadership.acquired().await;
        }
    }

    /// Waits until the lease is lost; for ever, without one.
    pub async fn lost(&self) {
        match &self.leadership {
            Some(leadership) => leadership.lost().await,
            None => std::future::pending().await,
        }
    }

    /// The same gate with an end of its own: for what lasts from getting the lease to losing it.
    pub fn term(&self) -> (Self, CancellationToken) {
        let stop = self.stop.child_token();
        // What was dropped when the lease was lost has had its time.
        self.cut.store(false, Ordering::Relaxed);
        (Self { leadership: self.leadership.clone(), stop: stop.clone(), cut: Arc::clone(&self.cut) }, stop)
    }

    /// Whether work was dropped at the end: then somebody else should not begin at once.
    pub fn was_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Waits for the stop.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}

/// What came of working on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes.
    Done,
    /// It failed: again after the backoff.
    Retry,
    /// Again after this long, whatever the failures.
    After(Duration),
}

/// A role from its start to the stop: `synced` is waited for, then `feeds` starts what brings work, for as long as
/// there are workers.
pub async fn serve<K, F>(
    gate: &Gate,
    synced: impl Future<Output = ()>,
    feeds: impl FnOnce(&mut JoinSet<()>),
    queue: &Queue<K>,
    workers: usize,
    one: impl Fn(K) -> F,
) where
    K: QueueKey,
    F: Future<Output = Outcome> + Send + 'static,
{
    tokio::select! {
        biased;
        () = synced => {}
        () = gate.stopped() => return,
    }
    // These end with this function.
    let mut besides = JoinSet::new();
    feeds(&mut besides);
    work(queue, gate, workers, one).await;
}

/// Works on a queue's keys, each in a task of its own, until the stop.
pub async fn work<K, F>(queue: &Queue<K>, gate: &Gate, workers: usize, one: impl Fn(K) -> F)
where
    K: QueueKey,
    F: Future<Output = Outcome> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(workers.max(1)));
    let mut running = JoinSet::new();
    loop {
        let next = async {
            gate.opened().await;
            // The semaphore is never closed, so there is always a slot to come.
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            (slot, queue.next().await)
        };
        let (slot, work) = tokio::select! {
            biased;
            () = gate.stopped() => break,
            next = next => next,
            Some(_) = running.join_next() => continue,
        };
        let Some(work) = work else { break };
        if !gate.is_open() {
            // The lease was lost while we waited for work.
            work.retry_after(Duration::ZERO);
            continue;
        }
        let working = one(work.key().clone());
        running.spawn(async move {
            let outcome = working.await;
            finish(work, outcome);
            drop(slot);
        });
    }
    let ended = timeout(GRACE, async { while running.join_next().await.is_some() {} });
    if ended.await.is_err() {
        gate.cut.store(true, Ordering::Relaxed);
        tracing::warn!(
            running = running.len(),
            "stopping with work under way; it is taken up again at the next start"
        );
    }
}

fn finish<K: QueueKey>(work: Work<K>, outcome: Outcome) {
    match outcome {
        Outcome::Done => work.done(),
        Outcome::Retry => work.retry(),
        Outcome::After(pause) => work.retry_after(pause),
    }
}

/// What a change means for a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish<K> {
    /// What to look at.
    pub key: K,
    /// How urgent it is.
    pub priority: Priority,
}

/// Puts into a queue what a store's changes call for, for as long as the store lives. What wakes a key also ends
/// its backoff: `wishes` must leave out changes that are a role's own writes about its failures.
pub async fn feed<O: Kind, K: QueueKey>(
    store: Store<O>,
    queue: Queue<K>,
    wishes: impl Fn(&Change<O>) -> Vec<Wish<K>>,
) {
    let mut changes = store.changes();
    let wish = |change: &Change<O>| {
        for Wish { key, priority } in wishes(change) {
            queue.reset(&key);
            queue.add(key, priority);
        }
    };
    while let Some(notice) = changes.next().await {
        match notice {
            Notice::Change(change) => wish(&change),
            Notice::Resync => {
                for object in store.all() {
                    wish(&Change { key: object.key(), old: None, new: Some(object) });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.0 "Release on exit": only once nothing runs any more.
    #[tokio::test(start_paused = true)]
    async fn what_is_dropped_at_the_end_is_remembered() {
        for (takes, cut) in [(GRACE / 2, false), (GRACE * 2, true)] {
            let stop = CancellationToken::new();
            let gate = Gate::new(None, stop.clone());
            gate.cut.store(true, Ordering::Relaxed);
            let queue = Queue::new("test", Backoff::default(), &crate::Metrics::default());
            queue.add(1, Priority::Normal);
            let one = move |_| async move {
                tokio::time::sleep(takes).await;
                Outcome::Done
            };
            let (term, _) = gate.term();
            let stopping = async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                stop.cancel();
            };
            tokio::join!(work(&queue, &term, 1, one), stopping);
            assert_eq!(gate.was_cut(), cut, "{takes:?}");
        }
    }
}
