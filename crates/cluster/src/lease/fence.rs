//! The fence around the effects of a leader: the part of [`Leadership`](super::Leadership) that clients of the API server
//! and of the driver hold. It ends their requests at the renew deadline.

use std::future::Future;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Whether this process holds the lease now; cheap to clone. It does not keep the lease alive.
#[derive(Debug, Clone)]
pub struct Fence {
    until: watch::Receiver<Option<Instant>>,
}

impl Fence {
    pub(super) fn new(until: watch::Receiver<Option<Instant>>) -> Self {
        Self { until }
    }

    /// Whether the lease is held, so that an effect may start now.
    pub fn is_open(&self) -> bool {
        holds(*self.until.borrow())
    }

    /// Runs an effect while the lease is held. `None`: the lease was lost before its end, and the effect was cancelled.
    pub async fn run<T>(&self, effect: impl Future<Output = T>) -> Option<T> {
        // Exact, even if the runtime is too busy for its timers.
        if !self.is_open() {
            return None;
        }
        tokio::select! {
            biased;
            () = self.wait(false) => None,
            done = effect => Some(done),
        }
    }

    /// Waits until the lease is held, or until it is not.
    pub(super) async fn wait(&self, wanted: bool) {
        let mut until = self.until.clone();
        loop {
            let deadline = *until.borrow_and_update();
            if holds(deadline) == wanted {
                return;
            }
            let changed = async {
                if until.changed().await.is_err() {
                    // The candidate has ended: the lease is not acquired again, and expires if it is held.
                    std::future::pending::<()>().await;
                }
            };
            let expired = async {
                match deadline {
                    Some(deadline) if !wanted => sleep_until(deadline).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = expired => {}
            }
        }
    }
}

fn holds(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() < until)
}

#[cfg(test)]
mod tests;
