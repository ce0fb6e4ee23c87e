//! Writes of a store that has neither a disk nor a thread: judged and published at once, by whoever asks for them. What
//! expires goes with the next write after its time.

use super::plan::Plan;
use super::{Change, Entry, Key, Options, Publish, WriteError};

/// Takes the place of the writer's thread.
pub(super) struct Memory {
    publish: Publish,
    options: Options,
}

impl Memory {
    pub(super) fn new(publish: Publish, options: Options) -> Self {
        Self { publish, options }
    }

    /// Does one change.
    pub(super) fn write(&mut self, key: Key, change: &Change) -> Result<Entry, WriteError> {
        let shared = &self.publish.0;
        let now = wharf_model::chance::now().0;
        let (answer, writes, compacted) = {
            let state = shared.read();
            let mut plan = Plan::new(&state);
            let answer = plan.judge(key, change);
            for key in state.expired(now) {
                plan.expire(key, now);
            }
            let writes = plan.into_writes();
            let compacted = state.surplus(&writes, self.options);
            (answer, writes, compacted)
        };
        if !writes.is_empty() {
            shared.write().apply(writes, compacted);
            self.publish.published();
        }
        answer
    }
}
