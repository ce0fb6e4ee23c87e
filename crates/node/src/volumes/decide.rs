//! Rules of the volume manager: given everything known about a volume, the next step.
//!
//! Pure functions, no I/O; [`decide`] is the entry point.
//!
//! - Order, as in kubelet: unpublish what is not desired, publish what is, unstage, then drop the volume.
//! - Before an attachable volume is touched, `volumesInUse` must be accepted by the API server, then
//!   `volumesAttached` must list the volume, then its VolumeAttachment is read. This prevents a detach while the
//!   volume is in use.
//! - Uncertain state is published again while the volume is desired, and unpublished when it is not.
//! - State found on disk is left alone until all pods are known.

use std::time::Duration;

use wharf_model::csidriver::VolumeLifecycleMode;
use wharf_model::topology::is_accessible_from;
use wharf_model::{AccessMode, Monotonic};

use super::expand::{self, Plan};
use super::failure::Operation;
use super::ownership;
use super::view::{Driver, View, Waiting};
use super::world::{DesiredMount, Device, Mode, Mount, Progress, Source};

/// The next step for a volume.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Nothing to do until something changes or `until` has passed.
    Idle {
        /// Maximum time to wait.
        until: Option<Duration>,
        /// What the volume is waiting for.
        waiting: Option<Waiting>,
    },
    /// Read the VolumeAttachment.
    Verify,
    /// NodeStageVolume, on behalf of this pod.
    Stage { pod: String },
    /// NodePublishVolume.
    Publish { pod: String },
    /// Apply the pod's fsGroup to the files.
    SetOwnership { pod: String },
    /// NodeExpandVolume, or only a claim update: the claim decides.
    Expand { pod: String },
    /// The volume is ready for the pod.
    Ready { pod: String },
    /// NodeUnpublishVolume.
    Unpublish { pod: String },
    /// NodeUnstageVolume.
    Unstage,
    /// Nothing of it is left on this node.
    DropState,
    /// A precondition fails.
    Refuse { pod: String, operation: Operation, reason: Refusal },
}

/// Why the driver is not called. Upstream's wording where it exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The volume's node affinity excludes this node.
    #[error("no matching NodeSelectorTerms")]
    Affinity,
    /// Another pod has it mounted.
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    OncePod,
    /// The driver does not support this lifecycle mode.
    #[error("volume mode \"{mode}\" not supported by driver {driver}{hint}")]
    Lifecycle {
        /// The lifecycle mode.
        mode: &'static str,
        /// The driver.
        driver: String,
        /// Explanation.
        hint: &'static str,
    },
    /// The driver is not registered.
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NotRegistered(String),
    /// The volume is staged with another SELinux label.
    #[error(
        "volume is already mounted with SELinux label {has:?}, but this pod needs {wants:?}: it is mounted after the \
         other pod is gone"
    )]
    Label {
        /// The label it is mounted with.
        has: String,
        /// The label the pod needs.
        wants: String,
    },
}

/// Result for one pod's mount or for the device.
enum Next {
    Nothing,
    Wait(Option<Duration>, Waiting),
    Step(Step),
}

/// Determines the next step for a volume.
pub(super) fn decide(view: &View<'_>, now: Monotonic) -> Step {
    let volume = view.volume;
    let unwanted = volume.mounts.keys().filter(|pod| !volume.desired.contains_key(*pod));
    let down = unwanted.map(|pod| unpublish(view, pod, now));
    let up = volume.desired.iter().map(|(pod, desired)| mount(view, pod, desired, now));
    let mut rest: Option<(Option<Duration>, Waiting)> = None;
    for next in down.chain(up).chain([device(view, now)]) {
        match next {
            Next::Nothing => {}
            Next::Step(step) => return step,
            Next::Wait(pause, waiting) => {
                let sooner = match (rest.and_then(|(pause, _)| pause), pause) {
                    (Some(first), Some(second)) => Some(first.min(second)),
                    (first, second) => first.or(second),
                };
                rest = Some((sooner, rest.map_or(waiting, |(_, first)| first)));
            }
        }
    }
    match rest {
        Some((until, waiting)) => Step::Idle { until, waiting: Some(waiting) },
        None => Step::Idle { until: next_republish(view, now), waiting: None },
    }
}

