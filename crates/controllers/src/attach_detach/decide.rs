//! The rules: the next step for a volume, and what a node's status reports of it.
//!
//! - Detach comes before attach. A single-node volume is not attached to another node while a VolumeAttachment of it
//!   is left, in whatever state.
//! - A volume that a pod may use is not detached. An unwanted volume is detached when its node does not use it; while a
//!   Ready node uses it, never.
//! - A volume is removed from the node's `volumesAttached` before its VolumeAttachment is deleted: the node either
//!   listed the volume in `volumesInUse` before, or will not start to use it.
//! - A request without a response may have taken effect, or may still do so. Until its outcome is known, the volume may
//!   be on the node, and the node's status does not report it as attached.

use std::collections::BTreeSet;
use std::time::Duration;

use wharf_model::{Monotonic, Time};

use super::state::remaining;
use super::view::{AttachmentPhase, NodeView, View};

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing to do for the volume. Update the status of the nodes in `reports`; requeue after a while if nothing
    /// changes before.
    Idle { reports: BTreeSet<String>, requeue_after: Option<Duration> },
    /// Create the VolumeAttachment for a node, with this PersistentVolume.
    Attach { node: String, volume: String },
    /// Announce the detach: from now on the node's status does not report the volume, until the VolumeAttachment is
    /// deleted. Then decide again: a pod that arrived before the announcement is in the store by then.
    Announce { node: String },
    /// Delete a VolumeAttachment.
    Detach { node: String, attachment: String, uid: String, reason: DetachReason },
    /// Read the outcome of an unconfirmed request from the API server.
    CheckAttachment { node: String },
    /// Record an event on the pods that wait on a node.
    RecordEvent { node: String, event: PodEvent },
}

/// Why a volume may be detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetachReason {
    /// The node does not use it. The API server is read once more.
    NotInUse,
    /// The node may use it: a forced detach.
    Forced(ForceReason),
}

/// Why a detach is forced, as labelled in upstream's metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForceReason {
    /// The node is not Ready, and the maximum wait has passed.
    Timeout,
    /// An operator tainted the node out of service.
    OutOfService,
}

impl ForceReason {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::OutOfService => "out-of-service",
        }
    }
}

/// An event to record on pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodEvent {
    /// The volume is attached to these nodes.
    MultiAttach { nodes: Vec<String> },
    /// The attacher reported an error.
    AttachFailed { message: String, at: Option<Time> },
    /// The attacher takes too long.
    Timeout { phase: AttachmentPhase },
}

/// What to do with a volume in a node's `status.volumesAttached`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// List it.
    Show,
    /// Remove it.
    Hide,
    /// Leave it unchanged.
    Keep,
}

/// When an unwanted volume may be detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetachTiming {
    Now(DetachReason),
    /// After this long, if nothing changes.
    After(Duration),
    /// When the node no longer lists it in `volumesInUse`.
    WhenUnused,
}

/// The next step for a volume.
pub(super) fn decide(view: &View<'_>, now: Monotonic) -> Step {
    let mut requeue_after = Earliest::default();
    if view.volume_known {
        let unwanted = view.nodes.iter().filter(|(_, node_view)| !node_view.held_by_pod);
        let mut wanted: Vec<_> = view.nodes.iter().filter(|(_, node_view)| node_view.is_wanted()).collect();
        // The oldest pod gets the volume.
        wanted
            .sort_by_key(|(_, node_view)| node_view.pods.first().map(|pod| pod.metadata.creation_timestamp));
        let detach = unwanted.map(|(node, node_view)| detach(view, node, node_view, now));
        let attach = wanted.into_iter().map(|(node, node_view)| attach(view, node, node_view, now));
        let checks = view.nodes.iter().map(|(node, node_view)| check_unconfirmed(node, node_view, now));
        // Unconfirmed requests are checked first: otherwise the backoff of the next attempt would postpone the check
        // again and again.
        for next in checks.chain(detach).chain(attach) {
            match next {
                Next::Nothing => {}
                Next::After(wait) => requeue_after.add(wait),
                Next::Step(step) => return step,
            }
        }
    }
    let misreported = |node: &&String| match (report(view, node, now), view.nodes[*node].node) {
        (_, node) if !node.exists => false,
        (Report::Show, node) => !node.reported,
        (Report::Hide, node) => node.reported,
        (Report::Keep, _) => false,
    };
    let reports = view.nodes.keys().filter(misreported).cloned().collect();
    Step::Idle { reports, requeue_after: requeue_after.0 }
}

