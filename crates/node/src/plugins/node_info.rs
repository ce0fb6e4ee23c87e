//! Computes the entries of drivers in Node and CSINode: pure functions from the current object to the changed one.
//! [`write`] performs the writes.
//!
//! - Node: the annotation with the drivers' node ids, and the topology labels. An existing label with another value
//!   contradicts the driver: nothing is written then.
//! - CSINode: an entry for each driver, and the list of in-tree plugins migrated to CSI. Owned by its Node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wharf_model::Node;
use wharf_model::names::annotation;
use wharf_model::patch::Patch;
use wharf_model::{CSINode, Kind as _};

use super::view::DriverNodeInfo;

pub(super) mod write;

/// In-tree plugins migrated to CSI in Kubernetes 1.34.
pub(super) const MIGRATED: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];
/// The CSINode annotation that lists them.
const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// Prefix of the Node resource that held a driver's volume limit before CSINode existed.
const LEGACY_LIMIT: &str = "attachable-volumes-csi-";

/// Why a driver cannot be written to a Node. The wording is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NodeInfoError {
    /// The driver's node id is empty.
    #[error("error adding CSI driver node info: driverNodeID must not be empty")]
    NoNodeId,
    /// The annotation has been set to something else.
    #[error(
        "failed to parse node's {:?} annotation value ({value:?}): remove it, or make it a JSON map of names",
        annotation::LEGACY_NODE_ID
    )]
    Annotation {
        /// The annotation's value.
        value: String,
    },
    /// The Node has a different topology label.
    #[error(
        "detected topology value collision: driver reported {key:?}:{reported:?} but existing label is {key:?}:{existing:?}"
    )]
    Collision {
        /// The label key.
        key: String,
        /// The driver's value.
        reported: String,
        /// The Node's value.
        existing: String,
    },
}

/// The limit for CSINode: zero and negative values are no limit.
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

/// The patch that adds a driver to a Node; `None` if nothing changes.
pub(super) fn install_on_node(
    node: &Node,
    driver: &str,
    info: &DriverNodeInfo,
) -> Result<Option<Patch>, NodeInfoError> {
    if info.node_id.is_empty() {
        return Err(NodeInfoError::NoNodeId);
    }
    let mut ids = node_ids(node)?;
    let mut labels = BTreeMap::new();
    for (key, value) in &info.topology {
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
    let known = ids.get(driver) == Some(&info.node_id);
    let legacy = legacy_limit(node, driver);
    if known && labels.is_empty() && legacy.is_none() {
        return Ok(None);
    }
    ids.insert(driver.to_owned(), info.node_id.clone());
    let mut body = preconditions(node);
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

/// The patch that removes a driver from a Node; `None` if nothing changes. Labels stay: volumes may be bound to that
/// topology.
pub(super) fn uninstall_from_node(node: &Node, driver: &str) -> Result<Option<Patch>, NodeInfoError> {
    let mut ids = node_ids(node)?;
    let known = ids.remove(driver).is_some();
    let legacy = legacy_limit(node, driver);
    if !known && legacy.is_none() {
        return Ok(None);
    }
    let mut body = preconditions(node);
    if known {
        let value = if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) };
        body["metadata"]["annotations"] = json!({annotation::LEGACY_NODE_ID: value});
    }
    if let Some(status) = legacy {
        body["status"] = status;
    }
    Ok(Some(Patch::Strategic(body)))
}

/// The patch replaces the map of all drivers, so it must apply to the version that was read.
fn preconditions(node: &Node) -> Value {
    json!({"metadata": {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version}})
}

/// The patch that removes a volume limit from the time before CSINode.
fn legacy_limit(node: &Node, driver: &str) -> Option<Value> {
    let key = format!("{LEGACY_LIMIT}{driver}");
    node.status.allocatable.contains_key(&key).then(|| {
        let gone = json!({key: null});
        json!({"allocatable": gone, "capacity": gone})
    })
}

/// How to update a CSINode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// No change.
    Nothing,
    /// Replace the object.
    Update(Value),
    /// Replace the object without the driver's entry, then compute again: node id and topology keys of an entry are
    /// immutable.
    RemoveEntry(Value),
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

