//! The rules of a work queue, without tasks or a clock of its own.
//!
//! A key is either waiting or being processed, and in the latter case possibly requested again. In addition it can
//! have one time in the future at which it is enqueued.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use super::Priority;

/// The capacity that is retained even if there are no keys.
const MIN_CAPACITY: usize = 64;
/// How often each priority is served when all have work: high most of the time, low never starved.
const WEIGHTS: [i32; 3] = [16, 4, 1];

enum EntryState {
    /// Waits in the queue of its priority. `ticket` distinguishes its valid position from outdated ones.
    Waiting { priority: Priority, since: Instant, ticket: u64 },
    /// Is being processed; `again` is set if it was added meanwhile.
    Running { since: Instant, again: Option<(Priority, Instant)> },
    /// Neither, but it has failures or a delayed addition.
    Idle,
}

struct Entry {
    state: EntryState,
    failures: u32,
    /// Its key in `later`.
    later: Option<(Instant, u64)>,
}

pub(crate) struct Core<K> {
    entries: HashMap<K, Entry>,
    queues: [VecDeque<(K, u64)>; 3],
    waiting: [usize; 3],
    credit: [i32; 3],
    later: BTreeMap<(Instant, u64), (K, Priority)>,
    tickets: u64,
}

/// Whether most of the capacity is unused. Otherwise the initial resync of all objects would hold its memory for the
/// whole run.
fn is_oversized(capacity: usize, len: usize) -> bool {
    capacity > 8 * (len + MIN_CAPACITY)
}