/// What one node needs.
enum Next {
    Nothing,
    After(Duration),
    Step(Step),
}

#[derive(Default)]
struct Earliest(Option<Duration>);

impl Earliest {
    fn add(&mut self, wait: Duration) {
        self.0 = Some(self.0.map_or(wait, |earliest| earliest.min(wait)));
    }
}

/// Detaches the volume from a node on which no pod uses it.
fn detach(view: &View<'_>, node: &str, node_view: &NodeView, now: Monotonic) -> Next {
    let Some(attachment) = &node_view.attachment else { return Next::Nothing };
    if attachment.metadata.is_deleting() {
        return Next::Nothing;
    }
    let reason = match detach_timing(view, node_view, now) {
        DetachTiming::Now(reason) => reason,
        DetachTiming::After(wait) => return Next::After(wait),
        DetachTiming::WhenUnused => return Next::Nothing,
    };
    if node_view.node.reported {
        // First the node's status is updated, see [`report`]. That change enqueues the volume again.
        return Next::Nothing;
    }
    if let Some(wait) = node_view.state.backoff(now) {
        return Next::After(wait);
    }
    let (node, uid) = (node.to_owned(), attachment.metadata.uid.clone());
    if !node_view.state.announced {
        return Next::Step(Step::Announce { node });
    }
    Next::Step(Step::Detach { node, attachment: attachment.metadata.name.clone(), uid, reason })
}

/// Whether the volume may be detached: not in use, or forced by timeout or taint. A Ready node that uses it is waited
/// for.
pub(super) fn detach_timing(view: &View<'_>, node_view: &NodeView, now: Monotonic) -> DetachTiming {
    let (settings, node) = (view.settings, &node_view.node);
    let end = node_view.state.unwanted_since.unwrap_or(now).plus(settings.max_wait(&view.name.driver));
    let left = remaining(end, now);
    let expired = left.is_none() && !settings.disable_force_detach_on_timeout;
    if !node.in_use {
        let verify = settings.verify_after_timeout || !expired;
        return DetachTiming::Now(if verify {
            DetachReason::NotInUse
        } else {
            DetachReason::Forced(ForceReason::Timeout)
        });
    }
    let taint_applies = !node.ready || !settings.out_of_service_only_if_not_ready;
    if node.out_of_service && taint_applies {
        return DetachTiming::Now(DetachReason::Forced(ForceReason::OutOfService));
    }
    match left {
        _ if node.ready || settings.disable_force_detach_on_timeout => DetachTiming::WhenUnused,
        Some(left) => DetachTiming::After(left),
        None => DetachTiming::Now(DetachReason::Forced(ForceReason::Timeout)),
    }
}

/// Attaches the volume to a node on which a pod wants it.
fn attach(view: &View<'_>, node: &str, node_view: &NodeView, now: Monotonic) -> Next {
    let record = |event| Next::Step(Step::RecordEvent { node: node.to_owned(), event });
    match node_view.phase() {
        AttachmentPhase::Attached => Next::Nothing,
        phase @ (AttachmentPhase::Uncertain | AttachmentPhase::Detaching) => {
            let error =
                node_view.attachment.as_ref().and_then(|attachment| attachment.status.attach_error.as_ref());
            if let Some(error) = error.filter(|_| phase == AttachmentPhase::Uncertain) {
                let error = (error.message.clone(), error.time);
                if node_view.state.reported_error.as_ref() == Some(&error) {
                    return Next::Nothing;
                }
                return record(PodEvent::AttachFailed { message: error.0, at: error.1 });
            }
            let since = node_view.state.waiting_since.unwrap_or(now);
            match remaining(since.plus(view.settings.worker_options.timeout), now) {
                Some(left) => Next::After(left),
                None => record(PodEvent::Timeout { phase }),
            }
        }
        AttachmentPhase::Absent => {
            let nodes = blocking_nodes(view, node, now);
            if !nodes.is_empty() {
                return blocked(view, node, node_view, nodes, now);
            }
            if let Some(wait) = node_view.state.backoff(now) {
                return Next::After(wait);
            }
            match &node_view.volume {
                Some(volume) => Next::Step(Step::Attach { node: node.to_owned(), volume: volume.clone() }),
                None => Next::Nothing,
            }
        }
    }
}

