//! The line of pods that wait for a node, without tasks or a clock of its own: upstream's scheduling queue.
//!
//! A pod is ready, or backs off after a failure, or is parked until something changes that may help it, or is being
//! seen to. Promise: what changes while a pod is looked at is not missed; no pod waits longer than [`LONGEST`] without
//! being tried again; pods of higher priority go first, and among equals who came first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use wharf_model::Key;

use super::decide::Cause;

/// The pause after a first failure.
const BACKOFF: Duration = Duration::from_secs(1);
/// The longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// So long a pod is parked when nothing seems to help it.
const LONGEST: Duration = Duration::from_secs(300);

/// The pods.
#[derive(Debug, Default)]
pub(super) struct Line {
    pods: BTreeMap<Key, Entry>,
    ready: BTreeSet<(Reverse<i32>, u64, Key)>,
    /// Who backs off or is parked, by when that ends.
    later: BTreeSet<(Instant, Key)>,
    /// Who is parked, by what would help.
    parked: BTreeMap<Cause, BTreeSet<Key>>,
    /// Something has changed since a pod was last taken.
    changed: bool,
    tickets: u64,
    /// What changes of a pod's own ends its pause.
    at_once: bool,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    priority: i32,
    /// Attempts since it came.
    attempts: u32,
    /// Its pause ends then.
    rests_until: Option<Instant>,
    /// The last attempt failed: what changes may be of its own doing, and ends no pause.
    failed: bool,
    /// Something of its own has changed since it was taken.
    again: bool,
}

#[derive(Debug)]
enum Place {
    Ready { ticket: u64 },
    BackingOff { until: Instant },
    Parked { causes: BTreeSet<Cause>, until: Instant },
    SeenTo,
}

impl Line {
    /// An empty one. `at_once`: what changes of a pod's own ends its pause.
    pub(super) fn new(at_once: bool) -> Self {
        Self { at_once, ..Self::default() }
    }

    /// A pod has come, or says something new.
    pub(super) fn add(&mut self, key: &Key, priority: i32, now: Instant) {
        if self.pods.contains_key(key) {
            return self.nudge(key, now);
        }
        self.changed = true;
        let new = Entry {
            place: Place::SeenTo,
            priority,
            attempts: 0,
            rests_until: None,
            failed: false,
            again: false,
        };
        self.pods.insert(key.clone(), new);
        self.ready(key);
    }

    /// A pod is gone, or needs us no longer.
    pub(super) fn remove(&mut self, key: &Key) {
        self.leave(key);
        self.pods.remove(key);
    }

    /// A pod that was seen to needs us no longer, as it was when it was taken.
    pub(super) fn done(&mut self, key: &Key) {
        // Another of its name may have come since, and waits.
        match self.pods.get(key) {
            Some(Entry { place: Place::SeenTo, again: true, .. }) => self.ready(key),
            Some(Entry { place: Place::SeenTo, again: false, .. }) => self.remove(key),
            Some(_) | None => {}
        }
    }

    /// The next pod; from now on it is being seen to.
    pub(super) fn take(&mut self, now: Instant) -> Option<Key> {
        while let Some((at, key)) = self.later.first().cloned()
            && at <= now
        {
            self.ready(&key);
        }
        let (_, _, key) = self.ready.pop_first()?;
        let entry = self.pods.get_mut(&key)?;
        entry.place = Place::SeenTo;
        entry.attempts = entry.attempts.saturating_add(1);
        entry.again = false;
        self.changed = false;
        Some(key)
    }

    /// The pod that was taken last has to wait for something to change; perhaps it has.
    pub(super) fn park(&mut self, key: &Key, causes: BTreeSet<Cause>, now: Instant) {
        self.leave(key);
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.rests_until = Some(now + pause(entry.attempts));
        entry.failed = false;
        let until = now + LONGEST;
        self.later.insert((until, key.clone()));
        for cause in &causes {
            self.parked.entry(*cause).or_default().insert(key.clone());
        }
        entry.place = Place::Parked { causes, until };
        if self.changed {
            self.revive(key, now);
        }
    }

    /// It failed, and may succeed as things are: again after its pause.
    pub(super) fn retry(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.rests_until = Some(now + pause(entry.attempts));
        entry.failed = true;
        self.revive(key, now);
    }

