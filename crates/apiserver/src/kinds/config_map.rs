//! ConfigMap: configuration data.

use serde_json::Value;

use super::{AGE, BASE, Column, Kind, NAME, age, json, meta, names, secret};
use crate::status::Cause;

pub(super) static CONFIG_MAP: Kind = Kind {
    kind: "ConfigMap",
    plural: "configmaps",
    singular: "configmap",
    short_names: &["cm"],
    namespaced: true,
    validate,
    validate_update: |map, old| {
        let mut causes = meta::validate_update(map, old);
        causes.extend(secret::check_immutable(map, old, &["data", "binaryData"]));
        causes.extend(validate(map));
        causes
    },
    columns: &[NAME, Column::text("Data", "The number of keys."), AGE],
    row: |map, now| {
        let keys = json::entries(map, "/data").count() + json::entries(map, "/binaryData").count();
        vec![json::text(map, "/metadata/name").into(), keys.into(), age(map, now).into()]
    },
    ..BASE
};

fn validate(map: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(map, true, names::subdomain);
    let mut bytes = 0;
    for (key, value) in json::entries(map, "/data") {
        let field = format!("data[{key}]");
        causes.extend(meta::invalid_causes(&field, key, names::config_key(key)));
        if json::entries(map, "/binaryData").any(|(other, _)| other == key) {
            causes.push(Cause::invalid(&field, &key.into(), "duplicate of key present in binaryData"));
        }
        bytes += value.as_str().unwrap_or_default().len();
    }
    for (key, value) in json::entries(map, "/binaryData") {
        causes.extend(meta::invalid_causes(&format!("binaryData[{key}]"), key, names::config_key(key)));
        bytes += secret::decoded_bytes(value);
    }
    if bytes > secret::MAX_BYTES {
        // Upstream prints a field without a name as `[]`.
        causes.push(Cause::too_long("[]", secret::MAX_BYTES));
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_update, with};

    fn valid() -> Value {
        json!({"metadata": {"name": "m", "namespace": "ns"}, "data": {"a": "1"}, "binaryData": {"b": "AAAA"}})
    }

    #[test]
    fn create_is_validated() {
        for (patch, expected) in [
            (json!({}), vec![]),
            (
                json!({"data": {"b": "2"}}),
                vec!["data[b]: Invalid value: \"b\": duplicate of key present in binaryData"],
            ),
            (json!({"data": {"..": ""}}), vec!["data[..]: Invalid value: \"..\": must not be '..'"]),
            (json!({"binaryData": {".": ""}}), vec!["binaryData[.]: Invalid value: \".\": must not be '.'"]),
            (
                json!({"data": {"a": "x".repeat(1 << 20)}}),
                vec!["[]: Too long: may not be more than 1048576 bytes"],
            ),
        ] {
            assert_eq!(invalid(&CONFIG_MAP, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn immutable_config_map_rejects_changes() {
        let immutable = with(&valid(), &json!({"immutable": true}));
        assert!(
            invalid_update(&CONFIG_MAP, &valid(), &json!({"data": {"a": "2"}, "immutable": true})).is_empty()
        );
        let detail = "field is immutable when `immutable` is set";
        for (patch, field) in [
            (json!({"data": {"a": "2"}}), "data"),
            (json!({"binaryData": null}), "binaryData"),
            (json!({"immutable": null}), "immutable"),
        ] {
            assert_eq!(
                invalid_update(&CONFIG_MAP, &immutable, &patch),
                [format!("{field}: Forbidden: {detail}")]
            );
        }
    }

    #[test]
    fn table_rows_match_upstream() {
        assert_eq!(Value::from((CONFIG_MAP.row)(&valid(), Time(0))), json!(["m", 2, "<unknown>"]));
    }
}