/// Unpublishes once the pod was released or is unknown.
fn unpublish(view: &View<'_>, pod: &str, now: Monotonic) -> Next {
    if !view.released.iter().any(|released| released == pod) {
        return Next::Wait(None, Waiting::Pods);
    }
    if let Some(pause) = pause(view, Operation::Unpublish, pod, now) {
        return Next::Wait(Some(pause), Waiting::Pause);
    }
    Next::Step(match view.capabilities {
        None => refuse(pod, Operation::Unpublish, not_registered(view)),
        Some(_) => Step::Unpublish { pod: pod.to_owned() },
    })
}

/// The steps to mount a volume for a pod, in order.
fn mount(view: &View<'_>, pod: &str, desired: &DesiredMount, now: Monotonic) -> Next {
    let volume = view.volume;
    let mount = volume.mounts.get(pod);
    if let Some(mount) = mount.filter(|mount| mount.progress == Progress::Mounted) {
        return maintain(view, pod, desired, mount, now);
    }
    // Preconditions are checked, and their failures reported, with the backoff of a publish.
    if let Some(pause) = pause(view, Operation::Publish, pod, now) {
        return Next::Wait(Some(pause), Waiting::Pause);
    }
    if view.node.is_none() {
        return Next::Wait(None, Waiting::Node);
    }
    if matches!(view.driver, Driver::Unknown) {
        return Next::Wait(None, Waiting::Drivers);
    }
    if let Some(reason) = refusal(view, pod, desired) {
        return Next::Step(refuse(pod, Operation::Publish, reason));
    }
    if let Some(next) = handshake(view, now) {
        return next;
    }
    let Some(capabilities) = view.capabilities else {
        return Next::Step(refuse(pod, Operation::Publish, not_registered(view)));
    };
    if capabilities.stage_unstage && has_stale_label(view, desired) {
        return match volume.device {
            Device::Uncertain { found: true } if !view.pods_known => Next::Wait(None, Waiting::Pods),
            _ => attempt(view, Operation::Unstage, "", now, Step::Unstage),
        };
    }
    if capabilities.stage_unstage && !volume.ephemeral && volume.device != Device::Staged {
        return attempt(view, Operation::Stage, "", now, Step::Stage { pod: pod.to_owned() });
    }
    let pod = pod.to_owned();
    match mount.map(|mount| mount.progress) {
        None | Some(Progress::Uncertain) => Next::Step(Step::Publish { pod }),
        Some(Progress::Published)
            if ownership::applies_to(view.driver, capabilities, volume.mode, desired) =>
        {
            attempt(view, Operation::SetOwnership, &pod.clone(), now, Step::SetOwnership { pod })
        }
        Some(Progress::Published | Progress::Owned | Progress::Mounted) => match expansion(view, desired) {
            Plan::Nothing => Next::Step(Step::Ready { pod }),
            _ => attempt(view, Operation::Expand, &pod.clone(), now, Step::Expand { pod }),
        },
    }
}

/// What is missing before the driver may be called; `None` if nothing. The publish context is dropped on detach.
fn handshake(view: &View<'_>, now: Monotonic) -> Option<Next> {
    if view.volume.ephemeral || !view.driver.attaches() {
        return None;
    }
    match view.node {
        None => Some(Next::Wait(None, Waiting::Node)),
        Some(node) if !node.reported => Some(Next::Wait(None, Waiting::Report)),
        Some(node) if !node.attached => Some(Next::Wait(None, Waiting::Attach)),
        Some(_) if view.volume.context.is_none() => {
            Some(attempt(view, Operation::Verify, "", now, Step::Verify))
        }
        Some(_) => None,
    }
}

/// A mounted volume: it may have to be republished or expanded.
fn maintain(view: &View<'_>, pod: &str, desired: &DesiredMount, mount: &Mount, now: Monotonic) -> Next {
    if view.capabilities.is_none() {
        return Next::Nothing;
    }
    if time_to_republish(view, mount, now) == Some(Duration::ZERO) {
        return handshake(view, now).unwrap_or_else(|| publish_again(view, pod, now));
    }
    match expansion(view, desired) {
        Plan::Nothing => Next::Nothing,
        _ => attempt(view, Operation::Expand, pod, now, Step::Expand { pod: pod.to_owned() }),
    }
}

fn publish_again(view: &View<'_>, pod: &str, now: Monotonic) -> Next {
    attempt(view, Operation::Publish, pod, now, Step::Publish { pod: pod.to_owned() })
}

