//! The pending step of each object, derived from the objects alone: which component has to act next. `wharf explain`
//! must name the same component.
//!
//! These rules are written independently of `wharf explain`, so that a mistake in its rules is detected here. They
//! cover only what occurs in this cluster: one driver, which attaches and stages, and no statically provisioned volumes.

use wharf_explain::Step;
use wharf_model::claim::{ClaimPhase, ResizeStatus};
use wharf_model::volume::VolumePhase;
use wharf_model::{Node, PersistentVolume, PersistentVolumeClaim, Pod, UniqueVolumeName, VolumeAttachment};

use crate::driver::DRIVER;
use crate::testbed::IMMEDIATE_CLASS;

const BINDER: &str = "the volume binder";
const SCHEDULER: &str = "the scheduler";
const ATTACH_DETACH: &str = "the attach/detach controller";

/// An object that waits, and the component that has to act next.
#[derive(Debug)]
pub(crate) struct ExpectedStep {
    object: String,
    /// The start of the component's name.
    waiting_for: String,
    /// A part of the message that the explanation must contain.
    message: String,
}

impl ExpectedStep {
    fn of_claim(claim: &PersistentVolumeClaim, waiting_for: impl Into<String>) -> Self {
        let object = format!("claim {}", claim.metadata.key());
        Self { object, waiting_for: waiting_for.into(), message: String::new() }
    }

    fn of_volume(volume: &PersistentVolume, waiting_for: impl Into<String>) -> Self {
        let object = format!("volume {}", volume.metadata.name);
        Self { object, waiting_for: waiting_for.into(), message: String::new() }
    }

    fn of_pod(pod: &Pod, waiting_for: impl Into<String>) -> Self {
        Self {
            object: format!("pod {}", pod.metadata.key()),
            waiting_for: waiting_for.into(),
            message: String::new(),
        }
    }

    fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Whether the step names this object, component and message.
    pub(crate) fn matches(&self, step: &Step) -> bool {
        step.object == self.object
            && step.waiting_for.starts_with(&self.waiting_for)
            && step.message.contains(&self.message)
    }
}

/// The storage objects of the cluster, its pods and its nodes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct World {
    pub(crate) claims: Vec<PersistentVolumeClaim>,
    pub(crate) volumes: Vec<PersistentVolume>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) attachments: Vec<VolumeAttachment>,
    pub(crate) nodes: Vec<Node>,
}

impl World {
    /// What an unbound, deleted or expanding claim waits for.
    pub(crate) fn claim(&self, claim: &PersistentVolumeClaim) -> Option<ExpectedStep> {
        self.binding(claim).or_else(|| expansion(claim))
    }

    /// What the claim waits for until it is bound or deleted.
    fn binding(&self, claim: &PersistentVolumeClaim) -> Option<ExpectedStep> {
        let expected = |waiting_for: &str| Some(ExpectedStep::of_claim(claim, waiting_for));
        let users: Vec<&Pod> = self.users(&claim.metadata.name).collect();
        let is_scheduled = |pod: &&&Pod| !pod.node_name.is_empty();
        let volume = self.volumes.iter().find(|volume| {
            let claim_uid = volume.spec.claim_ref.as_ref().map(|reference| reference.uid.as_str());
            claim_uid == Some(claim.metadata.uid.as_str())
        });
        if claim.metadata.is_deleting() {
            let mut scheduled = users.iter().filter(is_scheduled);
            let waiting_for = match scheduled.clone().any(|pod| !pod.metadata.is_deleting()) {
                true => "you to delete these pods",
                false if scheduled.next().is_some() => "kubelet on node ",
                false => "the claim protection controller",
            };
            return Some(ExpectedStep::of_claim(claim, waiting_for).with_message("being deleted"));
        }
        match claim.status.phase {
            ClaimPhase::Bound => None,
            _ if volume.is_some() => expected(BINDER),
            _ if claim.class() != Some(IMMEDIATE_CLASS) && claim.selected_node().is_none() => {
                match users.iter().find(|pod| !is_scheduled(pod)) {
                    None if users.is_empty() => expected("you to create a pod that uses it"),
                    None => expected("Wharf's scheduler"),
                    Some(pod) => Some(
                        ExpectedStep::of_claim(claim, SCHEDULER).with_message(pod.metadata.name.as_str()),
                    ),
                }
            }
            _ if claim.provisioner().is_none() => expected(BINDER),
            _ => expected(&format!("the provisioner of {DRIVER}")),
        }
    }

    /// What a pod that is not running waits for.
    pub(crate) fn pod(&self, pod: &Pod) -> Option<ExpectedStep> {
        let node = &pod.node_name;
        let kubelet = || ExpectedStep::of_pod(pod, format!("kubelet on node {node}"));
        if pod.metadata.is_deleting() && !node.is_empty() {
            return Some(kubelet().with_message("being deleted"));
        }
        let scheduler = || ExpectedStep::of_pod(pod, SCHEDULER);
        for name in pod.claims.iter() {
            let Some(claim) = self.claims.iter().find(|claim| claim.metadata.name == *name) else {
                let (object, message) = (format!("claim default/{name}"), "does not exist".to_owned());
                let is_ephemeral = pod.spec.volumes.iter().any(|volume| volume.ephemeral.is_some());
                let waiting_for =
                    if is_ephemeral { "the ephemeral volume controller" } else { "you to create it" };
                return Some(ExpectedStep { object, waiting_for: waiting_for.to_owned(), message });
            };
            match self.binding(claim) {
                // The claim waits until this pod, or another pod that uses it, is scheduled.
                Some(expected) if node.is_empty() && expected.waiting_for == SCHEDULER => {}
                Some(expected) => return Some(expected),
                None => {}
            }
            if let Some(expected) = self.attaching(claim, node).filter(|_| !node.is_empty()) {
                return Some(expected);
            }
        }
        Some(if node.is_empty() { scheduler() } else { kubelet() })
    }

