//! The write path of a store without a disk and without a writer thread: each write is planned and published in the
//! caller's thread. Expired objects are deleted by the next write after their deadline.

use super::plan::Plan;
use super::{Change, Entry, Key, Options, Publisher, WriteError};

/// Performs the writes of an in-memory store, as [`super::writer::Writer`] does for a store on disk.
pub(super) struct InMemoryWriter {
    publisher: Publisher,
    options: Options,
}

impl InMemoryWriter {
    pub(super) fn new(publisher: Publisher, options: Options) -> Self {
        Self { publisher, options }
    }

    /// Performs one write.
    pub(super) fn write(&mut self, key: Key, change: &Change) -> Result<Entry, WriteError> {
        let shared = &self.publisher.0;
        let now = wharf_model::system::now().0;
        let (result, writes, compacted) = {
            let state = shared.read();
            let mut plan = Plan::new(&state);
            let result = plan.stage(key, change);
            for key in state.expired(now) {
                plan.expire(key, now);
            }
            let writes = plan.into_writes();
            let compacted = state.compact_up_to(&writes, self.options);
            (result, writes, compacted)
        };
        if !writes.is_empty() {
            shared.write().apply(writes, compacted);
            self.publisher.notify_watchers();
        }
        result
    }
}
