//! One at a time for each droplet: the API refuses a second event while one is under way.
//!
//! Promise: who detaches goes before who attaches, else first come first served; who stops waiting is passed
//! over, and who ends, in whatever way, lets the next one in.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The queues of all droplets; clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Queues {
    // Only droplets at which somebody is.
    lines: Arc<Mutex<HashMap<u64, Line>>>,
}

#[derive(Debug, Default)]
struct Line {
    detach: VecDeque<oneshot::Sender<Place>>,
    attach: VecDeque<oneshot::Sender<Place>>,
}

/// The right to act on a droplet, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    queues: Queues,
    droplet: u64,
}

impl Queues {
    /// Waits for the droplet. May be dropped at any time.
    pub(super) async fn enter(&self, droplet: u64, first: bool) -> Place {
        let (next, turn) = oneshot::channel();
        {
            let mut lines = self.lines();
            match lines.get_mut(&droplet) {
                None => {
                    lines.insert(droplet, Line::default());
                    return Place { queues: self.clone(), droplet };
                }
                Some(line) if first => line.detach.push_back(next),
                Some(line) => line.attach.push_back(next),
            }
        }
        match turn.await {
            Ok(place) => place,
            // Senders are dropped only with the whole table, which we hold. A droplet that is taken twice costs
            // a refusal by the API, no more.
            Err(_) => Place { queues: self.clone(), droplet },
        }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<u64, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let next = {
            let mut lines = self.queues.lines();
            let next = lines
                .get_mut(&self.droplet)
                .and_then(|line| line.detach.pop_front().or_else(|| line.attach.pop_front()));
            if next.is_none() {
                lines.remove(&self.droplet);
            }
            next
        };
        if let Some(next) = next {
            // If nobody waits there any more, the place comes back and is dropped here, for the one after.
            drop(next.send(Place { queues: self.queues.clone(), droplet: self.droplet }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_detach_first_and_the_impatient_are_passed_over() {
        let queues = Queues::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let held = queues.enter(1, false).await;
        let mut tasks = Vec::new();
        for (name, first) in [("attach 1", false), ("gone", false), ("attach 2", false), ("detach", true)] {
            let (queues, order) = (queues.clone(), order.clone());
            let task = tokio::spawn(async move {
                let _place = queues.enter(1, first).await;
                order.lock().unwrap().push(name);
                sleep(Duration::from_secs(1)).await;
            });
            tokio::task::yield_now().await;
            tasks.push(task);
        }
        tasks.remove(1).abort();
        // Another droplet is free meanwhile.
        timeout(Duration::from_secs(1), queues.enter(2, false)).await.unwrap();
        assert!(order.lock().unwrap().is_empty());
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), ["detach", "attach 1", "attach 2"]);
        assert!(queues.lines().is_empty(), "nothing is kept of droplets nobody is at");
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_given_to_one_who_left_just_then_goes_on() {
        let queues = Queues::default();
        let held = queues.enter(1, false).await;
        let mut leaving = Box::pin(queues.enter(1, false));
        assert!(timeout(Duration::from_secs(1), &mut leaving).await.is_err());
        drop(held);
        // The place is in its channel now, and it never looks.
        drop(leaving);
        timeout(Duration::from_secs(1), queues.enter(1, false)).await.unwrap();
    }
}
