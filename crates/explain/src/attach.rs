//! A volume's way to nodes and away from them: what the attach/detach controller's own rules say that it waits for, and
//! whose turn that makes it.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_controllers::attach_detach::{self, Leaving, Settings, Waits, leaving, waits_for};
use wharf_model::volume::VolumePhase;
use wharf_model::whole::Pod;
use wharf_model::{PersistentVolume, Time, VolumeAttachment, VolumeName};

use crate::facts::{ClaimFacts, Facts, Known};
use crate::story::{Said, Step};

const ATTACH_DETACH: &str = "the attach/detach controller";

/// The way of a volume to the node of a pod.
pub(crate) fn to_node(facts: &ClaimFacts, node: &str, all: &Facts, now: Time) -> Vec<Step> {
    match Way::of(facts, all) {
        None => Vec::new(),
        Some(Err(unknown)) => vec![*unknown],
        Some(Ok(way)) => {
            let steps = way.at(node, all, now);
            match steps.is_empty() {
                // The pod is there, and the rules say that it is no reason to attach.
                true => vec![Step::waits(way.title(), Waits::Unwanted.to_string(), crate::claim::BINDER)],
                false => steps,
            }
        }
    }
}

/// Its way to every node that has a pod for it, and from every other.
pub(crate) fn everywhere(facts: &ClaimFacts, all: &Facts, now: Time) -> Vec<Step> {
    let way = match Way::of(facts, all) {
        None => return Vec::new(),
        Some(Err(unknown)) => return vec![*unknown],
        Some(Ok(way)) => way,
    };
    nodes(facts).into_iter().flat_map(|node| way.at(node, all, now)).collect()
}

/// Nodes that have something to do with a volume.
pub(crate) fn nodes(facts: &ClaimFacts) -> BTreeSet<&str> {
    let placed = facts.pods.iter().flatten().filter(|pod| !pod.has_ended());
    let pods = placed.map(|pod| pod.spec.node_name.as_str()).filter(|node| !node.is_empty());
    let attachments = facts.attachments.iter().flatten();
    pods.chain(attachments.map(|attachment| attachment.spec.node_name.as_str())).collect()
}

/// A volume, with all that the rules ask for.
struct Way<'a> {
    volume: &'a PersistentVolume,
    name: VolumeName,
    objects: attach_detach::Known,
}

