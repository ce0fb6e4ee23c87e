//! The fence around the effects of a leader: the part of [`Leadership`](super::Leadership) that clients of the API server
//! and of the driver hold. It ends their requests at the renew deadline.

use std::future::Future;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A time in which this process holds the lease without interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) number: u64,
    /// The renew deadline.
    pub(super) until: Instant,
}

/// Whether this process holds the lease now; cheap to clone. It does not keep the lease alive.
#[derive(Debug, Clone)]
pub struct Fence {
    until: watch::Receiver<Option<Term>>,
}

impl Fence {
    pub(super) fn new(until: watch::Receiver<Option<Term>>) -> Self {
        Self { until }
    }

    /// Whether the lease is held, so that an effect may start now.
    pub fn is_open(&self) -> bool {
        holds(*self.until.borrow())
    }

    /// The number of the present term; `None` if the lease is not held.
    pub(crate) fn term(&self) -> Option<u64> {
        let term = *self.until.borrow();
        term.filter(|_| holds(term)).map(|term| term.number)
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
                    Some(term) if !wanted => sleep_until(term.until).await,
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

pub(super) fn holds(term: Option<Term>) -> bool {
    term.is_some_and(|term| Instant::now() < term.until)
}

#[cfg(test)]
mod tests;
