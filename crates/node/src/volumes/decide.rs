//! The rules: the one next thing to do for a volume.
//!
//! - Shares that nobody wants go first, then those that are wanted come, then the stage goes, then the volume is
//!   forgotten: kubelet's own order.
//! - Before a volume that is attached is touched, the server has our word that it is in use, then `volumesAttached`
//!   has it, then its attachment is read. This is what keeps it from being detached under us.
//! - What may be there is repeated while it is wanted, and taken down when it is not.
//! - What was found on disk is left alone until all pods are known.

use std::time::Duration;

use wharf_model::csidriver::LifecycleMode;
use wharf_model::topology::reaches;
use wharf_model::{AccessMode, Time};

use super::expand::{self, Plan};
use super::failure::Doing;
use super::ownership;
use super::view::{Driver, View, Waiting};
use super::world::{Device, Mode, Mount, Progress, Source, Want};

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Nothing, until something changes or so much time has passed.
    Rest {
        /// For how long at most.
        until: Option<Duration>,
        /// For what.
        waiting: Option<Waiting>,
    },
    /// Read the attachment.
    Verify,
    /// NodeStageVolume, on behalf of this pod.
    Stage { pod: String },
    /// NodePublishVolume.
    Publish { pod: String },
    /// Give the files to the pod's group.
    Own { pod: String },
    /// NodeExpandVolume, or what stands for it: which of them, the claim says by then.
    Expand { pod: String },
    /// The pod can have it.
    Ready { pod: String },
    /// NodeUnpublishVolume.
    Unpublish { pod: String },
    /// NodeUnstageVolume.
    Unstage,
    /// Nothing of it is here any more.
    Forget,
    /// It cannot be done as things are.
    Refuse { pod: String, doing: Doing, why: Refusal },
}

/// Why the driver is not even asked. Upstream's words, where it has some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// Not on this node.
    #[error("no matching NodeSelectorTerms")]
    Affinity,
    /// Another pod has it.
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    OncePod,
    /// The driver has no such volumes.
    #[error("volume mode \"{mode}\" not supported by driver {driver}{hint}")]
    Lifecycle {
        /// Which.
        mode: &'static str,
        /// Whose.
        driver: String,
        /// Why.
        hint: &'static str,
    },
    /// The driver is not there.
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NotRegistered(String),
    /// It is staged with another label.
    #[error(
        "volume is already mounted with SELinux label {has:?}, and this pod wants {wants:?}: it can have it once the \
         other pod is gone"
    )]
    Label {
        /// What it is mounted with.
        has: String,
        /// What is wanted.
        wants: String,
    },
}

/// What one pod's share calls for.
enum Next {
    Nothing,
    Wait(Option<Duration>, Waiting),
    Step(Step),
}

/// What to do next for a volume.
pub(super) fn decide(view: &View<'_>, now: Time) -> Step {
    let volume = view.volume;
    let unwanted = volume.mounts.keys().filter(|pod| !volume.wants.contains_key(*pod));
    let down = unwanted.map(|pod| unpublish(view, pod, now));
    let up = volume.wants.iter().map(|(pod, want)| mount(view, pod, want, now));
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
        Some((until, waiting)) => Step::Rest { until, waiting: Some(waiting) },
        None => Step::Rest { until: republish(view, now), waiting: None },
    }
}

/// A share goes once its pod was released, or nobody knows the pod.
fn unpublish(view: &View<'_>, pod: &str, now: Time) -> Next {
    if !view.released.iter().any(|released| released == pod) {
        return Next::Wait(None, Waiting::Pods);
    }
    if let Some(pause) = pause(view, Doing::Unpublish, pod, now) {
        return Next::Wait(Some(pause), Waiting::Pause);
    }
    Next::Step(match view.can {
        None => refuse(pod, Doing::Unpublish, not_registered(view)),
        Some(_) => Step::Unpublish { pod: pod.to_owned() },
    })
}

