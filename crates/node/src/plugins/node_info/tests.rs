//! Node and CSINode before and after a change, following the tables of nodeinfomanager's own tests.

use super::*;

const DRIVER: &str = "a.example.com";

fn node(labels: Value, ids: Option<&str>, allocatable: Value) -> Node {
    let annotations = match ids {
        Some(ids) => json!({annotation::LEGACY_NODE_ID: ids}),
        None => json!({}),
    };
    serde_json::from_value(json!({
        "metadata": {
            "name": "n", "uid": "u", "resourceVersion": "7", "labels": labels, "annotations": annotations,
        },
        "status": {"allocatable": allocatable},
    }))
    .unwrap()
}

fn info(node_id: &str, max_volumes: i64, topology: &[(&str, &str)]) -> DriverNodeInfo {
    let topology = topology.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    DriverNodeInfo { node_id: node_id.to_owned(), max_volumes, topology }
}

fn body(patch: Option<Patch>) -> Option<Value> {
    patch.map(|patch| {
        assert_eq!(patch.content_type(), "application/strategic-merge-patch+json");
        let mut body = patch.body().clone();
        let metadata = body["metadata"].as_object_mut().unwrap();
        assert_eq!(metadata.remove("uid"), Some(json!("u")), "only this Node");
        assert_eq!(metadata.remove("resourceVersion"), Some(json!("7")), "only this version");
        body
    })
}

fn annotated(value: Value) -> Value {
    json!({"metadata": {"annotations": {annotation::LEGACY_NODE_ID: value}}})
}

