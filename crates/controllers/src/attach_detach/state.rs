//! In-process state of volumes on nodes, in addition to the objects: when waits began, which events were recorded, what
//! failed. All of it may be dropped at any time: then a wait restarts, or an event is recorded once more. Unconfirmed requests
//! are kept while the process runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use wharf_cluster::Backoff;
use wharf_model::{Monotonic, Time, UniqueVolumeName};

use super::decide::blocking_nodes;
use super::view::{AttachmentPhase, View};

/// No request takes effect later than this: API servers time out sooner.
const MAX_REQUEST_AGE: Duration = Duration::from_secs(60);

/// State of a volume on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AttachState {
    /// Since when no pod wants it there.
    pub(super) unwanted_since: Option<Monotonic>,
    /// Since when the controller waits for the attacher to attach it, or to finish a detach.
    pub(super) waiting_since: Option<Monotonic>,
    /// Since when another node blocks it.
    pub(super) blocked_since: Option<Monotonic>,
    /// Whether the Multi-Attach event was recorded.
    pub(super) multi_attach_reported: bool,
    /// The attach error for which an event was recorded.
    pub(super) reported_error: Option<(String, Option<Time>)>,
    /// The last attempt, if it failed.
    pub(super) failure: Option<Failure>,
    /// The VolumeAttachment is about to be deleted: the node's status must not list the volume until then.
    pub(super) announced: bool,
    /// A request without a response. It may still take effect.
    pub(super) unconfirmed: Option<UnconfirmedRequest>,
}

/// A request without a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnconfirmedRequest {
    /// When it was sent.
    pub(super) since: Monotonic,
    /// Whether it creates the attachment, or deletes it.
    pub(super) create: bool,
}

/// A failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    /// When it failed.
    pub(super) at: Monotonic,
    /// The wait before the next attempt.
    pub(super) backoff: Duration,
    /// Failures in a row.
    pub(super) count: u32,
}

impl AttachState {
    /// Records a request before it is sent: the attempt may be cancelled before the response. Returns the earlier
    /// unconfirmed request, if there is one.
    pub(super) fn begin_attempt(&mut self, request: UnconfirmedRequest) -> Option<UnconfirmedRequest> {
        self.unconfirmed.replace(request)
    }

    /// Records the end of an attempt, perhaps with an unconfirmed request. A confirmed request, or one that was not
    /// sent, proves nothing about an earlier unconfirmed one: the objects show its outcome, or a live read does.
    pub(super) fn end_attempt(
        &mut self,
        unconfirmed: Option<UnconfirmedRequest>,
        earlier: Option<UnconfirmedRequest>,
    ) {
        self.announced = false;
        self.unconfirmed = unconfirmed.or(earlier);
    }

    /// Records a failed attempt.
    pub(super) fn fail_attempt(&mut self, backoff: Backoff, now: Monotonic) {
        let earlier = self.failure.map_or(0, |failure| failure.count);
        let count = earlier.saturating_add(1);
        self.failure = Some(Failure { at: now, backoff: backoff.delay(earlier), count });
    }

    /// The remaining backoff after a failure. After the clock was set back there is none.
    pub(super) fn backoff(&self, now: Monotonic) -> Option<Duration> {
        let failure = self.failure?;
        (now >= failure.at).then(|| remaining(failure.at.plus(failure.backoff), now))?
    }
}

impl UnconfirmedRequest {
    /// How long it may still take effect.
    pub(super) fn time_left(&self, now: Monotonic) -> Option<Duration> {
        remaining(self.since.plus(MAX_REQUEST_AGE), now)
    }
}

/// The time until `then`; `None` if it has passed.
pub(super) fn remaining(then: Monotonic, now: Monotonic) -> Option<Duration> {
    u64::try_from(then.0 - now.0).ok().filter(|left| *left > 0).map(Duration::from_millis)
}

/// Updates the states of a view from its objects: starts and ends waits.
pub(super) fn update_timers(view: &mut View<'_>, now: Monotonic) {
    let blocked: BTreeSet<String> = view
        .nodes
        .iter()
        .filter(|(node, node_view)| {
            let absent = node_view.phase() == AttachmentPhase::Absent;
            absent && node_view.is_wanted() && !blocking_nodes(view, node, now).is_empty()
        })
        .map(|(node, _)| node.clone())
        .collect();
    for (node, node_view) in &mut view.nodes {
        let (phase, wanted) = (node_view.phase(), node_view.is_wanted());
        let state = &mut node_view.state;
        let since = |active: bool, since: Option<Monotonic>| active.then(|| since.unwrap_or(now));
        let present = phase != AttachmentPhase::Absent;
        state.unwanted_since = since(!node_view.held_by_pod && present, state.unwanted_since);
        let waiting = wanted && matches!(phase, AttachmentPhase::Uncertain | AttachmentPhase::Detaching);
        state.waiting_since = since(waiting, state.waiting_since);
        state.blocked_since = since(blocked.contains(node), state.blocked_since);
        state.multi_attach_reported &= blocked.contains(node);
        if !waiting {
            state.reported_error = None;
        }
        // The watch confirms a request too. A late deletion has a UID precondition, so it cannot affect another object.
        let confirmed = |unconfirmed: &UnconfirmedRequest| match unconfirmed.create {
            true => present,
            false => matches!(phase, AttachmentPhase::Absent | AttachmentPhase::Detaching),
        };
        state.unconfirmed = state.unconfirmed.filter(|unconfirmed| !confirmed(unconfirmed));
        // The check of an unconfirmed request needs its backoff.
        if !present && !wanted && state.unconfirmed.is_none() {
            state.failure = None;
        }
    }
}

