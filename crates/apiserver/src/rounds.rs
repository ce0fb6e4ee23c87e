//! The rounds of a task that looks after objects: everything that was written is told first, then one thing that is due
//! after the other; what could not be done rests for a while.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::store::{Event, Seen, Watch, WatchEnd};

/// How long something that could not be done rests.
const REST: Duration = Duration::from_secs(1);

/// What is to be looked at, and what is heard of meanwhile.
pub(crate) struct Rounds<T> {
    watch: Watch,
    due: BTreeSet<T>,
    /// Due again, all at that time.
    later: BTreeSet<T>,
    at: Instant,
}

/// What comes next.
pub(crate) enum Turn<T> {
    /// A write.
    Event(Arc<Event>),
    /// No write is left that was not told: it is looked at as it is.
    LookAt(T),
}

impl<T: Ord> Rounds<T> {
    pub(crate) fn new(watch: Watch, due: BTreeSet<T>) -> Self {
        Self { watch, due, later: BTreeSet::new(), at: Instant::now() }
    }

    /// The next turn, or why there is none any more.
    pub(crate) async fn next(&mut self) -> Result<Turn<T>, WatchEnd> {
        loop {
            let seen = tokio::select! {
                biased;
                seen = self.watch.next() => seen?,
                () = std::future::ready(()), if !self.due.is_empty() => match self.due.pop_first() {
                    Some(due) => return Ok(Turn::LookAt(due)),
                    None => continue,
                },
                () = sleep_until(self.at), if !self.later.is_empty() => {
                    self.due.append(&mut self.later);
                    continue;
                }
            };
            if let Seen::Event(event) = seen {
                return Ok(Turn::Event(event));
            }
        }
    }

    /// These are due.
    pub(crate) fn add(&mut self, due: impl IntoIterator<Item = T>) {
        self.due.extend(due);
    }

    /// This could not be done now.
    pub(crate) fn rest(&mut self, what: T) {
        self.later.insert(what);
        self.at = Instant::now() + REST;
    }
}
