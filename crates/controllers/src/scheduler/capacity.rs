//! Whether there is capacity for new volumes that a node can access: CSIStorageCapacity.
//!
//! Upstream checks each claim separately, so a pod with two claims, or two pods at once, are scheduled where only one
//! volume fits (kubernetes#135985). Here each claim is subtracted before the next is checked, and so are claims that
//! have a selected node and no volume yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_model::{CSIStorageCapacity, PersistentVolumeClaim, Quantity};

use super::CapacityCheck;
use super::view::{NodeInfo, View};
use super::volumes::class_of;

/// The capacity of one CSIStorageCapacity object.
struct Pool<'a> {
    of: &'a CSIStorageCapacity,
    /// The largest possible volume.
    limit: i64,
    /// The remaining capacity; `None` if it is not reported.
    left: Option<i64>,
}

impl Pool<'_> {
    fn fits(&self, size: i64) -> bool {
        self.limit >= size && self.left.is_none_or(|left| left >= size)
    }

    fn reserve(&mut self, size: i64) {
        self.left = self.left.map(|left| left.saturating_sub(size).max(0));
    }
}

/// Whether volumes for all these claims can be provisioned for this node.
pub(super) fn has_capacity(view: &View, node_info: &NodeInfo, claims: &[Arc<PersistentVolumeClaim>]) -> bool {
    let mut sizes: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for claim in claims {
        let (Ok(class), Some(size)) = (class_of(view, claim), claim.requested_storage()) else { continue };
        let driver = view.drivers.get(&class.provisioner);
        // Only for drivers that report capacity.
        if driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true)) {
            sizes.entry(class.metadata.name.as_str()).or_default().push(size.bytes());
        }
    }
    sizes.into_iter().all(|(class, mut sizes)| {
        let mut pools = pools(view, class);
        match view.rules.capacity {
            CapacityCheck::PerClaim => sizes.iter().all(|&size| {
                pools.iter().any(|pool| pool.limit >= size && matches_topology(pool.of, &node_info.labels))
            }),
            CapacityCheck::Summed => {
                subtract_in_flight(view, class, &mut pools);
                // The largest first: it fits into the fewest pools.
                sizes.sort_unstable_by(|a, b| b.cmp(a));
                sizes.into_iter().all(|size| match best_fit(&mut pools, &node_info.labels, size) {
                    Some(pool) => {
                        pool.reserve(size);
                        true
                    }
                    None => false,
                })
            }
        }
    })
}

fn pools<'a>(view: &'a View, class: &str) -> Vec<Pool<'a>> {
    let of_class = view.capacities.iter().filter(|capacity| capacity.storage_class_name == class);
    let pool = |capacity: &'a Arc<CSIStorageCapacity>| {
        let limit = max_volume_size(capacity)?.bytes();
        Some(Pool { of: capacity, limit, left: capacity.capacity.map(Quantity::bytes) })
    };
    of_class.filter_map(pool).collect()
}

/// The largest volume that fits: `maximumVolumeSize` if it is set, otherwise the capacity.
pub(super) fn max_volume_size(capacity: &CSIStorageCapacity) -> Option<Quantity> {
    capacity.maximum_volume_size.or(capacity.capacity)
}

/// Subtracts the volumes that are being provisioned.
fn subtract_in_flight(view: &View, class: &str, pools: &mut [Pool<'_>]) {
    for in_flight in view.in_flight.iter().filter(|in_flight| in_flight.class == class) {
        if let Some(pool) = best_fit(pools, &in_flight.labels, in_flight.size) {
            pool.reserve(in_flight.size);
            continue;
        }
        // It is being provisioned although it fits nowhere: do not rely on the largest pool.
        let reached = pools.iter_mut().filter(|pool| matches_topology(pool.of, &in_flight.labels));
        if let Some(pool) = reached.max_by_key(|pool| pool.left) {
            pool.reserve(in_flight.size);
        }
    }
}

/// The fitting pool with the least remaining capacity.
fn best_fit<'a, 'b>(
    pools: &'a mut [Pool<'b>],
    labels: &BTreeMap<String, String>,
    size: i64,
) -> Option<&'a mut Pool<'b>> {
    let fitting = pools.iter_mut().filter(|pool| pool.fits(size) && matches_topology(pool.of, labels));
    fitting.min_by_key(|pool| pool.left.unwrap_or(i64::MAX))
}

/// Whether the capacity applies to a node with these labels; a capacity without topology applies to none.
fn matches_topology(capacity: &CSIStorageCapacity, labels: &BTreeMap<String, String>) -> bool {
    capacity
        .node_topology
        .as_ref()
        .is_some_and(|selector| selector.matches(|key| labels.get(key).map(String::as_str)))
}

#[cfg(test)]
mod tests;
