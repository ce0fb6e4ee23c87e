//! Aggregates events: a repetition within a window becomes a count on the first event.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use wharf_model::Time;

use super::Event;

/// An equal event within this time is a repetition.
const WINDOW: Duration = Duration::from_secs(600);
/// A repetition is written at most this often.
const REPEAT: Duration = Duration::from_secs(15);
/// The maximum number of tracked events. Beyond it the oldest are dropped; their repetitions create new objects.
const MAX_EVENTS: usize = 4096;

/// An event to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// Create the event object.
    Create { event: Event, first: Time, count: u64 },
    /// Set the count of the event object of this name.
    Repeat { event: Event, name: String, first: Time, last: Time, count: u64 },
}

struct Record {
    /// The event object's name, once it was created.
    name: Option<String>,
    first: Time,
    last: Time,
    count: u64,
    /// The count last written to the API.
    written: u64,
    recorded_at: Instant,
    /// The sequence number of the last repetition: events that are due together are written in this order.
    sequence: u64,
    written_at: Option<Instant>,
}

#[derive(Default)]
pub(crate) struct Aggregate {
    records: HashMap<Event, Record>,
    next_sequence: u64,
}

impl Aggregate {
    /// Adds an event.
    pub(crate) fn add(&mut self, event: Event, now: Instant, time: Time) {
        if self.records.get(&event).is_some_and(|record| record.is_past(now)) {
            self.records.remove(&event);
        }
        self.evict_oldest();
        let new = || Record {
            name: None,
            first: time,
            last: time,
            count: 0,
            written: 0,
            recorded_at: now,
            sequence: 0,
            written_at: None,
        };
        let record = self.records.entry(event).or_insert_with(new);
        record.count += 1;
        record.last = time;
        record.recorded_at = now;
        record.sequence = self.next_sequence;
        self.next_sequence += 1;
    }

    /// The events to write now, oldest first.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Write> {
        self.records.retain(|_, record| !record.is_past(now));
        let mut due: Vec<(u64, Write)> = Vec::new();
        for (event, record) in &mut self.records {
            let waits = record.written_at.is_some_and(|at| now.saturating_duration_since(at) < REPEAT);
            if record.count == record.written || waits {
                continue;
            }
            record.written = record.count;
            record.written_at = Some(now);
            let (event, first, last, count) = (event.clone(), record.first, record.last, record.count);
            let write = match &record.name {
                None => Write::Create { event, first, count },
                Some(name) => Write::Repeat { event, name: name.clone(), first, last, count },
            };
            due.push((record.sequence, write));
        }
        due.sort_by_key(|(sequence, _)| *sequence);
        due.into_iter().map(|(_, write)| write).collect()
    }

    /// Whether any repetition is still to be written.
    pub(crate) fn has_unwritten(&self) -> bool {
        self.records.values().any(|record| record.count != record.written)
    }

    /// The event object was created under this name.
    pub(crate) fn set_name(&mut self, event: &Event, name: String) {
        if let Some(record) = self.records.get_mut(event) {
            record.name = Some(name);
        }
    }

    /// The event object does not exist, or no longer: the next repetition creates it.
    pub(crate) fn clear_name(&mut self, event: &Event) {
        if let Some(record) = self.records.get_mut(event) {
            record.name = None;
        }
    }

    /// Drops the older half if there are too many.
    fn evict_oldest(&mut self) {
        if self.records.len() < MAX_EVENTS {
            return;
        }
        let mut ages: Vec<Instant> = self.records.values().map(|record| record.recorded_at).collect();
        let middle = ages.len() / 2;
        let (_, median, _) = ages.select_nth_unstable(middle);
        let median = *median;
        // Of records of equal age, as many as necessary.
        let mut excess = middle;
        self.records.retain(|_, record| {
            let evicted = excess > 0 && record.recorded_at <= median;
            excess -= usize::from(evicted);
            !evicted
        });
    }
}

impl Record {
    fn is_past(&self, now: Instant) -> bool {
        self.count == self.written && now.saturating_duration_since(self.recorded_at) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{EventType, ObjectReference};
    use wharf_model::Key;

    fn event(note: &str) -> Event {
        let regarding = ObjectReference {
            api_version: "v1".into(),
            kind: "PersistentVolumeClaim".into(),
            key: Key::namespaced("ns", "a"),
            uid: "u".into(),
        };
        Event { regarding, event_type: EventType::Normal, reason: "Provisioning".into(), note: note.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn repetitions_are_counted() {
        let mut aggregate = Aggregate::default();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for _ in 0..3 {
            aggregate.add(event("x"), at(0), Time(0));
        }
        aggregate.add(event("y"), at(1), Time(1000));
        let due = aggregate.due(at(1));
        assert_eq!(due[0], Write::Create { event: event("x"), first: Time(0), count: 3 });
        assert_eq!(due[1], Write::Create { event: event("y"), first: Time(1000), count: 1 });
        assert_eq!(due.len(), 2);
        assert_eq!(aggregate.due(at(2)), []);

        aggregate.set_name(&event("x"), "a.1".into());
        aggregate.add(event("x"), at(3), Time(3000));
        assert_eq!(aggregate.due(at(3)), [], "too soon after the last write");
        let repeat = Write::Repeat {
            event: event("x"),
            name: "a.1".into(),
            first: Time(0),
            last: Time(3000),
            count: 4,
        };
        assert_eq!(aggregate.due(at(17)), [repeat]);

        aggregate.clear_name(&event("x"));
        aggregate.add(event("x"), at(40), Time(40_000));
        assert!(matches!(&aggregate.due(at(40))[..], [Write::Create { count: 5, .. }]));

        // After the window it is a new event.
        aggregate.add(event("x"), at(1000), Time(1_000_000));
        let new = Write::Create { event: event("x"), first: Time(1_000_000), count: 1 };
        assert_eq!(aggregate.due(at(1000)), [new]);
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_records_is_bounded() {
        let mut aggregate = Aggregate::default();
        let now = Instant::now();
        for number in 0..3 * MAX_EVENTS {
            aggregate.add(event(&number.to_string()), now, Time(0));
        }
        assert!(aggregate.records.len() <= MAX_EVENTS);
    }
}
