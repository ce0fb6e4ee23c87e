use proptest::prelude::*;
use serde_json::json;

use super::*;

fn segments_of(pairs: &[(&str, &str)]) -> Segments {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn zone(name: &str) -> Segments {
    segments_of(&[("zone", name)])
}

fn zones(names: &[&str]) -> Vec<Segments> {
    names.iter().map(|name| zone(name)).collect()
}

fn allowed(value: serde_json::Value) -> Vec<TopologySelectorTerm> {
    serde_json::from_value(value).unwrap()
}

fn inputs_for(claim: &str) -> RequirementInputs<'_> {
    RequirementInputs { claim, allowed: &[], selected: None, strict: false, immediate: true }
}

fn not_needed() -> Result<Vec<Segments>, TopologyError> {
    panic!("all topologies were computed although they are not needed")
}

/// sidecars.md 1.1 "Topology": 32-bit FNV-1; published vectors.
#[test]
fn fnv1_matches_published_vectors() {
    for (text, hash) in [("", 0x811c_9dc5), ("a", 0x050c_5d7e), ("foobar", 0x31f0_b262)] {
        assert_eq!(fnv1(text), hash, "{text:?}");
    }
}

/// sidecars.md 1.1 "Topology": which part of a claim's name is hashed.
#[test]
fn stateful_set_name_is_hashed() {
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

/// sidecars.md 1.1 "Topology": Immediate, the volumes of a StatefulSet are spread round-robin.
#[test]
fn stateful_set_is_spread_over_topologies() {
    let all = zones(&["a", "b", "c"]);
    let first = |claim: &str| {
        let requirement = requirement(&inputs_for(claim), || Ok(all.clone())).unwrap().unwrap();
        assert_eq!(requirement.requisite, all);
        let start = all.iter().position(|segments| *segments == requirement.preferred[0]).unwrap();
        let mut rotated = all.clone();
        rotated.rotate_left(start);
        assert_eq!(requirement.preferred, rotated, "rotated, not shuffled");
        start
    };
    let start = first("data-web-0");
    for ordinal in 0..7 {
        assert_eq!(first(&format!("data-web-{ordinal}")), (start + ordinal) % 3);
        assert_eq!(
            first(&format!("log-web-{ordinal}")),
            (start + ordinal) % 3,
            "all claims of a pod have the same topology"
        );
    }
    // Upstream's example: with four topologies, ordinal 1 of the set `testset` is in the first one.
    let four = zones(&["1", "2", "3", "4"]);
    let requirement = requirement(&inputs_for("testpvcA-testset-1"), || Ok(four.clone())).unwrap().unwrap();
    assert_eq!(requirement.preferred, four);
}

/// sidecars.md 1.1 "Topology": allowedTopologies, OR-distributed.
#[test]
fn allowed_topologies_are_expanded() {
    let terms = allowed(json!([
        {"matchLabelExpressions": [{"key": "zone", "values": ["1", "2"]}, {"key": "rack", "values": ["A", "B"]}]},
        {"matchLabelExpressions": [{"key": "zone", "values": ["3"]}]},
        {"matchLabelExpressions": []},
        {"matchLabelExpressions": [{"key": "zone", "values": []}, {"key": "rack", "values": ["C"]}]},
    ]));
    let mut flat = expand_allowed_topologies(&terms);
    sort(&mut flat);
    let both = |zone, rack| segments_of(&[("zone", zone), ("rack", rack)]);
    // Fewer labels first, then by key and value: the rack is compared before the zone.
    assert_eq!(flat, [zone("3"), both("1", "A"), both("2", "A"), both("1", "B"), both("2", "B")]);
}

/// sidecars.md 1.1 "Topology": requisite.
#[test]
fn requisite_depends_on_class_and_flags() {
    let terms = allowed(json!([{"matchLabelExpressions": [{"key": "zone", "values": ["b", "a", "b"]}]}]));
    let (a, c) = (zone("a"), zone("c"));
    let selected = |place| Some(SelectedNode { node: "node", segments: place });
    let requisite = |inputs: &RequirementInputs<'_>, all: fn() -> _| {
        requirement(inputs, all).map(|found| found.map(|found| found.requisite))
    };
    let all = || Ok(zones(&["c", "a", "b", "a"]));
    let cluster = Some(zones(&["a", "b", "c"]));

    // Immediate.
    assert_eq!(requisite(&inputs_for("x"), all), Ok(cluster.clone()));
    assert_eq!(
        requisite(&RequirementInputs { allowed: &terms, ..inputs_for("x") }, not_needed),
        Ok(Some(zones(&["a", "b"])))
    );
    assert_eq!(
        requisite(&RequirementInputs { strict: true, ..inputs_for("x") }, all),
        Ok(cluster.clone()),
        "strict applies to selected nodes only"
    );
    assert_eq!(requisite(&RequirementInputs { immediate: false, ..inputs_for("x") }, not_needed), Ok(None));
    let inputs = RequirementInputs { immediate: false, allowed: &terms, ..inputs_for("x") };
    assert_eq!(requisite(&inputs, not_needed), Ok(Some(zones(&["a", "b"]))));
    let empty = allowed(json!([{"matchLabelExpressions": []}]));
    assert_eq!(requisite(&RequirementInputs { allowed: &empty, ..inputs_for("x") }, not_needed), Ok(None));
    assert_eq!(
        requisite(&inputs_for("x"), || Err(TopologyError::NoTopologyKeys)),
        Err(TopologyError::NoTopologyKeys)
    );

    // WaitForFirstConsumer.
    let on_a = RequirementInputs { selected: selected(&a), ..inputs_for("x") };
    assert_eq!(requisite(&on_a, all), Ok(cluster.clone()));
    assert_eq!(
        requisite(&RequirementInputs { immediate: false, ..on_a }, all),
        Ok(cluster),
        "the flag applies to Immediate only"
    );
    assert_eq!(
        requisite(&RequirementInputs { allowed: &terms, ..on_a }, not_needed),
        Ok(Some(zones(&["a", "b"])))
    );

    // Strict.
    let strict_on_a = RequirementInputs { strict: true, ..on_a };
    assert_eq!(requisite(&strict_on_a, not_needed), Ok(Some(zones(&["a"]))));
    assert_eq!(
        requisite(&RequirementInputs { allowed: &terms, ..strict_on_a }, not_needed),
        Ok(Some(zones(&["a"])))
    );
    let outside = RequirementInputs { allowed: &terms, selected: selected(&c), ..strict_on_a };
    let error = TopologyError::NotAllowed { node: "node".into(), segments: c.clone() };
    assert_eq!(requisite(&outside, not_needed), Err(error));
    let none_allowed = RequirementInputs { allowed: &empty, ..strict_on_a };
    let error = TopologyError::NotAllowed { node: "node".into(), segments: a.clone() };
    assert_eq!(requisite(&none_allowed, not_needed), Err(error));
}

