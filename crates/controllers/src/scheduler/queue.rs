//! The queue of pods that wait for a node, without tasks or a clock of its own: upstream's scheduling queue.
//!
//! A pod is ready, backs off after a failure, is parked until a change may help it, or is in progress. Guarantees: a
//! change during an attempt is not missed; no pod waits longer than [`MAX_PARKED`] without a retry; pods with higher
//! priority come first, and equal ones in the order in which they became ready.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use wharf_cluster::Backoff;
use wharf_model::Key;

use super::decide::Cause;

/// The backoff after failed attempts.
const BACKOFF: Backoff = Backoff::without_jitter(Duration::from_secs(1), Duration::from_secs(10));
/// How long a pod is parked at most when no change helps it.
const MAX_PARKED: Duration = Duration::from_secs(300);

/// All queued pods.
#[derive(Debug, Default)]
pub(super) struct PodQueue {
    pods: BTreeMap<Key, Entry>,
    ready: BTreeSet<(Reverse<i32>, u64, Key)>,
    /// Pods that back off or are parked, by the time when that ends.
    timers: BTreeSet<(Instant, Key)>,
    /// Parked pods, by what would help them.
    parked: BTreeMap<Cause, BTreeSet<Key>>,
    /// Whether something has changed since a pod was last taken.
    changed: bool,
    last_ticket: u64,
    /// Whether a change of the pod or its claims ends its backoff.
    retry_own_changes: bool,
}

#[derive(Debug)]
struct Entry {
    state: QueueState,
    priority: i32,
    /// Attempts since it was added.
    attempts: u32,
    /// When its backoff ends.
    backoff_until: Option<Instant>,
    /// Whether the last attempt failed: changes may be caused by the failure itself, and do not end the backoff.
    failed: bool,
    /// Whether the pod or its claims have changed since it was taken.
    changed_while_in_progress: bool,
}

#[derive(Debug)]
enum QueueState {
    Ready { ticket: u64 },
    BackingOff { until: Instant },
    Parked { causes: BTreeSet<Cause>, until: Instant },
    InProgress,
}

impl PodQueue {
    /// An empty queue. `retry_own_changes`: whether a change of a pod or its claims ends its backoff.
    pub(super) fn new(retry_own_changes: bool) -> Self {
        Self { retry_own_changes, ..Self::default() }
    }

    /// Adds a pod; for a pod that is queued, the same as [`nudge`](Self::nudge).
    pub(super) fn add(&mut self, key: &Key, priority: i32, now: Instant) {
        if self.pods.contains_key(key) {
            return self.nudge(key, now);
        }
        self.changed = true;
        let new = Entry {
            state: QueueState::InProgress,
            priority,
            attempts: 0,
            backoff_until: None,
            failed: false,
            changed_while_in_progress: false,
        };
        self.pods.insert(key.clone(), new);
        self.ready(key);
    }

    /// Removes a pod that was deleted or needs no scheduling.
    pub(super) fn remove(&mut self, key: &Key) {
        self.unlink(key);
        self.pods.remove(key);
    }

    /// Ends the attempt for a pod, and removes it unless it has changed since it was taken.
    pub(super) fn done(&mut self, key: &Key) {
        // Another pod of that name may have been added since.
        match self.pods.get(key) {
            Some(Entry { state: QueueState::InProgress, changed_while_in_progress: true, .. }) => {
                self.ready(key)
            }
            Some(Entry { state: QueueState::InProgress, changed_while_in_progress: false, .. }) => {
                self.remove(key)
            }
            Some(_) | None => {}
        }
    }

    /// Takes the next pod; from now on it is in progress.
    pub(super) fn take(&mut self, now: Instant) -> Option<Key> {
        while let Some((at, key)) = self.timers.first().cloned()
            && at <= now
        {
            self.ready(&key);
        }
        let (_, _, key) = self.ready.pop_first()?;
        let entry = self.pods.get_mut(&key)?;
        entry.state = QueueState::InProgress;
        entry.attempts = entry.attempts.saturating_add(1);
        entry.changed_while_in_progress = false;
        self.changed = false;
        Some(key)
    }

    /// Parks the pod that was taken last until something changes, or requeues it if something already has.
    pub(super) fn park(&mut self, key: &Key, causes: BTreeSet<Cause>, now: Instant) {
        self.unlink(key);
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.backoff_until = Some(now + BACKOFF.after(entry.attempts));
        entry.failed = false;
        let until = now + MAX_PARKED;
        self.timers.insert((until, key.clone()));
        for cause in &causes {
            self.parked.entry(*cause).or_default().insert(key.clone());
        }
        entry.state = QueueState::Parked { causes, until };
        if self.changed {
            self.requeue(key, now);
        }
    }

