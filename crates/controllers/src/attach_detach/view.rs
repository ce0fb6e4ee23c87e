//! What is to be known of one volume: who wants it where, and where it is. Plain data, made of objects by
//! [`View::of`], which is pure: the controller reads its stores, simulations and explanations bring their own.
//!
//! Nothing is kept that the objects say themselves. So a restart forgets nothing: what is attached is what has a
//! VolumeAttachment, what a node may mount is what its status lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_model::claim::{AccessMode, ClaimPhase};
use wharf_model::names::annotation::CONTROLLER_MANAGED_ATTACH;
use wharf_model::volume::ClaimRef;
use wharf_model::whole::container::ContainerStatus;
use wharf_model::whole::{Node, Pod};
use wharf_model::{CSIDriver, PersistentVolume, PersistentVolumeClaim, VolumeAttachment, VolumeName};

use super::Settings;
use super::memory::Memory;

/// The taint by which an operator says that a node is shut down and nothing on it runs.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The objects that have to do with one volume. More than that does no harm.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// PersistentVolumes of this driver and handle.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// Claims that they are bound to, or that name them.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// Pods that use these claims.
    pub pods: Vec<Arc<Pod>>,
    /// VolumeAttachments of the volume.
    pub attachments: Vec<Arc<VolumeAttachment>>,
    /// The nodes of these pods and attachments, as far as they exist.
    pub nodes: Vec<Arc<Node>>,
    /// What Kubernetes was told of the driver.
    pub driver: Option<Arc<CSIDriver>>,
}

/// One volume.
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    /// What was chosen.
    pub(super) rules: &'a Settings,
    /// The volume.
    pub(super) name: VolumeName,
    /// Whether a PersistentVolume of it is known. Without, nobody can say who wants it, and it stays where it is.
    pub(super) known: bool,
    /// Whether it may be on one node only.
    pub(super) exclusive: bool,
    /// Where it is or is to be, by node.
    pub(super) places: BTreeMap<String, Place>,
}

/// A volume on a node.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    /// Pods there that want it attached, the oldest first.
    pub(super) pods: Vec<Arc<Pod>>,
    /// The PersistentVolume that these pods reach it by.
    pub(super) volume: Option<String>,
    /// Whether a pod that runs there may have to do with it. More than [`pods`](Self::pods): a claim that is not
    /// what it should be is no reason to take a volume from a pod.
    pub(super) held: bool,
    /// Its VolumeAttachment.
    pub(super) attachment: Option<Arc<VolumeAttachment>>,
    /// The node.
    pub(super) machine: Machine,
    /// What was said and tried.
    pub(super) memory: Memory,
}

/// A node, as far as it matters to one volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// Whether there is a Node of this name.
    pub(super) there: bool,
    /// Whether attaching is the controller's business.
    pub(super) managed: bool,
    /// Whether it says that it is well.
    pub(super) ready: bool,
    /// Whether somebody says that it is shut down.
    pub(super) out_of_service: bool,
    /// Whether it may have the volume mounted.
    pub(super) in_use: bool,
    /// Whether it was told that the volume is attached.
    pub(super) reported: bool,
}

/// How far an attachment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// There is none: the volume is not on the node, since a VolumeAttachment stays until the driver has detached.
    Absent,
    /// The driver has attached it, and nobody asked for the end of it.
    Attached,
    /// It may be on the node or not: not attached yet, or attaching failed.
    Uncertain,
    /// Its deletion was asked for. It may be on the node or not.
    Going,
}

impl Place {
    pub(super) fn standing(&self) -> Standing {
        match &self.attachment {
            None => Standing::Absent,
            Some(attachment) if attachment.metadata.is_deleting() => Standing::Going,
            Some(attachment) if attachment.status.attached => Standing::Attached,
            Some(_) => Standing::Uncertain,
        }
    }

    /// Whether it is to be attached here: only nodes that say that it is our business. What is
    /// begun goes on if the Node is away for a moment.
    pub(super) fn is_wanted(&self) -> bool {
        let ours = self.machine.there && self.machine.managed;
        !self.pods.is_empty() && (ours || self.attachment.is_some())
    }
}

impl Machine {
    /// A node. Of one that is gone, the last known volumes in use are given; if nobody knows, the volume may be in
    /// use.
    pub(super) fn of(node: Option<&Node>, volume: &str, in_use_last: Option<&BTreeSet<String>>) -> Self {
        let Some(node) = node else {
            let in_use = in_use_last.is_none_or(|last| last.contains(volume));
            return Self { in_use, ..Self::default() };
        };
        Self {
            there: true,
            managed: node.metadata.annotations.contains_key(CONTROLLER_MANAGED_ATTACH),
            ready: node.is_ready(),
            out_of_service: node.has_taint(OUT_OF_SERVICE),
            in_use: node.status.volumes_in_use.iter().any(|name| name == volume),
            reported: node.status.volumes_attached.iter().any(|attached| attached.name == volume),
        }
    }
}