/// The CSINode with its owner and its migrated-plugins annotation; `None` if it has both.
pub(super) fn prepared(csi_node: &Value, node: &Node, migrated: &[&str]) -> Option<Value> {
    let mut after = csi_node.clone();
    let metadata = &mut after["metadata"];
    let owner = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.metadata.name,
        "uid": node.metadata.uid,
    });
    // The owner may be an earlier Node of the same name: the CSINode would be garbage-collected with that one.
    let owners = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
    let owned =
        owners.iter().any(|owner| owner["kind"] == "Node" && owner["uid"] == node.metadata.uid.as_str());
    if !owned {
        let others = owners.into_iter().filter(|owner| owner["kind"] != "Node");
        metadata["ownerReferences"] = others.chain([owner]).collect();
    }
    let current: BTreeSet<&str> = csi_node["metadata"]["annotations"][MIGRATED_PLUGINS]
        .as_str()
        .filter(|text| !text.is_empty())
        .map(|text| text.split(',').collect())
        .unwrap_or_default();
    let wanted: BTreeSet<&str> = migrated.iter().copied().collect();
    if current != wanted {
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

/// Adds a driver to a CSINode. `in_place`: the server may accept a changed limit in an existing entry.
pub(super) fn install_on_csi_node(
    csi_node: &Value,
    node: &Node,
    driver: &str,
    info: &DriverNodeInfo,
    migrated: &[&str],
    in_place: bool,
) -> Change {
    let ready = prepared(csi_node, node, migrated);
    let current = drivers(csi_node).iter().find(|entry| entry["name"] == driver);
    let same = current.map(|current| Same {
        node: current["nodeID"] == info.node_id.as_str() && topology_keys(current) == keys(info),
        limit: current["allocatable"]["count"].as_i64() == count(info.max_volumes).map(i64::from),
    });
    match (same, ready) {
        (Some(Same { node: true, limit: true }), None) => Change::Nothing,
        (Some(Same { node: true, limit: true }), Some(ready)) => Change::Update(ready),
        (Some(Same { node: true, limit: false }), ready) if in_place => {
            Change::Update(with_entry(ready.as_ref().unwrap_or(csi_node), driver, info))
        }
        (Some(_), _) => Change::RemoveEntry(without_entry(csi_node, driver)),
        (None, ready) => Change::Update(with_entry(ready.as_ref().unwrap_or(csi_node), driver, info)),
    }
}

struct Same {
    node: bool,
    limit: bool,
}

/// Removes a driver from a CSINode.
pub(super) fn uninstall_from_csi_node(csi_node: &Value, driver: &str) -> Change {
    match drivers(csi_node).iter().any(|entry| entry["name"] == driver) {
        true => Change::Update(without_entry(csi_node, driver)),
        false => Change::Nothing,
    }
}

fn drivers(csi_node: &Value) -> &[Value] {
    csi_node["spec"]["drivers"].as_array().map_or(&[], Vec::as_slice)
}

fn keys(info: &DriverNodeInfo) -> BTreeSet<&str> {
    info.topology.keys().map(String::as_str).collect()
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

fn with_entry(csi_node: &Value, driver: &str, info: &DriverNodeInfo) -> Value {
    let mut after = without_entry(csi_node, driver);
    let mut entry = json!({"name": driver, "nodeID": info.node_id, "topologyKeys": keys(info)});
    if let Some(count) = count(info.max_volumes) {
        entry["allocatable"] = json!({"count": count});
    }
    if let Some(drivers) = after["spec"]["drivers"].as_array_mut() {
        drivers.push(entry);
    }
    after
}

/// Whether Node and CSINode both match the driver's node info.
pub(super) fn is_written(node: &Node, csi_node: &CSINode, driver: &str, info: &DriverNodeInfo) -> bool {
    let annotated = node_ids(node).is_ok_and(|ids| ids.get(driver) == Some(&info.node_id));
    let labelled =
        info.topology.iter().all(|(key, value)| node.metadata.labels.get(key) == Some(value.as_str()));
    let listed = csi_node.driver(driver).is_some_and(|entry| {
        let keys_found: BTreeSet<&str> = entry.topology_keys.iter().map(String::as_str).collect();
        let current = entry.allocatable.and_then(|allocatable| allocatable.count);
        entry.node_id == info.node_id && keys_found == keys(info) && current == count(info.max_volumes)
    });
    annotated && labelled && listed
}

#[cfg(test)]
mod tests;
