//! The rules of a work queue, without tasks or a clock of its own.
//!
//! A key is in at most one place: waiting, or being worked on (and then perhaps wanted again). Besides, it may
//! have one moment in the future at which it is wanted.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use super::Priority;

/// Room for so many keys is kept, even when there are none.
const ROOM: usize = 64;
/// How often each priority is served when all have work: high most of the time, low never starved.
const WEIGHTS: [i32; 3] = [16, 4, 1];

enum Place {
    /// Waits in the line of its priority; `ticket` tells its true place from those it has left behind.
    Waiting { priority: Priority, since: Instant, ticket: u64 },
    /// Is worked on; `again` if it was wanted meanwhile.
    Running { since: Instant, again: Option<(Priority, Instant)> },
    /// Neither, but has failures to remember or a moment to come.
    Idle,
}

struct Entry {
    place: Place,
    failures: u32,
    /// Its key in `later`.
    later: Option<(Instant, u64)>,
}

pub(crate) struct Core<K> {
    entries: HashMap<K, Entry>,
    lines: [VecDeque<(K, u64)>; 3],
    waiting: [usize; 3],
    credit: [i32; 3],
    later: BTreeMap<(Instant, u64), (K, Priority)>,
    tickets: u64,
}

/// Whether most of what was made room for has gone: a look at everything, as each start has one, would else keep its room
/// for ever.
fn is_wide(capacity: usize, len: usize) -> bool {
    capacity > 8 * (len + ROOM)
}

/// A key taken to be worked on.
pub(crate) struct Taken<K> {
    pub(crate) key: K,
    pub(crate) priority: Priority,
    pub(crate) waited: Duration,
    pub(crate) failures: u32,
}

