use wharf_model::Time;

use super::*;
use crate::kinds::testing::{FakeLookup, admit, invalid, invalid_update, lines, with};

fn valid() -> Value {
    json!({
        "metadata": {"name": "c", "namespace": "ns"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast",
        },
    })
}

fn bound() -> Value {
    with(
        &valid(),
        &json!({
            "spec": {"volumeName": "pv1"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]},
        }),
    )
}

#[test]
fn create_sets_defaults_and_pending_phase() {
    let mut claim = bound();
    (CLAIM.default)(&mut claim);
    CLAIM.prepare_create(&mut claim, Time(0));
    assert_eq!(claim["spec"]["volumeMode"], "Filesystem");
    assert_eq!(claim["status"], json!({"phase": "Pending"}));
}

#[test]
fn data_source_and_data_source_ref_are_synchronized() {
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let other = json!({"apiGroup": "x.io", "kind": "Thing", "name": "t"});
    let in_other_namespace = with(&snapshot, &json!({"namespace": "other"}));
    let none = Value::Null;
    for (source, reference, expected_source, expected_reference) in [
        (&snapshot, &none, &snapshot, &snapshot),
        (&none, &other, &other, &other),
        (&other, &none, &none, &none),
        (&none, &in_other_namespace, &none, &none),
        (&snapshot, &other, &snapshot, &other),
    ] {
        let mut claim = with(&valid(), &json!({"spec": {"dataSource": source, "dataSourceRef": reference}}));
        CLAIM.prepare_create(&mut claim, Time(0));
        let spec = &claim["spec"];
        assert_eq!(
            (&spec["dataSource"], &spec["dataSourceRef"]),
            (expected_source, expected_reference),
            "{source}"
        );
    }
}

#[test]
fn create_is_validated() {
    for (patch, expected) in [
        (json!({}), vec![]),
        (
            json!({"spec": {"accessModes": null}}),
            vec!["spec.accessModes: Required value: at least 1 access mode is required"],
        ),
        (
            json!({"spec": {"accessModes": ["RWX"]}}),
            vec![
                "spec.accessModes: Unsupported value: \"RWX\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \
             \"ReadWriteOnce\", \"ReadWriteOncePod\"",
            ],
        ),
        (json!({"spec": {"resources": null}}), vec!["spec.resources[storage]: Required value"]),
        (
            json!({"spec": {"resources": {"requests": {"storage": "0"}}}}),
            vec!["spec.resources[storage]: Invalid value: \"0\": must be greater than zero"],
        ),
        (json!({"spec": {"storageClassName": ""}}), vec![]),
        (
            json!({"spec": {"volumeMode": "X"}}),
            vec!["spec.volumeMode: Unsupported value: \"X\": supported values: \"Block\", \"Filesystem\""],
        ),
        (
            json!({"spec": {"dataSourceRef": {"kind": "Thing", "name": ""}}}),
            vec![
                "spec.dataSourceRef.name: Required value",
                "spec.dataSourceRef: Invalid value: \"Thing\": must be 'PersistentVolumeClaim' when referencing the default \
             apiGroup",
            ],
        ),
        (
            json!({"spec": {
                "dataSource": {"kind": "PersistentVolumeClaim", "name": "a"},
                "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "b"},
            }}),
            vec!["spec: Invalid value: {}: must match dataSourceRef"],
        ),
    ] {
        assert_eq!(invalid(&CLAIM, &valid(), &patch), expected, "{patch}");
    }
}

