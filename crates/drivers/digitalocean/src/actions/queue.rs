//! One operation at a time per droplet: the API refuses a second event while one is in progress.
//!
//! Detach takes precedence over attach, otherwise first come, first served. Cancelled waiters are skipped, and
//! dropping the lock always admits the next waiter.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The queues of all droplets; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Queues {
    // Only droplets with an active operation.
    queues: Arc<Mutex<HashMap<u64, DropletQueue>>>,
}

#[derive(Debug, Default)]
struct DropletQueue {
    detach: VecDeque<oneshot::Sender<DropletLock>>,
    attach: VecDeque<oneshot::Sender<DropletLock>>,
}

/// Exclusive access to a droplet, until dropped.
#[derive(Debug)]
pub(super) struct DropletLock {
    queues: Queues,
    droplet: u64,
}

impl Queues {
    /// Waits for exclusive access to the droplet. Cancellation-safe.
    pub(super) async fn enter(&self, droplet: u64, first: bool) -> DropletLock {
        let (next, turn) = oneshot::channel();
        {
            let mut queues = self.queues();
            match queues.get_mut(&droplet) {
                None => {
                    queues.insert(droplet, DropletQueue::default());
                    return DropletLock { queues: self.clone(), droplet };
                }
                Some(queue) if first => queue.detach.push_back(next),
                Some(queue) => queue.attach.push_back(next),
            }
        }
        match turn.await {
            Ok(lock) => lock,
            // Senders are dropped only with the whole table, which we hold. Two operations on one droplet would only
            // cost a refusal by the API.
            Err(_) => DropletLock { queues: self.clone(), droplet },
        }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<u64, DropletQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DropletLock {
    fn drop(&mut self) {
        let next = {
            let mut queues = self.queues.queues();
            let next = queues
                .get_mut(&self.droplet)
                .and_then(|queue| queue.detach.pop_front().or_else(|| queue.attach.pop_front()));
            if next.is_none() {
                queues.remove(&self.droplet);
            }
            next
        };
        if let Some(next) = next {
            // If the waiter was cancelled, the lock comes back and is dropped here, which admits the next one.
            drop(next.send(DropletLock { queues: self.queues.clone(), droplet: self.droplet }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    #[tokio::test(start_paused = true)]
    async fn queue_admits_one_at_a_time_detach_first_and_skips_cancelled() {
        let queues = Queues::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let held = queues.enter(1, false).await;
        let mut tasks = Vec::new();
        for (name, first) in [("attach 1", false), ("gone", false), ("attach 2", false), ("detach", true)] {
            let (queues, order) = (queues.clone(), order.clone());
            let task = tokio::spawn(async move {
                let _lock = queues.enter(1, first).await;
                order.lock().unwrap().push(name);
                sleep(Duration::from_secs(1)).await;
            });
            tokio::task::yield_now().await;
            tasks.push(task);
        }
        tasks.remove(1).abort();
        // Another droplet is not blocked.
        timeout(Duration::from_secs(1), queues.enter(2, false)).await.unwrap();
        assert!(order.lock().unwrap().is_empty());
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), ["detach", "attach 1", "attach 2"]);
        assert!(queues.queues().is_empty(), "idle droplets must not be retained");
    }

    #[tokio::test(start_paused = true)]
    async fn lock_sent_to_a_cancelled_waiter_passes_to_the_next() {
        let queues = Queues::default();
        let held = queues.enter(1, false).await;
        let mut leaving = Box::pin(queues.enter(1, false));
        assert!(timeout(Duration::from_secs(1), &mut leaving).await.is_err());
        drop(held);
        // The lock is in the channel now, and the waiter never receives it.
        drop(leaving);
        timeout(Duration::from_secs(1), queues.enter(1, false)).await.unwrap();
    }
}
