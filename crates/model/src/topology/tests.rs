use proptest::prelude::*;
use serde_json::json;

use super::*;

fn place(pairs: &[(&str, &str)]) -> Segments {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn zone(name: &str) -> Segments {
    place(&[("zone", name)])
}

fn zones(names: &[&str]) -> Vec<Segments> {
    names.iter().map(|name| zone(name)).collect()
}

fn allowed(value: serde_json::Value) -> Vec<TopologySelectorTerm> {
    serde_json::from_value(value).unwrap()
}

fn ask(claim: &str) -> Ask<'_> {
    Ask { claim, allowed: &[], selected: None, strict: false, immediate: true }
}

fn no_need() -> Result<Vec<Segments>, TopologyError> {
    panic!("all places were asked for without need")
}

/// sidecars.md 1.1 "Topology": FNV-1 of 32 bits; published vectors.
#[test]
fn the_hash() {
    for (text, hash) in [("", 0x811c_9dc5), ("a", 0x050c_5d7e), ("foobar", 0x31f0_b262)] {
        assert_eq!(fnv1(text), hash, "{text:?}");
    }
}

/// sidecars.md 1.1 "Topology": which part of a claim's name counts.
#[test]
fn what_is_hashed() {
    for (claim, name, ordinal) in [
        ("data-web-3", "web", 3),
        ("log-web-3", "web", 3),
        ("my-data-my-web-12", "web", 12),
        ("web-2", "web", 2),
        ("web", "web", 0),
        ("data-web", "data-web", 0),
        ("data-web-", "data-web-", 0),
        ("data-web-+1", "data-web-+1", 0),
        ("data-web-4294967295", "web", u32::MAX),
        ("data-web-4294967296", "data-web-4294967296", 0),
        ("-1", "", 1),
    ] {
        assert_eq!(spread(claim), (fnv1(name), ordinal), "{claim}");
    }
}

/// sidecars.md 1.1 "Topology": Immediate, the volumes of a StatefulSet go round.
#[test]
fn a_stateful_set_is_spread() {
    let all = zones(&["a", "b", "c"]);
    let first = |claim: &str| {
        let requirement = requirement(&ask(claim), || Ok(all.clone())).unwrap().unwrap();
        assert_eq!(requirement.requisite, all);
        let start = all.iter().position(|place| *place == requirement.preferred[0]).unwrap();
        let mut turned = all.clone();
        turned.rotate_left(start);
        assert_eq!(requirement.preferred, turned, "turned, not shuffled");
        start
    };
    let start = first("data-web-0");
    for ordinal in 0..7 {
        assert_eq!(first(&format!("data-web-{ordinal}")), (start + ordinal) % 3);
        assert_eq!(
            first(&format!("log-web-{ordinal}")),
            (start + ordinal) % 3,
            "all claims of a pod go together"
        );
    }
    // Upstream's own example: with four places, the set `testset` has its ordinal 1 in the first one.
    let four = zones(&["1", "2", "3", "4"]);
    let requirement = requirement(&ask("testpvcA-testset-1"), || Ok(four.clone())).unwrap().unwrap();
    assert_eq!(requirement.preferred, four);
}

/// sidecars.md 1.1 "Topology": allowedTopologies, OR-distributed.
#[test]
fn allowed_topologies_are_flattened() {
    let terms = allowed(json!([
        {"matchLabelExpressions": [{"key": "zone", "values": ["1", "2"]}, {"key": "rack", "values": ["A", "B"]}]},
        {"matchLabelExpressions": [{"key": "zone", "values": ["3"]}]},
        {"matchLabelExpressions": []},
        {"matchLabelExpressions": [{"key": "zone", "values": []}, {"key": "rack", "values": ["C"]}]},
    ]));
    let mut flat = flatten(&terms);
    sort(&mut flat);
    let both = |zone, rack| place(&[("zone", zone), ("rack", rack)]);
    // Fewer labels first, then by label and value: the rack decides before the zone.
    assert_eq!(flat, [zone("3"), both("1", "A"), both("2", "A"), both("1", "B"), both("2", "B")]);
}

/// sidecars.md 1.1 "Topology": requisite.
#[test]
fn requisite() {
    let terms = allowed(json!([{"matchLabelExpressions": [{"key": "zone", "values": ["b", "a", "b"]}]}]));
    let (a, c) = (zone("a"), zone("c"));
    let selected = |place| Some(Selected { node: "node", place });
    let requisite =
        |ask: &Ask<'_>, all: fn() -> _| requirement(ask, all).map(|found| found.map(|found| found.requisite));
    let all = || Ok(zones(&["c", "a", "b", "a"]));
    let cluster = Some(zones(&["a", "b", "c"]));

    // Immediate.
    assert_eq!(requisite(&ask("x"), all), Ok(cluster.clone()));
    assert_eq!(requisite(&Ask { allowed: &terms, ..ask("x") }, no_need), Ok(Some(zones(&["a", "b"]))));
    assert_eq!(
        requisite(&Ask { strict: true, ..ask("x") }, all),
        Ok(cluster.clone()),
        "strict is about nodes"
    );
    assert_eq!(requisite(&Ask { immediate: false, ..ask("x") }, no_need), Ok(None));
    let told = Ask { immediate: false, allowed: &terms, ..ask("x") };
    assert_eq!(requisite(&told, no_need), Ok(Some(zones(&["a", "b"]))));
    let empty = allowed(json!([{"matchLabelExpressions": []}]));
    assert_eq!(requisite(&Ask { allowed: &empty, ..ask("x") }, no_need), Ok(None));
    assert_eq!(requisite(&ask("x"), || Err(TopologyError::NoPlaces)), Err(TopologyError::NoPlaces));

    // WaitForFirstConsumer.
    let on_a = Ask { selected: selected(&a), ..ask("x") };
    assert_eq!(requisite(&on_a, all), Ok(cluster.clone()));
    assert_eq!(
        requisite(&Ask { immediate: false, ..on_a }, all),
        Ok(cluster),
        "that flag is about Immediate"
    );
    assert_eq!(requisite(&Ask { allowed: &terms, ..on_a }, no_need), Ok(Some(zones(&["a", "b"]))));

    // Strict.
    let strictly = Ask { strict: true, ..on_a };
    assert_eq!(requisite(&strictly, no_need), Ok(Some(zones(&["a"]))));
    assert_eq!(requisite(&Ask { allowed: &terms, ..strictly }, no_need), Ok(Some(zones(&["a"]))));
    let outside = Ask { allowed: &terms, selected: selected(&c), ..strictly };
    let error = TopologyError::NotAllowed { node: "node".into(), place: c.clone() };
    assert_eq!(requisite(&outside, no_need), Err(error));
    let nowhere = Ask { allowed: &empty, ..strictly };
    let error = TopologyError::NotAllowed { node: "node".into(), place: a.clone() };
    assert_eq!(requisite(&nowhere, no_need), Err(error));
}