    /// Retries a pod after its backoff: the attempt failed, and may succeed without a change.
    pub(super) fn retry(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.backoff_until = Some(now + BACKOFF.after(entry.attempts));
        entry.failed = true;
        self.requeue(key, now);
    }

    /// The pod or one of its claims has changed.
    pub(super) fn nudge(&mut self, key: &Key, now: Instant) {
        self.changed = true;
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.changed_while_in_progress = true;
        match entry.state {
            QueueState::Parked { .. } | QueueState::BackingOff { .. }
                if self.retry_own_changes && !entry.failed =>
            {
                self.ready(key)
            }
            QueueState::Parked { .. } => self.requeue(key, now),
            QueueState::Ready { .. } | QueueState::BackingOff { .. } | QueueState::InProgress => {}
        }
    }

    /// A change that helps against these causes: retries the pods it may help, though not before their backoff is over.
    pub(super) fn wake(&mut self, causes: &[Cause], now: Instant) {
        self.changed = true;
        let unblocked: BTreeSet<Key> =
            causes.iter().filter_map(|cause| self.parked.get(cause)).flatten().cloned().collect();
        for key in &unblocked {
            self.requeue(key, now);
        }
    }

    /// When the next backoff or parking time ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The keys of all pods.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.pods.keys().cloned().collect()
    }

    /// Removes a pod from the set in which it waits.
    fn unlink(&mut self, key: &Key) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        match std::mem::replace(&mut entry.state, QueueState::InProgress) {
            QueueState::Ready { ticket } => {
                self.ready.remove(&(Reverse(entry.priority), ticket, key.clone()));
            }
            QueueState::BackingOff { until } => {
                self.timers.remove(&(until, key.clone()));
            }
            QueueState::Parked { causes, until } => {
                self.timers.remove(&(until, key.clone()));
                for cause in causes {
                    if let Some(keys) = self.parked.get_mut(&cause) {
                        keys.remove(key);
                    }
                }
            }
            QueueState::InProgress => {}
        }
    }

    fn ready(&mut self, key: &Key) {
        self.unlink(key);
        self.last_ticket += 1;
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.state = QueueState::Ready { ticket: self.last_ticket };
        self.ready.insert((Reverse(entry.priority), self.last_ticket, key.clone()));
    }

    /// Makes a pod ready, or lets it wait for the rest of its backoff.
    fn requeue(&mut self, key: &Key, now: Instant) {
        let backoff_until =
            self.pods.get(key).and_then(|entry| entry.backoff_until).filter(|until| *until > now);
        let Some(until) = backoff_until else { return self.ready(key) };
        self.unlink(key);
        if let Some(entry) = self.pods.get_mut(key) {
            entry.state = QueueState::BackingOff { until };
            self.timers.insert((until, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::namespaced("ns", name)
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The first backoff is a second, which would delay every pod whose claim is just being bound.
    #[tokio::test(start_paused = true)]
    async fn own_change_ends_the_backoff_of_a_parked_pod() {
        for (retry_own_changes, taken) in [(true, true), (false, false)] {
            let (mut queue, now) = (PodQueue::new(retry_own_changes), Instant::now());
            queue.add(&key("a"), 0, now);
            assert_eq!(queue.take(now), Some(key("a")));
            queue.park(&key("a"), BTreeSet::new(), now);
            queue.nudge(&key("a"), now);
            assert_eq!(queue.take(now).is_some(), taken, "{retry_own_changes}");
        }
    }

    /// A driver without capacity clears the selected node of all claims of a pod, one by one: such changes do not end
    /// the backoff.
    #[tokio::test(start_paused = true)]
    async fn own_change_does_not_end_the_backoff_of_a_failed_pod() {
        let (mut queue, now) = (PodQueue::new(true), Instant::now());
        queue.add(&key("a"), 0, now);
        queue.take(now);
        queue.retry(&key("a"), now);
        queue.nudge(&key("a"), now);
        assert_eq!(queue.take(now), None);
        assert_eq!(queue.take(now + SECOND), Some(key("a")));
        // Parked at the next attempt, it waits for changes again.
        queue.park(&key("a"), BTreeSet::new(), now);
        queue.nudge(&key("a"), now);
        assert_eq!(queue.take(now), Some(key("a")));
    }

    /// A pod may change between the decision and the end of its attempt.
    #[tokio::test(start_paused = true)]
    async fn pod_that_changes_while_in_progress_is_requeued() {
        let (mut queue, now) = (PodQueue::new(true), Instant::now());
        let taken = |queue: &mut PodQueue| {
            queue.add(&key("a"), 0, now);
            assert_eq!(queue.take(now), Some(key("a")));
        };
        taken(&mut queue);
        queue.done(&key("a"));
        assert!(queue.keys().is_empty());
        taken(&mut queue);
        queue.add(&key("a"), 0, now);
        queue.done(&key("a"));
        assert_eq!(queue.take(now), Some(key("a")), "recreated, or with another claim");
        queue.remove(&key("a"));
        queue.add(&key("a"), 0, now);
        queue.done(&key("a"));
        assert_eq!(queue.take(now), Some(key("a")), "deleted and recreated");
    }

    /// Upstream's order.
    #[tokio::test(start_paused = true)]
    async fn pods_are_taken_by_priority_then_by_arrival() {
        let (mut queue, now) = (PodQueue::default(), Instant::now());
        for (name, priority) in [("b", 0), ("a", 0), ("high", 1000), ("low", -1)] {
            queue.add(&key(name), priority, now);
        }
        // Adding a queued pod does not change its position.
        queue.add(&key("b"), 0, now);
        let order: Vec<String> = std::iter::from_fn(|| queue.take(now)).map(|key| key.name).collect();
        assert_eq!(order, ["high", "b", "a", "low"]);
    }

    /// kubernetes.md 1.5 "Requeue", with backoff 1 s to 10 s as upstream.
    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_with_growing_backoff() {
        let (mut queue, mut now) = (PodQueue::default(), Instant::now());
        queue.add(&key("p"), 0, now);
        for seconds in [1, 2, 4, 8, 10, 10] {
            assert_eq!(queue.take(now), Some(key("p")));
            queue.retry(&key("p"), now);
            assert_eq!(queue.take(now), None);
            assert_eq!(queue.next_due(), Some(now + SECOND * seconds));
            now += SECOND * seconds;
        }
    }

    /// kubernetes.md 1.5 "Requeue".
    #[tokio::test(start_paused = true)]
    async fn parked_pod_waits_for_a_change_that_helps() {
        let (mut queue, start) = (PodQueue::default(), Instant::now());
        queue.add(&key("p"), 0, start);
        queue.take(start);
        queue.park(&key("p"), [Cause::Limits, Cause::Resources].into(), start);
        let late = start + SECOND * 20;
        queue.wake(&[Cause::Volumes], late);
        assert_eq!(queue.take(late), None);
        queue.wake(&[Cause::Limits], late);
        assert_eq!(queue.take(late), Some(key("p")));
        // The backoff still applies: two seconds after the second failure.
        queue.park(&key("p"), [Cause::Limits].into(), late);
        queue.nudge(&key("p"), late);
        assert_eq!(queue.take(late), None);
        assert_eq!(queue.take(late + SECOND * 2), Some(key("p")));
        // Without a change that helps it is retried after the maximum time.
        queue.park(&key("p"), [Cause::Limits].into(), late);
        assert_eq!(queue.take(late + MAX_PARKED - SECOND), None);
        assert_eq!(queue.take(late + MAX_PARKED), Some(key("p")));
    }

    /// A change between the decision and the parking is not missed.
    #[tokio::test(start_paused = true)]
    async fn change_during_an_attempt_is_not_missed() {
        let (mut queue, now) = (PodQueue::default(), Instant::now());
        queue.add(&key("p"), 0, now);
        queue.take(now);
        queue.wake(&[Cause::Volumes], now);
        queue.park(&key("p"), [Cause::Volumes].into(), now);
        assert_eq!(queue.next_due(), Some(now + SECOND));
        assert_eq!(queue.take(now + SECOND), Some(key("p")));
    }

    #[tokio::test(start_paused = true)]
    async fn removed_pod_leaves_nothing_behind() {
        let (mut queue, now) = (PodQueue::default(), Instant::now());
        for (name, how) in [("ready", 0), ("backing-off", 1), ("parked", 2), ("in-progress", 3)] {
            queue.add(&key(name), 0, now);
            if how > 0 {
                queue.take(now);
            }
            match how {
                1 => queue.retry(&key(name), now),
                2 => queue.park(&key(name), [Cause::Node].into(), now),
                _ => {}
            }
            queue.remove(&key(name));
            queue.retry(&key(name), now);
            queue.park(&key(name), [Cause::Node].into(), now);
            queue.wake(&[Cause::Node], now);
            assert_eq!(queue.take(now + MAX_PARKED * 2), None, "{name}");
            assert!(queue.timers.is_empty() && queue.keys().is_empty());
            assert!(queue.parked.values().all(BTreeSet::is_empty));
        }
    }
}
