//! Facts of upstream's nodevolumelimits tests, told anew; and what ours adds.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::claims;
use super::super::testing::{bound, claim, class, csi_node, place, pod, view_of, volume};
use super::*;

fn of_driver(driver: &str, id: &str) -> Handle {
    Handle { driver: driver.into(), volume: Counted::Volume(id.into()) }
}

/// A node with this limit for the driver `d`, and none for `free`.
fn limited(limit: i32, volumes: &[&str], attached: &[&str]) -> Place {
    let set = |names: &[&str]| names.iter().map(|name| of_driver("d", name)).collect();
    Place {
        csi_node: Some(csi_node(json!([{"name": "d", "allocatable": {"count": limit}}, {"name": "free"}]))),
        volumes: set(volumes),
        attached: set(attached),
        ..place(json!({}))
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

fn refusal(view: &View, place: &Place) -> Option<String> {
    refuses(view, place, &of_claims(view, &claims::sort(view).unwrap()))
}

const FULL: Option<&str> = Some(TOO_MANY_VOLUMES);

/// kubernetes.md 1.5 "Limits".
#[test]
fn volumes_are_counted_once() {
    for (rule, drivers, place, expected) in [
        ("room", &["d"][..], limited(2, &["x"], &[]), None),
        ("no room", &["d"], limited(2, &["x", "y"], &[]), FULL),
        ("two at once", &["d", "d"], limited(2, &["x"], &[]), FULL),
        ("two at once that fit", &["d", "d"], limited(2, &[], &[]), None),
        ("it is there already", &["d"], limited(1, &["v0"], &[]), None),
        ("attachments count", &["d"], limited(2, &[], &["x", "y"]), FULL),
        ("attachments below the limit", &["d"], limited(2, &[], &["x"]), None),
        ("attachments of pods' volumes count once", &["d"], limited(2, &["x"], &["x"]), None),
        ("attachments beside pods' volumes", &["d"], limited(2, &["x"], &["y"]), FULL),
        ("still attached from the pod before", &["d"], limited(2, &["x"], &["v0"]), None),
        ("a driver that tells no limit", &["free"], limited(0, &["x"], &[]), None),
        ("none may be there", &["d"], limited(0, &[], &[]), FULL),
        ("another driver's do not count", &["d", "free"], limited(1, &[], &[]), None),
        ("no volumes", &[], limited(0, &["x"], &[]), None),
    ] {
        assert_eq!(refusal(&with(drivers), &place).as_deref(), expected, "{rule}");
    }
}

/// kubernetes.md 1.5 "Limits": volumes to come.
#[test]
fn volumes_to_come_are_counted() {
    let unbound = |more: Value| view_of(vec![claim("c", more)]);
    assert_eq!(refusal(&unbound(json!({})), &limited(1, &["x"], &[])).as_deref(), FULL);
    assert_eq!(refusal(&unbound(json!({})), &limited(2, &["x"], &[])), None);
    // The same claim of a pod that is there already.
    let mut there = limited(1, &[], &[]);
    there.volumes.insert(Handle { driver: "d".into(), volume: Counted::For("ns/c".into()) });
    assert_eq!(refusal(&unbound(json!({})), &there), None);
    // Its class is gone: nobody knows whose it is.
    let sorted = claims::sort(&unbound(json!({}))).unwrap();
    let mut lost = unbound(json!({}));
    lost.classes.clear();
    assert!(of_claims(&lost, &sorted).is_empty());
    // A volume that is not CSI's.
    let mut in_tree = view_of(vec![bound("c", "v")]);
    in_tree.volumes.insert("v".into(), volume("v", json!({"spec": {"csi": null}})));
    assert_eq!(refusal(&in_tree, &limited(0, &[], &[])), None);
}

/// What a plan takes may be of another driver than the class names.
#[test]
fn volumes_of_a_plan_are_counted_as_what_they_are() {
    let mut view = view_of(vec![claim("c", json!({}))]);
    view.classes.insert("wait".into(), class("wait", json!({"provisioner": "kubernetes.io/no-provisioner"})));
    let sorted = claims::sort(&view).unwrap();
    let binding = super::super::volumes::Binding {
        volume: volume("v", json!({})),
        claim: Arc::clone(&sorted.delayed[0]),
    };
    let plan = Plan { bindings: vec![binding], provisions: vec![] };
    assert_eq!(of_plan(&view, &sorted, &plan), [of_driver("d", "v")].into());
    let full = refuses(&view, &limited(0, &[], &[]), &of_plan(&view, &sorted, &plan));
    assert_eq!(full.as_deref(), FULL);
}

/// kubernetes.md 1.5 "Driver missing"; kubernetes#95911: no node without the pod's driver.
#[test]
fn a_driver_has_to_be_there() {
    let missing = "d CSI driver is not installed on the node";
    let described = |mut view: View| {
        view.drivers.insert("d".into(), Arc::default());
        view
    };
    let unbound = || view_of(vec![claim("c", json!({}))]);
    let without = || Place { csi_node: Some(csi_node(json!([{"name": "other"}]))), ..place(json!({})) };
    let inline = || View {
        pod: pod(json!({"spec": {"volumes": [{"name": "i", "csi": {"driver": "d"}}]}})),
        ..View::default()
    };
    for (rule, view, place, expected) in [
        ("it is there", with(&["d"]), limited(9, &[], &[]), None),
        ("it is not", with(&["d"]), without(), Some(missing)),
        ("nobody has told of any", with(&["d"]), place(json!({})), Some(missing)),
        ("a volume to come", described(unbound()), without(), Some(missing)),
        ("a volume to come, by a provisioner that may be no driver", unbound(), without(), None),
        ("a volume of the pod's own", inline(), without(), Some(missing)),
        ("a volume of the pod's own, and the driver", inline(), limited(0, &[], &[]), None),
        ("no volumes", with(&[]), without(), None),
    ] {
        assert_eq!(refusal(&view, &place).as_deref(), expected, "{rule}");
        let upstream = View {
            rules: super::super::view::Rules { drivers: DriverCheck::Upstream, ..view.rules },
            ..view
        };
        assert_eq!(refusal(&upstream, &place), None, "{rule}: upstream");
    }
    let mut elsewhere = unbound();
    elsewhere.places = vec![limited(9, &[], &[])];
    assert_eq!(refusal(&elsewhere, &without()).as_deref(), Some(missing), "another node has it");
}