/// The steps to a mount, in their order.
fn mount(view: &View<'_>, pod: &str, want: &Want, now: Time) -> Next {
    let volume = view.volume;
    let share = volume.mounts.get(pod);
    if let Some(share) = share.filter(|share| share.progress == Progress::Mounted) {
        return maintain(view, pod, want, share, now);
    }
    // Whatever is the matter is told as often as an attempt would be made.
    if let Some(pause) = pause(view, Doing::Publish, pod, now) {
        return Next::Wait(Some(pause), Waiting::Pause);
    }
    if view.node.is_none() {
        return Next::Wait(None, Waiting::Node);
    }
    if matches!(view.driver, Driver::Unknown) {
        return Next::Wait(None, Waiting::Drivers);
    }
    if let Some(why) = refusal(view, pod, want) {
        return Next::Step(refuse(pod, Doing::Publish, why));
    }
    if let Some(next) = handshake(view, now) {
        return next;
    }
    let Some(can) = view.can else {
        return Next::Step(refuse(pod, Doing::Publish, not_registered(view)));
    };
    if can.stage_unstage && other_label(view, want) {
        return match volume.device {
            Device::Uncertain { found: true } if !view.settled => Next::Wait(None, Waiting::Pods),
            _ => attempt(view, Doing::Unstage, "", now, Step::Unstage),
        };
    }
    if can.stage_unstage && !volume.ephemeral && volume.device != Device::Staged {
        return attempt(view, Doing::Stage, "", now, Step::Stage { pod: pod.to_owned() });
    }
    let pod = pod.to_owned();
    match share.map(|share| share.progress) {
        None | Some(Progress::Uncertain) => Next::Step(Step::Publish { pod }),
        Some(Progress::Published) if ownership::is_ours(view.driver, can, volume.mode, want) => {
            attempt(view, Doing::Own, &pod.clone(), now, Step::Own { pod })
        }
        Some(Progress::Published | Progress::Owned | Progress::Mounted) => match expansion(view, want) {
            Plan::Nothing => Next::Step(Step::Ready { pod }),
            _ => attempt(view, Doing::Expand, &pod.clone(), now, Step::Expand { pod }),
        },
    }
}

/// What is missing before a driver may be asked: `None`, nothing. What the attachment gave does not outlive the attachment.
fn handshake(view: &View<'_>, now: Time) -> Option<Next> {
    if view.volume.ephemeral || !view.driver.attaches() {
        return None;
    }
    match view.node {
        None => Some(Next::Wait(None, Waiting::Node)),
        Some(node) if !node.reported => Some(Next::Wait(None, Waiting::Report)),
        Some(node) if !node.attached => Some(Next::Wait(None, Waiting::Attach)),
        Some(_) if view.volume.context.is_none() => Some(attempt(view, Doing::Verify, "", now, Step::Verify)),
        Some(_) => None,
    }
}

/// A volume that the pod has: it may have to grow, or to be published again.
fn maintain(view: &View<'_>, pod: &str, want: &Want, share: &Mount, now: Time) -> Next {
    if view.can.is_none() {
        return Next::Nothing;
    }
    if due(view, share, now) == Some(Duration::ZERO) {
        return handshake(view, now).unwrap_or_else(|| again(view, pod, now));
    }
    match expansion(view, want) {
        Plan::Nothing => Next::Nothing,
        _ => attempt(view, Doing::Expand, pod, now, Step::Expand { pod: pod.to_owned() }),
    }
}

fn again(view: &View<'_>, pod: &str, now: Time) -> Next {
    attempt(view, Doing::Publish, pod, now, Step::Publish { pod: pod.to_owned() })
}

