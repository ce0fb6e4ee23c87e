//! Authorization: the rules of the user's roles, and for a node agent what its pods need. Denials have upstream's
//! wording.

use super::{Objects, User, node, roles};
use crate::status::{Resource, StatusError};

/// The attributes of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for a path the method in
    /// lower case.
    pub verb: &'a str,
    /// Empty for the core group.
    pub group: &'a str,
    /// For example `v1`.
    pub version: &'a str,
    /// The plural resource name; empty for a non-resource path.
    pub resource: &'a str,
    /// For example `status`.
    pub subresource: &'a str,
    /// Empty for all namespaces and for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Empty for a collection. For a list or watch whose field selector requires one `metadata.name`, that name.
    pub name: &'a str,
    /// The field selector of a list, watch or deletecollection, as sent.
    pub fields: &'a str,
    /// The path of a non-resource request.
    pub path: &'a str,
}

impl Attributes<'_> {
    pub(super) fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }

    /// The `Forbidden` error for a reason that [`authorize`] returned.
    pub fn forbidden(&self, reason: &str) -> StatusError {
        if self.is_resource() {
            StatusError::forbidden(Resource { group: self.group, plural: self.resource }, self.name, reason)
        } else {
            StatusError::new(403, "Forbidden", format!("forbidden: {reason}"))
        }
    }

    fn denial(&self, user: &User) -> String {
        let Self { verb, group, resource, subresource, namespace, path, .. } = self;
        let name = &user.name;
        if !self.is_resource() {
            return format!("User {name:?} cannot {verb} path {path:?}");
        }
        let slash = if subresource.is_empty() { "" } else { "/" };
        let message = format!(
            "User {name:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API group {group:?}"
        );
        if namespace.is_empty() {
            format!("{message} at the cluster scope")
        } else {
            format!("{message} in the namespace {namespace:?}")
        }
    }
}

/// Allows the request, or returns the denial in upstream's wording.
pub fn authorize(user: &User, attrs: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    check(user, attrs, objects).map_err(|reason| {
        let denial = attrs.denial(user);
        // Escaped as upstream does, for clients that show it in a browser.
        let denial = denial.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        if reason.is_empty() { denial } else { format!("{denial}: {reason}") }
    })
}

/// As [`authorize`], but returns only the reason, which may be empty.
pub(super) fn check(user: &User, attrs: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    if roles::rules_for(user).any(|rule| rule.allows(attrs)) {
        return Ok(());
    }
    match user.node_name() {
        Some(name) if attrs.is_resource() => node::authorize(name, attrs, objects),
        _ => Err(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::testing::FakeObjects;

    #[test]
    fn denial_has_upstream_wording() {
        let user = User::new("jane", &[]);
        let pods = Attributes { verb: "list", version: "v1", resource: "pods", ..Attributes::default() };
        let snapshots = Attributes {
            verb: "update",
            group: "snapshot.storage.k8s.io",
            version: "v1",
            resource: "volumesnapshots",
            subresource: "status",
            namespace: "ns",
            name: "s",
            ..Attributes::default()
        };
        let cases = [
            (
                Attributes { namespace: "default", ..pods },
                r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#,
            ),
            (
                pods,
                r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" at the cluster scope"#,
            ),
            (
                snapshots,
                r#"volumesnapshots.snapshot.storage.k8s.io "s" is forbidden: User "jane" cannot update resource "volumesnapshots/status" in API group "snapshot.storage.k8s.io" in the namespace "ns""#,
            ),
            (
                Attributes { verb: "get", path: "/logs/<a>", ..Attributes::default() },
                r#"forbidden: User "jane" cannot get path "/logs/&lt;a&gt;""#,
            ),
        ];
        for (attrs, expected) in cases {
            let reason = authorize(&user, &attrs, &FakeObjects::default()).unwrap_err();
            let status_error = attrs.forbidden(&reason);
            assert_eq!(status_error.message, expected);
            assert_eq!((status_error.code, status_error.reason), (403, "Forbidden"));
            assert_eq!(authorize(&User::admin(), &attrs, &FakeObjects::default()), Ok(()));
        }
    }

    #[test]
    fn denial_of_node_names_the_missing_relationship() {
        let attrs = Attributes {
            verb: "get",
            resource: "secrets",
            namespace: "ns",
            name: "s",
            ..Attributes::default()
        };
        let reason = authorize(&User::node("n1"), &attrs, &FakeObjects::default()).unwrap_err();
        assert_eq!(
            reason,
            r#"User "system:node:n1" cannot get resource "secrets" in API group "" in the namespace "ns": no relationship found between node 'n1' and this object"#
        );
    }
}