/// kubernetes.md 1.7 "Node patch".
#[test]
fn install_patches_node_annotation_and_labels() {
    let ours = r#"{"a.example.com":"i"}"#;
    let both = r#"{"a.example.com":"i","b.example.com":"j"}"#;
    let zone = [("zone", "x")];
    let legacy = json!({"allocatable": {"attachable-volumes-csi-a.example.com": null}, "capacity": {"attachable-volumes-csi-a.example.com": null}});
    for (rule, labels, ids, allocatable, topology, expected) in [
        ("empty node", json!({}), None, json!({}), &[][..], Some(annotated(json!(ours)))),
        ("annotation exists", json!({}), Some(ours), json!({}), &[], None),
        (
            "an empty annotation counts as none",
            json!({}),
            Some(""),
            json!({}),
            &[],
            Some(annotated(json!(ours))),
        ),
        ("so does null", json!({}), Some("null"), json!({}), &[], Some(annotated(json!(ours)))),
        (
            "another driver's stays",
            json!({}),
            Some(r#"{"b.example.com":"j"}"#),
            json!({}),
            &[],
            Some(annotated(json!(both))),
        ),
        (
            "another id is replaced",
            json!({}),
            Some(r#"{"a.example.com":"old","b.example.com":"j"}"#),
            json!({}),
            &[],
            Some(annotated(json!(both))),
        ),
        (
            "topology becomes labels, in the same patch",
            json!({"other": "y"}),
            None,
            json!({}),
            &zone,
            Some(json!({"metadata": {
                "annotations": {annotation::LEGACY_NODE_ID: ours}, "labels": {"zone": "x"},
            }})),
        ),
        ("existing labels are not written", json!({"zone": "x"}), Some(ours), json!({}), &zone, None),
        (
            "only labels",
            json!({}),
            Some(ours),
            json!({}),
            &zone,
            Some(json!({"metadata": {"labels": {"zone": "x"}}})),
        ),
        (
            "a limit from before CSINode is removed",
            json!({}),
            Some(ours),
            json!({"attachable-volumes-csi-a.example.com": "5", "cpu": "1"}),
            &[],
            Some(json!({"metadata": {}, "status": legacy})),
        ),
    ] {
        let found = install_on_node(&node(labels, ids, allocatable), DRIVER, &info("i", 0, topology));
        assert_eq!(body(found.unwrap()), expected, "{rule}");
    }
}

/// kubernetes.md 1.7 "Empty node ID", "Label conflict".
#[test]
fn install_on_node_refuses_invalid_input() {
    let collision =
        NodeInfoError::Collision { key: "zone".into(), reported: "x".into(), existing: "y".into() };
    assert_eq!(
        collision.to_string(),
        r#"detected topology value collision: driver reported "zone":"x" but existing label is "zone":"y""#
    );
    let broken = "{";
    for (rule, labels, ids, info, expected) in [
        (
            "1.7 existing different value = hard error",
            json!({"zone": "y"}),
            None,
            info("i", 0, &[("zone", "x")]),
            collision,
        ),
        ("1.7 nodeID \"\" is an error", json!({}), None, info("", 0, &[]), NodeInfoError::NoNodeId),
        (
            "unparsable annotation",
            json!({}),
            Some(broken),
            info("i", 0, &[]),
            NodeInfoError::Annotation { value: broken.into() },
        ),
    ] {
        let found = install_on_node(&node(labels, ids, json!({})), DRIVER, &info);
        assert_eq!(found, Err(expected), "{rule}");
    }
    let torn = node(json!({}), Some(broken), json!({}));
    assert!(uninstall_from_node(&torn, DRIVER).is_err(), "other drivers' ids are not discarded");
}

/// kubernetes.md 1.6 "Socket removed": labels stay.
#[test]
fn uninstall_removes_node_id_and_keeps_labels() {
    let labels = json!({"zone": "x"});
    for (rule, ids, expected) in [
        ("no annotation", None, None),
        ("not this driver's", Some(r#"{"b.example.com":"j"}"#), None),
        (
            "the last id removes the annotation",
            Some(r#"{"a.example.com":"i"}"#),
            Some(annotated(Value::Null)),
        ),
        (
            "others stay, and so do the labels",
            Some(r#"{"a.example.com":"i","b.example.com":"j"}"#),
            Some(annotated(json!(r#"{"b.example.com":"j"}"#))),
        ),
    ] {
        let found = uninstall_from_node(&node(labels.clone(), ids, json!({})), DRIVER);
        assert_eq!(body(found.unwrap()), expected, "{rule}");
    }
}

const OURS: &[&str] = &["kubernetes.io/b", "kubernetes.io/a"];

fn csi_node(drivers: Value) -> Value {
    let mut csi_node = new_csi_node(&node(json!({}), None, json!({})), OURS);
    csi_node["metadata"]["resourceVersion"] = json!("9");
    csi_node["spec"]["drivers"] = drivers;
    csi_node
}

fn install(csi_node: &Value, info: &DriverNodeInfo, in_place: bool) -> Change {
    install_on_csi_node(csi_node, &node(json!({}), None, json!({})), DRIVER, info, OURS, in_place)
}

/// kubernetes.md 1.7 "CSINode".
#[test]
fn csi_node_is_created_for_its_node() {
    let created = new_csi_node(&node(json!({}), None, json!({})), OURS);
    let expected = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {
            "name": "n",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
            "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/a,kubernetes.io/b"},
        },
        "spec": {"drivers": []},
    });
    assert_eq!(created, expected);
    assert_eq!(prepared(&created, &node(json!({}), None, json!({})), OURS), None);

    let migrated = "/metadata/annotations/storage.alpha.kubernetes.io~1migrated-plugins";
    let set = |value: Value| {
        let mut before = created.clone();
        before["metadata"]["annotations"] = value;
        before
    };
    for (rule, before, wanted, expected) in [
        ("no annotation", set(Value::Null), OURS, Some("kubernetes.io/a,kubernetes.io/b")),
        (
            "a plugin is missing",
            set(json!({MIGRATED_PLUGINS: "kubernetes.io/a", "x": "y"})),
            OURS,
            Some("kubernetes.io/a,kubernetes.io/b"),
        ),
        (
            "a plugin too many",
            set(json!({MIGRATED_PLUGINS: "kubernetes.io/a,kubernetes.io/c"})),
            &["kubernetes.io/a"],
            Some("kubernetes.io/a"),
        ),
        ("none is migrated", set(json!({MIGRATED_PLUGINS: "kubernetes.io/a"})), &[], None),
    ] {
        let after = prepared(&before, &node(json!({}), None, json!({})), wanted).expect(rule);
        assert_eq!(after.pointer(migrated).and_then(Value::as_str), expected, "{rule}");
        assert_eq!(after["metadata"]["annotations"]["x"], before["metadata"]["annotations"]["x"], "{rule}");
    }
    let other_order = set(json!({MIGRATED_PLUGINS: "kubernetes.io/b,kubernetes.io/a"}));
    assert_eq!(
        prepared(&other_order, &node(json!({}), None, json!({})), OURS),
        None,
        "order does not matter"
    );
}

#[test]
fn csi_node_of_an_earlier_node_gets_the_new_owner() {
    let mut before = csi_node(json!([]));
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"});
    before["metadata"]["ownerReferences"][0]["uid"] = json!("earlier");
    before["metadata"]["ownerReferences"].as_array_mut().unwrap().push(other.clone());
    let after = prepared(&before, &node(json!({}), None, json!({})), OURS).unwrap();
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"});
    assert_eq!(after["metadata"]["ownerReferences"], json!([other, owner]));
    // An object of another kind with the Node's name and uid is not the Node.
    let namesake = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "n", "uid": "u"});
    before["metadata"]["ownerReferences"] = json!([namesake]);
    let after = prepared(&before, &node(json!({}), None, json!({})), OURS).unwrap();
    assert_eq!(after["metadata"]["ownerReferences"], json!([namesake, owner]));
    assert_eq!(after["metadata"]["resourceVersion"], "9", "only this version");
}

/// kubernetes.md 1.7 "Entry".
#[test]
fn install_adds_csi_node_entry() {
    let entry = |id: &str, keys: Value, count: Option<i64>| {
        let mut entry = json!({"name": DRIVER, "nodeID": id, "topologyKeys": keys});
        if let Some(count) = count {
            entry["allocatable"] = json!({"count": count});
        }
        entry
    };
    let other = json!({"name": "b.example.com", "nodeID": "j", "topologyKeys": null});
    let two = [("zone", "x"), ("rack", "y")];
    let put = |drivers: Value| Change::Update(csi_node(drivers));
    for (rule, before, info, expected) in [
        ("the first", json!([]), info("i", 5, &[]), put(json!([entry("i", json!([]), Some(5))]))),
        ("written as null", Value::Null, info("i", 5, &[]), put(json!([entry("i", json!([]), Some(5))]))),
        (
            "topologyKeys sorted",
            json!([]),
            info("i", 5, &two),
            put(json!([entry("i", json!(["rack", "zone"]), Some(5))])),
        ),
        (
            "after others",
            json!([other]),
            info("i", 5, &[]),
            put(json!([other, entry("i", json!([]), Some(5))])),
        ),
        ("no limit", json!([]), info("i", 0, &[]), put(json!([entry("i", json!([]), None)]))),
        ("negative ignored", json!([]), info("i", -1, &[]), put(json!([entry("i", json!([]), None)]))),
        (
            "capped at MaxInt32",
            json!([]),
            info("i", i64::MAX, &[]),
            put(json!([entry("i", json!([]), Some(2_147_483_647))])),
        ),
        (
            "PUT only if changed",
            json!([entry("i", json!(["zone", "rack"]), Some(5))]),
            info("i", 5, &two),
            Change::Nothing,
        ),
        (
            "another limit, in place",
            json!([entry("i", json!([]), Some(4)), other]),
            info("i", 5, &[]),
            put(json!([other, entry("i", json!([]), Some(5))])),
        ),
        (
            "a limit where there was none",
            json!([entry("i", json!([]), None)]),
            info("i", 5, &[]),
            put(json!([entry("i", json!([]), Some(5))])),
        ),
        (
            "another id: entries are immutable, so remove and re-add",
            json!([entry("old", json!([]), Some(5)), other]),
            info("i", 5, &[]),
            Change::RemoveEntry(csi_node(json!([other]))),
        ),
        (
            "other keys: likewise",
            json!([entry("i", json!(["zone"]), Some(5))]),
            info("i", 5, &two),
            Change::RemoveEntry(csi_node(json!([]))),
        ),
    ] {
        assert_eq!(install(&csi_node(before), &info, true), expected, "{rule}");
    }
    let before = csi_node(json!([entry("i", json!([]), Some(4)), other]));
    let without = Change::RemoveEntry(csi_node(json!([other])));
    assert_eq!(install(&before, &info("i", 5, &[]), false), without, "a server that rejects a changed limit");

    let mut bare = csi_node(json!([entry("i", json!([]), Some(5))]));
    bare["metadata"]["annotations"] = Value::Null;
    let Change::Update(after) = install(&bare, &info("i", 5, &[]), true) else {
        panic!("the annotation is missing")
    };
    assert_eq!(after["spec"], bare["spec"]);
    assert!(after["metadata"]["annotations"][MIGRATED_PLUGINS].is_string());
}

#[test]
fn uninstall_removes_csi_node_entry() {
    let ours = json!({"name": DRIVER, "nodeID": "i", "topologyKeys": null});
    let other = json!({"name": "b.example.com", "nodeID": "j", "topologyKeys": null});
    for (rule, before, expected) in [
        ("not there", json!([other]), Change::Nothing),
        ("none there", Value::Null, Change::Nothing),
        ("others stay", json!([other, ours]), Change::Update(csi_node(json!([other])))),
        ("the last; the CSINode stays", json!([ours]), Change::Update(csi_node(json!([])))),
    ] {
        assert_eq!(uninstall_from_csi_node(&csi_node(before), DRIVER), expected, "{rule}");
    }
}

#[test]
fn is_written_requires_node_and_csi_node_to_match() {
    let ours = r#"{"a.example.com":"i"}"#;
    let entry = json!({"name": DRIVER, "nodeID": "i", "topologyKeys": ["zone"], "allocatable": {"count": 5}});
    let current = info("i", 5, &[("zone", "x")]);
    let with = |field: &str, value: Value| {
        let mut entry = entry.clone();
        entry[field] = value;
        entry
    };
    for (rule, labels, ids, entry, expected) in [
        ("both", json!({"zone": "x"}), Some(ours), entry.clone(), true),
        ("no annotation", json!({"zone": "x"}), None, entry.clone(), false),
        ("another id", json!({"zone": "x"}), Some(r#"{"a.example.com":"j"}"#), entry.clone(), false),
        ("an annotation that cannot be read", json!({"zone": "x"}), Some("{"), entry.clone(), false),
        ("no label", json!({}), Some(ours), entry.clone(), false),
        ("another label", json!({"zone": "y"}), Some(ours), entry.clone(), false),
        ("no entry", json!({"zone": "x"}), Some(ours), with("name", json!("b")), false),
        ("another id in the entry", json!({"zone": "x"}), Some(ours), with("nodeID", json!("j")), false),
        (
            "other keys",
            json!({"zone": "x"}),
            Some(ours),
            with("topologyKeys", json!(["zone", "rack"])),
            false,
        ),
        ("another limit", json!({"zone": "x"}), Some(ours), with("allocatable", json!({"count": 6})), false),
        ("no limit", json!({"zone": "x"}), Some(ours), with("allocatable", Value::Null), false),
    ] {
        let csi_node = serde_json::from_value(csi_node(json!([entry]))).unwrap();
        assert_eq!(
            is_written(&node(labels, ids, json!({})), &csi_node, DRIVER, &current),
            expected,
            "{rule}"
        );
    }
}
