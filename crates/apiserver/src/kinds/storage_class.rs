//! StorageClass: how volumes are provisioned.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{AGE, BASE, Column, Kind, NAME, age, json, meta, names, topology};
use crate::status::Cause;

pub(super) static STORAGE_CLASS: Kind = Kind {
    group: "storage.k8s.io",
    kind: "StorageClass",
    plural: "storageclasses",
    singular: "storageclass",
    short_names: &["sc"],
    default: |class| {
        if let Value::Object(class) = class {
            json::set_default(class, "reclaimPolicy", "Delete");
            json::set_default(class, "volumeBindingMode", "Immediate");
        }
    },
    validate,
    validate_update,
    warnings: |class, _| {
        let mut warnings = Vec::new();
        for (i, term) in json::list(class, "/allowedTopologies").iter().enumerate() {
            for (j, expression) in json::list(term, "/matchLabelExpressions").iter().enumerate() {
                if let Some(warning) = topology::deprecation(json::text(expression, "/key")) {
                    warnings
                        .push(format!("allowedTopologies[{i}].matchLabelExpressions[{j}].key: {warning}"));
                }
            }
        }
        warnings
    },
    columns: &[
        NAME,
        Column::text("Provisioner", "The driver that provisions the volumes."),
        Column::text("ReclaimPolicy", "What happens to a volume when its claim is deleted."),
        Column::text("VolumeBindingMode", "When volumes are provisioned and bound."),
        Column::text("AllowVolumeExpansion", "Whether claims can be expanded."),
        AGE,
    ],
    row: |class, now| {
        let name = json::text(class, "/metadata/name");
        let or = |field: &str, default: &str| match json::text(class, field) {
            "" => default.to_owned(),
            text => text.to_owned(),
        };
        vec![
            if is_default(class) { format!("{name} (default)") } else { name.into() }.into(),
            json::text(class, "/provisioner").into(),
            or("/reclaimPolicy", "Delete").into(),
            or("/volumeBindingMode", "Immediate").into(),
            json::flag(class, "/allowVolumeExpansion").into(),
            age(class, now).into(),
        ]
    },
    ..BASE
};

/// Whether this is a default class, for claims that name no class.
pub(super) fn is_default(class: &Value) -> bool {
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
        .iter()
        .any(|annotation| json::annotation(class, annotation) == Some("true"))
}

fn validate(class: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(class, false, names::subdomain);
    causes.extend(driver_name(class, "provisioner"));
    causes.extend(validate_parameters(class, true));
    for (field, known) in [
        ("reclaimPolicy", ["Delete", "Retain"]),
        ("volumeBindingMode", ["Immediate", "WaitForFirstConsumer"]),
    ] {
        match json::text(class, &format!("/{field}")) {
            "" if field == "reclaimPolicy" => (),
            value if known.contains(&value) => (),
            value => causes.push(Cause::not_supported(field, &value.into(), &known)),
        }
    }
    let mut seen: BTreeSet<BTreeMap<&str, BTreeSet<&str>>> = BTreeSet::new();
    for (index, term) in json::list(class, "/allowedTopologies").iter().enumerate() {
        let field = format!("allowedTopologies[{index}]");
        let (values, faults) = topology::selector_term(term, &field);
        causes.extend(faults);
        if !seen.insert(values) {
            causes.push(Cause::duplicate(&format!("{field}.matchLabelExpressions"), &"".into()));
        }
    }
    causes
}

/// Validates a driver name. Any qualified name is accepted.
pub(super) fn driver_name(object: &Value, field: &str) -> Vec<Cause> {
    match json::text(object, &format!("/{field}")) {
        "" => vec![Cause::required(field, "")],
        name => {
            let name = name.to_lowercase();
            meta::invalid_causes(field, &name, names::qualified_name(&name)).collect()
        }
    }
}

/// Validates the parameters for a driver.
pub(super) fn validate_parameters(object: &Value, may_be_empty: bool) -> Vec<Cause> {
    const MAX_PARAMETERS: usize = 512;
    const MAX_BYTES: usize = 256 << 10;
    let count = json::entries(object, "/parameters").count();
    if count > MAX_PARAMETERS {
        return vec![Cause::too_long("parameters", MAX_PARAMETERS)];
    }
    let mut causes = Vec::new();
    let mut bytes = 0;
    for (key, value) in json::entries(object, "/parameters") {
        if key.is_empty() {
            causes.push(Cause::invalid("parameters", &"".into(), "field can not be empty."));
        }
        bytes += key.len() + value.as_str().unwrap_or_default().len();
    }
    if bytes > MAX_BYTES {
        causes.push(Cause::too_long("parameters", MAX_BYTES));
    }
    if count == 0 && !may_be_empty {
        causes.push(Cause::required("parameters", "must contain at least one key/value pair"));
    }
    causes
}

