//! VolumeAttributesClass: the mutable parameters of volumes.

use serde_json::Value;

use super::{AGE, BASE, Column, Kind, NAME, age, json, meta, names, storage_class, volume};
use crate::status::Cause;

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
        causes.extend(storage_class::forbidden_change(class, old, "driverName"));
        causes.extend(storage_class::forbidden_change(class, old, "parameters"));
        causes.extend(validate(class));
        causes
    },
    admit: |class, admission| {
        volume::add_protection_finalizer(class, admission, "kubernetes.io/vac-protection");
        Ok(())
    },
    columns: &[NAME, Column::text("DriverName", "The CSI driver that the class is for."), AGE],
    row: |class, now| {
        let cell = |pointer: &str| Value::from(json::text(class, pointer));
        vec![cell("/metadata/name"), cell("/driverName"), age(class, now).into()]
    },
    ..BASE
};

fn validate(class: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(class, false, names::subdomain);
    causes.extend(storage_class::driver_name(class, "driverName"));
    causes.extend(storage_class::validate_parameters(class, false));
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::Time;

    use super::*;
    use crate::kinds::Operation;
    use crate::kinds::testing::{FakeLookup, admit, invalid, invalid_update};

    fn valid() -> Value {
        json!({"metadata": {"name": "gold"}, "driverName": "d.example.com", "parameters": {"iops": "100"}})
    }

    #[test]
    fn create_and_update_are_validated() {
        for (patch, expected) in [
            (json!({}), vec![]),
            (json!({"driverName": null}), vec!["driverName: Required value"]),
            (
                json!({"parameters": null}),
                vec!["parameters: Required value: must contain at least one key/value pair"],
            ),
        ] {
            assert_eq!(invalid(&ATTRIBUTES_CLASS, &valid(), &patch), expected, "{patch}");
        }
        for (patch, expected) in [
            (json!({"metadata": {"labels": {"a": "b"}}}), vec![]),
            (json!({"driverName": "e"}), vec!["driverName: Forbidden: updates to driverName are forbidden."]),
            (
                json!({"parameters": {"iops": "9"}}),
                vec!["parameters: Forbidden: updates to parameters are forbidden."],
            ),
        ] {
            assert_eq!(invalid_update(&ATTRIBUTES_CLASS, &valid(), &patch), expected, "{patch}");
        }
    }

    /// kubernetes.md 1.2 "Admission".
    #[test]
    fn create_adds_protection_finalizer() {
        let mut class = valid();
        admit(&ATTRIBUTES_CLASS, &mut class, Operation::Create, None, &FakeLookup(vec![])).unwrap();
        assert_eq!(class["metadata"]["finalizers"], json!(["kubernetes.io/vac-protection"]));
        assert_eq!(
            Value::from((ATTRIBUTES_CLASS.row)(&class, Time(0))),
            json!(["gold", "d.example.com", "<unknown>"])
        );
    }
}
