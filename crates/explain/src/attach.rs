//! The steps of a volume to nodes and away from them: what the attach/detach controller's rules wait for, and which
//! component has to act.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_controllers::attach_detach::{
    self, AttachStatus, DetachStatus, Settings, attach_status, detach_status,
};
use wharf_model::Pod;
use wharf_model::volume::VolumePhase;
use wharf_model::{CSIDriver, PersistentVolume, Time, UniqueVolumeName, VolumeAttachment};

use crate::explanation::{ReportedError, Step};
use crate::facts::{ClaimFacts, Facts, Lookup};

const ATTACH_DETACH: &str = "the attach/detach controller";

/// The steps of a volume to the node of a pod.
pub(crate) fn to_node(facts: &ClaimFacts, node: &str, all: &Facts) -> Vec<Step> {
    match VolumePath::of(facts, all) {
        None => Vec::new(),
        Some(Err(unknown)) => vec![*unknown],
        Some(Ok(way)) => {
            let steps = way.at(node, all);
            match steps.is_empty() {
                // The pod exists, but by the controller's rules it does not require the volume attached.
                true => {
                    vec![Step::waits(way.title(), AttachStatus::Unwanted.to_string(), crate::claim::BINDER)]
                }
                false => steps,
            }
        }
    }
}

/// The steps of a volume to every node with a pod that uses it, and away from every other node.
pub(crate) fn to_all_nodes(facts: &ClaimFacts, all: &Facts) -> Vec<Step> {
    let way = match VolumePath::of(facts, all) {
        None => return Vec::new(),
        Some(Err(unknown)) => return vec![*unknown],
        Some(Ok(way)) => way,
    };
    nodes(facts).into_iter().flat_map(|node| way.at(node, all)).collect()
}

/// The nodes with pods that use a volume, and those it is attached to.
pub(crate) fn nodes(facts: &ClaimFacts) -> BTreeSet<&str> {
    let placed = facts.pods.iter().flatten().filter(|pod| !pod.has_ended());
    let pods = placed.map(|pod| pod.node_name.as_str()).filter(|node| !node.is_empty());
    let attachments = facts.attachments.iter().flatten();
    pods.chain(attachments.map(|attachment| attachment.spec.node_name.as_str())).collect()
}

/// A volume, with the objects that the attach/detach rules read.
struct VolumePath<'a> {
    volume: &'a PersistentVolume,
    name: UniqueVolumeName,
    objects: attach_detach::VolumeObjects,
}

impl<'a> VolumePath<'a> {
    /// `None` if there is no volume, or it is not a CSI volume. The error is a step that names what is unknown.
    fn of(facts: &'a ClaimFacts, all: &Facts) -> Option<Result<Self, Box<Step>>> {
        let volume = match &facts.volume {
            Lookup::Found(volume) => volume,
            // The claim's steps report it.
            Lookup::Absent => return None,
            Lookup::Unknown => {
                let name = &facts.claim.found()?.spec.volume_name;
                let unread = || Err(Box::new(Step::unknown(format!("volume {name}"), "could not be read")));
                return (!name.is_empty()).then(unread);
            }
        };
        let title = format!("volume {}", volume.metadata.name);
        let unknown = |message: String| Some(Err(Box::new(Step::unknown(title, message))));
        // Only CSI volumes are attached here; for others only the state of the pod is known.
        let name = UniqueVolumeName::from_spec(&volume.spec)?;
        let driver = match &facts.driver {
            Lookup::Found(driver) => Some(Arc::new(driver.clone())),
            // Without a CSIDriver object Kubernetes attaches.
            Lookup::Absent => None,
            Lookup::Unknown => {
                return unknown(format!("whether {} requires attach is unknown", name.driver));
            }
        };
        let (Some(attachments), Some(pods)) = (&facts.attachments, &facts.pods) else {
            return unknown("VolumeAttachments or pods could not be read".to_owned());
        };
        let mut machines = Vec::new();
        for node in nodes(facts) {
            match all.nodes.get(node).map(|node| &node.node) {
                Some(Lookup::Found(machine)) => machines.push(Arc::new(machine.clone())),
                Some(Lookup::Absent) => {}
                None | Some(Lookup::Unknown) => return unknown(format!("node {node} could not be read")),
            }
        }
        let objects = attach_detach::VolumeObjects {
            volumes: vec![Arc::new(volume.clone())],
            claims: facts.claim.found().cloned().map(Arc::new).into_iter().collect(),
            pods: pods.iter().cloned().map(Arc::new).collect(),
            attachments: attachments.iter().cloned().map(Arc::new).collect(),
            nodes: machines,
            driver,
        };
        Some(Ok(Self { volume, name, objects }))
    }

