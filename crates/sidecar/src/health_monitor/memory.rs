//! What users were told, by claim: only claims of which something else than "well" was told are kept. After a start
//! it is read once from the events that are still there, so that a recovery is told also across restarts and after
//! a swap with upstream's monitor.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wharf_model::{Event, Time};

use super::nodes::failed_node;
use super::view::Told;

/// A warning that was told and not taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Warning {
    message: String,
    at: Time,
}

/// The memory of one term of leadership.
#[derive(Default)]
pub(crate) struct Memory {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Whether the events from before were read.
    past_known: bool,
    /// By the claim's identity: of the volume.
    abnormal: HashMap<String, Warning>,
    /// By node and the claim's identity: of the node.
    failed: BTreeMap<(String, String), Time>,
}

/// Events from before we started, by reason.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) abnormal: Vec<Event>,
    pub(crate) normal: Vec<Event>,
    pub(crate) failed: Vec<Event>,
    pub(crate) recovered: Vec<Event>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody else may tell from now on.
    pub(crate) fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Whether the past is known.
    pub(crate) fn past_known(&self) -> bool {
        self.lock().past_known
    }

    /// Takes in what was told before. What was told since counts more.
    pub(crate) fn learn(&self, past: &Past) {
        let mut inner = self.lock();
        for (uid, event) in standing(&past.abnormal, &past.normal) {
            let warning = Warning { message: event.message.clone(), at: event.last };
            inner.abnormal.entry(uid.to_owned()).or_insert(warning);
        }
        for (uid, event) in standing(&past.failed, &past.recovered) {
            if let Some(node) = failed_node(&event.message) {
                inner.failed.entry((node.to_owned(), uid.to_owned())).or_insert(event.last);
            }
        }
        inner.past_known = true;
    }

    /// What was told of a claim's volume.
    pub(crate) fn told(&self, claim: &str) -> Told {
        let inner = self.lock();
        match inner.abnormal.get(claim) {
            Some(Warning { message, at }) => Told::Abnormal { message: message.clone(), at: *at },
            None if inner.past_known => Told::Nothing,
            None => Told::Unknown,
        }
    }

    /// It was told that something is wrong.
    pub(crate) fn warned(&self, claim: &str, message: &str, at: Time) {
        self.lock().abnormal.insert(claim.to_owned(), Warning { message: message.to_owned(), at });
    }

    /// It was told that nothing is wrong any more.
    pub(crate) fn recovered(&self, claim: &str) {
        self.lock().abnormal.remove(claim);
    }

    /// Forgets volumes whose claims are no more.
    pub(crate) fn keep(&self, claims: &HashSet<String>) {
        self.lock().abnormal.retain(|claim, _| claims.contains(claim));
    }

    /// When it was told last that a claim's pods are on this failed node.
    pub(crate) fn node_failed_at(&self, node: &str, claim: &str) -> Option<Time> {
        self.lock().failed.get(&(node.to_owned(), claim.to_owned())).copied()
    }

    /// It was told that they are.
    pub(crate) fn node_failed(&self, node: &str, claim: &str, at: Time) {
        self.lock().failed.insert((node.to_owned(), claim.to_owned()), at);
    }

    /// The claims of which it was told. The node is well: it is forgotten.
    pub(crate) fn take_failed(&self, node: &str) -> Vec<String> {
        let mut inner = self.lock();
        let taken: Vec<_> = inner.failed.keys().filter(|(failed, _)| failed == node).cloned().collect();
        for key in &taken {
            inner.failed.remove(key);
        }
        taken.into_iter().map(|(_, claim)| claim).collect()
    }

    /// The nodes of which it was told that they have failed.
    pub(crate) fn failed_nodes(&self) -> HashSet<String> {
        self.lock().failed.keys().map(|(node, _)| node.clone()).collect()
    }
}

/// The newest warning of each object that no later all-clear took back. In the same second the warning counts: to
/// take it back twice is better than never.
fn standing<'a>(warnings: &'a [Event], all_clear: &[Event]) -> HashMap<&'a str, &'a Event> {
    let mut newest: HashMap<&str, &Event> = HashMap::new();
    for event in warnings {
        let known = newest.entry(&event.regarding_uid).or_insert(event);
        if known.last < event.last {
            *known = event;
        }
    }
    for event in all_clear {
        if newest.get(event.regarding_uid.as_str()).is_some_and(|warning| warning.last < event.last) {
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
        Event { regarding_uid, message, last: Time(seconds * 1000), ..Event::default() }
    }

    fn abnormal(message: &str, seconds: i64) -> Told {
        Told::Abnormal { message: message.to_owned(), at: Time(seconds * 1000) }
    }

    /// sidecars.md 1.6 "Output": normal after abnormal also across a restart.
    #[test]
    fn the_past_is_in_the_events() {
        let memory = Memory::default();
        assert_eq!(memory.told("a"), Told::Unknown);
        memory.warned("since", "new", Time(9_000));
        memory.learn(&Past {
            abnormal: vec![
                event("a", "second", 5),
                event("a", "first", 4),
                event("back", "was", 4),
                event("again", "m", 7),
                event("tie", "m", 6),
                event("since", "old", 3),
            ],
            normal: vec![event("back", "", 5), event("again", "", 6), event("tie", "", 6), event("x", "", 1)],
            ..Past::default()
        });
        for (claim, expected) in [
            ("a", abnormal("second", 5)),
            ("back", Told::Nothing),
            ("again", abnormal("m", 7)),
            ("tie", abnormal("m", 6)),
            ("since", abnormal("new", 9)),
            ("never", Told::Nothing),
        ] {
            assert_eq!(memory.told(claim), expected, "{claim}");
        }
        memory.recovered("a");
        assert_eq!(memory.told("a"), Told::Nothing);
        memory.keep(&["tie".to_owned()].into());
        assert_eq!((memory.told("again"), memory.told("tie")), (Told::Nothing, abnormal("m", 6)));
        memory.clear();
        assert_eq!(memory.told("tie"), Told::Unknown);
    }

    /// sidecars.md 1.6 "Node watcher": what was told of nodes is found again, too.
    #[test]
    fn nodes_of_the_past() {
        let memory = Memory::default();
        let failed = |uid: &str, node: &str, seconds| {
            event(uid, &super::super::nodes::failed_note(&["p"], "c", "ns", node), seconds)
        };
        memory.learn(&Past {
            failed: vec![
                failed("a", "n1", 5),
                failed("b", "n1", 5),
                failed("c", "n2", 5),
                event("d", "?", 5),
            ],
            recovered: vec![event("b", "", 6)],
            ..Past::default()
        });
        assert_eq!(memory.failed_nodes(), ["n1".to_owned(), "n2".to_owned()].into());
        assert_eq!(memory.node_failed_at("n1", "a"), Some(Time(5000)));
        assert_eq!(memory.node_failed_at("n1", "b"), None);
        assert_eq!(memory.take_failed("n1"), ["a"]);
        assert_eq!(memory.failed_nodes(), ["n2".to_owned()].into());
    }
}
