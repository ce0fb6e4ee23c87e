use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::schema;

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

fn kind(name: &str) -> &'static Schema {
    ["", "storage.k8s.io", "snapshot.storage.k8s.io"]
        .iter()
        .find_map(|group| schema::find(group, name))
        .unwrap()
}

/// The patched object, or the code and message of the error.
fn patched(name: &str, object: &Value, media_type: &str, patch: &Value) -> Result<Value, (u16, String)> {
    Patch::parse(media_type, patch.to_string().as_bytes())
        .and_then(|patch| apply(kind(name), object, &patch))
        .map_err(|error| (error.code, error.message))
}

#[test]
fn json_patch_operations() {
    let object = json!({"a": {"b": [1, 2, 3], "c/d": 1, "e~f": 2}, "n": null});
    let rejected = "the server rejected our request due to an error in our request";
    let cases: Vec<(Value, Option<Value>)> = vec![
        (json!([{"op": "add", "path": "/x", "value": {"y": 1}}]), Some(json!({"x": {"y": 1}}))),
        (json!([{"op": "add", "path": "/a/b/1", "value": 9}]), Some(json!({"a": {"b": [1, 9, 2, 3]}}))),
        (json!([{"op": "add", "path": "/a/b/-", "value": 9}]), Some(json!({"a": {"b": [1, 2, 3, 9]}}))),
        (json!([{"op": "add", "path": "/a/b/3", "value": 9}]), Some(json!({"a": {"b": [1, 2, 3, 9]}}))),
        (json!([{"op": "add", "path": "/a/b/-1", "value": 9}]), Some(json!({"a": {"b": [1, 2, 3, 9]}}))),
        (json!([{"op": "add", "path": "/a/b/4", "value": 9}]), None),
        (json!([{"op": "add", "path": "/a/b/x", "value": 9}]), None),
        (json!([{"op": "add", "path": "/gone/x", "value": 9}]), None),
        (json!([{"op": "add", "path": "/n/x", "value": 9}]), None),
        (json!([{"op": "add", "path": "", "value": {}}]), None),
        (json!([{"op": "remove", "path": "/a/b/0"}]), Some(json!({"a": {"b": [2, 3]}}))),
        (json!([{"op": "remove", "path": "/a/b/-1"}]), Some(json!({"a": {"b": [1, 2]}}))),
        (json!([{"op": "remove", "path": "/a/b/3"}]), None),
        (json!([{"op": "remove", "path": "/a/b/-"}]), None),
        (json!([{"op": "remove", "path": "/gone"}]), None),
        (json!([{"op": "remove", "path": "/a/c~1d"}]), Some(json!({"a": {"c/d": null}}))),
        (json!([{"op": "replace", "path": "/a/e~0f", "value": 3}]), Some(json!({"a": {"e~f": 3}}))),
        (json!([{"op": "replace", "path": "/gone", "value": 3}]), Some(json!({"gone": 3}))),
        (json!([{"op": "replace", "path": "/a/b/3", "value": 3}]), None),
        (
            json!([{"op": "move", "from": "/a/b", "path": "/b"}]),
            Some(json!({"a": {"b": null}, "b": [1, 2, 3]})),
        ),
        (json!([{"op": "move", "from": "/gone", "path": "/b"}]), None),
        (json!([{"op": "move", "path": "/b"}]), None),
        (
            json!([{"op": "copy", "from": "/a/b/0", "path": "/a/b/0"}]),
            Some(json!({"a": {"b": [1, 1, 2, 3]}})),
        ),
        (json!([{"op": "copy", "from": "/a/b/7", "path": "/a/b/0"}]), None),
        (json!([{"op": "test", "path": "/a/b", "value": [1, 2, 3]}]), Some(json!({}))),
        (json!([{"op": "test", "path": "/a/b", "value": [1, 2]}]), None),
        (json!([{"op": "test", "path": "/gone", "value": null}]), Some(json!({}))),
        (json!([{"op": "test", "path": "/gone/deeper", "value": null}]), None),
        (json!([{"op": "test", "path": "", "value": 1}]), None),
        (json!([{"op": "try", "path": "/a"}]), None),
        (json!([{"path": "/a"}]), None),
        (json!([{"op": "remove"}]), None),
        (json!([{"op": "remove", "path": "/n"}, {"op": "test", "path": "/a/c~1d", "value": 2}]), None),
    ];
    for (patch, expected) in cases {
        let expected = expected
            .map(|change| {
                let mut whole = object.clone();
                merge::apply(&mut whole, &change);
                // The merge patch removed the null.
                if whole.get("n").is_none() {
                    whole["n"] = Value::Null;
                }
                whole
            })
            .ok_or((422, rejected.to_owned()));
        assert_eq!(patched("Pod", &object, JSON, &patch), expected, "{patch}");
    }
    let whole = patched("Pod", &object, JSON, &json!([{"op": "replace", "path": "", "value": {"z": 1}}]));
    assert_eq!(whole, Ok(json!({"z": 1})));
    assert_eq!(
        patched("Pod", &object, JSON, &json!([{"op": "copy", "from": "/gone", "path": "/b"}])).unwrap()["b"],
        Value::Null
    );
}

