//! Topology: the `accessibility_requirements` of CreateVolume, and the node affinity of the resulting volume.
//!
//! A topology is a set of segments, label key and value. A requirement lists the allowed topologies (requisite) and
//! their order (preferred). Both are sorted before they are rotated, so that the same claim always sends the same
//! request.

mod affinity;

use std::cmp::Ordering;
use std::collections::BTreeMap;

pub use affinity::{is_accessible_from, node_affinity, selector_matches_node, topologies_allow};

use crate::class::TopologySelectorTerm;
use crate::{CSINode, Node, StringMap};

/// The segments of a topology: label keys and their values.
pub type Segments = BTreeMap<String, String>;

/// CSI's TopologyRequirement for CreateVolume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopologyRequirement {
    /// Topologies that the volume may be created in.
    pub requisite: Vec<Segments>,
    /// The same topologies, in order of preference.
    pub preferred: Vec<Segments>,
}

/// The inputs of a claim's topology requirement.
#[derive(Debug, Clone, Copy)]
pub struct RequirementInputs<'a> {
    /// The claim's name, by which volumes of a StatefulSet are spread.
    pub claim: &'a str,
    /// The class's `allowedTopologies`.
    pub allowed: &'a [TopologySelectorTerm],
    /// The node that the scheduler selected, and its topology.
    pub selected: Option<SelectedNode<'a>>,
    /// `--strict-topology`: only the selected node's topology.
    pub strict: bool,
    /// `--immediate-topology`: pass all topologies to the driver for Immediate binding, too.
    pub immediate: bool,
}

/// The node that the scheduler selected.
#[derive(Debug, Clone, Copy)]
pub struct SelectedNode<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its topology; see `node_segments`.
    pub segments: &'a Segments,
}

/// Why a topology requirement cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The selected node has no CSINode: the scheduler has to select another.
    #[error(
        "CSINode {node} does not exist: the selected node is gone, or no CSI driver has registered on it"
    )]
    NoCSINode {
        /// The node.
        node: String,
    },
    /// The driver is not registered on the selected node, or without topology keys.
    #[error("the driver has not registered topology keys on node {node}: is it running there?")]
    NoTopologyKeysOnNode {
        /// The node.
        node: String,
    },
    /// The selected node lacks a label that its CSINode lists as topology key.
    #[error("node {node} does not have labels for all of the driver's topology keys {keys:?}")]
    MissingLabels {
        /// The node.
        node: String,
        /// The keys.
        keys: Vec<String>,
    },
    /// Strict topology: the class does not allow the selected node's topology.
    #[error(
        "selected node {node} has topology {segments:?}, which allowedTopologies of the class do not allow"
    )]
    NotAllowed {
        /// The node.
        node: String,
        /// Its topology segments.
        segments: Segments,
    },
    /// The driver has not registered topology keys on any node.
    #[error("no available topology: the driver has not registered topology keys on any node yet")]
    NoTopologyKeys,
    /// No node has labels for these keys.
    #[error("no node has labels for the driver's topology keys {keys:?}")]
    KeysOnNoNode {
        /// The keys.
        keys: Vec<String>,
    },
    /// The selected node's topology is not one of the requisite topologies.
    #[error(
        "selected node {node} has topology {segments:?}, which is not one of the requisite {requisite:?}"
    )]
    NotInRequisite {
        /// The node.
        node: String,
        /// Its topology segments.
        segments: Segments,
        /// The requisite topologies.
        requisite: Vec<Segments>,
    },
}

impl TopologyError {
    /// Whether the scheduler has to select another node.
    pub fn needs_rescheduling(&self) -> bool {
        matches!(self, Self::NoCSINode { .. })
    }
}

/// The topology keys of a driver on a node; empty while it is not registered there.
pub fn topology_keys<'a>(csi_node: &'a CSINode, driver: &str) -> &'a [String] {
    csi_node.driver(driver).map_or(&[], |driver| &driver.topology_keys)
}

/// The topology of a node with these labels, by these keys; `None` if it lacks one of the labels.
pub fn segments_from_labels(labels: &StringMap, keys: &[String]) -> Option<Segments> {
    keys.iter().map(|key| labels.get(key).map(|value| (key.clone(), value.to_owned()))).collect()
}

/// The topology of the node that the scheduler selected.
pub fn node_segments(
    node: &str,
    driver: &str,
    csi_node: Option<&CSINode>,
    labels: Option<&StringMap>,
) -> Result<Segments, TopologyError> {
    let csi_node = csi_node.ok_or_else(|| TopologyError::NoCSINode { node: node.to_owned() })?;
    let keys = topology_keys(csi_node, driver);
    if keys.is_empty() {
        return Err(TopologyError::NoTopologyKeysOnNode { node: node.to_owned() });
    }
    labels
        .and_then(|labels| segments_from_labels(labels, keys))
        .ok_or_else(|| TopologyError::MissingLabels { node: node.to_owned(), keys: keys.to_vec() })
}

