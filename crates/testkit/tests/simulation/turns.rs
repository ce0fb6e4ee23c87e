//! Whose turn it is, by the objects alone: what `wharf explain` is held to.
//!
//! Written apart from the product's own rules, which explain reads out: a mistake there shows here. It knows only what can be
//! in this cluster: one driver, which attaches and stages, and no volume that somebody made by hand.

use wharf_explain::Step;
use wharf_model::claim::{ClaimPhase, ResizeStatus};
use wharf_model::volume::VolumePhase;
use wharf_model::{Node, PersistentVolume, PersistentVolumeClaim, Pod, UniqueVolumeName, VolumeAttachment};

use crate::driver::DRIVER;
use crate::testbed::AT_ONCE;

const BINDER: &str = "the volume binder";
const SCHEDULER: &str = "the scheduler";
const ATTACH_DETACH: &str = "the attach/detach controller";

/// Which object waits, and for whom.
#[derive(Debug)]
pub(crate) struct Turn {
    object: String,
    /// How it begins.
    whose: String,
    /// What is said of it besides.
    says: String,
}

impl Turn {
    fn of_claim(claim: &PersistentVolumeClaim, whose: impl Into<String>) -> Self {
        let object = format!("claim {}", claim.metadata.key());
        Self { object, whose: whose.into(), says: String::new() }
    }

    fn of_volume(volume: &PersistentVolume, whose: impl Into<String>) -> Self {
        let object = format!("volume {}", volume.metadata.name);
        Self { object, whose: whose.into(), says: String::new() }
    }

    fn of_pod(pod: &Pod, whose: impl Into<String>) -> Self {
        Self { object: format!("pod {}", pod.metadata.key()), whose: whose.into(), says: String::new() }
    }

    fn saying(mut self, says: impl Into<String>) -> Self {
        self.says = says.into();
        self
    }

    /// Whether this step tells it.
    pub(crate) fn is(&self, step: &Step) -> bool {
        step.object == self.object
            && step.waiting_for.starts_with(&self.whose)
            && step.message.contains(&self.says)
    }
}

/// All objects that have to do with volumes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct World {
    pub(crate) claims: Vec<PersistentVolumeClaim>,
    pub(crate) volumes: Vec<PersistentVolume>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) attachments: Vec<VolumeAttachment>,
    pub(crate) nodes: Vec<Node>,
}

impl World {
    /// What a claim that is not done waits for.
    pub(crate) fn claim(&self, claim: &PersistentVolumeClaim) -> Option<Turn> {
        self.bound(claim).or_else(|| grown(claim))
    }

    /// What it waits for until it is bound, or gone.
    fn bound(&self, claim: &PersistentVolumeClaim) -> Option<Turn> {
        let turn = |whose: &str| Some(Turn::of_claim(claim, whose));
        let users: Vec<&Pod> = self.users(&claim.metadata.name).collect();
        let placed = |pod: &&&Pod| !pod.node_name.is_empty();
        let volume = self.volumes.iter().find(|volume| {
            let of = volume.spec.claim_ref.as_ref().map(|reference| reference.uid.as_str());
            of == Some(claim.metadata.uid.as_str())
        });
        if claim.metadata.is_deleting() {
            let mut here = users.iter().filter(placed);
            let whose = match here.clone().any(|pod| !pod.metadata.is_deleting()) {
                true => "you to delete these pods",
                false if here.next().is_some() => "kubelet on node ",
                false => "the claim protection controller",
            };
            return Some(Turn::of_claim(claim, whose).saying("being deleted"));
        }
        match claim.status.phase {
            ClaimPhase::Bound => None,
            _ if volume.is_some() => turn(BINDER),
            _ if claim.class() != Some(AT_ONCE) && claim.selected_node().is_none() => {
                match users.iter().find(|pod| !placed(pod)) {
                    None if users.is_empty() => turn("you to create a pod that uses it"),
                    None => turn("Wharf's scheduler"),
                    Some(pod) => Some(Turn::of_claim(claim, SCHEDULER).saying(pod.metadata.name.as_str())),
                }
            }
            _ if claim.provisioner().is_none() => turn(BINDER),
            _ => turn(&format!("the provisioner of {DRIVER}")),
        }
    }