#[test]
fn malformed_patches_are_rejected() {
    let cases: Vec<(&str, &[u8], u16, &str)> = vec![
        (JSON, b"{}", 400, "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        (JSON, b"[1]", 400, "json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        (
            JSON,
            b"[{\"op\":1}]",
            400,
            "json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
        ),
        (
            MERGE,
            b"[]",
            400,
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        (STRATEGIC, b"1", 400, "json: cannot unmarshal number into Go value of type map[string]interface {}"),
        (MERGE, b"{", 400, "error decoding patch: "),
        (JSON, b"\xff", 400, "error decoding patch: "),
        ("application/apply-patch+yaml", b"{}", 415, "server-side apply is not supported here"),
        (
            "application/json",
            b"{}",
            415,
            "the body of the request was in an unknown format - accepted media types include:",
        ),
        ("", b"{}", 415, "the body of the request was in an unknown format - accepted media types include:"),
    ];
    for (media_type, body, code, message) in cases {
        let error = Patch::parse(media_type, body).unwrap_err();
        assert_eq!(error.code, code, "{media_type} {body:?}");
        assert!(error.message.contains(message), "{media_type} {body:?}: {}", error.message);
    }
    assert!(Patch::parse("application/merge-patch+json; charset=utf-8", b"{}").is_ok());
    let many: Vec<Value> = vec![json!({"op": "test", "path": "/gone"}); MAX_OPERATIONS + 1];
    let error = Patch::parse(JSON, json!(many).to_string().as_bytes()).unwrap_err();
    assert_eq!((error.code, error.reason), (413, "RequestEntityTooLarge"));
    assert!(Patch::parse(JSON, json!(many[1..]).to_string().as_bytes()).is_ok());
}

#[test]
fn json_patch_growth_is_limited() {
    let object = json!({"a": {"b": 1}});
    // Each copy doubles the object.
    let bomb: Vec<Value> =
        (0..60).map(|at| json!({"op": "copy", "from": "", "path": format!("/x{at}")})).collect();
    assert_eq!(patched("Pod", &object, JSON, &json!(bomb)).unwrap_err().0, 422, "the root cannot be copied");
    let bomb: Vec<Value> =
        (0..60).map(|at| json!({"op": "copy", "from": "/a", "path": format!("/a/x{at}")})).collect();
    assert_eq!(patched("Pod", &object, JSON, &json!(bomb)).unwrap_err().0, 422);
    // Each operation adds one level.
    let mut path = String::new();
    let deeper: Vec<Value> = (0..200)
        .map(|_| {
            path.push_str("/d");
            json!({"op": "add", "path": path, "value": {}})
        })
        .collect();
    assert_eq!(patched("Pod", &json!({}), JSON, &json!(deeper)).unwrap_err().0, 422);
    assert!(patched("Pod", &json!({}), JSON, &json!(deeper[..MAX_DEPTH - 1])).is_ok());
}

#[test]
fn merge_patch_rules() {
    // The examples of RFC 7396 with an object as target.
    let cases = [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        // A list that replaces an object keeps its nulls. In other lists, upstream removes nulls from objects.
        (json!({"a": {}}), json!({"a": [{"b": null}]}), json!({"a": [{"b": null}]})),
        (json!({}), json!({"a": [{"b": null, "c": 1}, null]}), json!({"a": [{"c": 1}, null]})),
    ];
    for (object, patch, expected) in cases {
        assert_eq!(patched("Pod", &object, MERGE, &patch), Ok(expected), "{object} {patch}");
    }
}

#[test]
fn strategic_merge_patch_rules() {
    let cases = [
        // Fields, maps and nulls.
        (
            "Pod",
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
            json!({"metadata": {"labels": {"b": "2", "c": "3"}}}),
        ),
        (
            "Pod",
            json!({"spec": {"nodeName": "a"}}),
            json!({"spec": {"nodeName": null, "gone": null}}),
            json!({"spec": {}}),
        ),
        (
            "Pod",
            json!({}),
            json!({"metadata": {"labels": {"a": null, "b": "1"}}}),
            json!({"metadata": {"labels": {"b": "1"}}}),
        ),
        // Lists are merged by key: existing elements keep their position, new elements precede elements that the patch
        // does not list.
        (
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}]}}),
        ),
        (
            "Node",
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "status": "False"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "False"}]}}),
        ),
        // Lists within an element are merged too, by another key.
        (
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/x", "name": "v"}]}]}}),
            json!({"spec": {"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/x", "readOnly": true}]}]}}),
            json!({"spec": {"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/x", "name": "v", "readOnly": true}]}]}}),
        ),
        // Lists without a key are replaced.
        (
            "Pod",
            json!({"spec": {"tolerations": [{"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
        ),
        (
            "Node",
            json!({"status": {"volumesAttached": [{"name": "a"}]}}),
            json!({"status": {"volumesAttached": []}}),
            json!({"status": {"volumesAttached": []}}),
        ),
        // Scalars are merged where the schema says so.
        (
            "PersistentVolume",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["c", "a"]}}),
            json!({"metadata": {"finalizers": ["c", "a", "b"]}}),
        ),
        (
            "PersistentVolume",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            json!({"metadata": {"finalizers": ["b"]}}),
        ),
        (
            "PersistentVolume",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"]}}),
            json!({"metadata": {"finalizers": ["c", "b"]}}),
        ),
        (
            "PersistentVolume",
            json!({"metadata": {}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            json!({"metadata": {}}),
        ),
        (
            "PersistentVolume",
            json!({"spec": {"accessModes": ["ReadWriteOnce"]}}),
            json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
            json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
        ),
        // Directives.
        (
            "Pod",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
        ),
        (
            "Pod",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}),
            json!({"spec": {"containers": [{"name": "c"}]}}),
        ),
        (
            "Pod",
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}}}),
            json!({"metadata": {"labels": {"b": "2"}}}),
        ),
        (
            "Pod",
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "delete"}}}),
            json!({"metadata": {"labels": {}}}),
        ),
        (
            "Pod",
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/a"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}, "$retainKeys": ["name", "emptyDir"]}]}}),
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
        ),
        (
            "Pod",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}]}}),
        ),
        (
            "Pod",
            json!({"spec": {}}),
            json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
        ),
        (
            "Pod",
            json!({"spec": {"containers": null}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
        ),
        (
            "CSINode",
            json!({"spec": {"drivers": [{"name": "a", "nodeID": "1"}]}}),
            json!({"spec": {"drivers": [{"name": "b", "nodeID": "2"}]}}),
            json!({"spec": {"drivers": [{"name": "b", "nodeID": "2"}, {"name": "a", "nodeID": "1"}]}}),
        ),
        // With $setElementOrder, upstream treats the first new element as if it had followed the remaining elements, in
        // the slot that the deletion freed. So `old` stays in front.
        (
            "CSINode",
            json!({"spec": {"drivers": [{"name": "gone"}, {"name": "old"}]}}),
            json!({"spec": {
                "drivers": [{"name": "new"}, {"name": "newer"}, {"name": "gone", "$patch": "delete"}],
                "$setElementOrder/drivers": [{"name": "new"}, {"name": "newer"}],
            }}),
            json!({"spec": {"drivers": [{"name": "old"}, {"name": "new"}, {"name": "newer"}]}}),
        ),
    ];
    for (name, object, patch, expected) in cases {
        assert_eq!(patched(name, &object, STRATEGIC, &patch), Ok(expected), "{object} {patch}");
    }
}

