//! Validation of node selector terms in classes, volumes and pods.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{json, meta, names};
use crate::status::Cause;

/// The deprecation warning for a label, if it is deprecated.
pub(super) fn deprecation(label: &str) -> Option<&'static str> {
    Some(match label {
        "beta.kubernetes.io/arch" => "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        "beta.kubernetes.io/os" => "deprecated since v1.14; use \"kubernetes.io/os\" instead",
        "failure-domain.beta.kubernetes.io/region" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead"
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
        }
        "beta.kubernetes.io/instance-type" => {
            "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => {
            "deprecated since v1.22; use Taints and Tolerations instead"
        }
        "node-role.kubernetes.io/master" => "use \"node-role.kubernetes.io/control-plane\" instead",
        _ => return None,
    })
}

/// Validates a term of a class's allowed topologies. Returns its values by key, and its errors.
pub(super) fn selector_term<'a>(
    term: &'a Value,
    field: &str,
) -> (BTreeMap<&'a str, BTreeSet<&'a str>>, Vec<Cause>) {
    let mut all = BTreeMap::new();
    let mut causes = Vec::new();
    for (index, requirement) in json::list(term, "/matchLabelExpressions").iter().enumerate() {
        let field = format!("{field}.matchLabelExpressions[{index}]");
        let values = json::list(requirement, "/values");
        if values.is_empty() {
            causes.push(Cause::required(&format!("{field}.values"), ""));
        }
        let mut set = BTreeSet::new();
        for (index, value) in values.iter().enumerate() {
            if !set.insert(value.as_str().unwrap_or_default()) {
                causes.push(Cause::duplicate(&format!("{field}.values[{index}]"), value));
            }
        }
        let key = json::text(requirement, "/key");
        causes.extend(meta::invalid_causes(&format!("{field}.key"), key, names::qualified_name(key)));
        if all.insert(key, set).is_some() {
            causes.push(Cause::duplicate(&format!("{field}.key"), &key.into()));
        }
    }
    (all, causes)
}

/// Validates a node selector. `allow_invalid_values` accepts invalid label values that the stored object already has.
pub(super) fn node_selector(selector: &Value, field: &str, allow_invalid_values: bool) -> Vec<Cause> {
    let terms = json::list(selector, "/nodeSelectorTerms");
    let field = format!("{field}.nodeSelectorTerms");
    if terms.is_empty() {
        return vec![Cause::required(&field, "must have at least one node selector term")];
    }
    let all = terms.iter().enumerate();
    all.flat_map(|(index, term)| node_selector_term(term, &format!("{field}[{index}]"), allow_invalid_values))
        .collect()
}

/// Validates one term of a node selector.
pub(super) fn node_selector_term(term: &Value, field: &str, allow_invalid_values: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, requirement) in json::list(term, "/matchExpressions").iter().enumerate() {
        causes.extend(match_expression(
            requirement,
            &format!("{field}.matchExpressions[{index}]"),
            allow_invalid_values,
        ));
    }
    for (index, requirement) in json::list(term, "/matchFields").iter().enumerate() {
        causes.extend(match_field(requirement, &format!("{field}.matchFields[{index}]")));
    }
    causes
}

fn match_expression(requirement: &Value, field: &str, allow_invalid_values: bool) -> Vec<Cause> {
    let values = json::list(requirement, "/values");
    let of_values = format!("{field}.values");
    let mut causes: Vec<Cause> = match json::text(requirement, "/operator") {
        "In" | "NotIn" if values.is_empty() => {
            vec![Cause::required(&of_values, "must be specified when `operator` is 'In' or 'NotIn'")]
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            vec![Cause::forbidden(
                &of_values,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )]
        }
        "Gt" | "Lt" if values.len() != 1 => {
            vec![Cause::required(
                &of_values,
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            )]
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => vec![],
        other => {
            vec![Cause::invalid(&format!("{field}.operator"), &other.into(), "not a valid selector operator")]
        }
    };
    let key = json::text(requirement, "/key");
    causes.extend(meta::invalid_causes(&format!("{field}.key"), key, names::qualified_name(key)));
    for (index, value) in values.iter().enumerate().filter(|_| !allow_invalid_values) {
        let value = value.as_str().unwrap_or_default();
        causes.extend(meta::invalid_causes(
            &format!("{of_values}[{index}]"),
            value,
            names::label_value(value),
        ));
    }
    causes
}

fn match_field(requirement: &Value, field: &str) -> Vec<Cause> {
    let values = json::list(requirement, "/values");
    let mut causes: Vec<Cause> = match json::text(requirement, "/operator") {
        "In" | "NotIn" if values.len() != 1 => vec![Cause::required(
            &format!("{field}.values"),
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        )],
        "In" | "NotIn" => vec![],
        other => {
            vec![Cause::invalid(&format!("{field}.operator"), &other.into(), "not a valid selector operator")]
        }
    };
    match json::text(requirement, "/key") {
        "metadata.name" => {
            for (index, value) in values.iter().enumerate() {
                let value = value.as_str().unwrap_or_default();
                causes.extend(meta::invalid_causes(
                    &format!("{field}.values[{index}]"),
                    value,
                    names::subdomain(value, false),
                ));
            }
        }
        key => {
            let detail = "not a valid field selector key";
            causes.push(Cause::invalid(&format!("{field}.key"), &key.into(), detail));
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::testing::lines;

    #[test]
    fn node_selector_terms_are_validated() {
        let errors = |term: Value| lines(node_selector(&json!({"nodeSelectorTerms": [term]}), "a", false));
        let expression = |operator: &str, values: Value| {
            errors(json!({"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}))
        };
        assert_eq!(
            lines(node_selector(&json!({}), "a", false)),
            ["a.nodeSelectorTerms: Required value: must have at least one node selector term"]
        );
        assert!(expression("In", json!(["x"])).is_empty());
        assert!(expression("Gt", json!(["1"])).is_empty());
        for (operator, values, expected) in [
            ("In", json!([]), "values: Required value: must be specified when `operator` is 'In' or 'NotIn'"),
            (
                "Exists",
                json!(["a"]),
                "values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            (
                "Lt",
                json!([]),
                "values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
            ),
            ("Is", json!([]), "operator: Invalid value: \"Is\": not a valid selector operator"),
        ] {
            let expected = format!("a.nodeSelectorTerms[0].matchExpressions[0].{expected}");
            assert_eq!(expression(operator, values), [expected], "{operator}");
        }
        let field = |key: &str, values: Value| {
            errors(json!({"matchFields": [{"key": key, "operator": "In", "values": values}]}))
        };
        assert!(field("metadata.name", json!(["n"])).is_empty());
        assert_eq!(
            field("metadata.uid", json!(["n"])),
            [
                "a.nodeSelectorTerms[0].matchFields[0].key: Invalid value: \"metadata.uid\": not a valid field selector key"
            ]
        );
        assert_eq!(
            field("metadata.name", json!([])),
            [
                "a.nodeSelectorTerms[0].matchFields[0].values: Required value: must be only one value when `operator` is \
              'In' or 'NotIn' for node field selector"
            ]
        );
    }
}
