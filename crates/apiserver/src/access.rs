//! Who asks, and whether they may.
//!
//! ```text
//! certificate or token → authenticate → User → authorize (may they ask this) → restrict_node (may they write that)
//! ```
//!
//! There are no stored roles: who may do what is a table ([`roles`]), the same for everybody who reads it. A node's
//! agent sees what the pods that are bound to it need, and no other secrets ([`node`]). Rules are pure: what they
//! must know of other objects they ask of [`Objects`].

mod authenticate;
mod authorize;
mod certificate;
mod impersonate;
mod named;
mod node;
mod node_restriction;
mod pki;
mod reviews;
mod roles;
mod token;
mod token_request;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

pub use authenticate::{Access, Authenticated};
pub use authorize::{Attributes, authorize};
pub use named::Named;
pub use node_restriction::restrict_node;
pub use pki::{Identity, Pki, PkiError, write_private};
pub use reviews::{
    local_subject_access_review, self_subject_access_review, self_subject_review, self_subject_rules_review,
    subject_access_review,
};
pub use token::{ISSUER, KeyError, Signer, TokenError};

/// In it is everybody of whom it is known who they are.
pub const AUTHENTICATED: &str = "system:authenticated";
/// In it is who shows nothing.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// May do all.
pub const MASTERS: &str = "system:masters";
/// Agents of nodes; each is a user `system:node:NAME`.
pub const NODES: &str = "system:nodes";
/// Sidecars: what stands between drivers and the API.
pub const SIDECARS: &str = "wharf:sidecar";

/// Who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// As `system:serviceaccount:kube-system:default`.
    pub name: String,
    /// Of a service account, the object's; else empty.
    pub uid: String,
    /// What they are in.
    pub groups: Vec<String>,
    /// What else is known, as the pod that a token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Somebody who showed who they are.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.into());
        }
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// Who may do all.
    pub fn admin() -> Self {
        Self::new("wharf:admin", &[MASTERS])
    }

    /// A sidecar.
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

    /// Who shows nothing.
    pub fn anonymous() -> Self {
        Self { name: "system:anonymous".into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// Whether they are in the group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|of| of == group)
    }

    /// Which node's agent this is. The name alone is not believed: the group has to say so too.
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

/// What rules about access must know of objects, as they are now.
pub trait Objects: Send + Sync {
    /// One object; an empty namespace for kinds without.
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value>;
    /// What the pods that are bound to the node name.
    fn named_on(&self, node: &str) -> Vec<Arc<Named>>;
}

/// Text at a place in an object; empty if there is none.
fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The members of a list in an object.
fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Objects by `group/plural/namespace/name`.
    #[derive(Debug, Default)]
    pub(crate) struct Fixed(pub(crate) BTreeMap<String, Value>);

    impl Fixed {
        pub(crate) fn with(mut self, at: &str, object: Value) -> Self {
            self.0.insert(at.into(), object);
            self
        }
    }

    impl Objects for Fixed {
        fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
            self.0.get(&format!("{group}/{plural}/{namespace}/{name}")).cloned()
        }

        fn named_on(&self, node: &str) -> Vec<Arc<Named>> {
            let pods = self.0.iter().filter(|(key, _)| key.starts_with("/pods/")).map(|(_, pod)| pod);
            let on = pods.filter(|pod| text(pod, "/spec/nodeName") == node);
            on.map(|pod| Arc::new(Named::of(pod))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_one_by_name_and_group() {
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
    fn users_as_kubernetes_writes_them() {
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
