//! Namespace: where names are unique.

use super::{AGE, BASE, Column, Kind, NAME, Subresource, age, json};

/// Where names are unique.
pub(super) static NAMESPACE: Kind = Kind {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    subresources: &[
        Subresource { name: "finalize", group: "", version: "v1", kind: "Namespace", verbs: &["update"] },
        Subresource::status("", "Namespace"),
    ],
    columns: &[NAME, Column::text("Status", "Active, or Terminating while it is being emptied."), AGE],
    row: |namespace, now| {
        vec![
            json::text(namespace, "/metadata/name").into(),
            json::text(namespace, "/status/phase").into(),
            age(namespace, now).into(),
        ]
    },
    ..BASE
};