#[test]
fn unbound_claim_spec_is_immutable() {
    for (patch, expected) in [
        (json!({"metadata": {"labels": {"a": "b"}}}), vec![]),
        (json!({"spec": {"volumeName": "pv1"}}), vec![]),
        (
            json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
            vec![
                "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for \
             bound claims\n@@ -6,7 +6,7 @@\n  \"Resources\": {\n   \"Limits\": null,\n   \"Requests\": {\n\
             -   \"storage\": \"1Gi\"\n+   \"storage\": \"2Gi\"\n   }\n  },\n  \"VolumeName\": \"\",\n",
            ],
        ),
    ] {
        assert_eq!(invalid_update(&CLAIM, &valid(), &patch), expected, "{patch}");
    }
    let without = with(&valid(), &json!({"spec": {"storageClassName": null}}));
    assert!(invalid_update(&CLAIM, &without, &json!({"spec": {"storageClassName": "fast"}})).is_empty());
    let annotated = with(&without, &json!({"metadata": {"annotations": {volume::BETA_CLASS: "fast"}}}));
    assert!(
        invalid_update(
            &CLAIM,
            &annotated,
            &json!({
                "spec": {"storageClassName": "fast"}, "metadata": {"annotations": {volume::BETA_CLASS: null}},
            })
        )
        .is_empty()
    );
    assert_eq!(
        invalid_update(
            &CLAIM,
            &annotated,
            &json!({"metadata": {"annotations": {volume::BETA_CLASS: "slow"}}})
        ),
        [
            "metadata.annotations.volume.beta.kubernetes.io/storage-class: Invalid value: \"slow\": field is immutable"
        ]
    );
}

/// kubernetes.md 1.4 "Smaller request".
#[test]
fn bound_claim_allows_size_and_attributes_class_changes() {
    let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let larger = with(&bound(), &size("3Gi"));
    assert!(invalid_update(&CLAIM, &bound(), &size("2Gi")).is_empty());
    assert!(
        invalid_update(&CLAIM, &larger, &size("2Gi")).is_empty(),
        "smaller than requested, but larger than the capacity"
    );
    assert_eq!(
        invalid_update(&CLAIM, &larger, &size("1Gi")),
        ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"]
    );
    assert!(
        invalid_update(&CLAIM, &bound(), &json!({"spec": {"volumeAttributesClassName": "gold"}})).is_empty()
    );
    let modified = with(
        &bound(),
        &json!({
            "spec": {"volumeAttributesClassName": "gold"}, "status": {"currentVolumeAttributesClassName": "gold"},
        }),
    );
    for (to, named) in [(Value::Null, "nil"), (json!(""), "empty string")] {
        assert_eq!(
            invalid_update(&CLAIM, &modified, &json!({"spec": {"volumeAttributesClassName": to}})),
            [format!(
                "spec.volumeAttributesClassName: Forbidden: update to {named} is forbidden when \
                 status.currentVolumeAttributesClassName is not nil"
            )]
        );
    }
    let class = invalid_update(&CLAIM, &bound(), &json!({"spec": {"storageClassName": "slow"}}));
    assert_eq!(class.len(), 1);
    assert!(
        class[0].contains("\n- \"StorageClassName\": \"fast\",\n+ \"StorageClassName\": \"slow\",\n"),
        "{class:?}"
    );
    let mode = invalid_update(&CLAIM, &bound(), &json!({"spec": {"volumeMode": "Block"}}));
    assert_eq!(mode[1], "volumeMode: Invalid value: \"Block\": field is immutable");
}

#[test]
fn status_update_changes_only_status() {
    let old = with(&bound(), &json!({"metadata": {"resourceVersion": "1", "uid": "u"}}));
    let errors = |status: Value| {
        let mut new = with(
            &old,
            &json!({"status": status, "spec": {"volumeName": "x"}, "metadata": {"labels": {"a": "b"}}}),
        );
        CLAIM.prepare_status(&mut new, &old, Time(0));
        assert_eq!(new["spec"]["volumeName"], "pv1");
        assert_eq!(new["metadata"]["labels"]["a"], "b");
        lines(CLAIM.invalid_on_status(&new, &old))
    };
    assert!(errors(json!({"allocatedResourceStatuses": {"storage": "NodeResizePending"}})).is_empty());
    assert_eq!(
        errors(json!({"allocatedResourceStatuses": {"storage": "Soon"}})),
        ["status.allocatedResourceStatuses: Unsupported value: \"storage\": supported values: \
         \"ControllerResizeInProgress\", \"ControllerResizeInfeasible\", \"NodeResizeInProgress\", \
         \"NodeResizeInfeasible\", \"NodeResizePending\"",]
    );
    assert_eq!(
        errors(json!({"allocatedResources": {"cpu": "1"}})),
        ["status.allocatedResources: Unsupported value: \"cpu\": supported values: \"storage\""]
    );
    assert_eq!(
        errors(json!({"capacity": {"storage": "-1"}})),
        ["status.capacity[storage]: Invalid value: -1: must be a valid resource quantity"]
    );
}

