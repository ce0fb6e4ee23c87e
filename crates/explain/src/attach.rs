//! A volume's way to a node: who is to attach it, and what came of that.

use wharf_model::names::annotation::CONTROLLER_MANAGED_ATTACH;
use wharf_model::{PersistentVolume, VolumeAttachment, VolumeName};

use crate::facts::{ClaimFacts, Facts, Known};
use crate::story::{Said, Step};

const ATTACH_DETACH: &str = "the attach/detach controller";

/// Everything that is attached, or is not yet; for a volume that was asked about by itself.
pub(crate) fn of_volume(volume: &PersistentVolume, facts: &ClaimFacts, all: &Facts) -> Vec<Step> {
    let attachments = facts.attachments.iter().flatten();
    attachments.map(|attachment| of_attachment(volume, attachment, all)).collect()
}

/// The way of a volume to the node of a pod.
pub(crate) fn to_node(facts: &ClaimFacts, node_name: &str, all: &Facts) -> Vec<Step> {
    let Some(volume) = facts.volume.there() else { return Vec::new() };
    let name = format!("volume {}", volume.metadata.name);
    let Some(csi) = &volume.spec.csi else {
        return vec![Step::unknown(name, "it is not a CSI volume: how it is attached is not known")];
    };
    let attach = match &facts.driver {
        Known::There(driver) => driver.spec.attach_required.unwrap_or(true),
        // Without a description Kubernetes attaches.
        Known::Absent => true,
        Known::Unknown => {
            return vec![Step::unknown(name, format!("whether {} attaches is not known", csi.driver))];
        }
    };
    let registered = registered(&csi.driver, node_name, all);
    if !attach {
        let mut steps = vec![Step::done(name, format!("{} needs no attaching", csi.driver))];
        steps.extend(registered);
        return steps;
    }
    let Some(attachments) = &facts.attachments else {
        return vec![Step::unknown(name, "attachments could not be read")];
    };
    let mut steps = match attachments.iter().find(|attachment| attachment.spec.node_name == node_name) {
        Some(attachment) => vec![of_attachment(volume, attachment, all)],
        None => vec![not_asked(&name, volume, attachments, node_name, all)],
    };
    if steps.iter().all(|step| step.state == crate::State::Done) {
        steps.extend(known_on_node(&name, volume, node_name, all));
        steps.extend(registered);
    }
    steps
}

/// Nobody has asked for it to be attached.
fn not_asked(
    name: &str,
    volume: &PersistentVolume,
    attachments: &[VolumeAttachment],
    node_name: &str,
    all: &Facts,
) -> Step {
    let said = all.pod.there().and_then(|pod| all.warning(pod, &["FailedAttachVolume"]));
    let shared = volume.spec.access_modes.iter().any(|mode| {
        matches!(mode, wharf_model::AccessMode::ReadWriteMany | wharf_model::AccessMode::ReadOnlyMany)
    });
    if let (false, Some(other)) = (shared, attachments.first()) {
        let says =
            format!("it is still attached to node {}, and can be on one node only", other.spec.node_name);
        let whose = "the pod that uses it there, its node, and the attach/detach controller";
        return Step::waits(name, says, whose).after(said);
    }
    if let Some(node) = all.node.there()
        && node.metadata.annotation(CONTROLLER_MANAGED_ATTACH) != Some("true")
    {
        let says = format!(
            "node {node_name} lacks the annotation {CONTROLLER_MANAGED_ATTACH}: nothing is ever attached to it"
        );
        return Step::waits(name, says, "the node's agent (kubelet)");
    }
    Step::waits(name, format!("it is to be attached to node {node_name}"), ATTACH_DETACH).after(said)
}

fn of_attachment(volume: &PersistentVolume, attachment: &VolumeAttachment, all: &Facts) -> Step {
    let node = &attachment.spec.node_name;
    let name = format!("volume {}", volume.metadata.name);
    let attacher = format!("the attacher of {}", attachment.spec.attacher);
    let status = &attachment.status;
    let said = |error: &Option<wharf_model::attachment::VolumeError>, by: &str| {
        let error = error.as_ref()?;
        Some(Said { by: by.to_owned(), text: error.message.clone(), at: error.time })
    };
    let attempt = || all.attempt("attacher", &attachment.metadata.name);
    if attachment.metadata.is_deleting() {
        return Step::waits(name, format!("it is being detached from node {node}"), attacher)
            .since(attachment.metadata.deletion_timestamp)
            .after(attempt().or_else(|| said(&status.detach_error, "detachError")));
    }
    match status.attached {
        true => Step::done(name, format!("attached to node {node}")),
        false => Step::waits(name, format!("it is to be attached to node {node}"), attacher)
            .since(attachment.metadata.creation_timestamp)
            .after(attempt().or_else(|| said(&status.attach_error, "attachError"))),
    }
}

/// Whether the node was told that the volume is attached; its agent waits for that.
fn known_on_node(name: &str, volume: &PersistentVolume, node_name: &str, all: &Facts) -> Option<Step> {
    let (node, unique) = (all.node.there()?, VolumeName::of(&volume.spec)?.to_string());
    let told = node.status.volumes_attached.iter().any(|attached| attached.name == unique);
    (!told).then(|| {
        let says =
            format!("node {node_name} has not been told yet that it is attached (status.volumesAttached)");
        Step::waits(name, says, ATTACH_DETACH)
    })
}

/// Whether the driver is there on the node.
fn registered(driver: &str, node_name: &str, all: &Facts) -> Option<Step> {
    let name = format!("driver {driver}");
    match &all.csi_node {
        Known::There(node) if node.driver(driver).is_some() => None,
        Known::There(_) | Known::Absent => {
            let says = format!("it is not registered on node {node_name}");
            Some(Step::waits(name, says, "the driver on that node, and its registrar"))
        }
        Known::Unknown => {
            Some(Step::unknown(name, format!("whether it is registered on node {node_name} is not known")))
        }
    }
}