/// sidecars.md 1.1 "Topology": preferred.
#[test]
fn preferred_starts_at_the_selected_node() {
    let terms = allowed(json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b", "c"]}]}]));
    let here = segments_of(&[("rack", "7"), ("zone", "b")]);
    let selected = Some(SelectedNode { node: "node", segments: &here });
    let preferred = |inputs: &RequirementInputs<'_>| {
        requirement(inputs, not_needed).map(|found| found.unwrap().preferred)
    };

    // The term has fewer segments than the node and matches it.
    let inputs = RequirementInputs { allowed: &terms, selected, ..inputs_for("x") };
    assert_eq!(preferred(&inputs), Ok(zones(&["b", "c", "a"])));
    assert_eq!(preferred(&RequirementInputs { strict: true, ..inputs }), Ok(vec![here.clone()]));

    let elsewhere = segments_of(&[("zone", "z")]);
    let selected = Some(SelectedNode { node: "node", segments: &elsewhere });
    assert_eq!(
        preferred(&RequirementInputs { selected, ..inputs }),
        Err(TopologyError::NotInRequisite {
            node: "node".into(),
            segments: elsewhere.clone(),
            requisite: zones(&["a", "b", "c"]),
        })
    );
}

/// sidecars.md 1.1 "Topology": keys from CSINode, segment from Node labels; missing is an error, not found reschedules.
#[test]
fn selected_node_must_have_topology() {
    let csi_node: CSINode = serde_json::from_value(json!({
        "metadata": {"name": "node"},
        "spec": {"drivers": [
            {"name": "d", "nodeID": "1", "topologyKeys": ["zone", "rack"]},
            {"name": "keyless", "nodeID": "1", "topologyKeys": null},
        ]},
    }))
    .unwrap();
    let labels = StringMap::from_iter([("zone", "a"), ("rack", "1"), ("other", "x")]);
    let found = |driver, csi_node, labels| node_segments("node", driver, csi_node, labels);
    assert_eq!(found("d", Some(&csi_node), Some(&labels)), Ok(segments_of(&[("zone", "a"), ("rack", "1")])));

    let gone = found("d", None, Some(&labels)).unwrap_err();
    assert_eq!(gone, TopologyError::NoCSINode { node: "node".into() });
    assert!(gone.needs_rescheduling());
    for driver in ["keyless", "absent"] {
        let error = found(driver, Some(&csi_node), Some(&labels)).unwrap_err();
        assert_eq!(error, TopologyError::NoTopologyKeysOnNode { node: "node".into() });
        assert!(!error.needs_rescheduling());
    }
    for labels in [None, Some(&StringMap::from_iter([("zone", "a")]))] {
        let error = found("d", Some(&csi_node), labels).unwrap_err();
        assert_eq!(
            error,
            TopologyError::MissingLabels { node: "node".into(), keys: vec!["zone".into(), "rack".into()] }
        );
    }
}

/// sidecars.md 1.1 "Topology": all cluster segments with those keys.
#[test]
fn cluster_topologies_are_collected_from_nodes() {
    let nodes: Vec<Node> = ["b", "a", "b"]
        .iter()
        .map(|zone| {
            serde_json::from_value(json!({"metadata": {"labels": {"zone": zone, "x": "y"}}})).unwrap()
        })
        .chain([Node::default()])
        .collect();
    let keys = ["zone".to_owned()];
    assert_eq!(cluster_segments(&keys, &nodes), Ok(zones(&["a", "b"])));
    assert_eq!(cluster_segments(&[], &nodes), Err(TopologyError::NoTopologyKeys));
    let keys = ["rack".to_owned()];
    assert_eq!(cluster_segments(&keys, &nodes), Err(TopologyError::KeysOnNoNode { keys: keys.to_vec() }));
}

proptest! {
    /// The requirement does not depend on the order of nodes; preferred is a rotation of requisite.
    #[test]
    fn requirement_is_deterministic(mut all in prop::collection::vec("[a-h]", 1..12), claim in "[a-z]{1,3}(-[a-z]{1,3})?(-[0-9]{1,2})?") {
        let of = |names: &[String]| names.iter().map(|name| zone(name)).collect::<Vec<_>>();
        let one = requirement(&inputs_for(&claim), || Ok(of(&all))).unwrap().unwrap();
        all.reverse();
        let other = requirement(&inputs_for(&claim), || Ok(of(&all))).unwrap().unwrap();
        prop_assert_eq!(&one, &other);
        let mut sorted = one.preferred.clone();
        sorted.sort();
        prop_assert_eq!(sorted, one.requisite);
    }
}
