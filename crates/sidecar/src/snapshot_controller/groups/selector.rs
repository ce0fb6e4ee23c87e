//! Label selectors as the API server takes them.

use wharf_model::selector::{LabelSelector, Operator};

/// The selector in the form of a query; what it cannot say becomes one that selects nothing.
pub(crate) fn text(selector: &LabelSelector) -> String {
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

    /// sidecars.md 1.4 "Group": a selector over the claims' labels, the whole of it.
    #[test]
    fn selectors() {
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
            assert_eq!(text(&serde_json::from_value(selector).unwrap()), expected);
        }
    }
}
