//! What a node's agent may ask for: its own node, the pods that are bound to it, and what those name.
//!
//! The way from a node to a secret is one of these, each step read from the objects as they are now:
//!
//! ```text
//! node → pod (spec.nodeName) → secret, configmap, service account
//! node → pod → claim → volume (claimRef) → secret of its node calls
//! node → attachment (spec.nodeName)
//! ```

use serde_json::Value;

use super::named::Named;
use super::{Attributes, Objects, text};

pub(super) const LEASES: &str = "kube-node-lease";

/// Lets pass, or says why not. Asked only about what no rule allows already.
pub(super) fn authorize(node: &str, asked: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    match (asked.group, asked.resource) {
        ("", "secrets") => read(node, asked, || has_secret(node, asked, objects)),
        ("", "configmaps") => read(node, asked, || has_config_map(node, asked, objects)),
        ("", "persistentvolumeclaims") => claim(node, asked, objects),
        ("", "persistentvolumes") => get(node, asked, || has_volume(node, asked, objects)),
        ("storage.k8s.io", "volumeattachments") => get(node, asked, || has_attachment(node, asked, objects)),
        ("", "serviceaccounts") => token(node, asked, objects),
        ("coordination.k8s.io", "leases") => lease(node, asked),
        ("storage.k8s.io", "csinodes") => csinode(node, asked),
        ("", "nodes") => own_node(node, asked),
        ("", "pods") => pod(node, asked, objects),
        _ => Err(String::new()),
    }
}

fn no(reason: impl Into<String>) -> Result<(), String> {
    Err(reason.into())
}

fn related(node: &str, is: bool) -> Result<(), String> {
    if is { Ok(()) } else { no(format!("no relationship found between node '{node}' and this object")) }
}

/// Objects of a namespace, by name alone; a list or watch has to be of one name.
fn read(node: &str, asked: &Attributes<'_>, has: impl FnOnce() -> bool) -> Result<(), String> {
    match asked.verb {
        "get" | "list" | "watch" => {}
        _ => return no("can only read resources of this type"),
    }
    if !asked.subresource.is_empty() {
        return no("cannot read subresource");
    }
    if asked.namespace.is_empty() {
        return no("can only read namespaced object of this type");
    }
    if asked.name.is_empty() {
        return no("No Object name found");
    }
    related(node, has())
}

fn get(node: &str, asked: &Attributes<'_>, has: impl FnOnce() -> bool) -> Result<(), String> {
    if asked.verb != "get" {
        return no("can only get individual resources of this type");
    }
    if !asked.subresource.is_empty() {
        return no("cannot get subresource");
    }
    if asked.name.is_empty() {
        return no("No Object name found");
    }
    related(node, has())
}

fn claim(node: &str, asked: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    let used = || uses_claim(node, asked.namespace, asked.name, objects);
    match (asked.subresource, asked.verb) {
        ("status", "get" | "update" | "patch") => related(node, used()),
        ("status", _) => no("can only get/update/patch this type"),
        _ => get(node, asked, used),
    }
}

fn token(node: &str, asked: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    match (asked.verb, asked.subresource) {
        ("create", "token") if !asked.name.is_empty() => {
            let runs = |pod: &Named| &*pod.namespace == asked.namespace && &*pod.account == asked.name;
            related(node, objects.named_on(node).iter().any(|pod| runs(pod)))
        }
        _ => no("can only create tokens for individual service accounts"),
    }
}