#[test]
fn inapplicable_strategic_merge_patches_are_rejected() {
    let pod = json!({
        "metadata": {"labels": {"a": "1"}, "finalizers": ["x"]},
        "spec": {"containers": [{"name": "a"}], "volumes": [{"name": "v"}]},
    });
    let cases = [
        (
            json!({"spec": {"containers": [{"image": "x"}]}}),
            500,
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (json!({"spec": {"$patch": "merge"}}), 500, "unknown patch type: merge in map: map[$patch:merge]"),
        (
            json!({"spec": {"containers": [{"$patch": "merge"}]}}),
            500,
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"spec": {"containers": ["a"]}}),
            500,
            "list element types are not identical: [[map[name:a]] [a]]",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": "name"}]}}),
            400,
            "invalid patch format of retainKeys",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}, "$retainKeys": ["name"]}]}}),
            400,
            "invalid patch format of retainKeys",
        ),
        (
            json!({"spec": {"$setElementOrdercontainers": []}}),
            400,
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveListx": ["a"]}}),
            400,
            "invalid patch format of primitive list",
        ),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}}),
            500,
            "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
        ),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "a"}, {"$patch": "replace"}]}}),
            500,
            "The order in patch list:\n[map[name:a] map[$patch:replace]]\n doesn't match $setElementOrder list:\n[map[name:a]]\n",
        ),
        (
            json!({"spec": {"$setElementOrder/tolerations": [], "tolerations": []}}),
            500,
            "no elements in any of the given slices",
        ),
        (
            json!({"spec": {"$setElementOrder/gone": []}}),
            500,
            "unable to find api field in struct PodSpec for the json field \"gone\"",
        ),
    ];
    for (patch, code, message) in cases {
        assert_eq!(patched("Pod", &pod, STRATEGIC, &patch), Err((code, message.to_owned())), "{patch}");
    }
    let custom = patched("VolumeSnapshot", &json!({}), STRATEGIC, &json!({})).unwrap_err();
    assert_eq!(custom.0, 415);
}

