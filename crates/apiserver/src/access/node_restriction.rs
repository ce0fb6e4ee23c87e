//! Upstream's NodeRestriction admission: a node agent may only write objects about its own node.
//!
//! [`super::authorize`] has checked the request; here the old and the new object are checked.

use serde_json::Value;

use super::node::LEASE_NAMESPACE;
use super::{Attributes, Objects, User, items, node_audience, text};
use crate::status::StatusError;

const MIRROR: &str = "kubernetes.io/config.mirror";
const SECRETS: &[&str] =
    &["secret", "secretName", "secretRef", "secretKeyRef", "nodePublishSecretRef", "imagePullSecrets"];

/// Allows writes by other users, and writes about the agent's own node. `new` is the object to be stored or posted to a
/// subresource, `old` the stored object.
pub fn restrict_node(
    user: &User,
    attrs: &Attributes<'_>,
    new: Option<&Value>,
    old: Option<&Value>,
    objects: &dyn Objects,
) -> Result<(), StatusError> {
    let Some(node) = user.node_name() else { return Ok(()) };
    let null = &Value::Null;
    let (new, old) = (new.unwrap_or(null), old.unwrap_or(null));
    let result = match (attrs.group, attrs.resource, attrs.subresource) {
        ("", "pods", "") => pod(node, attrs.verb, new, old, objects),
        ("", "pods", "status") => pod_status(node, new, old),
        ("", "pods", "eviction") => eviction(node, attrs, new, objects),
        ("", "nodes", _) => own_node(node, attrs, new, old),
        ("", "persistentvolumeclaims", "status") => claim_status(node, new, old),
        ("", "serviceaccounts", "token") => token(node, attrs, new, objects),
        ("coordination.k8s.io", "leases", _) => lease(node, attrs, new),
        ("storage.k8s.io", "csinodes", _) => csinode(node, attrs, new),
        _ => Ok(()),
    };
    result.map_err(|reason| {
        let name = target_name(attrs, new);
        Attributes { name, ..*attrs }.forbidden(&reason)
    })
}

/// The name from the path, or from the object to be created.
fn target_name<'a>(attrs: &Attributes<'a>, new: &'a Value) -> &'a str {
    if attrs.name.is_empty() { text(new, "/metadata/name") } else { attrs.name }
}

fn require(condition: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(reason()) }
}

fn is_on(pod: &Value, node: &str) -> bool {
    text(pod, "/spec/nodeName") == node
}

fn pod(node: &str, verb: &str, new: &Value, old: &Value, objects: &dyn Objects) -> Result<(), String> {
    match verb {
        "create" => mirror_pod(node, new, objects),
        "delete" => require(is_on(old, node), || {
            format!("node {node:?} can only delete pods with spec.nodeName set to itself")
        }),
        _ => Err(format!(
            "unexpected operation {verb:?}, node {node:?} can only create and delete mirror pods"
        )),
    }
}

/// A node may publish mirror pods of its static pods. They must not give it access to anything.
fn mirror_pod(node: &str, pod: &Value, objects: &dyn Objects) -> Result<(), String> {
    let annotated = pod["metadata"]["annotations"].get(MIRROR).is_some();
    require(annotated, || {
        format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods")
    })?;
    require(is_on(pod, node), || {
        format!("node {node:?} can only create pods with spec.nodeName set to itself")
    })?;
    let owners: Vec<&Value> = items(pod, "/metadata/ownerReferences").collect();
    let uid = objects.get("", "nodes", "", node).map(|node| text(&node, "/metadata/uid").to_owned());
    let owned = matches!(owners.as_slice(), [owner]
        if text(owner, "/apiVersion") == "v1" && text(owner, "/kind") == "Node" && text(owner, "/name") == node
            && uid.as_deref() == Some(text(owner, "/uid")));
    require(owned, || {
        format!("node {node:?} can only create pods with a single owner reference set to itself")
    })?;
    let account = text(pod, "/spec/serviceAccountName");
    require(account.is_empty(), || {
        format!("node {node:?} can not create pods that reference a service account")
    })?;
    for (keys, what) in [
        (SECRETS, "secrets"),
        (&["configMap", "configMapRef", "configMapKeyRef"], "configmaps"),
        (&["persistentVolumeClaim", "ephemeral"], "persistentvolumeclaims"),
    ] {
        require(!has_key(&pod["spec"], keys), || {
            format!("node {node:?} can not create pods that reference {what}")
        })?;
    }
    Ok(())
}