impl<K: Clone + Eq + Hash> Core<K> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            lines: Default::default(),
            waiting: [0; 3],
            credit: [0; 3],
            later: BTreeMap::new(),
            tickets: 0,
        }
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn entry(&mut self, key: &K) -> &mut Entry {
        let new = || Entry { place: Place::Idle, failures: 0, later: None };
        self.entries.entry(key.clone()).or_insert_with(new)
    }

    /// Wants a key worked on. `true` if that changed anything.
    pub(crate) fn add(&mut self, key: &K, priority: Priority, now: Instant) -> bool {
        let ticket = self.ticket();
        let entry = self.entry(key);
        match &mut entry.place {
            Place::Running { again, .. } => {
                let changed = again.is_none();
                let (wanted, _) = again.get_or_insert((priority, now));
                *wanted = (*wanted).min(priority);
                changed
            }
            Place::Waiting { priority: present, .. } if *present <= priority => false,
            Place::Waiting { priority: present, ticket: valid, .. } => {
                // Moves up, and keeps its age.
                let from = std::mem::replace(present, priority);
                *valid = ticket;
                self.waiting[from.line()] -= 1;
                self.enter(key, priority, ticket);
                true
            }
            Place::Idle => {
                entry.place = Place::Waiting { priority, since: now, ticket };
                self.enter(key, priority, ticket);
                true
            }
        }
    }

    fn enter(&mut self, key: &K, priority: Priority, ticket: u64) {
        self.waiting[priority.line()] += 1;
        self.lines[priority.line()].push_back((key.clone(), ticket));
    }

    /// Wants a key worked on at a moment; the earliest moment counts.
    pub(crate) fn add_at(&mut self, key: &K, priority: Priority, at: Instant) {
        let ticket = self.ticket();
        let entry = self.entry(key);
        match entry.later {
            Some((present, _)) if present <= at => return,
            _ => {}
        }
        if let Some(old) = entry.later.replace((at, ticket)) {
            self.later.remove(&old);
        }
        self.later.insert((at, ticket), (key.clone(), priority));
    }

    /// Forgets a key's failures; what waits for its backoff is wanted now.
    pub(crate) fn reset(&mut self, key: &K, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.failures = 0;
        if let Some(slot) = entry.later.take()
            && let Some((key, priority)) = self.later.remove(&slot)
        {
            self.add(&key, priority, now);
        }
        self.forget_if_idle(key);
    }

    /// Forgets a key's failures, and nothing else.
    pub(crate) fn forgive(&mut self, key: &K) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.failures = 0;
        self.forget_if_idle(key);
    }

    /// Moves what is due into line, and takes the next key.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Taken<K>> {
        while let Some(first) = self.later.first_entry()
            && first.key().0 <= now
        {
            let (key, priority) = first.remove();
            self.entry(&key).later = None;
            self.add(&key, priority, now);
        }
        let line = self.choose()?;
        loop {
            let (key, ticket) = self.lines[line].pop_front()?;
            let left = self.lines[line].len();
            if is_wide(self.lines[line].capacity(), left) {
                self.lines[line].shrink_to(2 * left + ROOM);
            }
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if let Place::Waiting { priority, since, ticket: valid } = entry.place
                && valid == ticket
            {
                entry.place = Place::Running { since: now, again: None };
                let failures = entry.failures;
                self.waiting[line] -= 1;
                return Some(Taken { key, priority, waited: now.saturating_duration_since(since), failures });
            }
        }
    }

    /// Smooth weighted round robin over the lines that have work.
    fn choose(&mut self) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<usize> = None;
        for (line, weight) in WEIGHTS.into_iter().enumerate() {
            if self.waiting[line] == 0 {
                self.credit[line] = 0;
                // Only places that keys have left behind by moving up.
                self.lines[line].clear();
                continue;
            }
            total += weight;
            self.credit[line] += weight;
            if best.is_none_or(|best| self.credit[line] > self.credit[best]) {
                best = Some(line);
            }
        }
        let best = best?;
        self.credit[best] -= total;
        Some(best)
    }

    /// Work on a key has ended well.
    pub(crate) fn done(&mut self, key: &K) {
        self.entry(key).failures = 0;
        self.leave(key);
    }

    /// Work on a key has failed; it is wanted again after a while, or now if it changed meanwhile.
    pub(crate) fn retry(&mut self, key: &K, priority: Priority, at: Instant) {
        let entry = self.entry(key);
        entry.failures = entry.failures.saturating_add(1);
        self.leave_until(key, priority, at);
    }

    /// Work on a key has ended, and it is wanted at a moment of the worker's choice. Neither a failure nor a
    /// success.
    pub(crate) fn leave_until(&mut self, key: &K, priority: Priority, at: Instant) {
        let changed =
            matches!(self.entries.get(key), Some(Entry { place: Place::Running { again: Some(_), .. }, .. }));
        self.leave(key);
        if !changed {
            self.add_at(key, priority, at);
        }
    }

    fn leave(&mut self, key: &K) {
        let ticket = self.ticket();
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Place::Running { again, .. } = &entry.place else { return };
        match *again {
            Some((priority, since)) => {
                entry.place = Place::Waiting { priority, since, ticket };
                self.enter(key, priority, ticket);
            }
            None => entry.place = Place::Idle,
        }
        self.forget_if_idle(key);
    }

    fn forget_if_idle(&mut self, key: &K) {
        if matches!(self.entries.get(key), Some(Entry { place: Place::Idle, failures: 0, later: None })) {
            self.entries.remove(key);
            let left = self.entries.len();
            if is_wide(self.entries.capacity(), left) {
                self.entries.shrink_to(2 * left + ROOM);
            }
        }
    }

    /// How often a key has failed in a row.
    pub(crate) fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// When the next moment comes; `None` if only an `add` can bring work.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    /// Keys that wait.
    pub(crate) fn depth(&self) -> usize {
        self.waiting.iter().sum()
    }

    /// How long the oldest has waited, how many run, and how long the oldest of those runs.
    pub(crate) fn ages(&self, now: Instant) -> (Duration, usize, Duration) {
        let (mut oldest, mut running, mut longest) = (Duration::ZERO, 0, Duration::ZERO);
        for entry in self.entries.values() {
            match entry.place {
                Place::Waiting { since, .. } => oldest = oldest.max(now.saturating_duration_since(since)),
                Place::Running { since, .. } => {
                    running += 1;
                    longest = longest.max(now.saturating_duration_since(since));
                }
                Place::Idle => {}
            }
        }
        (oldest, running, longest)
    }

    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.entries.capacity() + self.lines.iter().map(VecDeque::capacity).sum::<usize>()
    }

    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.entries.len()
    }
}
