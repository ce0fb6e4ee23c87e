//! Objects for the table tests of the rules, as Kubernetes JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::{CSINode, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass};

use super::view::{NodeInfo, View};

/// Merges `more` into `base`.
pub(super) fn over(mut base: Value, more: Value) -> Value {
    merge(&mut base, more);
    base
}

fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

pub(super) fn pod(more: Value) -> Arc<Pod> {
    read(over(json!({"metadata": {"namespace": "ns", "name": "p", "uid": "pod-uid"}, "spec": {}}), more))
}

/// A pod with these claims.
pub(super) fn pod_with(claims: &[&str]) -> Arc<Pod> {
    let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    pod(json!({"spec": {"volumes": claims.iter().map(volume).collect::<Vec<_>>()}}))
}

/// A node `n1` with ample resources.
pub(super) fn node(more: Value) -> Arc<Node> {
    read(over(
        json!({
            "metadata": {"name": "n1", "labels": {"host": "n1"}}, "spec": {},
            "status": {"allocatable": {"pods": "110", "cpu": "4", "memory": "4Gi"}},
        }),
        more,
    ))
}

pub(super) fn node_info(more: Value) -> NodeInfo {
    // A given allocatable replaces the default completely.
    let replaced = more.pointer("/status/allocatable").cloned();
    let mut node = node(more);
    if let Some(allocatable) = replaced {
        Arc::make_mut(&mut node).status.allocatable = serde_json::from_value(allocatable).unwrap();
    }
    NodeInfo { labels: BTreeMap::from(&node.metadata.labels), node, ..NodeInfo::default() }
}

pub(super) fn csi_node(drivers: Value) -> Arc<CSINode> {
    read(json!({"metadata": {"name": "n1"}, "spec": {"drivers": drivers}}))
}

/// A claim of 1Gi and class `wait`.
pub(super) fn claim(name: &str, more: Value) -> Arc<PersistentVolumeClaim> {
    read(over(
        json!({
            "metadata": {"namespace": "ns", "name": name, "uid": format!("{name}-uid"), "resourceVersion": "1"},
            "spec": {
                "storageClassName": "wait", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Pending"},
        }),
        more,
    ))
}

/// A bound claim.
pub(super) fn bound(name: &str, volume: &str) -> Arc<PersistentVolumeClaim> {
    claim(
        name,
        json!({
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": volume}, "status": {"phase": "Bound"},
        }),
    )
}

/// An available volume of 1Gi and class `wait`.
pub(super) fn volume(name: &str, more: Value) -> Arc<PersistentVolume> {
    read(over(
        json!({
            "metadata": {"name": name, "uid": format!("{name}-uid"), "resourceVersion": "1"},
            "spec": {
                "storageClassName": "wait", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "csi": {"driver": "d", "volumeHandle": name},
            },
            "status": {"phase": "Available"},
        }),
        more,
    ))
}

/// Node affinity for a volume that only one node can access.
pub(super) fn on(node: &str) -> Value {
    json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]},
    ]}}}})
}

pub(super) fn class(name: &str, more: Value) -> Arc<StorageClass> {
    let base =
        json!({"metadata": {"name": name}, "provisioner": "d", "volumeBindingMode": "WaitForFirstConsumer"});
    read(over(base, more))
}

/// A view with this pod and the class `wait`.
pub(super) fn view(pod: Arc<Pod>) -> View {
    let mut view = View { pod, ..View::default() };
    view.classes.insert("wait".into(), class("wait", json!({})));
    view
}

/// A view with a pod that uses these claims.
pub(super) fn view_of(claims: Vec<Arc<PersistentVolumeClaim>>) -> View {
    let names: Vec<&str> = claims.iter().map(|claim| claim.metadata.name.as_str()).collect();
    let mut view = view(pod_with(&names));
    view.claims = claims.iter().map(|claim| (claim.metadata.name.clone(), Arc::clone(claim))).collect();
    view
}
