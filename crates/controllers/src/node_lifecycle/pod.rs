//! The rules for one pod: its node is gone, off, silent or tainted.

use std::time::Duration;

use wharf_model::names::taint;
use wharf_model::node::Taint;
use wharf_model::{Monotonic, Node, Pod};

/// How long a node has to be missing before its pods are deleted: upstream's quarantine.
pub(super) const QUARANTINE: Duration = Duration::from_secs(40);

/// The inputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodView<'a> {
    pub(super) pod: &'a Pod,
    /// Its node; `None` if the store does not have it.
    pub(super) node: Option<&'a Node>,
    /// When this process first saw that the node is missing.
    pub(super) missing_since: Monotonic,
    /// The node is silent, and the pod has not been reported as not ready for that.
    pub(super) report_not_ready: bool,
    /// When this process first saw a taint that the pod does not tolerate forever.
    pub(super) tainted_since: Option<Monotonic>,
}

/// Why a pod is removed without its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Garbage {
    /// Its node does not exist.
    NodeMissing,
    /// An administrator confirmed that its node is off.
    OutOfService,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodStep {
    Idle,
    Wait(Duration),
    /// Removes it at once, without its node: after a live GET of the node.
    Collect(Garbage),
    /// Sets its Ready condition to False.
    ReportNotReady,
    /// Remembers when its node was tainted.
    StartCountdown,
    /// Forgets that time.
    StopCountdown,
    /// Deletes it, after a live GET of the node.
    Evict,
}

/// The next step for a pod.
pub(super) fn decide(view: &PodView<'_>, now: Monotonic) -> PodStep {
    let pod = view.pod;
    let gone = pod.metadata.is_deleting() && pod.metadata.deletion_grace_period_seconds == Some(0);
    if pod.node_name.is_empty() || gone {
        return stop(view);
    }
    let Some(node) = view.node else {
        let missing = now.since(view.missing_since);
        return match QUARANTINE.checked_sub(missing).filter(|left| !left.is_zero()) {
            Some(left) => PodStep::Wait(left),
            None => PodStep::Collect(Garbage::NodeMissing),
        };
    };
    if pod.metadata.is_deleting() && !node.is_ready() && node.has_taint(taint::OUT_OF_SERVICE) {
        return PodStep::Collect(Garbage::OutOfService);
    }
    let is_ready =
        pod.status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True");
    if view.report_not_ready && is_ready {
        return PodStep::ReportNotReady;
    }
    if pod.metadata.is_deleting() {
        return stop(view);
    }
    match (tolerated_for(pod, &node.spec.taints), view.tainted_since) {
        (None, _) => stop(view),
        (Some(Duration::ZERO), _) => PodStep::Evict,
        (Some(_), None) => PodStep::StartCountdown,
        (Some(tolerated), Some(since)) => {
            match tolerated.checked_sub(now.since(since)).filter(|left| !left.is_zero()) {
                Some(left) => PodStep::Wait(left),
                None => PodStep::Evict,
            }
        }
    }
}

fn stop(view: &PodView<'_>) -> PodStep {
    if view.tainted_since.is_some() { PodStep::StopCountdown } else { PodStep::Idle }
}

