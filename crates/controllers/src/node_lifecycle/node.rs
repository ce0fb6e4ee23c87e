//! The rules for one node: its conditions, and the taints that follow from them.

use serde_json::{Value, json};
use wharf_model::names::taint;
use wharf_model::patch::Patch;
use wharf_model::{Node, Time};

/// The conditions that kubelet maintains.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
/// The conditions that keep pods off a node while they are True, with their taints.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", taint::MEMORY_PRESSURE),
    ("DiskPressure", taint::DISK_PRESSURE),
    ("PIDPressure", taint::PID_PRESSURE),
    ("NetworkUnavailable", taint::NETWORK_UNAVAILABLE),
];
/// A cluster in which at most this many nodes are not healthy is not disrupted.
const UNDISRUPTED: usize = 2;
/// Percentage of nodes that are not healthy at which a cluster is disrupted.
const DISRUPTED_PERCENT: usize = 55;

/// How much of the cluster is not healthy. If it is much, the cause is more likely the network, or the API server, than
/// the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disruption {
    /// Nodes that are not healthy lose their pods.
    None,
    /// No further node loses its pods.
    Partial,
    /// No node is healthy: none loses its pods.
    Full,
}

impl Disruption {
    /// For this many nodes, of which so many are Ready and not silent.
    pub(super) fn of(nodes: usize, healthy: usize) -> Self {
        let lost = nodes.saturating_sub(healthy);
        if nodes > 0 && healthy == 0 {
            Self::Full
        } else if lost > UNDISRUPTED && lost * 100 >= nodes * DISRUPTED_PERCENT {
            Self::Partial
        } else {
            Self::None
        }
    }
}

/// The inputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeView<'a> {
    pub(super) node: &'a Node,
    /// It has shown no sign of life for longer than the grace period.
    pub(super) silent: bool,
    pub(super) disruption: Disruption,
    /// The rate limit allows that one more node loses its pods.
    pub(super) may_evict: bool,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeStep {
    Idle,
    /// Writes that the state of the node is unknown.
    MarkUnknown(Patch),
    /// Updates the taints.
    Taint {
        patch: Patch,
        /// The patch adds a taint that evicts pods.
        evicts: bool,
    },
}

/// The next step for a node.
pub(super) fn decide(view: &NodeView<'_>, now: Time) -> NodeStep {
    let node = view.node;
    if view.silent && ready_status(node) != Some("Unknown") {
        return NodeStep::MarkUnknown(unknown(node, now));
    }
    let current = &node.spec.taints;
    let (mut add, mut remove) = (Vec::new(), Vec::new());
    let mut evicts = false;
    for (key, effect, wanted) in wanted(view) {
        let at = current.iter().position(|taint| taint.key == key && taint.effect == effect);
        match (at, wanted) {
            (None, Some(true)) => {
                evicts |= effect == taint::NO_EXECUTE;
                add.push(json!({"key": key, "effect": effect, "timeAdded": now.to_string()}));
            }
            (Some(at), Some(false)) => remove.push(at),
            (Some(_), Some(true)) | (None, Some(false)) | (_, None) => {}
        }
    }
    match add.is_empty() && remove.is_empty() {
        true => NodeStep::Idle,
        false => NodeStep::Taint { patch: taints(node, add, remove), evicts },
    }
}

fn ready_status(node: &Node) -> Option<&str> {
    condition(node, "Ready")
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a str> {
    let conditions = node.status.conditions.iter();
    conditions.into_iter().find(|condition| condition.kind == kind).map(|condition| &*condition.status)
}

/// The taints that this controller maintains: key, effect, and whether the node should have it; `None` leaves it as it
/// is.
fn wanted<'a>(view: &NodeView<'_>) -> Vec<(&'a str, &'a str, Option<bool>)> {
    let ready = ready_status(view.node);
    // A node without the condition has not reported yet. It keeps the taint that the server put on it.
    let (not_ready, unreachable) = (ready == Some("False"), ready == Some("Unknown"));
    let unless_new = |wanted: bool| ready.map(|_| wanted);
    let evict = |key: &str, wanted: bool, certain: bool| {
        let has =
            view.node.spec.taints.iter().any(|taint| taint.key == key && taint.effect == taint::NO_EXECUTE);
        match (wanted, view.disruption) {
            (false, _) | (true, Disruption::Full) => Some(false),
            (true, Disruption::Partial) => None,
            (true, Disruption::None) => (has || (certain && view.may_evict)).then_some(true),
        }
    };
    let mut wanted = vec![
        (taint::NOT_READY, taint::NO_SCHEDULE, unless_new(not_ready)),
        (taint::UNREACHABLE, taint::NO_SCHEDULE, Some(unreachable)),
        (taint::UNSCHEDULABLE, taint::NO_SCHEDULE, Some(view.node.spec.unschedulable)),
        (taint::NOT_READY, taint::NO_EXECUTE, evict(taint::NOT_READY, not_ready, true)),
        (taint::UNREACHABLE, taint::NO_EXECUTE, evict(taint::UNREACHABLE, unreachable, view.silent)),
    ];
    wanted.extend(
        PRESSURES
            .map(|(kind, key)| (key, taint::NO_SCHEDULE, Some(condition(view.node, kind) == Some("True")))),
    );
    wanted
}

