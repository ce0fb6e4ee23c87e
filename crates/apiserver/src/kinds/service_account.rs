//! ServiceAccount: who a pod is.

use serde_json::{Value, json};

use super::{AGE, BASE, Column, Kind, NAME, Subresource, age, json, meta, names};

/// Who a pod is.
pub(super) static SERVICE_ACCOUNT: Kind = Kind {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    short_names: &["sa"],
    namespaced: true,
    subresources: &[Subresource {
        name: "token",
        group: "authentication.k8s.io",
        version: "v1",
        kind: "TokenRequest",
        verbs: &["create"],
    }],
    on_create: |account, _| names_only(account),
    on_update: |account, _, _| names_only(account),
    validate: |account| meta::validate(account, true, names::subdomain),
    validate_update: |account, old| {
        let mut causes = meta::validate_update(account, old);
        causes.extend(meta::validate(account, true, names::subdomain));
        causes
    },
    warnings: |account, old| {
        const ENFORCED: &str = "kubernetes.io/enforce-mountable-secrets";
        let is_new = old.is_none_or(|old| json::annotation(old, ENFORCED).is_none());
        if !is_new || json::annotation(account, ENFORCED).is_none() {
            return Vec::new();
        }
        let words = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
        vec![format!("metadata.annotations[{ENFORCED}]: {words}")]
    },
    columns: &[NAME, Column::text("Secrets", "How many secrets it names."), AGE],
    row: |account, now| {
        vec![
            json::text(account, "/metadata/name").into(),
            json::list(account, "/secrets").len().into(),
            age(account, now).into(),
        ]
    },
    ..BASE
};

/// Secrets are referred to by name and nothing else.
fn names_only(account: &mut Value) {
    if let Some(Value::Array(secrets)) = account.get_mut("secrets") {
        for secret in secrets {
            let name = json::text(secret, "/name");
            *secret = if name.is_empty() { json!({}) } else { json!({"name": name}) };
        }
    }
}

#[cfg(test)]
mod tests {
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_change};

    #[test]
    fn rules() {
        let good = json!({"metadata": {"name": "a", "namespace": "ns"}});
        assert!(invalid(&SERVICE_ACCOUNT, &good, &json!({})).is_empty());
        assert!(
            invalid_change(&SERVICE_ACCOUNT, &good, &json!({"metadata": {"labels": {"a": "b"}}})).is_empty()
        );
        assert_eq!(
            invalid(&SERVICE_ACCOUNT, &good, &json!({"metadata": {"name": null}})),
            ["metadata.name: Required value: name or generateName is required"]
        );
    }

    #[test]
    fn secrets_are_names() {
        let mut account = json!({"metadata": {"name": "a"}, "secrets": [{"name": "s", "kind": "Secret"}]});
        SERVICE_ACCOUNT.prepare_create(&mut account, Time(0));
        assert_eq!(account["secrets"], json!([{"name": "s"}]));
        assert_eq!(Value::from((SERVICE_ACCOUNT.row)(&account, Time(0))), json!(["a", 1, "<unknown>"]));
    }
}
