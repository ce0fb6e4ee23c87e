//! Authentication and authorization.
//!
//! ```text
//! certificate or token → authenticate → User → authorize (the request) → restrict_node (the written object)
//! ```
//!
//! There are no stored roles: permissions are a built-in table ([`roles`]). A node agent can read what the pods bound
//! to its node need, and no other Secrets ([`node`]). The rules are pure and read other objects through [`Objects`].

mod authenticate;
mod authorize;
mod certificate;
mod impersonate;
mod node;
mod node_audience;
mod node_restriction;
mod pki;
mod pod_references;
mod reviews;
mod roles;
mod token;
mod token_request;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

pub use authenticate::{Access, Authenticated};
pub use authorize::{Attributes, authorize};
pub use node_restriction::restrict_node;
pub use pki::{Identity, Pki, PkiError, write_private};
pub use pod_references::PodReferences;
pub use reviews::{
    local_subject_access_review, self_subject_access_review, self_subject_review, self_subject_rules_review,
    subject_access_review,
};
pub use token::{ISSUER, KeyError, Signer, TokenError};

/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of anonymous users.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group with all permissions.
pub const MASTERS: &str = "system:masters";
/// The group of node agents. Each agent is a user `system:node:NAME`.
pub const NODES: &str = "system:nodes";
/// The group of CSI sidecars.
pub const SIDECARS: &str = "wharf:sidecar";

/// The user of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// The user name, for example `system:serviceaccount:kube-system:default`.
    pub name: String,
    /// The UID of the ServiceAccount; empty for other users.
    pub uid: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// Further attributes, for example the pod that a token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// An authenticated user.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.into());
        }
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// The administrator, who has all permissions.
    pub fn admin() -> Self {
        Self::new("wharf:admin", &[MASTERS])
    }

    /// A CSI sidecar.
    pub fn sidecar() -> Self {
        Self::new(SIDECARS, &[SIDECARS])
    }

    /// The agent of a node.
    pub fn node(name: &str) -> Self {
        Self::new(format!("{NODE_PREFIX}{name}"), &[NODES])
    }

    /// A service account.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")];
        Self { uid: uid.into(), ..Self::new(format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"), &groups) }
    }

    /// The anonymous user.
    pub fn anonymous() -> Self {
        Self { name: "system:anonymous".into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// Whether the user is in the group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|of| of == group)
    }

    /// The node whose agent this user is. The name alone is not enough: the user must be in the group too.
    pub fn node_name(&self) -> Option<&str> {
        self.name.strip_prefix(NODE_PREFIX).filter(|name| !name.is_empty() && self.is_in(NODES))
    }

    /// As `authentication.k8s.io/v1` `UserInfo`.
    pub fn to_json(&self) -> Value {
        let mut info = Map::new();
        if !self.name.is_empty() {
            info.insert("username".into(), self.name.as_str().into());
        }
        if !self.uid.is_empty() {
            info.insert("uid".into(), self.uid.as_str().into());
        }
        if !self.groups.is_empty() {
            info.insert("groups".into(), self.groups.as_slice().into());
        }
        if !self.extra.is_empty() {
            let extra = self.extra.iter().map(|(key, values)| (key.clone(), values.as_slice().into()));
            info.insert("extra".into(), Value::Object(extra.collect()));
        }
        info.into()
    }
}

const NODE_PREFIX: &str = "system:node:";
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// The current objects that access rules depend on.
pub trait Objects: Send + Sync {
    /// One object. The namespace is empty for cluster-scoped kinds.
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value>;
    /// The objects referenced by the pods that are bound to the node.
    fn pod_references_on(&self, node: &str) -> Vec<Arc<PodReferences>>;
}

/// The string at a JSON pointer; empty if there is none.
fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The items of the array at a JSON pointer.
fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Objects by `group/plural/namespace/name`.
    #[derive(Debug, Default)]
    pub(crate) struct FakeObjects(pub(crate) BTreeMap<String, Value>);

    impl FakeObjects {
        pub(crate) fn with(mut self, at: &str, object: Value) -> Self {
            self.0.insert(at.into(), object);
            self
        }
    }

    impl Objects for FakeObjects {
        fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
            self.0.get(&format!("{group}/{plural}/{namespace}/{name}")).cloned()
        }

        fn pod_references_on(&self, node: &str) -> Vec<Arc<PodReferences>> {
            let pods = self.0.iter().filter(|(key, _)| key.starts_with("/pods/")).map(|(_, pod)| pod);
            let on = pods.filter(|pod| text(pod, "/spec/nodeName") == node);
            on.map(|pod| Arc::new(PodReferences::from_pod(pod))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn node_user_needs_both_name_and_group() {
        let cases = [
            (User::node("n1"), Some("n1")),
            (User::new("system:node:n1", &[]), None),
            (User::new("system:node:", &[NODES]), None),
            (User::new("n1", &[NODES]), None),
        ];
        for (user, node) in cases {
            assert_eq!(user.node_name(), node, "{user:?}");
        }
    }

    #[test]
    fn user_info_has_the_kubernetes_format() {
        let mut user = User::service_account("ns", "app", "u1");
        user.extra.insert("authentication.kubernetes.io/pod-name".into(), vec!["p".into()]);
        let groups = ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"];
        assert_eq!(
            user.to_json(),
            json!({
                "username": "system:serviceaccount:ns:app", "uid": "u1", "groups": groups,
                "extra": {"authentication.kubernetes.io/pod-name": ["p"]},
            })
        );
        assert_eq!(User::default().to_json(), json!({}));
    }
}
