//! ServiceAccount: the identity of a pod.

use serde_json::{Value, json};

use super::{AGE, BASE, Column, Kind, NAME, Subresource, age, json, meta, names};

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
    on_create: |account, _| drop_secret_fields(account),
    on_update: |account, _, _| drop_secret_fields(account),
    validate: |account| meta::validate(account, true, names::subdomain),
    validate_update: |account, old| {
        let mut causes = meta::validate_update(account, old);
        causes.extend(meta::validate(account, true, names::subdomain));
        causes
    },
    warnings: |account, old| {
        const ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
        let is_new = old.is_none_or(|old| json::annotation(old, ENFORCE_MOUNTABLE_SECRETS).is_none());
        if !is_new || json::annotation(account, ENFORCE_MOUNTABLE_SECRETS).is_none() {
            return Vec::new();
        }
        let warning = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
        vec![format!("metadata.annotations[{ENFORCE_MOUNTABLE_SECRETS}]: {warning}")]
    },
    columns: &[NAME, Column::text("Secrets", "The number of secrets that the account references."), AGE],
    row: |account, now| {
        vec![
            json::text(account, "/metadata/name").into(),
            json::list(account, "/secrets").len().into(),
            age(account, now).into(),
        ]
    },
    ..BASE
};

/// Drops all fields of secret references apart from the name.
fn drop_secret_fields(account: &mut Value) {
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
    use crate::kinds::testing::{invalid, invalid_update};

    #[test]
    fn create_is_validated() {
        let good = json!({"metadata": {"name": "a", "namespace": "ns"}});
        assert!(invalid(&SERVICE_ACCOUNT, &good, &json!({})).is_empty());
        assert!(
            invalid_update(&SERVICE_ACCOUNT, &good, &json!({"metadata": {"labels": {"a": "b"}}})).is_empty()
        );
        assert_eq!(
            invalid(&SERVICE_ACCOUNT, &good, &json!({"metadata": {"name": null}})),
            ["metadata.name: Required value: name or generateName is required"]
        );
    }

    #[test]
    fn secret_references_keep_only_name() {
        let mut account = json!({"metadata": {"name": "a"}, "secrets": [{"name": "s", "kind": "Secret"}]});
        SERVICE_ACCOUNT.prepare_create(&mut account, Time(0));
        assert_eq!(account["secrets"], json!([{"name": "s"}]));
        assert_eq!(Value::from((SERVICE_ACCOUNT.row)(&account, Time(0))), json!(["a", 1, "<unknown>"]));
    }
}
