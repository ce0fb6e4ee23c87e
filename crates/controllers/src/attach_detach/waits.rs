//! Explains to users what a volume waits for, by the rules of `decide`. Pure functions over objects
//! that the caller has read; the in-process state of a running controller is not known here.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wharf_model::{Key, Monotonic, UniqueVolumeName};

use super::Settings;
use super::decide::{DetachReason, DetachTiming, blocking_nodes, detach_timing};
use super::state::AttachState;
use super::view::{AttachmentPhase, NodeView, View, VolumeObjects};

/// What a volume waits for before it is attached to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachStatus {
    /// Nothing: it is attached, and the node's status lists it.
    Attached,
    /// No pod on the node wants it attached: no running pod is scheduled there, its claim is not bound, or the driver
    /// does not attach volumes.
    Unwanted,
    /// The pods' Node does not exist.
    NodeMissing,
    /// The Node lacks the annotation by which it leaves attaching to the controller.
    NodeUnmanaged,
    /// It has to be detached from other nodes first.
    OtherNodes(Vec<BlockingNode>),
    /// The controller has to create the VolumeAttachment.
    NotRequested {
        /// The name of the VolumeAttachment.
        attachment: String,
    },
    /// The driver's attacher has to attach it.
    Attacher {
        /// The name of the VolumeAttachment.
        attachment: String,
        /// The name of the driver.
        driver: String,
    },
    /// The driver's attacher failed, and tries again.
    Failed {
        /// The name of the VolumeAttachment.
        attachment: String,
        /// What the attacher wrote.
        message: String,
    },
    /// An earlier attachment has to be removed first.
    EarlierAttachment(DetachStatus),
    /// The controller has to update the node's status.
    NodeStatus,
}

/// A node from which the volume has to be detached first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockingNode {
    /// The name of the node.
    pub node: String,
    /// Pods that want the volume there.
    pub pods: Vec<Key>,
    /// What the detach waits for.
    pub leaving: DetachStatus,
}

/// What a volume waits for before it is detached from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetachStatus {
    /// Nothing: it is not attached.
    Detached,
    /// Running pods on the node may use it.
    UsedByPods,
    /// The node is Ready and uses it.
    InUse,
    /// The node is not Ready or does not exist, and may use it.
    NodeNotReady {
        /// The detach is forced this long after the last pod.
        force_after: Option<Duration>,
    },
    /// The controller has to remove it from the node's status.
    NodeStatus,
    /// The controller has to delete the VolumeAttachment.
    NotRequested {
        /// The name of the VolumeAttachment.
        attachment: String,
    },
    /// The driver's attacher has to detach it.
    Attacher {
        /// The name of the VolumeAttachment.
        attachment: String,
        /// The name of the driver.
        driver: String,
    },
    /// The driver's attacher failed, and tries again.
    Failed {
        /// The name of the VolumeAttachment.
        attachment: String,
        /// What the attacher wrote.
        message: String,
    },
    /// No PersistentVolume of it exists, so it is unknown whether a pod wants it.
    VolumeUnknown,
}

/// The waits of a running controller are not known here, so they count as just begun.
const START: Monotonic = Monotonic(0);

/// What a volume waits for to be attached to a node.
pub fn attach_status(
    volume: &UniqueVolumeName,
    node: &str,
    objects: &VolumeObjects,
    settings: &Settings,
) -> AttachStatus {
    let view = view(volume, node, objects, settings);
    let node_view = view.nodes.get(node).cloned().unwrap_or_default();
    if node_view.pods.is_empty() {
        return AttachStatus::Unwanted;
    }
    let (attachment, driver) = (volume.attachment_name(node), volume.driver.clone());
    match node_view.phase() {
        AttachmentPhase::Attached if node_view.node.reported => AttachStatus::Attached,
        AttachmentPhase::Attached if node_view.node.exists => AttachStatus::NodeStatus,
        AttachmentPhase::Attached => AttachStatus::NodeMissing,
        AttachmentPhase::Detaching => {
            AttachStatus::EarlierAttachment(detach_state(&view, node, &node_view, START))
        }
        AttachmentPhase::Uncertain => match attach_error(&node_view) {
            Some(message) => AttachStatus::Failed { attachment, message },
            None => AttachStatus::Attacher { attachment, driver },
        },
        AttachmentPhase::Absent if !node_view.node.exists => AttachStatus::NodeMissing,
        AttachmentPhase::Absent if !node_view.node.managed => AttachStatus::NodeUnmanaged,
        AttachmentPhase::Absent => {
            let others = blocking_nodes(&view, node, START);
            if others.is_empty() {
                return AttachStatus::NotRequested { attachment };
            }
            let blocker = |node: String| {
                let node_view = &view.nodes[&node];
                let pods = node_view.pods.iter().map(|pod| pod.metadata.key()).collect();
                BlockingNode { leaving: detach_state(&view, &node, node_view, START), pods, node }
            };
            AttachStatus::OtherNodes(others.into_iter().map(blocker).collect())
        }
    }
}

/// What a volume waits for to be detached from a node.
pub fn detach_status(
    volume: &UniqueVolumeName,
    node: &str,
    objects: &VolumeObjects,
    settings: &Settings,
) -> DetachStatus {
    let view = view(volume, node, objects, settings);
    view.nodes
        .get(node)
        .map_or(DetachStatus::Detached, |node_view| detach_state(&view, node, node_view, START))
}