/// Unstages after the last mount is gone, then drops the volume.
fn device(view: &View<'_>, now: Monotonic) -> Next {
    let volume = view.volume;
    if !volume.desired.is_empty() || !volume.mounts.is_empty() {
        return Next::Nothing;
    }
    match volume.device {
        Device::None => Next::Step(Step::DropState),
        Device::Uncertain { found: true } if !view.pods_known => Next::Wait(None, Waiting::Pods),
        Device::Uncertain { .. } | Device::Staged => {
            if let Some(pause) = pause(view, Operation::Unstage, "", now) {
                return Next::Wait(Some(pause), Waiting::Pause);
            }
            Next::Step(match view.capabilities {
                None => refuse("", Operation::Unstage, not_registered(view)),
                Some(_) => Step::Unstage,
            })
        }
    }
}

fn refusal(view: &View<'_>, pod: &str, desired: &DesiredMount) -> Option<Refusal> {
    let volume = view.volume;
    let mode =
        if volume.ephemeral { VolumeLifecycleMode::Ephemeral } else { VolumeLifecycleMode::Persistent };
    if !view.driver.supports(mode) {
        let hint = match view.driver {
            Driver::Unknown | Driver::NoObject => " (no CSIDriver object)",
            Driver::Object(_) => " (its CSIDriver object does not list it in volumeLifecycleModes)",
        };
        return Some(Refusal::Lifecycle { mode: mode.as_str(), driver: volume.driver.clone(), hint });
    }
    let Source::Persistent { volume: persistent, .. } = &desired.source else { return None };
    let labels = view.node.map(|node| (node.name, node.labels.into()));
    if let Some((name, labels)) = labels
        && !is_accessible_from(persistent.spec.node_affinity.as_ref(), name, &labels)
    {
        return Some(Refusal::Affinity);
    }
    let elsewhere = volume.mounts.keys().any(|other| other != pod);
    if elsewhere && persistent.spec.access_modes == [AccessMode::ReadWriteOncePod] {
        return Some(Refusal::OncePod);
    }
    match (&volume.se_linux, &desired.se_linux) {
        (has, wants) if volume.device != Device::None && has != wants && elsewhere => Some(Refusal::Label {
            has: has.clone().unwrap_or_default(),
            wants: wants.clone().unwrap_or_default(),
        }),
        _ => None,
    }
}

/// Whether it is staged with an SELinux label that no mount needs any more: it has to be unstaged and staged again.
fn has_stale_label(view: &View<'_>, desired: &DesiredMount) -> bool {
    let volume = view.volume;
    volume.device != Device::None && volume.mounts.is_empty() && volume.se_linux != desired.se_linux
}

fn expansion(view: &View<'_>, desired: &DesiredMount) -> Plan {
    match &desired.source {
        Source::Inline(_) => Plan::Nothing,
        // A read-only mount leaves the expansion to pods that write.
        Source::Persistent { .. } if desired.read_only && view.volume.is_written() => Plan::Nothing,
        Source::Persistent { volume, claim } => {
            expand::plan(claim, volume, view.volume.size, desired.read_only, view.volume.expansion)
        }
    }
}

/// requiresRepublish: time until the mount is published again; `None` if never.
fn time_to_republish(view: &View<'_>, mount: &Mount, now: Monotonic) -> Option<Duration> {
    if !view.driver.republishes() || view.volume.mode == Mode::Block {
        return None;
    }
    let waited = mount.published.map(|published| now.since(published));
    Some(waited.map_or(Duration::ZERO, |waited| view.resync.saturating_sub(waited)))
}

fn next_republish(view: &View<'_>, now: Monotonic) -> Option<Duration> {
    view.volume.mounts.values().filter_map(|mount| time_to_republish(view, mount, now)).min()
}

/// The step, unless its backoff has not expired.
fn attempt(view: &View<'_>, operation: Operation, pod: &str, now: Monotonic, step: Step) -> Next {
    match pause(view, operation, pod, now) {
        Some(pause) => Next::Wait(Some(pause), Waiting::Pause),
        None => Next::Step(step),
    }
}

fn pause(view: &View<'_>, operation: Operation, pod: &str, now: Monotonic) -> Option<Duration> {
    view.volume.failures.get(&(operation, pod.to_owned()))?.left(now)
}

fn refuse(pod: &str, operation: Operation, reason: Refusal) -> Step {
    Step::Refuse { pod: pod.to_owned(), operation, reason }
}

fn not_registered(view: &View<'_>) -> Refusal {
    Refusal::NotRegistered(view.volume.driver.clone())
}

#[cfg(test)]
mod tests;