impl<'a> View<'a> {
    /// Puts together what is known. `besides` are nodes of interest on which there may be nothing.
    pub(super) fn of(
        rules: &'a Settings,
        name: VolumeName,
        known: &Known,
        besides: &[&str],
        mut memory: impl FnMut(&str) -> Memory,
        in_use_last: impl Fn(&str) -> Option<Arc<BTreeSet<String>>>,
    ) -> Self {
        let attachable =
            known.driver.as_ref().is_none_or(|driver| driver.spec.attach_required != Some(false));
        let volumes: Vec<&PersistentVolume> = known
            .volumes
            .iter()
            .map(Arc::as_ref)
            .filter(|volume| VolumeName::of(&volume.spec).as_ref() == Some(&name))
            .collect();
        let mut places: BTreeMap<String, Place> =
            besides.iter().map(|node| ((*node).to_owned(), Place::default())).collect();
        for attachment in &known.attachments {
            let node = &attachment.spec.node_name;
            // Others may have attachments of their own making. Those are theirs to see to.
            if attachment.metadata.name == name.attachment(node) && attachment.spec.attacher == name.driver {
                places.entry(node.clone()).or_default().attachment = Some(Arc::clone(attachment));
            }
        }
        for pod in known.pods.iter().filter(|pod| !pod.spec.node_name.is_empty() && is_live(pod)) {
            for volume in volumes.iter().filter(|volume| holds(pod, volume, &known.claims)) {
                let place = places.entry(pod.spec.node_name.clone()).or_default();
                place.held = true;
                if attachable && wants(pod, volume, &known.claims) {
                    place.volume = Some(volume.metadata.name.clone());
                    place.pods.push(Arc::clone(pod));
                }
            }
        }
        let full_name = name.to_string();
        for (node, place) in &mut places {
            let age = |pod: &Arc<Pod>| (pod.metadata.creation_timestamp, pod.metadata.key());
            place.pods.sort_by_key(age);
            place.pods.dedup_by_key(|pod| pod.metadata.key());
            let there = known.nodes.iter().find(|known| known.metadata.name == *node);
            place.machine = Machine::of(there.map(Arc::as_ref), &full_name, in_use_last(node).as_deref());
            place.memory = memory(node);
        }
        let exclusive = !volumes.iter().all(|volume| may_be_on_many_nodes(volume));
        Self { rules, name, known: !volumes.is_empty(), exclusive, places }
    }

    /// The name of the volume for people: that of the PersistentVolume, or the handle.
    pub(super) fn title<'b>(&'b self, place: &'b Place) -> &'b str {
        place.volume.as_deref().unwrap_or(&self.name.handle)
    }
}

/// Allowed unless there are access modes and none of them is for many nodes.
fn may_be_on_many_nodes(volume: &PersistentVolume) -> bool {
    let modes = &volume.spec.access_modes;
    let many = |mode| matches!(mode, &AccessMode::ReadWriteMany | &AccessMode::ReadOnlyMany);
    modes.is_empty() || modes.iter().any(many)
}

/// Whether anything of the pod may still run.
pub(super) fn is_live(pod: &Pod) -> bool {
    let runs = |status: &ContainerStatus| status.state.terminated.is_none() && status.state.waiting.is_none();
    let status = &pod.status;
    let mut containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .chain(&status.ephemeral_container_statuses);
    !pod.has_ended() && (!pod.metadata.is_deleting() || containers.any(runs))
}

/// Whether a pod may have to do with a volume: by name, by either end of the binding. A namesake of the claim that the
/// volume was for, with a volume of its own, is somebody else.
fn holds(pod: &Pod, volume: &PersistentVolume, claims: &[Arc<PersistentVolumeClaim>]) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let referred = volume.spec.claim_ref.as_ref().filter(|claim| claim.namespace == namespace);
    pod.claims().any(|name| {
        let referred = referred.filter(|claim| claim.name == name);
        let Some(claim) = find(claims, namespace, &name) else { return referred.is_some() };
        let chosen = &claim.spec.volume_name;
        let may_be = |reference: &ClaimRef| {
            chosen.is_empty() || reference.uid.is_empty() || reference.uid == claim.metadata.uid
        };
        *chosen == volume.metadata.name || referred.is_some_and(may_be)
    })
}

/// Whether a pod's claim is bound to a volume by both ends, and is the pod's own if it was made for it.
fn wants(pod: &Pod, volume: &PersistentVolume, claims: &[Arc<PersistentVolumeClaim>]) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    pod.spec.volumes.iter().any(|used| {
        let Some(name) = pod.claim_of(used) else { return false };
        let Some(claim) = find(claims, namespace, &name) else { return false };
        let own =
            |owner: &wharf_model::OwnerRef| owner.controller == Some(true) && owner.uid == pod.metadata.uid;
        let made = used.persistent_volume_claim.is_none();
        let bound = claim.status.phase == ClaimPhase::Bound && claim.spec.volume_name == volume.metadata.name;
        bound
            && volume.is_bound_to(&claim.metadata)
            && (!made || claim.metadata.owner_references.iter().any(own))
    })
}

fn find<'a>(
    claims: &'a [Arc<PersistentVolumeClaim>],
    namespace: &str,
    name: &str,
) -> Option<&'a PersistentVolumeClaim> {
    let same = |claim: &&Arc<PersistentVolumeClaim>| {
        claim.metadata.name == name && claim.metadata.namespace.as_deref() == Some(namespace)
    };
    claims.iter().find(same).map(Arc::as_ref)
}

#[cfg(test)]
mod tests;
