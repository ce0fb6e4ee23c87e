//! What an attachment waits for, for people: the rules of [`decide`](super::decide), read out. Pure, over objects that
//! the caller has read; what a controller elsewhere remembers is not known here.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wharf_model::{Key, Time, VolumeName};

use super::Settings;
use super::decide::{Leave, Proof, hindrances, leave};
use super::memory::Memory;
use super::view::{Known, Place, Standing, View};

/// What stands between a volume and its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waits {
    /// Nothing: it is attached, and the node was told.
    Nothing,
    /// No pod there wants it attached: none is placed there that still runs, its claim is not bound, or the driver
    /// does not attach.
    Unwanted,
    /// The pods' node is not there.
    NodeMissing,
    /// The node attaches its volumes itself, or was never told not to.
    NodeUnmanaged,
    /// It has to leave other nodes first.
    Others(Vec<Blocker>),
    /// The controller has to ask for it.
    Request {
        /// The VolumeAttachment that it will make.
        attachment: String,
    },
    /// The driver's attacher has to attach it.
    Attacher {
        /// The VolumeAttachment.
        attachment: String,
        /// The driver.
        driver: String,
    },
    /// The driver's attacher failed, and tries again.
    Failed {
        /// The VolumeAttachment.
        attachment: String,
        /// What the attacher wrote.
        message: String,
    },
    /// An earlier attachment has to end first.
    Leaving(Leaving),
    /// The controller has to tell the node.
    Report,
}

/// A node that another waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// The node.
    pub node: String,
    /// Pods that want the volume there.
    pub pods: Vec<Key>,
    /// What it takes for the volume to leave.
    pub leaving: Leaving,
}

/// What stands between a volume and the end of its attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaving {
    /// Nothing: it is not attached.
    Nothing,
    /// Pods that run there may use it.
    Pods,
    /// The node, which is well, says that it uses it.
    InUse,
    /// The node is not well, and said last that it uses the volume, or is not there to say.
    Unwell {
        /// It is detached by force this long after the last pod.
        force_after: Option<Duration>,
    },
    /// The controller has to tell the node that the volume leaves.
    Report,
    /// The controller has to ask for the end of it.
    Request {
        /// The VolumeAttachment.
        attachment: String,
    },
    /// The driver's attacher has to detach it.
    Attacher {
        /// The VolumeAttachment.
        attachment: String,
        /// The driver.
        driver: String,
    },
    /// The driver's attacher failed, and tries again.
    Failed {
        /// The VolumeAttachment.
        attachment: String,
        /// What the attacher wrote.
        message: String,
    },
    /// No PersistentVolume of it is known, so nobody can say whether it is wanted.
    VolumeUnknown,
}

/// What a volume waits for to be attached to a node.
pub fn waits_for(volume: &VolumeName, node: &str, objects: &Known, settings: &Settings, now: Time) -> Waits {
    let view = view(volume, node, objects, settings);
    let place = view.places.get(node).cloned().unwrap_or_default();
    if place.pods.is_empty() {
        return Waits::Unwanted;
    }
    let (attachment, driver) = (volume.attachment(node), volume.driver.clone());
    match place.standing() {
        Standing::Attached if place.machine.reported => Waits::Nothing,
        Standing::Attached if place.machine.there => Waits::Report,
        Standing::Attached => Waits::NodeMissing,
        Standing::Going => Waits::Leaving(leaves(&view, node, &place, now)),
        Standing::Uncertain => match attach_error(&place) {
            Some(message) => Waits::Failed { attachment, message },
            None => Waits::Attacher { attachment, driver },
        },
        Standing::Absent if !place.machine.there => Waits::NodeMissing,
        Standing::Absent if !place.machine.managed => Waits::NodeUnmanaged,
        Standing::Absent => {
            let others = hindrances(&view, node, now);
            if others.is_empty() {
                return Waits::Request { attachment };
            }
            let blocker = |node: String| {
                let place = &view.places[&node];
                let pods = place.pods.iter().map(|pod| pod.metadata.key()).collect();
                Blocker { leaving: leaves(&view, &node, place, now), pods, node }
            };
            Waits::Others(others.into_iter().map(blocker).collect())
        }
    }
}

/// What a volume waits for to be detached from a node.
pub fn leaving(volume: &VolumeName, node: &str, objects: &Known, settings: &Settings, now: Time) -> Leaving {
    let view = view(volume, node, objects, settings);
    view.places.get(node).map_or(Leaving::Nothing, |place| leaves(&view, node, place, now))
}