/// The stage goes when the last share is gone, then the volume is forgotten.
fn device(view: &View<'_>, now: Time) -> Next {
    let volume = view.volume;
    if !volume.wants.is_empty() || !volume.mounts.is_empty() {
        return Next::Nothing;
    }
    match volume.device {
        Device::None => Next::Step(Step::Forget),
        Device::Uncertain { found: true } if !view.settled => Next::Wait(None, Waiting::Pods),
        Device::Uncertain { .. } | Device::Staged => {
            if let Some(pause) = pause(view, Doing::Unstage, "", now) {
                return Next::Wait(Some(pause), Waiting::Pause);
            }
            Next::Step(match view.can {
                None => refuse("", Doing::Unstage, not_registered(view)),
                Some(_) => Step::Unstage,
            })
        }
    }
}

fn refusal(view: &View<'_>, pod: &str, want: &Want) -> Option<Refusal> {
    let volume = view.volume;
    let mode = if volume.ephemeral { LifecycleMode::Ephemeral } else { LifecycleMode::Persistent };
    if !view.driver.lives(mode) {
        let hint = match view.driver {
            Driver::Unknown | Driver::Silent => " (no CSIDriver object)",
            Driver::Said(_) => " (its CSIDriver object does not list it in volumeLifecycleModes)",
        };
        return Some(Refusal::Lifecycle { mode: mode.as_str(), driver: volume.driver.clone(), hint });
    }
    let Source::Persistent { volume: persistent, .. } = &want.source else { return None };
    let labels = view.node.map(|node| (node.name, node.labels.into()));
    if let Some((name, labels)) = labels
        && !reaches(persistent.spec.node_affinity.as_ref(), name, &labels)
    {
        return Some(Refusal::Affinity);
    }
    let elsewhere = volume.mounts.keys().any(|other| other != pod);
    if elsewhere && persistent.spec.access_modes == [AccessMode::ReadWriteOncePod] {
        return Some(Refusal::OncePod);
    }
    match (&volume.se_linux, &want.se_linux) {
        (has, wants) if volume.device != Device::None && has != wants && elsewhere => Some(Refusal::Label {
            has: has.clone().unwrap_or_default(),
            wants: wants.clone().unwrap_or_default(),
        }),
        _ => None,
    }
}

/// Whether it is staged with a label that nobody needs any more: a share of it would have that label. It is staged anew.
fn other_label(view: &View<'_>, want: &Want) -> bool {
    let volume = view.volume;
    volume.device != Device::None && volume.mounts.is_empty() && volume.se_linux != want.se_linux
}

fn expansion(view: &View<'_>, want: &Want) -> Plan {
    match &want.source {
        Source::Inline(_) => Plan::Nothing,
        // Who only reads leaves it to those who write.
        Source::Persistent { .. } if want.read_only && view.volume.is_written() => Plan::Nothing,
        Source::Persistent { volume, claim } => {
            expand::plan(claim, volume, view.volume.size, want.read_only, view.volume.expansion)
        }
    }
}

/// requiresRepublish: how long until the share is published again; `None`: never.
fn due(view: &View<'_>, share: &Mount, now: Time) -> Option<Duration> {
    if !view.driver.republishes() || view.volume.mode == Mode::Block {
        return None;
    }
    let left = share.published.plus(view.resync).0.saturating_sub(now.0);
    Some(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
}

fn republish(view: &View<'_>, now: Time) -> Option<Duration> {
    view.volume.mounts.values().filter_map(|share| due(view, share, now)).min()
}

/// The step, unless a pause after its last failure is not over.
fn attempt(view: &View<'_>, doing: Doing, pod: &str, now: Time, step: Step) -> Next {
    match pause(view, doing, pod, now) {
        Some(pause) => Next::Wait(Some(pause), Waiting::Pause),
        None => Next::Step(step),
    }
}

fn pause(view: &View<'_>, doing: Doing, pod: &str, now: Time) -> Option<Duration> {
    view.volume.failures.get(&(doing, pod.to_owned()))?.left(now)
}

fn refuse(pod: &str, doing: Doing, why: Refusal) -> Step {
    Step::Refuse { pod: pod.to_owned(), doing, why }
}

fn not_registered(view: &View<'_>) -> Refusal {
    Refusal::NotRegistered(view.volume.driver.clone())
}

#[cfg(test)]
mod tests;
