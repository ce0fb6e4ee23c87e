use serde_json::json;
use wharf_model::Time;

use super::*;
use crate::kinds::testing::{FakeLookup, admit, invalid, invalid_update, lines, with};

fn valid() -> Value {
    json!({
        "metadata": {"name": "pv1"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "csi": {"driver": "d.example.com", "volumeHandle": "h"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["a"]},
            ]}]}},
        },
    })
}

#[test]
fn create_sets_defaults_and_pending_phase() {
    let mut volume = valid();
    volume["status"] = json!({"phase": "Bound"});
    (VOLUME.default)(&mut volume);
    VOLUME.prepare_create(&mut volume, Time(1_000));
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(volume["spec"]["volumeMode"], "Filesystem");
    assert_eq!(
        volume["status"],
        json!({"phase": "Pending", "lastPhaseTransitionTime": "1970-01-01T00:00:01Z"})
    );
    let mut path = json!({"spec": {"hostPath": {"path": "/x"}}});
    (VOLUME.default)(&mut path);
    assert_eq!(path["spec"]["hostPath"]["type"], "");
}

#[test]
fn create_is_validated() {
    let local = json!({"spec": {"csi": null, "nodeAffinity": null, "local": {"path": "/a/../b"}}});
    let secret = |name: &str, secret: Value| json!({"spec": {"csi": {name: secret}}});
    for (patch, expected) in [
        (json!({}), vec![]),
        (json!({"spec": {"accessModes": []}}), vec!["spec.accessModes: Required value"]),
        (
            json!({"spec": {"accessModes": ["RWO"]}}),
            vec![
                "spec.accessModes: Unsupported value: \"RWO\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \
             \"ReadWriteOnce\", \"ReadWriteOncePod\"",
            ],
        ),
        (
            json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadWriteOncePod"]}}),
            vec!["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
        ),
        (
            json!({"spec": {"capacity": null}}),
            vec![
                "spec.capacity: Required value",
                "spec.capacity: Unsupported value: null: supported values: \"storage\"",
            ],
        ),
        (
            json!({"spec": {"capacity": {"cpu": "1"}}}),
            vec![
                "spec.capacity: Unsupported value: {\"cpu\":\"1\",\"storage\":\"1Gi\"}: supported values: \"storage\"",
            ],
        ),
        (
            json!({"spec": {"capacity": {"storage": "0"}}}),
            vec!["spec.capacity[storage]: Invalid value: \"0\": must be greater than zero"],
        ),
        (
            json!({"spec": {"capacity": {"storage": "-2"}}}),
            vec![
                "spec.capacity[storage]: Invalid value: -2: must be a valid resource quantity",
                "spec.capacity[storage]: Invalid value: \"-2\": must be greater than zero",
            ],
        ),
        (
            json!({"spec": {"persistentVolumeReclaimPolicy": "Burn"}}),
            vec![
                "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Burn\": supported values: \"Delete\", \
             \"Recycle\", \"Retain\"",
            ],
        ),
        (
            json!({"spec": {"nodeAffinity": {"required": null}}}),
            vec!["spec.nodeAffinity.required: Required value: must specify required node constraints"],
        ),
        (json!({"spec": {"csi": null}}), vec!["spec: Required value: must specify a volume type"]),
        (
            json!({"spec": {"hostPath": {"path": "/x"}}}),
            vec!["spec.csi: Forbidden: may not specify more than 1 volume type"],
        ),
        (json!({"spec": {"csi": {"volumeHandle": null}}}), vec!["spec.csi.volumeHandle: Required value"]),
        (
            secret("nodePublishSecretRef", json!({"name": "a"})),
            vec!["spec.csi.nodePublishSecretRef.namespace: Required value"],
        ),
        (secret("nodeStageSecretRef", json!({"name": "a"})), vec![]),
        (
            local,
            vec![
                "spec.local.path: Invalid value: \"/a/../b\": must not contain '..'",
                "spec.nodeAffinity: Required value: Local volume requires node affinity",
            ],
        ),
        (
            json!({"spec": {"csi": null, "hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"}}),
            vec![
                "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
            ],
        ),
        (
            json!({"spec": {"csi": null, "nfs": {"server": "s"}}}),
            vec![
                "spec.nfs.path: Required value",
                "spec.nfs.path: Invalid value: \"\": must be an absolute path",
            ],
        ),
        (
            json!({"spec": {"volumeMode": "Tape"}}),
            vec!["spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\""],
        ),
        (
            json!({"spec": {"volumeAttributesClassName": ""}}),
            vec!["spec.volumeAttributesClassName: Required value: an empty string is disallowed"],
        ),
        (
            json!({"metadata": {"annotations": {BETA_MOUNT_OPTIONS: "ro"}}}),
            vec![
                "metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: may not specify mount options for \
             this volume type",
            ],
        ),
    ] {
        assert_eq!(invalid(&VOLUME, &valid(), &patch), expected, "{patch}");
    }
}

#[test]
fn update_is_validated() {
    let zone = |key: &str| {
        json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": key, "operator": "In", "values": ["a"]},
        ]}]}}}})
    };
    for (patch, expected) in [
        (
            json!({"spec": {"capacity": {"storage": "2Gi"}, "persistentVolumeReclaimPolicy": "Delete"}}),
            vec![],
        ),
        (json!({"spec": {"csi": {"controllerExpandSecretRef": {"name": "a", "namespace": "b"}}}}), vec![]),
        (
            json!({"spec": {"csi": {"volumeHandle": "i", "readOnly": true}}}),
            vec![
                "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n\
             @@ -22,8 +22,8 @@\n  \"StorageOS\": null,\n  \"CSI\": {\n   \"Driver\": \"d.example.com\",\n\
             -  \"VolumeHandle\": \"h\",\n-  \"ReadOnly\": false,\n+  \"VolumeHandle\": \"i\",\n+  \"ReadOnly\": true,\n   \
             \"FSType\": \"\",\n   \"VolumeAttributes\": null,\n   \"ControllerPublishSecretRef\": null,\n",
            ],
        ),
        (
            json!({"spec": {"volumeMode": "Block"}}),
            vec!["volumeMode: Invalid value: \"Block\": field is immutable"],
        ),
        (
            zone("rack"),
            vec![
                "nodeAffinity: Invalid value: {\"Required\":{\"NodeSelectorTerms\":[{\"MatchExpressions\":[{\"Key\":\"rack\",\
             \"Operator\":\"In\",\"Values\":[\"a\"]}],\"MatchFields\":null}]}}: field is immutable, except for updating \
             from beta label to GA",
            ],
        ),
    ] {
        assert_eq!(invalid_update(&VOLUME, &valid(), &patch), expected, "{patch}");
    }
    let old = with(&valid(), &zone("failure-domain.beta.kubernetes.io/zone"));
    assert!(invalid_update(&VOLUME, &old, &zone("topology.kubernetes.io/zone")).is_empty());
    let with_class = with(&valid(), &json!({"spec": {"volumeAttributesClassName": "a"}}));
    assert!(
        invalid_update(&VOLUME, &with_class, &json!({"spec": {"volumeAttributesClassName": "b"}})).is_empty()
    );
    assert_eq!(
        invalid_update(&VOLUME, &with_class, &json!({"spec": {"volumeAttributesClassName": null}})),
        ["spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden"]
    );
}

