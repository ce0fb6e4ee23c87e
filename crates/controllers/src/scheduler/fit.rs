//! Whether a node will have a pod, volumes aside: unschedulable, taints, affinity, resources. In upstream's words.

use wharf_model::topology::selects;
use wharf_model::whole::Pod;
use wharf_model::whole::node::Taint;
use wharf_model::whole::pod::Toleration;

use super::requests::{Requests, amount};
use super::view::Place;

const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

pub(super) const UNSCHEDULABLE: &str = "node(s) were unschedulable";
pub(super) const TAINTED: &str = "node(s) had untolerated taint(s)";
pub(super) const NOT_SELECTED: &str = "node(s) didn't match Pod's node affinity/selector";
pub(super) const TOO_MANY_PODS: &str = "Too many pods";

/// Whether the node takes new pods, or the pod does not mind.
pub(super) fn takes_pods(pod: &Pod, place: &Place) -> bool {
    let taint =
        Taint { key: UNSCHEDULABLE_TAINT.to_owned(), value: String::new(), effect: "NoSchedule".to_owned() };
    !place.node.spec.unschedulable || tolerates(pod, &taint)
}

/// Whether the pod does not mind what keeps pods off the node. A node that is not ready says so by taints.
pub(super) fn tolerates_all(pod: &Pod, place: &Place) -> bool {
    let keeps_off = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    place.node.spec.taints.iter().filter(keeps_off).all(|taint| tolerates(pod, taint))
}

/// How many taints ask that the pod go elsewhere if it can.
pub(super) fn unwelcome(pod: &Pod, place: &Place) -> usize {
    let asks = |taint: &&Taint| taint.effect == "PreferNoSchedule" && !tolerates(pod, taint);
    place.node.spec.taints.iter().filter(asks).count()
}

fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    let means = |toleration: &Toleration| {
        (toleration.effect.is_empty() || toleration.effect == taint.effect)
            && (toleration.key.is_empty() || toleration.key == taint.key)
            && match toleration.operator.as_str() {
                "" | "Equal" => toleration.value == taint.value,
                "Exists" => true,
                _ => false,
            }
    };
    pod.spec.tolerations.iter().any(means)
}

/// Whether the node is one of those that the pod asks for.
pub(super) fn is_selected(pod: &Pod, place: &Place) -> bool {
    let labels = pod.spec.node_selector.iter().all(|(key, value)| place.labels.get(key) == Some(value));
    let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    labels && required.is_none_or(|required| selects(required, place.name(), &place.labels))
}

/// What the node has too little of. One more pod is one more pod, whatever it asks for.
pub(super) fn lacks(asked: &Requests, place: &Place) -> Vec<String> {
    let mut lacking = Vec::new();
    if place.pods + 1 > allocatable(place, "pods") {
        lacking.push(TOO_MANY_PODS.to_owned());
    }
    for (resource, &asked) in asked.iter().filter(|(_, asked)| **asked > 0) {
        let requested = place.requested.get(resource).copied().unwrap_or_default();
        if asked > allocatable(place, resource).saturating_sub(requested) {
            lacking.push(format!("Insufficient {resource}"));
        }
    }
    lacking
}

/// How empty the node is with the pod on it, of 100: upstream's LeastAllocated, for which who asks for nothing asks for
/// a little.
pub(super) fn room(asked: &Requests, place: &Place) -> i64 {
    let left = |resource: &str, least: i64| {
        let whole = allocatable(place, resource);
        let requested = place.requested.get(resource).copied().unwrap_or_default();
        let asked = asked.get(resource).copied().filter(|asked| *asked > 0).unwrap_or(least);
        let left = whole.saturating_sub(requested.saturating_add(asked)).max(0);
        if whole > 0 { i64::try_from(i128::from(left) * 100 / i128::from(whole)).unwrap_or(100) } else { 0 }
    };
    (left("cpu", 100) + left("memory", 200 << 20)) / 2
}

