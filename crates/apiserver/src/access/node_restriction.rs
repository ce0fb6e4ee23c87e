//! What a node's agent may write: only what is about itself. Upstream's NodeRestriction admission.
//!
//! [`super::authorize`] has seen the request; here the objects are seen, the old and the new.

use serde_json::Value;

use super::node::LEASES;
use super::{Attributes, Objects, User, items, text};
use crate::status::Refusal;

const MIRROR: &str = "kubernetes.io/config.mirror";
const SECRETS: &[&str] =
    &["secret", "secretName", "secretRef", "secretKeyRef", "nodePublishSecretRef", "imagePullSecrets"];

/// Lets pass what is not written by a node's agent, or is about its own node. `new` is what would be stored or was
/// posted to a subresource, `old` what is stored now.
pub fn restrict_node(
    user: &User,
    asked: &Attributes<'_>,
    new: Option<&Value>,
    old: Option<&Value>,
    objects: &dyn Objects,
) -> Result<(), Refusal> {
    let Some(node) = user.node_name() else { return Ok(()) };
    let null = &Value::Null;
    let (new, old) = (new.unwrap_or(null), old.unwrap_or(null));
    let judged = match (asked.group, asked.resource, asked.subresource) {
        ("", "pods", "") => pod(node, asked.verb, new, old, objects),
        ("", "pods", "status") => pod_status(node, new, old),
        ("", "pods", "eviction") => eviction(node, asked, new, objects),
        ("", "nodes", _) => own_node(node, asked, new, old),
        ("", "persistentvolumeclaims", "status") => claim_status(node, new, old),
        ("", "serviceaccounts", "token") => token(node, asked, new, objects),
        ("coordination.k8s.io", "leases", _) => lease(node, asked, new),
        ("storage.k8s.io", "csinodes", _) => csinode(node, asked, new),
        _ => Ok(()),
    };
    judged.map_err(|why| {
        let name = named(asked, new);
        Attributes { name, ..*asked }.forbidden(&why)
    })
}

/// The name, in the path or else in the object that is to be made.
fn named<'a>(asked: &Attributes<'a>, new: &'a Value) -> &'a str {
    if asked.name.is_empty() { text(new, "/metadata/name") } else { asked.name }
}

