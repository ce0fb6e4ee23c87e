//! The rules together: their order, their words, and which node is best.

use serde_json::{Value, json};

use super::super::testing::{bound, claim, csi_node, on, place, pod, pod_with, view, view_of, volume};
use super::*;

fn at(name: &str, more: Value) -> Place {
    let labels = json!({"metadata": {"name": name, "labels": {"host": name}}});
    Place {
        csi_node: Some(csi_node(json!([{"name": "d"}]))),
        ..place(super::super::testing::over(labels, more))
    }
}

fn refusal(view: &View) -> (String, Vec<Cause>) {
    match decide(view) {
        Step::Refuse { message, causes } => (message, causes.into_iter().collect()),
        step => panic!("not refused: {step:?}"),
    }
}

fn chosen(view: &View) -> String {
    match decide(view) {
        Step::Place { node, .. } => node,
        step => panic!("not placed: {step:?}"),
    }
}

/// Upstream's sentences: reasons with their counts, in the order of their text.
#[test]
fn reasons_are_counted() {
    let mut view = view(pod(json!({"spec": {"nodeSelector": {"disk": "ssd"}, "containers": [
        {"resources": {"requests": {"cpu": "8", "memory": "8Gi"}}},
    ]}})));
    assert_eq!(refusal(&view), ("no nodes available to schedule pods".into(), vec![Cause::Node]));
    let ssd = || json!({"metadata": {"labels": {"disk": "ssd"}}});
    let tainted =
        json!({"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}});
    view.places = vec![
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

/// kubernetes.md 1.5 "Bound volumes", "Chosen node", "Provision", "Limits", "Zones": the words of each volume rule,
/// on one node.
#[test]
fn volumes_refuse() {
    let table: Vec<(&str, View, &str, Cause)> = vec![
        (
            "prefilter speaks for all nodes, once",
            view(pod_with(&["c"])),
            "0/1 nodes are available: persistentvolumeclaim \"c\" not found.",
            Cause::Claims,
        ),
        (
            "ReadWriteOncePod",
            {
                let mut view =
                    view_of(vec![claim("c", json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}))]);
                view.used.insert("c".into());
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
                view.places =
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
                view.places = vec![Place { csi_node: None, ..at("n1", json!({})) }];
                view
            },
            "0/1 nodes are available: 1 d CSI driver is not installed on the node.",
            Cause::Limits,
        ),
        (
            "room for new volumes",
            {
                let mut view = view_of(vec![claim("c", json!({}))]);
                let tells = json!({"spec": {"storageCapacity": true}});
                view.drivers.insert("d".into(), std::sync::Arc::new(serde_json::from_value(tells).unwrap()));
                view
            },
            "0/1 nodes are available: 1 node(s) did not have enough free storage.",
            Cause::Volumes,
        ),
    ];
    for (rule, mut view, message, cause) in table {
        if view.places.is_empty() {
            view.places = vec![at("n1", json!({}))];
        }
        assert_eq!(refusal(&view), (message.to_owned(), vec![cause]), "{rule}");
    }
}

/// What can be placed is placed where it is welcome, where there is room, and always at the same place.
#[test]
fn the_best_node() {
    let mut view = view(pod(json!({})));
    view.places = vec![at("b", json!({})), at("a", json!({}))];
    assert_eq!(chosen(&view), "a", "alike: by name");
    view.places[1].requested.insert("cpu".into(), 2000);
    assert_eq!(chosen(&view), "b", "more room");
    let prefers_not = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
    view.places[0] = at("b", prefers_not);
    assert_eq!(chosen(&view), "a", "not welcome where there is more room");
    view.places.remove(1);
    assert_eq!(chosen(&view), "b", "better than nowhere");
}

/// kubernetes.md 1.5 "Bound volumes": the node follows the volume, and the plan is that node's.
#[test]
fn the_node_follows_the_volume() {
    let mut view = view_of(vec![claim("c", json!({}))]);
    view.candidates.insert("c".into(), vec![volume("v", on("n2"))]);
    let static_class = json!({"provisioner": "kubernetes.io/no-provisioner"});
    view.classes.insert("wait".into(), super::super::testing::class("wait", static_class));
    view.places = vec![at("n1", json!({})), at("n2", json!({}))];
    match decide(&view) {
        Step::Place { node, plan } => {
            assert_eq!(node, "n2");
            assert_eq!(plan.bindings[0].volume.metadata.name, "v");
            assert!(plan.provisions.is_empty());
        }
        step => panic!("{step:?}"),
    }
}

/// kubernetes#95767: pods on a node by hand.
#[test]
fn pods_that_were_put_on_a_node() {
    let by_hand = |claims| {
        let mut view = view_of(claims);
        std::sync::Arc::make_mut(&mut view.pod).spec.node_name = "n1".into();
        view
    };
    let mut view = by_hand(vec![claim("c", json!({}))]);
    assert_eq!(refusal(&view), (String::new(), vec![Cause::Node]), "a node that is not there yet");
    // Full, cordoned and tainted: that is not asked of a pod that is there.
    let full = json!({"spec": {"unschedulable": true, "taints": [{"key": "k", "effect": "NoExecute"}]}, "status": {"allocatable": {}}});
    view.places = vec![at("n1", full)];
    match decide(&view) {
        Step::Place { node, plan } => assert_eq!((node.as_str(), plan.provisions.len()), ("n1", 1)),
        step => panic!("{step:?}"),
    }
    let mut settled = by_hand(vec![bound("c", "v")]);
    settled.volumes.insert("v".into(), volume("v", json!({})));
    settled.places = vec![at("n1", json!({}))];
    assert_eq!(decide(&settled), Step::Leave);

    let mut elsewhere = by_hand(vec![claim(
        "c",
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n2"}}}),
    )]);
    elsewhere.places = vec![at("n1", json!({}))];
    let message = "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.";
    assert_eq!(refusal(&elsewhere), (message.into(), vec![Cause::Volumes]));
}