#[test]
fn invalid_result_error_prints_patch_like_upstream() {
    let parse = |media_type, patch: Value| Patch::parse(media_type, patch.to_string().as_bytes()).unwrap();
    let body = json!({"bogus": 1, "metadata": {"$setElementOrder/finalizers": ["x"], "finalizers": ["x"], "name": "n"}});
    let reason = "strict decoding error: unknown field \"bogus\"";
    let error = invalid_result_error(&parse(STRATEGIC, body.clone()), &json!({"all": 1}), reason);
    assert_eq!(error.code, 422);
    assert_eq!(
        error.message,
        format!(" \"\" is invalid: patch: Invalid value: \"map[bogus:1 metadata:map[name:n]]\": {reason}")
    );
    let error = invalid_result_error(&parse(MERGE, body), &json!({"all": 1}), reason);
    assert_eq!(
        error.message,
        format!(" \"\" is invalid: patch: Invalid value: \"{{\\\"all\\\":1}}\": {reason}")
    );
}

#[test]
fn resource_version_in_patch_is_found() {
    let cases = [
        (MERGE, json!({"metadata": {"resourceVersion": "7"}}), Some("7")),
        (MERGE, json!({"metadata": {"name": "7"}}), None),
        (JSON, json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}]), Some("7")),
        (JSON, json!([{"op": "add", "path": "/metadata/name", "value": "7"}]), None),
    ];
    for (media_type, patch, expected) in cases {
        let patch = Patch::parse(media_type, patch.to_string().as_bytes()).unwrap();
        assert_eq!(patch.resource_version(), expected);
    }
}

/// JSON that resembles objects and patches.
fn any_json() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec!["a", "b", "c", "delete", "replace", "merge"]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3i64).prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "finalizers",
        "containers",
        "volumes",
        "volumeMounts",
        "env",
        "name",
        "mountPath",
        "labels",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$setElementOrder/finalizers",
        "$deleteFromPrimitiveList/finalizers",
        "$setElementOrder",
        "a",
        "b",
        "type",
        "conditions",
        "drivers",
    ]);
    leaf.prop_recursive(6, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone().prop_map(str::to_owned), inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn without_nulls_in_lists(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            map.into_iter().map(|(key, value)| (key, without_nulls_in_lists(value))).collect()
        }
        Value::Array(list) => list.iter().map(super::merge::without_nulls).collect(),
        plain => plain,
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(media_type in prop::sample::select(vec![JSON, MERGE, STRATEGIC]), body in any::<Vec<u8>>(), object in any_json()) {
        if let Ok(patch) = Patch::parse(media_type, &body) {
            let _ = apply(kind("Pod"), &object, &patch);
        }
    }

    #[test]
    fn arbitrary_patches_do_not_panic(name in prop::sample::select(vec!["Pod", "Node", "CSINode", "VolumeSnapshot"]), object in any_json(), patch in any_json()) {
        for media_type in [MERGE, STRATEGIC] {
            let _ = patched(name, &object, media_type, &patch);
        }
        let operations = json!([{"op": "add", "path": "/spec/a", "value": patch}, {"op": "move", "from": "/spec", "path": "/a"}]);
        let _ = patched(name, &object, JSON, &operations);
    }

    /// Applying a merge patch twice has the same result as once, except for nulls in lists, which upstream keeps the
    /// first time.
    #[test]
    fn merge_patch_is_idempotent(object in any_json(), patch in any_json().prop_map(without_nulls_in_lists)) {
        if let (true, Ok(once)) = (object.is_object(), patched("Pod", &object, MERGE, &patch)) {
            prop_assert_eq!(patched("Pod", &once, MERGE, &patch), Ok(once));
        }
    }

    /// Merging finalizers results in the union, regardless of their order in the patch.
    #[test]
    fn finalizers_merge_as_sets(existing in prop::collection::btree_set("[a-e]", 0..5), given in prop::collection::vec("[a-e]", 0..5)) {
        let object = json!({"metadata": {"finalizers": existing}});
        let merged = patched("Pod", &object, STRATEGIC, &json!({"metadata": {"finalizers": given}})).unwrap();
        let all: std::collections::BTreeSet<String> = existing.into_iter().chain(given).collect();
        let list: Vec<String> = serde_json::from_value(merged["metadata"]["finalizers"].clone()).unwrap();
        prop_assert_eq!(list.len(), all.len());
        prop_assert_eq!(list.into_iter().collect::<std::collections::BTreeSet<_>>(), all);
    }
}
