//! CSIDriver: how the cluster uses a CSI driver.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{AGE, BASE, Column, Kind, NAME, age, json, meta, names};
use crate::status::Cause;

pub(super) static CSI_DRIVER: Kind = Kind {
    group: "storage.k8s.io",
    kind: "CSIDriver",
    plural: "csidrivers",
    singular: "csidriver",
    unconditional_update: false,
    default: |driver| {
        let spec = json::object_mut(driver, "spec");
        for (field, value) in [
            ("attachRequired", true.into()),
            ("podInfoOnMount", false.into()),
            ("storageCapacity", false.into()),
            ("fsGroupPolicy", "ReadWriteOnceWithFSType".into()),
            ("requiresRepublish", false.into()),
            ("seLinuxMount", Value::from(false)),
        ] {
            json::set_default(spec, field, value);
        }
        if spec.get("volumeLifecycleModes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
        }
    },
    // Upstream's feature gate MutableCSINodeAllocatableCount is disabled by default.
    on_create: |driver, _| {
        json::object_mut(driver, "spec").remove("nodeAllocatableUpdatePeriodSeconds");
    },
    on_update: |driver, old, _| {
        if !json::has(old, "/spec/nodeAllocatableUpdatePeriodSeconds") {
            json::object_mut(driver, "spec").remove("nodeAllocatableUpdatePeriodSeconds");
        }
        if driver.get("spec") != old.get("spec") {
            meta::increment_generation(driver, old);
        }
    },
    validate: |driver| {
        let mut causes = meta::validate(driver, false, names::subdomain);
        causes.extend(validate_spec(driver));
        causes
    },
    validate_update: |driver, old| {
        let mut causes = meta::validate_update(driver, old);
        causes.extend(validate_spec(driver));
        // Upstream misspells the field in its errors.
        causes.extend(meta::immutable(driver, old, "/spec/attachRequired", "spec.attachedRequired"));
        causes.extend(meta::immutable(
            driver,
            old,
            "/spec/volumeLifecycleModes",
            "spec.volumeLifecycleModes",
        ));
        causes
    },
    columns: &[
        NAME,
        Column::new("AttachRequired", "boolean", "Whether volumes are attached before they are mounted."),
        Column::new("PodInfoOnMount", "boolean", "Whether mounts receive pod metadata."),
        Column::new("StorageCapacity", "boolean", "Whether the scheduler considers CSIStorageCapacity."),
        Column::text(
            "TokenRequests",
            "The audiences of the service account tokens that the driver receives.",
        ),
        Column::new("RequiresRepublish", "boolean", "Whether NodePublishVolume is called periodically."),
        Column::text("Modes", "The volume lifecycle modes that the driver supports."),
        AGE,
    ],
    row: |driver, now| {
        let joined = |pointer: &str, field: &str| {
            let texts: Vec<&str> =
                json::list(driver, pointer).iter().map(|item| json::text(item, field)).collect();
            texts.join(",")
        };
        let tokens = if json::has(driver, "/spec/tokenRequests") {
            joined("/spec/tokenRequests", "/audience")
        } else {
            "<unset>".into()
        };
        let modes = match joined("/spec/volumeLifecycleModes", "") {
            modes if modes.is_empty() => "<none>".into(),
            modes => modes,
        };
        let attach = driver.pointer("/spec/attachRequired").and_then(Value::as_bool).unwrap_or(true);
        vec![
            json::text(driver, "/metadata/name").into(),
            attach.into(),
            json::flag(driver, "/spec/podInfoOnMount").into(),
            json::flag(driver, "/spec/storageCapacity").into(),
            tokens.into(),
            json::flag(driver, "/spec/requiresRepublish").into(),
            modes.into(),
            age(driver, now).into(),
        ]
    },
    ..BASE
};

