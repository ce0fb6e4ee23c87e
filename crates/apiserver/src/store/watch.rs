//! A cursor into the log. A slow watcher costs nothing and delays no one. A watcher that falls behind the log gets
//! [`WatchEnd::Compacted`] and has to list again.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Event, Revision, Shared};

/// How many events a watcher reads from the log at a time.
const BATCH: usize = 64;

/// The writes to objects under a prefix, in revision order, each once.
pub struct Watch {
    shared: Arc<Shared>,
    prefix: Box<str>,
    /// The log was scanned up to this revision.
    scanned: Revision,
    /// The caller has received everything up to this revision.
    delivered: Revision,
    buffered: VecDeque<Arc<Event>>,
}

/// An item of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchItem {
    /// A write.
    Event(Arc<Event>),
    /// Other objects were written; the watch is complete up to this revision. A bookmark may report it.
    Progress(Revision),
}

/// Why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The watcher fell behind the log: list, and watch from there.
    #[error("the watch fell behind the log")]
    Compacted,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl Watch {
    pub(super) fn new(shared: Arc<Shared>, prefix: &str, from: Revision) -> Self {
        shared.watchers.fetch_add(1, Ordering::Relaxed);
        Self { shared, prefix: prefix.into(), scanned: from, delivered: from, buffered: VecDeque::new() }
    }

    /// The next item. Cancel safe.
    pub async fn next(&mut self) -> Result<WatchItem, WatchEnd> {
        let shared = self.shared.clone();
        loop {
            if let Some(event) = self.buffered.pop_front() {
                self.delivered = event.revision;
                return Ok(WatchItem::Event(event));
            }
            // Register before fetching, so that a write published after it wakes this watcher.
            let notified = shared.signal.wake.notified();
            self.fetch()?;
            if !self.buffered.is_empty() {
                continue;
            }
            if self.delivered < self.scanned {
                self.delivered = self.scanned;
                return Ok(WatchItem::Progress(self.scanned));
            }
            if shared.signal.closed.load(Ordering::Acquire) {
                return Err(WatchEnd::Closed);
            }
            notified.await;
        }
    }

    /// Buffers new events under the prefix.
    fn fetch(&mut self) -> Result<(), WatchEnd> {
        let state = self.shared.read();
        // Never a future revision: a watch starts at an existing revision, and revisions only grow.
        state.check_revision(self.scanned).map_err(|_| WatchEnd::Compacted)?;
        for record in state.since(self.scanned) {
            self.scanned = record.event.revision;
            if record.event.key.starts_with(&*self.prefix) {
                self.buffered.push_back(record.event.clone());
                if self.buffered.len() == BATCH {
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
        write!(f, "watch of {:?} after {}", self.prefix, self.scanned)
    }
}
