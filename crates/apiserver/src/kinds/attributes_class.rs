//! VolumeAttributesClass: what a volume is changed to.

use serde_json::Value;

use super::{AGE, BASE, Column, Kind, NAME, age, json, meta, names, storage_class, volume};
use crate::status::Cause;

/// What a volume is changed to.
pub(super) static ATTRIBUTES_CLASS: Kind = Kind {
    group: "storage.k8s.io",
    kind: "VolumeAttributesClass",
    plural: "volumeattributesclasses",
    singular: "volumeattributesclass",
    short_names: &["vac"],
    validate,
    validate_update: |class, old| {
        let mut causes = validate(class);
        causes.extend(meta::validate_update(class, old));
        causes.extend(storage_class::fixed(class, old, "driverName"));
        causes.extend(storage_class::fixed(class, old, "parameters"));
        causes.extend(validate(class));
        causes
    },
    admit: |class, admission| {
        volume::protect(class, admission, "kubernetes.io/vac-protection");
        Ok(())
    },
    columns: &[NAME, Column::text("DriverName", "The driver whose volumes it is for."), AGE],
    row: |class, now| {
        let of = |pointer: &str| Value::from(json::text(class, pointer));
        vec![of("/metadata/name"), of("/driverName"), age(class, now).into()]
    },
    ..BASE
};

fn validate(class: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(class, false, names::subdomain);
    causes.extend(storage_class::driver(class, "driverName"));
    causes.extend(storage_class::parameters(class, false));
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::Time;

    use super::*;
    use crate::kinds::Operation;
    use crate::kinds::testing::{Others, admit, invalid, invalid_change};

    fn good() -> Value {
        json!({"metadata": {"name": "gold"}, "driverName": "d.example.com", "parameters": {"iops": "100"}})
    }

    #[test]
    fn rules() {
        for (patch, expected) in [
            (json!({}), vec![]),
            (json!({"driverName": null}), vec!["driverName: Required value"]),
            (
                json!({"parameters": null}),
                vec!["parameters: Required value: must contain at least one key/value pair"],
            ),
        ] {
            assert_eq!(invalid(&ATTRIBUTES_CLASS, &good(), &patch), expected, "{patch}");
        }
        for (patch, expected) in [
            (json!({"metadata": {"labels": {"a": "b"}}}), vec![]),
            (json!({"driverName": "e"}), vec!["driverName: Forbidden: updates to driverName are forbidden."]),
            (
                json!({"parameters": {"iops": "9"}}),
                vec!["parameters: Forbidden: updates to parameters are forbidden."],
            ),
        ] {
            assert_eq!(invalid_change(&ATTRIBUTES_CLASS, &good(), &patch), expected, "{patch}");
        }
    }

    /// kubernetes.md 1.2 "Admission".
    #[test]
    fn it_is_protected() {
        let mut class = good();
        admit(&ATTRIBUTES_CLASS, &mut class, Operation::Create, None, &Others(vec![])).unwrap();
        assert_eq!(class["metadata"]["finalizers"], json!(["kubernetes.io/vac-protection"]));
        assert_eq!(
            Value::from((ATTRIBUTES_CLASS.row)(&class, Time(0))),
            json!(["gold", "d.example.com", "<unknown>"])
        );
    }
}