    /// What a volume that is not bound to a claim waits for.
    pub(crate) fn volume(&self, volume: &PersistentVolume) -> Option<ExpectedStep> {
        let attachment = self.attachments_of(volume).next();
        let claim = volume.spec.claim_ref.as_ref().map(|claim| claim.uid.as_str()).unwrap_or_default();
        match (volume.status.phase, attachment) {
            (VolumePhase::Bound, _) if self.claims.iter().all(|other| other.metadata.uid != claim) => {
                Some(ExpectedStep::of_volume(volume, BINDER))
            }
            (VolumePhase::Bound | VolumePhase::Available, _) => None,
            (VolumePhase::Pending | VolumePhase::Unknown, _) => Some(ExpectedStep::of_volume(volume, BINDER)),
            (_, Some(attachment)) => Some(self.detaching(volume, attachment)),
            (_, None) => Some(ExpectedStep::of_volume(volume, format!("the provisioner of {DRIVER}"))),
        }
    }

    /// What the claim waits for until its volume is attached and the node's status lists it.
    fn attaching(&self, claim: &PersistentVolumeClaim, node: &str) -> Option<ExpectedStep> {
        let named = |volume: &&PersistentVolume| volume.metadata.name == claim.spec.volume_name;
        let volume = self.volumes.iter().find(named)?;
        let here = self.attachments_of(volume).find(|attachment| attachment.spec.node_name == node);
        let attach_detach = || Some(ExpectedStep::of_volume(volume, ATTACH_DETACH));
        match here {
            Some(here) if here.status.attached && !here.metadata.is_deleting() => {
                let (node, name) = (self.node(node)?, UniqueVolumeName::from_spec(&volume.spec)?.to_string());
                let reported = node.status.volumes_attached.iter().any(|volume| volume.name == name);
                if reported { None } else { attach_detach() }
            }
            Some(_) => Some(ExpectedStep::of_volume(volume, format!("the attacher of {DRIVER}"))),
            None => match self.attachments_of(volume).next() {
                Some(elsewhere) => Some(self.detaching(volume, elsewhere).with_message(node)),
                None => attach_detach(),
            },
        }
    }

    /// What the volume waits for until it is detached.
    fn detaching(&self, volume: &PersistentVolume, attachment: &VolumeAttachment) -> ExpectedStep {
        let node = &attachment.spec.node_name;
        let claim = volume.spec.claim_ref.as_ref().map(|claim| claim.name.as_str()).unwrap_or_default();
        let name = UniqueVolumeName::from_spec(&volume.spec).map(|name| name.to_string()).unwrap_or_default();
        // The simulation has no containers, so nothing runs in a pod that is being deleted.
        let uses_volume = |pod: &Pod| pod.node_name == *node && !pod.metadata.is_deleting();
        let waiting_for = if attachment.metadata.is_deleting() {
            format!("the attacher of {DRIVER}")
        } else if self.users(claim).any(uses_volume) {
            format!("the pods that use it on node {node}")
        } else if self.node(node).is_some_and(|node| node.status.volumes_in_use.contains(&name)) {
            format!("kubelet on node {node}")
        } else {
            ATTACH_DETACH.to_owned()
        };
        ExpectedStep::of_volume(volume, waiting_for).with_message(node.as_str())
    }

    /// The attachments of the volume, ordered by node.
    fn attachments_of<'a>(
        &'a self,
        volume: &'a PersistentVolume,
    ) -> impl Iterator<Item = &'a VolumeAttachment> {
        let is_for_volume = |attachment: &&VolumeAttachment| {
            attachment.spec.source.persistent_volume_name.as_ref() == Some(&volume.metadata.name)
        };
        let mut all: Vec<_> = self.attachments.iter().filter(is_for_volume).collect();
        all.sort_by_key(|attachment| &attachment.spec.node_name);
        all.into_iter()
    }

    fn users<'a>(&'a self, claim: &'a str) -> impl Iterator<Item = &'a Pod> {
        self.pods.iter().filter(move |pod| pod.claims.iter().any(|name| name == claim))
    }

    fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.metadata.name == name)
    }
}

/// What the claim waits for until it has the requested size.
fn expansion(claim: &PersistentVolumeClaim) -> Option<ExpectedStep> {
    let requested = claim.requested_storage().filter(|_| claim.status.phase == ClaimPhase::Bound)?;
    let waiting_for = match claim.status.allocated_resource_statuses.storage {
        None | Some(ResizeStatus::Unknown | ResizeStatus::ControllerResizeInProgress) => {
            format!("the resizer of {DRIVER}")
        }
        Some(ResizeStatus::NodeResizePending | ResizeStatus::NodeResizeInProgress) => {
            "kubelet on the node".to_owned()
        }
        Some(ResizeStatus::ControllerResizeInfeasible | ResizeStatus::NodeResizeInfeasible) => {
            "you to request a smaller size".to_owned()
        }
    };
    Some(ExpectedStep::of_claim(claim, waiting_for).with_message(format!("{requested} requested")))
}