/// All topologies of the cluster by these keys.
pub fn cluster_segments<'a>(
    keys: &[String],
    nodes: impl IntoIterator<Item = &'a Node>,
) -> Result<Vec<Segments>, TopologyError> {
    if keys.is_empty() {
        return Err(TopologyError::NoTopologyKeys);
    }
    let mut topologies: Vec<_> =
        nodes.into_iter().filter_map(|node| segments_from_labels(&node.metadata.labels, keys)).collect();
    sort(&mut topologies);
    match topologies.is_empty() {
        true => Err(TopologyError::KeysOnNoNode { keys: keys.to_vec() }),
        false => Ok(topologies),
    }
}

/// The requirement for a claim; `None` if the request has none. `all` computes all topologies of the cluster and is
/// only called if they are needed.
pub fn requirement(
    ask: &RequirementInputs<'_>,
    all: impl FnOnce() -> Result<Vec<Segments>, TopologyError>,
) -> Result<Option<TopologyRequirement>, TopologyError> {
    let allowed = expand_allowed_topologies(ask.allowed);
    let mut requisite = match ask.selected {
        Some(SelectedNode { node, segments: place }) if ask.strict => {
            if !ask.allowed.is_empty() && !allowed.iter().any(|term| is_within(term, place)) {
                return Err(TopologyError::NotAllowed { node: node.to_owned(), segments: place.clone() });
            }
            vec![place.clone()]
        }
        _ if !ask.allowed.is_empty() => allowed,
        None if !ask.immediate => return Ok(None),
        _ => all()?,
    };
    // allowedTopologies without any segments: no requirement.
    if requisite.is_empty() {
        return Ok(None);
    }
    sort(&mut requisite);

    let mut preferred = requisite.clone();
    match ask.selected {
        None => {
            let (hash, ordinal) = spread(ask.claim);
            preferred.rotate_left(hash.wrapping_add(ordinal) as usize % requisite.len());
        }
        Some(SelectedNode { node, segments: place }) => {
            let Some(best) = requisite.iter().position(|term| is_within(term, place)) else {
                return Err(TopologyError::NotInRequisite {
                    node: node.to_owned(),
                    segments: place.clone(),
                    requisite,
                });
            };
            preferred.rotate_left(best);
        }
    }
    Ok(Some(TopologyRequirement { requisite, preferred }))
}

/// Expands `allowedTopologies` to topologies: each combination of one value per label.
pub fn expand_allowed_topologies(allowed: &[TopologySelectorTerm]) -> Vec<Segments> {
    let of_term = |term: &TopologySelectorTerm| {
        let places = term.match_label_expressions.iter().fold(vec![Segments::new()], |places, expression| {
            let with = |place: &Segments, value: &String| {
                let mut place = place.clone();
                place.insert(expression.key.clone(), value.clone());
                place
            };
            expression
                .values
                .iter()
                .flat_map(|value| places.iter().map(move |place| with(place, value)))
                .collect()
        });
        // A term without expressions is no topology.
        places.into_iter().filter(|place| !place.is_empty()).collect::<Vec<_>>()
    };
    allowed.iter().flat_map(of_term).collect()
}

/// Whether a topology has all segments of a term.
fn is_within(term: &Segments, topology: &Segments) -> bool {
    term.iter().all(|(key, value)| topology.get(key) == Some(value))
}

/// Sorts in upstream's order, which the rotation depends on: fewer labels first. Removes duplicates.
fn sort(topologies: &mut Vec<Segments>) {
    let order = |a: &Segments, b: &Segments| -> Ordering { a.len().cmp(&b.len()).then_with(|| a.cmp(b)) };
    topologies.sort_by(order);
    topologies.dedup();
}

/// The rotation for a claim's volume: a hash, and the ordinal of its StatefulSet's pod.
///
/// Claims of a StatefulSet are named `claim-set-ordinal`. Only the set's name is hashed, so that all claims of one pod
/// get the same topology and those of the next pod the next one. Other names of this form are treated the same way.
fn spread(claim: &str) -> (u32, u32) {
    let ordinal = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u32>().ok(),
        false => None,
    };
    match claim.rsplit_once('-').and_then(|(name, last)| ordinal(last).map(|ordinal| (name, ordinal))) {
        Some((name, ordinal)) => (fnv1(name.rsplit_once('-').map_or(name, |(_, set)| set)), ordinal),
        None => (fnv1(claim), 0),
    }
}

/// 32-bit FNV-1 (not FNV-1a), as upstream uses it.
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

#[cfg(test)]
mod tests;