/// For how long the pod tolerates these taints; `None` is forever. As upstream: of each NoExecute taint the first
/// toleration that matches counts, and the shortest of them applies.
fn tolerated_for(pod: &Pod, taints: &[Taint]) -> Option<Duration> {
    let evicting = taints.iter().filter(|taint| taint.effect == taint::NO_EXECUTE);
    let tolerated = evicting.map(|taint| {
        let toleration = pod.spec.tolerations.iter().find(|toleration| toleration.tolerates(taint));
        let seconds = toleration.map_or(Some(0), |toleration| toleration.toleration_seconds);
        seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    });
    tolerated.flatten().min()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(0).plus(Duration::from_secs(seconds))
    }

    fn pod(body: Value) -> Pod {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n"}});
        for (field, value) in body.as_object().unwrap() {
            match pod[field].as_object_mut() {
                Some(map) => map.extend(value.as_object().unwrap().clone()),
                None => pod[field] = value.clone(),
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    fn node(ready: &str, taints: &[(&str, &str)]) -> Node {
        let taints: Vec<_> =
            taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect})).collect();
        let conditions = json!([{"type": "Ready", "status": ready}]);
        serde_json::from_value(
            json!({"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {"conditions": conditions}}),
        )
        .unwrap()
    }

    fn deleting(grace: i64) -> Value {
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}})
    }

    /// kubernetes.md 1.9 "Pod of a missing node", "Pod of a node out of service".
    #[test]
    fn only_pods_of_a_node_that_is_gone_or_off_are_collected() {
        let off = |ready| Some(node(ready, &[(taint::OUT_OF_SERVICE, taint::NO_EXECUTE)]));
        let tolerant = json!({"spec": {"nodeName": "n", "tolerations": [{"operator": "Exists"}]}});
        let merged = |mut one: Value, other: Value| {
            one.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
            one
        };
        for (rule, body, node, now, expected) in [
            ("node exists", json!({}), Some(node("True", &[])), 100, PodStep::Idle),
            ("no node", json!({"spec": {"nodeName": ""}}), None, 100, PodStep::Idle),
            ("missing for a moment", json!({}), None, 10, PodStep::Wait(Duration::from_secs(40))),
            (
                "missing for less than the quarantine",
                json!({}),
                None,
                49,
                PodStep::Wait(Duration::from_secs(1)),
            ),
            ("missing for longer", json!({}), None, 50, PodStep::Collect(Garbage::NodeMissing)),
            (
                "ended",
                json!({"status": {"phase": "Succeeded"}}),
                None,
                50,
                PodStep::Collect(Garbage::NodeMissing),
            ),
            ("being deleted", deleting(30), None, 50, PodStep::Collect(Garbage::NodeMissing)),
            ("deleted, has finalizers", deleting(0), None, 50, PodStep::Idle),
            (
                "node off, being deleted",
                deleting(30),
                off("Unknown"),
                1,
                PodStep::Collect(Garbage::OutOfService),
            ),
            ("node off, not being deleted", tolerant.clone(), off("Unknown"), 100, PodStep::Idle),
            ("node says that it is not off", merged(deleting(30), tolerant), off("True"), 100, PodStep::Idle),
            ("node off, deleted", deleting(0), off("Unknown"), 1, PodStep::Idle),
            ("node silent, being deleted", deleting(30), Some(node("Unknown", &[])), 100, PodStep::Idle),
        ] {
            let pod = pod(body);
            let view = PodView {
                pod: &pod,
                node: node.as_ref(),
                missing_since: at(10),
                report_not_ready: false,
                tainted_since: None,
            };
            assert_eq!(decide(&view, at(now)), expected, "{rule}");
        }
    }

    /// kubernetes.md 1.9 "Eviction".
    #[test]
    fn pod_is_evicted_after_the_shortest_toleration() {
        let a = ("a", taint::NO_EXECUTE);
        let b = ("b", taint::NO_EXECUTE);
        let tolerates = |key: &str, seconds: Value| json!({"key": key, "operator": "Exists", "tolerationSeconds": seconds});
        let wait = |seconds| PodStep::Wait(Duration::from_secs(seconds));
        for (rule, taints, tolerations, since, now, expected) in [
            ("no taint", &[][..], json!([]), None, 0, PodStep::Idle),
            ("keeps others out only", &[("a", taint::NO_SCHEDULE)], json!([]), None, 0, PodStep::Idle),
            ("not tolerated", &[a], json!([]), None, 0, PodStep::Evict),
            ("tolerated forever", &[a], json!([tolerates("a", Value::Null)]), None, 999, PodStep::Idle),
            (
                "one of two not tolerated",
                &[a, b],
                json!([tolerates("a", Value::Null)]),
                None,
                0,
                PodStep::Evict,
            ),
            ("tolerated, new", &[a], json!([tolerates("a", json!(300))]), None, 7, PodStep::StartCountdown),
            ("tolerated", &[a], json!([tolerates("a", json!(300))]), Some(7), 107, wait(200)),
            ("toleration over", &[a], json!([tolerates("a", json!(300))]), Some(7), 307, PodStep::Evict),
            (
                "the shortest",
                &[a, b],
                json!([tolerates("a", json!(300)), tolerates("b", json!(9))]),
                Some(0),
                4,
                wait(5),
            ),
            (
                "forever and for a time",
                &[a, b],
                json!([tolerates("a", Value::Null), tolerates("b", json!(9))]),
                Some(0),
                4,
                wait(5),
            ),
            (
                "the first that matches",
                &[a],
                json!([tolerates("a", json!(9)), tolerates("a", Value::Null)]),
                Some(0),
                4,
                wait(5),
            ),
            ("zero", &[a], json!([tolerates("a", json!(0))]), None, 0, PodStep::Evict),
            ("negative is zero", &[a], json!([tolerates("a", json!(-1))]), None, 0, PodStep::Evict),
            ("taint removed", &[], json!([]), Some(0), 4, PodStep::StopCountdown),
        ] {
            let pod = pod(json!({"spec": {"nodeName": "n", "tolerations": tolerations}}));
            let node = node("True", taints);
            let view = PodView {
                pod: &pod,
                node: Some(&node),
                missing_since: at(0),
                report_not_ready: false,
                tainted_since: since.map(at),
            };
            assert_eq!(decide(&view, at(now)), expected, "{rule}");
        }
        let pod = pod(deleting(30));
        let node = node("True", &[a]);
        let view = PodView {
            pod: &pod,
            node: Some(&node),
            missing_since: at(0),
            report_not_ready: false,
            tainted_since: None,
        };
        assert_eq!(decide(&view, at(9)), PodStep::Idle, "being deleted already");
    }

    /// kubernetes.md 1.9 "Pods of a lost node".
    #[test]
    fn ready_pod_of_a_silent_node_is_reported_as_not_ready() {
        for (status, report_not_ready, expected) in [
            ("True", true, PodStep::ReportNotReady),
            ("True", false, PodStep::Idle),
            ("False", true, PodStep::Idle),
        ] {
            let conditions = json!([{"type": "Ready", "status": status}]);
            let pod = pod(json!({"status": {"conditions": conditions}}));
            let node = node("Unknown", &[]);
            let view = PodView {
                pod: &pod,
                node: Some(&node),
                missing_since: at(0),
                report_not_ready,
                tainted_since: None,
            };
            assert_eq!(decide(&view, at(0)), expected, "{status} {report_not_ready}");
        }
    }
}
