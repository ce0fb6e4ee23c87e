//! What the controller remembers of volumes on nodes beside the objects: since when something is so, what was told,
//! what failed. All of it may be forgotten at any time: then a wait begins anew, or an event is told once more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use wharf_cluster::Backoff;
use wharf_model::{Time, VolumeName};

use super::decide::hindrances;
use super::view::{Standing, View};

/// No request arrives later than this: servers give up sooner.
const IN_FLIGHT: Duration = Duration::from_secs(60);

/// What is remembered of a volume on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Since when nobody wants it there.
    pub(super) unwanted_since: Option<Time>,
    /// Since when the attacher was to have attached it, or to have finished with it.
    pub(super) asked_since: Option<Time>,
    /// Since when another node is in the way.
    pub(super) blocked_since: Option<Time>,
    /// Whether pods were told of that.
    pub(super) told_multi_attach: bool,
    /// The failure that pods were told of.
    pub(super) told_error: Option<(String, Option<Time>)>,
    /// The last attempt, if it failed.
    pub(super) failure: Option<Failure>,
    /// Its end is about to be asked for: the node is not told anything else meanwhile.
    pub(super) announced: bool,
    /// A request to which there was no answer. It may still arrive.
    pub(super) unheard: Option<Unheard>,
}

/// A request without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unheard {
    /// Since when.
    pub(super) since: Time,
    /// Whether it asked for the attachment, or for its end.
    pub(super) made: bool,
}

/// A request that the server did not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    /// When.
    pub(super) at: Time,
    /// No new attempt sooner than this.
    pub(super) pause: Duration,
    /// How often in a row.
    pub(super) count: u32,
}

impl Memory {
    /// An attempt has ended, perhaps with a request to which there was no answer. One that was answered, or not even
    /// sent, says nothing of an earlier one: what came of that the objects show, or the server is asked.
    pub(super) fn has_asked(&mut self, unheard: Option<Unheard>) {
        self.announced = false;
        self.unheard = unheard.or(self.unheard);
    }

    /// An attempt has failed.
    pub(super) fn has_failed(&mut self, backoff: Backoff, now: Time) {
        let earlier = self.failure.map_or(0, |failure| failure.count);
        let count = earlier.saturating_add(1);
        self.failure = Some(Failure { at: now, pause: backoff.after(earlier), count });
    }

    /// What is left of the pause after a failure. A clock that went back makes nobody wait.
    pub(super) fn pause(&self, now: Time) -> Option<Duration> {
        let failure = self.failure?;
        (now >= failure.at).then(|| until(failure.at.plus(failure.pause), now))?
    }
}

impl Unheard {
    /// How long it may still arrive.
    pub(super) fn left(&self, now: Time) -> Option<Duration> {
        until(self.since.plus(IN_FLIGHT), now)
    }
}

/// How long it is until then; `None` if it is past.
pub(super) fn until(then: Time, now: Time) -> Option<Duration> {
    u64::try_from(then.0 - now.0).ok().filter(|left| *left > 0).map(Duration::from_millis)
}

/// Brings the memories in a view up to date with what it shows: waits begin, and end.
pub(super) fn note(view: &mut View<'_>, now: Time) {
    let blocked: BTreeSet<String> = view
        .places
        .iter()
        .filter(|(node, place)| {
            let absent = place.standing() == Standing::Absent;
            absent && place.is_wanted() && !hindrances(view, node, now).is_empty()
        })
        .map(|(node, _)| node.clone())
        .collect();
    for (node, place) in &mut view.places {
        let (standing, wanted) = (place.standing(), place.is_wanted());
        let memory = &mut place.memory;
        let since = |so: bool, since: Option<Time>| so.then(|| since.unwrap_or(now));
        let there = standing != Standing::Absent;
        memory.unwanted_since = since(!place.held && there, memory.unwanted_since);
        let asked = wanted && matches!(standing, Standing::Uncertain | Standing::Going);
        memory.asked_since = since(asked, memory.asked_since);
        memory.blocked_since = since(blocked.contains(node), memory.blocked_since);
        memory.told_multi_attach &= blocked.contains(node);
        if !asked {
            memory.told_error = None;
        }
        // An answer by watch is one, too. A late wish to delete names its object, and is none for another.
        let answered = |unheard: &Unheard| match unheard.made {
            true => there,
            false => matches!(standing, Standing::Absent | Standing::Going),
        };
        memory.unheard = memory.unheard.filter(|unheard| !answered(unheard));
        // Who is still to be asked what came of a request has a pause to keep.
        if !there && !wanted && memory.unheard.is_none() {
            memory.failure = None;
        }
    }
}

