//! The work queue of an in-process controller.
//!
//! `RetryLoop::next` first delivers all pending store events, then one queued item at a time. A failed item is retried
//! after a delay. Each item has its own delay, however often other items fail.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::store::{Event, Watch, WatchEnd, WatchItem};

/// The delay before a failed item is retried.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A queue of items to reconcile, combined with a watch of the store.
pub(crate) struct RetryLoop<T> {
    watch: Watch,
    queue: BTreeSet<T>,
    /// Failed items with the time of their retry. All delays are equal, so the items are in the order of time.
    delayed: VecDeque<(Instant, T)>,
    /// The items in `delayed`, to add each only once; otherwise an item that fails on every event would be retried more
    /// and more often.
    delayed_keys: BTreeSet<T>,
}

/// What the controller does next.
pub(crate) enum Work<T> {
    /// Process a write to the store.
    Event(Arc<Event>),
    /// Reconcile an item. All events so far have been delivered, so the view of the store is current.
    Reconcile(T),
}

impl<T: Ord + Clone> RetryLoop<T> {
    pub(crate) fn new(watch: Watch, queue: BTreeSet<T>) -> Self {
        Self { watch, queue, delayed: VecDeque::new(), delayed_keys: BTreeSet::new() }
    }

    /// Waits for the next work. Fails when the watch ends.
    pub(crate) async fn next(&mut self) -> Result<Work<T>, WatchEnd> {
        loop {
            self.enqueue_expired();
            let next = self.delayed.front().map(|(at, _)| *at);
            let seen = tokio::select! {
                biased;
                seen = self.watch.next() => seen?,
                () = std::future::ready(()), if !self.queue.is_empty() => match self.queue.pop_first() {
                    Some(due) => return Ok(Work::Reconcile(due)),
                    None => continue,
                },
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => continue,
            };
            if let WatchItem::Event(event) = seen {
                return Ok(Work::Event(event));
            }
        }
    }

    /// Queues items.
    pub(crate) fn enqueue(&mut self, items: impl IntoIterator<Item = T>) {
        self.queue.extend(items);
    }

    /// Retries an item after a delay. An item that is already delayed keeps its time.
    pub(crate) fn retry_later(&mut self, item: T) {
        if self.delayed_keys.insert(item.clone()) {
            self.delayed.push_back((Instant::now() + RETRY_DELAY, item));
        }
    }

    /// Queues the items whose delay has expired.
    fn enqueue_expired(&mut self) {
        let now = Instant::now();
        while let Some((_, item)) = self.delayed.pop_front_if(|(at, _)| *at <= now) {
            self.delayed_keys.remove(&item);
            self.queue.insert(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::store::{Options, Store};

    async fn reconciled(retries: &mut RetryLoop<&'static str>) -> &'static str {
        match retries.next().await.unwrap() {
            Work::Reconcile(item) => item,
            Work::Event(event) => panic!("unexpected event: {event:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_items_have_independent_delays() {
        let store = Store::in_memory(Options::default());
        let mut retries = RetryLoop::new(store.watch("", store.revision()).unwrap(), BTreeSet::new());
        let begin = Instant::now();
        retries.retry_later("first");
        // Another item fails repeatedly before the delay of the first one expires.
        for _ in 0..4 {
            sleep(RETRY_DELAY / 5).await;
            retries.retry_later("other");
        }
        assert_eq!(reconciled(&mut retries).await, "first");
        assert_eq!(begin.elapsed(), RETRY_DELAY);
        retries.retry_later("first");
        assert_eq!(reconciled(&mut retries).await, "other");
        assert_eq!(begin.elapsed(), RETRY_DELAY + RETRY_DELAY / 5);
        assert_eq!(reconciled(&mut retries).await, "first");
        assert_eq!(begin.elapsed(), 2 * RETRY_DELAY);
        assert!(timeout(10 * RETRY_DELAY, retries.next()).await.is_err(), "each item is queued once");
    }

    #[tokio::test(start_paused = true)]
    async fn expired_items_precede_newly_queued_ones() {
        let store = Store::in_memory(Options::default());
        let mut retries = RetryLoop::new(store.watch("", store.revision()).unwrap(), BTreeSet::new());
        retries.retry_later("a");
        sleep(RETRY_DELAY).await;
        retries.enqueue(["b"]);
        assert_eq!(reconciled(&mut retries).await, "a");
        assert_eq!(reconciled(&mut retries).await, "b");
    }
}
