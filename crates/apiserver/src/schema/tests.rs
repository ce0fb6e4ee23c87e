use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const GROUPS: [&str; 9] = [
    "",
    "storage.k8s.io",
    "snapshot.storage.k8s.io",
    "groupsnapshot.storage.k8s.io",
    "coordination.k8s.io",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "policy",
];

fn kind(name: &str) -> &'static Schema {
    GROUPS.iter().find_map(|group| of(group, name)).unwrap()
}

fn conformed(name: &str, object: Value) -> Value {
    kind(name).conform(object).unwrap().object
}

#[test]
fn every_kind_that_is_served_has_a_schema() {
    for kind in crate::kinds::KINDS {
        let schema = of(kind.group, kind.kind).unwrap_or_else(|| panic!("{}/{}", kind.group, kind.kind));
        assert_eq!((schema.group(), schema.kind(), schema.version()), (kind.group, kind.kind, kind.version));
        for below in kind.subresources {
            assert!(of(below.group, below.kind).is_some() || below.name == "exec", "{}", below.kind);
        }
    }
    assert!(of("", "DeleteOptions").is_some() && of("", "Status").is_some());
    assert!(of("apps", "Deployment").is_none());
    assert!(kind("VolumeSnapshot").is_custom() && !kind("Pod").is_custom());
}

#[test]
fn writes_what_go_writes() {
    let cases = [
        // Nothing but what is always there.
        (
            "PersistentVolumeClaim",
            json!({}),
            json!({"metadata": {}, "spec": {"resources": {}}, "status": {}}),
        ),
        ("CSIDriver", json!({"spec": {}}), json!({"metadata": {}, "spec": {}})),
        ("CSINode", json!({}), json!({"metadata": {}, "spec": {"drivers": null}})),
        (
            "CSINode",
            json!({"spec": {"drivers": [{"name": "a", "nodeID": "n", "topologyKeys": []}]}}),
            json!({"metadata": {}, "spec": {"drivers": [{"name": "a", "nodeID": "n", "topologyKeys": null}]}}),
        ),
        (
            "VolumeAttachment",
            json!({"status": {}}),
            json!({"metadata": {}, "spec": {"attacher": "", "nodeName": "", "source": {}}, "status": {"attached": false}}),
        ),
        // Zeroes: pointers keep them, values do not.
        (
            "StorageClass",
            json!({"provisioner": "p", "allowVolumeExpansion": false, "parameters": {}, "mountOptions": []}),
            json!({"metadata": {}, "provisioner": "p", "allowVolumeExpansion": false}),
        ),
        (
            "CSIDriver",
            json!({"spec": {"attachRequired": false, "volumeLifecycleModes": []}}),
            json!({"metadata": {}, "spec": {"attachRequired": false}}),
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": {"storageClassName": "", "volumeName": ""}}),
            json!({"metadata": {}, "spec": {"storageClassName": "", "resources": {}}, "status": {}}),
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}, "selector": {}}}),
            json!({"metadata": {}, "spec": {"dataSource": {"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "x"},
                "selector": {}, "resources": {}}, "status": {}}),
        ),
        (
            "Node",
            json!({"spec": {"unschedulable": false}}),
            json!({"metadata": {}, "spec": {}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {
            "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "",
            "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": ""}}}),
        ),
        // Maps keep their values, whatever they are; a null among them is a zero.
        (
            "ConfigMap",
            json!({"data": {"a": "", "b": null}}),
            json!({"metadata": {}, "data": {"a": "", "b": ""}}),
        ),
        (
            "Secret",
            json!({"data": {"a": "", "b": "Yg=="}}),
            json!({"metadata": {}, "data": {"a": "", "b": "Yg=="}}),
        ),
        // Nulls and what is not kept.
        (
            "Pod",
            json!({"metadata": {"creationTimestamp": null, "managedFields": [{"manager": "x"}], "labels": null}, "spec": {"containers": []}}),
            json!({"metadata": {}, "spec": {"containers": null}, "status": {}}),
        ),
        (
            "Pod",
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "x", "value": ""}]}]}}),
            json!({"metadata": {}, "spec": {"containers": [{"name": "a", "env": [{"name": "x"}], "resources": {}}]}, "status": {}}),
        ),
        // Times.
        (
            "Lease",
            json!({"spec": {"renewTime": "2026-01-02T03:04:05.000001+01:00", "leaseTransitions": 0}}),
            json!({"metadata": {}, "spec": {"renewTime": "2026-01-02T02:04:05.000001Z", "leaseTransitions": 0}}),
        ),
        (
            "Secret",
            json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05.999Z"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}),
        ),
        (
            "Event",
            json!({"metadata": {"name": "e"}}),
            json!({"metadata": {"name": "e"}, "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null,
                "eventTime": null, "reportingComponent": "", "reportingInstance": ""}),
        ),
        // Go's zero is null, and a comma is a point.
        (
            "Pod",
            json!({"metadata": {"creationTimestamp": "0001-01-01T00:00:00Z"}, "status": {
                "startTime": "2026-01-02T03:04:05,75+00:30", "conditions": [{"lastProbeTime": "0001-01-01T00:00:00Z"}]}}),
            json!({"metadata": {}, "spec": {"containers": null}, "status": {
                "startTime": "2026-01-02T02:34:05Z",
                "conditions": [{"type": "", "status": "", "lastProbeTime": null, "lastTransitionTime": null}]}}),
        ),
        // Required by k8s-openapi, but not to Go.
        (
            "ServiceAccount",
            json!({"imagePullSecrets": [{}]}),
            json!({"metadata": {}, "imagePullSecrets": [{}]}),
        ),
        // Quantities.
        (
            "PersistentVolume",
            json!({"spec": {"capacity": {"storage": "1024Mi", "a": 5, "b": "0.5", "c": "1e3", "d": "Gi"}}}),
            json!({"metadata": {}, "spec": {"capacity": {"storage": "1Gi", "a": "5", "b": "500m", "c": "1e3", "d": "0"}}, "status": {}}),
        ),
        // Custom kinds stay as they are.
        (
            "VolumeSnapshot",
            json!({"spec": {"volumeSnapshotClassName": "", "source": {}}, "status": {"restoreSize": "1024Mi", "readyToUse": false}}),
            json!({"metadata": {}, "spec": {"volumeSnapshotClassName": "", "source": {}}, "status": {"restoreSize": "1024Mi", "readyToUse": false}}),
        ),
    ];
    for (name, object, expected) in cases {
        assert_eq!(conformed(name, object.clone()), expected, "{name} {object}");
        assert_eq!(conformed(name, expected.clone()), expected, "{name} {expected}: not a second time");
    }
}