fn lease(node: &str, asked: &Attributes<'_>) -> Result<(), String> {
    match asked.verb {
        "get" | "create" | "update" | "patch" | "delete" => {}
        _ => return no("can only get, create, update, patch, or delete a node lease"),
    }
    if asked.namespace != LEASES {
        return no(format!("can only access leases in the {LEASES:?} system namespace"));
    }
    // The name of what is created is in the object, which `restrict_node` looks at.
    if asked.verb != "create" && asked.name != node {
        return no("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn csinode(node: &str, asked: &Attributes<'_>) -> Result<(), String> {
    if !asked.subresource.is_empty() {
        return no("cannot authorize CSINode subresources");
    }
    match asked.verb {
        "get" | "create" | "update" | "patch" | "delete" => {}
        _ => return no("can only get, create, update, patch, or delete a CSINode"),
    }
    if asked.verb != "create" && asked.name != node {
        return no("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

fn own_node(node: &str, asked: &Attributes<'_>) -> Result<(), String> {
    match (asked.subresource, asked.verb) {
        ("", "create") => Ok(()),
        ("", "get" | "list" | "watch" | "update" | "patch") | ("status", "get" | "update" | "patch")
            if asked.name == node =>
        {
            Ok(())
        }
        ("", "get" | "list" | "watch") if asked.name.is_empty() => {
            no(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", "get" | "list" | "watch") => {
            no(format!("node '{node}' cannot read '{}', only its own Node object", asked.name))
        }
        _ => no(""),
    }
}

fn pod(node: &str, asked: &Attributes<'_>, objects: &dyn Objects) -> Result<(), String> {
    match (asked.subresource, asked.verb) {
        ("" | "status", "get") => {
            let bound = objects.get("", "pods", asked.namespace, asked.name);
            related(node, bound.is_some_and(|pod| text(&pod, "/spec/nodeName") == node))
        }
        ("", "list" | "watch") if selects_node(asked.fields, node) => Ok(()),
        ("", "list" | "watch") => no("can only list/watch pods with spec.nodeName field selector"),
        // Which pods: `restrict_node` knows when it sees them.
        ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
        _ => no(""),
    }
}

/// Whether the selector lets pass only pods of this node.
fn selects_node(fields: &str, node: &str) -> bool {
    fields.split(',').any(|term| {
        let Some((field, value)) = term.split_once('=') else { return false };
        field == "spec.nodeName" && value.strip_prefix('=').unwrap_or(value) == node
    })
}

/// A secret that pods name themselves, or that their volumes do.
fn has_secret(node: &str, asked: &Attributes<'_>, objects: &dyn Objects) -> bool {
    let pods = objects.named_on(node);
    let near = |pod: &Named| &*pod.namespace == asked.namespace && Named::has(&pod.secrets, asked.name);
    // Volumes have to be read: last.
    pods.iter().any(|pod| near(pod))
        || pods.iter().flat_map(|pod| pod.claims.iter().map(|claim| (&*pod.namespace, claim))).any(
            |(namespace, claim)| {
                let volume = volume_of(namespace, claim, objects);
                volume.is_some_and(|volume| volume_names_secret(&volume, asked.namespace, asked.name))
            },
        )
}

/// The secrets of a driver's calls on the node; those of the controller's calls are none of the node's business.
fn volume_names_secret(volume: &Value, namespace: &str, name: &str) -> bool {
    ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"].iter().any(|key| {
        let reference = &volume["spec"]["csi"][key];
        text(reference, "/namespace") == namespace && text(reference, "/name") == name
    })
}

fn has_config_map(node: &str, asked: &Attributes<'_>, objects: &dyn Objects) -> bool {
    let has = |pod: &Named| &*pod.namespace == asked.namespace && Named::has(&pod.config_maps, asked.name);
    objects.named_on(node).iter().any(|pod| has(pod))
}

fn uses_claim(node: &str, namespace: &str, name: &str, objects: &dyn Objects) -> bool {
    let has = |pod: &Named| &*pod.namespace == namespace && Named::has(&pod.claims, name);
    !name.is_empty() && objects.named_on(node).iter().any(|pod| has(pod))
}

/// The volume of a claim, if volume and claim name each other.
fn volume_of(namespace: &str, claim: &str, objects: &dyn Objects) -> Option<Value> {
    let claimed = objects.get("", "persistentvolumeclaims", namespace, claim)?;
    let volume = objects.get("", "persistentvolumes", "", text(&claimed, "/spec/volumeName"))?;
    let reference = &volume["spec"]["claimRef"];
    let same = text(reference, "/namespace") == namespace && text(reference, "/name") == claim;
    same.then_some(volume)
}

fn has_volume(node: &str, asked: &Attributes<'_>, objects: &dyn Objects) -> bool {
    let Some(volume) = objects.get("", "persistentvolumes", "", asked.name) else { return false };
    let reference = &volume["spec"]["claimRef"];
    uses_claim(node, text(reference, "/namespace"), text(reference, "/name"), objects)
}

fn has_attachment(node: &str, asked: &Attributes<'_>, objects: &dyn Objects) -> bool {
    let attachment = objects.get("storage.k8s.io", "volumeattachments", "", asked.name);
    attachment.is_some_and(|attachment| text(&attachment, "/spec/nodeName") == node)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::access::testing::Fixed;

    /// Pod `ns/p` on n1 with all that a pod can name; pod `other/q` on n2.
    fn world() -> Fixed {
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
        Fixed::default()
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
    fn what_the_nodes_pods_need_and_no_more() {
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
            ("coordination.k8s.io/leases", LEASES, "n1", true),
            ("coordination.k8s.io/leases", LEASES, "n2", false),
            ("coordination.k8s.io/leases", "default", "n1", false),
            ("storage.k8s.io/storageclasses", "", "fast", false),
            ("/namespaces", "", "ns", false),
        ];
        let world = world();
        for (kind, namespace, name, may) in cases {
            let (group, resource) = kind.split_once('/').unwrap();
            let asked = Attributes { verb: "get", group, resource, namespace, name, ..Attributes::default() };
            assert_eq!(authorize("n1", &asked, &world).is_ok(), may, "{asked:?}");
            assert!(authorize("n3", &asked, &world).is_err(), "a node without pods: {asked:?}");
        }
    }

    #[test]
    fn verbs_and_subresources() {
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
                LEASES,
                "",
                "",
                Some("can only get, create, update, patch, or delete a node lease"),
            ),
            ("create", "coordination.k8s.io/leases", "", LEASES, "", "", None),
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
        let world = world();
        for (verb, kind, subresource, namespace, name, fields, reason) in cases {
            let (group, resource) = kind.split_once('/').unwrap();
            let asked = Attributes {
                verb,
                group,
                resource,
                subresource,
                namespace,
                name,
                fields,
                ..Attributes::default()
            };
            assert_eq!(authorize("n1", &asked, &world).err().as_deref(), reason, "{asked:?}");
        }
    }
}