/// What was announced and is not to be any more. For the volume's own worker alone: another could think so while the
/// request is under way.
pub(super) fn take_back(view: &mut View<'_>) {
    for place in view.places.values_mut().filter(|place| place.held) {
        place.memory.announced = false;
    }
}

/// Of all volumes and nodes.
#[derive(Default)]
pub(super) struct Memories {
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    of: BTreeMap<VolumeName, BTreeMap<String, Memory>>,
    /// Volumes in use on nodes that are gone, as their last status had it.
    gone: BTreeMap<String, Arc<BTreeSet<String>>>,
}

impl Memories {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        // Whoever panicked left whole memories behind.
        self.inside.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn of(&self, volume: &VolumeName, node: &str) -> Memory {
        self.lock().of.get(volume).and_then(|nodes| nodes.get(node)).cloned().unwrap_or_default()
    }

    /// Nodes of a volume whose objects may not say all.
    pub(super) fn unheard(&self, volume: &VolumeName) -> Vec<String> {
        let inside = self.lock();
        let nodes = inside.of.get(volume).into_iter().flatten();
        nodes.filter(|(_, memory)| memory.unheard.is_some()).map(|(node, _)| node.clone()).collect()
    }

    /// Keeps the memories of a view, and of other nodes none.
    pub(super) fn keep(&self, view: &View<'_>) {
        let kept = view.places.iter().filter(|(_, place)| place.memory != Memory::default());
        let kept: BTreeMap<_, _> = kept.map(|(node, place)| (node.clone(), place.memory.clone())).collect();
        let mut inside = self.lock();
        if kept.is_empty() {
            inside.of.remove(&view.name);
        } else {
            inside.of.insert(view.name.clone(), kept);
        }
    }

    pub(super) fn change(&self, volume: &VolumeName, node: &str, change: impl FnOnce(&mut Memory)) {
        let mut inside = self.lock();
        change(inside.of.entry(volume.clone()).or_default().entry(node.to_owned()).or_default());
    }

    /// Forgets all that was seen while we worked.
    pub(super) fn forget(&self) {
        self.lock().of.clear();
    }

    pub(super) fn node_gone(&self, node: &str, in_use: BTreeSet<String>) {
        self.lock().gone.insert(node.to_owned(), Arc::new(in_use));
    }

    pub(super) fn node_there(&self, node: &str) {
        self.lock().gone.remove(node);
    }

    /// Nodes that do not come back: once nothing `is_left` there, nobody asks what they used.
    pub(super) fn forget_gone(&self, is_left: impl Fn(&str) -> bool) {
        self.lock().gone.retain(|node, _| is_left(node));
    }

    pub(super) fn in_use_last(&self, node: &str) -> Option<Arc<BTreeSet<String>>> {
        self.lock().gone.get(node).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubernetes.md 1.3 "In use": what a node that is gone listed last is known for as long as something is attached there.
    #[test]
    fn nodes_that_do_not_come_back() {
        let memories = Memories::default();
        for node in ["empty", "left", "back"] {
            memories.node_gone(node, ["v".to_owned()].into());
        }
        memories.node_there("back");
        memories.forget_gone(|node| node == "left");
        let known = ["empty", "left", "back"].map(|node| memories.in_use_last(node).is_some());
        assert_eq!(known, [false, true, false]);
    }
}
