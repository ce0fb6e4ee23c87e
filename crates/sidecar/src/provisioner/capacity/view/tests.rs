use serde_json::{Value, json};

use super::*;

fn topology(pairs: &[(&str, &str)]) -> Segments {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn zone(name: &str) -> Segments {
    topology(&[("zone", name)])
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
    Item { class: class.into(), topology: zone(zone_name) }
}

fn subject(class: &str, zone: &str) -> Subject {
    Subject::Item(item(class, zone))
}

fn goal_of(items: &[(&str, &str)]) -> Goal {
    items.iter().map(|(class, zone)| (item(class, zone), format!("uid-{class}"))).collect()
}

/// sidecars.md 1.1 "Capacity": segments from CSINode keys and Node labels.
#[test]
fn topologies_come_from_nodes_with_driver() {
    let csi_node =
        |keys: Value| -> CSINode { of(json!({"spec": {"drivers": [{"name": "d", "topologyKeys": keys}]}})) };
    let node = |labels: Value| -> Node { of(json!({"metadata": {"labels": labels}})) };
    let elsewhere: CSINode = of(json!({"spec": {"drivers": [{"name": "other", "topologyKeys": ["zone"]}]}}));
    let nodes = [
        (csi_node(json!(["zone"])), node(json!({"zone": "a", "x": "y"}))),
        (csi_node(json!(["zone"])), node(json!({"zone": "a"}))),
        (csi_node(json!(["zone", "host"])), node(json!({"zone": "a", "host": "h"}))),
        // A missing label, no keys, another driver.
        (csi_node(json!(["zone", "host"])), node(json!({"zone": "b"}))),
        (csi_node(json!(null)), node(json!({"zone": "c"}))),
        (elsewhere, node(json!({"zone": "d"}))),
    ];
    let found = topologies("d", nodes.iter().map(|(csi_node, node)| (csi_node, node)));
    assert_eq!(found, BTreeSet::from([zone("a"), topology(&[("zone", "a"), ("host", "h")])]));
}

/// sidecars.md 1.1 "Capacity": one for each segment and class with late binding; with a setting, for all classes.
#[test]
fn goal_combines_topologies_and_classes() {
    let classes = [
        class("late", "d", "WaitForFirstConsumer"),
        class("now", "d", "Immediate"),
        class("other", "e", "WaitForFirstConsumer"),
    ];
    let topologies = BTreeSet::from([zone("a"), zone("b")]);
    assert_eq!(goal("d", false, &topologies, &classes), goal_of(&[("late", "a"), ("late", "b")]));
    let all = goal_of(&[("late", "a"), ("late", "b"), ("now", "a"), ("now", "b")]);
    assert_eq!(goal("d", true, &topologies, &classes), all);
    assert_eq!(goal("d", true, &BTreeSet::new(), &classes), Goal::new());
    // Node deployment without topology: one object for all nodes.
    let everywhere = goal("d", false, &BTreeSet::from([Segments::new()]), &classes);
    assert_eq!(everywhere.into_keys().map(|item| item.topology).collect::<Vec<_>>(), [Segments::new()]);
}

/// sidecars.md 1.1 "Capacity": obsolete, missing and duplicate objects are reconciled, once.
#[test]
fn only_new_differences_are_reconciled() {
    let inventory =
        |goal: &[(&str, &str)], objects: &[CSIStorageCapacity]| Inventory::new(goal_of(goal), objects);
    let one = [object("1", "c", "a")];
    let twice = [object("1", "c", "a"), object("2", "c", "a")];
    let ours = [("c", "a")];
    let a = vec![subject("c", "a")];
    let nothing = Vec::new();
    for (before, after, expected) in [
        (inventory(&[], &[]), inventory(&[], &[]), &nothing),
        // A node or a class was added.
        (inventory(&[], &[]), inventory(&ours, &[]), &a),
        // It is in the queue already.
        (inventory(&ours, &[]), inventory(&ours, &[]), &nothing),
        (inventory(&ours, &[]), inventory(&ours, &one), &nothing),
        // After a start, existing objects have to be compared.
        (inventory(&[], &[]), inventory(&ours, &one), &a),
        // The object was deleted.
        (inventory(&ours, &one), inventory(&ours, &[]), &a),
        // A duplicate.
        (inventory(&ours, &one), inventory(&ours, &twice), &a),
        (inventory(&ours, &twice), inventory(&ours, &twice), &nothing),
        (inventory(&ours, &twice), inventory(&ours, &one), &nothing),
        // The node or the class was deleted.
        (inventory(&ours, &one), inventory(&[], &one), &a),
        (inventory(&[], &one), inventory(&[], &one), &nothing),
        (inventory(&[], &one), inventory(&[], &[]), &nothing),
        (inventory(&ours, &[]), inventory(&[], &[]), &nothing),
    ] {
        assert_eq!(&after.changed_since(&before), expected, "{before:?} {after:?}");
    }
    let before = inventory(&ours, &one);
    let other = Goal::from([(item("c", "a"), "another".to_owned())]);
    assert_eq!(Inventory::new(other, &one).changed_since(&before), a, "the class was recreated");
}

#[test]
fn object_without_exact_topology_is_unrecognized() {
    let nowhere: CSIStorageCapacity = of(json!({"metadata": {"name": "x"}, "storageClassName": "c"}));
    let expressions = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
    let odd: CSIStorageCapacity = of(json!({"metadata": {"name": "y"}, "nodeTopology": expressions}));
    let deleting: CSIStorageCapacity =
        of(json!({"metadata": {"name": "z", "deletionTimestamp": "2024-01-01T00:00:00Z"}}));
    let inventory = Inventory::new(Goal::new(), [&nowhere, &odd, &deleting]);
    assert_eq!(
        inventory.changed_since(&Inventory::default()),
        [Subject::Unrecognized("x".into()), Subject::Unrecognized("y".into())]
    );
    let everywhere: CSIStorageCapacity = of(json!({"storageClassName": "c", "nodeTopology": {}}));
    assert_eq!(
        Subject::of(&everywhere),
        Subject::Item(Item { class: "c".into(), topology: Segments::new() })
    );
}

/// sidecars.md 1.1 "Capacity": the metrics.
#[test]
fn counts_match_upstream_metrics() {
    let objects = [
        object("1", "c", "a"),
        object("2", "c", "a"),
        object("3", "c", "gone"),
        object("4", "old", "a"),
        object("5", "old", "a"),
    ];
    let inventory = Inventory::new(goal_of(&[("c", "a"), ("c", "b")]), &objects);
    assert_eq!(inventory.counts(), Counts { goal: 2, current: 1, obsolete: 3 });
}

/// sidecars.md 1.1 "Capacity": refreshed in the volume's topology, or for its class.
#[test]
fn volume_refreshes_its_topology_or_class() {
    let inventory = Inventory::new(goal_of(&[("c", "a"), ("c", "b"), ("d", "a")]), []);
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
        assert_eq!(inventory.of_affinity(&affinity), expected, "{affinity:?}");
    }
    assert_eq!(inventory.of_class("c"), [subject("c", "a"), subject("c", "b")]);
    assert_eq!(inventory.of_class("d"), [subject("d", "a")]);
    assert_eq!(inventory.of_class("e"), []);
    assert_eq!(subject("c", "a").text(), "c@zone=a");
}

/// If a term names one topology, the others need not be compared: a cluster may have thousands.
#[test]
fn exact_topology_needs_single_valued_in_expressions() {
    let zone_a = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let rack = json!({"key": "rack", "operator": "In", "values": ["1"]});
    for (term, expected) in [
        (json!({"matchExpressions": [zone_a]}), Some(zone("a"))),
        (json!({"matchExpressions": [zone_a, rack]}), Some(topology(&[("zone", "a"), ("rack", "1")]))),
        (json!({"matchExpressions": [zone_a, {"key": "x", "operator": "Exists"}]}), None),
        (json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}), None),
        (json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}), None),
        (json!({"matchExpressions": [zone_a], "matchFields": [zone_a]}), None),
    ] {
        assert_eq!(exact_topology(&of(term.clone())), expected, "{term}");
    }
}