/// Checks an unconfirmed request once it cannot take effect any more. Before that, a read would prove nothing.
fn check_unconfirmed(node: &str, node_view: &NodeView, now: Monotonic) -> Next {
    match node_view.state.unconfirmed.map(|unconfirmed| unconfirmed.time_left(now)) {
        None => Next::Nothing,
        Some(Some(left)) => Next::After(left),
        Some(None) => match node_view.state.backoff(now) {
            Some(wait) => Next::After(wait),
            None => Next::Step(Step::CheckAttachment { node: node.to_owned() }),
        },
    }
}

/// Another node blocks the attach. If pods use the volume there, the event is recorded at once. Otherwise the volume is
/// being detached, and the event is recorded only if that takes long (kubernetes#96142).
fn blocked(view: &View<'_>, node: &str, node_view: &NodeView, nodes: Vec<String>, now: Monotonic) -> Next {
    if node_view.state.multi_attach_reported {
        return Next::Nothing;
    }
    let others = || nodes.iter().filter_map(|node| view.nodes.get(node));
    if !view.settings.uncertain_blocks
        && others().all(|node_view| node_view.phase() != AttachmentPhase::Attached)
    {
        // Upstream waits for its own request and records no event.
        let left = others().filter_map(|node_view| upstream_wait(view, node_view, now)).max();
        return left.map_or(Next::Nothing, Next::After);
    }
    let used = others().any(|node_view| node_view.held_by_pod);
    let grace = if used { Duration::ZERO } else { view.settings.multi_attach_grace };
    match remaining(node_view.state.blocked_since.unwrap_or(now).plus(grace), now) {
        Some(left) => Next::After(left),
        None => {
            Next::Step(Step::RecordEvent { node: node.to_owned(), event: PodEvent::MultiAttach { nodes } })
        }
    }
}

/// The nodes from which the volume must be detached before it may be attached to this one.
pub(super) fn blocking_nodes(view: &View<'_>, node: &str, now: Monotonic) -> Vec<String> {
    if !view.exclusive {
        return Vec::new();
    }
    let blocks = |(other, node_view): &(&String, &NodeView)| {
        *other != node
            && match node_view.phase() {
                AttachmentPhase::Absent => {
                    view.settings.uncertain_blocks && node_view.state.unconfirmed.is_some()
                }
                AttachmentPhase::Attached => true,
                AttachmentPhase::Uncertain | AttachmentPhase::Detaching => {
                    view.settings.uncertain_blocks || upstream_wait(view, node_view, now).is_some()
                }
            }
    };
    view.nodes.iter().filter(blocks).map(|(node, _)| node.clone()).collect()
}

/// How long upstream would still wait for the attacher. After a failure or timeout upstream continues as if the volume
/// were not attached.
fn upstream_wait(view: &View<'_>, node_view: &NodeView, now: Monotonic) -> Option<Duration> {
    let status = &node_view.attachment.as_ref()?.status;
    let failed = match node_view.phase() {
        AttachmentPhase::Detaching => status.detach_error.is_some(),
        AttachmentPhase::Uncertain => status.attach_error.is_some(),
        AttachmentPhase::Absent | AttachmentPhase::Attached => false,
    };
    let since = node_view.state.waiting_since.or(node_view.state.unwanted_since).unwrap_or(now);
    remaining(since.plus(view.settings.worker_options.timeout), now).filter(|_| !failed)
}

/// What to do with the volume in the node's status: listed as soon as it is attached, removed before it is detached,
/// and not listed again until it is wanted and attached.
pub(super) fn report(view: &View<'_>, node: &str, now: Monotonic) -> Report {
    let Some(node_view) = view.nodes.get(node) else { return Report::Keep };
    match node_view.phase() {
        AttachmentPhase::Absent | AttachmentPhase::Uncertain | AttachmentPhase::Detaching => Report::Hide,
        AttachmentPhase::Attached if node_view.state.announced || node_view.state.unconfirmed.is_some() => {
            Report::Hide
        }
        AttachmentPhase::Attached if node_view.is_wanted() => Report::Show,
        AttachmentPhase::Attached if node_view.held_by_pod || !view.volume_known => Report::Keep,
        AttachmentPhase::Attached => match detach_timing(view, node_view, now) {
            DetachTiming::Now(_) => Report::Hide,
            DetachTiming::After(_) | DetachTiming::WhenUnused => Report::Keep,
        },
    }
}

#[cfg(test)]
mod tests;
