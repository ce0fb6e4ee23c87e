//! The cases of upstream's nodevolumelimits tests, reimplemented, and those for `DriverCheck::Registered`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::claims;
use super::super::testing::{bound, claim, class, csi_node, node_info, pod, view_of, volume};
use super::*;

fn of_driver(driver: &str, id: &str) -> CountedVolume {
    CountedVolume { driver: driver.into(), volume: CountedId::Handle(id.into()) }
}

/// A node with this limit for the driver `d`, and none for `free`.
fn limited(limit: i32, volumes: &[&str], attached: &[&str]) -> NodeInfo {
    let set = |names: &[&str]| names.iter().map(|name| of_driver("d", name)).collect();
    NodeInfo {
        csi_node: Some(csi_node(json!([{"name": "d", "allocatable": {"count": limit}}, {"name": "free"}]))),
        volumes: set(volumes),
        attached: set(attached),
        ..node_info(json!({}))
    }
}

/// A pod with volumes of these drivers, `v0`, `v1` and so on, each bound.
fn with(drivers: &[&str]) -> View {
    let mut view = view_of((0..drivers.len()).map(|i| bound(&format!("c{i}"), &format!("v{i}"))).collect());
    for (i, driver) in drivers.iter().enumerate() {
        let name = format!("v{i}");
        view.volumes.insert(name.clone(), volume(&name, json!({"spec": {"csi": {"driver": driver}}})));
    }
    view
}

fn refusal(view: &View, node_info: &NodeInfo) -> Option<String> {
    rejection(view, node_info, &volumes_of_claims(view, &claims::classify(view).unwrap()))
}

const FULL: Option<&str> = Some(TOO_MANY_VOLUMES);

/// kubernetes.md 1.5 "Limits".
#[test]
fn volumes_are_counted_once() {
    for (rule, drivers, node_info, expected) in [
        ("below the limit", &["d"][..], limited(2, &["x"], &[]), None),
        ("at the limit", &["d"], limited(2, &["x", "y"], &[]), FULL),
        ("two volumes, one fits", &["d", "d"], limited(2, &["x"], &[]), FULL),
        ("two volumes that fit", &["d", "d"], limited(2, &[], &[]), None),
        ("already on the node", &["d"], limited(1, &["v0"], &[]), None),
        ("attachments count", &["d"], limited(2, &[], &["x", "y"]), FULL),
        ("attachments below the limit", &["d"], limited(2, &[], &["x"]), None),
        ("attachments of pods' volumes count once", &["d"], limited(2, &["x"], &["x"]), None),
        ("attachments in addition to pods' volumes", &["d"], limited(2, &["x"], &["y"]), FULL),
        ("still attached from an earlier pod", &["d"], limited(2, &["x"], &["v0"]), None),
        ("a driver without a limit", &["free"], limited(0, &["x"], &[]), None),
        ("limit zero", &["d"], limited(0, &[], &[]), FULL),
        ("volumes of another driver do not count", &["d", "free"], limited(1, &[], &[]), None),
        ("no volumes", &[], limited(0, &["x"], &[]), None),
    ] {
        assert_eq!(refusal(&with(drivers), &node_info).as_deref(), expected, "{rule}");
    }
}

/// kubernetes.md 1.5 "Limits": volumes that are yet to be provisioned.
#[test]
fn unprovisioned_volumes_are_counted() {
    let unbound = |more: Value| view_of(vec![claim("c", more)]);
    assert_eq!(refusal(&unbound(json!({})), &limited(1, &["x"], &[])).as_deref(), FULL);
    assert_eq!(refusal(&unbound(json!({})), &limited(2, &["x"], &[])), None);
    // A pod on the node uses the same claim.
    let mut counted = limited(1, &[], &[]);
    counted.volumes.insert(CountedVolume { driver: "d".into(), volume: CountedId::ForClaim("ns/c".into()) });
    assert_eq!(refusal(&unbound(json!({})), &counted), None);
    // Without its class the driver is unknown.
    let pod_claims = claims::classify(&unbound(json!({}))).unwrap();
    let mut lost = unbound(json!({}));
    lost.classes.clear();
    assert!(volumes_of_claims(&lost, &pod_claims).is_empty());
    // Not a CSI volume.
    let mut in_tree = view_of(vec![bound("c", "v")]);
    in_tree.volumes.insert("v".into(), volume("v", json!({"spec": {"csi": null}})));
    assert_eq!(refusal(&in_tree, &limited(0, &[], &[])), None);
}

/// A planned volume may have another driver than the class.
#[test]
fn planned_volumes_count_for_their_own_driver() {
    let mut view = view_of(vec![claim("c", json!({}))]);
    view.classes.insert("wait".into(), class("wait", json!({"provisioner": "kubernetes.io/no-provisioner"})));
    let pod_claims = claims::classify(&view).unwrap();
    let binding = super::super::volumes::Binding {
        volume: volume("v", json!({})),
        claim: Arc::clone(&pod_claims.delayed[0]),
    };
    let plan = Plan { bindings: vec![binding], provisions: vec![] };
    assert_eq!(volumes_of_plan(&view, &pod_claims, &plan), [of_driver("d", "v")].into());
    let full = rejection(&view, &limited(0, &[], &[]), &volumes_of_plan(&view, &pod_claims, &plan));
    assert_eq!(full.as_deref(), FULL);
}

/// kubernetes.md 1.5 "Driver missing"; kubernetes#95911: no node without the pod's driver.
#[test]
fn node_without_the_driver_is_rejected() {
    let missing = "d CSI driver is not installed on the node";
    let described = |mut view: View| {
        view.drivers.insert("d".into(), Arc::default());
        view
    };
    let unbound = || view_of(vec![claim("c", json!({}))]);
    let without =
        || NodeInfo { csi_node: Some(csi_node(json!([{"name": "other"}]))), ..node_info(json!({})) };
    let inline = || View {
        pod: pod(json!({"spec": {"volumes": [{"name": "i", "csi": {"driver": "d"}}]}})),
        ..View::default()
    };
    for (rule, view, node_info, expected) in [
        ("registered", with(&["d"]), limited(9, &[], &[]), None),
        ("not registered", with(&["d"]), without(), Some(missing)),
        ("no CSINode", with(&["d"]), node_info(json!({})), Some(missing)),
        ("an unprovisioned volume", described(unbound()), without(), Some(missing)),
        ("an unprovisioned volume, of a provisioner that may not be a driver", unbound(), without(), None),
        ("an inline volume", inline(), without(), Some(missing)),
        ("an inline volume, and the driver is registered", inline(), limited(0, &[], &[]), None),
        ("no volumes", with(&[]), without(), None),
    ] {
        assert_eq!(refusal(&view, &node_info).as_deref(), expected, "{rule}");
        let upstream = View {
            rules: super::super::view::Rules { drivers: DriverCheck::Upstream, ..view.rules },
            ..view
        };
        assert_eq!(refusal(&upstream, &node_info), None, "{rule}: upstream");
    }
    let mut elsewhere = unbound();
    elsewhere.nodes = vec![limited(9, &[], &[])];
    assert_eq!(refusal(&elsewhere, &without()).as_deref(), Some(missing), "registered on another node");
}