#[test]
fn tells_of_fields_that_are_not_there() {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "foo": 1, "metadata": {"labels": {"any": "x"}, "bar": {"deep": 1}},
        "spec": {"containers": [{"name": "a"}, {"name": "b", "imagePullSecret": "x"}], "nodename": "x"},
    });
    let Conformed { object, unknown } = kind("Pod").conform(object).unwrap();
    let words = [
        "unknown field \"foo\"",
        "unknown field \"metadata.bar\"",
        "unknown field \"spec.containers[1].imagePullSecret\"",
        "unknown field \"spec.nodename\"",
    ];
    assert_eq!(unknown, words);
    assert_eq!(object.pointer("/metadata"), Some(&json!({"labels": {"any": "x"}})));
    let Conformed { object, unknown } = kind("VolumeSnapshotClass")
        .conform(json!({"driver": "d", "deletionPolicy": "Delete", "parameter": {}}))
        .unwrap();
    assert_eq!(unknown, ["unknown field \"parameter\""]);
    assert_eq!(object.get("parameter"), None);
}

#[test]
fn tells_of_values_that_do_not_fit() {
    let claim = "PersistentVolumeClaim in version \"v1\" cannot be handled as a PersistentVolumeClaim: ";
    let cases = [
        (
            "PersistentVolumeClaim",
            json!({"spec": {"volumeName": 1}}),
            "json: cannot unmarshal number into Go struct field PersistentVolumeClaimSpec.spec.volumeName of type string",
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": {"accessModes": "ReadWriteOnce"}}),
            "json: cannot unmarshal string into Go struct field PersistentVolumeClaimSpec.spec.accessModes of type []v1.PersistentVolumeAccessMode",
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": {"accessModes": [1]}}),
            "json: cannot unmarshal number into Go struct field PersistentVolumeClaimSpec.spec.accessModes of type v1.PersistentVolumeAccessMode",
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": []}),
            "json: cannot unmarshal array into Go struct field PersistentVolumeClaim.spec of type v1.PersistentVolumeClaimSpec",
        ),
        (
            "PersistentVolumeClaim",
            json!([]),
            "json: cannot unmarshal array into Go value of type v1.PersistentVolumeClaim",
        ),
        (
            "PersistentVolumeClaim",
            json!({"metadata": {"labels": {"a": 1}}}),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            "PersistentVolumeClaim",
            json!({"metadata": {"generation": 1.5}}),
            "json: cannot unmarshal number 1.5 into Go struct field ObjectMeta.metadata.generation of type int64",
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": {"resources": {"requests": {"storage": "1x"}}}}),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": {"resources": {"requests": {"storage": "1GiB"}}}}),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": {"resources": {"requests": {"storage": "1KK"}}}}),
            "unable to parse quantity's suffix",
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": {"resources": {"requests": {"storage": ""}}}}),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "PersistentVolumeClaim",
            json!({"metadata": {"creationTimestamp": "yesterday"}}),
            "parsing time \"yesterday\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"yesterday\" as \"2006\"",
        ),
        (
            "PersistentVolumeClaim",
            json!({"metadata": {"creationTimestamp": "2026-13-01T00:00:00Z"}}),
            "parsing time \"2026-13-01T00:00:00Z\": month out of range",
        ),
        (
            "PersistentVolumeClaim",
            json!({"metadata": {"creationTimestamp": 5}}),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.creationTimestamp of type string",
        ),
    ];
    for (name, object, words) in cases {
        let error = kind(name).conform(object.clone()).unwrap_err();
        assert_eq!(error.to_string(), words, "{object}");
        let refusal = error.refusal(kind(name), "x");
        assert_eq!(
            (refusal.code, refusal.reason, refusal.message),
            (400, "BadRequest", format!("{claim}{words}"))
        );
    }
    let secret = |data: &str| kind("Secret").conform(json!({"data": {"a": data}})).unwrap_err().to_string();
    assert_eq!(secret("a!=="), "illegal base64 data at input byte 1");
    let secret = |data: Value| kind("Secret").conform(json!({"data": {"a": data}}));
    assert_eq!(secret(json!([1, null, 255])).unwrap().object["data"]["a"], "AQD/");
    assert_eq!(secret(json!([])).unwrap().object["data"]["a"], "");
    for (data, found) in [(json!([256]), "number 256"), (json!([-1]), "number -1"), (json!(["x"]), "string")]
    {
        assert_eq!(
            secret(data).unwrap_err().to_string(),
            format!("json: cannot unmarshal {found} into Go struct field Secret.data of type uint8")
        );
    }
    assert!(kind("Lease").conform(json!({"spec": {"renewTime": "2026-01-02T03:04:05Z"}})).is_err());
    assert!(kind("Pod").conform(json!({"spec": {"activeDeadlineSeconds": 1u64 << 63}})).is_err());
    assert!(kind("Pod").conform(json!({"spec": {"priority": 1i64 << 31}})).is_err());
}

