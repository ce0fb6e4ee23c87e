//! A cursor into the log. A watcher that is slow costs nothing and holds nobody up; one that is slower than the
//! log is long is told so, and lists again.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Event, Revision, Shared};

/// How many events a watcher takes out at a time.
const HANDFUL: usize = 64;

/// What happens to the objects under a prefix, in the order of revisions: each write once.
pub struct Watch {
    shared: Arc<Shared>,
    prefix: Box<str>,
    /// Everything up to here was looked at.
    seen: Revision,
    /// And up to here the watcher knows.
    told: Revision,
    taken: VecDeque<Arc<Event>>,
}

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// A write.
    Event(Arc<Event>),
    /// Others wrote, and nothing of yours is left up to here: a bookmark may say so.
    UpTo(Revision),
}

/// Why a watch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// It was slower than the log is long: list, and watch from there.
    #[error("the watch is older than the log")]
    Compacted,
    /// The store is.
    #[error("the store is closed")]
    Closed,
}

impl Watch {
    pub(super) fn new(shared: Arc<Shared>, prefix: &str, from: Revision) -> Self {
        shared.watchers.fetch_add(1, Ordering::Relaxed);
        Self { shared, prefix: prefix.into(), seen: from, told: from, taken: VecDeque::new() }
    }

    /// The next of it. May be dropped and called again: nothing is lost.
    pub async fn next(&mut self) -> Result<Seen, WatchEnd> {
        let shared = self.shared.clone();
        loop {
            if let Some(event) = self.taken.pop_front() {
                self.told = event.revision;
                return Ok(Seen::Event(event));
            }
            // Before the look, so that what is published after it wakes us.
            let published = shared.published.wake.notified();
            self.look()?;
            if !self.taken.is_empty() {
                continue;
            }
            if self.told < self.seen {
                self.told = self.seen;
                return Ok(Seen::UpTo(self.seen));
            }
            if shared.published.closed.load(Ordering::Acquire) {
                return Err(WatchEnd::Closed);
            }
            published.await;
        }
    }

    /// Takes what is new and ours.
    fn look(&mut self) -> Result<(), WatchEnd> {
        let state = self.shared.read();
        // Never the future: a watch begins at what was, and revisions only grow.
        state.reach(self.seen).map_err(|_| WatchEnd::Compacted)?;
        for record in state.since(self.seen) {
            self.seen = record.event.revision;
            if record.event.key.starts_with(&*self.prefix) {
                self.taken.push_back(record.event.clone());
                if self.taken.len() == HANDFUL {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "watch of {:?} after {}", self.prefix, self.seen)
    }
}