fn class(name: &str, created: &str, default: &str, expands: bool) -> (&'static str, Value) {
    let annotations = json!({"storageclass.kubernetes.io/is-default-class": default});
    (
        "storageclasses",
        json!({
            "metadata": {"name": name, "creationTimestamp": created, "annotations": annotations},
            "provisioner": "p", "allowVolumeExpansion": expands,
        }),
    )
}

#[test]
fn claim_without_class_gets_newest_default_class() {
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let without = with(&valid(), &json!({"spec": {"storageClassName": null}}));
    for (classes, expected) in [
        (vec![], Value::Null),
        (vec![class("a", early, "false", false)], Value::Null),
        (vec![class("a", early, "true", false), class("b", late, "true", false)], json!("b")),
        (vec![class("b", late, "true", false), class("a", late, "true", false)], json!("a")),
    ] {
        let mut claim = without.clone();
        admit(&CLAIM, &mut claim, Operation::Create, None, &FakeLookup(classes)).unwrap();
        assert_eq!(claim["spec"]["storageClassName"], expected);
        assert_eq!(claim["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    }
    for explicit in [
        json!({"spec": {"storageClassName": ""}}),
        json!({"metadata": {"annotations": {volume::BETA_CLASS: ""}}}),
    ] {
        let mut claim = with(&without, &explicit);
        let before = claim["spec"].clone();
        admit(
            &CLAIM,
            &mut claim,
            Operation::Create,
            None,
            &FakeLookup(vec![class("a", early, "true", false)]),
        )
        .unwrap();
        assert_eq!(claim["spec"], before);
    }
}

/// kubernetes.md 1.4 "Larger request".
#[test]
fn expansion_requires_bound_claim_and_class_support() {
    let grown = |old: &Value| with(old, &json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    let try_it = |old: &Value, others: Vec<(&'static str, Value)>| {
        admit(&CLAIM, &mut grown(old), Operation::Update, Some(old), &FakeLookup(others)).map_err(|error| {
            assert_eq!((error.code, error.reason), (403, "Forbidden"));
            error.message
        })
    };
    assert_eq!(try_it(&bound(), vec![class("fast", "", "", true)]), Ok(()));
    let forbidden = "persistentvolumeclaims \"c\" is forbidden: only dynamically provisioned pvc can be resized and the \
                   storageclass that provisions the pvc must support resize";
    for others in [vec![], vec![class("fast", "", "", false)]] {
        assert_eq!(try_it(&bound(), others), Err(forbidden.into()));
    }
    let unbound =
        "persistentvolumeclaims \"c\" is forbidden: Only bound persistent volume claims can be expanded";
    assert_eq!(try_it(&valid(), vec![class("fast", "", "", true)]), Err(unbound.into()));
    let mut same = bound();
    assert_eq!(admit(&CLAIM, &mut same, Operation::Update, Some(&bound()), &FakeLookup(vec![])), Ok(()));
}

#[test]
fn table_rows_match_upstream() {
    let row = |claim: &Value| Value::from((CLAIM.row)(claim, Time(10_000)));
    assert_eq!(row(&valid()), json!(["c", "", "", "", "", "fast", "<unset>", "<unknown>", "<unset>"]));
    let mut claim = with(
        &bound(),
        &json!({
            "metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"}, "spec": {"volumeAttributesClassName": "gold"},
        }),
    );
    (CLAIM.default)(&mut claim);
    assert_eq!(row(&claim), json!(["c", "Bound", "pv1", "1Gi", "RWO", "fast", "gold", "10s", "Filesystem"]));
    claim["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z".into();
    assert_eq!(row(&claim)[1], "Terminating");
}

#[test]
fn fractional_bytes_cause_warning() {
    let claim = with(&valid(), &json!({"spec": {"resources": {"requests": {"storage": "500m"}}}}));
    assert_eq!(
        (CLAIM.warnings)(&claim, None),
        ["spec.resources.requests[storage]: fractional byte value \"500m\" is invalid, must be an integer",]
    );
}
