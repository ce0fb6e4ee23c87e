//! The node affinity of volumes: from which nodes a volume is accessible.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Segments;
use crate::class::TopologySelectorTerm;
use crate::selector::{NodeSelector, NodeSelectorTerm, Operator, Requirement};
use crate::volume::NodeAffinity;

/// The `nodeAffinity` of a volume with this accessible topology: a term for each topology, all of whose labels must
/// match. `None` if it is accessible from every node. A topology without segments is ignored.
pub fn node_affinity(accessible: &[Segments]) -> Option<Value> {
    let terms: Vec<Value> = accessible
        .iter()
        .filter(|place| !place.is_empty())
        .map(|place| {
            let expressions: Vec<Value> = place
                .iter()
                .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
                .collect();
            json!({"matchExpressions": expressions})
        })
        .collect();
    match terms.is_empty() {
        true => None,
        false => Some(json!({"required": {"nodeSelectorTerms": terms}})),
    }
}

/// Whether a volume is accessible from a node of this name with these labels. An unknown operator does not match: the
/// caller is about to act on a volume that may belong to another node.
pub fn is_accessible_from(
    affinity: Option<&NodeAffinity>,
    node: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    match affinity.and_then(|affinity| affinity.required.as_ref()) {
        None => true,
        Some(required) => selector_matches_node(required, node, labels),
    }
}

/// Whether a selector matches a node of this name with these labels.
pub fn selector_matches_node(selector: &NodeSelector, node: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node, labels))
}

/// Whether a class's `allowedTopologies` allow a node with these labels. An empty list allows all; a term without
/// expressions, or an expression without values, allows none.
pub fn topologies_allow(allowed: &[TopologySelectorTerm], labels: &BTreeMap<String, String>) -> bool {
    let holds = |term: &TopologySelectorTerm| {
        !term.match_label_expressions.is_empty()
            && term.match_label_expressions.iter().all(|expression| {
                labels.get(&expression.key).is_some_and(|value| expression.values.contains(value))
            })
    };
    allowed.is_empty() || allowed.iter().any(holds)
}

fn term_matches(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    // An empty term matches nothing, by Kubernetes' rule.
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return false;
    }
    term.match_expressions.iter().all(|requirement| matches(requirement, labels.get(&requirement.key)))
        && term.match_fields.iter().all(|requirement| field_matches(requirement, node))
}

fn field_matches(requirement: &Requirement, node: &str) -> bool {
    requirement.key == "metadata.name"
        && match (requirement.operator, &requirement.values[..]) {
            (Operator::In, [name]) => name == node,
            (Operator::NotIn, [name]) => name != node,
            _ => false,
        }
}