fn validate_spec(driver: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    // Upstream misspells attachRequired in its errors.
    for (field, reported) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ] {
        if !json::has(driver, &format!("/spec/{field}")) {
            causes.push(Cause::required(&format!("spec.{reported}"), ""));
        }
    }
    let policy = json::at(driver, "/spec/fsGroupPolicy");
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    if policy.as_str().is_some_and(|policy| !policies.contains(&policy)) {
        causes.push(Cause::not_supported("spec.fsGroupPolicy", &policy, &policies));
    }
    let mut audiences = BTreeSet::new();
    for (index, request) in json::list(driver, "/spec/tokenRequests").iter().enumerate() {
        let field = format!("spec.tokenRequests[{index}]");
        let audience = json::text(request, "/audience");
        if !audiences.insert(audience) {
            causes.push(Cause::duplicate(&format!("{field}.audience"), &audience.into()));
            continue;
        }
        let Some(seconds) = json::number(request, "/expirationSeconds") else { continue };
        let field = format!("{field}.expirationSeconds");
        if seconds < 600 {
            let detail = "may not specify a duration less than 10 minutes";
            causes.push(Cause::invalid(&field, &seconds.into(), detail));
        }
        if seconds > 1 << 32 {
            let detail = "may not specify a duration larger than 2^32 seconds";
            causes.push(Cause::invalid(&field, &seconds.into(), detail));
        }
    }
    for mode in json::list(driver, "/spec/volumeLifecycleModes") {
        if !matches!(mode.as_str(), Some("Persistent" | "Ephemeral")) {
            causes.push(Cause::not_supported(
                "spec.volumeLifecycleModes",
                mode,
                &["Persistent", "Ephemeral"],
            ));
        }
    }
    if !json::has(driver, "/spec/seLinuxMount") {
        causes.push(Cause::required("spec.seLinuxMount", ""));
    }
    if let Some(seconds @ ..10) = json::number(driver, "/spec/nodeAllocatableUpdatePeriodSeconds") {
        let detail = "must be greater than or equal to 10 seconds";
        causes.push(Cause::invalid("spec.nodeAllocatableUpdatePeriodSeconds", &seconds.into(), detail));
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::{invalid, invalid_update, with};
    use wharf_model::Time;

    fn valid() -> Value {
        json!({"metadata": {"name": "d.example.com"}, "spec": {}})
    }

    #[test]
    fn unset_fields_get_defaults() {
        let mut driver = json!({"metadata": {"name": "d"}});
        (CSI_DRIVER.default)(&mut driver);
        assert_eq!(
            driver["spec"],
            json!({
                "attachRequired": true, "podInfoOnMount": false, "storageCapacity": false, "requiresRepublish": false,
                "fsGroupPolicy": "ReadWriteOnceWithFSType", "volumeLifecycleModes": ["Persistent"],
                "seLinuxMount": false,
            })
        );
        let mut set = json!({"spec": {"attachRequired": false, "volumeLifecycleModes": ["Ephemeral"]}});
        (CSI_DRIVER.default)(&mut set);
        assert_eq!(set["spec"]["attachRequired"], false);
        assert_eq!(set["spec"]["volumeLifecycleModes"], json!(["Ephemeral"]));
    }

    #[test]
    fn create_is_validated() {
        for (patch, expected) in [
            (json!({}), vec![]),
            (
                json!({"spec": {"fsGroupPolicy": "Some"}}),
                vec![
                    "spec.fsGroupPolicy: Unsupported value: \"Some\": supported values: \"File\", \"None\", \
                 \"ReadWriteOnceWithFSType\"",
                ],
            ),
            (
                json!({"spec": {"volumeLifecycleModes": ["Long"]}}),
                vec![
                    "spec.volumeLifecycleModes: Unsupported value: \"Long\": supported values: \"Persistent\", \"Ephemeral\"",
                ],
            ),
            (
                json!({"spec": {"tokenRequests": [{"audience": "a"}, {"audience": "a"}]}}),
                vec!["spec.tokenRequests[1].audience: Duplicate value: \"a\""],
            ),
            (
                json!({"spec": {"tokenRequests": [{"audience": "", "expirationSeconds": 599}]}}),
                vec![
                    "spec.tokenRequests[0].expirationSeconds: Invalid value: 599: may not specify a duration less than 10 \
                 minutes",
                ],
            ),
        ] {
            assert_eq!(invalid(&CSI_DRIVER, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn update_is_validated() {
        for (patch, expected) in [
            (json!({"spec": {"podInfoOnMount": true, "fsGroupPolicy": "File"}}), vec![]),
            (
                json!({"spec": {"attachRequired": false}}),
                vec!["spec.attachedRequired: Invalid value: false: field is immutable"],
            ),
            (
                json!({"spec": {"volumeLifecycleModes": ["Ephemeral"]}}),
                vec!["spec.volumeLifecycleModes: Invalid value: [\"Ephemeral\"]: field is immutable"],
            ),
        ] {
            assert_eq!(invalid_update(&CSI_DRIVER, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn spec_change_increments_generation() {
        let old = valid();
        let mut new = with(&old, &json!({"spec": {"podInfoOnMount": true}}));
        CSI_DRIVER.prepare_update(&mut new, &old, Time(0));
        assert_eq!(new["metadata"]["generation"], 1);
        let mut newer = with(&new, &json!({"metadata": {"labels": {"a": "b"}}}));
        CSI_DRIVER.prepare_update(&mut newer, &new, Time(0));
        assert_eq!(newer["metadata"]["generation"], 1);
    }

    #[test]
    fn table_rows_match_upstream() {
        let driver = json!({
            "metadata": {"name": "d", "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {
                "attachRequired": false, "storageCapacity": true, "volumeLifecycleModes": ["Persistent", "Ephemeral"],
                "tokenRequests": [{"audience": "a"}, {"audience": "b"}],
            },
        });
        let expected = json!(["d", false, false, true, "a,b", false, "Persistent,Ephemeral", "1s"]);
        assert_eq!(Value::from((CSI_DRIVER.row)(&driver, Time(1_000))), expected);
        let bare = Value::from((CSI_DRIVER.row)(&json!({"metadata": {"name": "d"}}), Time(0)));
        assert_eq!(bare, json!(["d", true, false, false, "<unset>", false, "<none>", "<unknown>"]));
    }
}
