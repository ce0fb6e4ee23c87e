//! The Node object before and after a step.

use super::*;

const RULES: Rules = Rules { recreate_node: false, report_every: Duration::from_secs(300) };

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
fn node_is_created_once_and_reported_on_changes() {
    let of = |status: &str| node(json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}));
    let plain = of("True");
    let reported =
        |uid: &str, problem: &str| Some(Report { uid: uid.into(), at: at(100), problem: problem.into() });
    let recreating = Rules { recreate_node: true, ..RULES };
    let wait = Step::Wait(Some(at(400)));
    for (rule, rules, exists, known, reported, problem, now, expected) in [
        ("the first", RULES, false, false, None, "", 1, Step::Create),
        (
            "deleted while we run: not created again, as in kubelet",
            RULES,
            false,
            true,
            reported("u", ""),
            "",
            200,
            Step::Wait(None),
        ),
        (
            "deleted while we run: created again, if configured",
            recreating,
            false,
            true,
            reported("u", ""),
            "",
            200,
            Step::Create,
        ),
        ("found", RULES, true, false, None, "", 1, Step::Report),
        ("another Node of the same name", RULES, true, true, reported("other", ""), "", 200, Step::Report),
        ("nothing changed", RULES, true, true, reported("u", ""), "", 200, wait.clone()),
        ("1.0 forced report 5 min", RULES, true, true, reported("u", ""), "", 400, Step::Report),
        ("a problem appeared", RULES, true, true, reported("u", ""), "x", 200, Step::Report),
        ("the problem is cleared", RULES, true, true, reported("u", "x"), "", 200, Step::Report),
        ("another problem", RULES, true, true, reported("u", "x"), "y", 200, Step::Report),
    ] {
        let view = View { node: exists.then_some(&plain), known, reported: reported.as_ref(), problem };
        assert_eq!(decide(&view, rules, at(now)), expected, "{rule}");
    }
    // kubernetes.md 1.9 "Lost node": one that is back reports at once.
    for (status, problem, expected) in [
        ("Unknown", "", Step::Report),
        ("Unknown", "x", Step::Report),
        ("False", "", Step::Report),
        ("False", "x", wait.clone()),
    ] {
        let (node, reported) = (of(status), reported("u", problem));
        let view = View { node: Some(&node), known: true, reported: reported.as_ref(), problem };
        assert_eq!(decide(&view, RULES, at(200)), expected, "{status} {problem:?}");
    }
}

#[test]
fn new_node_is_complete() {
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
fn report_keeps_foreign_fields() {
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
    assert_eq!(body["metadata"]["labels"].get("kubernetes.io/os"), None, "already set");
    assert_eq!(body["metadata"]["labels"]["kubernetes.io/arch"], "amd64");
    assert_eq!(body["status"]["addresses"][0], json!({"$patch": "replace"}));
    let since = |kind: &str| {
        let conditions = body["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|c| c["type"] == kind).unwrap()["lastTransitionTime"].clone()
    };
    assert_eq!(since("Ready"), "2026-01-01T00:00:00Z", "unchanged");
    assert_eq!(since("DiskPressure"), json!(now.to_string()), "changed");

    let not_ready = report(&found, &facts(), 110, "CSINode is not yet initialized", now);
    let ready = &not_ready.body()["status"]["conditions"][3];
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("KubeletNotReady")));
    assert_eq!(ready["message"], "CSINode is not yet initialized");
    assert_eq!(ready["lastTransitionTime"], json!(now.to_string()));

    let node_with_metadata = node(json!({"metadata": create("n", &facts(), 1, "", now)["metadata"]}));
    let again = report(
        &Node {
            metadata: wharf_model::Meta { uid: "u".into(), ..node_with_metadata.metadata },
            ..Node::default()
        },
        &facts(),
        110,
        "",
        now,
    );
    assert_eq!(again.body()["metadata"], json!({"uid": "u"}), "existing fields are not written");
}

/// Each condition has its own transition time; a changed condition has the current time.
#[test]
fn unchanged_conditions_keep_their_transition_time() {
    let before = node(json!({"status": {"conditions": [
        {"type": "MemoryPressure", "status": "False", "lastTransitionTime": "1970-01-01T00:00:03Z"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:05Z"},
    ]}}));
    for (problem, ready) in [("", 5), ("no network", 9)] {
        let found = conditions(Some(&before), problem, Time(9000));
        let since: Vec<&Value> =
            found.as_array().unwrap().iter().map(|condition| &condition["lastTransitionTime"]).collect();
        let expected = [3, 9, 9, ready].map(|seconds| json!(Time(seconds * 1000).to_string()));
        assert_eq!(since, expected.iter().collect::<Vec<_>>(), "{problem}");
    }
}
