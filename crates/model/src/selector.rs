//! Node selectors and label selectors, as volumes and capacities carry them. The rules over them are in
//! [`crate::topology`].

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::words::{nullable, words};

/// Nodes: those that match any of the terms.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    /// Any one of them is enough.
    #[serde(deserialize_with = "nullable")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Nodes that match all of the requirements.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// About labels.
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<Requirement>,
    /// About fields; Kubernetes allows only `metadata.name`.
    #[serde(deserialize_with = "nullable")]
    pub match_fields: Vec<Requirement>,
}

/// One requirement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Requirement {
    /// The label or field.
    pub key: String,
    /// The relation.
    pub operator: Operator,
    /// What it is compared with.
    #[serde(deserialize_with = "nullable")]
    pub values: Vec<String>,
}

/// Objects with certain labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels and their values.
    #[serde(deserialize_with = "nullable")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements.
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<Requirement>,
}

words! {
    /// A relation between a label and values. Node selectors have all of them, label selectors the first four.
    Operator {
        /// The label has one of the values.
        In = "In",
        /// The label is absent or has another value.
        NotIn = "NotIn",
        /// The label is there.
        Exists = "Exists",
        /// The label is absent.
        DoesNotExist = "DoesNotExist",
        /// The label is a number greater than the value.
        Gt = "Gt",
        /// The label is a number less than the value.
        Lt = "Lt",
    }
}
