//! The rounds of a task that looks after objects: everything that was written is told first, then one thing that is due
//! after the other; what could not be done rests for a while, each for itself, however often others fail.

use std::collections::{BTreeSet, VecDeque};
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
    /// Due again, each at its time. All rest equally long, so those that come last are due last.
    later: VecDeque<(Instant, T)>,
    /// What is in there: each once, or what fails at every event would be tried ever more often.
    resting: BTreeSet<T>,
}

/// What comes next.
pub(crate) enum Turn<T> {
    /// A write.
    Event(Arc<Event>),
    /// No write is left that was not told: it is looked at as it is.
    LookAt(T),
}

impl<T: Ord + Clone> Rounds<T> {
    pub(crate) fn new(watch: Watch, due: BTreeSet<T>) -> Self {
        Self { watch, due, later: VecDeque::new(), resting: BTreeSet::new() }
    }

    /// The next turn, or why there is none any more.
    pub(crate) async fn next(&mut self) -> Result<Turn<T>, WatchEnd> {
        loop {
            self.wake();
            let next = self.later.front().map(|(at, _)| *at);
            let seen = tokio::select! {
                biased;
                seen = self.watch.next() => seen?,
                () = std::future::ready(()), if !self.due.is_empty() => match self.due.pop_first() {
                    Some(due) => return Ok(Turn::LookAt(due)),
                    None => continue,
                },
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => continue,
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

    /// This could not be done now. What rests already is due when it was.
    pub(crate) fn rest(&mut self, what: T) {
        if self.resting.insert(what.clone()) {
            self.later.push_back((Instant::now() + REST, what));
        }
    }

    /// What has rested is due.
    fn wake(&mut self) {
        let now = Instant::now();
        while let Some((_, what)) = self.later.pop_front_if(|(at, _)| *at <= now) {
            self.resting.remove(&what);
            self.due.insert(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::store::{Options, Store};

    async fn looked_at(rounds: &mut Rounds<&'static str>) -> &'static str {
        match rounds.next().await.unwrap() {
            Turn::LookAt(what) => what,
            Turn::Event(event) => panic!("{event:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_rests_for_itself() {
        let store = Store::in_memory(Options::default());
        let mut rounds = Rounds::new(store.watch("", store.revision()).unwrap(), BTreeSet::new());
        let begin = Instant::now();
        rounds.rest("first");
        // Others fail again and again, each time before the first has rested.
        for _ in 0..4 {
            sleep(REST / 5).await;
            rounds.rest("other");
        }
        assert_eq!(looked_at(&mut rounds).await, "first");
        assert_eq!(begin.elapsed(), REST);
        rounds.rest("first");
        assert_eq!(looked_at(&mut rounds).await, "other");
        assert_eq!(begin.elapsed(), REST + REST / 5);
        assert_eq!(looked_at(&mut rounds).await, "first");
        assert_eq!(begin.elapsed(), 2 * REST);
        assert!(timeout(10 * REST, rounds.next()).await.is_err(), "each was due once");
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_rested_waits_for_nothing_that_is_due_for_ever() {
        let store = Store::in_memory(Options::default());
        let mut rounds = Rounds::new(store.watch("", store.revision()).unwrap(), BTreeSet::new());
        rounds.rest("a");
        sleep(REST).await;
        rounds.add(["b"]);
        assert_eq!(looked_at(&mut rounds).await, "a");
        assert_eq!(looked_at(&mut rounds).await, "b");
    }
}
