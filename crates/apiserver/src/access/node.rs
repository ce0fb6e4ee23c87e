//! Authorization of node agents: their own Node, the pods bound to it, and what those pods reference.
//!
//! A node may read a Secret along one of these paths. Each step is read from the current objects:
//!
//! ```text
//! node → pod (spec.nodeName) → secret, configmap, service account
//! node → pod → claim → volume (claimRef) → secret of its node calls
//! node → attachment (spec.nodeName)
//! ```

use serde_json::Value;

use super::pod_references::PodReferences;
use super::{Attributes, Objects, text};

pub(super) const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Allows the request or returns the reason for the denial. Only called for requests that no role allows.
pub(super) fn authorize(node: &str, attrs: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    match (attrs.group, attrs.resource) {
        ("", "secrets") => read(node, attrs, || has_secret(node, attrs, objects)),
        ("", "configmaps") => read(node, attrs, || has_config_map(node, attrs, objects)),
        ("", "persistentvolumeclaims") => claim(node, attrs, objects),
        ("", "persistentvolumes") => get(node, attrs, || has_volume(node, attrs, objects)),
        ("storage.k8s.io", "volumeattachments") => get(node, attrs, || has_attachment(node, attrs, objects)),
        ("", "serviceaccounts") => token(node, attrs, objects),
        ("coordination.k8s.io", "leases") => lease(node, attrs),
        ("storage.k8s.io", "csinodes") => csinode(node, attrs),
        ("", "nodes") => own_node(node, attrs),
        ("", "pods") => pod(node, attrs, objects),
        _ => Err(String::new()),
    }
}

fn deny(reason: impl Into<String>) -> Result<(), String> {
    Err(reason.into())
}

fn require_relationship(node: &str, exists: bool) -> Result<(), String> {
    if exists { Ok(()) } else { deny(format!("no relationship found between node '{node}' and this object")) }
}

/// Namespaced objects, by name only: a list or watch has to select one name.
fn read(node: &str, attrs: &Attributes<'_>, has: impl FnOnce() -> bool) -> Result<(), String> {
    match attrs.verb {
        "get" | "list" | "watch" => {}
        _ => return deny("can only read resources of this type"),
    }
    if !attrs.subresource.is_empty() {
        return deny("cannot read subresource");
    }
    if attrs.namespace.is_empty() {
        return deny("can only read namespaced object of this type");
    }
    if attrs.name.is_empty() {
        return deny("No Object name found");
    }
    require_relationship(node, has())
}

fn get(node: &str, attrs: &Attributes<'_>, has: impl FnOnce() -> bool) -> Result<(), String> {
    if attrs.verb != "get" {
        return deny("can only get individual resources of this type");
    }
    if !attrs.subresource.is_empty() {
        return deny("cannot get subresource");
    }
    if attrs.name.is_empty() {
        return deny("No Object name found");
    }
    require_relationship(node, has())
}

fn claim(node: &str, attrs: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    let used = || uses_claim(node, attrs.namespace, attrs.name, objects);
    match (attrs.subresource, attrs.verb) {
        ("status", "get" | "update" | "patch") => require_relationship(node, used()),
        ("status", _) => deny("can only get/update/patch this type"),
        _ => get(node, attrs, used),
    }
}

fn token(node: &str, attrs: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    match (attrs.verb, attrs.subresource) {
        ("create", "token") if !attrs.name.is_empty() => {
            let runs =
                |pod: &PodReferences| &*pod.namespace == attrs.namespace && &*pod.account == attrs.name;
            require_relationship(node, objects.pod_references_on(node).iter().any(|pod| runs(pod)))
        }
        _ => deny("can only create tokens for individual service accounts"),
    }
}

