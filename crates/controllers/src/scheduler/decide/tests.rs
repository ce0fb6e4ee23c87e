//! All rules together: their order, their messages, and the choice of the best node.

use serde_json::{Value, json};

use super::super::testing::{bound, claim, csi_node, node_info, on, pod, pod_with, view, view_of, volume};
use super::*;

fn at(name: &str, more: Value) -> NodeInfo {
    let labels = json!({"metadata": {"name": name, "labels": {"host": name}}});
    NodeInfo {
        csi_node: Some(csi_node(json!([{"name": "d"}]))),
        ..node_info(super::super::testing::over(labels, more))
    }
}

fn refusal(view: &View) -> (String, Vec<Cause>) {
    match decide(view) {
        Step::Unschedulable { message, causes } => (message, causes.into_iter().collect()),
        step => panic!("not unschedulable: {step:?}"),
    }
}

fn chosen(view: &View) -> String {
    match decide(view) {
        Step::Schedule { node, .. } => node,
        step => panic!("not scheduled: {step:?}"),
    }
}

/// Upstream's message: reasons with their counts, sorted as text.
#[test]
fn reasons_are_counted() {
    let mut view = view(pod(json!({"spec": {"nodeSelector": {"disk": "ssd"}, "containers": [
        {"resources": {"requests": {"cpu": "8", "memory": "8Gi"}}},
    ]}})));
    assert_eq!(refusal(&view), ("no nodes available to schedule pods".into(), vec![Cause::Node]));
    let ssd = || json!({"metadata": {"labels": {"disk": "ssd"}}});
    let tainted =
        json!({"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}});
    view.nodes = vec![
        at("n1", json!({})),
        at("n2", json!({})),
        at("n3", ssd()),
        at("n4", tainted),
        at("n5", json!({"spec": {"unschedulable": true}})),
    ];
    assert_eq!(
        refusal(&view),
        (
            "0/5 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 node(s) had untolerated taint(s), \
             1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector."
                .into(),
            vec![Cause::Node, Cause::Resources]
        )
    );
}

/// kubernetes.md 1.5 "Bound volumes", "Selected node", "Dynamic provisioning", "Limits", "Zones": the message of each
/// volume rule, on one node.
#[test]
fn volume_rules_reject_with_upstreams_message() {
    let table: Vec<(&str, View, &str, Cause)> = vec![
        (
            "prefilter reports once for all nodes",
            view(pod_with(&["c"])),
            "0/1 nodes are available: persistentvolumeclaim \"c\" not found.",
            Cause::Claims,
        ),
        (
            "ReadWriteOncePod",
            {
                let mut view =
                    view_of(vec![claim("c", json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}))]);
                view.claims_in_use.insert("c".into());
                view
            },
            "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode \
             already in-use by another pod.",
            Cause::InUse,
        ),
        (
            "affinity of the volume",
            {
                let mut view = view_of(vec![bound("c", "v")]);
                view.volumes.insert("v".into(), volume("v", on("n2")));
                view
            },
            "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity.",
            Cause::Volumes,
        ),
        (
            "zone of the volume",
            {
                let mut view = view_of(vec![bound("c", "v")]);
                let zone = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}});
                view.volumes.insert("v".into(), volume("v", zone));
                view.nodes =
                    vec![at("n1", json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}}))];
                view
            },
            "0/1 nodes are available: 1 node(s) had no available volume zone.",
            Cause::Zone,
        ),
        (
            "the driver is missing",
            {
                let mut view = view_of(vec![bound("c", "v")]);
                view.volumes.insert("v".into(), volume("v", json!({})));
                view.nodes = vec![NodeInfo { csi_node: None, ..at("n1", json!({})) }];
                view
            },
            "0/1 nodes are available: 1 d CSI driver is not installed on the node.",
            Cause::Limits,
        ),
        (
            "capacity for new volumes",
            {
                let mut view = view_of(vec![claim("c", json!({}))]);
                let reports_capacity = json!({"spec": {"storageCapacity": true}});
                view.drivers.insert(
                    "d".into(),
                    std::sync::Arc::new(serde_json::from_value(reports_capacity).unwrap()),
                );
                view
            },
            "0/1 nodes are available: 1 node(s) did not have enough free storage.",
            Cause::Volumes,
        ),
    ];
    for (rule, mut view, message, cause) in table {
        if view.nodes.is_empty() {
            view.nodes = vec![at("n1", json!({}))];
        }
        assert_eq!(refusal(&view), (message.to_owned(), vec![cause]), "{rule}");
    }
}

/// The node with the fewest PreferNoSchedule taints wins, then the emptiest, then the first by name.
#[test]
fn best_node_is_untainted_then_emptiest_then_first() {
    let mut view = view(pod(json!({})));
    view.nodes = vec![at("b", json!({})), at("a", json!({}))];
    assert_eq!(chosen(&view), "a", "equal: by name");
    view.nodes[1].requested.insert("cpu".into(), 2000);
    assert_eq!(chosen(&view), "b", "more free resources");
    let prefers_not = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
    view.nodes[0] = at("b", prefers_not);
    assert_eq!(chosen(&view), "a", "PreferNoSchedule outweighs free resources");
    view.nodes.remove(1);
    assert_eq!(chosen(&view), "b", "the only node");
}

/// kubernetes.md 1.5 "Bound volumes": the node follows the volume, and the plan is that node's.
#[test]
fn node_follows_the_volume() {
    let mut view = view_of(vec![claim("c", json!({}))]);
    view.candidates.insert("c".into(), vec![volume("v", on("n2"))]);
    let static_class = json!({"provisioner": "kubernetes.io/no-provisioner"});
    view.classes.insert("wait".into(), super::super::testing::class("wait", static_class));
    view.nodes = vec![at("n1", json!({})), at("n2", json!({}))];
    match decide(&view) {
        Step::Schedule { node, plan } => {
            assert_eq!(node, "n2");
            assert_eq!(plan.bindings[0].volume.metadata.name, "v");
            assert!(plan.provisions.is_empty());
        }
        step => panic!("{step:?}"),
    }
}

/// kubernetes#95767: pods that were created with a nodeName.
#[test]
fn preassigned_pod_gets_its_volumes() {
    let preassigned = |claims| {
        let mut view = view_of(claims);
        std::sync::Arc::make_mut(&mut view.pod).node_name = "n1".into();
        view
    };
    let mut view = preassigned(vec![claim("c", json!({}))]);
    assert_eq!(refusal(&view), (String::new(), vec![Cause::Node]), "a node that does not exist yet");
    // Full, cordoned and tainted: irrelevant for a pod that has its node.
    let full = json!({"spec": {"unschedulable": true, "taints": [{"key": "k", "effect": "NoExecute"}]}, "status": {"allocatable": {}}});
    view.nodes = vec![at("n1", full)];
    match decide(&view) {
        Step::Schedule { node, plan } => assert_eq!((node.as_str(), plan.provisions.len()), ("n1", 1)),
        step => panic!("{step:?}"),
    }
    let mut settled = preassigned(vec![bound("c", "v")]);
    settled.volumes.insert("v".into(), volume("v", json!({})));
    settled.nodes = vec![at("n1", json!({}))];
    assert_eq!(decide(&settled), Step::Ignore);

    let mut elsewhere = preassigned(vec![claim(
        "c",
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n2"}}}),
    )]);
    elsewhere.nodes = vec![at("n1", json!({}))];
    let message = "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.";
    assert_eq!(refusal(&elsewhere), (message.into(), vec![Cause::Volumes]));
}
