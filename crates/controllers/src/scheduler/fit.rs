//! Whether a node accepts a pod, apart from volumes: unschedulable, taints, affinity, resources. Reasons are
//! upstream's.

use wharf_model::Pod;
use wharf_model::names::taint;
use wharf_model::node::Taint;
use wharf_model::topology::selector_matches_node;

use super::requests::{Requests, amount};
use super::view::NodeInfo;

pub(super) const UNSCHEDULABLE: &str = "node(s) were unschedulable";
pub(super) const TAINTED: &str = "node(s) had untolerated taint(s)";
pub(super) const NOT_SELECTED: &str = "node(s) didn't match Pod's node affinity/selector";
pub(super) const TOO_MANY_PODS: &str = "Too many pods";

/// Whether the node is not cordoned, or the pod tolerates that.
pub(super) fn is_schedulable(pod: &Pod, node_info: &NodeInfo) -> bool {
    let (key, effect) = (taint::UNSCHEDULABLE.to_owned(), taint::NO_SCHEDULE.to_owned());
    let taint = Taint { key, value: String::new(), effect };
    !node_info.node.spec.unschedulable || tolerates(pod, &taint)
}

/// Whether the pod tolerates all NoSchedule and NoExecute taints. A node that is not Ready has such taints.
pub(super) fn tolerates_taints(pod: &Pod, node_info: &NodeInfo) -> bool {
    let rejects_pods =
        |taint: &&Taint| matches!(taint.effect.as_str(), taint::NO_SCHEDULE | taint::NO_EXECUTE);
    node_info.node.spec.taints.iter().filter(rejects_pods).all(|taint| tolerates(pod, taint))
}

/// Number of PreferNoSchedule taints that the pod does not tolerate.
pub(super) fn prefer_no_schedule_count(pod: &Pod, node_info: &NodeInfo) -> usize {
    let avoid = |taint: &&Taint| taint.effect == "PreferNoSchedule" && !tolerates(pod, taint);
    node_info.node.spec.taints.iter().filter(avoid).count()
}

fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(taint))
}

/// Whether the node matches the pod's nodeSelector and required node affinity.
pub(super) fn matches_node_selector(pod: &Pod, node_info: &NodeInfo) -> bool {
    let labels = pod.spec.node_selector.iter().all(|(key, value)| node_info.labels.get(key) == Some(value));
    let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    labels
        && required
            .is_none_or(|required| selector_matches_node(required, node_info.name(), &node_info.labels))
}

/// The resources that the node lacks for the pod. The pod itself counts against `pods`, even if it requests nothing.
pub(super) fn insufficient_resources(requested_by_pod: &Requests, node_info: &NodeInfo) -> Vec<String> {
    let mut lacking = Vec::new();
    if node_info.pods + 1 > allocatable(node_info, "pods") {
        lacking.push(TOO_MANY_PODS.to_owned());
    }
    for (resource, &requested_by_pod) in
        requested_by_pod.iter().filter(|(_, requested_by_pod)| **requested_by_pod > 0)
    {
        let requested = node_info.requested.get(resource).copied().unwrap_or_default();
        if requested_by_pod > allocatable(node_info, resource).saturating_sub(requested) {
            lacking.push(format!("Insufficient {resource}"));
        }
    }
    lacking
}

/// Upstream's LeastAllocated score, 0 to 100: how empty the node is with the pod on it. A pod without requests counts
/// with upstream's defaults.
pub(super) fn least_allocated_score(requested_by_pod: &Requests, node_info: &NodeInfo) -> i64 {
    let left = |resource: &str, least: i64| {
        let whole = allocatable(node_info, resource);
        let requested = node_info.requested.get(resource).copied().unwrap_or_default();
        let requested_by_pod = requested_by_pod
            .get(resource)
            .copied()
            .filter(|requested_by_pod| *requested_by_pod > 0)
            .unwrap_or(least);
        let left = whole.saturating_sub(requested.saturating_add(requested_by_pod)).max(0);
        if whole > 0 { i64::try_from(i128::from(left) * 100 / i128::from(whole)).unwrap_or(100) } else { 0 }
    };
    (left("cpu", 100) + left("memory", 200 << 20)) / 2
}

