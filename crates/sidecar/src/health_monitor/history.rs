//! What was reported, by claim. Only claims with an open problem are stored. After a start it is loaded once from
//! the events that still exist, so that recoveries are reported across restarts and after a switch from upstream's
//! monitor.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wharf_model::{Event, Monotonic, Time};

use super::nodes::failed_node;
use super::view::Reported;

/// A reported problem that is still open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Warning {
    message: String,
    at: Monotonic,
}

/// The reports of one term of leadership.
#[derive(Default)]
pub(crate) struct ReportHistory {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Whether earlier events were loaded.
    is_loaded: bool,
    /// Open problems of volumes, by claim UID.
    abnormal: HashMap<String, Warning>,
    /// When failed nodes were reported, by node and claim UID.
    failed: BTreeMap<(String, String), Monotonic>,
}

/// Events from before this start, by reason.
#[derive(Debug, Default)]
pub(crate) struct PastEvents {
    pub(crate) abnormal: Vec<Event>,
    pub(crate) normal: Vec<Event>,
    pub(crate) failed: Vec<Event>,
    pub(crate) recovered: Vec<Event>,
}

impl ReportHistory {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops everything: from now on another replica may report.
    pub(crate) fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Whether earlier events were loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.lock().is_loaded
    }

    /// Adds earlier events; `time` and `now` are the current times. Reports since the start take precedence.
    pub(crate) fn load(&self, past: &PastEvents, time: Time, now: Monotonic) {
        // An event of the future, after the clock was set back, is as old as one of now.
        let at = |event: &Event| Monotonic(now.0 - time.0.saturating_sub(event.last_timestamp.0).max(0));
        let mut inner = self.lock();
        for (uid, event) in unresolved(&past.abnormal, &past.normal) {
            let warning = Warning { message: event.message.clone(), at: at(event) };
            inner.abnormal.entry(uid.to_owned()).or_insert(warning);
        }
        for (uid, event) in unresolved(&past.failed, &past.recovered) {
            if let Some(node) = failed_node(&event.message) {
                inner.failed.entry((node.to_owned(), uid.to_owned())).or_insert(at(event));
            }
        }
        inner.is_loaded = true;
    }

    /// What was last reported for a claim's volume.
    pub(crate) fn reported(&self, claim: &str) -> Reported {
        let inner = self.lock();
        match inner.abnormal.get(claim) {
            Some(Warning { message, at }) => Reported::Abnormal { message: message.clone(), at: *at },
            None if inner.is_loaded => Reported::Nothing,
            None => Reported::Unknown,
        }
    }

    /// A problem was reported.
    pub(crate) fn warned(&self, claim: &str, message: &str, at: Monotonic) {
        self.lock().abnormal.insert(claim.to_owned(), Warning { message: message.to_owned(), at });
    }

    /// A recovery was reported.
    pub(crate) fn recovered(&self, claim: &str) {
        self.lock().abnormal.remove(claim);
    }

    /// Drops claims that no longer exist.
    pub(crate) fn retain(&self, claims: &HashSet<String>) {
        self.lock().abnormal.retain(|claim, _| claims.contains(claim));
    }

    /// When it was last reported that a claim's pods are on this failed node.
    pub(crate) fn node_failed_at(&self, node: &str, claim: &str) -> Option<Monotonic> {
        self.lock().failed.get(&(node.to_owned(), claim.to_owned())).copied()
    }

    /// It was reported that a claim's pods are on this failed node.
    pub(crate) fn node_failed(&self, node: &str, claim: &str, at: Monotonic) {
        self.lock().failed.insert((node.to_owned(), claim.to_owned()), at);
    }

    /// Removes and returns the claims reported for a node that is ready again.
    pub(crate) fn take_failed(&self, node: &str) -> Vec<String> {
        let mut inner = self.lock();
        let taken: Vec<_> = inner.failed.keys().filter(|(failed, _)| failed == node).cloned().collect();
        for key in &taken {
            inner.failed.remove(key);
        }
        taken.into_iter().map(|(_, claim)| claim).collect()
    }

    /// The nodes that were reported as failed.
    pub(crate) fn failed_nodes(&self) -> HashSet<String> {
        self.lock().failed.keys().map(|(node, _)| node.clone()).collect()
    }
}

