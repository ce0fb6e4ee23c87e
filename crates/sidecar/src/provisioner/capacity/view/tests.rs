use serde_json::{Value, json};

use super::*;

fn place(pairs: &[(&str, &str)]) -> Segments {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn zone(name: &str) -> Segments {
    place(&[("zone", name)])
}

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn class(name: &str, driver: &str, mode: &str) -> StorageClass {
    of(
        json!({"metadata": {"name": name, "uid": format!("uid-{name}")}, "provisioner": driver, "volumeBindingMode": mode}),
    )
}

fn object(name: &str, class: &str, zone: &str) -> CSIStorageCapacity {
    let topology = json!({"matchLabels": {"zone": zone}});
    of(json!({"metadata": {"name": name}, "storageClassName": class, "nodeTopology": topology}))
}

fn item(class: &str, zone_name: &str) -> Item {
    Item { class: class.into(), place: zone(zone_name) }
}

fn subject(class: &str, zone: &str) -> Subject {
    Subject::Item(item(class, zone))
}

fn goal_of(items: &[(&str, &str)]) -> Goal {
    items.iter().map(|(class, zone)| (item(class, zone), format!("uid-{class}"))).collect()
}

/// sidecars.md 1.1 "Capacity": segments from CSINode keys and Node labels.
#[test]
fn places_are_those_of_nodes_with_the_driver() {
    let csi_node =
        |keys: Value| -> CSINode { of(json!({"spec": {"drivers": [{"name": "d", "topologyKeys": keys}]}})) };
    let node = |labels: Value| -> Node { of(json!({"metadata": {"labels": labels}})) };
    let elsewhere: CSINode = of(json!({"spec": {"drivers": [{"name": "other", "topologyKeys": ["zone"]}]}}));
    let nodes = [
        (csi_node(json!(["zone"])), node(json!({"zone": "a", "x": "y"}))),
        (csi_node(json!(["zone"])), node(json!({"zone": "a"}))),
        (csi_node(json!(["zone", "host"])), node(json!({"zone": "a", "host": "h"}))),
        // Labels that have not come yet, no keys at all, another driver.
        (csi_node(json!(["zone", "host"])), node(json!({"zone": "b"}))),
        (csi_node(json!(null)), node(json!({"zone": "c"}))),
        (elsewhere, node(json!({"zone": "d"}))),
    ];
    let found = places("d", nodes.iter().map(|(csi_node, node)| (csi_node, node)));
    assert_eq!(found, BTreeSet::from([zone("a"), place(&[("zone", "a"), ("host", "h")])]));
}

/// sidecars.md 1.1 "Capacity": one for each segment and class that waits; with a setting, of all classes.
#[test]
fn the_goal() {
    let classes = [
        class("late", "d", "WaitForFirstConsumer"),
        class("now", "d", "Immediate"),
        class("other", "e", "WaitForFirstConsumer"),
    ];
    let places = BTreeSet::from([zone("a"), zone("b")]);
    assert_eq!(goal("d", false, &places, &classes), goal_of(&[("late", "a"), ("late", "b")]));
    let all = goal_of(&[("late", "a"), ("late", "b"), ("now", "a"), ("now", "b")]);
    assert_eq!(goal("d", true, &places, &classes), all);
    assert_eq!(goal("d", true, &BTreeSet::new(), &classes), Goal::new());
    // A node's own driver without places: everywhere.
    let everywhere = goal("d", false, &BTreeSet::from([Segments::new()]), &classes);
    assert_eq!(everywhere.into_keys().map(|item| item.place).collect::<Vec<_>>(), [Segments::new()]);
}

/// sidecars.md 1.1 "Capacity": what is obsolete, missing or there twice is looked at, once.
#[test]
fn news() {
    let census = |goal: &[(&str, &str)], objects: &[CSIStorageCapacity]| Census::new(goal_of(goal), objects);
    let one = [object("1", "c", "a")];
    let twice = [object("1", "c", "a"), object("2", "c", "a")];
    let ours = [("c", "a")];
    let a = vec![subject("c", "a")];
    let nothing = Vec::new();
    for (before, after, expected) in [
        (census(&[], &[]), census(&[], &[]), &nothing),
        // A node has joined, a class has come.
        (census(&[], &[]), census(&ours, &[]), &a),
        // It is being worked on.
        (census(&ours, &[]), census(&ours, &[]), &nothing),
        (census(&ours, &[]), census(&ours, &one), &nothing),
        // At a start, what is there has to be compared.
        (census(&[], &[]), census(&ours, &one), &a),
        // Somebody has deleted it.
        (census(&ours, &one), census(&ours, &[]), &a),
        // Two of them.
        (census(&ours, &one), census(&ours, &twice), &a),
        (census(&ours, &twice), census(&ours, &twice), &nothing),
        (census(&ours, &twice), census(&ours, &one), &nothing),
        // The node or the class is gone.
        (census(&ours, &one), census(&[], &one), &a),
        (census(&[], &one), census(&[], &one), &nothing),
        (census(&[], &one), census(&[], &[]), &nothing),
        (census(&ours, &[]), census(&[], &[]), &nothing),
    ] {
        assert_eq!(&after.news(&before), expected, "{before:?} {after:?}");
    }
    let before = census(&ours, &one);
    let other = Goal::from([(item("c", "a"), "another".to_owned())]);
    assert_eq!(Census::new(other, &one).news(&before), a, "the class was made anew");
}

#[test]
fn what_names_no_place_is_a_stray() {
    let nowhere: CSIStorageCapacity = of(json!({"metadata": {"name": "x"}, "storageClassName": "c"}));
    let expressions = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
    let odd: CSIStorageCapacity = of(json!({"metadata": {"name": "y"}, "nodeTopology": expressions}));
    let going: CSIStorageCapacity =
        of(json!({"metadata": {"name": "z", "deletionTimestamp": "2024-01-01T00:00:00Z"}}));
    let census = Census::new(Goal::new(), [&nowhere, &odd, &going]);
    assert_eq!(census.news(&Census::default()), [Subject::Stray("x".into()), Subject::Stray("y".into())]);
    let everywhere: CSIStorageCapacity = of(json!({"storageClassName": "c", "nodeTopology": {}}));
    assert_eq!(Subject::of(&everywhere), Subject::Item(Item { class: "c".into(), place: Segments::new() }));
}

/// sidecars.md 1.1 "Capacity": the metrics.
#[test]
fn numbers() {
    let objects = [
        object("1", "c", "a"),
        object("2", "c", "a"),
        object("3", "c", "gone"),
        object("4", "old", "a"),
        object("5", "old", "a"),
    ];
    let census = Census::new(goal_of(&[("c", "a"), ("c", "b")]), &objects);
    assert_eq!(census.numbers(), Numbers { goal: 2, current: 1, obsolete: 3 });
}

/// sidecars.md 1.1 "Capacity": refreshed where the volume is, or for its class.
#[test]
fn what_a_volume_touches() {
    let census = Census::new(goal_of(&[("c", "a"), ("c", "b"), ("d", "a")]), []);
    let affinity = |expressions: Value| -> NodeAffinity {
        of(json!({"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}))
    };
    let zones = |values: Value| affinity(json!([{"key": "zone", "operator": "In", "values": values}]));
    for (affinity, expected) in [
        (zones(json!(["a"])), vec![subject("c", "a"), subject("d", "a")]),
        (zones(json!(["b"])), vec![subject("c", "b")]),
        (zones(json!(["a", "b"])), vec![subject("c", "a"), subject("c", "b"), subject("d", "a")]),
        (zones(json!(["x"])), vec![]),
        (affinity(json!([{"key": "zone", "operator": "NotIn", "values": ["a"]}])), vec![subject("c", "b")]),
    ] {
        assert_eq!(census.of_affinity(&affinity), expected, "{affinity:?}");
    }
    assert_eq!(census.of_class("c"), [subject("c", "a"), subject("c", "b")]);
    assert_eq!(census.of_class("d"), [subject("d", "a")]);
    assert_eq!(census.of_class("e"), []);
    assert_eq!(subject("c", "a").text(), "c@zone=a");
}

/// Where a term names one place, the others need not be looked at: a cluster may have thousands.
#[test]
fn terms_that_name_one_place() {
    let zone_a = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let rack = json!({"key": "rack", "operator": "In", "values": ["1"]});
    for (term, expected) in [
        (json!({"matchExpressions": [zone_a]}), Some(zone("a"))),
        (json!({"matchExpressions": [zone_a, rack]}), Some(place(&[("zone", "a"), ("rack", "1")]))),
        (json!({"matchExpressions": [zone_a, {"key": "x", "operator": "Exists"}]}), None),
        (json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}), None),
        (json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}), None),
        (json!({"matchExpressions": [zone_a], "matchFields": [zone_a]}), None),
    ] {
        assert_eq!(exact_place(&of(term.clone())), expected, "{term}");
    }
}
