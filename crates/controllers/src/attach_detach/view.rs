//! The inputs for one volume: which pods want it on which nodes, and where it is attached. Plain data, built from
//! objects by [`View::of`], which is pure: the controller reads its stores, simulations and explanations bring their
//! own objects.
//!
//! Nothing is stored that the objects show. So a restart loses nothing: what has a VolumeAttachment is attached, and
//! what a node's status lists may be mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_model::claim::{AccessMode, ClaimPhase};
use wharf_model::container::ContainerStatus;
use wharf_model::names::annotation::CONTROLLER_MANAGED_ATTACH;
use wharf_model::names::taint;
use wharf_model::volume::ClaimRef;
use wharf_model::{
    CSIDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, UniqueVolumeName, VolumeAttachment,
};

use super::Settings;
use super::state::AttachState;

/// The objects that concern one volume. Unrelated objects are ignored.
#[derive(Debug, Clone, Default)]
pub struct VolumeObjects {
    /// PersistentVolumes of this driver and handle.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// Claims that these reference, or that name them.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// Pods that use these claims.
    pub pods: Vec<Arc<Pod>>,
    /// VolumeAttachments of the volume.
    pub attachments: Vec<Arc<VolumeAttachment>>,
    /// The nodes of these pods and attachments, as far as they exist.
    pub nodes: Vec<Arc<Node>>,
    /// The driver's CSIDriver object.
    pub driver: Option<Arc<CSIDriver>>,
}

/// The inputs for one volume.
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    pub(super) settings: &'a Settings,
    pub(super) name: UniqueVolumeName,
    /// Whether a PersistentVolume of it is known. Without one its users are unknown, and it stays where it is.
    pub(super) volume_known: bool,
    /// Whether it may be attached to one node only.
    pub(super) exclusive: bool,
    /// The nodes to which it is attached or has to be attached, by name.
    pub(super) nodes: BTreeMap<String, NodeView>,
}

/// A volume on a node.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeView {
    /// Pods that want it attached there, the oldest first.
    pub(super) pods: Vec<Arc<Pod>>,
    /// The PersistentVolume through which these pods use it.
    pub(super) volume: Option<String>,
    /// Whether a running pod there may use it. A superset of [`pods`](Self::pods): a claim in an unexpected state is no
    /// reason to detach a volume from a pod.
    pub(super) held_by_pod: bool,
    /// Its VolumeAttachment.
    pub(super) attachment: Option<Arc<VolumeAttachment>>,
    pub(super) node: NodeStatus,
    pub(super) state: AttachState,
}

/// What one volume needs to know of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NodeStatus {
    /// Whether a Node of this name exists.
    pub(super) exists: bool,
    /// Whether the controller attaches volumes to it, rather than the node's agent.
    pub(super) managed: bool,
    /// Whether it is Ready.
    pub(super) ready: bool,
    /// Whether it has the out-of-service taint.
    pub(super) out_of_service: bool,
    /// Whether it may have the volume mounted.
    pub(super) in_use: bool,
    /// Whether its `volumesAttached` lists the volume.
    pub(super) reported: bool,
}

/// The phase of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachmentPhase {
    /// There is no VolumeAttachment: the volume is not on the node, since the object exists until the driver has
    /// detached it.
    Absent,
    /// The driver has attached it, and the VolumeAttachment is not being deleted.
    Attached,
    /// It may be on the node: not attached yet, or attaching failed.
    Uncertain,
    /// The VolumeAttachment is being deleted. The volume may be on the node.
    Detaching,
}

impl NodeView {
    pub(super) fn phase(&self) -> AttachmentPhase {
        match &self.attachment {
            None => AttachmentPhase::Absent,
            Some(attachment) if attachment.metadata.is_deleting() => AttachmentPhase::Detaching,
            Some(attachment) if attachment.status.attached => AttachmentPhase::Attached,
            Some(_) => AttachmentPhase::Uncertain,
        }
    }

    /// Whether it has to be attached here: only to nodes that leave attaching to the controller. An attach that was
    /// started continues if the Node is missing for a moment.
    pub(super) fn is_wanted(&self) -> bool {
        let managed = self.node.exists && self.node.managed;
        !self.pods.is_empty() && (managed || self.attachment.is_some())
    }
}

impl NodeStatus {
    /// The status of a node. For a deleted node, `last_in_use` has its last `volumesInUse`; if that is unknown, the
    /// volume may be in use.
    pub(super) fn of(node: Option<&Node>, volume: &str, last_in_use: Option<&BTreeSet<String>>) -> Self {
        let Some(node) = node else {
            let in_use = last_in_use.is_none_or(|last| last.contains(volume));
            return Self { in_use, ..Self::default() };
        };
        Self {
            exists: true,
            managed: node.metadata.annotations.contains_key(CONTROLLER_MANAGED_ATTACH),
            ready: node.is_ready(),
            out_of_service: node.has_taint(taint::OUT_OF_SERVICE),
            in_use: node.status.volumes_in_use.iter().any(|name| name == volume),
            reported: node.status.volumes_attached.iter().any(|attached| attached.name == volume),
        }
    }
}