fn lease(node: &str, attrs: &Attributes<'_>) -> Result<(), String> {
    match attrs.verb {
        "get" | "create" | "update" | "patch" | "delete" => {}
        _ => return deny("can only get, create, update, patch, or delete a node lease"),
    }
    if attrs.namespace != LEASE_NAMESPACE {
        return deny(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
    }
    // The name of a created object is in its body, which `restrict_node` checks.
    if attrs.verb != "create" && attrs.name != node {
        return deny("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn csinode(node: &str, attrs: &Attributes<'_>) -> Result<(), String> {
    if !attrs.subresource.is_empty() {
        return deny("cannot authorize CSINode subresources");
    }
    match attrs.verb {
        "get" | "create" | "update" | "patch" | "delete" => {}
        _ => return deny("can only get, create, update, patch, or delete a CSINode"),
    }
    if attrs.verb != "create" && attrs.name != node {
        return deny("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

fn own_node(node: &str, attrs: &Attributes<'_>) -> Result<(), String> {
    match (attrs.subresource, attrs.verb) {
        ("", "create") => Ok(()),
        ("", "get" | "list" | "watch" | "update" | "patch") | ("status", "get" | "update" | "patch")
            if attrs.name == node =>
        {
            Ok(())
        }
        ("", "get" | "list" | "watch") if attrs.name.is_empty() => {
            deny(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", "get" | "list" | "watch") => {
            deny(format!("node '{node}' cannot read '{}', only its own Node object", attrs.name))
        }
        _ => deny(""),
    }
}

fn pod(node: &str, attrs: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    match (attrs.subresource, attrs.verb) {
        ("" | "status", "get") => {
            let bound = objects.get("", "pods", attrs.namespace, attrs.name);
            require_relationship(node, bound.is_some_and(|pod| text(&pod, "/spec/nodeName") == node))
        }
        ("", "list" | "watch") if selects_node(attrs.fields, node) => Ok(()),
        ("", "list" | "watch") => deny("can only list/watch pods with spec.nodeName field selector"),
        // `restrict_node` checks the pods themselves.
        ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
        _ => deny(""),
    }
}

/// Whether the selector only matches pods of this node.
fn selects_node(fields: &str, node: &str) -> bool {
    fields.split(',').any(|term| {
        let Some((field, value)) = term.split_once('=') else { return false };
        field == "spec.nodeName" && value.strip_prefix('=').unwrap_or(value) == node
    })
}

/// Whether the node's pods, or their volumes, reference the Secret.
fn has_secret(node: &str, attrs: &Attributes<'_>, objects: &dyn Objects) -> bool {
    let pods = objects.pod_references_on(node);
    let named_by_pod = |pod: &PodReferences| {
        &*pod.namespace == attrs.namespace && PodReferences::contains(&pod.secrets, attrs.name)
    };
    // Last, because it reads the volumes.
    pods.iter().any(|pod| named_by_pod(pod))
        || pods.iter().flat_map(|pod| pod.claims.iter().map(|claim| (&*pod.namespace, claim))).any(
            |(namespace, claim)| {
                let volume = volume_of(namespace, claim, objects);
                volume.is_some_and(|volume| volume_names_secret(&volume, attrs.namespace, attrs.name))
            },
        )
}

/// Whether the volume references the Secret for node calls. Secrets of controller calls are not for the node.
fn volume_names_secret(volume: &Value, namespace: &str, name: &str) -> bool {
    ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"].iter().any(|key| {
        let reference = &volume["spec"]["csi"][key];
        text(reference, "/namespace") == namespace && text(reference, "/name") == name
    })
}

fn has_config_map(node: &str, attrs: &Attributes<'_>, objects: &dyn Objects) -> bool {
    let has = |pod: &PodReferences| {
        &*pod.namespace == attrs.namespace && PodReferences::contains(&pod.config_maps, attrs.name)
    };
    objects.pod_references_on(node).iter().any(|pod| has(pod))
}

fn uses_claim(node: &str, namespace: &str, name: &str, objects: &dyn Objects) -> bool {
    let has =
        |pod: &PodReferences| &*pod.namespace == namespace && PodReferences::contains(&pod.claims, name);
    !name.is_empty() && objects.pod_references_on(node).iter().any(|pod| has(pod))
}

/// The volume of a claim, if both reference each other.
fn volume_of(namespace: &str, claim: &str, objects: &dyn Objects) -> Option<Value> {
    let claimed = objects.get("", "persistentvolumeclaims", namespace, claim)?;
    let volume = objects.get("", "persistentvolumes", "", text(&claimed, "/spec/volumeName"))?;
    let reference = &volume["spec"]["claimRef"];
    let same = text(reference, "/namespace") == namespace && text(reference, "/name") == claim;
    same.then_some(volume)
}

fn has_volume(node: &str, attrs: &Attributes<'_>, objects: &dyn Objects) -> bool {
    let Some(volume) = objects.get("", "persistentvolumes", "", attrs.name) else { return false };
    let reference = &volume["spec"]["claimRef"];
    uses_claim(node, text(reference, "/namespace"), text(reference, "/name"), objects)
}

fn has_attachment(node: &str, attrs: &Attributes<'_>, objects: &dyn Objects) -> bool {
    let attachment = objects.get("storage.k8s.io", "volumeattachments", "", attrs.name);
    attachment.is_some_and(|attachment| text(&attachment, "/spec/nodeName") == node)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::access::testing::FakeObjects;

    /// Pod `ns/p` on n1 with every kind of reference; pod `other/q` on n2.
    fn objects_fixture() -> FakeObjects {
        let volumes = json!([
            {"name": "a", "secret": {"secretName": "mounted"}},
            {"name": "b", "projected": {"sources": [{"secret": {"name": "projected"}}, {"configMap": {"name": "pcm"}}]}},
            {"name": "c", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "inline"}}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "claim"}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "f", "configMap": {"name": "cm"}},
        ]);
        let container = json!({
            "name": "main",
            "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}],
            "envFrom": [{"secretRef": {"name": "envfrom"}}, {"configMapRef": {"name": "ecm"}}],
        });
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {
                "nodeName": "n1", "serviceAccountName": "app", "volumes": volumes, "containers": [container],
                "imagePullSecrets": [{"name": "pull"}],
            },
        });
        let csi = json!({
            "driver": "d", "volumeHandle": "h",
            "nodePublishSecretRef": {"namespace": "vault", "name": "publish"},
            "nodeStageSecretRef": {"namespace": "vault", "name": "stage"},
            "nodeExpandSecretRef": {"namespace": "vault", "name": "expand"},
            "controllerPublishSecretRef": {"namespace": "vault", "name": "controller"},
        });
        let volume =
            |claim: &str| json!({"spec": {"claimRef": {"namespace": "ns", "name": claim}, "csi": csi}});
        FakeObjects::default()
            .with("/pods/ns/p", pod)
            .with(
                "/pods/other/q",
                json!({
                    "metadata": {"namespace": "other", "name": "q"},
                    "spec": {"nodeName": "n2", "volumes": [{"name": "v", "secret": {"secretName": "theirs"}}]},
                }),
            )
            .with("/persistentvolumeclaims/ns/claim", json!({"spec": {"volumeName": "pv"}}))
            .with("/persistentvolumes//pv", volume("claim"))
            .with("/persistentvolumes//pv-unused", volume("unused"))
            .with("storage.k8s.io/volumeattachments//va1", json!({"spec": {"nodeName": "n1"}}))
            .with("storage.k8s.io/volumeattachments//va2", json!({"spec": {"nodeName": "n2"}}))
    }

    #[test]
    fn node_may_only_read_what_its_pods_reference() {
        // (group/resource, namespace, name, n1 may get it)
        let cases = [
            ("/secrets", "ns", "mounted", true),
            ("/secrets", "ns", "projected", true),
            ("/secrets", "ns", "inline", true),
            ("/secrets", "ns", "env", true),
            ("/secrets", "ns", "envfrom", true),
            ("/secrets", "ns", "pull", true),
            ("/secrets", "vault", "publish", true),
            ("/secrets", "vault", "stage", true),
            ("/secrets", "vault", "expand", true),
            ("/secrets", "vault", "controller", false),
            ("/secrets", "ns", "publish", false),
            ("/secrets", "other", "mounted", false),
            ("/secrets", "other", "theirs", false),
            ("/secrets", "ns", "unnamed", false),
            ("/secrets", "ns", "cm", false),
            ("/configmaps", "ns", "cm", true),
            ("/configmaps", "ns", "pcm", true),
            ("/configmaps", "ns", "ecm", true),
            ("/configmaps", "ns", "mounted", false),
            ("/persistentvolumeclaims", "ns", "claim", true),
            ("/persistentvolumeclaims", "ns", "p-e", true),
            ("/persistentvolumeclaims", "ns", "unused", false),
            ("/persistentvolumes", "", "pv", true),
            ("/persistentvolumes", "", "pv-unused", false),
            ("/persistentvolumes", "", "gone", false),
            ("storage.k8s.io/volumeattachments", "", "va1", true),
            ("storage.k8s.io/volumeattachments", "", "va2", false),
            ("/pods", "ns", "p", true),
            ("/pods", "other", "q", false),
            ("/nodes", "", "n1", true),
            ("/nodes", "", "n2", false),
            ("storage.k8s.io/csinodes", "", "n1", true),
            ("storage.k8s.io/csinodes", "", "n2", false),
            ("coordination.k8s.io/leases", LEASE_NAMESPACE, "n1", true),
            ("coordination.k8s.io/leases", LEASE_NAMESPACE, "n2", false),
            ("coordination.k8s.io/leases", "default", "n1", false),
            ("storage.k8s.io/storageclasses", "", "fast", false),
            ("/namespaces", "", "ns", false),
        ];
        let objects = objects_fixture();
        for (kind, namespace, name, may) in cases {
            let (group, resource) = kind.split_once('/').unwrap();
            let attrs = Attributes { verb: "get", group, resource, namespace, name, ..Attributes::default() };
            assert_eq!(authorize("n1", &attrs, &objects).is_ok(), may, "{attrs:?}");
            assert!(authorize("n3", &attrs, &objects).is_err(), "a node without pods: {attrs:?}");
        }
    }

    #[test]
    fn verbs_and_subresources_are_limited() {
        let cases = [
            // (verb, group/resource, subresource, namespace, name, fields, reason)
            ("list", "/secrets", "", "ns", "mounted", "metadata.name=mounted", None),
            ("watch", "/secrets", "", "ns", "mounted", "metadata.name=mounted", None),
            ("list", "/secrets", "", "ns", "", "", Some("No Object name found")),
            ("list", "/secrets", "", "", "mounted", "", Some("can only read namespaced object of this type")),
            ("update", "/secrets", "", "ns", "mounted", "", Some("can only read resources of this type")),
            (
                "list",
                "/persistentvolumes",
                "",
                "",
                "",
                "",
                Some("can only get individual resources of this type"),
            ),
            ("patch", "/persistentvolumeclaims", "status", "ns", "claim", "", None),
            (
                "delete",
                "/persistentvolumeclaims",
                "status",
                "ns",
                "claim",
                "",
                Some("can only get/update/patch this type"),
            ),
            (
                "patch",
                "/persistentvolumeclaims",
                "",
                "ns",
                "claim",
                "",
                Some("can only get individual resources of this type"),
            ),
            ("list", "/pods", "", "", "", "spec.nodeName=n1", None),
            ("watch", "/pods", "", "", "", "status.phase!=Failed,spec.nodeName==n1", None),
            (
                "list",
                "/pods",
                "",
                "",
                "",
                "spec.nodeName!=n1",
                Some("can only list/watch pods with spec.nodeName field selector"),
            ),
            (
                "list",
                "/pods",
                "",
                "",
                "",
                "spec.nodeName=n2",
                Some("can only list/watch pods with spec.nodeName field selector"),
            ),
            (
                "list",
                "/pods",
                "",
                "ns",
                "",
                "",
                Some("can only list/watch pods with spec.nodeName field selector"),
            ),
            ("patch", "/pods", "status", "ns", "p", "", None),
            ("patch", "/pods", "", "ns", "p", "", Some("")),
            ("create", "/pods", "binding", "ns", "p", "", Some("")),
            ("create", "/serviceaccounts", "token", "ns", "app", "", None),
            (
                "create",
                "/serviceaccounts",
                "token",
                "other",
                "app",
                "",
                Some("no relationship found between node 'n1' and this object"),
            ),
            (
                "get",
                "/serviceaccounts",
                "",
                "ns",
                "app",
                "",
                Some("can only create tokens for individual service accounts"),
            ),
            ("create", "/nodes", "", "", "", "", None),
            ("patch", "/nodes", "status", "", "n1", "", None),
            ("patch", "/nodes", "status", "", "n2", "", Some("")),
            ("delete", "/nodes", "", "", "n1", "", Some("")),
            (
                "list",
                "/nodes",
                "",
                "",
                "",
                "",
                Some("node 'n1' cannot read all nodes, only its own Node object"),
            ),
            ("get", "/nodes", "", "", "n2", "", Some("node 'n1' cannot read 'n2', only its own Node object")),
            (
                "list",
                "coordination.k8s.io/leases",
                "",
                LEASE_NAMESPACE,
                "",
                "",
                Some("can only get, create, update, patch, or delete a node lease"),
            ),
            ("create", "coordination.k8s.io/leases", "", LEASE_NAMESPACE, "", "", None),
            (
                "list",
                "storage.k8s.io/csinodes",
                "",
                "",
                "",
                "",
                Some("can only get, create, update, patch, or delete a CSINode"),
            ),
            ("create", "storage.k8s.io/csinodes", "", "", "", "", None),
        ];
        let objects = objects_fixture();
        for (verb, kind, subresource, namespace, name, fields, reason) in cases {
            let (group, resource) = kind.split_once('/').unwrap();
            let attrs = Attributes {
                verb,
                group,
                resource,
                subresource,
                namespace,
                name,
                fields,
                ..Attributes::default()
            };
            assert_eq!(authorize("n1", &attrs, &objects).err().as_deref(), reason, "{attrs:?}");
        }
    }
}
