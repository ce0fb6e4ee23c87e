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
    GROUPS.iter().find_map(|group| find(group, name)).unwrap()
}

fn conformed(name: &str, object: Value) -> Value {
    kind(name).conform(object).unwrap().object
}

#[test]
fn every_served_kind_has_schema() {
    for kind in crate::kinds::KINDS {
        let schema = find(kind.group, kind.kind).unwrap_or_else(|| panic!("{}/{}", kind.group, kind.kind));
        assert_eq!((schema.group(), schema.kind(), schema.version()), (kind.group, kind.kind, kind.version));
        for subresource in kind.subresources {
            let schema = find(subresource.group, subresource.kind);
            assert!(schema.is_some() || subresource.name == "exec", "{}", subresource.kind);
        }
    }
    assert!(find("", "DeleteOptions").is_some() && find("", "Status").is_some());
    assert!(find("apps", "Deployment").is_none());
    assert!(kind("VolumeSnapshot").is_custom() && !kind("Pod").is_custom());
}

#[test]
fn conformed_objects_match_go_serialization() {
    let cases = [
        // Only fields that are always serialized.
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
        // Zero values: kept in pointers, omitted in values.
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
        // Maps keep all values; null becomes a zero value.
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
        // Nulls, and fields that are not stored.
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
        // Go's zero time is null, and a comma can precede the fraction.
        (
            "Pod",
            json!({"metadata": {"creationTimestamp": "0001-01-01T00:00:00Z"}, "status": {
                "startTime": "2026-01-02T03:04:05,75+00:30", "conditions": [{"lastProbeTime": "0001-01-01T00:00:00Z"}]}}),
            json!({"metadata": {}, "spec": {"containers": null}, "status": {
                "startTime": "2026-01-02T02:34:05Z",
                "conditions": [{"type": "", "status": "", "lastProbeTime": null, "lastTransitionTime": null}]}}),
        ),
        // Required in k8s-openapi, but not in Go.
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
        // Custom kinds are unchanged.
        (
            "VolumeSnapshot",
            json!({"spec": {"volumeSnapshotClassName": "", "source": {}}, "status": {"restoreSize": "1024Mi", "readyToUse": false}}),
            json!({"metadata": {}, "spec": {"volumeSnapshotClassName": "", "source": {}}, "status": {"restoreSize": "1024Mi", "readyToUse": false}}),
        ),
    ];
    for (name, object, expected) in cases {
        assert_eq!(conformed(name, object.clone()), expected, "{name} {object}");
        assert_eq!(conformed(name, expected.clone()), expected, "{name} {expected}: not idempotent");
    }
}

#[test]
fn unknown_fields_are_dropped_and_reported() {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "foo": 1, "metadata": {"labels": {"any": "x"}, "bar": {"deep": 1}},
        "spec": {"containers": [{"name": "a"}, {"name": "b", "imagePullSecret": "x"}], "nodename": "x"},
    });
    let Conformed { object, unknown } = kind("Pod").conform(object).unwrap();
    let expected = [
        "unknown field \"foo\"",
        "unknown field \"metadata.bar\"",
        "unknown field \"spec.containers[1].imagePullSecret\"",
        "unknown field \"spec.nodename\"",
    ];
    assert_eq!(unknown, expected);
    assert_eq!(object.pointer("/metadata"), Some(&json!({"labels": {"any": "x"}})));
    let Conformed { object, unknown } = kind("VolumeSnapshotClass")
        .conform(json!({"driver": "d", "deletionPolicy": "Delete", "parameter": {}}))
        .unwrap();
    assert_eq!(unknown, ["unknown field \"parameter\""]);
    assert_eq!(object.get("parameter"), None);
}

#[test]
fn type_errors_have_go_messages() {
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
    for (name, object, message) in cases {
        let error = kind(name).conform(object.clone()).unwrap_err();
        assert_eq!(error.to_string(), message, "{object}");
        let status = error.to_status_error(kind(name), "x");
        assert_eq!(
            (status.code, status.reason, status.message),
            (400, "BadRequest", format!("{claim}{message}"))
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
fn type_errors_of_custom_kinds_are_validation_errors() {
    let error = kind("VolumeSnapshot")
        .conform(json!({"spec": {"source": {"persistentVolumeClaimName": 5}}}))
        .unwrap_err();
    let status = error.to_status_error(kind("VolumeSnapshot"), "s");
    assert_eq!(status.code, 422);
    assert_eq!(
        status.message,
        "VolumeSnapshot.snapshot.storage.k8s.io \"s\" is invalid: spec.source.persistentVolumeClaimName: Invalid value: \
         \"integer\": spec.source.persistentVolumeClaimName in body must be of type string: \"integer\""
    );
}

#[test]
fn base64_is_decoded_like_go() {
    let cases = [
        ("", Ok("")),
        ("YQ==", Ok("YQ==")),
        ("YWI=", Ok("YWI=")),
        ("YWJj", Ok("YWJj")),
        ("YW\r\nJj\n", Ok("YWJj")),
        // Unused bits of the last digit.
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
fn duplicate_keys_are_reported() {
    let raw = br#"{"a": 1, "a": 2, "spec": {"x": [{"y": 1, "y": 2}], "x": 3}, "b": "a"}"#;
    let expected = ["duplicate field \"a\"", "duplicate field \"spec.x[0].y\"", "duplicate field \"spec.x\""];
    assert_eq!(duplicate_fields(raw), expected);
    assert_eq!(duplicate_fields(b"{\"a\":1,\"a\":"), Vec::<String>::new());
    assert_eq!(duplicate_fields(b""), Vec::<String>::new());
}

#[test]
fn openapi_contains_what_kubectl_reads() {
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
        // Every reference has a definition.
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
                    find(kind.group, kind.kind).unwrap().is_custom(),
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

/// JSON in the shape of a schema, sometimes with an error.
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
    /// A conformed object does not change again and has no unknown fields.
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
    fn arbitrary_bytes_do_not_panic(raw in any::<Vec<u8>>(), text in "\\PC{0,40}|[0-9T:Z.+-]{0,35}") {
        duplicate_fields(&raw);
        let _ = base64::canonical(&text);
        let _ = time::seconds(&text);
        let _ = time::micros(&text);
        let _ = kind("PersistentVolume").conform(json!({"spec": {"capacity": {"storage": text}}}));
    }

    /// Canonical base64 does not change.
    #[test]
    fn canonical_base64_is_unchanged(text in "([A-Za-z0-9+/]{4}){0,6}([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?") {
        prop_assert_eq!(base64::canonical(&text), Ok(text));
    }
}