fn check(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn is_on(pod: &Value, node: &str) -> bool {
    text(pod, "/spec/nodeName") == node
}

fn pod(node: &str, verb: &str, new: &Value, old: &Value, objects: &dyn Objects) -> Result<(), String> {
    match verb {
        "create" => mirror_pod(node, new, objects),
        "delete" => check(is_on(old, node), || {
            format!("node {node:?} can only delete pods with spec.nodeName set to itself")
        }),
        _ => Err(format!(
            "unexpected operation {verb:?}, node {node:?} can only create and delete mirror pods"
        )),
    }
}

/// A node may show the pods that it runs from its own files, and those must not open anything to it.
fn mirror_pod(node: &str, pod: &Value, objects: &dyn Objects) -> Result<(), String> {
    let annotated = pod["metadata"]["annotations"].get(MIRROR).is_some();
    check(annotated, || {
        format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods")
    })?;
    check(is_on(pod, node), || {
        format!("node {node:?} can only create pods with spec.nodeName set to itself")
    })?;
    let owners: Vec<&Value> = items(pod, "/metadata/ownerReferences").collect();
    let uid = objects.get("", "nodes", "", node).map(|node| text(&node, "/metadata/uid").to_owned());
    let owned = matches!(owners.as_slice(), [owner]
        if text(owner, "/apiVersion") == "v1" && text(owner, "/kind") == "Node" && text(owner, "/name") == node
            && uid.as_deref() == Some(text(owner, "/uid")));
    check(owned, || {
        format!("node {node:?} can only create pods with a single owner reference set to itself")
    })?;
    let account = text(pod, "/spec/serviceAccountName");
    check(account.is_empty(), || {
        format!("node {node:?} can not create pods that reference a service account")
    })?;
    for (keys, what) in [
        (SECRETS, "secrets"),
        (&["configMap", "configMapRef", "configMapKeyRef"], "configmaps"),
        (&["persistentVolumeClaim", "ephemeral"], "persistentvolumeclaims"),
    ] {
        check(!has_key(&pod["spec"], keys), || {
            format!("node {node:?} can not create pods that reference {what}")
        })?;
    }
    Ok(())
}

/// Whether any of the keys is anywhere within.
fn has_key(value: &Value, keys: &[&str]) -> bool {
    match value {
        Value::Object(map) => {
            map.iter().any(|(key, inner)| keys.contains(&key.as_str()) || has_key(inner, keys))
        }
        Value::Array(list) => list.iter().any(|inner| has_key(inner, keys)),
        _ => false,
    }
}

fn pod_status(node: &str, new: &Value, old: &Value) -> Result<(), String> {
    check(is_on(old, node), || {
        format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself")
    })?;
    let same = new["metadata"].get("labels") == old["metadata"].get("labels");
    check(same, || format!("node {node:?} cannot update labels through pod status"))
}

fn eviction(node: &str, asked: &Attributes<'_>, new: &Value, objects: &dyn Objects) -> Result<(), String> {
    let pod = objects.get("", "pods", asked.namespace, named(asked, new));
    check(pod.is_some_and(|pod| is_on(&pod, node)), || {
        format!("node {node} can only evict pods with spec.nodeName set to itself")
    })
}

fn own_node(node: &str, asked: &Attributes<'_>, new: &Value, old: &Value) -> Result<(), String> {
    let name = named(asked, new);
    check(name == node, || format!("node {node:?} is not allowed to modify node {name:?}"))?;
    if asked.verb == "delete" {
        return Ok(());
    }
    let null = &Value::Null;
    let labels = |object: &Value| object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let (before, after) = (labels(old), labels(new));
    let changed = before.keys().chain(after.keys()).filter(|label| before.get(*label) != after.get(*label));
    let mut refused: Vec<&str> = changed.map(String::as_str).filter(|label| !may_label(label)).collect();
    refused.sort_unstable();
    refused.dedup();
    if asked.verb == "create" {
        return check(refused.is_empty(), || {
            format!("node {node:?} is not allowed to set the following labels: {}", refused.join(", "))
        });
    }
    check(refused.is_empty(), || {
        format!("node {node:?} is not allowed to modify labels: {}", refused.join(", "))
    })?;
    let taints = |object: &Value| object.pointer("/spec/taints").unwrap_or(null).clone();
    check(taints(old) == taints(new), || format!("node {node:?} is not allowed to modify taints"))?;
    let owners = |object: &Value| object.pointer("/metadata/ownerReferences").unwrap_or(null).clone();
    check(owners(old) == owners(new), || format!("node {node:?} is not allowed to modify ownerReferences"))
}

/// Labels that say what a node is are its own; those that say what may run there are not.
fn may_label(label: &str) -> bool {
    const OWN: &[&str] = &[
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.kubernetes.io/zone",
        "failure-domain.kubernetes.io/region",
    ];
    let namespace = label.split_once('/').map_or("", |(namespace, _)| namespace);
    let within =
        |of: &str| namespace == of || namespace.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'));
    if within("node-restriction.kubernetes.io") {
        return false;
    }
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved || OWN.contains(&label) || within("kubelet.kubernetes.io") || within("node.kubernetes.io")
}

/// How far an expansion has come on the node, and nothing else.
fn claim_status(node: &str, new: &Value, old: &Value) -> Result<(), String> {
    let rest = |object: &Value| {
        let mut object = object.clone();
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
            for field in ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"] {
                status.remove(field);
            }
            if status.is_empty() {
                object.as_object_mut().map(|object| object.remove("status"));
            }
        }
        if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("resourceVersion");
            meta.remove("managedFields");
        }
        object
    };
    check(rest(new) == rest(old), || {
        format!(
            "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
        )
    })
}

