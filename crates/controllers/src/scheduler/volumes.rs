//! Checks whether a node can access the bound volumes of a pod, and plans bindings and provisioning for its other claims
//! (upstream's FindPodVolumes). Start reading at [`find_pod_volumes`].
//!
//! A plan uses each volume at most once, and no capacity that is assumed for claims of other pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_model::matching::{MatchFor, compare_by_size, find_matching_volume};
use wharf_model::names::annotation;
use wharf_model::topology::{is_accessible_from, topologies_allow};
use wharf_model::{PersistentVolume, PersistentVolumeClaim, StorageClass};

use super::capacity;
use super::claims::PodClaims;
use super::view::{NodeInfo, View};

const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

pub(super) const NODE_AFFINITY_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
pub(super) const BIND_CONFLICT: &str = "node(s) didn't find available persistent volumes to bind";
pub(super) const NOT_ENOUGH_SPACE: &str = "node(s) did not have enough free storage";
pub(super) const PV_NOT_EXIST: &str =
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

/// What has to be written before the pod can run on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Existing volumes for claims.
    pub(super) bindings: Vec<Binding>,
    /// Claims to provision.
    pub(super) provisions: Vec<Arc<PersistentVolumeClaim>>,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.provisions.is_empty()
    }
}

/// An existing volume for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) volume: Arc<PersistentVolume>,
    pub(super) claim: Arc<PersistentVolumeClaim>,
}

/// The result of [`find_pod_volumes`] for a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FindResult {
    /// The node fits, with this plan.
    Plan(Plan),
    /// The node is rejected, for these reasons.
    Conflicts(Vec<&'static str>),
    /// An object is invalid.
    Error(String),
}

/// Checks the pod's claims against one node.
pub(super) fn find_pod_volumes(view: &View, pod_claims: &PodClaims, node_info: &NodeInfo) -> FindResult {
    let mut conflicts = Vec::new();
    match check_bound(view, pod_claims, node_info) {
        BoundVolumes::Missing => conflicts.push(PV_NOT_EXIST),
        BoundVolumes::Inaccessible => conflicts.push(NODE_AFFINITY_CONFLICT),
        BoundVolumes::Accessible => {}
    }
    match plan_unbound(view, pod_claims, node_info) {
        Ok(plan) if conflicts.is_empty() => FindResult::Plan(plan),
        Ok(_) => FindResult::Conflicts(conflicts),
        Err(PlanError::Conflict(conflict)) => {
            conflicts.push(conflict);
            FindResult::Conflicts(conflicts)
        }
        Err(PlanError::Error(reason)) => FindResult::Error(reason),
    }
}

/// The result of [`check_bound`].
enum BoundVolumes {
    Accessible,
    Missing,
    Inaccessible,
}

fn check_bound(view: &View, pod_claims: &PodClaims, node_info: &NodeInfo) -> BoundVolumes {
    for claim in &pod_claims.bound {
        let Some(volume) = view.volumes.get(&claim.spec.volume_name) else { return BoundVolumes::Missing };
        if !is_accessible_from(volume.spec.node_affinity.as_ref(), node_info.name(), &node_info.labels) {
            return BoundVolumes::Inaccessible;
        }
    }
    BoundVolumes::Accessible
}

/// Why there is no plan for a node.
enum PlanError {
    Conflict(&'static str),
    Error(String),
}

fn plan_unbound(view: &View, pod_claims: &PodClaims, node_info: &NodeInfo) -> Result<Plan, PlanError> {
    let mut plan = Plan::default();
    let mut to_match = Vec::new();
    for claim in &pod_claims.delayed {
        match claim.metadata.annotation(annotation::SELECTED_NODE) {
            // Another node was selected before, and the volume may be in provisioning for it.
            Some(node) if node != node_info.name() => return Err(PlanError::Conflict(BIND_CONFLICT)),
            Some(_) => plan.provisions.push(Arc::clone(claim)),
            None => to_match.push(claim),
        }
    }
    // Match the smallest claim first: it takes the smallest volume and leaves larger ones for the other claims.
    to_match.sort_by(|a, b| compare_by_size(a, b));
    let mut chosen = BTreeSet::new();
    for claim in to_match {
        match best_match(view, claim, node_info, &chosen) {
            Some(volume) => {
                chosen.insert(volume.metadata.name.clone());
                plan.bindings.push(Binding { volume, claim: Arc::clone(claim) });
            }
            None => plan.provisions.push(Arc::clone(claim)),
        }
    }
    for claim in &plan.provisions {
        let class = class_of(view, claim).map_err(PlanError::Error)?;
        let can_provision = !class.provisioner.is_empty() && class.provisioner != NO_PROVISIONER;
        if !can_provision || !topologies_allow(&class.allowed_topologies, &node_info.labels) {
            return Err(PlanError::Conflict(BIND_CONFLICT));
        }
    }
    if !capacity::has_capacity(view, node_info, &plan.provisions) {
        return Err(PlanError::Conflict(NOT_ENOUGH_SPACE));
    }
    Ok(plan)
}

/// The best volume for a claim on this node, except those chosen for the pod's other claims.
fn best_match(
    view: &View,
    claim: &PersistentVolumeClaim,
    node_info: &NodeInfo,
    chosen: &BTreeSet<String>,
) -> Option<Arc<PersistentVolume>> {
    let candidates = view.candidates.get(&claim.metadata.name)?;
    let match_for = MatchFor::Scheduler { node: node_info.name(), labels: &node_info.labels, taken: chosen };
    let best = find_matching_volume(claim, candidates.iter().map(AsRef::as_ref), match_for)?;
    candidates.iter().find(|volume| volume.metadata.name == best.metadata.name).cloned()
}

/// The class that provisions a claim's volume.
pub(super) fn class_of<'a>(
    view: &'a View,
    claim: &PersistentVolumeClaim,
) -> Result<&'a StorageClass, String> {
    let Some(name) = claim.class().filter(|name| !name.is_empty()) else {
        return Err(format!("no class for claim {:?}", claim.metadata.key().to_string()));
    };
    match view.classes.get(name) {
        Some(class) => Ok(class),
        None => Err(format!("failed to find storage class {name:?}")),
    }
}

#[cfg(test)]
mod tests;