/// Returns a cause if an immutable field was changed.
pub(super) fn forbidden_change(object: &Value, old: &Value, field: &str) -> Option<Cause> {
    (object.get(field) != old.get(field))
        .then(|| Cause::forbidden(field, &format!("updates to {field} are forbidden.")))
}

fn validate_update(class: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = validate(class);
    causes.extend(meta::validate_update(class, old));
    for field in ["parameters", "provisioner", "reclaimPolicy"] {
        causes.extend(forbidden_change(class, old, field));
    }
    causes.extend(meta::immutable(class, old, "/volumeBindingMode", "volumeBindingMode"));
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_update};
    use wharf_model::Time;

    fn valid() -> Value {
        json!({"metadata": {"name": "fast"}, "provisioner": "local.wharf.dev"})
    }

    #[test]
    fn unset_fields_get_defaults() {
        let mut class = valid();
        (STORAGE_CLASS.default)(&mut class);
        assert_eq!(class["reclaimPolicy"], "Delete");
        assert_eq!(class["volumeBindingMode"], "Immediate");
        assert_eq!(class.get("allowVolumeExpansion"), None);
    }

    #[test]
    fn create_is_validated() {
        let term = |values: Value| json!({"matchLabelExpressions": [{"key": "zone", "values": values}]});
        for (patch, expected) in [
            (json!({}), vec![]),
            (json!({"provisioner": null}), vec!["provisioner: Required value"]),
            (
                json!({"provisioner": "A/b/"}),
                vec![
                    "provisioner: Invalid value: \"a/b/\": a qualified name must consist of alphanumeric characters, '-', \
                 '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
                 '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional \
                 DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                ],
            ),
            (
                json!({"reclaimPolicy": "Recycle"}),
                vec![
                    "reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\"",
                ],
            ),
            (
                json!({"volumeBindingMode": "Soon"}),
                vec![
                    "volumeBindingMode: Unsupported value: \"Soon\": supported values: \"Immediate\", \
                 \"WaitForFirstConsumer\"",
                ],
            ),
            (
                json!({"parameters": {"": "x"}}),
                vec!["parameters: Invalid value: \"\": field can not be empty."],
            ),
            (
                json!({"parameters": {"a": "x".repeat(256 << 10)}}),
                vec!["parameters: Too long: may not be more than 262144 bytes"],
            ),
            (json!({"allowedTopologies": [term(json!(["a"])), term(json!(["b"]))]}), vec![]),
            (
                json!({"allowedTopologies": [term(json!([]))]}),
                vec!["allowedTopologies[0].matchLabelExpressions[0].values: Required value"],
            ),
            (
                json!({"allowedTopologies": [term(json!(["a", "a"]))]}),
                vec!["allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate value: \"a\""],
            ),
            (
                json!({"allowedTopologies": [term(json!(["a", "b"])), term(json!(["b", "a"]))]}),
                vec!["allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\""],
            ),
        ] {
            assert_eq!(invalid(&STORAGE_CLASS, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn update_is_validated() {
        for (patch, expected) in [
            (json!({"allowVolumeExpansion": true, "mountOptions": ["ro"]}), vec![]),
            (
                json!({"parameters": {"a": "b"}}),
                vec!["parameters: Forbidden: updates to parameters are forbidden."],
            ),
            (
                json!({"provisioner": "x"}),
                vec!["provisioner: Forbidden: updates to provisioner are forbidden."],
            ),
            (
                json!({"reclaimPolicy": "Retain"}),
                vec!["reclaimPolicy: Forbidden: updates to reclaimPolicy are forbidden."],
            ),
            (
                json!({"volumeBindingMode": "WaitForFirstConsumer"}),
                vec!["volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable"],
            ),
        ] {
            assert_eq!(invalid_update(&STORAGE_CLASS, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn table_rows_match_upstream() {
        let mut class = valid();
        class["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z".into();
        class["metadata"]["annotations"] = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        let expected = json!(["fast (default)", "local.wharf.dev", "Delete", "Immediate", false, "5m"]);
        assert_eq!(Value::from((STORAGE_CLASS.row)(&class, Time(300_000))), expected);
    }

    #[test]
    fn deprecated_labels_cause_warnings() {
        let class = json!({"allowedTopologies": [{"matchLabelExpressions": [
            {"key": "a"}, {"key": "failure-domain.beta.kubernetes.io/zone"},
        ]}]});
        let expected = "allowedTopologies[0].matchLabelExpressions[1].key: deprecated since v1.17; use \
                        \"topology.kubernetes.io/zone\" instead";
        assert_eq!((STORAGE_CLASS.warnings)(&class, None), [expected]);
    }
}
