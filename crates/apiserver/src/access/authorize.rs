//! May they? The roles' rules, and for a node's agent what its pods need. Who is refused is told in upstream's words.

use super::{Objects, User, node, roles};
use crate::status::{Refusal, Resource};

/// What is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for a path the method in
    /// lower case.
    pub verb: &'a str,
    /// Empty for the core group.
    pub group: &'a str,
    /// As `v1`.
    pub version: &'a str,
    /// Plural; empty if it is about a path.
    pub resource: &'a str,
    /// As `status`.
    pub subresource: &'a str,
    /// Empty for all, and for kinds without.
    pub namespace: &'a str,
    /// Empty for a collection; of a list or watch whose field selector asks for one `metadata.name`, that.
    pub name: &'a str,
    /// The field selector of a list, watch or deletecollection, as it was asked for.
    pub fields: &'a str,
    /// What is asked for if it is no resource.
    pub path: &'a str,
}

impl Attributes<'_> {
    pub(super) fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }

    /// The refusal for somebody who may not, for a reason as [`authorize`] gives it.
    pub fn forbidden(&self, why: &str) -> Refusal {
        if self.is_resource() {
            Refusal::forbidden(Resource { group: self.group, plural: self.resource }, self.name, why)
        } else {
            Refusal::new(403, "Forbidden", format!("forbidden: {why}"))
        }
    }

    fn words(&self, user: &User) -> String {
        let Self { verb, group, resource, subresource, namespace, path, .. } = self;
        let name = &user.name;
        if !self.is_resource() {
            return format!("User {name:?} cannot {verb} path {path:?}");
        }
        let slash = if subresource.is_empty() { "" } else { "/" };
        let what = format!(
            "User {name:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API group {group:?}"
        );
        if namespace.is_empty() {
            format!("{what} at the cluster scope")
        } else {
            format!("{what} in the namespace {namespace:?}")
        }
    }
}

/// Lets pass, or says in upstream's words why not.
pub fn authorize(user: &User, asked: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    judge(user, asked, objects).map_err(|reason| {
        let words = asked.words(user);
        // As upstream does, for those who show it in a browser.
        let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        if reason.is_empty() { words } else { format!("{words}: {reason}") }
    })
}

/// The same with the reason alone, which may be empty.
pub(super) fn judge(user: &User, asked: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    if roles::of(user).any(|rule| rule.allows(asked)) {
        return Ok(());
    }
    match user.node_name() {
        Some(name) if asked.is_resource() => node::authorize(name, asked, objects),
        _ => Err(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::testing::Fixed;

    #[test]
    fn the_words_of_a_refusal() {
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
        for (asked, expected) in cases {
            let why = authorize(&user, &asked, &Fixed::default()).unwrap_err();
            let refusal = asked.forbidden(&why);
            assert_eq!(refusal.message, expected);
            assert_eq!((refusal.code, refusal.reason), (403, "Forbidden"));
            assert_eq!(authorize(&User::admin(), &asked, &Fixed::default()), Ok(()));
        }
    }

    #[test]
    fn a_nodes_refusal_says_the_relation_that_is_missing() {
        let asked = Attributes {
            verb: "get",
            resource: "secrets",
            namespace: "ns",
            name: "s",
            ..Attributes::default()
        };
        let why = authorize(&User::node("n1"), &asked, &Fixed::default()).unwrap_err();
        assert_eq!(
            why,
            r#"User "system:node:n1" cannot get resource "secrets" in API group "" in the namespace "ns": no relationship found between node 'n1' and this object"#
        );
    }
}