/// The newest warning per object without a later all-clear. Within the same second the warning counts: a repeated
/// all-clear is better than a missing one.
fn unresolved<'a>(warnings: &'a [Event], all_clear: &[Event]) -> HashMap<&'a str, &'a Event> {
    let mut newest: HashMap<&str, &Event> = HashMap::new();
    for event in warnings {
        let known = newest.entry(&event.regarding_uid).or_insert(event);
        if known.last_timestamp < event.last_timestamp {
            *known = event;
        }
    }
    for event in all_clear {
        if newest
            .get(event.regarding_uid.as_str())
            .is_some_and(|warning| warning.last_timestamp < event.last_timestamp)
        {
            newest.remove(event.regarding_uid.as_str());
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(uid: &str, message: &str, seconds: i64) -> Event {
        let (regarding_uid, message) = (uid.to_owned(), message.to_owned());
        Event { regarding_uid, message, last_timestamp: Time(seconds * 1000), ..Event::default() }
    }

    fn abnormal(message: &str, seconds: i64) -> Reported {
        Reported::Abnormal { message: message.to_owned(), at: Monotonic(seconds * 1000) }
    }

    /// sidecars.md 1.6 "Output": normal after abnormal, also across a restart.
    #[test]
    fn history_is_loaded_from_events() {
        let history = ReportHistory::default();
        assert_eq!(history.reported("a"), Reported::Unknown);
        history.warned("since", "new", Monotonic(9_000));
        let past = PastEvents {
            abnormal: vec![
                event("a", "second", 5),
                event("a", "first", 4),
                event("back", "was", 4),
                event("again", "m", 7),
                event("tie", "m", 6),
                event("since", "old", 3),
            ],
            normal: vec![event("back", "", 5), event("again", "", 6), event("tie", "", 6), event("x", "", 1)],
            ..PastEvents::default()
        };
        history.load(&past, Time(10_000), Monotonic(10_000));
        for (claim, expected) in [
            ("a", abnormal("second", 5)),
            ("back", Reported::Nothing),
            ("again", abnormal("m", 7)),
            ("tie", abnormal("m", 6)),
            ("since", abnormal("new", 9)),
            ("never", Reported::Nothing),
        ] {
            assert_eq!(history.reported(claim), expected, "{claim}");
        }
        history.recovered("a");
        assert_eq!(history.reported("a"), Reported::Nothing);
        history.retain(&["tie".to_owned()].into());
        assert_eq!(
            (history.reported("again"), history.reported("tie")),
            (Reported::Nothing, abnormal("m", 6))
        );
        history.clear();
        assert_eq!(history.reported("tie"), Reported::Unknown);
        // The clocks differ, and one event is of the future: the wall clock was set back.
        let past =
            PastEvents { abnormal: vec![event("a", "m", 4), event("b", "m", 999)], ..PastEvents::default() };
        history.load(&past, Time(10_000), Monotonic(3_000));
        assert_eq!((history.reported("a"), history.reported("b")), (abnormal("m", -3), abnormal("m", 3)));
    }

    /// sidecars.md 1.6 "Node watcher": reports on nodes are loaded, too.
    #[test]
    fn failed_nodes_are_loaded_from_events() {
        let history = ReportHistory::default();
        let failed = |uid: &str, node: &str, seconds| {
            event(uid, &super::super::nodes::failed_note(&["p"], "c", "ns", node), seconds)
        };
        let past = PastEvents {
            failed: vec![
                failed("a", "n1", 5),
                failed("b", "n1", 5),
                failed("c", "n2", 5),
                event("d", "?", 5),
            ],
            recovered: vec![event("b", "", 6)],
            ..PastEvents::default()
        };
        history.load(&past, Time(10_000), Monotonic(10_000));
        assert_eq!(history.failed_nodes(), ["n1".to_owned(), "n2".to_owned()].into());
        assert_eq!(history.node_failed_at("n1", "a"), Some(Monotonic(5000)));
        assert_eq!(history.node_failed_at("n1", "b"), None);
        assert_eq!(history.take_failed("n1"), ["a"]);
        assert_eq!(history.failed_nodes(), ["n2".to_owned()].into());
    }
}
