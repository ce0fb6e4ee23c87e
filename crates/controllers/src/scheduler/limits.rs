//! How many volumes a node can attach, and whether the driver is registered at all: upstream's NodeVolumeLimits.
//!
//! Upstream treats a driver that the node's CSINode does not list as one without a limit, and so schedules any number
//! of pods to a node whose driver is not registered yet (kubernetes#95911). Here such a node is rejected.

use std::collections::{BTreeMap, BTreeSet};

use super::DriverCheck;
use super::claims::PodClaims;
use super::view::{CountedId, CountedVolume, NodeInfo, View, counted_volume};
use super::volumes::Plan;

pub(super) const TOO_MANY_VOLUMES: &str = "node(s) exceed max volume count";

/// The CSI volumes that a pod will use, as far as its claims show.
pub(super) fn volumes_of_claims(view: &View, pod_claims: &PodClaims) -> BTreeSet<CountedVolume> {
    let all = pod_claims.bound.iter().chain(&pod_claims.delayed);
    all.filter_map(|claim| {
        let volume = view.volumes.get(&claim.spec.volume_name);
        let class = claim.class().and_then(|class| view.classes.get(class));
        counted_volume(claim, volume.map(AsRef::as_ref), class.map(AsRef::as_ref))
    })
    .collect()
}

/// The CSI volumes that a pod will use with the node's plan: a planned volume may have another driver than its class.
pub(super) fn volumes_of_plan(view: &View, pod_claims: &PodClaims, plan: &Plan) -> BTreeSet<CountedVolume> {
    let mut handles = volumes_of_claims(view, pod_claims);
    for binding in &plan.bindings {
        let key = binding.claim.metadata.key().to_string();
        handles.retain(|handle| handle.volume != CountedId::ForClaim(key.clone()));
        handles.extend(counted_volume(&binding.claim, Some(&binding.volume), None));
    }
    handles
}

/// Why the node cannot have these volumes; `None` if it can.
pub(super) fn rejection(view: &View, node_info: &NodeInfo, new: &BTreeSet<CountedVolume>) -> Option<String> {
    if let Some(driver) = missing_driver(view, node_info, new) {
        return Some(format!("{driver} CSI driver is not installed on the node"));
    }
    let csi_node = node_info.csi_node.as_ref()?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    // Attached volumes count already, even if no pod uses them.
    let here: BTreeSet<&CountedVolume> = node_info.volumes.union(&node_info.attached).collect();
    for handle in new.iter().filter(|handle| !here.contains(handle)) {
        *counts.entry(&handle.driver).or_default() += 1;
    }
    let too_many = counts.into_iter().any(|(driver, count)| {
        let allocatable = csi_node.driver(driver).and_then(|driver| driver.allocatable);
        let Some(limit) = allocatable.and_then(|allocatable| allocatable.count) else { return false };
        let used = here.iter().filter(|handle| handle.driver == driver).count();
        used + count > usize::try_from(limit).unwrap_or_default()
    });
    too_many.then(|| TOO_MANY_VOLUMES.to_owned())
}

/// A driver that the pod needs and the node lacks.
fn missing_driver<'a>(
    view: &'a View,
    node_info: &NodeInfo,
    new: &'a BTreeSet<CountedVolume>,
) -> Option<&'a str> {
    if view.rules.drivers == DriverCheck::Upstream {
        return None;
    }
    let has = |driver: &str| node_info.csi_node.as_ref().is_some_and(|node| node.driver(driver).is_some());
    let volumes_of_claims = new.iter().filter(|handle| match handle.volume {
        CountedId::Handle(_) => true,
        // A class's provisioner need not be a CSI driver.
        CountedId::ForClaim(_) => is_csi_driver(view, &handle.driver),
    });
    let inline = view.pod.spec.volumes.iter().filter_map(|volume| volume.csi.as_ref());
    let mut drivers = volumes_of_claims
        .map(|handle| handle.driver.as_str())
        .chain(inline.map(|inline| inline.driver.as_str()));
    drivers.find(|driver| !has(driver))
}

/// Whether a CSIDriver or CSINode object shows that this is a CSI driver.
fn is_csi_driver(view: &View, driver: &str) -> bool {
    let on =
        |node_info: &NodeInfo| node_info.csi_node.as_ref().is_some_and(|node| node.driver(driver).is_some());
    view.drivers.contains_key(driver) || view.nodes.iter().any(on)
}

#[cfg(test)]
mod tests;
