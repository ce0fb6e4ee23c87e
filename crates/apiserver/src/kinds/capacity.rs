//! CSIStorageCapacity: the capacity that a driver reports for a topology segment.

use serde_json::Value;

use super::{BASE, Kind, json, meta, names, topology};
use crate::status::Cause;

pub(super) static CAPACITY: Kind = Kind {
    group: "storage.k8s.io",
    kind: "CSIStorageCapacity",
    plural: "csistoragecapacities",
    singular: "csistoragecapacity",
    namespaced: true,
    unconditional_update: false,
    validate: |capacity| validate(capacity, false),
    validate_update: |capacity, old| {
        let allow_invalid_values = !meta::label_selector(old, "/nodeTopology", "", false).is_empty();
        let mut causes = validate(capacity, allow_invalid_values);
        causes.extend(meta::validate_update(capacity, old));
        causes.extend(meta::immutable(capacity, old, "/nodeTopology", "nodeTopology"));
        causes.extend(meta::immutable(capacity, old, "/storageClassName", "storageClassName"));
        causes
    },
    warnings: |capacity, _| {
        let mut warnings = Vec::new();
        for (index, one) in json::list(capacity, "/nodeTopology/matchExpressions").iter().enumerate() {
            let key = json::text(one, "/key");
            if let Some(warning) = topology::deprecation(key) {
                warnings.push(format!("nodeTopology.matchExpressions[{index}].key: {key} is {warning}"));
            }
        }
        for (label, _) in json::entries(capacity, "/nodeTopology/matchLabels") {
            if let Some(warning) = topology::deprecation(label) {
                warnings.push(format!("nodeTopology.matchLabels.{label}: {warning}"));
            }
        }
        warnings
    },
    ..BASE
};

fn validate(capacity: &Value, allow_invalid_values: bool) -> Vec<Cause> {
    let mut causes = meta::validate(capacity, true, names::subdomain);
    causes.extend(meta::label_selector(capacity, "/nodeTopology", "nodeTopology", allow_invalid_values));
    let class = json::text(capacity, "/storageClassName");
    causes.extend(meta::invalid_causes("storageClassName", class, names::subdomain(class, false)));
    if json::quantity(capacity, "/capacity").is_some_and(|room| room < wharf_model::Quantity::ZERO) {
        let value = json::at(capacity, "/capacity");
        causes.push(Cause::invalid("capacity", &value, "must be greater than or equal to 0"));
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_update};

    fn valid() -> Value {
        json!({
            "metadata": {"name": "c", "namespace": "ns"}, "storageClassName": "fast", "capacity": "1Gi",
            "nodeTopology": {"matchLabels": {"zone": "a"}},
        })
    }

    #[test]
    fn create_is_validated() {
        assert!(invalid(&CAPACITY, &valid(), &json!({})).is_empty());
        assert_eq!(
            invalid(&CAPACITY, &valid(), &json!({"capacity": "-1"})),
            ["capacity: Invalid value: \"-1\": must be greater than or equal to 0"]
        );
        assert!(
            invalid(&CAPACITY, &valid(), &json!({"storageClassName": null}))[0]
                .starts_with("storageClassName: Invalid value: \"\": a lowercase RFC 1123 subdomain")
        );
        assert!(
            invalid(&CAPACITY, &valid(), &json!({"nodeTopology": {"matchLabels": {"a b": "x"}}}))[0]
                .starts_with("nodeTopology.matchLabels: Invalid value: \"a b\": name part")
        );
    }

    #[test]
    fn class_and_topology_are_immutable() {
        for (patch, expected) in [
            (json!({"capacity": "2Gi", "maximumVolumeSize": "1Gi"}), vec![]),
            (
                json!({"storageClassName": "slow"}),
                vec!["storageClassName: Invalid value: \"slow\": field is immutable"],
            ),
            (
                json!({"nodeTopology": {"matchLabels": {"zone": "b"}}}),
                vec!["nodeTopology: Invalid value: {\"matchLabels\":{\"zone\":\"b\"}}: field is immutable"],
            ),
            (json!({"nodeTopology": null}), vec!["nodeTopology: Invalid value: null: field is immutable"]),
        ] {
            assert_eq!(invalid_update(&CAPACITY, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn deprecated_labels_cause_warnings() {
        let old = json!({"nodeTopology": {
            "matchLabels": {"beta.kubernetes.io/os": "linux"},
            "matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "Exists"}],
        }});
        assert_eq!(
            (CAPACITY.warnings)(&old, None),
            [
                "nodeTopology.matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use \
             \"kubernetes.io/arch\" instead",
                "nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            ]
        );
    }
}
