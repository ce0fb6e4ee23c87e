//! The safety net of a role: all its keys are enqueued from time to time, and when changes were dropped. A missed
//! wake-up then delays an object and does not stop it for good.

use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;
use wharf_model::panics::catch_sync;

use crate::{Queue, QueueKey};

/// The default interval, upstream's for most of its controllers.
pub const RESYNC_INTERVAL: Duration = Duration::from_secs(600);
/// A periodic resync enqueues its keys over a tenth of the interval, at most this long.
const MAX_SPREAD: Duration = Duration::from_secs(60);
/// Time between two parts of a periodic resync.
const STEP: Duration = Duration::from_secs(1);

/// Enqueues all keys of a role, with low priority, every `interval` (shortened or extended by up to a fifth, and never if
/// it is 0), and at once when the queue requests it. `keys` reads the stores and sends no request. A key that waits for
/// the backoff of a failure keeps waiting. Never returns.
pub async fn resync<K: QueueKey>(queue: Queue<K>, interval: Duration, keys: impl Fn() -> Vec<K>) {
    // After a panic there are no keys: the next resync tries again.
    let keys = || catch_sync(queue.name(), "resync", &keys).unwrap_or_default();
    loop {
        tokio::select! {
            biased;
            () = queue.resync_requested() => {
                let keys = keys();
                tracing::warn!(
                    queue = queue.name(),
                    keys = keys.len(),
                    "dropped changes that arrived faster than they were handled; reconciling all objects"
                );
                keys.iter().for_each(|key| queue.add_for_resync(key));
            }
            () = resync_periodically(&queue, interval, &keys) => {}
        }
    }
}

/// Waits for the interval and enqueues all keys once, in parts, so that the role's other work and the API server never
/// see all of them at the same time.
async fn resync_periodically<K: QueueKey>(queue: &Queue<K>, interval: Duration, keys: impl Fn() -> Vec<K>) {
    if interval.is_zero() {
        return pending().await;
    }
    sleep(interval.mul_f64(0.8 + 0.4 * queue.jitter())).await;
    let keys = keys();
    let parts = ((interval / 10).min(MAX_SPREAD).as_secs() / STEP.as_secs()).max(1);
    let part = keys.len().div_ceil(usize::try_from(parts).unwrap_or(1)).max(1);
    for (index, keys) in keys.chunks(part).enumerate() {
        if index > 0 {
            sleep(STEP).await;
        }
        keys.iter().for_each(|key| queue.add_for_resync(key));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::testing::{Thing, decoded, thing};
    use crate::work::{EnqueueRequest, enqueue_changes};
    use crate::{Backoff, Metrics, Priority, Store, WatchOptions};

    const HOUR: Duration = Duration::from_secs(3600);

    fn queue(jitter: fn() -> f64) -> Queue<usize> {
        Queue::new("test", Backoff { jitter, ..Backoff::default() }, &Metrics::default())
    }

    /// The depths of the queue, with the times at which they changed, in seconds.
    async fn depths(queue: &Queue<usize>, until: Duration) -> Vec<(u64, usize)> {
        let (start, mut depths) = (Instant::now(), Vec::new());
        while start.elapsed() < until {
            if depths.last().is_none_or(|(_, depth)| *depth != queue.depth()) {
                depths.push((start.elapsed().as_secs(), queue.depth()));
            }
            sleep(Duration::from_millis(250)).await;
        }
        depths
    }

    #[tokio::test(start_paused = true)]
    async fn resync_is_jittered_and_spread() {
        for (jitter, first) in [((|| 0.0) as fn() -> f64, 480), (|| 0.5, 600), (|| 1.0, 720)] {
            let queue = queue(jitter);
            let resync = resync(queue.clone(), RESYNC_INTERVAL, || (0..600).collect());
            let depths = tokio::select! {
                biased;
                depths = depths(&queue, Duration::from_secs(first + 100)) => depths,
                () = resync => unreachable!(),
            };
            let expected: Vec<_> = (1..=60).map(|part| (first + part - 1, 10 * part as usize)).collect();
            assert_eq!(depths[0], (0, 0));
            assert_eq!(depths[1..], expected, "jitter {}", jitter());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resync_repeats_unless_interval_is_zero() {
        for (interval, expected) in [(RESYNC_INTERVAL, 6), (Duration::ZERO, 0)] {
            let (queue, runs) = (queue(|| 0.5), Cell::new(0));
            let keys = || {
                runs.set(runs.get() + 1);
                vec![1]
            };
            let until = HOUR + Duration::from_secs(1);
            assert!(timeout(until, resync(queue, interval, keys)).await.is_err());
            assert_eq!(runs.get(), expected, "{interval:?}");
        }
    }

    /// Otherwise one failing object would be retried more often because others exist.
    #[tokio::test(start_paused = true)]
    async fn requested_resync_is_immediate_and_keeps_backoffs() {
        let queue = queue(|| 0.5);
        queue.add(1, Priority::Normal);
        queue.next().await.unwrap().retry();
        queue.request_resync();
        queue.request_resync();
        let resync = resync(queue.clone(), Duration::ZERO, || vec![1, 2, 3]);
        assert!(timeout(Duration::from_millis(1), resync).await.is_err());
        assert_eq!(queue.depth(), 2);
        assert_eq!(*queue.next().await.unwrap().key(), 2);
    }

    /// The role's keys may wait for the dropped changes of an object of another kind.
    #[tokio::test(start_paused = true)]
    async fn dropped_changes_resync_the_role() {
        let (store, queue) = (Store::<Thing>::new(WatchOptions::default()), queue(|| 0.5));
        let feed = enqueue_changes(store.clone(), queue.clone(), |_| Vec::<EnqueueRequest<usize>>::new());
        let resync = resync(queue.clone(), Duration::ZERO, || vec![7]);
        let role = async { tokio::join!(feed, resync) };
        tokio::pin!(role);
        for (changes, expected) in [(0, 0), (10, 0), (10_000, 1)] {
            for version in 1..=changes {
                store.update(|table| table.watched(decoded(thing("a", changes + version, "red"))));
            }
            assert!(timeout(Duration::from_millis(1), &mut role).await.is_err());
            assert_eq!(queue.depth(), expected, "{changes} changes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn panic_while_keys_are_collected_leaves_later_resyncs() {
        let (queue, runs) = (queue(|| 0.5), Cell::new(0));
        let keys = || {
            runs.set(runs.get() + 1);
            assert!(runs.get() > 1, "a planted panic");
            vec![1]
        };
        assert!(timeout(HOUR / 2, resync(queue.clone(), RESYNC_INTERVAL, keys)).await.is_err());
        assert_eq!(queue.depth(), 1);
    }
}
