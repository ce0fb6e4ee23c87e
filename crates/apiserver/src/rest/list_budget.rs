//! The memory of list responses. A list reserves its estimated size before it is encoded, holds nothing while it waits,
//! and keeps its share until the last byte is sent.

use std::time::Duration;

use super::negotiate::Shape;
use super::response::{List, OutputFormat};
use crate::memory_budget::{MemoryBudget, MemoryShare};
use crate::status::StatusError;

/// How long a list waits for memory.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes added around each object, and around the whole list.
const OVERHEAD: usize = 64;
/// Parsed JSON takes about this many times the size of its text.
const PARSED_FACTOR: usize = 8;

/// Waits until memory is available.
pub(super) async fn acquire(budget: &MemoryBudget, bytes: usize) -> Result<MemoryShare, StatusError> {
    budget.acquire_within(WAIT_TIMEOUT, bytes).await.ok_or_else(|| {
        StatusError::too_many_requests("too many lists in progress: try again later, or with a limit")
    })
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
    use bytes::Bytes;
    use wharf_model::Time;

    use super::*;
    use crate::table::IncludeObject;

    #[tokio::test(start_paused = true)]
    async fn list_is_rejected_after_a_timeout() {
        let budget = MemoryBudget::new(1 << 20);
        let _all = budget.try_acquire(1 << 20).unwrap();
        let status_error = acquire(&budget, 1).await.map(|_| ()).unwrap_err();
        assert_eq!((status_error.code, status_error.details.retry_after_seconds), (429, Some(1)));
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