    /// Something of a pod's own has changed: its claims, or itself.
    pub(super) fn nudge(&mut self, key: &Key, now: Instant) {
        self.changed = true;
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.again = true;
        match entry.place {
            Place::Parked { .. } | Place::BackingOff { .. } if self.at_once && !entry.failed => {
                self.ready(key)
            }
            Place::Parked { .. } => self.revive(key, now),
            Place::Ready { .. } | Place::BackingOff { .. } | Place::SeenTo => {}
        }
    }

    /// Something has changed that helps against these: whom it may help is tried again, though not before its pause is
    /// over.
    pub(super) fn wake(&mut self, causes: &[Cause], now: Instant) {
        self.changed = true;
        let helped: BTreeSet<Key> =
            causes.iter().filter_map(|cause| self.parked.get(cause)).flatten().cloned().collect();
        for key in &helped {
            self.revive(key, now);
        }
    }

    /// When the next pod is due by itself.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// The keys of all pods.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.pods.keys().cloned().collect()
    }

    /// Takes a pod out of where it waits.
    fn leave(&mut self, key: &Key) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        match std::mem::replace(&mut entry.place, Place::SeenTo) {
            Place::Ready { ticket } => {
                self.ready.remove(&(Reverse(entry.priority), ticket, key.clone()));
            }
            Place::BackingOff { until } => {
                self.later.remove(&(until, key.clone()));
            }
            Place::Parked { causes, until } => {
                self.later.remove(&(until, key.clone()));
                for cause in causes {
                    if let Some(keys) = self.parked.get_mut(&cause) {
                        keys.remove(key);
                    }
                }
            }
            Place::SeenTo => {}
        }
    }

    fn ready(&mut self, key: &Key) {
        self.leave(key);
        self.tickets += 1;
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.place = Place::Ready { ticket: self.tickets };
        self.ready.insert((Reverse(entry.priority), self.tickets, key.clone()));
    }

    /// Into the line, or first through what is left of its pause.
    fn revive(&mut self, key: &Key, now: Instant) {
        let rests = self.pods.get(key).and_then(|entry| entry.rests_until).filter(|until| *until > now);
        let Some(until) = rests else { return self.ready(key) };
        self.leave(key);
        if let Some(entry) = self.pods.get_mut(key) {
            entry.place = Place::BackingOff { until };
            self.later.insert((until, key.clone()));
        }
    }
}

