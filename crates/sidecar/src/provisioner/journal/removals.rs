//! Segments to delete: finished ones, and those that a request without a response may have created.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::planner::{MAX_PAUSE, pause};

/// Maximum concurrent deletions.
const MAX_CONCURRENT: usize = 4;
/// How long finished segments wait: their deletion is not urgent, and writes have priority.
const DELETE_DELAY: Duration = Duration::from_millis(100);
/// After this time a request without a response cannot take effect any more. API servers time out after a minute.
const UNKNOWN_WRITE_WINDOW: Duration = Duration::from_secs(120);

/// The result of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemoveOutcome {
    /// The segment is deleted.
    Deleted,
    /// There was no such segment. After a write without a response it may still appear.
    NotFound,
    /// The request failed.
    Failed,
}

/// The segments to delete, by name.
#[derive(Default)]
pub(super) struct Removals {
    by_name: BTreeMap<String, Removal>,
    running: usize,
}

struct Removal {
    /// `None` for a segment that a request without a response may have created.
    uid: Option<String>,
    since: Instant,
    at: Instant,
    failures: u32,
    running: bool,
}

impl Removals {
    /// Schedules a segment whose intents are all finished.
    pub(super) fn finished(&mut self, name: String, uid: String, now: Instant) {
        self.add(name, Some(uid), now, DELETE_DELAY);
    }

    /// Schedules a segment that may exist. Its intents were never acted on.
    pub(super) fn may_exist(&mut self, name: &str, now: Instant) {
        self.add(name.to_owned(), None, now, MAX_PAUSE);
    }

    fn add(&mut self, name: String, uid: Option<String>, now: Instant, after: Duration) {
        let removal = Removal { uid, since: now, at: now + after, failures: 0, running: false };
        self.by_name.insert(name, removal);
    }

    /// Whether the segment is scheduled for deletion.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Makes all deletions due now, before shutdown.
    pub(super) fn expedite(&mut self, now: Instant) {
        for removal in self.by_name.values_mut() {
            removal.at = removal.at.min(now);
        }
    }

    /// Cancels all deletions that have not started.
    pub(super) fn cancel_pending(&mut self) {
        self.by_name.retain(|_, removal| removal.running);
    }

    /// Whether no deletion runs or is due.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.by_name.values().all(|removal| !removal.running && removal.at > now)
    }

    /// Whether deletions are running.
    pub(super) fn are_running(&self) -> bool {
        self.running > 0
    }

    /// The next segment to delete, by name and, if known, UID. It counts as started from now on.
    pub(super) fn next(&mut self, now: Instant) -> Option<(String, Option<String>)> {
        if self.running >= MAX_CONCURRENT {
            return None;
        }
        let is_due = |removal: &Removal| !removal.running && removal.at <= now;
        let (name, removal) = self.by_name.iter_mut().find(|(_, removal)| is_due(removal))?;
        removal.running = true;
        self.running += 1;
        Some((name.clone(), removal.uid.clone()))
    }

    /// When the next deletion is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.by_name.values().filter(|removal| !removal.running).map(|removal| removal.at);
        if self.running < MAX_CONCURRENT { waiting.min() } else { None }
    }

    /// Reports the result of a deletion.
    pub(super) fn ended(&mut self, name: &str, outcome: RemoveOutcome, now: Instant) {
        let Some(removal) = self.by_name.get_mut(name) else { return };
        self.running -= usize::from(std::mem::take(&mut removal.running));
        let certain =
            removal.uid.is_some() || now.saturating_duration_since(removal.since) >= UNKNOWN_WRITE_WINDOW;
        match outcome {
            RemoveOutcome::Deleted => {
                self.by_name.remove(name);
            }
            RemoveOutcome::NotFound if certain => {
                self.by_name.remove(name);
            }
            RemoveOutcome::NotFound => removal.at = now + MAX_PAUSE,
            RemoveOutcome::Failed => {
                removal.failures += 1;
                removal.at = now + pause(removal.failures);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::planner::BASE_PAUSE;
    use super::*;

    fn removals() -> (Removals, Instant) {
        (Removals::default(), Instant::now())
    }

    #[test]
    fn finished_segment_is_deleted_after_delay_with_retries() {
        let (mut removals, start) = removals();
        removals.finished("s".into(), "u".into(), start);
        let due = start + DELETE_DELAY;
        assert!(removals.contains("s") && removals.is_idle(start) && removals.next(start).is_none());
        assert_eq!(removals.due(), Some(due));
        let next = Some(("s".to_owned(), Some("u".to_owned())));
        assert_eq!(removals.next(due), next);
        assert!(!removals.is_idle(due) && removals.next(due).is_none() && removals.due().is_none());
        for failures in 0..3 {
            removals.ended("s", RemoveOutcome::Failed, due);
            let pause = BASE_PAUSE * 2_u32.pow(failures);
            assert_eq!(removals.due(), Some(due + pause));
            assert_eq!(removals.next(due + pause), next);
        }
        removals.ended("s", RemoveOutcome::NotFound, due);
        assert!(!removals.contains("s") && removals.is_idle(due));
        // A late result is ignored.
        removals.ended("s", RemoveOutcome::Deleted, due);
    }

    #[test]
    fn possible_segment_is_checked_until_write_window_ends() {
        let (mut removals, start) = removals();
        removals.may_exist("s", start);
        let mut now = start;
        let mut checks = 0;
        while let Some(due) = removals.due() {
            now = due;
            assert_eq!(removals.next(now), Some(("s".to_owned(), None)));
            removals.ended("s", RemoveOutcome::NotFound, now);
            checks += 1;
        }
        assert_eq!((checks, now - start), (4, UNKNOWN_WRITE_WINDOW));
    }

    #[test]
    fn deletions_are_bounded_and_can_be_expedited() {
        let (mut removals, start) = removals();
        for i in 0..MAX_CONCURRENT + 1 {
            removals.finished(i.to_string(), "u".into(), start);
        }
        removals.expedite(start);
        assert!(!removals.is_idle(start));
        let taken = std::iter::from_fn(|| removals.next(start)).count();
        assert_eq!((taken, removals.due()), (MAX_CONCURRENT, None));
        removals.ended("0", RemoveOutcome::Deleted, start);
        assert_eq!(removals.due(), Some(start));
    }
}