    fn title(&self) -> String {
        format!("volume {}", self.volume.metadata.name)
    }

    /// The steps of the volume to a node or away from it; empty if there are none.
    fn at(&self, node: &str, all: &Facts) -> Vec<Step> {
        let settings = Settings::default();
        let attaches = CSIDriver::requires_attach(self.objects.driver.as_deref());
        let registered = || registered(&self.name.driver, node, all);
        if !attaches {
            let mut steps =
                vec![Step::done(self.title(), format!("{} does not require attach", self.name.driver))];
            steps.extend(registered());
            return steps;
        }
        match attach_status(&self.name, node, &self.objects, &settings) {
            AttachStatus::Attached => {
                let mut steps = vec![Step::done(self.title(), format!("attached to node {node}"))];
                steps.extend(registered());
                steps
            }
            AttachStatus::Unwanted => {
                let leaving = detach_status(&self.name, node, &self.objects, &settings);
                self.detaching(node, &leaving, all).into_iter().collect()
            }
            waits => vec![self.attaching(node, &waits, all)],
        }
    }

    fn attaching(&self, node: &str, waits: &AttachStatus, all: &Facts) -> Step {
        let driver = &self.name.driver;
        let (waiting_for, attachment) = match waits {
            AttachStatus::Attached | AttachStatus::Unwanted => (String::new(), None),
            AttachStatus::NodeMissing => (format!("node {node} to register, or you to delete the pod"), None),
            AttachStatus::NodeUnmanaged => (format!("kubelet on node {node}"), None),
            AttachStatus::NotRequested { .. } | AttachStatus::NodeStatus => (ATTACH_DETACH.to_owned(), None),
            AttachStatus::Attacher { .. } | AttachStatus::Failed { .. } => {
                (format!("the attacher of {driver}"), self.attachment(node))
            }
            AttachStatus::EarlierAttachment(leaving) => {
                (self.detach_owner(node, leaving), self.attachment(node))
            }
            AttachStatus::OtherNodes(blockers) => {
                let first = blockers.first();
                let waiting_for =
                    first.map(|other| self.detach_owner(&other.node, &other.leaving)).unwrap_or_default();
                (waiting_for, first.and_then(|other| self.attachment(&other.node)))
            }
        };
        let message = match waits {
            AttachStatus::NodeStatus => {
                format!("attached to node {node}, but not listed in its status.volumesAttached yet")
            }
            waits => format!("attaching to node {node}: {waits}"),
        };
        let error = attachment.and_then(|attachment| attacher_error(attachment, all)).or_else(|| {
            // The events about the pods.
            self.users(node).find_map(|pod| all.last_warning(pod, &["FailedAttachVolume"]))
        });
        let scheduled = self.users(node).filter_map(scheduled_at).min();
        let since = attachment.map(|attachment| {
            attachment.metadata.deletion_timestamp.or(attachment.metadata.creation_timestamp)
        });
        Step::waits(self.title(), message, waiting_for).since(since.unwrap_or(scheduled)).with_error(error)
    }

