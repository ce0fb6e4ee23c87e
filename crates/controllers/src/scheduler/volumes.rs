//! Whether a pod's volumes are, or can be, where a node can reach them: upstream's FindPodVolumes.
//!
//! Promise: what is planned for one node uses each volume once, and promises no room that others were promised.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_model::matching::{Seeker, best, by_size};
use wharf_model::names::annotation;
use wharf_model::topology::{allows, reaches};
use wharf_model::{PersistentVolume, PersistentVolumeClaim, StorageClass};

use super::capacity;
use super::claims::Sorted;
use super::view::{Place, View};

const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

pub(super) const UNREACHABLE: &str = "node(s) didn't match PersistentVolume's node affinity";
pub(super) const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
pub(super) const NO_ROOM: &str = "node(s) did not have enough free storage";
pub(super) const NO_SUCH_VOLUME: &str =
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

/// What has to be done before the pod can be on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Volumes that are there, for claims.
    pub(super) bindings: Vec<Binding>,
    /// Claims that get new ones.
    pub(super) provisions: Vec<Arc<PersistentVolumeClaim>>,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.provisions.is_empty()
    }
}

/// A volume for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) volume: Arc<PersistentVolume>,
    pub(super) claim: Arc<PersistentVolumeClaim>,
}

/// What came of looking at a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It will do.
    Plan(Plan),
    /// It will not, for these reasons.
    Conflicts(Vec<&'static str>),
    /// Things are not as they can be.
    Failed(String),
}

/// Looks at one node.
pub(super) fn find(view: &View, sorted: &Sorted, place: &Place) -> Found {
    let mut conflicts = Vec::new();
    match bound(view, sorted, place) {
        Bound::Missing => conflicts.push(NO_SUCH_VOLUME),
        Bound::Unreachable => conflicts.push(UNREACHABLE),
        Bound::Reached => {}
    }
    match unbound(view, sorted, place) {
        Ok(plan) if conflicts.is_empty() => Found::Plan(plan),
        Ok(_) => Found::Conflicts(conflicts),
        Err(Unmet::Conflict(conflict)) => {
            conflicts.push(conflict);
            Found::Conflicts(conflicts)
        }
        Err(Unmet::Failed(why)) => Found::Failed(why),
    }
}

enum Bound {
    Reached,
    Missing,
    Unreachable,
}

fn bound(view: &View, sorted: &Sorted, place: &Place) -> Bound {
    for claim in &sorted.bound {
        let Some(volume) = view.volumes.get(&claim.spec.volume_name) else { return Bound::Missing };
        if !reaches(volume.spec.node_affinity.as_ref(), place.name(), &place.labels) {
            return Bound::Unreachable;
        }
    }
    Bound::Reached
}

enum Unmet {
    Conflict(&'static str),
    Failed(String),
}

fn unbound(view: &View, sorted: &Sorted, place: &Place) -> Result<Plan, Unmet> {
    let mut plan = Plan::default();
    let mut to_match = Vec::new();
    for claim in &sorted.delayed {
        match claim.metadata.annotation(annotation::SELECTED_NODE) {
            // The node was chosen before, and a volume may be on its way to it.
            Some(node) if node != place.name() => return Err(Unmet::Conflict(NO_VOLUME)),
            Some(_) => plan.provisions.push(Arc::clone(claim)),
            None => to_match.push(claim),
        }
    }
    // The smallest first, so that it takes the smallest volume and leaves larger ones to the others.
    to_match.sort_by(|a, b| by_size(a, b));
    let mut chosen = BTreeSet::new();
    for claim in to_match {
        match matching(view, claim, place, &chosen) {
            Some(volume) => {
                chosen.insert(volume.metadata.name.clone());
                plan.bindings.push(Binding { volume, claim: Arc::clone(claim) });
            }
            None => plan.provisions.push(Arc::clone(claim)),
        }
    }
    for claim in &plan.provisions {
        let class = class_of(view, claim).map_err(Unmet::Failed)?;
        let provisions = !class.provisioner.is_empty() && class.provisioner != NO_PROVISIONER;
        if !provisions || !allows(&class.allowed_topologies, &place.labels) {
            return Err(Unmet::Conflict(NO_VOLUME));
        }
    }
    if !capacity::suffices(view, place, &plan.provisions) {
        return Err(Unmet::Conflict(NO_ROOM));
    }
    Ok(plan)
}

/// The best volume for a claim on this node, of those that none of the pod's other claims has taken.
fn matching(
    view: &View,
    claim: &PersistentVolumeClaim,
    place: &Place,
    chosen: &BTreeSet<String>,
) -> Option<Arc<PersistentVolume>> {
    let candidates = view.candidates.get(&claim.metadata.name)?;
    let seeker = Seeker::Scheduler { node: place.name(), labels: &place.labels, taken: chosen };
    let best = best(claim, candidates.iter().map(AsRef::as_ref), seeker)?;
    candidates.iter().find(|volume| volume.metadata.name == best.metadata.name).cloned()
}

/// The class by which a claim's volume is made.
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
