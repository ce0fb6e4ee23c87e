//! Limits the memory of everything of one kind in progress: request bodies, queued writes, list responses. Code
//! reserves a share before it allocates and waits for it in the order of arrival. A request that is larger than the whole
//! budget reserves all of it and runs alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The bytes that one semaphore permit stands for.
const PERMIT_BYTES: usize = 1 << 10;

/// The whole budget. Clones share it.
#[derive(Clone)]
pub(crate) struct MemoryBudget {
    free: Arc<Semaphore>,
    total: u32,
}

/// A part of the budget, released on drop.
pub(crate) struct MemoryShare(OwnedSemaphorePermit);

impl MemoryBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        let total = permits(bytes);
        Self { free: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Reserves memory if it is available at once.
    pub(crate) fn try_acquire(&self, bytes: usize) -> Option<MemoryShare> {
        self.free.clone().try_acquire_many_owned(self.permits(bytes)).ok().map(MemoryShare)
    }

    /// Waits until memory is available.
    pub(crate) async fn acquire(&self, bytes: usize) -> Option<MemoryShare> {
        // Never `None`: the semaphore is never closed.
        self.free.clone().acquire_many_owned(self.permits(bytes)).await.ok().map(MemoryShare)
    }

    /// Waits until memory is available. `None` after this long.
    pub(crate) async fn acquire_within(&self, limit: Duration, bytes: usize) -> Option<MemoryShare> {
        timeout(limit, self.acquire(bytes)).await.ok().flatten()
    }

    fn permits(&self, bytes: usize) -> u32 {
        permits(bytes).min(self.total)
    }
}

impl MemoryShare {
    /// Attaches the share to these bytes and releases what they do not need.
    pub(crate) fn hold(mut self, bytes: Vec<u8>) -> Bytes {
        let surplus = self.0.num_permits().saturating_sub(permits(bytes.len()) as usize);
        drop(self.0.split(surplus));
        Bytes::from_owner(BudgetedBytes { bytes, _share: self })
    }
}

struct BudgetedBytes {
    bytes: Vec<u8>,
    _share: MemoryShare,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn acquire_waits_for_memory_until_the_limit() {
        let budget = MemoryBudget::new(10 * PERMIT_BYTES);
        let bytes = budget.try_acquire(3 * PERMIT_BYTES).unwrap().hold(vec![1; 2 * PERMIT_BYTES]);
        let slice = bytes.slice(..5);
        assert!(budget.try_acquire(8 * PERMIT_BYTES).is_some(), "the surplus is released");
        assert!(budget.try_acquire(8 * PERMIT_BYTES + 1).is_none());
        let started = Instant::now();
        assert!(budget.acquire_within(LIMIT, 9 * PERMIT_BYTES).await.is_none());
        assert_eq!(started.elapsed(), LIMIT);
        drop(bytes);
        assert!(budget.try_acquire(9 * PERMIT_BYTES).is_none(), "a slice of the bytes still holds the share");
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.acquire(usize::MAX).await.is_some() }
        });
        tokio::task::yield_now().await;
        drop(slice);
        assert!(waiting.await.unwrap(), "what is larger than the budget gets all of it");
    }
}