    fn detaching(&self, node: &str, leaving: &DetachStatus, all: &Facts) -> Option<Step> {
        let attachment = self.attachment(node)?;
        // A volume that is to be deleted is detached even so.
        let released = self.volume.status.phase == VolumePhase::Released;
        if matches!(leaving, DetachStatus::Detached)
            || matches!(leaving, DetachStatus::UsedByPods) && !released
        {
            return Some(Step::done(self.title(), format!("attached to node {node}, where pods may use it")));
        }
        let message = format!("detaching from node {node}: {leaving}");
        let step = Step::waits(self.title(), message, self.detach_owner(node, leaving));
        let error = attacher_error(attachment, all).or_else(|| {
            let unmounting = matches!(leaving, DetachStatus::InUse);
            unmounting.then(|| all.unmount_error(&self.volume.metadata.name)).flatten()
        });
        Some(step.since(attachment.metadata.deletion_timestamp).with_error(error))
    }

    /// Who has to act until the volume is detached from a node.
    fn detach_owner(&self, node: &str, leaving: &DetachStatus) -> String {
        match leaving {
            DetachStatus::Detached => String::new(),
            DetachStatus::UsedByPods => format!("the pods that use it on node {node}, or you to delete them"),
            DetachStatus::InUse => format!("kubelet on node {node} to unmount it"),
            DetachStatus::NodeNotReady { .. } => format!("node {node}, which is not ready, or you"),
            DetachStatus::NodeStatus | DetachStatus::NotRequested { .. } => ATTACH_DETACH.to_owned(),
            DetachStatus::Attacher { driver, .. } => format!("the attacher of {driver}"),
            DetachStatus::Failed { .. } => format!("the attacher of {}", self.name.driver),
            DetachStatus::VolumeUnknown => {
                "you to recreate the PersistentVolume, or detach it manually".to_owned()
            }
        }
    }

    fn attachment(&self, node: &str) -> Option<&VolumeAttachment> {
        let name = self.name.attachment_name(node);
        let of = |attachment: &&Arc<VolumeAttachment>| attachment.metadata.name == name;
        self.objects.attachments.iter().find(of).map(Arc::as_ref)
    }

    fn users<'b>(&'b self, node: &'b str) -> impl Iterator<Item = &'b Pod> + 'b {
        let here = move |pod: &&Pod| pod.node_name == node && !pod.has_ended();
        self.objects.pods.iter().map(Arc::as_ref).filter(here)
    }
}

/// The attacher's last error: from the sidecar's attempts, or else from the VolumeAttachment.
fn attacher_error(attachment: &VolumeAttachment, all: &Facts) -> Option<ReportedError> {
    let (error, field) = match attachment.metadata.is_deleting() {
        true => (&attachment.status.detach_error, "detachError"),
        false => (&attachment.status.attach_error, "attachError"),
    };
    let written = || {
        let error = error.as_ref()?;
        Some(ReportedError { source: field.to_owned(), text: error.message.clone(), at: error.time })
    };
    all.attempt_error("attacher", &attachment.metadata.name).or_else(written)
}

/// When a pod was scheduled.
fn scheduled_at(pod: &Pod) -> Option<Time> {
    let condition = pod.status.conditions.iter().find(|condition| condition.kind == "PodScheduled");
    condition.and_then(|condition| condition.last_transition_time).or(pod.metadata.creation_timestamp)
}

/// The step for a driver that is not registered on the node; `None` if it is, or if the claim has no CSI volume.
pub(crate) fn unregistered_driver(facts: &ClaimFacts, node: &str, all: &Facts) -> Option<Step> {
    let csi = facts.volume.found()?.spec.csi.as_ref()?;
    registered(&csi.driver, node, all)
}

fn registered(driver: &str, node: &str, all: &Facts) -> Option<Step> {
    let name = format!("driver {driver}");
    match all.nodes.get(node).map(|node| &node.csi_node) {
        Some(Lookup::Found(csi_node)) if csi_node.driver(driver).is_some() => None,
        Some(Lookup::Found(_) | Lookup::Absent) => {
            let message = format!("not registered on node {node}");
            Some(Step::waits(name, message, "the driver on that node and its registrar"))
        }
        None | Some(Lookup::Unknown) => {
            Some(Step::unknown(name, format!("whether it is registered on node {node} is unknown")))
        }
    }
}
