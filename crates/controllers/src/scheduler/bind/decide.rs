//! The next step of a binding: volumes are written first, then claims; then the binding waits until all claims are
//! bound, before the pod is bound to its node. Pure; upstream's bindAPIUpdate and checkBindings.
//!
//! If a write was undone, the binder or the provisioner gave up on it: the pod is rescheduled.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_model::matching::is_reserved_for;
use wharf_model::names::annotation;
use wharf_model::topology::is_accessible_from;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim};

use crate::scheduler::claims::is_bound;

/// A binding and the current state of its objects. Objects with another UID than the planned ones are absent.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct View {
    /// Whether the pod still waits for its node.
    pub(in crate::scheduler) pod_waiting: bool,
    pub(in crate::scheduler) node: String,
    /// The node's labels; `None` if it was deleted.
    pub(in crate::scheduler) labels: Option<BTreeMap<String, String>>,
    pub(in crate::scheduler) bindings: Vec<Binding>,
    pub(in crate::scheduler) provisions: Vec<Provision>,
}

/// An existing volume for a claim.
#[derive(Debug)]
pub(in crate::scheduler) struct Binding {
    pub(in crate::scheduler) volume_name: String,
    pub(in crate::scheduler) claim_key: Key,
    pub(in crate::scheduler) volume: Option<Arc<PersistentVolume>>,
    pub(in crate::scheduler) claim: Option<Arc<PersistentVolumeClaim>>,
    pub(in crate::scheduler) completed: bool,
}

/// A claim for which a volume is provisioned.
#[derive(Debug)]
pub(in crate::scheduler) struct Provision {
    pub(in crate::scheduler) claim_key: Key,
    pub(in crate::scheduler) claim: Option<Arc<PersistentVolumeClaim>>,
    /// The volume that the claim names.
    pub(in crate::scheduler) volume: Option<Arc<PersistentVolume>>,
    pub(in crate::scheduler) completed: bool,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::scheduler) enum Step {
    /// Write the claimRef of this binding's volume.
    PreBind(usize),
    /// Write the selected node of this provision's claim.
    SelectNode(usize),
    /// This item is already as planned.
    MarkCompleted(Item),
    /// Wait for the binder and the provisioner.
    Wait,
    /// All volumes are bound.
    Done,
    /// The pod no longer waits.
    PodGone,
    /// The binding failed.
    Fail(String),
}

/// An item of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::scheduler) enum Item {
    Binding(usize),
    Provision(usize),
}

/// The next step.
pub(in crate::scheduler) fn decide(view: &View) -> Step {
    if !view.pod_waiting {
        return Step::PodGone;
    }
    let incomplete = view.bindings.iter().position(|binding| !binding.completed);
    if let Some(index) = incomplete {
        return pre_bind(view, index);
    }
    let incomplete = view.provisions.iter().position(|provision| !provision.completed);
    if let Some(index) = incomplete {
        return select(view, index);
    }
    match check(view) {
        Ok(true) => Step::Done,
        Ok(false) => Step::Wait,
        Err(reason) => Step::Fail(format!("binding volumes: {reason}")),
    }
}

fn pre_bind(view: &View, index: usize) -> Step {
    let binding = &view.bindings[index];
    let (Some(volume), Some(claim)) = (&binding.volume, &binding.claim) else {
        return Step::Fail(binding.missing());
    };
    if volume.is_bound_to(&claim.metadata) {
        return Step::MarkCompleted(Item::Binding(index));
    }
    let free = volume.spec.claim_ref.is_none() || is_reserved_for(volume, claim);
    if !free || !claim.spec.volume_name.is_empty() {
        let (volume, claim) = (&binding.volume_name, &binding.claim_key);
        return Step::Fail(format!(
            "pv {volume:?} or PVC {claim} was bound by another controller in the meantime"
        ));
    }
    Step::PreBind(index)
}

fn select(view: &View, index: usize) -> Step {
    let provision = &view.provisions[index];
    let Some(claim) = &provision.claim else { return Step::Fail(provision.missing()) };
    match claim.metadata.annotation(annotation::SELECTED_NODE) {
        Some(node) if node == view.node => Step::MarkCompleted(Item::Provision(index)),
        None if claim.spec.volume_name.is_empty() => Step::SelectNode(index),
        // Its volume may not be accessible from the chosen node: reschedule.
        _ => {
            Step::Fail(format!("PVC {} was bound by another controller in the meantime", provision.claim_key))
        }
    }
}

/// Whether all claims are bound; an error if the binding cannot complete.
fn check(view: &View) -> Result<bool, String> {
    let node = &view.node;
    let Some(labels) = &view.labels else {
        return Err(format!("failed to get node {node:?}: node {node:?} not found"));
    };
    let reached = |volume: &PersistentVolume| match is_accessible_from(
        volume.spec.node_affinity.as_ref(),
        node,
        labels,
    ) {
        true => Ok(()),
        false => Err(format!(
            "pv {:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms",
            volume.metadata.name
        )),
    };
    let mut all = true;
    for binding in &view.bindings {
        let (Some(volume), Some(claim)) = (&binding.volume, &binding.claim) else {
            return Err(format!("failed to check binding: {}", binding.missing()));
        };
        reached(volume)?;
        if volume.spec.claim_ref.as_ref().is_none_or(|reference| reference.uid.is_empty()) {
            return Err(format!("ClaimRef got reset for pv {:?}", volume.metadata.name));
        }
        all &= is_bound(claim);
    }
    for provision in &view.provisions {
        let Some(claim) = &provision.claim else {
            return Err(format!("failed to check provisioning pvc: {}", provision.missing()));
        };
        let name = &claim.metadata.name;
        if claim.metadata.annotations.is_empty() {
            return Err(format!("selectedNode annotation reset for PVC {name:?}"));
        }
        if claim.metadata.annotation(annotation::SELECTED_NODE) != Some(node) {
            return Err(format!("provisioning failed for PVC {name:?}"));
        }
        match &provision.volume {
            Some(volume) => reached(volume)?,
            // The claim has no volumeName yet, or the watch has not reported the volume.
            None => all = false,
        }
        all &= is_bound(claim);
    }
    Ok(all)
}

impl Binding {
    fn missing(&self) -> String {
        match self.volume {
            None => format!("could not find v1.PersistentVolume {:?}", self.volume_name),
            Some(_) => format!("could not find v1.PersistentVolumeClaim {:?}", self.claim_key.to_string()),
        }
    }
}

impl Provision {
    fn missing(&self) -> String {
        format!("could not find v1.PersistentVolumeClaim {:?}", self.claim_key.to_string())
    }
}

#[cfg(test)]
mod tests;
