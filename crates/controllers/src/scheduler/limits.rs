//! How many volumes fit on a node, and whether the driver is there at all: upstream's NodeVolumeLimits.
//!
//! Upstream takes a driver that a node's CSINode does not name for one without a limit, and so puts any number of pods
//! on a node whose driver has yet to register (kubernetes#95911). Here such a node is not used.

use std::collections::{BTreeMap, BTreeSet};

use super::DriverCheck;
use super::claims::Sorted;
use super::view::{Counted, Handle, Place, View, handle};
use super::volumes::Plan;

pub(super) const TOO_MANY_VOLUMES: &str = "node(s) exceed max volume count";

/// The CSI volumes that a pod will use, as far as its claims tell.
pub(super) fn of_claims(view: &View, sorted: &Sorted) -> BTreeSet<Handle> {
    let all = sorted.bound.iter().chain(&sorted.delayed);
    all.filter_map(|claim| {
        let volume = view.volumes.get(&claim.spec.volume_name);
        let class = claim.class().and_then(|class| view.classes.get(class));
        handle(claim, volume.map(AsRef::as_ref), class.map(AsRef::as_ref))
    })
    .collect()
}

/// The same once it is known which volumes the node's plan takes: those may be of another driver than their class says.
pub(super) fn of_plan(view: &View, sorted: &Sorted, plan: &Plan) -> BTreeSet<Handle> {
    let mut handles = of_claims(view, sorted);
    for binding in &plan.bindings {
        let key = binding.claim.metadata.key().to_string();
        handles.retain(|handle| handle.volume != Counted::For(key.clone()));
        handles.extend(handle(&binding.claim, Some(&binding.volume), None));
    }
    handles
}

/// Why the node cannot have these volumes; none if it can.
pub(super) fn refuses(view: &View, place: &Place, new: &BTreeSet<Handle>) -> Option<String> {
    if let Some(driver) = missing(view, place, new) {
        return Some(format!("{driver} CSI driver is not installed on the node"));
    }
    let csi_node = place.csi_node.as_ref()?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    // What is attached has its place already, also while no pod uses it.
    let here: BTreeSet<&Handle> = place.volumes.union(&place.attached).collect();
    for handle in new.iter().filter(|handle| !here.contains(handle)) {
        *counts.entry(&handle.driver).or_default() += 1;
    }
    let too_many = counts.into_iter().any(|(driver, count)| {
        let allocatable = csi_node.driver(driver).and_then(|driver| driver.allocatable);
        let Some(limit) = allocatable.and_then(|allocatable| allocatable.count) else { return false };
        let there = here.iter().filter(|handle| handle.driver == driver).count();
        there + count > usize::try_from(limit).unwrap_or_default()
    });
    too_many.then(|| TOO_MANY_VOLUMES.to_owned())
}

/// A driver of the pod's that the node lacks.
fn missing<'a>(view: &'a View, place: &Place, new: &'a BTreeSet<Handle>) -> Option<&'a str> {
    if view.rules.drivers == DriverCheck::Upstream {
        return None;
    }
    let has = |driver: &str| place.csi_node.as_ref().is_some_and(|node| node.driver(driver).is_some());
    let of_claims = new.iter().filter(|handle| match handle.volume {
        Counted::Volume(_) => true,
        // A class may name a provisioner that is no CSI driver at all.
        Counted::For(_) => is_csi(view, &handle.driver),
    });
    let inline = view.pod.spec.volumes.iter().filter_map(|volume| volume.csi.as_ref());
    let mut drivers =
        of_claims.map(|handle| handle.driver.as_str()).chain(inline.map(|inline| inline.driver.as_str()));
    drivers.find(|driver| !has(driver))
}

/// Whether somebody has said that this is a CSI driver.
fn is_csi(view: &View, driver: &str) -> bool {
    let on = |place: &Place| place.csi_node.as_ref().is_some_and(|node| node.driver(driver).is_some());
    view.drivers.contains_key(driver) || view.places.iter().any(on)
}

#[cfg(test)]
mod tests;
