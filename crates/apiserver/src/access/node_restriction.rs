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
mod tests;
