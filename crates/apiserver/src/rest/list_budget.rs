//! Limits the memory of all list responses in progress. A list reserves its estimated size before it is encoded, holds
//! nothing while it waits, and keeps its share until the last byte is sent. A list that is larger than the whole budget
//! takes all of it and runs alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::negotiate::Shape;
use super::response::{List, OutputFormat};
use crate::status::StatusError;

/// The bytes that one semaphore permit stands for.
const PERMIT_BYTES: usize = 1 << 10;
/// How long a list waits for memory.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes added around each object, and around the whole list.
const OVERHEAD: usize = 64;
/// Parsed JSON takes about this many times the size of its text.
const PARSED_FACTOR: usize = 8;

/// The whole budget. Clones share it.
#[derive(Clone)]
pub(super) struct ListBudget {
    free: Arc<Semaphore>,
    total: u32,
}

/// A part of the budget, released on drop.
pub(crate) struct BudgetShare(OwnedSemaphorePermit);

impl ListBudget {
    pub(super) fn new(bytes: usize) -> Self {
        let total = permits(bytes);
        Self { free: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Reserves memory if it is available at once.
    pub(super) fn try_acquire(&self, bytes: usize) -> Option<BudgetShare> {
        self.free.clone().try_acquire_many_owned(permits(bytes).min(self.total)).ok().map(BudgetShare)
    }

    /// Waits until memory is available, first come, first served.
    pub(super) async fn acquire(&self, bytes: usize) -> Result<BudgetShare, StatusError> {
        let share = self.free.clone().acquire_many_owned(permits(bytes).min(self.total));
        let share = timeout(WAIT_TIMEOUT, share).await.ok().and_then(Result::ok).map(BudgetShare);
        share.ok_or_else(|| {
            StatusError::too_many_requests("too many lists in progress: try again later, or with a limit")
        })
    }
}

impl BudgetShare {
    /// Attaches the share to these bytes and releases what they do not need.
    pub(super) fn hold(mut self, bytes: Vec<u8>) -> Bytes {
        let surplus = self.0.num_permits().saturating_sub(permits(bytes.len()) as usize);
        drop(self.0.split(surplus));
        Bytes::from_owner(BudgetedBytes { bytes, _share: self })
    }
}

struct BudgetedBytes {
    bytes: Vec<u8>,
    _share: BudgetShare,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES).max(1)).unwrap_or(u32::MAX)
}

/// The memory needed to encode the response. The objects themselves belong to the store.
pub(super) fn weight(list: &List, format: OutputFormat) -> usize {
    let text = list.objects.iter().fold(OVERHEAD, |sum, object| sum + object.len() + OVERHEAD);
    match format.shape {
        Shape::Object | Shape::Discovery if !format.pretty => text,
        _ => text.saturating_mul(PARSED_FACTOR),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use wharf_model::Time;

    use super::*;
    use crate::table::IncludeObject;

    #[tokio::test(start_paused = true)]
    async fn list_waits_for_memory_and_is_rejected_after_a_timeout() {
        let budget = ListBudget::new(10 * PERMIT_BYTES);
        let bytes = budget.try_acquire(3 * PERMIT_BYTES).unwrap().hold(vec![1; 2 * PERMIT_BYTES]);
        let slice = bytes.slice(..5);
        assert!(budget.try_acquire(8 * PERMIT_BYTES).is_some(), "the surplus is released");
        assert!(budget.try_acquire(8 * PERMIT_BYTES + 1).is_none());
        let started = Instant::now();
        let status_error = budget.acquire(9 * PERMIT_BYTES).await.map(|_| ()).unwrap_err();
        assert_eq!((status_error.code, status_error.details.retry_after_seconds), (429, Some(1)));
        assert_eq!(started.elapsed(), WAIT_TIMEOUT);
        drop(bytes);
        assert!(budget.try_acquire(9 * PERMIT_BYTES).is_none(), "a slice of the bytes still holds the share");
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.acquire(usize::MAX).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(slice);
        assert!(waiting.await.unwrap(), "a list larger than the budget gets all of it");
    }

    #[test]
    fn parsed_formats_need_more_memory() {
        let objects = vec![Bytes::from_static(&[b' '; 1000]); 2];
        let list = List { objects, revision: 1, token: String::new(), remaining: None, budget: None };
        for (shape, pretty, expected) in [
            (Shape::Object, false, 2000 + 3 * OVERHEAD),
            (Shape::Object, true, PARSED_FACTOR * (2000 + 3 * OVERHEAD)),
            (Shape::Partial, false, PARSED_FACTOR * (2000 + 3 * OVERHEAD)),
            (Shape::Table(IncludeObject::None), false, PARSED_FACTOR * (2000 + 3 * OVERHEAD)),
        ] {
            let format = OutputFormat { shape, pretty, now: Time(0) };
            assert_eq!(weight(&list, format), expected, "{shape:?} {pretty}");
        }
    }
}