impl<'a> View<'a> {
    /// Builds the view. `extra_nodes` are included even if nothing is on them.
    pub(super) fn of(
        settings: &'a Settings,
        name: UniqueVolumeName,
        objects: &VolumeObjects,
        extra_nodes: &[&str],
        mut state: impl FnMut(&str) -> AttachState,
        last_in_use: impl Fn(&str) -> Option<Arc<BTreeSet<String>>>,
    ) -> Self {
        let attachable = CSIDriver::requires_attach(objects.driver.as_deref());
        let volumes: Vec<&PersistentVolume> = objects
            .volumes
            .iter()
            .map(Arc::as_ref)
            .filter(|volume| UniqueVolumeName::from_spec(&volume.spec).as_ref() == Some(&name))
            .collect();
        let mut nodes: BTreeMap<String, NodeView> =
            extra_nodes.iter().map(|node| ((*node).to_owned(), NodeView::default())).collect();
        for attachment in &objects.attachments {
            let node = &attachment.spec.node_name;
            // Attachments that others created are ignored.
            if attachment.metadata.name == name.attachment_name(node)
                && attachment.spec.attacher == name.driver
            {
                nodes.entry(node.clone()).or_default().attachment = Some(Arc::clone(attachment));
            }
        }
        for pod in objects.pods.iter().filter(|pod| !pod.node_name.is_empty() && may_be_running(pod)) {
            for volume in volumes.iter().filter(|volume| may_use(pod, volume, &objects.claims)) {
                let node_view = nodes.entry(pod.node_name.clone()).or_default();
                node_view.held_by_pod = true;
                if attachable && wants_attached(pod, volume, &objects.claims) {
                    node_view.volume = Some(volume.metadata.name.clone());
                    node_view.pods.push(Arc::clone(pod));
                }
            }
        }
        let full_name = name.to_string();
        for (node, node_view) in &mut nodes {
            let age = |pod: &Arc<Pod>| (pod.metadata.creation_timestamp, pod.metadata.key());
            node_view.pods.sort_by_key(age);
            node_view.pods.dedup_by_key(|pod| pod.metadata.key());
            let found = objects.nodes.iter().find(|known| known.metadata.name == *node);
            node_view.node = NodeStatus::of(found.map(Arc::as_ref), &full_name, last_in_use(node).as_deref());
            node_view.state = state(node);
        }
        let exclusive = !volumes.iter().all(|volume| may_be_on_many_nodes(volume));
        Self { settings, name, volume_known: !volumes.is_empty(), exclusive, nodes }
    }

    /// The volume's name in messages: the PersistentVolume's name, or the handle.
    pub(super) fn display_name<'b>(&'b self, node_view: &'b NodeView) -> &'b str {
        node_view.volume.as_deref().unwrap_or(&self.name.handle)
    }
}

/// True unless there are access modes and none of them is for many nodes.
fn may_be_on_many_nodes(volume: &PersistentVolume) -> bool {
    let modes = &volume.spec.access_modes;
    let many = |mode| matches!(mode, &AccessMode::ReadWriteMany | &AccessMode::ReadOnlyMany);
    modes.is_empty() || modes.iter().any(many)
}

/// Whether a container of the pod may still run.
pub(super) fn may_be_running(pod: &Pod) -> bool {
    let runs = |status: &ContainerStatus| status.state.terminated.is_none() && status.state.waiting.is_none();
    let status = &pod.status;
    let mut containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .chain(&status.ephemeral_container_statuses);
    !pod.has_ended() && (!pod.metadata.is_deleting() || containers.any(runs))
}

/// Whether a pod may use a volume, by the claim's volumeName or the volume's claimRef. A claim of the referenced name
/// that has another volume does not count.
fn may_use(pod: &Pod, volume: &PersistentVolume, claims: &[Arc<PersistentVolumeClaim>]) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let referred = volume.spec.claim_ref.as_ref().filter(|claim| claim.namespace == namespace);
    pod.claims.iter().any(|name| {
        let referred = referred.filter(|claim| claim.name == *name);
        let Some(claim) = find(claims, namespace, name) else { return referred.is_some() };
        let chosen = &claim.spec.volume_name;
        let may_be = |reference: &ClaimRef| {
            chosen.is_empty() || reference.uid.is_empty() || reference.uid == claim.metadata.uid
        };
        *chosen == volume.metadata.name || referred.is_some_and(may_be)
    })
}

/// Whether a claim of the pod and the volume are bound to each other; an ephemeral volume's claim must be the pod's
/// own.
fn wants_attached(pod: &Pod, volume: &PersistentVolume, claims: &[Arc<PersistentVolumeClaim>]) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    pod.spec.volumes.iter().any(|used| {
        let Some(name) = pod.claim_name(used) else { return false };
        let Some(claim) = find(claims, namespace, &name) else { return false };
        let ephemeral = used.persistent_volume_claim.is_none();
        let bound = claim.status.phase == ClaimPhase::Bound && claim.spec.volume_name == volume.metadata.name;
        bound && volume.is_bound_to(&claim.metadata) && (!ephemeral || pod.owns(&claim.metadata))
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