fn view<'a>(
    volume: &UniqueVolumeName,
    node: &str,
    objects: &VolumeObjects,
    settings: &'a Settings,
) -> View<'a> {
    let last_in_use = |_: &str| None::<Arc<BTreeSet<String>>>;
    View::of(settings, volume.clone(), objects, &[node], |_| AttachState::default(), last_in_use)
}

fn attach_error(node_view: &NodeView) -> Option<String> {
    Some(node_view.attachment.as_ref()?.status.attach_error.as_ref()?.message.clone())
}

fn detach_state(view: &View<'_>, node: &str, node_view: &NodeView, now: Monotonic) -> DetachStatus {
    let Some(object) = &node_view.attachment else { return DetachStatus::Detached };
    let (attachment, driver) = (view.name.attachment_name(node), view.name.driver.clone());
    if node_view.phase() == AttachmentPhase::Detaching {
        return match &object.status.detach_error {
            Some(error) => DetachStatus::Failed { attachment, message: error.message.clone() },
            None => DetachStatus::Attacher { attachment, driver },
        };
    }
    if !view.volume_known {
        return DetachStatus::VolumeUnknown;
    }
    if node_view.held_by_pod {
        return DetachStatus::UsedByPods;
    }
    match detach_timing(view, node_view, now) {
        DetachTiming::WhenUnused if node_view.node.ready => DetachStatus::InUse,
        DetachTiming::WhenUnused => DetachStatus::NodeNotReady { force_after: None },
        DetachTiming::After(_) => {
            DetachStatus::NodeNotReady { force_after: Some(view.settings.max_wait(&view.name.driver)) }
        }
        DetachTiming::Now(DetachReason::NotInUse | DetachReason::Forced(_)) if node_view.node.reported => {
            DetachStatus::NodeStatus
        }
        DetachTiming::Now(DetachReason::NotInUse | DetachReason::Forced(_)) => {
            DetachStatus::NotRequested { attachment }
        }
    }
}

impl fmt::Display for AttachStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached => write!(f, "attached, and the node's status lists it"),
            Self::Unwanted => write!(
                f,
                "not attached: no running pod on the node has a claim that is bound to it, or its driver does not \
                 attach volumes"
            ),
            Self::NodeMissing => {
                write!(
                    f,
                    "the pod's Node does not exist: the node has to register, or the pod has to be deleted"
                )
            }
            Self::NodeUnmanaged => write!(
                f,
                "the Node has no annotation volumes.kubernetes.io/controller-managed-attach-detach: its agent has to \
                 set it before volumes can be attached"
            ),
            Self::OtherNodes(blockers) => {
                write!(f, "the volume can be on one node only, and has to leave ")?;
                for (index, blocker) in blockers.iter().enumerate() {
                    write!(f, "{}{blocker}", if index == 0 { "" } else { "; and " })?;
                }
                Ok(())
            }
            Self::NotRequested { attachment } => {
                write!(
                    f,
                    "the attach/detach controller has to create VolumeAttachment {attachment}: is it running?"
                )
            }
            Self::Attacher { attachment, driver } => write!(
                f,
                "the attacher of driver {driver} has to process VolumeAttachment {attachment}: is it running, and the \
                 leader?"
            ),
            Self::Failed { attachment, message } => {
                write!(f, "the attacher failed and retries (VolumeAttachment {attachment}): {message}")
            }
            Self::EarlierAttachment(leaving) => {
                write!(f, "an earlier attachment has to be removed first: {leaving}")
            }
            Self::NodeStatus => {
                write!(f, "attached; the attach/detach controller has to update the Node's status")
            }
        }
    }
}

impl fmt::Display for BlockingNode {
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

impl fmt::Display for DetachStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detached => write!(f, "not attached"),
            Self::UsedByPods => write!(f, "running pods on the node may use it: they have to terminate"),
            Self::InUse => write!(
                f,
                "the node lists it in status.volumesInUse: its agent has to unmount it; a detach is never forced while \
                 the node is Ready"
            ),
            Self::NodeNotReady { force_after } => {
                write!(f, "the node is not Ready and may still use it: ")?;
                if let Some(after) = force_after {
                    write!(f, "the detach is forced {} s after its last pod; ", after.as_secs())?;
                }
                write!(
                    f,
                    "if the machine is certainly off, taint the node with node.kubernetes.io/out-of-service"
                )
            }
            Self::NodeStatus => {
                write!(f, "the attach/detach controller has to remove it from the Node's status")
            }
            Self::NotRequested { attachment } => {
                write!(
                    f,
                    "the attach/detach controller has to delete VolumeAttachment {attachment}: is it running?"
                )
            }
            Self::Attacher { attachment, driver } => write!(
                f,
                "the attacher of driver {driver} has to finish VolumeAttachment {attachment}: is it running, and the \
                 leader?"
            ),
            Self::Failed { attachment, message } => {
                write!(f, "the attacher failed and retries (VolumeAttachment {attachment}): {message}")
            }
            Self::VolumeUnknown => write!(
                f,
                "its PersistentVolume does not exist, so it is unknown whether a pod wants it: it stays attached"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
