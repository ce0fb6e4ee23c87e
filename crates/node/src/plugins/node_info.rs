//! What Node and CSINode say of a driver: how they look before and after. Effects are in [`write`].
//!
//! - Node: the annotation with what drivers call the node, and the labels of where it is. A label that is there with
//!   another value is somebody's word against the driver's: nothing is written then.
//! - CSINode: an entry for each driver, and which in-tree plugins are CSI's now. It belongs to its Node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wharf_model::names::annotation;
use wharf_model::patch::Patch;
use wharf_model::whole::Node;
use wharf_model::{CSINode, Kind as _};

use super::view::NodeAnswer;

pub(super) mod write;

/// Which in-tree plugins' volumes are CSI's in Kubernetes 1.34.
pub(super) const MIGRATED: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];
/// Where CSINode says so.
const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// Where a driver's limit was before there were CSINodes.
const LEGACY_LIMIT: &str = "attachable-volumes-csi-";

/// Why a driver cannot be written into a Node. The words are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NodeInfoError {
    /// A driver has to call the node something.
    #[error("error adding CSI driver node info: driverNodeID must not be empty")]
    NoNodeId,
    /// Somebody else wrote something there.
    #[error(
        "failed to parse node's {:?} annotation value ({value:?}): remove it, or make it a JSON map of names",
        annotation::LEGACY_NODE_ID
    )]
    Annotation {
        /// What it says.
        value: String,
    },
    /// The node is said to be elsewhere.
    #[error(
        "detected topology value collision: driver reported {key:?}:{reported:?} but existing label is {key:?}:{existing:?}"
    )]
    Collision {
        /// The label.
        key: String,
        /// What the driver says.
        reported: String,
        /// What the Node says.
        existing: String,
    },
}

/// The limit as CSINode has it: one that is not positive is none.
fn count(max_volumes: i64) -> Option<i32> {
    (max_volumes > 0).then(|| i32::try_from(max_volumes).unwrap_or(i32::MAX))
}

fn node_ids(node: &Node) -> Result<BTreeMap<String, String>, NodeInfoError> {
    match node.metadata.annotation(annotation::LEGACY_NODE_ID) {
        None | Some("") => Ok(BTreeMap::new()),
        Some(text) => serde_json::from_str::<Option<BTreeMap<String, String>>>(text)
            .map(Option::unwrap_or_default)
            .map_err(|_| NodeInfoError::Annotation { value: text.to_owned() }),
    }
}

/// What makes a Node know a driver; `None` if it does.
pub(super) fn install_on_node(
    node: &Node,
    driver: &str,
    answer: &NodeAnswer,
) -> Result<Option<Patch>, NodeInfoError> {
    if answer.node_id.is_empty() {
        return Err(NodeInfoError::NoNodeId);
    }
    let mut ids = node_ids(node)?;
    let mut labels = BTreeMap::new();
    for (key, value) in &answer.topology {
        match node.metadata.labels.get(key) {
            Some(existing) if existing == value => {}
            Some(existing) => {
                return Err(NodeInfoError::Collision {
                    key: key.clone(),
                    reported: value.clone(),
                    existing: existing.to_owned(),
                });
            }
            None => {
                labels.insert(key, value);
            }
        }
    }
    let known = ids.get(driver) == Some(&answer.node_id);
    let legacy = legacy_limit(node, driver);
    if known && labels.is_empty() && legacy.is_none() {
        return Ok(None);
    }
    ids.insert(driver.to_owned(), answer.node_id.clone());
    let mut body = guarded(node);
    if !known {
        body["metadata"]["annotations"] = json!({annotation::LEGACY_NODE_ID: json!(ids).to_string()});
    }
    if !labels.is_empty() {
        body["metadata"]["labels"] = json!(labels);
    }
    if let Some(status) = legacy {
        body["status"] = status;
    }
    Ok(Some(Patch::Strategic(body)))
}

/// What makes a Node forget a driver; `None` if it has. Labels stay: volumes may be bound to where they say it is.
pub(super) fn uninstall_from_node(node: &Node, driver: &str) -> Result<Option<Patch>, NodeInfoError> {
    let mut ids = node_ids(node)?;
    let known = ids.remove(driver).is_some();
    let legacy = legacy_limit(node, driver);
    if !known && legacy.is_none() {
        return Ok(None);
    }
    let mut body = guarded(node);
    if known {
        let value = if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) };
        body["metadata"]["annotations"] = json!({annotation::LEGACY_NODE_ID: value});
    }
    if let Some(status) = legacy {
        body["status"] = status;
    }
    Ok(Some(Patch::Strategic(body)))
}

/// A map of all drivers is written anew, so it must be the one that was read.
fn guarded(node: &Node) -> Value {
    json!({"metadata": {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version}})
}

/// What removes a limit of before there were CSINodes.
fn legacy_limit(node: &Node, driver: &str) -> Option<Value> {
    let key = format!("{LEGACY_LIMIT}{driver}");
    node.status.allocatable.contains_key(&key).then(|| {
        let gone = json!({key: null});
        json!({"allocatable": gone, "capacity": gone})
    })
}

/// What to do with a CSINode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    Nothing,
    /// Replace it.
    Put(Value),
    /// Replace it, without the driver; then look again. What an entry says of the node may not change.
    TakeOut(Value),
}