#[test]
fn tells_of_custom_values_that_do_not_fit_as_a_validation() {
    let error = kind("VolumeSnapshot")
        .conform(json!({"spec": {"source": {"persistentVolumeClaimName": 5}}}))
        .unwrap_err();
    let refusal = error.refusal(kind("VolumeSnapshot"), "s");
    assert_eq!(refusal.code, 422);
    assert_eq!(
        refusal.message,
        "VolumeSnapshot.snapshot.storage.k8s.io \"s\" is invalid: spec.source.persistentVolumeClaimName: Invalid value: \
         \"integer\": spec.source.persistentVolumeClaimName in body must be of type string: \"integer\""
    );
}

#[test]
fn base64_as_go_reads_it() {
    let cases = [
        ("", Ok("")),
        ("YQ==", Ok("YQ==")),
        ("YWI=", Ok("YWI=")),
        ("YWJj", Ok("YWJj")),
        ("YW\r\nJj\n", Ok("YWJj")),
        // Bits beyond the data.
        ("YR==", Ok("YQ==")),
        ("YWJ=", Ok("YWI=")),
        ("Y", Err(0)),
        ("YQ", Err(0)),
        ("YWJjYQ", Err(4)),
        ("Y===", Err(1)),
        ("YQ=a", Err(3)),
        ("YQ==YQ==", Err(4)),
        ("Y Q=", Err(1)),
        ("YWJj=", Err(4)),
    ];
    for (text, expected) in cases {
        assert_eq!(base64::canonical(text).as_deref(), expected.as_ref().map(|text| &**text), "{text:?}");
    }
}

#[test]
fn keys_that_stand_twice() {
    let raw = br#"{"a": 1, "a": 2, "spec": {"x": [{"y": 1, "y": 2}], "x": 3}, "b": "a"}"#;
    let words = ["duplicate field \"a\"", "duplicate field \"spec.x[0].y\"", "duplicate field \"spec.x\""];
    assert_eq!(duplicates(raw), words);
    assert_eq!(duplicates(b"{\"a\":1,\"a\":"), Vec::<String>::new());
    assert_eq!(duplicates(b""), Vec::<String>::new());
}