fn view<'a>(volume: &VolumeName, node: &str, objects: &Known, settings: &'a Settings) -> View<'a> {
    let in_use_last = |_: &str| None::<Arc<BTreeSet<String>>>;
    View::of(settings, volume.clone(), objects, &[node], |_| Memory::default(), in_use_last)
}

fn attach_error(place: &Place) -> Option<String> {
    Some(place.attachment.as_ref()?.status.attach_error.as_ref()?.message.clone())
}

fn leaves(view: &View<'_>, node: &str, place: &Place, now: Time) -> Leaving {
    let Some(object) = &place.attachment else { return Leaving::Nothing };
    let (attachment, driver) = (view.name.attachment(node), view.name.driver.clone());
    if place.standing() == Standing::Going {
        return match &object.status.detach_error {
            Some(error) => Leaving::Failed { attachment, message: error.message.clone() },
            None => Leaving::Attacher { attachment, driver },
        };
    }
    if !view.known {
        return Leaving::VolumeUnknown;
    }
    if place.held {
        return Leaving::Pods;
    }
    match leave(view, place, now) {
        Leave::WhenUnused if place.machine.ready => Leaving::InUse,
        Leave::WhenUnused => Leaving::Unwell { force_after: None },
        Leave::After(_) => Leaving::Unwell { force_after: Some(view.rules.max_wait(&view.name.driver)) },
        Leave::Now(Proof::NotInUse | Proof::Forced(_)) if place.machine.reported => Leaving::Report,
        Leave::Now(Proof::NotInUse | Proof::Forced(_)) => Leaving::Request { attachment },
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "attached, and the node knows"),
            Self::Unwanted => write!(
                f,
                "not asked for: no pod that runs there has a claim that is bound to it, or its driver does not attach"
            ),
            Self::NodeMissing => {
                write!(f, "the pod's Node does not exist: it has to register, or the pod to go")
            }
            Self::NodeUnmanaged => write!(
                f,
                "the Node has no annotation volumes.kubernetes.io/controller-managed-attach-detach: its agent has to \
                 set it, or nothing is ever attached there"
            ),
            Self::Others(blockers) => {
                write!(f, "the volume is for one node, and has to leave ")?;
                for (index, blocker) in blockers.iter().enumerate() {
                    write!(f, "{}{blocker}", if index == 0 { "" } else { "; and " })?;
                }
                Ok(())
            }
            Self::Request { attachment } => {
                write!(
                    f,
                    "the attach/detach controller has to make VolumeAttachment {attachment}: does it run?"
                )
            }
            Self::Attacher { attachment, driver } => write!(
                f,
                "the attacher of driver {driver} has to see to VolumeAttachment {attachment}: does it run, and lead?"
            ),
            Self::Failed { attachment, message } => {
                write!(f, "the attacher failed, and tries again (VolumeAttachment {attachment}): {message}")
            }
            Self::Leaving(leaving) => write!(f, "an earlier attachment has to end first: {leaving}"),
            Self::Report => {
                write!(f, "attached; the attach/detach controller has to write that into the Node's status")
            }
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, pods, leaving } = self;
        write!(f, "node {node}")?;
        if !pods.is_empty() {
            let pods: Vec<String> = pods.iter().map(Key::to_string).collect();
            write!(f, ", where it is used by {}", pods.join(", "))?;
        }
        write!(f, " ({leaving})")
    }
}

impl fmt::Display for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "not attached"),
            Self::Pods => write!(f, "pods that run there may use it: they have to end"),
            Self::InUse => write!(
                f,
                "the node says in status.volumesInUse that it uses it: its agent has to unmount it; while the node is \
                 Ready it is never detached by force"
            ),
            Self::Unwell { force_after } => {
                write!(f, "the node is not Ready, and may still use it: ")?;
                if let Some(after) = force_after {
                    write!(f, "it is detached by force {} s after its last pod; ", after.as_secs())?;
                }
                write!(
                    f,
                    "if the machine is off for certain, taint the node node.kubernetes.io/out-of-service"
                )
            }
            Self::Report => {
                write!(f, "the attach/detach controller has to withdraw it from the Node's status")
            }
            Self::Request { attachment } => {
                write!(
                    f,
                    "the attach/detach controller has to delete VolumeAttachment {attachment}: does it run?"
                )
            }
            Self::Attacher { attachment, driver } => write!(
                f,
                "the attacher of driver {driver} has to finish with VolumeAttachment {attachment}: does it run, and \
                 lead?"
            ),
            Self::Failed { attachment, message } => {
                write!(f, "the attacher failed, and tries again (VolumeAttachment {attachment}): {message}")
            }
            Self::VolumeUnknown => write!(
                f,
                "its PersistentVolume does not exist, so nobody knows whether it is wanted: it stays as it is"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
