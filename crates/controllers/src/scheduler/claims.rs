//! A pod's claims before any node is evaluated: which exist, which are bound, which wait for a node. A problem with a
//! claim applies to all nodes and is reported with upstream's message.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_model::claim::ClaimPhase;
use wharf_model::names::annotation;
use wharf_model::{AccessMode, PersistentVolumeClaim};

use super::view::View;

/// The pod's claims, without duplicates.
#[derive(Debug, Default)]
pub(super) struct PodClaims {
    /// Claims that are bound.
    pub(super) bound: Vec<Arc<PersistentVolumeClaim>>,
    /// Claims that get a volume once a node is chosen.
    pub(super) delayed: Vec<Arc<PersistentVolumeClaim>>,
}

/// Why no node is evaluated.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PreFilterError {
    /// The pod is unschedulable until something changes.
    Unschedulable(String),
    /// An object is invalid.
    Error(String),
}

/// Whether the claim is completely bound.
pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    !claim.spec.volume_name.is_empty() && claim.metadata.annotation(annotation::BIND_COMPLETED).is_some()
}

/// The pod's claims by state; an error if the pod cannot be scheduled.
pub(super) fn classify(view: &View) -> Result<PodClaims, PreFilterError> {
    let pod = &view.pod;
    let unschedulable = |reason: String| Err(PreFilterError::Unschedulable(reason));
    // VolumeRestrictions runs first, and checks only claims that the pod names.
    for volume in pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref()) {
        if !view.claims.contains_key(&volume.claim_name) {
            return unschedulable(format!("persistentvolumeclaim {:?} not found", volume.claim_name));
        }
    }
    for volume in &pod.spec.volumes {
        let Some(name) = pod.claim_name(volume) else { continue };
        let Some(claim) = view.claims.get(&name) else {
            return unschedulable(format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
            ));
        };
        if claim.status.phase == ClaimPhase::Lost {
            let volume = &claim.spec.volume_name;
            return unschedulable(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
            ));
        }
        if claim.metadata.is_deleting() {
            return unschedulable(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        if volume.persistent_volume_claim.is_none() && !pod.owns(&claim.metadata) {
            let (namespace, pod) =
                (pod.metadata.namespace.as_deref().unwrap_or_default(), &pod.metadata.name);
            return unschedulable(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
            ));
        }
    }
    let mut pod_claims = PodClaims::default();
    for name in pod.claims.iter().collect::<BTreeSet<_>>() {
        let Some(claim) = view.claims.get(name) else { continue };
        if is_bound(claim) {
            pod_claims.bound.push(Arc::clone(claim));
        } else if is_delayed(view, claim)? && claim.spec.volume_name.is_empty() {
            pod_claims.delayed.push(Arc::clone(claim));
        } else {
            return unschedulable("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
    }
    check_bound_volumes_exist(view)?;
    Ok(pod_claims)
}

/// Whether the claim's class delays binding until there is a node. False if the class does not exist.
fn is_delayed(view: &View, claim: &PersistentVolumeClaim) -> Result<bool, PreFilterError> {
    let Some(class) = claim.class().and_then(|class| view.classes.get(class)) else { return Ok(false) };
    if class.volume_binding_mode.is_none() {
        let name = &class.metadata.name;
        return Err(PreFilterError::Error(format!("VolumeBindingMode not set for StorageClass {name:?}")));
    }
    Ok(class.waits_for_first_consumer())
}

/// VolumeZone runs last, and needs the volumes.
fn check_bound_volumes_exist(view: &View) -> Result<(), PreFilterError> {
    for volume in view.pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref()) {
        let Some(claim) = view.claims.get(&volume.claim_name) else { continue };
        let name = &claim.spec.volume_name;
        if !name.is_empty() && !view.volumes.contains_key(name) {
            return Err(PreFilterError::Unschedulable(format!("persistentvolume {name:?} not found")));
        }
    }
    Ok(())
}

/// Whether another pod uses a ReadWriteOncePod claim of the pod.
pub(super) fn has_rwop_conflict(view: &View) -> bool {
    let exclusive =
        |claim: &PersistentVolumeClaim| claim.spec.access_modes.contains(&AccessMode::ReadWriteOncePod);
    let by_name = view.pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    by_name
        .filter_map(|volume| view.claims.get(&volume.claim_name))
        .any(|claim| exclusive(claim) && view.claims_in_use.contains(&claim.metadata.name))
}

#[cfg(test)]
mod tests;