#[test]
fn openapi_has_what_kubectl_looks_for() {
    let index = openapi_v3_index();
    let paths = index["paths"].as_object().unwrap();
    let mut roots: Vec<&String> = paths.keys().collect();
    roots.sort();
    assert!(
        roots.iter().any(|root| *root == "api/v1")
            && roots.iter().any(|root| *root == "apis/storage.k8s.io/v1")
    );
    for root in roots {
        let address = paths[root]["serverRelativeURL"].as_str().unwrap();
        assert!(address.starts_with(&format!("/openapi/v3/{root}?hash=")), "{address}");
        let text = openapi_v3(root).unwrap();
        let document: Value = serde_json::from_slice(&text).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        // Every reference leads somewhere.
        let text = String::from_utf8(text.to_vec()).unwrap();
        for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.get(name).is_some_and(Value::is_object), "{root}: {name}");
        }
        for kind in crate::kinds::KINDS {
            let prefix = if kind.group.is_empty() { "api" } else { "apis/" };
            if format!("{prefix}{}/{}", kind.group, kind.version) != *root {
                continue;
            }
            let gvk = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
            assert!(
                schemas.values().any(|schema| schema["x-kubernetes-group-version-kind"] == json!([gvk])),
                "{} has no definition",
                kind.kind
            );
            let operations: Vec<&Value> = document["paths"]
                .as_object()
                .unwrap()
                .values()
                .filter_map(|path| path.get("patch"))
                .collect();
            let patch = operations.iter().find(|patch| patch["x-kubernetes-group-version-kind"] == gvk);
            assert_eq!(patch.is_some(), kind.verbs.contains(&"patch"), "{}", kind.kind);
            if let Some(patch) = patch {
                let named =
                    |name: &str| patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == name);
                assert!(named("fieldValidation") && named("dryRun"));
                let strategic = patch["requestBody"]["content"].get("application/strategic-merge-patch+json");
                assert_eq!(
                    strategic.is_none(),
                    of(kind.group, kind.kind).unwrap().is_custom(),
                    "{}",
                    kind.kind
                );
            }
        }
    }
    assert!(openapi_v3("apis/apps/v1").is_none());
    let document: Value = serde_json::from_slice(&openapi_v3("api/v1").unwrap()).unwrap();
    let spec = &document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"];
    assert_eq!(spec["volumes"]["x-kubernetes-patch-strategy"], "merge,retainKeys");
    assert_eq!(spec["volumes"]["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(spec["containers"]["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(spec["tolerations"]["x-kubernetes-list-type"], "atomic");
    let v2: Value = serde_json::from_slice(&openapi_v2()).unwrap();
    assert!(v2["definitions"]["io.k8s.api.core.v1.Pod"].is_object());
}

/// JSON in the shape of a schema, with something wrong in it now and then.
fn shaped() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2..3i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9Gi:TZ.-]{0,4}".prop_map(Value::from),
        Just(json!("2026-01-02T03:04:05Z")),
        Just(json!("2026-01-02T03:04:05.123456Z")),
    ];
    let key = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "name",
        "labels",
        "creationTimestamp",
        "containers",
        "capacity",
        "storage",
        "data",
        "accessModes",
        "resources",
        "requests",
        "conditions",
        "type",
        "renewTime",
        "priority",
        "other",
        "volumes",
        "source",
    ]);
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone().prop_map(str::to_owned), inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    /// What conforms once stays as it is, and nothing of it is unknown.
    #[test]
    fn conforming_is_idempotent(
        name in prop::sample::select(vec!["Pod", "Node", "PersistentVolume", "PersistentVolumeClaim", "Secret", "Lease", "Event", "VolumeSnapshotContent"]),
        object in shaped(),
    ) {
        if let Ok(Conformed { object, .. }) = kind(name).conform(object) {
            let again = kind(name).conform(object.clone()).unwrap();
            prop_assert_eq!(again.object, object);
            prop_assert_eq!(again.unknown, Vec::<String>::new());
        }
    }

    #[test]
    fn no_bytes_panic(raw in any::<Vec<u8>>(), text in "\\PC{0,40}|[0-9T:Z.+-]{0,35}") {
        duplicates(&raw);
        let _ = base64::canonical(&text);
        let _ = time::seconds(&text);
        let _ = time::micros(&text);
        let _ = kind("PersistentVolume").conform(json!({"spec": {"capacity": {"storage": text}}}));
    }

    /// Base64 of anything is read, and written the same.
    #[test]
    fn base64_is_kept(text in "([A-Za-z0-9+/]{4}){0,6}([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?") {
        prop_assert_eq!(base64::canonical(&text), Ok(text));
    }
}