/// Cancels announced detaches of volumes that a pod may use again. Only the volume's own worker may call this: another
/// worker could do so while the deletion is in flight.
pub(super) fn cancel_announcements(view: &mut View<'_>) {
    for node_view in view.nodes.values_mut().filter(|node_view| node_view.held_by_pod) {
        node_view.state.announced = false;
    }
}

/// The states of all volumes and nodes.
#[derive(Default)]
pub(super) struct AttachStates {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    volumes: BTreeMap<UniqueVolumeName, BTreeMap<String, AttachState>>,
    /// `volumesInUse` of deleted nodes, from their last status.
    deleted_nodes: BTreeMap<String, Arc<BTreeSet<String>>>,
}

impl AttachStates {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic cannot leave a state half written.
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn get(&self, volume: &UniqueVolumeName, node: &str) -> AttachState {
        self.lock().volumes.get(volume).and_then(|nodes| nodes.get(node)).cloned().unwrap_or_default()
    }

    /// Nodes of a volume with unconfirmed requests.
    pub(super) fn unconfirmed_nodes(&self, volume: &UniqueVolumeName) -> Vec<String> {
        let inner = self.lock();
        let nodes = inner.volumes.get(volume).into_iter().flatten();
        nodes.filter(|(_, state)| state.unconfirmed.is_some()).map(|(node, _)| node.clone()).collect()
    }

    /// Stores the states of a view, and drops those of other nodes.
    pub(super) fn store(&self, view: &View<'_>) {
        let states = view.nodes.iter().filter(|(_, node_view)| node_view.state != AttachState::default());
        let states: BTreeMap<_, _> =
            states.map(|(node, node_view)| (node.clone(), node_view.state.clone())).collect();
        let mut inner = self.lock();
        if states.is_empty() {
            inner.volumes.remove(&view.name);
        } else {
            inner.volumes.insert(view.name.clone(), states);
        }
    }

    pub(super) fn update(
        &self,
        volume: &UniqueVolumeName,
        node: &str,
        change: impl FnOnce(&mut AttachState),
    ) {
        let mut inner = self.lock();
        change(inner.volumes.entry(volume.clone()).or_default().entry(node.to_owned()).or_default());
    }

    /// Drops all states of volumes but unconfirmed requests: they may take effect after the lease was lost.
    pub(super) fn clear(&self) {
        self.lock().volumes.retain(|_, nodes| {
            nodes.retain(|_, state| {
                *state = AttachState { unconfirmed: state.unconfirmed, ..AttachState::default() };
                state.unconfirmed.is_some()
            });
            !nodes.is_empty()
        });
    }

    pub(super) fn node_deleted(&self, node: &str, in_use: BTreeSet<String>) {
        self.lock().deleted_nodes.insert(node.to_owned(), Arc::new(in_use));
    }

    pub(super) fn node_exists(&self, node: &str) {
        self.lock().deleted_nodes.remove(node);
    }

    /// Drops deleted nodes without attachments: what they used no longer matters.
    pub(super) fn prune_deleted_nodes(&self, has_attachments: impl Fn(&str) -> bool) {
        self.lock().deleted_nodes.retain(|node, _| has_attachments(node));
    }

    pub(super) fn last_in_use(&self, node: &str) -> Option<Arc<BTreeSet<String>>> {
        self.lock().deleted_nodes.get(node).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lease may be lost, and acquired again by this process, while a create is in flight.
    #[test]
    fn request_in_flight_survives_the_loss_of_the_lease() {
        let (states, volume) =
            (AttachStates::default(), UniqueVolumeName { driver: "d".into(), handle: "v".into() });
        let request = UnconfirmedRequest { since: Monotonic(5), create: true };
        states.update(&volume, "a", |state| {
            assert_eq!(state.begin_attempt(request), None);
            state.waiting_since = Some(Monotonic(1));
        });
        states.update(&volume, "b", |state| state.announced = true);
        states.clear();
        let kept = AttachState { unconfirmed: Some(request), ..AttachState::default() };
        assert_eq!([states.get(&volume, "a"), states.get(&volume, "b")], [kept, AttachState::default()]);
        states.update(&volume, "a", |state| state.end_attempt(None, None));
        states.clear();
        assert_eq!(states.get(&volume, "a"), AttachState::default());
    }

    /// kubernetes.md 1.3 "In use": the last `volumesInUse` of a deleted node is kept while something is attached there.
    #[test]
    fn deleted_nodes_are_pruned_once_nothing_is_attached() {
        let states = AttachStates::default();
        for node in ["empty", "left", "back"] {
            states.node_deleted(node, ["v".to_owned()].into());
        }
        states.node_exists("back");
        states.prune_deleted_nodes(|node| node == "left");
        let known = ["empty", "left", "back"].map(|node| states.last_in_use(node).is_some());
        assert_eq!(known, [false, true, false]);
    }
}