fn allocatable(node_info: &NodeInfo, resource: &str) -> i64 {
    node_info.node.status.allocatable.get(resource).map_or(0, |quantity| amount(resource, *quantity))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::{node_info, pod};
    use super::*;

    /// Taints and tolerations.
    #[test]
    fn untolerated_taints_reject_the_pod() {
        let taint = |effect: &str| json!([{"key": "k", "value": "v", "effect": effect}]);
        for (rule, taints, tolerations, expected) in [
            ("no taint", json!([]), json!([]), true),
            ("NoSchedule rejects", taint("NoSchedule"), json!([]), false),
            ("NoExecute rejects", taint("NoExecute"), json!([]), false),
            ("PreferNoSchedule does not", taint("PreferNoSchedule"), json!([]), true),
            ("equal by default", taint("NoSchedule"), json!([{"key": "k", "value": "v"}]), true),
            (
                "another value",
                taint("NoSchedule"),
                json!([{"key": "k", "operator": "Equal", "value": "w"}]),
                false,
            ),
            ("exists", taint("NoSchedule"), json!([{"key": "k", "operator": "Exists"}]), true),
            ("another key", taint("NoSchedule"), json!([{"key": "l", "operator": "Exists"}]), false),
            ("all keys", taint("NoExecute"), json!([{"operator": "Exists"}]), true),
            (
                "another effect",
                taint("NoSchedule"),
                json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]),
                false,
            ),
            ("unknown operator", taint("NoSchedule"), json!([{"key": "k", "operator": "Gt"}]), false),
            (
                "not-ready taint with NoSchedule, tolerated for NoExecute only",
                json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]),
                json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]),
                false,
            ),
        ] {
            let pod = pod(json!({"spec": {"tolerations": tolerations}}));
            let node_info = node_info(json!({"spec": {"taints": taints}}));
            assert_eq!(tolerates_taints(&pod, &node_info), expected, "{rule}");
        }
        let prefer = node_info(json!({"spec": {"taints": taint("PreferNoSchedule")}}));
        assert_eq!(prefer_no_schedule_count(&pod(json!({})), &prefer), 1);
        assert_eq!(
            prefer_no_schedule_count(
                &pod(json!({"spec": {"tolerations": [{"operator": "Exists"}]}})),
                &prefer
            ),
            0
        );
    }

    #[test]
    fn cordoned_node_rejects_pods_without_toleration() {
        let cordoned = node_info(json!({"spec": {"unschedulable": true}}));
        assert!(!is_schedulable(&pod(json!({})), &cordoned));
        let daemon = json!({"spec": {"tolerations": [
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
        ]}});
        assert!(is_schedulable(&pod(daemon), &cordoned));
        assert!(is_schedulable(&pod(json!({})), &node_info(json!({}))));
    }

    /// nodeSelector and required node affinity.
    #[test]
    fn node_selector_and_required_affinity_must_match() {
        let node = node_info(json!({"metadata": {"name": "n1", "labels": {"zone": "a", "disk": "ssd"}}}));
        let affinity = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        for (spec, expected) in [
            (json!({}), true),
            (json!({"affinity": {}}), true),
            (json!({"nodeSelector": {"zone": "a", "disk": "ssd"}}), true),
            (json!({"nodeSelector": {"zone": "a", "disk": "hdd"}}), false),
            (
                affinity(json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}])),
                true,
            ),
            (
                affinity(
                    json!([{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}]),
                ),
                false,
            ),
            (
                affinity(
                    json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]),
                ),
                true,
            ),
            (
                affinity(
                    json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]),
                ),
                false,
            ),
            (affinity(json!([])), false),
        ] {
            assert_eq!(matches_node_selector(&pod(json!({"spec": spec.clone()})), &node), expected, "{spec}");
        }
    }

    /// Requests against allocatable.
    #[test]
    fn requests_must_fit_into_allocatable() {
        let mut node = node_info(
            json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3", "x.io/gpu": "1"}}}),
        );
        node.pods = 1;
        node.requested = [("cpu".to_owned(), 1500), ("memory".to_owned(), 1 << 29)].into();
        let lacking = |requested_by_pod: &[(&str, i64)]| {
            insufficient_resources(
                &requested_by_pod
                    .iter()
                    .map(|&(resource, requested_by_pod)| (resource.to_owned(), requested_by_pod))
                    .collect(),
                &node,
            )
        };
        assert_eq!(lacking(&[]), [""; 0]);
        assert_eq!(lacking(&[("cpu", 500), ("memory", 1 << 29), ("x.io/gpu", 1)]), [""; 0]);
        assert_eq!(
            lacking(&[("cpu", 501), ("memory", (1 << 29) + 1)]),
            ["Insufficient cpu", "Insufficient memory"]
        );
        assert_eq!(lacking(&[("x.io/gpu", 2)]), ["Insufficient x.io/gpu"]);
        assert_eq!(lacking(&[("ephemeral-storage", 1)]), ["Insufficient ephemeral-storage"]);
        assert_eq!(lacking(&[("ephemeral-storage", 0)]), [""; 0]);
        node.pods = 2;
        assert_eq!(insufficient_resources(&Requests::new(), &node), [""; 0], "the last pod fits");
        node.pods = 3;
        assert_eq!(insufficient_resources(&Requests::new(), &node), ["Too many pods"]);
        // A pod that requests nothing fits, even if the node is overcommitted.
        node.pods = 1;
        node.requested = [("cpu".to_owned(), 3000)].into();
        assert_eq!(insufficient_resources(&[("cpu".to_owned(), 0)].into(), &node), [""; 0]);
        // A node without allocatable accepts no pod.
        assert_eq!(
            insufficient_resources(&Requests::new(), &node_info(json!({"status": {"allocatable": {}}}))),
            ["Too many pods"]
        );
    }

    /// Upstream's LeastAllocated: the free share of CPU and memory with the pod on the node.
    #[test]
    fn least_allocated_score_is_the_free_share() {
        let whole = || node_info(json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}}));
        let mut used = whole();
        used.requested = [("cpu".to_owned(), 500), ("memory".to_owned(), 1 << 28)].into();
        let mut full = whole();
        full.requested = [("cpu".to_owned(), 9000), ("memory".to_owned(), 1 << 40)].into();
        let bare = node_info(json!({"status": {"allocatable": {}}}));
        for (rule, node, cpu, memory, expected) in [
            ("half of both", whole(), 1000, 1 << 29, 50),
            ("half of one, a quarter of the other", whole(), 1000, 1 << 28, 62),
            ("defaults without requests: 100m CPU, 200Mi", whole(), 0, 0, 87),
            ("requests of other pods count", used, 500, 1 << 28, 50),
            ("more than there is", full, 1000, 1 << 29, 0),
            ("a node without allocatable", bare, 1000, 1 << 29, 0),
        ] {
            let requested_by_pod = [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into();
            assert_eq!(least_allocated_score(&requested_by_pod, &node), expected, "{rule}");
        }
    }
}
