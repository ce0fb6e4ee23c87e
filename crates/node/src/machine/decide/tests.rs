//! The Node object before and after.

use super::*;

const RULES: Rules = Rules { register_again: false, taints: true, report_every: Duration::from_secs(300) };

fn facts() -> Facts {
    Facts {
        address: "10.0.0.7".parse().unwrap(),
        cpus: 4,
        memory: 2048,
        storage: 4096,
        architecture: "amd64",
        kernel: "6.1.0".into(),
        os_image: "Debian".into(),
        machine_id: "m".into(),
        system_uuid: "s".into(),
        boot_id: "b".into(),
    }
}

fn node(body: Value) -> Node {
    let mut whole = json!({"metadata": {"name": "n", "uid": "u"}});
    for (field, value) in body.as_object().unwrap() {
        match whole[field].as_object_mut() {
            Some(map) => map.extend(value.as_object().unwrap().clone()),
            None => whole[field] = value.clone(),
        }
    }
    serde_json::from_value(whole).unwrap()
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn when_it_is_written() {
    let plain = node(json!({}));
    let reported =
        |uid: &str, trouble: &str| Some(Report { uid: uid.into(), at: at(100), trouble: trouble.into() });
    let again = Rules { register_again: true, ..RULES };
    let wait = Step::Wait(Some(at(400)));
    for (rule, rules, there, known, reported, trouble, now, expected) in [
        ("the first", RULES, false, false, None, "", 1, Step::Create),
        (
            "deleted while we run: kubelet leaves it",
            RULES,
            false,
            true,
            reported("u", ""),
            "",
            200,
            Step::Wait(None),
        ),
        (
            "deleted while we run: again, if asked",
            again,
            false,
            true,
            reported("u", ""),
            "",
            200,
            Step::Create,
        ),
        ("found as it is", RULES, true, false, None, "", 1, Step::Report),
        ("another one of the same name", RULES, true, true, reported("other", ""), "", 200, Step::Report),
        ("all is said", RULES, true, true, reported("u", ""), "", 200, wait.clone()),
        ("1.0 forced report 5 min", RULES, true, true, reported("u", ""), "", 400, Step::Report),
        ("something is wrong now", RULES, true, true, reported("u", ""), "x", 200, Step::Report),
        ("nothing is wrong any more", RULES, true, true, reported("u", "x"), "", 200, Step::Report),
        ("something else is wrong", RULES, true, true, reported("u", "x"), "y", 200, Step::Report),
    ] {
        let view = View { node: there.then_some(&plain), known, reported: reported.as_ref(), trouble };
        assert_eq!(decide(&view, rules, at(now)), expected, "{rule}");
    }
}

#[test]
fn the_taint_of_nodes_that_are_not_ready() {
    let ours = json!({"key": NOT_READY, "effect": "NoSchedule"});
    let evicts = json!({"key": NOT_READY, "effect": "NoExecute"});
    let other = json!({"key": "other", "effect": "NoSchedule"});
    for (rule, taints, trouble, expected) in [
        ("ready", json!([]), "", None),
        ("not ready, and it says so", json!([other, ours]), "x", None),
        (
            "ready, and it says otherwise",
            json!([other, ours]),
            "",
            Some(json!([
                {"op": "test", "path": "/spec/taints/1/key", "value": NOT_READY},
                {"op": "test", "path": "/spec/taints/1/effect", "value": "NoSchedule"},
                {"op": "remove", "path": "/spec/taints/1"},
            ])),
        ),
        ("another effect is somebody else's", json!([evicts]), "", None),
        (
            "not ready",
            json!([other]),
            "x",
            Some(json!([{"op": "add", "path": "/spec/taints/-", "value": ours}])),
        ),
        (
            "not ready, and there is no list",
            json!([]),
            "x",
            Some(json!([
                {"op": "test", "path": "/spec/taints", "value": null},
                {"op": "add", "path": "/spec/taints", "value": [ours]},
            ])),
        ),
    ] {
        let node = node(json!({"spec": {"taints": taints}}));
        let reported = Report { uid: "u".into(), at: at(100), trouble: trouble.into() };
        let view = View { node: Some(&node), known: true, reported: Some(&reported), trouble };
        let step = decide(&view, RULES, at(200));
        match (step, expected) {
            (Step::Taint(patch), Some(expected)) => {
                let operations = patch.body().as_array().unwrap();
                assert_eq!(
                    operations[0],
                    json!({"op": "test", "path": "/metadata/uid", "value": "u"}),
                    "{rule}"
                );
                assert_eq!(json!(operations[1..]), expected, "{rule}");
            }
            (Step::Wait(_), None) => {}
            (step, expected) => panic!("{rule}: {step:?}, not {expected:?}"),
        }
        let others = Rules { taints: false, ..RULES };
        assert!(
            matches!(decide(&view, others, at(200)), Step::Wait(_)),
            "{rule}, where a controller sees to it"
        );
    }
}

#[test]
fn a_new_node_says_all() {
    let made = create("n", &facts(), 110, "", Time(0));
    for (at, expected) in [
        ("/metadata/name", json!("n")),
        ("/metadata/labels/kubernetes.io~1hostname", json!("n")),
        ("/metadata/labels/kubernetes.io~1os", json!("linux")),
        ("/metadata/labels/kubernetes.io~1arch", json!("amd64")),
        ("/metadata/annotations/volumes.kubernetes.io~1controller-managed-attach-detach", json!("true")),
        ("/status/addresses/0", json!({"type": "InternalIP", "address": "10.0.0.7"})),
        ("/status/addresses/1", json!({"type": "Hostname", "address": "n"})),
        (
            "/status/capacity",
            json!({"cpu": "4", "memory": "2048Ki", "ephemeral-storage": "4096Ki", "pods": "110"}),
        ),
        ("/status/allocatable", made["status"]["capacity"].clone()),
        ("/status/nodeInfo/operatingSystem", json!("linux")),
    ] {
        assert_eq!(made.pointer(at), Some(&expected), "{at}");
    }
    let types: Vec<&str> = made["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["type"].as_str().unwrap())
        .collect();
    assert_eq!(types, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    assert_eq!(made["status"]["conditions"][3]["status"], "True");
}

#[test]
fn a_node_that_is_found_keeps_what_others_said() {
    let found = node(json!({
        "metadata": {"name": "n", "uid": "u", "labels": {"kubernetes.io/os": "linux", "zone": "x"}},
        "status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "DiskPressure", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]},
    }));
    let now = Time(1_800_000_000_000);
    let patch = report(&found, &facts(), 110, "", now);
    let body = patch.body();
    assert_eq!(body["metadata"]["uid"], "u");
    assert_eq!(body["metadata"]["labels"].get("zone"), None);
    assert_eq!(body["metadata"]["labels"].get("kubernetes.io/os"), None, "it is there");
    assert_eq!(body["metadata"]["labels"]["kubernetes.io/arch"], "amd64");
    assert_eq!(body["status"]["addresses"][0], json!({"$patch": "replace"}));
    let since = |kind: &str| {
        let conditions = body["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|c| c["type"] == kind).unwrap()["lastTransitionTime"].clone()
    };
    assert_eq!(since("Ready"), "2026-01-01T00:00:00Z", "as before");
    assert_eq!(since("DiskPressure"), json!(now.to_string()), "another than before");

    let ill = report(&found, &facts(), 110, "CSINode is not yet initialized", now);
    let ready = &ill.body()["status"]["conditions"][3];
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("KubeletNotReady")));
    assert_eq!(ready["message"], "CSINode is not yet initialized");
    assert_eq!(ready["lastTransitionTime"], json!(now.to_string()));

    let said = node(json!({"metadata": create("n", &facts(), 1, "", now)["metadata"]}));
    let again = report(
        &Node { metadata: wharf_model::Meta { uid: "u".into(), ..said.metadata }, ..Node::default() },
        &facts(),
        110,
        "",
        now,
    );
    assert_eq!(again.body()["metadata"], json!({"uid": "u"}), "nothing is written that is there");
}

/// A condition says since when it is so, each its own; what changes is so since now.
#[test]
fn since_when_conditions_are_so() {
    let before = node(json!({"status": {"conditions": [
        {"type": "MemoryPressure", "status": "False", "lastTransitionTime": "1970-01-01T00:00:03Z"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:05Z"},
    ]}}));
    for (trouble, ready) in [("", 5), ("no network", 9)] {
        let told = conditions(Some(&before), trouble, Time(9000));
        let since: Vec<&Value> =
            told.as_array().unwrap().iter().map(|condition| &condition["lastTransitionTime"]).collect();
        let expected = [3, 9, 9, ready].map(|seconds| json!(Time(seconds * 1000).to_string()));
        assert_eq!(since, expected.iter().collect::<Vec<_>>(), "{trouble}");
    }
}