fn matches(requirement: &Requirement, label: Option<&String>) -> bool {
    let values = &requirement.values;
    let numbers = || match (label.map(|label| label.parse::<i64>()), &values[..]) {
        (Some(Ok(label)), [value]) => value.parse::<i64>().ok().map(|value| (label, value)),
        _ => None,
    };
    match requirement.operator {
        Operator::In => label.is_some_and(|label| values.contains(label)),
        Operator::NotIn => !values.is_empty() && label.is_none_or(|label| !values.contains(label)),
        Operator::Exists => values.is_empty() && label.is_some(),
        Operator::DoesNotExist => values.is_empty() && label.is_none(),
        Operator::Gt => numbers().is_some_and(|(label, value)| label > value),
        Operator::Lt => numbers().is_some_and(|(label, value)| label < value),
        Operator::Unknown => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segments(pairs: &[(&str, &str)]) -> Segments {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// sidecars.md 1.1 "PV written": nodeAffinity from accessible_topology.
    #[test]
    fn affinity_has_a_term_per_topology() {
        assert_eq!(node_affinity(&[]), None);
        assert_eq!(node_affinity(&[Segments::new()]), None);
        let places = [segments(&[("zone", "a"), ("rack", "1")]), Segments::new(), segments(&[("zone", "b")])];
        assert_eq!(
            node_affinity(&places),
            Some(json!({"required": {"nodeSelectorTerms": [
                {"matchExpressions": [
                    {"key": "rack", "operator": "In", "values": ["1"]},
                    {"key": "zone", "operator": "In", "values": ["a"]},
                ]},
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
            ]}}))
        );
    }

    /// sidecars.md 1.1 "Node deployment": a node acts on the volumes accessible from it.
    #[test]
    fn accessibility_follows_node_selector_rules() {
        let labels = segments(&[("zone", "a"), ("cpus", "8")]);
        let expression = |key, operator, values| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        let field = |operator, values| json!([{"matchFields": [{"key": "metadata.name", "operator": operator, "values": values}]}]);
        for (terms, expected) in [
            (json!([]), false),
            (json!([{}]), false),
            (expression("zone", "In", json!(["b", "a"])), true),
            (expression("zone", "In", json!(["b"])), false),
            (expression("rack", "In", json!(["b"])), false),
            (expression("zone", "NotIn", json!(["b"])), true),
            (expression("zone", "NotIn", json!(["a"])), false),
            (expression("rack", "NotIn", json!(["a"])), true),
            (expression("rack", "NotIn", json!([])), false),
            (expression("zone", "Exists", json!(null)), true),
            (expression("rack", "Exists", json!(null)), false),
            (expression("zone", "DoesNotExist", json!(null)), false),
            (expression("rack", "DoesNotExist", json!(null)), true),
            (expression("cpus", "Gt", json!(["7"])), true),
            (expression("cpus", "Gt", json!(["8"])), false),
            (expression("cpus", "Lt", json!(["9"])), true),
            (expression("cpus", "Lt", json!(["8"])), false),
            (expression("cpus", "Lt", json!(["9", "10"])), false),
            (expression("zone", "Gt", json!(["1"])), false),
            (expression("rack", "Lt", json!(["1"])), false),
            (expression("zone", "Resembles", json!(["a"])), false),
            (field("In", json!(["node-a"])), true),
            (field("In", json!(["node-b"])), false),
            (field("NotIn", json!(["node-b"])), true),
            (field("NotIn", json!(["node-a"])), false),
            (field("Exists", json!(null)), false),
            (json!([{"matchFields": [{"key": "spec.x", "operator": "In", "values": ["node-a"]}]}]), false),
            // All of a term, any of the terms.
            (
                json!([{"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["a"]},
                    {"key": "rack", "operator": "Exists"},
                ]}]),
                false,
            ),
            (
                json!([
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                ]),
                true,
            ),
        ] {
            let affinity: NodeAffinity =
                serde_json::from_value(json!({"required": {"nodeSelectorTerms": terms.clone()}})).unwrap();
            assert_eq!(is_accessible_from(Some(&affinity), "node-a", &labels), expected, "{terms}");
        }
        assert!(is_accessible_from(None, "node-a", &labels));
        assert!(is_accessible_from(Some(&NodeAffinity::default()), "node-a", &labels));
    }

    /// kubernetes.md 1.5 "Dynamic provisioning": allowedTopologies matches node labels.
    #[test]
    fn allowed_topologies_match_labels() {
        let labels = segments(&[("zone", "a"), ("rack", "1")]);
        let term = |pairs: serde_json::Value| json!({"matchLabelExpressions": pairs});
        for (terms, expected) in [
            (json!([]), true),
            (json!([term(json!([]))]), false),
            (json!([term(json!([{"key": "zone", "values": []}]))]), false),
            (json!([term(json!([{"key": "zone", "values": ["b", "a"]}]))]), true),
            (json!([term(json!([{"key": "zone", "values": ["b"]}]))]), false),
            (
                json!([term(json!([{"key": "zone", "values": ["a"]}, {"key": "rack", "values": ["2"]}]))]),
                false,
            ),
            (
                json!([
                    term(json!([{"key": "zone", "values": ["b"]}])),
                    term(json!([{"key": "rack", "values": ["1"]}])),
                ]),
                true,
            ),
        ] {
            let allowed: Vec<TopologySelectorTerm> = serde_json::from_value(terms.clone()).unwrap();
            assert_eq!(topologies_allow(&allowed, &labels), expected, "{terms}");
        }
    }

    proptest! {
        /// The affinity written for a topology matches exactly the nodes with its labels.
        #[test]
        fn volume_is_accessible_from_its_topology(
            place in prop::collection::btree_map("[a-c]", "[x-z]", 1..3),
            labels in prop::collection::btree_map("[a-c]", "[x-z]", 0..4),
        ) {
            let affinity: NodeAffinity =
                serde_json::from_value(node_affinity(std::slice::from_ref(&place)).unwrap()).unwrap();
            let expected = place.iter().all(|(key, value)| labels.get(key) == Some(value));
            prop_assert_eq!(is_accessible_from(Some(&affinity), "n", &labels), expected);
            prop_assert!(is_accessible_from(Some(&affinity), "n", &place));
        }
    }
}