fn allocatable(place: &Place, resource: &str) -> i64 {
    place.node.status.allocatable.get(resource).map_or(0, |quantity| amount(resource, *quantity))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::{place, pod};
    use super::*;

    /// Taints and tolerations.
    #[test]
    fn taints() {
        let taint = |effect: &str| json!([{"key": "k", "value": "v", "effect": effect}]);
        for (rule, taints, tolerations, expected) in [
            ("no taint", json!([]), json!([]), true),
            ("NoSchedule keeps off", taint("NoSchedule"), json!([]), false),
            ("NoExecute keeps off", taint("NoExecute"), json!([]), false),
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
            (
                "an operator of later days",
                taint("NoSchedule"),
                json!([{"key": "k", "operator": "Gt"}]),
                false,
            ),
            (
                "a node that is not ready, and a pod that waits for it to fail",
                json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]),
                json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]),
                false,
            ),
        ] {
            let pod = pod(json!({"spec": {"tolerations": tolerations}}));
            let place = place(json!({"spec": {"taints": taints}}));
            assert_eq!(tolerates_all(&pod, &place), expected, "{rule}");
        }
        let prefer = place(json!({"spec": {"taints": taint("PreferNoSchedule")}}));
        assert_eq!(unwelcome(&pod(json!({})), &prefer), 1);
        assert_eq!(unwelcome(&pod(json!({"spec": {"tolerations": [{"operator": "Exists"}]}})), &prefer), 0);
    }

    /// Unschedulable.
    #[test]
    fn cordoned() {
        let cordoned = place(json!({"spec": {"unschedulable": true}}));
        assert!(!takes_pods(&pod(json!({})), &cordoned));
        let daemon = json!({"spec": {"tolerations": [
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
        ]}});
        assert!(takes_pods(&pod(daemon), &cordoned));
        assert!(takes_pods(&pod(json!({})), &place(json!({}))));
    }

    /// nodeSelector and required node affinity.
    #[test]
    fn selection() {
        let node = place(json!({"metadata": {"name": "n1", "labels": {"zone": "a", "disk": "ssd"}}}));
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
            assert_eq!(is_selected(&pod(json!({"spec": spec.clone()})), &node), expected, "{spec}");
        }
    }

    /// Requests against allocatable.
    #[test]
    fn resources() {
        let mut node = place(
            json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3", "x.io/gpu": "1"}}}),
        );
        node.pods = 1;
        node.requested = [("cpu".to_owned(), 1500), ("memory".to_owned(), 1 << 29)].into();
        let lacking = |asked: &[(&str, i64)]| {
            lacks(&asked.iter().map(|&(resource, asked)| (resource.to_owned(), asked)).collect(), &node)
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
        assert_eq!(lacks(&Requests::new(), &node), [""; 0], "the last one fits");
        node.pods = 3;
        assert_eq!(lacks(&Requests::new(), &node), ["Too many pods"]);
        // Who asks for none of it needs none, however much was promised to others.
        node.pods = 1;
        node.requested = [("cpu".to_owned(), 3000)].into();
        assert_eq!(lacks(&[("cpu".to_owned(), 0)].into(), &node), [""; 0]);
        // A node that says nothing has no room.
        assert_eq!(
            lacks(&Requests::new(), &place(json!({"status": {"allocatable": {}}}))),
            ["Too many pods"]
        );
    }

    /// Upstream's LeastAllocated: of CPU and memory, what is left with the pod there.
    #[test]
    fn emptiness() {
        let whole = || place(json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}}));
        let mut used = whole();
        used.requested = [("cpu".to_owned(), 500), ("memory".to_owned(), 1 << 28)].into();
        let mut full = whole();
        full.requested = [("cpu".to_owned(), 9000), ("memory".to_owned(), 1 << 40)].into();
        let bare = place(json!({"status": {"allocatable": {}}}));
        for (rule, node, cpu, memory, expected) in [
            ("half of both", whole(), 1000, 1 << 29, 50),
            ("half of one, a quarter of the other", whole(), 1000, 1 << 28, 62),
            ("nothing is a little: a tenth of a CPU, 200 Mi", whole(), 0, 0, 87),
            ("others' shares count", used, 500, 1 << 28, 50),
            ("more than there is", full, 1000, 1 << 29, 0),
            ("a node that says nothing", bare, 1000, 1 << 29, 0),
        ] {
            let asked = [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into();
            assert_eq!(room(&asked, &node), expected, "{rule}");
        }
    }
}