/// Whether the value contains any of the keys at any depth.
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
    require(is_on(old, node), || {
        format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself")
    })?;
    let same = new["metadata"].get("labels") == old["metadata"].get("labels");
    require(same, || format!("node {node:?} cannot update labels through pod status"))
}

fn eviction(node: &str, attrs: &Attributes<'_>, new: &Value, objects: &dyn Objects) -> Result<(), String> {
    let pod = objects.get("", "pods", attrs.namespace, target_name(attrs, new));
    require(pod.is_some_and(|pod| is_on(&pod, node)), || {
        format!("node {node} can only evict pods with spec.nodeName set to itself")
    })
}

fn own_node(node: &str, attrs: &Attributes<'_>, new: &Value, old: &Value) -> Result<(), String> {
    let name = target_name(attrs, new);
    require(name == node, || format!("node {node:?} is not allowed to modify node {name:?}"))?;
    if attrs.verb == "delete" {
        return Ok(());
    }
    let null = &Value::Null;
    let labels = |object: &Value| object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let (before, after) = (labels(old), labels(new));
    let changed = before.keys().chain(after.keys()).filter(|label| before.get(*label) != after.get(*label));
    let mut refused: Vec<&str> = changed.map(String::as_str).filter(|label| !may_set_label(label)).collect();
    refused.sort_unstable();
    refused.dedup();
    if attrs.verb == "create" {
        return require(refused.is_empty(), || {
            format!("node {node:?} is not allowed to set the following labels: {}", refused.join(", "))
        });
    }
    require(refused.is_empty(), || {
        format!("node {node:?} is not allowed to modify labels: {}", refused.join(", "))
    })?;
    let taints = |object: &Value| object.pointer("/spec/taints").unwrap_or(null).clone();
    require(taints(old) == taints(new), || format!("node {node:?} is not allowed to modify taints"))?;
    let owners = |object: &Value| object.pointer("/metadata/ownerReferences").unwrap_or(null).clone();
    require(owners(old) == owners(new), || format!("node {node:?} is not allowed to modify ownerReferences"))
}

/// A node may set labels that describe it, not labels that decide which pods may run there.
fn may_set_label(label: &str) -> bool {
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

/// Allows only the progress of a node expansion to change.
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
    require(rest(new) == rest(old), || {
        format!(
            "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
        )
    })
}

/// Allows only tokens that are bound to a pod of this node, and only for audiences that the pod needs.
fn token(node: &str, attrs: &Attributes<'_>, new: &Value, objects: &dyn Objects) -> Result<(), String> {
    let bound = &new["spec"]["boundObjectRef"];
    let is_pod = text(bound, "/apiVersion") == "v1" && text(bound, "/kind") == "Pod";
    require(is_pod && !text(bound, "/name").is_empty(), || "node requested token not bound to a pod".into())?;
    let uid = text(bound, "/uid");
    require(!uid.is_empty(), || "node requested token with a pod binding without a uid".into())?;
    let name = text(bound, "/name");
    let pod =
        objects.get("", "pods", attrs.namespace, name).ok_or_else(|| format!("pods {name:?} not found"))?;
    require(text(&pod, "/metadata/uid") == uid, || {
        format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        )
    })?;
    require(is_on(&pod, node), || {
        "node requested token bound to a pod scheduled on a different node".into()
    })?;
    node_audience::check(node, &pod, new, objects)
}

fn lease(node: &str, attrs: &Attributes<'_>, new: &Value) -> Result<(), String> {
    require(attrs.namespace == LEASE_NAMESPACE, || {
        format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace")
    })?;
    require(target_name(attrs, new) == node, || {
        "can only access node lease with the same name as the requesting node".into()
    })
}

fn csinode(node: &str, attrs: &Attributes<'_>, new: &Value) -> Result<(), String> {
    require(target_name(attrs, new) == node, || {
        "can only access CSINode with the same name as the requesting node".into()
    })
}

#[cfg(test)]
mod tests;