    /// What a pod that does not run waits for.
    pub(crate) fn pod(&self, pod: &Pod) -> Option<Turn> {
        let node = &pod.node_name;
        let here = || Turn::of_pod(pod, format!("kubelet on node {node}"));
        if pod.metadata.is_deleting() && !node.is_empty() {
            return Some(here().saying("being deleted"));
        }
        let scheduler = || Turn::of_pod(pod, SCHEDULER);
        for name in pod.claims.iter() {
            let Some(claim) = self.claims.iter().find(|claim| claim.metadata.name == *name) else {
                let (object, says) = (format!("claim default/{name}"), "does not exist".to_owned());
                let own = pod.spec.volumes.iter().any(|volume| volume.ephemeral.is_some());
                let whose = if own { "the ephemeral volume controller" } else { "you to create it" };
                return Some(Turn { object, whose: whose.to_owned(), says });
            };
            match self.bound(claim) {
                // It waits for this very pod, or for another that has it, too.
                Some(turn) if node.is_empty() && turn.whose == SCHEDULER => {}
                Some(turn) => return Some(turn),
                None => {}
            }
            if let Some(turn) = self.arrival(claim, node).filter(|_| !node.is_empty()) {
                return Some(turn);
            }
        }
        Some(if node.is_empty() { scheduler() } else { here() })
    }

    /// What a volume that nobody has any more waits for, or one that nobody has yet.
    pub(crate) fn volume(&self, volume: &PersistentVolume) -> Option<Turn> {
        let somewhere = self.attachments_of(volume).next();
        let claim = volume.spec.claim_ref.as_ref().map(|claim| claim.uid.as_str()).unwrap_or_default();
        match (volume.status.phase, somewhere) {
            (VolumePhase::Bound, _) if self.claims.iter().all(|other| other.metadata.uid != claim) => {
                Some(Turn::of_volume(volume, BINDER))
            }
            (VolumePhase::Bound | VolumePhase::Available, _) => None,
            (VolumePhase::Pending | VolumePhase::Unknown, _) => Some(Turn::of_volume(volume, BINDER)),
            (_, Some(attachment)) => Some(self.departure(volume, attachment)),
            (_, None) => Some(Turn::of_volume(volume, format!("the provisioner of {DRIVER}"))),
        }
    }

    /// Until a claim's volume is at a node, and the node knows.
    fn arrival(&self, claim: &PersistentVolumeClaim, node: &str) -> Option<Turn> {
        let named = |volume: &&PersistentVolume| volume.metadata.name == claim.spec.volume_name;
        let volume = self.volumes.iter().find(named)?;
        let here = self.attachments_of(volume).find(|attachment| attachment.spec.node_name == node);
        let attach_detach = || Some(Turn::of_volume(volume, ATTACH_DETACH));
        match here {
            Some(here) if here.status.attached && !here.metadata.is_deleting() => {
                let (node, name) = (self.node(node)?, UniqueVolumeName::from_spec(&volume.spec)?.to_string());
                let told = node.status.volumes_attached.iter().any(|volume| volume.name == name);
                if told { None } else { attach_detach() }
            }
            Some(_) => Some(Turn::of_volume(volume, format!("the attacher of {DRIVER}"))),
            None => match self.attachments_of(volume).next() {
                Some(elsewhere) => Some(self.departure(volume, elsewhere).saying(node)),
                None => attach_detach(),
            },
        }
    }

    /// Until a volume is no longer attached.
    fn departure(&self, volume: &PersistentVolume, attachment: &VolumeAttachment) -> Turn {
        let node = &attachment.spec.node_name;
        let claim = volume.spec.claim_ref.as_ref().map(|claim| claim.name.as_str()).unwrap_or_default();
        let name = UniqueVolumeName::from_spec(&volume.spec).map(|name| name.to_string()).unwrap_or_default();
        // There are no containers here, so nothing runs in a pod that goes.
        let holds = |pod: &Pod| pod.node_name == *node && !pod.metadata.is_deleting();
        let whose = if attachment.metadata.is_deleting() {
            format!("the attacher of {DRIVER}")
        } else if self.users(claim).any(holds) {
            format!("the pods that use it on node {node}")
        } else if self.node(node).is_some_and(|node| node.status.volumes_in_use.contains(&name)) {
            format!("kubelet on node {node}")
        } else {
            ATTACH_DETACH.to_owned()
        };
        Turn::of_volume(volume, whose).saying(node.as_str())
    }

    /// By node.
    fn attachments_of<'a>(
        &'a self,
        volume: &'a PersistentVolume,
    ) -> impl Iterator<Item = &'a VolumeAttachment> {
        let of = |attachment: &&VolumeAttachment| {
            attachment.spec.source.persistent_volume_name.as_ref() == Some(&volume.metadata.name)
        };
        let mut all: Vec<_> = self.attachments.iter().filter(of).collect();
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

/// Until a claim is as large as asked.
fn grown(claim: &PersistentVolumeClaim) -> Option<Turn> {
    let wanted = claim.requested_storage().filter(|_| claim.status.phase == ClaimPhase::Bound)?;
    let whose = match claim.status.allocated_resource_statuses.storage {
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
    Some(Turn::of_claim(claim, whose).saying(format!("{wanted} requested")))
}
