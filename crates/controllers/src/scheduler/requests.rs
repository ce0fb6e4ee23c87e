//! Resource requests of pods: millicores of CPU, bytes, and counts of anything else.

use std::collections::BTreeMap;

use wharf_model::container::Container;
use wharf_model::{Pod, Quantity};

/// Amounts by resource.
pub(super) type Requests = BTreeMap<String, i64>;

const CPU: &str = "cpu";

/// A quantity in the unit of its resource.
pub(super) fn amount(resource: &str, quantity: Quantity) -> i64 {
    if resource == CPU { quantity.milli() } else { quantity.bytes() }
}

/// Adds `more` to `to`.
pub(super) fn add(to: &mut Requests, more: &Requests) {
    for (resource, amount) in more {
        let sum = to.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

/// The requests of a pod: the sum of its containers, or the peak while its init containers run, whichever is higher. A
/// restartable init container (sidecar) counts together with everything that starts after it.
pub(super) fn of(pod: &Pod) -> Requests {
    let mut all = Requests::new();
    for container in &pod.spec.containers {
        add(&mut all, &of_container(container));
    }
    let (mut running, mut starting) = (Requests::new(), Requests::new());
    for container in &pod.spec.init_containers {
        let own = of_container(container);
        let peak = match container.restart_policy.as_str() {
            "Always" => {
                add(&mut all, &own);
                add(&mut running, &own);
                running.clone()
            }
            _ => {
                let mut peak = running.clone();
                add(&mut peak, &own);
                peak
            }
        };
        raise(&mut starting, &peak);
    }
    raise(&mut all, &starting);
    all
}

fn raise(to: &mut Requests, least: &Requests) {
    for (resource, amount) in least {
        let present = to.entry(resource.clone()).or_default();
        *present = (*present).max(*amount);
    }
}

fn of_container(container: &Container) -> Requests {
    let requests = container.resources.requests.iter();
    requests.map(|(resource, quantity)| (resource.clone(), amount(resource, *quantity))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Requests as the sidecar KEP counts them.
    #[test]
    fn pod_requests_are_sum_or_init_peak() {
        let container =
            |cpu: &str, memory: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}});
        let always = |cpu: &str| json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        for (rule, spec, expected) in [
            ("nothing", json!({"containers": [{}]}), json!({})),
            (
                "containers are summed",
                json!({"containers": [container("100m", "1Ki"), container("1", "1Ki")]}),
                json!({"cpu": 1100, "memory": 2048}),
            ),
            (
                "init containers count by their peak",
                json!({"containers": [container("100m", "2Ki")], "initContainers": [container("1", "1Ki"), container("2", "1")]}),
                json!({"cpu": 2000, "memory": 2048}),
            ),
            (
                "a sidecar counts with containers and later init containers",
                json!({"containers": [container("100m", "1")], "initContainers": [always("200m"), container("1", "0")]}),
                json!({"cpu": 1200, "memory": 1}),
            ),
            (
                "a sidecar after a large init container",
                json!({"containers": [container("100m", "1")], "initContainers": [container("250m", "0"), always("200m")]}),
                json!({"cpu": 300, "memory": 1}),
            ),
        ] {
            let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            let expected: Requests = serde_json::from_value(expected).unwrap();
            assert_eq!(of(&pod), expected, "{rule}");
        }
    }
}