/// sidecars.md 1.1 "Topology": preferred.
#[test]
fn preferred_begins_at_the_chosen_node() {
    let terms = allowed(json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b", "c"]}]}]));
    let here = place(&[("rack", "7"), ("zone", "b")]);
    let selected = Some(Selected { node: "node", place: &here });
    let preferred = |ask: &Ask<'_>| requirement(ask, no_need).map(|found| found.unwrap().preferred);

    // The term says less than the node's place, and holds there.
    let wish = Ask { allowed: &terms, selected, ..ask("x") };
    assert_eq!(preferred(&wish), Ok(zones(&["b", "c", "a"])));
    assert_eq!(preferred(&Ask { strict: true, ..wish }), Ok(vec![here.clone()]));

    let elsewhere = place(&[("zone", "z")]);
    let selected = Some(Selected { node: "node", place: &elsewhere });
    assert_eq!(
        preferred(&Ask { selected, ..wish }),
        Err(TopologyError::NotInRequisite {
            node: "node".into(),
            place: elsewhere.clone(),
            requisite: zones(&["a", "b", "c"]),
        })
    );
}

/// sidecars.md 1.1 "Topology": keys from CSINode, segment from Node labels; missing is an error, not found reschedules.
#[test]
fn the_chosen_nodes_place() {
    let csi_node: CSINode = serde_json::from_value(json!({
        "metadata": {"name": "node"},
        "spec": {"drivers": [
            {"name": "d", "nodeID": "1", "topologyKeys": ["zone", "rack"]},
            {"name": "keyless", "nodeID": "1", "topologyKeys": null},
        ]},
    }))
    .unwrap();
    let labels = Map::from_iter([("zone", "a"), ("rack", "1"), ("other", "x")]);
    let found = |driver, csi_node, labels| place_of("node", driver, csi_node, labels);
    assert_eq!(found("d", Some(&csi_node), Some(&labels)), Ok(place(&[("zone", "a"), ("rack", "1")])));

    let gone = found("d", None, Some(&labels)).unwrap_err();
    assert_eq!(gone, TopologyError::NoCSINode { node: "node".into() });
    assert!(gone.reschedules());
    for driver in ["keyless", "absent"] {
        let error = found(driver, Some(&csi_node), Some(&labels)).unwrap_err();
        assert_eq!(error, TopologyError::NoKeys { node: "node".into() });
        assert!(!error.reschedules());
    }
    for labels in [None, Some(&Map::from_iter([("zone", "a")]))] {
        let error = found("d", Some(&csi_node), labels).unwrap_err();
        assert_eq!(
            error,
            TopologyError::NoLabels { node: "node".into(), keys: vec!["zone".into(), "rack".into()] }
        );
    }
}

/// sidecars.md 1.1 "Topology": all cluster segments with those keys.
#[test]
fn places_of_the_cluster() {
    let nodes: Vec<Node> = ["b", "a", "b"]
        .iter()
        .map(|zone| {
            serde_json::from_value(json!({"metadata": {"labels": {"zone": zone, "x": "y"}}})).unwrap()
        })
        .chain([Node::default()])
        .collect();
    let keys = ["zone".to_owned()];
    assert_eq!(places(&keys, &nodes), Ok(zones(&["a", "b"])));
    assert_eq!(places(&[], &nodes), Err(TopologyError::NoPlaces));
    let keys = ["rack".to_owned()];
    assert_eq!(places(&keys, &nodes), Err(TopologyError::KeysOnNoNode { keys: keys.to_vec() }));
}

proptest! {
    /// Whatever the cluster's order, the same claim asks the same; preferred is requisite, turned.
    #[test]
    fn the_same_each_time(mut all in prop::collection::vec("[a-h]", 1..12), claim in "[a-z]{1,3}(-[a-z]{1,3})?(-[0-9]{1,2})?") {
        let of = |names: &[String]| names.iter().map(|name| zone(name)).collect::<Vec<_>>();
        let one = requirement(&ask(&claim), || Ok(of(&all))).unwrap().unwrap();
        all.reverse();
        let other = requirement(&ask(&claim), || Ok(of(&all))).unwrap().unwrap();
        prop_assert_eq!(&one, &other);
        let mut sorted = one.preferred.clone();
        sorted.sort();
        prop_assert_eq!(sorted, one.requisite);
    }
}