impl<'a> Way<'a> {
    /// `None`: there is no volume, or none of a driver. An error is the step that says what is not known.
    fn of(facts: &'a ClaimFacts, all: &Facts) -> Option<Result<Self, Box<Step>>> {
        let volume = match &facts.volume {
            Known::There(volume) => volume,
            // That it is gone is said of its claim.
            Known::Absent => return None,
            Known::Unknown => {
                let name = &facts.claim.there()?.spec.volume_name;
                let unread =
                    || Err(Box::new(Step::unknown(format!("volume {name}"), "it could not be read")));
                return (!name.is_empty()).then(unread);
            }
        };
        let title = format!("volume {}", volume.metadata.name);
        let unknown = |says: String| Some(Err(Box::new(Step::unknown(title, says))));
        // What is no driver's is nobody's to attach that we know of; its node says what it makes of it.
        let name = VolumeName::of(&volume.spec)?;
        let driver = match &facts.driver {
            Known::There(driver) => Some(Arc::new(driver.clone())),
            // Without a description Kubernetes attaches.
            Known::Absent => None,
            Known::Unknown => return unknown(format!("whether {} attaches is not known", name.driver)),
        };
        let (Some(attachments), Some(pods)) = (&facts.attachments, &facts.pods) else {
            return unknown("attachments or pods could not be read".to_owned());
        };
        let mut machines = Vec::new();
        for node in nodes(facts) {
            match all.nodes.get(node).map(|node| &node.node) {
                Some(Known::There(machine)) => machines.push(Arc::new(machine.clone())),
                Some(Known::Absent) => {}
                None | Some(Known::Unknown) => return unknown(format!("node {node} could not be read")),
            }
        }
        let objects = attach_detach::Known {
            volumes: vec![Arc::new(volume.clone())],
            claims: facts.claim.there().cloned().map(Arc::new).into_iter().collect(),
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

    /// Its way to a node or from it; nothing, if it has none.
    fn at(&self, node: &str, all: &Facts, now: Time) -> Vec<Step> {
        let settings = Settings::default();
        let attaches =
            self.objects.driver.as_ref().is_none_or(|driver| driver.spec.attach_required.unwrap_or(true));
        let registered = || registered(&self.name.driver, node, all);
        if !attaches {
            let mut steps =
                vec![Step::done(self.title(), format!("{} needs no attaching", self.name.driver))];
            steps.extend(registered());
            return steps;
        }
        match waits_for(&self.name, node, &self.objects, &settings, now) {
            Waits::Nothing => {
                let mut steps = vec![Step::done(self.title(), format!("attached to node {node}"))];
                steps.extend(registered());
                steps
            }
            Waits::Unwanted => {
                let leaving = leaving(&self.name, node, &self.objects, &settings, now);
                self.leaves(node, &leaving, all).into_iter().collect()
            }
            waits => vec![self.comes(node, &waits, all)],
        }
    }

    fn comes(&self, node: &str, waits: &Waits, all: &Facts) -> Step {
        let driver = &self.name.driver;
        let (whose, by) = match waits {
            Waits::Nothing | Waits::Unwanted => (String::new(), None),
            Waits::NodeMissing => {
                (format!("node {node}, which has to register; or you: delete the pod"), None)
            }
            Waits::NodeUnmanaged => (format!("node {node} (kubelet)"), None),
            Waits::Request { .. } | Waits::Report => (ATTACH_DETACH.to_owned(), None),
            Waits::Attacher { .. } | Waits::Failed { .. } => {
                (format!("the attacher of {driver}"), self.attachment(node))
            }
            Waits::Leaving(leaving) => (self.turn(node, leaving), self.attachment(node)),
            Waits::Others(blockers) => {
                let first = blockers.first();
                let whose = first.map(|other| self.turn(&other.node, &other.leaving)).unwrap_or_default();
                (whose, first.and_then(|other| self.attachment(&other.node)))
            }
        };
        let says = match waits {
            Waits::Report => {
                format!("attached to node {node}, which was not told yet (status.volumesAttached)")
            }
            waits => format!("it is to be attached to node {node}: {waits}"),
        };
        let error = by.and_then(|attachment| said(attachment, all)).or_else(|| {
            // What the pods were told.
            self.users(node).find_map(|pod| all.warning(pod, &["FailedAttachVolume"]))
        });
        let placed = self.users(node).filter_map(placed).min();
        let since = by.map(|by| by.metadata.deletion_timestamp.or(by.metadata.creation_timestamp));
        Step::waits(self.title(), says, whose).since(since.unwrap_or(placed)).after(error)
    }

    fn leaves(&self, node: &str, leaving: &Leaving, all: &Facts) -> Option<Step> {
        let attachment = self.attachment(node)?;
        // A volume that is to be deleted has to leave all the same.
        let released = self.volume.status.phase == VolumePhase::Released;
        if matches!(leaving, Leaving::Nothing) || matches!(leaving, Leaving::Pods) && !released {
            return Some(Step::done(self.title(), format!("attached to node {node}, where pods may use it")));
        }
        let says = format!("it is to leave node {node}: {leaving}");
        let step = Step::waits(self.title(), says, self.turn(node, leaving));
        let error = said(attachment, all).or_else(|| {
            let unmounting = matches!(leaving, Leaving::InUse);
            unmounting.then(|| all.unmounting(&self.volume.metadata.name)).flatten()
        });
        Some(step.since(attachment.metadata.deletion_timestamp).after(error))
    }

    /// Whose turn it is until the volume has left a node.
    fn turn(&self, node: &str, leaving: &Leaving) -> String {
        match leaving {
            Leaving::Nothing => String::new(),
            Leaving::Pods => format!("the pods that use it on node {node}, or you: delete them"),
            Leaving::InUse => format!("node {node} (kubelet), which has to unmount it"),
            Leaving::Unwell { .. } => format!("node {node}, which is not well, or you"),
            Leaving::Report | Leaving::Request { .. } => ATTACH_DETACH.to_owned(),
            Leaving::Attacher { driver, .. } => format!("the attacher of {driver}"),
            Leaving::Failed { .. } => format!("the attacher of {}", self.name.driver),
            Leaving::VolumeUnknown => "you: make the PersistentVolume anew, or detach it by hand".to_owned(),
        }
    }

    fn attachment(&self, node: &str) -> Option<&VolumeAttachment> {
        let name = self.name.attachment(node);
        let of = |attachment: &&Arc<VolumeAttachment>| attachment.metadata.name == name;
        self.objects.attachments.iter().find(of).map(Arc::as_ref)
    }

    fn users<'b>(&'b self, node: &'b str) -> impl Iterator<Item = &'b Pod> + 'b {
        let here = move |pod: &&Pod| pod.spec.node_name == node && !pod.has_ended();
        self.objects.pods.iter().map(Arc::as_ref).filter(here)
    }
}

/// What the attacher said last: in the sidecar's own words, or the object's.
fn said(attachment: &VolumeAttachment, all: &Facts) -> Option<Said> {
    let (error, by) = match attachment.metadata.is_deleting() {
        true => (&attachment.status.detach_error, "detachError"),
        false => (&attachment.status.attach_error, "attachError"),
    };
    let written = || {
        let error = error.as_ref()?;
        Some(Said { by: by.to_owned(), text: error.message.clone(), at: error.time })
    };
    all.attempt("attacher", &attachment.metadata.name).or_else(written)
}

/// Since when a pod has its node.
fn placed(pod: &Pod) -> Option<Time> {
    let condition = pod.status.conditions.iter().find(|condition| condition.kind == "PodScheduled");
    condition.and_then(|condition| condition.last_transition_time).or(pod.metadata.creation_timestamp)
}

/// Whether the driver of a claim's volume is there on the node; nothing, if it is, or if there is none.
pub(crate) fn driver_on(facts: &ClaimFacts, node: &str, all: &Facts) -> Option<Step> {
    let csi = facts.volume.there()?.spec.csi.as_ref()?;
    registered(&csi.driver, node, all)
}

fn registered(driver: &str, node: &str, all: &Facts) -> Option<Step> {
    let name = format!("driver {driver}");
    match all.nodes.get(node).map(|node| &node.csi_node) {
        Some(Known::There(csi_node)) if csi_node.driver(driver).is_some() => None,
        Some(Known::There(_) | Known::Absent) => {
            let says = format!("it is not registered on node {node}");
            Some(Step::waits(name, says, "the driver on that node, and its registrar"))
        }
        None | Some(Known::Unknown) => {
            Some(Step::unknown(name, format!("whether it is registered on node {node} is not known")))
        }
    }
}
