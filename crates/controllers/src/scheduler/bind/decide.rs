//! The next step of a binding: volumes are written first, then claims, then all are waited for, and at last the pod is
//! put on its node. Pure; upstream's bindAPIUpdate and checkBindings.
//!
//! What was written and is as it was no more was undone by those who bind or provision: then a node is chosen anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_model::matching::is_for;
use wharf_model::names::annotation;
use wharf_model::topology::reaches;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim};

use crate::scheduler::claims::is_bound;

/// A binding, and what has become of its objects. Objects of another identity than those that were planned with are
/// not there.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct View {
    /// Whether the pod still waits.
    pub(in crate::scheduler) waits: bool,
    pub(in crate::scheduler) node: String,
    /// Its labels; `None` if it is gone.
    pub(in crate::scheduler) labels: Option<BTreeMap<String, String>>,
    pub(in crate::scheduler) bindings: Vec<Binding>,
    pub(in crate::scheduler) provisions: Vec<Provision>,
}

/// A volume for a claim.
#[derive(Debug)]
pub(in crate::scheduler) struct Binding {
    pub(in crate::scheduler) volume_name: String,
    pub(in crate::scheduler) claim_key: Key,
    pub(in crate::scheduler) volume: Option<Arc<PersistentVolume>>,
    pub(in crate::scheduler) claim: Option<Arc<PersistentVolumeClaim>>,
    pub(in crate::scheduler) written: bool,
}

/// A claim that gets a new volume.
#[derive(Debug)]
pub(in crate::scheduler) struct Provision {
    pub(in crate::scheduler) claim_key: Key,
    pub(in crate::scheduler) claim: Option<Arc<PersistentVolumeClaim>>,
    /// The volume that the claim names.
    pub(in crate::scheduler) volume: Option<Arc<PersistentVolume>>,
    pub(in crate::scheduler) written: bool,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::scheduler) enum Step {
    /// Give the volume of this binding to its claim.
    PreBind(usize),
    /// Write down the node of this provision's claim.
    Select(usize),
    /// This one is as it is to be, by somebody else's hand.
    Adopt(Item),
    /// Others are at work.
    Wait,
    /// All volumes are there.
    Done,
    /// Nobody waits any more.
    Gone,
    /// It comes to nothing.
    Fail(String),
}

/// One of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::scheduler) enum Item {
    Binding(usize),
    Provision(usize),
}

/// The one step.
pub(in crate::scheduler) fn decide(view: &View) -> Step {
    if !view.waits {
        return Step::Gone;
    }
    let unwritten = view.bindings.iter().position(|binding| !binding.written);
    if let Some(index) = unwritten {
        return pre_bind(view, index);
    }
    let unwritten = view.provisions.iter().position(|provision| !provision.written);
    if let Some(index) = unwritten {
        return select(view, index);
    }
    match check(view) {
        Ok(true) => Step::Done,
        Ok(false) => Step::Wait,
        Err(why) => Step::Fail(format!("binding volumes: {why}")),
    }
}

fn pre_bind(view: &View, index: usize) -> Step {
    let binding = &view.bindings[index];
    let (Some(volume), Some(claim)) = (&binding.volume, &binding.claim) else {
        return Step::Fail(binding.missing());
    };
    if volume.is_bound_to(&claim.metadata) {
        return Step::Adopt(Item::Binding(index));
    }
    let free = volume.spec.claim_ref.is_none() || is_for(volume, claim);
    if !free || !claim.spec.volume_name.is_empty() {
        let (volume, claim) = (&binding.volume_name, &binding.claim_key);
        return Step::Fail(format!("pv {volume:?} or PVC {claim} was bound by somebody else meanwhile"));
    }
    Step::PreBind(index)
}

fn select(view: &View, index: usize) -> Step {
    let provision = &view.provisions[index];
    let Some(claim) = &provision.claim else { return Step::Fail(provision.missing()) };
    match claim.metadata.annotation(annotation::SELECTED_NODE) {
        Some(node) if node == view.node => Step::Adopt(Item::Provision(index)),
        None if claim.spec.volume_name.is_empty() => Step::Select(index),
        // Where its volume is may be another place than the one chosen: look at it again.
        _ => Step::Fail(format!("PVC {} was bound by somebody else meanwhile", provision.claim_key)),
    }
}

/// Whether all is there; or why it never will be.
fn check(view: &View) -> Result<bool, String> {
    let node = &view.node;
    let Some(labels) = &view.labels else {
        return Err(format!("failed to get node {node:?}: node {node:?} not found"));
    };
    let reached = |volume: &PersistentVolume| match reaches(volume.spec.node_affinity.as_ref(), node, labels)
    {
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
            // The claim names none yet, or the watch has not told of it.
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
