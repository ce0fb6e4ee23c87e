//! Which events are worth a request: the same one again within a window becomes a count on the first.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use wharf_model::Time;

use super::Event;

/// The same event within this time is a repetition.
const WINDOW: Duration = Duration::from_secs(600);
/// A repetition is written at most this often.
const REPEAT: Duration = Duration::from_secs(15);
/// So many different events are remembered; beyond, the oldest are forgotten and would be written anew.
const REMEMBERED: usize = 4096;

/// An event to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// For the first time.
    Create { event: Event, first: Time, count: u64 },
    /// Again: the event object of this name counts so many.
    Repeat { event: Event, name: String, first: Time, last: Time, count: u64 },
}

struct Seen {
    /// The object's name in the API, once it was written.
    name: Option<String>,
    first: Time,
    last: Time,
    count: u64,
    /// How many of them the API knows.
    written: u64,
    seen_at: Instant,
    /// Which it was of all that were taken, the last time: those of one moment are written in this order.
    turn: u64,
    written_at: Option<Instant>,
}

#[derive(Default)]
pub(crate) struct Aggregate {
    seen: HashMap<Event, Seen>,
    turns: u64,
}

impl Aggregate {
    /// Takes an event.
    pub(crate) fn take(&mut self, event: Event, now: Instant, time: Time) {
        if self.seen.get(&event).is_some_and(|seen| seen.is_past(now)) {
            self.seen.remove(&event);
        }
        self.make_room();
        let new = || Seen {
            name: None,
            first: time,
            last: time,
            count: 0,
            written: 0,
            seen_at: now,
            turn: 0,
            written_at: None,
        };
        let seen = self.seen.entry(event).or_insert_with(new);
        seen.count += 1;
        seen.last = time;
        seen.seen_at = now;
        seen.turn = self.turns;
        self.turns += 1;
    }

    /// What is to be written now, oldest first.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Write> {
        self.seen.retain(|_, seen| !seen.is_past(now));
        let mut due: Vec<(u64, Write)> = Vec::new();
        for (event, seen) in &mut self.seen {
            let waits = seen.written_at.is_some_and(|at| now.saturating_duration_since(at) < REPEAT);
            if seen.count == seen.written || waits {
                continue;
            }
            seen.written = seen.count;
            seen.written_at = Some(now);
            let (event, first, last, count) = (event.clone(), seen.first, seen.last, seen.count);
            let write = match &seen.name {
                None => Write::Create { event, first, count },
                Some(name) => Write::Repeat { event, name: name.clone(), first, last, count },
            };
            due.push((seen.turn, write));
        }
        due.sort_by_key(|(turn, _)| *turn);
        due.into_iter().map(|(_, write)| write).collect()
    }

    /// Whether anything waits for its moment.
    pub(crate) fn has_unwritten(&self) -> bool {
        self.seen.values().any(|seen| seen.count != seen.written)
    }

    /// The API knows an event under this name.
    pub(crate) fn named(&mut self, event: &Event, name: String) {
        if let Some(seen) = self.seen.get_mut(event) {
            seen.name = Some(name);
        }
    }

    /// It does not, or no longer: its next repetition is written as new.
    pub(crate) fn lost(&mut self, event: &Event) {
        if let Some(seen) = self.seen.get_mut(event) {
            seen.name = None;
        }
    }

    /// Forgets the older half when there are too many.
    fn make_room(&mut self) {
        if self.seen.len() < REMEMBERED {
            return;
        }
        let mut ages: Vec<Instant> = self.seen.values().map(|seen| seen.seen_at).collect();
        let middle = ages.len() / 2;
        let (_, median, _) = ages.select_nth_unstable(middle);
        let median = *median;
        // Of equal age, as many as it takes.
        let mut excess = middle;
        self.seen.retain(|_, seen| {
            let goes = excess > 0 && seen.seen_at <= median;
            excess -= usize::from(goes);
            !goes
        });
    }
}

impl Seen {
    fn is_past(&self, now: Instant) -> bool {
        self.count == self.written && now.saturating_duration_since(self.seen_at) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{EventType, Regarding};
    use wharf_model::Key;

    fn event(note: &str) -> Event {
        let regarding = Regarding {
            api_version: "v1".into(),
            kind: "PersistentVolumeClaim".into(),
            key: Key::namespaced("ns", "a"),
            uid: "u".into(),
        };
        Event { regarding, kind: EventType::Normal, reason: "Provisioning".into(), note: note.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn repetitions_become_a_count() {
        let mut aggregate = Aggregate::default();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for _ in 0..3 {
            aggregate.take(event("x"), at(0), Time(0));
        }
        aggregate.take(event("y"), at(1), Time(1000));
        let due = aggregate.due(at(1));
        assert_eq!(due[0], Write::Create { event: event("x"), first: Time(0), count: 3 });
        assert_eq!(due[1], Write::Create { event: event("y"), first: Time(1000), count: 1 });
        assert_eq!(due.len(), 2);
        assert_eq!(aggregate.due(at(2)), []);

        aggregate.named(&event("x"), "a.1".into());
        aggregate.take(event("x"), at(3), Time(3000));
        assert_eq!(aggregate.due(at(3)), [], "not so soon after the last write");
        let repeat = Write::Repeat {
            event: event("x"),
            name: "a.1".into(),
            first: Time(0),
            last: Time(3000),
            count: 4,
        };
        assert_eq!(aggregate.due(at(17)), [repeat]);

        aggregate.lost(&event("x"));
        aggregate.take(event("x"), at(40), Time(40_000));
        assert!(matches!(&aggregate.due(at(40))[..], [Write::Create { count: 5, .. }]));

        // After the window it is a new story.
        aggregate.take(event("x"), at(1000), Time(1_000_000));
        let new = Write::Create { event: event("x"), first: Time(1_000_000), count: 1 };
        assert_eq!(aggregate.due(at(1000)), [new]);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let mut aggregate = Aggregate::default();
        let now = Instant::now();
        for number in 0..3 * REMEMBERED {
            aggregate.take(event(&number.to_string()), now, Time(0));
        }
        assert!(aggregate.seen.len() <= REMEMBERED);
    }
}