/// All conditions of kubelet as Unknown, with upstream's reasons.
fn unknown(node: &Node, now: Time) -> Patch {
    let conditions = CONDITIONS.iter().filter_map(|&kind| match condition(node, kind) {
        Some("Unknown") => None,
        Some(_) => Some(json!({
            "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.", "lastTransitionTime": now.to_string(),
        })),
        None => Some(json!({
            "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
            "message": "Kubelet never posted node status.", "lastTransitionTime": now.to_string(),
            "lastHeartbeatTime": node.metadata.creation_timestamp.unwrap_or(now).to_string(),
        })),
    });
    let conditions: Vec<Value> = conditions.collect();
    let metadata = json!({"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version});
    Patch::Strategic(json!({"metadata": metadata, "status": {"conditions": conditions}}))
}

/// Adds taints and removes those at these positions, of this version of the node only.
fn taints(node: &Node, add: Vec<Value>, mut remove: Vec<usize>) -> Patch {
    let test = |field: &str, value: &str| json!({"op": "test", "path": format!("/metadata/{field}"), "value": value});
    let mut operations =
        vec![test("uid", &node.metadata.uid), test("resourceVersion", &node.metadata.resource_version)];
    // From the end, so that the other positions stay valid.
    remove.sort_unstable();
    let removed = remove.iter().rev().map(|at| json!({"op": "remove", "path": format!("/spec/taints/{at}")}));
    operations.extend(removed);
    if node.spec.taints.is_empty() {
        operations.push(json!({"op": "add", "path": "/spec/taints", "value": add}));
    } else {
        let add = add.into_iter().map(|taint| json!({"op": "add", "path": "/spec/taints/-", "value": taint}));
        operations.extend(add);
    }
    Patch::Json(Value::Array(operations))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_EXECUTE: &str = taint::NO_EXECUTE;
    const NO_SCHEDULE: &str = taint::NO_SCHEDULE;

    fn node(conditions: &[(&str, &str)], taints: &[(&str, &str)]) -> Node {
        let conditions: Vec<_> =
            conditions.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect();
        let taints: Vec<_> =
            taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7"},
            "spec": {"taints": taints}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn view(node: &Node) -> NodeView<'_> {
        NodeView { node, silent: false, disruption: Disruption::None, may_evict: true }
    }

    /// The taints after the step, in order; `None` if the step is not a patch of taints.
    fn taints_after(view: &NodeView<'_>) -> Option<Vec<(String, String)>> {
        let mut taints: Vec<_> =
            view.node.spec.taints.iter().map(|taint| (taint.key.clone(), taint.effect.clone())).collect();
        let of = |value: &Value| {
            let text = |field: &str| value[field].as_str().unwrap().to_owned();
            assert_eq!(value["timeAdded"], "1970-01-01T00:00:00Z");
            (text("key"), text("effect"))
        };
        match decide(view, Time(0)) {
            NodeStep::Idle => {}
            NodeStep::MarkUnknown(_) => return None,
            NodeStep::Taint { patch, evicts } => {
                let operations = patch.body().as_array().unwrap();
                assert_eq!(operations[0], json!({"op": "test", "path": "/metadata/uid", "value": "u"}));
                let version = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
                assert_eq!(operations[1], version);
                let before = taints.clone();
                for operation in &operations[2..] {
                    let path = operation["path"].as_str().unwrap().trim_start_matches("/spec/taints");
                    match (operation["op"].as_str().unwrap(), path.trim_start_matches('/')) {
                        ("remove", at) => drop(taints.remove(at.parse().unwrap())),
                        ("add", "-") => taints.push(of(&operation["value"])),
                        ("add", "") => taints.extend(operation["value"].as_array().unwrap().iter().map(of)),
                        other => panic!("{other:?}"),
                    }
                }
                let added = taints.iter().filter(|taint| !before.contains(taint));
                assert_eq!(evicts, added.into_iter().any(|(_, effect)| effect == NO_EXECUTE));
            }
        }
        Some(taints)
    }

    /// kubernetes.md 1.9 "Taints": from conditions and present taints to the taints after the step.
    #[test]
    fn taints_follow_conditions() {
        const NOT_READY: &str = taint::NOT_READY;
        const UNREACHABLE: &str = taint::UNREACHABLE;
        let (ready, not_ready, unknown) = ([("Ready", "True")], [("Ready", "False")], [("Ready", "Unknown")]);
        let mine = ("mine", NO_EXECUTE);
        let created = [(NOT_READY, NO_SCHEDULE)];
        type Taints<'a> = &'a [(&'a str, &'a str)];
        let table: [(&str, Taints<'_>, Taints<'_>, Taints<'_>); 11] = [
            ("new, not reported yet", &[], &created, &created),
            ("joined", &ready, &[(NOT_READY, NO_SCHEDULE), mine], &[mine]),
            ("ready", &ready, &[mine], &[mine]),
            ("not ready", &not_ready, &[], &[(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)]),
            (
                "not ready, present",
                &not_ready,
                &created,
                &[(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)],
            ),
            (
                "from not ready to unknown",
                &unknown,
                &[(NOT_READY, NO_SCHEDULE), mine, (NOT_READY, NO_EXECUTE)],
                &[mine, (UNREACHABLE, NO_SCHEDULE)],
            ),
            (
                "unknown before this process started: an evicting taint stays",
                &unknown,
                &[(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)],
                &[(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)],
            ),
            ("back again", &ready, &[(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)], &[]),
            (
                "pressure",
                &[
                    ("Ready", "True"),
                    ("DiskPressure", "True"),
                    ("PIDPressure", "True"),
                    ("MemoryPressure", "False"),
                ],
                &[(taint::MEMORY_PRESSURE, NO_SCHEDULE)],
                &[(taint::DISK_PRESSURE, NO_SCHEDULE), (taint::PID_PRESSURE, NO_SCHEDULE)],
            ),
            ("no longer cordoned", &ready, &[(taint::UNSCHEDULABLE, NO_SCHEDULE)], &[]),
            (
                "other effects are not ours",
                &ready,
                &[(NOT_READY, "PreferNoSchedule")],
                &[(NOT_READY, "PreferNoSchedule")],
            ),
        ];
        for (rule, conditions, taints, expected) in table {
            let node = node(conditions, taints);
            let after = taints_after(&view(&node)).unwrap();
            let after: Vec<(&str, &str)> = after.iter().map(|(key, effect)| (&**key, &**effect)).collect();
            assert_eq!(after, expected, "{rule}");
        }
        let mut cordoned = node(&ready, &[]);
        cordoned.spec = wharf_model::node::NodeSpec { unschedulable: true, taints: Vec::new() }.into();
        let expected = vec![(taint::UNSCHEDULABLE.to_owned(), NO_SCHEDULE.to_owned())];
        assert_eq!(taints_after(&view(&cordoned)), Some(expected), "cordoned");
    }

    /// kubernetes.md 1.9 "Disruption".
    #[test]
    fn disrupted_cluster_evicts_nothing() {
        for (nodes, healthy, expected) in [
            (0, 0, Disruption::None),
            (1, 1, Disruption::None),
            (1, 0, Disruption::Full),
            (9, 0, Disruption::Full),
            (2, 1, Disruption::None),
            (3, 1, Disruption::None),
            (4, 1, Disruption::Partial),
            (6, 3, Disruption::None),
            (20, 9, Disruption::Partial),
            (20, 10, Disruption::None),
        ] {
            assert_eq!(Disruption::of(nodes, healthy), expected, "{healthy} of {nodes}");
        }
        let evicting = [(taint::UNREACHABLE, NO_SCHEDULE), (taint::UNREACHABLE, NO_EXECUTE)];
        let (with, without) = (&evicting[..], &evicting[..1]);
        let lost = |taints| node(&[("Ready", "Unknown")], taints);
        for (rule, taints, silent, disruption, may_evict, expected) in [
            ("lost", without, true, Disruption::None, true, with),
            ("within the rate limit", without, true, Disruption::None, false, without),
            ("not known to be silent", without, false, Disruption::None, true, without),
            ("kept by the rate limit", with, true, Disruption::None, false, with),
            ("partial: no more", without, true, Disruption::Partial, true, without),
            ("partial: as they are", with, true, Disruption::Partial, true, with),
            ("full: none", with, true, Disruption::Full, true, without),
        ] {
            let node = lost(taints);
            let view = NodeView { node: &node, silent, disruption, may_evict };
            let after = taints_after(&view).unwrap();
            let after: Vec<(&str, &str)> = after.iter().map(|(key, effect)| (&**key, &**effect)).collect();
            assert_eq!(after, expected, "{rule}");
        }
    }

    /// kubernetes.md 1.9 "Lost node".
    #[test]
    fn silent_node_becomes_unknown_with_upstream_reasons() {
        let lost = node(&[("Ready", "True"), ("DiskPressure", "Unknown"), ("Other", "True")], &[]);
        let NodeStep::MarkUnknown(patch) = decide(&NodeView { silent: true, ..view(&lost) }, Time(0)) else {
            panic!("not marked");
        };
        let body = patch.body();
        assert_eq!(body["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        let at = "1970-01-01T00:00:00Z";
        let never = |kind: &str| {
            json!({"type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.", "lastTransitionTime": at, "lastHeartbeatTime": at})
        };
        let expected = json!([
            {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.", "lastTransitionTime": at},
            never("MemoryPressure"),
            never("PIDPressure"),
        ]);
        assert_eq!(body["status"]["conditions"], expected);
        let unknown = node(&[("Ready", "Unknown")], &[]);
        let view = NodeView { silent: true, ..view(&unknown) };
        assert!(matches!(decide(&view, Time(0)), NodeStep::Taint { evicts: true, .. }), "once");
    }
}
