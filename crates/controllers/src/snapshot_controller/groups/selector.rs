//! Label selectors in the API server's query format.

use wharf_model::selector::{LabelSelector, Operator};

/// The selector as a query. Operators that the format lacks become a requirement that selects nothing.
pub(crate) fn to_query(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let requirements = selector.match_expressions.iter().map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.join(","));
        match requirement.operator {
            Operator::In => format!("{key} in ({values})"),
            Operator::NotIn => format!("{key} notin ({values})"),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
            Operator::Gt | Operator::Lt | Operator::Unknown => format!("{key},!{key}"),
        }
    });
    labels.chain(requirements).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// sidecars.md 1.4 "Group": all parts of a selector over the claims' labels.
    #[test]
    fn selectors_are_converted_to_queries() {
        for (selector, expected) in [
            (json!({}), ""),
            (json!({"matchLabels": {"app": "db", "tier": "a"}}), "app=db,tier=a"),
            (
                json!({"matchLabels": {"app": "db"}, "matchExpressions": [
                    {"key": "a", "operator": "In", "values": ["1", "2"]},
                    {"key": "b", "operator": "NotIn", "values": ["3"]},
                    {"key": "c", "operator": "Exists"},
                    {"key": "d", "operator": "DoesNotExist"},
                ]}),
                "app=db,a in (1,2),b notin (3),c,!d",
            ),
            (json!({"matchExpressions": [{"key": "a", "operator": "New"}]}), "a,!a"),
        ] {
            assert_eq!(to_query(&serde_json::from_value(selector).unwrap()), expected);
        }
    }
}
