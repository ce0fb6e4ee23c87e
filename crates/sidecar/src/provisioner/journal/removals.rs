//! Segments that are to go: finished ones, and what requests without an answer may have left behind.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::book::{LONGEST_PAUSE, pause};

/// So many deletions run at once.
const AT_ONCE: usize = 4;
/// Finished segments wait so long: nobody waits for their end, and writes go first.
const TIDY: Duration = Duration::from_millis(100);
/// After so long a request that got no answer does not happen any more; API servers give up after a minute.
const DOUBT: Duration = Duration::from_secs(120);

/// What came of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removed {
    /// It is gone.
    Gone,
    /// Nothing was there. After a lost request it may still come.
    NotThere,
    /// It did not work.
    Failed,
}

/// The segments, by name.
#[derive(Default)]
pub(super) struct Removals {
    by_name: BTreeMap<String, Removal>,
    running: usize,
}

struct Removal {
    /// `None` for what a lost request may have left.
    uid: Option<String>,
    since: Instant,
    at: Instant,
    failures: u32,
    running: bool,
}

impl Removals {
    /// All that was in this segment is finished.
    pub(super) fn finished(&mut self, name: String, uid: String, now: Instant) {
        self.add(name, Some(uid), now, TIDY);
    }

    /// Perhaps this segment is there; nobody acts on what is in it.
    pub(super) fn doubtful(&mut self, name: &str, now: Instant) {
        self.add(name.to_owned(), None, now, LONGEST_PAUSE);
    }

    fn add(&mut self, name: String, uid: Option<String>, now: Instant, after: Duration) {
        let removal = Removal { uid, since: now, at: now + after, failures: 0, running: false };
        self.by_name.insert(name, removal);
    }

    /// Whether the segment is to go.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// All are due now: we are about to end.
    pub(super) fn hurry(&mut self, now: Instant) {
        for removal in self.by_name.values_mut() {
            removal.at = removal.at.min(now);
        }
    }

    /// None is to go any more, except for those whose deletion has begun.
    pub(super) fn call_off(&mut self) {
        self.by_name.retain(|_, removal| removal.running);
    }

    /// Whether no deletion runs or is due.
    pub(super) fn is_tidy(&self, now: Instant) -> bool {
        self.by_name.values().all(|removal| !removal.running && removal.at > now)
    }

    /// Whether deletions are under way.
    pub(super) fn are_running(&self) -> bool {
        self.running > 0
    }

    /// The next to delete, which from now on counts as begun: name and, if it is known, identity.
    pub(super) fn next(&mut self, now: Instant) -> Option<(String, Option<String>)> {
        if self.running >= AT_ONCE {
            return None;
        }
        let is_due = |removal: &Removal| !removal.running && removal.at <= now;
        let (name, removal) = self.by_name.iter_mut().find(|(_, removal)| is_due(removal))?;
        removal.running = true;
        self.running += 1;
        Some((name.clone(), removal.uid.clone()))
    }

    /// When the next is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.by_name.values().filter(|removal| !removal.running).map(|removal| removal.at);
        if self.running < AT_ONCE { waiting.min() } else { None }
    }

    /// A deletion has ended.
    pub(super) fn ended(&mut self, name: &str, outcome: Removed, now: Instant) {
        let Some(removal) = self.by_name.get_mut(name) else { return };
        self.running -= usize::from(std::mem::take(&mut removal.running));
        let certain = removal.uid.is_some() || now.saturating_duration_since(removal.since) >= DOUBT;
        match outcome {
            Removed::Gone => {
                self.by_name.remove(name);
            }
            Removed::NotThere if certain => {
                self.by_name.remove(name);
            }
            Removed::NotThere => removal.at = now + LONGEST_PAUSE,
            Removed::Failed => {
                removal.failures += 1;
                removal.at = now + pause(removal.failures);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::PAUSE;
    use super::*;

    fn removals() -> (Removals, Instant) {
        (Removals::default(), Instant::now())
    }

    #[test]
    fn a_finished_one_goes_after_a_while_and_is_tried_until_it_is_gone() {
        let (mut removals, start) = removals();
        removals.finished("s".into(), "u".into(), start);
        let due = start + TIDY;
        assert!(removals.contains("s") && removals.is_tidy(start) && removals.next(start).is_none());
        assert_eq!(removals.due(), Some(due));
        let next = Some(("s".to_owned(), Some("u".to_owned())));
        assert_eq!(removals.next(due), next);
        assert!(!removals.is_tidy(due) && removals.next(due).is_none() && removals.due().is_none());
        for failures in 0..3 {
            removals.ended("s", Removed::Failed, due);
            let pause = PAUSE * 2_u32.pow(failures);
            assert_eq!(removals.due(), Some(due + pause));
            assert_eq!(removals.next(due + pause), next);
        }
        removals.ended("s", Removed::NotThere, due);
        assert!(!removals.contains("s") && removals.is_tidy(due));
        // An answer to what nobody waits for any more.
        removals.ended("s", Removed::Gone, due);
    }

    #[test]
    fn a_doubtful_one_is_looked_for_until_it_cannot_come_any_more() {
        let (mut removals, start) = removals();
        removals.doubtful("s", start);
        let mut now = start;
        let mut looks = 0;
        while let Some(due) = removals.due() {
            now = due;
            assert_eq!(removals.next(now), Some(("s".to_owned(), None)));
            removals.ended("s", Removed::NotThere, now);
            looks += 1;
        }
        assert_eq!((looks, now - start), (4, DOUBT));
    }

    #[test]
    fn they_are_bounded_and_can_be_hurried() {
        let (mut removals, start) = removals();
        for i in 0..AT_ONCE + 1 {
            removals.finished(i.to_string(), "u".into(), start);
        }
        removals.hurry(start);
        assert!(!removals.is_tidy(start));
        let begun = std::iter::from_fn(|| removals.next(start)).count();
        assert_eq!((begun, removals.due()), (AT_ONCE, None));
        removals.ended("0", Removed::Gone, start);
        assert_eq!(removals.due(), Some(start));
    }
}