#[test]
fn status_update_changes_only_status() {
    let old = with(
        &valid(),
        &json!({
            "metadata": {"resourceVersion": "1", "uid": "u"},
            "status": {"phase": "Pending", "lastPhaseTransitionTime": "1970-01-01T00:00:00Z"},
        }),
    );
    let mut new = with(&old, &json!({"status": {"phase": "Bound"}, "spec": {"storageClassName": "other"}}));
    let mut spec_only = new.clone();
    VOLUME.prepare_status(&mut new, &old, Time(9_000));
    assert_eq!(new["spec"]["storageClassName"], "fast");
    assert_eq!(new["status"], json!({"phase": "Bound", "lastPhaseTransitionTime": "1970-01-01T00:00:09Z"}));
    assert!(lines(VOLUME.invalid_on_status(&new, &old)).is_empty());
    VOLUME.prepare_update(&mut spec_only, &old, Time(9_000));
    assert_eq!(spec_only["spec"]["storageClassName"], "other");
    assert_eq!(spec_only["status"]["phase"], "Pending");
    let mut same = with(&old, &json!({"status": {"lastPhaseTransitionTime": null, "message": "m"}}));
    VOLUME.prepare_status(&mut same, &old, Time(9_000));
    assert_eq!(same["status"]["lastPhaseTransitionTime"], "1970-01-01T00:00:00Z");
}

/// kubernetes.md 1.2 "Admission".
#[test]
fn create_adds_protection_finalizer_once() {
    for finalizers in [json!([]), json!(["kubernetes.io/pv-protection"])] {
        let mut volume = with(&valid(), &json!({"metadata": {"finalizers": finalizers}}));
        admit(&VOLUME, &mut volume, Operation::Create, None, &FakeLookup(vec![])).unwrap();
        assert_eq!(volume["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
        let mut volume = valid();
        admit(&VOLUME, &mut volume, Operation::Update, Some(&valid()), &FakeLookup(vec![])).unwrap();
        assert_eq!(volume, valid());
    }
}

#[test]
fn table_rows_match_upstream() {
    let volume = with(
        &valid(),
        &json!({
            "metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {
                "accessModes": ["ReadOnlyMany", "ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {"namespace": "ns", "name": "c"}, "volumeMode": "Block",
            },
            "status": {"phase": "Bound"},
        }),
    );
    let row = |volume: &Value| Value::from((VOLUME.row)(volume, Time(10_000)));
    assert_eq!(
        row(&volume),
        json!(["pv1", "1Gi", "RWO,ROX", "Delete", "Bound", "ns/c", "fast", "<unset>", "", "10s", "Block"])
    );
    let terminating = with(&volume, &json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:01Z"}}));
    assert_eq!(row(&terminating)[4], "Terminating");
    assert_eq!(row(&json!({"metadata": {"name": "x"}}))[1], "0");
}

#[test]
fn deprecated_fields_cause_warnings() {
    let volume = with(
        &valid(),
        &json!({
            "metadata": {"annotations": {BETA_CLASS: "x"}}, "spec": {"persistentVolumeReclaimPolicy": "Recycle"},
        }),
    );
    assert_eq!(
        (VOLUME.warnings)(&volume, None),
        [
            "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \
         \"storageClassName\" attribute instead",
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach \
         is to use dynamic provisioning.",
        ]
    );
}
