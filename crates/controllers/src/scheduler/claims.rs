//! A pod's claims before any node is looked at: what is there, what is bound, what waits for a node. What is wrong with
//! them holds for all nodes, and is told in upstream's words.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_model::claim::ClaimPhase;
use wharf_model::names::annotation;
use wharf_model::whole::Pod;
use wharf_model::{AccessMode, PersistentVolumeClaim};

use super::view::View;

/// The pod's claims, each once.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// Those that have their volume.
    pub(super) bound: Vec<Arc<PersistentVolumeClaim>>,
    /// Those that get one when a node is chosen.
    pub(super) delayed: Vec<Arc<PersistentVolumeClaim>>,
}

/// Why no node is looked at.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The pod cannot be placed as things are.
    Refused(String),
    /// Things are not as they can be.
    Failed(String),
}

/// Whether binding has been seen through to its end.
pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    !claim.spec.volume_name.is_empty() && claim.metadata.annotation(annotation::BIND_COMPLETED).is_some()
}

/// Whether the pod manages the claim: one for an ephemeral volume has to be its own.
fn is_of(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let owner = |owner: &&wharf_model::OwnerRef| owner.controller == Some(true);
    claim.metadata.owner_references.iter().find(owner).is_some_and(|owner| owner.uid == pod.metadata.uid)
}

/// The pod's claims, sorted; or why it has to wait.
pub(super) fn sort(view: &View) -> Result<Sorted, Stop> {
    let pod = &view.pod;
    let refused = |why: String| Err(Stop::Refused(why));
    // VolumeRestrictions comes first, and asks only for claims by name.
    for volume in pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref()) {
        if !view.claims.contains_key(&volume.claim_name) {
            return refused(format!("persistentvolumeclaim {:?} not found", volume.claim_name));
        }
    }
    for volume in &pod.spec.volumes {
        let Some(name) = pod.claim_of(volume) else { continue };
        let Some(claim) = view.claims.get(&name) else {
            return refused(format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
            ));
        };
        if claim.status.phase == ClaimPhase::Lost {
            let volume = &claim.spec.volume_name;
            return refused(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
            ));
        }
        if claim.metadata.is_deleting() {
            return refused(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        if volume.persistent_volume_claim.is_none() && !is_of(pod, claim) {
            let (namespace, pod) =
                (pod.metadata.namespace.as_deref().unwrap_or_default(), &pod.metadata.name);
            return refused(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
            ));
        }
    }
    let mut sorted = Sorted::default();
    for name in pod.claims().collect::<BTreeSet<_>>() {
        let Some(claim) = view.claims.get(&name) else { continue };
        if is_bound(claim) {
            sorted.bound.push(Arc::clone(claim));
        } else if waits(view, claim)? && claim.spec.volume_name.is_empty() {
            sorted.delayed.push(Arc::clone(claim));
        } else {
            return refused("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
    }
    zones_are_known(view)?;
    Ok(sorted)
}

/// Whether the claim's volume is made once there is a node. One whose class is missing is not waited for here.
fn waits(view: &View, claim: &PersistentVolumeClaim) -> Result<bool, Stop> {
    let Some(class) = claim.class().and_then(|class| view.classes.get(class)) else { return Ok(false) };
    if class.volume_binding_mode.is_none() {
        let name = &class.metadata.name;
        return Err(Stop::Failed(format!("VolumeBindingMode not set for StorageClass {name:?}")));
    }
    Ok(class.waits_for_first_consumer())
}

/// VolumeZone comes last: it has to see the volumes.
fn zones_are_known(view: &View) -> Result<(), Stop> {
    for volume in view.pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref()) {
        let Some(claim) = view.claims.get(&volume.claim_name) else { continue };
        let name = &claim.spec.volume_name;
        if !name.is_empty() && !view.volumes.contains_key(name) {
            return Err(Stop::Refused(format!("persistentvolume {name:?} not found")));
        }
    }
    Ok(())
}

/// Whether a claim that is for one pod alone is another pod's already.
pub(super) fn is_taken(view: &View) -> bool {
    let alone =
        |claim: &PersistentVolumeClaim| claim.spec.access_modes.contains(&AccessMode::ReadWriteOncePod);
    let by_name = view.pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    by_name
        .filter_map(|volume| view.claims.get(&volume.claim_name))
        .any(|claim| alone(claim) && view.used.contains(&claim.metadata.name))
}

#[cfg(test)]
mod tests;
