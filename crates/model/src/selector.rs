//! Node selectors and label selectors. The rules of node selectors are in [`crate::topology`].

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::decode::{null_as_default, open_enum};

/// Selects the nodes that match any of the terms.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    /// The terms, one of which must match.
    #[serde(deserialize_with = "null_as_default")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Selects the nodes that match all requirements.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// Requirements on labels.
    #[serde(deserialize_with = "null_as_default")]
    pub match_expressions: Vec<Requirement>,
    /// Requirements on fields; Kubernetes allows only `metadata.name`.
    #[serde(deserialize_with = "null_as_default")]
    pub match_fields: Vec<Requirement>,
}

/// A requirement on a label or field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Requirement {
    /// The label or field.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// The values to compare with.
    #[serde(deserialize_with = "null_as_default")]
    pub values: Vec<String>,
}

/// Selects objects by labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels that must be present with exactly these values.
    #[serde(deserialize_with = "null_as_default")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements on labels, all of which must hold.
    #[serde(deserialize_with = "null_as_default")]
    pub match_expressions: Vec<Requirement>,
}

impl LabelSelector {
    /// Whether an object is selected; `label` looks up a label of the object. A selector without requirements selects
    /// everything. A selector with an unknown operator, or one that only node selectors support, selects nothing.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        let holds = |requirement: &Requirement| {
            let (label, values) = (label(&requirement.key), &requirement.values);
            let has_value = |label: &str| values.iter().any(|value| value == label);
            match requirement.operator {
                Operator::In => label.is_some_and(has_value),
                Operator::NotIn => !values.is_empty() && !label.is_some_and(has_value),
                Operator::Exists => values.is_empty() && label.is_some(),
                Operator::DoesNotExist => values.is_empty() && label.is_none(),
                Operator::Gt | Operator::Lt | Operator::Unknown => false,
            }
        };
        self.match_labels.iter().all(|(key, value)| label(key) == Some(value))
            && self.match_expressions.iter().all(holds)
    }
}

open_enum! {
    /// The operator of a requirement. Node selectors support all of them, label selectors the first four.
    Operator {
        /// The label has one of the values.
        In = "In",
        /// The label is absent or has another value.
        NotIn = "NotIn",
        /// The label is present.
        Exists = "Exists",
        /// The label is absent.
        DoesNotExist = "DoesNotExist",
        /// The label is a number greater than the value.
        Gt = "Gt",
        /// The label is a number less than the value.
        Lt = "Lt",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// kubernetes.md 1.1 "Best match": label selectors match as in Kubernetes.
    #[test]
    fn label_selectors_match_like_kubernetes() {
        let expression = |operator: &str, key: &str, values: &[&str]| json!({"matchExpressions": [{"operator": operator, "key": key, "values": values}]});
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"zone": "a"}}), true),
            (json!({"matchLabels": {"zone": "b"}}), false),
            (json!({"matchLabels": {"zone": "a", "rack": "1"}}), false),
            (expression("In", "zone", &["b", "a"]), true),
            (expression("In", "zone", &["b"]), false),
            (expression("In", "rack", &["b"]), false),
            (expression("NotIn", "zone", &["b"]), true),
            (expression("NotIn", "zone", &["a"]), false),
            (expression("NotIn", "rack", &["a"]), true),
            (expression("NotIn", "rack", &[]), false),
            (expression("Exists", "zone", &[]), true),
            (expression("Exists", "rack", &[]), false),
            (expression("Exists", "zone", &["a"]), false),
            (expression("DoesNotExist", "zone", &[]), false),
            (expression("DoesNotExist", "rack", &[]), true),
            (expression("Gt", "zone", &["0"]), false),
            (expression("Resembles", "zone", &["a"]), false),
            (
                json!({"matchLabels": {"zone": "a"}, "matchExpressions": [{"key": "rack", "operator": "Exists"}]}),
                false,
            ),
        ] {
            let text = selector.to_string();
            let selector: LabelSelector = serde_json::from_value(selector).unwrap();
            assert_eq!(selector.matches(|key| (key == "zone").then_some("a")), expected, "{text}");
        }
    }
}
