//! What a new leader does before its first act: its stores list their objects again. What they hold may be from before the
//! last writes of its predecessor, and only a list that began later proves that it is not.
//!
//! A store whose first list begins after the first attempt to acquire the lease is not listed twice. A kind that cannot be
//! listed delays the role for a bounded time: the role then acts as one whose watch is interrupted.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long the first list of a store waits for the first attempt to acquire the lease.
const FIRST_ATTEMPT: Duration = Duration::from_secs(2);

/// A store of any kind that can be listed again.
pub(crate) trait Relist: Send + Sync {
    /// The same number for all handles of a store.
    fn id(&self) -> usize;
    /// The number of lists that have begun.
    fn lists_begun(&self) -> u64;
    /// Waits until a list after the first `begun` ones is complete. Ends in any case.
    fn list_after(&self, begun: u64) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

#[derive(Default)]
struct Inner {
    /// The stores of the role, each with the number of its lists that prove nothing. In a fixed order.
    stores: Vec<(Arc<dyn Relist>, u64)>,
    /// The number of times that the lease was acquired.
    term: u64,
    /// The last term for which the stores were listed.
    fresh: u64,
}

/// The stores of the roles of one lease.
#[derive(Default)]
pub(crate) struct Freshness {
    inner: Mutex<Inner>,
    attempted: CancellationToken,
    /// Held while the stores are listed: all roles of the lease wait for the same lists.
    listing: tokio::sync::Mutex<()>,
}

impl Freshness {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a store, before its first list begins.
    pub(crate) fn add(&self, store: Arc<dyn Relist>) {
        let mut inner = self.lock();
        if inner.stores.iter().all(|(known, _)| known.id() != store.id()) {
            let begun = store.lists_begun();
            inner.stores.push((store, begun));
        }
    }

    /// The first attempt to acquire the lease has ended.
    pub(super) fn attempted(&self) {
        self.attempted.cancel();
    }

    pub(crate) async fn wait_attempted(&self) {
        let _ = timeout(FIRST_ATTEMPT, self.attempted.cancelled()).await;
    }

    /// The lease is acquired; called before the fence opens.
    pub(super) fn begin_term(&self) {
        let mut inner = self.lock();
        inner.term += 1;
        for (store, begun) in &mut inner.stores {
            *begun = store.lists_begun();
        }
    }

    /// Whether the stores are as new as the lease.
    pub(crate) fn is_fresh(&self) -> bool {
        let inner = self.lock();
        inner.fresh == inner.term || inner.stores.is_empty()
    }

    /// Lists what is not fresh.
    pub(crate) async fn wait(&self) {
        let _listing = self.listing.lock().await;
        let mut lists = JoinSet::new();
        let term = {
            let inner = self.lock();
            if inner.fresh == inner.term {
                return;
            }
            for (store, begun) in &inner.stores {
                lists.spawn(store.list_after(*begun));
            }
            inner.term
        };
        while lists.join_next().await.is_some() {}
        // If the lease was lost and acquired again meanwhile, this is an earlier term.
        self.lock().fresh = term;
    }
}

#[cfg(test)]
mod tests;