/// Only tokens that end with a pod of this node.
fn token(node: &str, asked: &Attributes<'_>, new: &Value, objects: &dyn Objects) -> Result<(), String> {
    let bound = &new["spec"]["boundObjectRef"];
    let is_pod = text(bound, "/apiVersion") == "v1" && text(bound, "/kind") == "Pod";
    check(is_pod && !text(bound, "/name").is_empty(), || "node requested token not bound to a pod".into())?;
    let uid = text(bound, "/uid");
    check(!uid.is_empty(), || "node requested token with a pod binding without a uid".into())?;
    let name = text(bound, "/name");
    let pod =
        objects.get("", "pods", asked.namespace, name).ok_or_else(|| format!("pods {name:?} not found"))?;
    check(text(&pod, "/metadata/uid") == uid, || {
        format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        )
    })?;
    check(is_on(&pod, node), || "node requested token bound to a pod scheduled on a different node".into())
}

fn lease(node: &str, asked: &Attributes<'_>, new: &Value) -> Result<(), String> {
    check(asked.namespace == LEASES, || {
        format!("can only access leases in the {LEASES:?} system namespace")
    })?;
    check(named(asked, new) == node, || {
        "can only access node lease with the same name as the requesting node".into()
    })
}

fn csinode(node: &str, asked: &Attributes<'_>, new: &Value) -> Result<(), String> {
    check(named(asked, new) == node, || {
        "can only access CSINode with the same name as the requesting node".into()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::access::testing::Fixed;

    fn world() -> Fixed {
        Fixed::default()
            .with("/nodes//n1", json!({"metadata": {"name": "n1", "uid": "node-1"}}))
            .with("/pods/ns/mine", json!({"metadata": {"uid": "p1"}, "spec": {"nodeName": "n1"}}))
            .with("/pods/ns/theirs", json!({"metadata": {"uid": "p2"}, "spec": {"nodeName": "n2"}}))
    }

    fn mirror() -> Value {
        json!({
            "metadata": {
                "name": "etcd-n1", "annotations": {MIRROR: "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-1"}],
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        })
    }

    fn with(mut object: Value, pointer: &str, value: Value) -> Value {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = value;
        object
    }

    fn labelled(label: &str) -> Value {
        json!({"metadata": {"name": "n1", "labels": {label: "x"}}})
    }

    #[test]
    fn what_a_node_may_write() {
        let node = json!({"metadata": {"name": "n1"}, "spec": {}});
        let claim = json!({"metadata": {"resourceVersion": "1"}, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        let grown = with(
            with(claim.clone(), "/status/capacity", json!({"storage": "2Gi"})),
            "/metadata/resourceVersion",
            json!("2"),
        );
        let on = |node: &str| json!({"metadata": {}, "spec": {"nodeName": node}});
        let request = |kind: &str, name: &str, uid: &str| json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}}});
        let null = Value::Null;
        let cases: Vec<(&str, &str, &str, &str, Value, Value, Option<&str>)> = vec![
            // (verb, group/resource/subresource, namespace, name, new, old, refusal)
            ("create", "/pods/", "ns", "", mirror(), null.clone(), None),
            (
                "create",
                "/pods/",
                "ns",
                "",
                with(mirror(), "/metadata/annotations", json!({})),
                null.clone(),
                Some(
                    r#"pods "etcd-n1" is forbidden: pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods"#,
                ),
            ),
            (
                "create",
                "/pods/",
                "ns",
                "",
                with(mirror(), "/spec/nodeName", json!("n2")),
                null.clone(),
                Some(
                    r#"pods "etcd-n1" is forbidden: node "n1" can only create pods with spec.nodeName set to itself"#,
                ),
            ),
            (
                "create",
                "/pods/",
                "ns",
                "",
                with(mirror(), "/metadata/ownerReferences/0/uid", json!("old")),
                null.clone(),
                Some(
                    r#"pods "etcd-n1" is forbidden: node "n1" can only create pods with a single owner reference set to itself"#,
                ),
            ),
            (
                "create",
                "/pods/",
                "ns",
                "",
                with(mirror(), "/spec/serviceAccountName", json!("app")),
                null.clone(),
                Some(
                    r#"pods "etcd-n1" is forbidden: node "n1" can not create pods that reference a service account"#,
                ),
            ),
            (
                "create",
                "/pods/",
                "ns",
                "",
                with(mirror(), "/spec/volumes", json!([{"secret": {"secretName": "s"}}])),
                null.clone(),
                Some(r#"pods "etcd-n1" is forbidden: node "n1" can not create pods that reference secrets"#),
            ),
            (
                "create",
                "/pods/",
                "ns",
                "",
                with(mirror(), "/spec/volumes", json!([{"csi": {"nodePublishSecretRef": {"name": "s"}}}])),
                null.clone(),
                Some(r#"pods "etcd-n1" is forbidden: node "n1" can not create pods that reference secrets"#),
            ),
            (
                "create",
                "/pods/",
                "ns",
                "",
                with(mirror(), "/spec/volumes", json!([{"persistentVolumeClaim": {"claimName": "s"}}])),
                null.clone(),
                Some(
                    r#"pods "etcd-n1" is forbidden: node "n1" can not create pods that reference persistentvolumeclaims"#,
                ),
            ),
            ("delete", "/pods/", "ns", "mine", null.clone(), on("n1"), None),
            (
                "delete",
                "/pods/",
                "ns",
                "theirs",
                null.clone(),
                on("n2"),
                Some(
                    r#"pods "theirs" is forbidden: node "n1" can only delete pods with spec.nodeName set to itself"#,
                ),
            ),
            ("update", "/pods/status", "ns", "mine", on("n1"), on("n1"), None),
            (
                "update",
                "/pods/status",
                "ns",
                "theirs",
                on("n1"),
                on("n2"),
                Some(
                    r#"pods "theirs" is forbidden: node "n1" can only update pod status for pods with spec.nodeName set to itself"#,
                ),
            ),
            (
                "update",
                "/pods/status",
                "ns",
                "mine",
                with(on("n1"), "/metadata/labels", json!({"a": "b"})),
                on("n1"),
                Some(r#"pods "mine" is forbidden: node "n1" cannot update labels through pod status"#),
            ),
            ("create", "/pods/eviction", "ns", "mine", null.clone(), null.clone(), None),
            (
                "create",
                "/pods/eviction",
                "ns",
                "theirs",
                null.clone(),
                null.clone(),
                Some(
                    r#"pods "theirs" is forbidden: node n1 can only evict pods with spec.nodeName set to itself"#,
                ),
            ),
            ("create", "/nodes/", "", "", labelled("kubernetes.io/hostname"), null.clone(), None),
            ("create", "/nodes/", "", "", labelled("example.com/rack"), null.clone(), None),
            (
                "create",
                "/nodes/",
                "",
                "",
                labelled("kubernetes.io/secret-keeper"),
                null.clone(),
                Some(
                    r#"nodes "n1" is forbidden: node "n1" is not allowed to set the following labels: kubernetes.io/secret-keeper"#,
                ),
            ),
            (
                "create",
                "/nodes/",
                "",
                "",
                json!({"metadata": {"name": "n2"}}),
                null.clone(),
                Some(r#"nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2""#),
            ),
            (
                "patch",
                "/nodes/status",
                "",
                "n1",
                labelled("topology.x.k8s.io/zone"),
                node.clone(),
                Some(
                    r#"nodes "n1" is forbidden: node "n1" is not allowed to modify labels: topology.x.k8s.io/zone"#,
                ),
            ),
            (
                "patch",
                "/nodes/status",
                "",
                "n1",
                node.clone(),
                labelled("a.node-restriction.kubernetes.io/b"),
                Some(
                    r#"nodes "n1" is forbidden: node "n1" is not allowed to modify labels: a.node-restriction.kubernetes.io/b"#,
                ),
            ),
            ("patch", "/nodes/", "", "n1", labelled("node.kubernetes.io/x"), node.clone(), None),
            (
                "patch",
                "/nodes/",
                "",
                "n1",
                with(node.clone(), "/spec/taints", json!([])),
                node.clone(),
                Some(r#"nodes "n1" is forbidden: node "n1" is not allowed to modify taints"#),
            ),
            (
                "patch",
                "/nodes/",
                "",
                "n1",
                with(node.clone(), "/metadata/ownerReferences", json!([{"uid": "x"}])),
                node.clone(),
                Some(r#"nodes "n1" is forbidden: node "n1" is not allowed to modify ownerReferences"#),
            ),
            ("patch", "/persistentvolumeclaims/status", "ns", "c", grown, claim.clone(), None),
            (
                "patch",
                "/persistentvolumeclaims/status",
                "ns",
                "c",
                with(claim.clone(), "/status/phase", json!("Lost")),
                claim.clone(),
                Some(
                    r#"persistentvolumeclaims "c" is forbidden: node "n1" is not allowed to update fields other than status.quantity and status.conditions"#,
                ),
            ),
            (
                "patch",
                "/persistentvolumeclaims/status",
                "ns",
                "c",
                with(claim.clone(), "/metadata/annotations", json!({"a": "b"})),
                claim,
                Some(
                    r#"persistentvolumeclaims "c" is forbidden: node "n1" is not allowed to update fields other than status.quantity and status.conditions"#,
                ),
            ),
            (
                "create",
                "/serviceaccounts/token",
                "ns",
                "app",
                request("Pod", "mine", "p1"),
                null.clone(),
                None,
            ),
            (
                "create",
                "/serviceaccounts/token",
                "ns",
                "app",
                json!({"spec": {}}),
                null.clone(),
                Some(r#"serviceaccounts "app" is forbidden: node requested token not bound to a pod"#),
            ),
            (
                "create",
                "/serviceaccounts/token",
                "ns",
                "app",
                request("Secret", "mine", "p1"),
                null.clone(),
                Some(r#"serviceaccounts "app" is forbidden: node requested token not bound to a pod"#),
            ),
            (
                "create",
                "/serviceaccounts/token",
                "ns",
                "app",
                request("Pod", "mine", ""),
                null.clone(),
                Some(
                    r#"serviceaccounts "app" is forbidden: node requested token with a pod binding without a uid"#,
                ),
            ),
            (
                "create",
                "/serviceaccounts/token",
                "ns",
                "app",
                request("Pod", "mine", "p0"),
                null.clone(),
                Some(
                    r#"serviceaccounts "app" is forbidden: the UID in the bound object reference (p0) does not match the UID in record. The object might have been deleted and then recreated"#,
                ),
            ),
            (
                "create",
                "/serviceaccounts/token",
                "ns",
                "app",
                request("Pod", "theirs", "p2"),
                null.clone(),
                Some(
                    r#"serviceaccounts "app" is forbidden: node requested token bound to a pod scheduled on a different node"#,
                ),
            ),
            (
                "create",
                "coordination.k8s.io/leases/",
                LEASES,
                "",
                json!({"metadata": {"name": "n1"}}),
                null.clone(),
                None,
            ),
            (
                "create",
                "coordination.k8s.io/leases/",
                LEASES,
                "",
                json!({"metadata": {"name": "n2"}}),
                null.clone(),
                Some(
                    r#"leases.coordination.k8s.io "n2" is forbidden: can only access node lease with the same name as the requesting node"#,
                ),
            ),
            (
                "create",
                "storage.k8s.io/csinodes/",
                "",
                "",
                json!({"metadata": {"name": "n2"}}),
                null.clone(),
                Some(
                    r#"csinodes.storage.k8s.io "n2" is forbidden: can only access CSINode with the same name as the requesting node"#,
                ),
            ),
            ("create", "/events/", "ns", "", null.clone(), null, None),
        ];
        let world = world();
        for (verb, kind, namespace, name, new, old, expected) in cases {
            let mut parts = kind.split('/');
            let mut part = || parts.next().unwrap();
            let (group, resource, subresource) = (part(), part(), part());
            let asked =
                Attributes { verb, group, resource, subresource, namespace, name, ..Attributes::default() };
            let some = |value: &Value| if value.is_null() { None } else { Some(value.clone()) };
            let (new, old) = (some(&new), some(&old));
            let judged = restrict_node(&User::node("n1"), &asked, new.as_ref(), old.as_ref(), &world);
            assert_eq!(judged.err().map(|refusal| refusal.message).as_deref(), expected, "{asked:?}");
            let admin = restrict_node(&User::admin(), &asked, new.as_ref(), old.as_ref(), &world);
            assert_eq!(admin, Ok(()), "{asked:?}");
        }
    }
}