/// A key taken for processing.
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
            queues: Default::default(),
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
        let new = || Entry { state: EntryState::Idle, failures: 0, later: None };
        self.entries.entry(key.clone()).or_insert_with(new)
    }

    /// Enqueues a key. `true` if that changed anything.
    pub(crate) fn add(&mut self, key: &K, priority: Priority, now: Instant) -> bool {
        let ticket = self.ticket();
        let entry = self.entry(key);
        match &mut entry.state {
            EntryState::Running { again, .. } => {
                let changed = again.is_none();
                let (wanted, _) = again.get_or_insert((priority, now));
                *wanted = (*wanted).min(priority);
                changed
            }
            EntryState::Waiting { priority: present, .. } if *present <= priority => false,
            EntryState::Waiting { priority: present, ticket: valid, .. } => {
                // Move to the higher priority and keep the age.
                let from = std::mem::replace(present, priority);
                *valid = ticket;
                self.waiting[from.index()] -= 1;
                self.enter(key, priority, ticket);
                true
            }
            EntryState::Idle => {
                entry.state = EntryState::Waiting { priority, since: now, ticket };
                self.enter(key, priority, ticket);
                true
            }
        }
    }

    fn enter(&mut self, key: &K, priority: Priority, ticket: u64) {
        self.waiting[priority.index()] += 1;
        self.queues[priority.index()].push_back((key.clone(), ticket));
    }

    /// Enqueues a key at a later time; the earliest time applies.
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

    /// Enqueues a key for a resync, unless it waits for its backoff: a resync must not end that. `true` if that changed
    /// anything.
    pub(crate) fn add_for_resync(&mut self, key: &K, now: Instant) -> bool {
        let in_backoff = |entry: &Entry| entry.failures > 0 && entry.later.is_some();
        if self.entries.get(key).is_some_and(in_backoff) {
            return false;
        }
        self.add(key, Priority::Low, now)
    }

    /// Resets a key's failures and enqueues it now if it waits for its backoff.
    pub(crate) fn reset_backoff(&mut self, key: &K, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.failures = 0;
        if let Some(slot) = entry.later.take()
            && let Some((key, priority)) = self.later.remove(&slot)
        {
            self.add(&key, priority, now);
        }
        self.remove_if_idle(key);
    }

    /// Resets a key's failures only.
    pub(crate) fn clear_failures(&mut self, key: &K) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.failures = 0;
        self.remove_if_idle(key);
    }

    /// Enqueues the delayed keys that are due, then takes the next key.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Taken<K>> {
        while let Some(first) = self.later.first_entry()
            && first.key().0 <= now
        {
            let (key, priority) = first.remove();
            self.entry(&key).later = None;
            self.add(&key, priority, now);
        }
        let index = self.choose()?;
        loop {
            let (key, ticket) = self.queues[index].pop_front()?;
            let left = self.queues[index].len();
            if is_oversized(self.queues[index].capacity(), left) {
                self.queues[index].shrink_to(2 * left + MIN_CAPACITY);
            }
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if let EntryState::Waiting { priority, since, ticket: valid } = entry.state
                && valid == ticket
            {
                entry.state = EntryState::Running { since: now, again: None };
                let failures = entry.failures;
                self.waiting[index] -= 1;
                return Some(Taken { key, priority, waited: now.saturating_duration_since(since), failures });
            }
        }
    }

    /// Smooth weighted round-robin over the queues that have work.
    fn choose(&mut self) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<usize> = None;
        for (index, weight) in WEIGHTS.into_iter().enumerate() {
            if self.waiting[index] == 0 {
                self.credit[index] = 0;
                // Only outdated positions of keys that moved to a higher priority.
                self.queues[index].clear();
                continue;
            }
            total += weight;
            self.credit[index] += weight;
            if best.is_none_or(|best| self.credit[index] > self.credit[best]) {
                best = Some(index);
            }
        }
        let best = best?;
        self.credit[best] -= total;
        Some(best)
    }

    /// Processing a key succeeded.
    pub(crate) fn done(&mut self, key: &K) {
        self.entry(key).failures = 0;
        self.finish(key);
    }

    /// Processing a key failed: it is enqueued at `at`, or now if it was added meanwhile.
    pub(crate) fn retry(&mut self, key: &K, priority: Priority, at: Instant) {
        let entry = self.entry(key);
        entry.failures = entry.failures.saturating_add(1);
        self.finish_and_requeue_at(key, priority, at);
    }

    /// Processing a key ended, and the worker requests it again at `at`. Neither a failure nor a success.
    pub(crate) fn finish_and_requeue_at(&mut self, key: &K, priority: Priority, at: Instant) {
        let changed = matches!(
            self.entries.get(key),
            Some(Entry { state: EntryState::Running { again: Some(_), .. }, .. })
        );
        self.finish(key);
        if !changed {
            self.add_at(key, priority, at);
        }
    }

    fn finish(&mut self, key: &K) {
        let ticket = self.ticket();
        let Some(entry) = self.entries.get_mut(key) else { return };
        let EntryState::Running { again, .. } = &entry.state else { return };
        match *again {
            Some((priority, since)) => {
                entry.state = EntryState::Waiting { priority, since, ticket };
                self.enter(key, priority, ticket);
            }
            None => entry.state = EntryState::Idle,
        }
        self.remove_if_idle(key);
    }

    fn remove_if_idle(&mut self, key: &K) {
        if matches!(self.entries.get(key), Some(Entry { state: EntryState::Idle, failures: 0, later: None }))
        {
            self.entries.remove(key);
            let left = self.entries.len();
            if is_oversized(self.entries.capacity(), left) {
                self.entries.shrink_to(2 * left + MIN_CAPACITY);
            }
        }
    }

    /// A key's consecutive failures.
    pub(crate) fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// When the next delayed key is due; `None` if there is none.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    /// The number of waiting keys.
    pub(crate) fn depth(&self) -> usize {
        self.waiting.iter().sum()
    }

    /// The age of the oldest waiting key, the number of running keys, and the age of the oldest of those.
    pub(crate) fn ages(&self, now: Instant) -> (Duration, usize, Duration) {
        let (mut oldest, mut running, mut longest) = (Duration::ZERO, 0, Duration::ZERO);
        for entry in self.entries.values() {
            match entry.state {
                EntryState::Waiting { since, .. } => {
                    oldest = oldest.max(now.saturating_duration_since(since))
                }
                EntryState::Running { since, .. } => {
                    running += 1;
                    longest = longest.max(now.saturating_duration_since(since));
                }
                EntryState::Idle => {}
            }
        }
        (oldest, running, longest)
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity() + self.queues.iter().map(VecDeque::capacity).sum::<usize>()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