/// The pause after so many attempts.
fn pause(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(8);
    (BACKOFF * 2u32.pow(doublings)).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::namespaced("ns", name)
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The first pause is a second, which every pod whose claim is just being bound would pay.
    #[tokio::test(start_paused = true)]
    async fn what_changes_of_its_own_ends_a_pause() {
        for (at_once, taken) in [(true, true), (false, false)] {
            let (mut line, now) = (Line::new(at_once), Instant::now());
            line.add(&key("a"), 0, now);
            assert_eq!(line.take(now), Some(key("a")));
            line.park(&key("a"), BTreeSet::new(), now);
            line.nudge(&key("a"), now);
            assert_eq!(line.take(now).is_some(), taken, "{at_once}");
        }
    }

    /// A driver without room takes the node off all of a pod's claims, one after the other: that is no news.
    #[tokio::test(start_paused = true)]
    async fn what_changes_of_its_own_ends_no_pause_of_a_failure() {
        let (mut line, now) = (Line::new(true), Instant::now());
        line.add(&key("a"), 0, now);
        line.take(now);
        line.retry(&key("a"), now);
        line.nudge(&key("a"), now);
        assert_eq!(line.take(now), None);
        assert_eq!(line.take(now + SECOND), Some(key("a")));
        // Refused the next time, it is one that waits again.
        line.park(&key("a"), BTreeSet::new(), now);
        line.nudge(&key("a"), now);
        assert_eq!(line.take(now), Some(key("a")));
    }

    /// A look and what follows from it are two moments.
    #[tokio::test(start_paused = true)]
    async fn who_changes_while_seen_to_is_not_done() {
        let (mut line, now) = (Line::new(true), Instant::now());
        let taken = |line: &mut Line| {
            line.add(&key("a"), 0, now);
            assert_eq!(line.take(now), Some(key("a")));
        };
        taken(&mut line);
        line.done(&key("a"));
        assert!(line.keys().is_empty());
        taken(&mut line);
        line.add(&key("a"), 0, now);
        line.done(&key("a"));
        assert_eq!(line.take(now), Some(key("a")), "made anew, or with another claim");
        line.remove(&key("a"));
        line.add(&key("a"), 0, now);
        line.done(&key("a"));
        assert_eq!(line.take(now), Some(key("a")), "gone and made anew");
    }

    /// One serial loop; upstream's order.
    #[tokio::test(start_paused = true)]
    async fn the_important_first_then_who_came_first() {
        let (mut line, now) = (Line::default(), Instant::now());
        for (name, priority) in [("b", 0), ("a", 0), ("high", 1000), ("low", -1)] {
            line.add(&key(name), priority, now);
        }
        // Who is there already does not come again.
        line.add(&key("b"), 0, now);
        let order: Vec<String> = std::iter::from_fn(|| line.take(now)).map(|key| key.name).collect();
        assert_eq!(order, ["high", "b", "a", "low"]);
    }

    /// kubernetes.md 1.5 "Requeue", with backoff 1 s to 10 s as upstream.
    #[tokio::test(start_paused = true)]
    async fn failures_are_tried_again_ever_later() {
        let (mut line, mut now) = (Line::default(), Instant::now());
        line.add(&key("p"), 0, now);
        for seconds in [1, 2, 4, 8, 10, 10] {
            assert_eq!(line.take(now), Some(key("p")));
            line.retry(&key("p"), now);
            assert_eq!(line.take(now), None);
            assert_eq!(line.next_due(), Some(now + SECOND * seconds));
            now += SECOND * seconds;
        }
    }

    /// kubernetes.md 1.5 "Requeue".
    #[tokio::test(start_paused = true)]
    async fn the_parked_wait_for_what_helps() {
        let (mut line, start) = (Line::default(), Instant::now());
        line.add(&key("p"), 0, start);
        line.take(start);
        line.park(&key("p"), [Cause::Limits, Cause::Resources].into(), start);
        let late = start + SECOND * 20;
        line.wake(&[Cause::Volumes], late);
        assert_eq!(line.take(late), None);
        line.wake(&[Cause::Limits], late);
        assert_eq!(line.take(late), Some(key("p")));
        // Within its pause it waits for its end: the second failure, two seconds.
        line.park(&key("p"), [Cause::Limits].into(), late);
        line.nudge(&key("p"), late);
        assert_eq!(line.take(late), None);
        assert_eq!(line.take(late + SECOND * 2), Some(key("p")));
        // And what nobody helps is looked at all the same.
        line.park(&key("p"), [Cause::Limits].into(), late);
        assert_eq!(line.take(late + LONGEST - SECOND), None);
        assert_eq!(line.take(late + LONGEST), Some(key("p")));
    }

    /// What changes between the look and the park is not missed.
    #[tokio::test(start_paused = true)]
    async fn changes_during_an_attempt_count() {
        let (mut line, now) = (Line::default(), Instant::now());
        line.add(&key("p"), 0, now);
        line.take(now);
        line.wake(&[Cause::Volumes], now);
        line.park(&key("p"), [Cause::Volumes].into(), now);
        assert_eq!(line.next_due(), Some(now + SECOND));
        assert_eq!(line.take(now + SECOND), Some(key("p")));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_gone_is_nowhere() {
        let (mut line, now) = (Line::default(), Instant::now());
        for (name, how) in [("ready", 0), ("backing-off", 1), ("parked", 2), ("seen-to", 3)] {
            line.add(&key(name), 0, now);
            if how > 0 {
                line.take(now);
            }
            match how {
                1 => line.retry(&key(name), now),
                2 => line.park(&key(name), [Cause::Node].into(), now),
                _ => {}
            }
            line.remove(&key(name));
            line.retry(&key(name), now);
            line.park(&key(name), [Cause::Node].into(), now);
            line.wake(&[Cause::Node], now);
            assert_eq!(line.take(now + LONGEST * 2), None, "{name}");
            assert!(line.later.is_empty() && line.keys().is_empty());
            assert!(line.parked.values().all(BTreeSet::is_empty));
        }
    }
}
