//! Whether there is room for new volumes where a node can reach them: CSIStorageCapacity.
//!
//! Upstream looks for room for each claim alone, so that a pod with two claims, or two pods at once, are sent where one
//! volume fits (kubernetes#135985). Here each claim takes its share away before the next is looked at, and so
//! do claims for which a node was chosen and whose volumes are not there yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_model::{CSIStorageCapacity, PersistentVolumeClaim, Quantity};

use super::CapacityCheck;
use super::view::{Place, View};
use super::volumes::class_of;

/// Room in one place.
struct Pool<'a> {
    of: &'a CSIStorageCapacity,
    /// The largest volume.
    limit: i64,
    /// What is left; `None` where nobody says.
    left: Option<i64>,
}

impl Pool<'_> {
    fn takes(&self, size: i64) -> bool {
        self.limit >= size && self.left.is_none_or(|left| left >= size)
    }

    fn take(&mut self, size: i64) {
        self.left = self.left.map(|left| left.saturating_sub(size).max(0));
    }
}

/// Whether all these claims' volumes can be made for this node.
pub(super) fn suffices(view: &View, place: &Place, claims: &[Arc<PersistentVolumeClaim>]) -> bool {
    let mut sizes: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for claim in claims {
        let (Ok(class), Some(size)) = (class_of(view, claim), claim.requested()) else { continue };
        let driver = view.drivers.get(&class.provisioner);
        // Only drivers that say so are asked.
        if driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true)) {
            sizes.entry(class.metadata.name.as_str()).or_default().push(size.bytes());
        }
    }
    sizes.into_iter().all(|(class, mut sizes)| {
        let mut pools = pools(view, class);
        match view.rules.capacity {
            CapacityCheck::PerClaim => sizes.iter().all(|&size| {
                pools.iter().any(|pool| pool.limit >= size && is_reached(pool.of, &place.labels))
            }),
            CapacityCheck::Summed => {
                charge(view, class, &mut pools);
                // The largest first: it has the fewest places to go to.
                sizes.sort_unstable_by(|a, b| b.cmp(a));
                sizes.into_iter().all(|size| match best(&mut pools, &place.labels, size) {
                    Some(pool) => {
                        pool.take(size);
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
        let limit = limit(capacity)?.bytes();
        Some(Pool { of: capacity, limit, left: capacity.capacity.map(Quantity::bytes) })
    };
    of_class.filter_map(pool).collect()
}

/// The largest volume that fits, by the driver's own word where there is one.
pub(super) fn limit(capacity: &CSIStorageCapacity) -> Option<Quantity> {
    capacity.maximum_volume_size.or(capacity.capacity)
}

/// Takes away what is promised.
fn charge(view: &View, class: &str, pools: &mut [Pool<'_>]) {
    for promised in view.in_flight.iter().filter(|promised| promised.class == class) {
        if let Some(pool) = best(pools, &promised.labels, promised.size) {
            pool.take(promised.size);
            continue;
        }
        // It was promised all the same: what is left in the largest is not to be relied on.
        let reached = pools.iter_mut().filter(|pool| is_reached(pool.of, &promised.labels));
        if let Some(pool) = reached.max_by_key(|pool| pool.left) {
            pool.take(promised.size);
        }
    }
}

/// The pool in which the least is left over.
fn best<'a, 'b>(
    pools: &'a mut [Pool<'b>],
    labels: &BTreeMap<String, String>,
    size: i64,
) -> Option<&'a mut Pool<'b>> {
    let fitting = pools.iter_mut().filter(|pool| pool.takes(size) && is_reached(pool.of, labels));
    fitting.min_by_key(|pool| pool.left.unwrap_or(i64::MAX))
}

/// Whether the place is one that the capacity is about; one without topology is nowhere.
fn is_reached(capacity: &CSIStorageCapacity, labels: &BTreeMap<String, String>) -> bool {
    capacity
        .node_topology
        .as_ref()
        .is_some_and(|selector| selector.matches(|key| labels.get(key).map(String::as_str)))
}

#[cfg(test)]
mod tests;