/// A CSINode without drivers.
pub(super) fn new_csi_node(node: &Node, migrated: &[&str]) -> Value {
    let bare = json!({
        "apiVersion": CSINode::API.api_version(),
        "kind": CSINode::API.kind,
        "metadata": {"name": node.metadata.name},
        "spec": {"drivers": []},
    });
    prepared(&bare, node, migrated).unwrap_or(bare)
}

/// The CSINode with its owner and with what it says of in-tree plugins; `None` if it has both.
pub(super) fn prepared(csi_node: &Value, node: &Node, migrated: &[&str]) -> Option<Value> {
    let mut after = csi_node.clone();
    let metadata = &mut after["metadata"];
    let owner = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.metadata.name,
        "uid": node.metadata.uid,
    });
    // A Node of the same name that came after the one it was made for: it would be collected with that one.
    let owners = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
    let owned =
        owners.iter().any(|owner| owner["kind"] == "Node" && owner["uid"] == node.metadata.uid.as_str());
    if !owned {
        let others = owners.into_iter().filter(|owner| owner["kind"] != "Node");
        metadata["ownerReferences"] = others.chain([owner]).collect();
    }
    let said: BTreeSet<&str> = csi_node["metadata"]["annotations"][MIGRATED_PLUGINS]
        .as_str()
        .filter(|text| !text.is_empty())
        .map(|text| text.split(',').collect())
        .unwrap_or_default();
    let wanted: BTreeSet<&str> = migrated.iter().copied().collect();
    if said != wanted {
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        if wanted.is_empty() {
            metadata["annotations"].as_object_mut().map(|annotations| annotations.remove(MIGRATED_PLUGINS));
        } else {
            metadata["annotations"][MIGRATED_PLUGINS] =
                json!(wanted.into_iter().collect::<Vec<_>>().join(","));
        }
    }
    (after != *csi_node).then_some(after)
}

/// What makes a CSINode know a driver. `in_place`: the server may take another limit for an entry that is there.
pub(super) fn install_on_csi_node(
    csi_node: &Value,
    node: &Node,
    driver: &str,
    answer: &NodeAnswer,
    migrated: &[&str],
    in_place: bool,
) -> Change {
    let ready = prepared(csi_node, node, migrated);
    let current = drivers(csi_node).iter().find(|entry| entry["name"] == driver);
    let same = current.map(|current| Same {
        node: current["nodeID"] == answer.node_id.as_str() && topology_keys(current) == keys(answer),
        limit: current["allocatable"]["count"].as_i64() == count(answer.max_volumes).map(i64::from),
    });
    match (same, ready) {
        (Some(Same { node: true, limit: true }), None) => Change::Nothing,
        (Some(Same { node: true, limit: true }), Some(ready)) => Change::Put(ready),
        (Some(Same { node: true, limit: false }), ready) if in_place => {
            Change::Put(with_entry(ready.as_ref().unwrap_or(csi_node), driver, answer))
        }
        (Some(_), _) => Change::TakeOut(without_entry(csi_node, driver)),
        (None, ready) => Change::Put(with_entry(ready.as_ref().unwrap_or(csi_node), driver, answer)),
    }
}

struct Same {
    node: bool,
    limit: bool,
}

/// What makes a CSINode forget a driver.
pub(super) fn uninstall_from_csi_node(csi_node: &Value, driver: &str) -> Change {
    match drivers(csi_node).iter().any(|entry| entry["name"] == driver) {
        true => Change::Put(without_entry(csi_node, driver)),
        false => Change::Nothing,
    }
}

fn drivers(csi_node: &Value) -> &[Value] {
    csi_node["spec"]["drivers"].as_array().map_or(&[], Vec::as_slice)
}

fn keys(answer: &NodeAnswer) -> BTreeSet<&str> {
    answer.topology.keys().map(String::as_str).collect()
}

fn topology_keys(entry: &Value) -> BTreeSet<&str> {
    entry["topologyKeys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn without_entry(csi_node: &Value, driver: &str) -> Value {
    let mut after = csi_node.clone();
    let others = drivers(csi_node).iter().filter(|entry| entry["name"] != driver).cloned();
    after["spec"]["drivers"] = others.collect();
    after
}

fn with_entry(csi_node: &Value, driver: &str, answer: &NodeAnswer) -> Value {
    let mut after = without_entry(csi_node, driver);
    let mut entry = json!({"name": driver, "nodeID": answer.node_id, "topologyKeys": keys(answer)});
    if let Some(count) = count(answer.max_volumes) {
        entry["allocatable"] = json!({"count": count});
    }
    if let Some(drivers) = after["spec"]["drivers"].as_array_mut() {
        drivers.push(entry);
    }
    after
}

/// Whether both say what the driver says.
pub(super) fn is_written(node: &Node, csi_node: &CSINode, driver: &str, answer: &NodeAnswer) -> bool {
    let annotated = node_ids(node).is_ok_and(|ids| ids.get(driver) == Some(&answer.node_id));
    let labelled =
        answer.topology.iter().all(|(key, value)| node.metadata.labels.get(key) == Some(value.as_str()));
    let listed = csi_node.driver(driver).is_some_and(|entry| {
        let keys_said: BTreeSet<&str> = entry.topology_keys.iter().map(String::as_str).collect();
        let said = entry.allocatable.and_then(|allocatable| allocatable.count);
        entry.node_id == answer.node_id && keys_said == keys(answer) && said == count(answer.max_volumes)
    });
    annotated && labelled && listed
}

#[cfg(test)]
mod tests;
