//! CSINode: the CSI drivers that are registered on a node.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{AGE, BASE, Column, Kind, NAME, age, go, json, meta, names};
use crate::status::Cause;

pub(super) static CSI_NODE: Kind = Kind {
    group: "storage.k8s.io",
    kind: "CSINode",
    plural: "csinodes",
    singular: "csinode",
    unconditional_update: false,
    // Upstream serializes these lists even if they are empty, as null.
    default: |node| {
        let spec = json::object_mut(node, "spec");
        null_if_empty(spec, "drivers");
        for driver in spec.get_mut("drivers").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(driver) = driver {
                null_if_empty(driver, "topologyKeys");
            }
        }
    },
    validate,
    validate_update,
    columns: &[NAME, Column::new("Drivers", "integer", "The number of drivers on the node."), AGE],
    row: |node, now| {
        vec![
            json::text(node, "/metadata/name").into(),
            json::list(node, "/spec/drivers").len().into(),
            age(node, now).into(),
        ]
    },
    ..BASE
};

/// The maximum length of a driver's ID of a node.
const MAX_NODE_ID_BYTES: usize = 256;

fn null_if_empty(map: &mut serde_json::Map<String, Value>, field: &str) {
    if map.get(field).and_then(Value::as_array).is_none_or(Vec::is_empty) {
        map.insert(field.into(), Value::Null);
    }
}

fn validate(node: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(node, false, names::subdomain);
    let mut seen = BTreeSet::new();
    for (index, driver) in json::list(node, "/spec/drivers").iter().enumerate() {
        let field = format!("spec.drivers[{index}]");
        let name = json::text(driver, "/name");
        causes.extend(driver_name(name, &format!("{field}.name")));
        let id = json::text(driver, "/nodeID");
        let of_id = format!("{field}.nodeID");
        if id.is_empty() {
            causes.push(Cause::required(&of_id, ""));
        }
        if id.len() > MAX_NODE_ID_BYTES {
            causes.push(Cause::invalid(
                &of_id,
                &id.into(),
                &format!("must be {MAX_NODE_ID_BYTES} characters or less"),
            ));
        }
        if let Some(count @ ..0) = json::number(driver, "/allocatable/count") {
            let detail = "must be greater than or equal to 0";
            causes.push(Cause::invalid(&format!("{field}.allocatable.count"), &count.into(), detail));
        }
        if !seen.insert(name) {
            causes.push(Cause::duplicate(&format!("{field}.name"), &name.into()));
        }
        let mut keys = BTreeSet::new();
        for key in json::list(driver, "/topologyKeys") {
            let text = key.as_str().unwrap_or_default();
            if text.is_empty() {
                causes.push(Cause::required(&field, ""));
            }
            if !keys.insert(text) {
                causes.push(Cause::duplicate(&field, key));
            }
            causes.extend(meta::invalid_causes(&field, text, names::qualified_name(text)));
        }
    }
    causes
}

/// Validates the name of a CSI driver.
pub(super) fn driver_name(name: &str, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    if name.is_empty() {
        causes.push(Cause::required(field, ""));
    }
    if name.len() > 63 {
        causes.push(Cause::too_long(field, 63));
    }
    causes.extend(meta::invalid_causes(field, name, names::subdomain(&name.to_lowercase(), false)));
    causes
}

fn validate_update(node: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = validate(node);
    causes.extend(validate(node));
    for before in json::list(old, "/spec/drivers") {
        for driver in json::list(node, "/spec/drivers") {
            if driver.get("name") == before.get("name") && driver != before {
                causes.push(meta::invalid_raw(
                    "spec.drivers",
                    &go::compact(driver, "CSINodeDriver"),
                    "field is immutable",
                ));
            }
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_update};
    use wharf_model::Time;

    fn valid() -> Value {
        json!({"metadata": {"name": "n1"}, "spec": {"drivers": [
            {"name": "d.example.com", "nodeID": "i", "topologyKeys": ["a/b"], "allocatable": {"count": 3}},
        ]}})
    }

    #[test]
    fn create_is_validated() {
        let driver = |patch: Value| {
            let driver = crate::kinds::testing::with(&valid()["spec"]["drivers"][0], &patch);
            json!({"spec": {"drivers": [driver]}})
        };
        let twice =
            json!({"spec": {"drivers": [valid()["spec"]["drivers"][0], valid()["spec"]["drivers"][0]]}});
        for (patch, expected) in [
            (json!({}), vec![]),
            (json!({"spec": {"drivers": []}}), vec![]),
            (driver(json!({"nodeID": ""})), vec!["spec.drivers[0].nodeID: Required value"]),
            (
                driver(json!({"allocatable": {"count": -1}})),
                vec![
                    "spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
                ],
            ),
            (driver(json!({"topologyKeys": ["a", "a"]})), vec!["spec.drivers[0]: Duplicate value: \"a\""]),
            (
                driver(json!({"name": "x".repeat(64)})),
                vec!["spec.drivers[0].name: Too long: may not be more than 63 bytes"],
            ),
            (twice, vec!["spec.drivers[1].name: Duplicate value: \"d.example.com\""]),
        ] {
            assert_eq!(invalid(&CSI_NODE, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn drivers_can_be_added_and_removed_but_not_changed() {
        let other = json!({"name": "e", "nodeID": "j"});
        let both = json!({"spec": {"drivers": [valid()["spec"]["drivers"][0], other]}});
        assert!(invalid_update(&CSI_NODE, &valid(), &both).is_empty());
        assert!(invalid_update(&CSI_NODE, &valid(), &json!({"spec": {"drivers": []}})).is_empty());
        let changed = json!({"spec": {"drivers": [{"name": "d.example.com", "nodeID": "k"}]}});
        assert_eq!(
            invalid_update(&CSI_NODE, &valid(), &changed),
            [
                "spec.drivers: Invalid value: {\"Name\":\"d.example.com\",\"NodeID\":\"k\",\"TopologyKeys\":null,\
              \"Allocatable\":null}: field is immutable"
            ]
        );
    }

    #[test]
    fn table_rows_match_upstream() {
        assert_eq!(Value::from((CSI_NODE.row)(&valid(), Time(0))), json!(["n1", 1, "<unknown>"]));
    }
}
