//! Where a volume is to be: what CreateVolume is told about places, and what a volume tells about them later.
//!
//! A place is a set of segments, label and value. A requirement names the places that will do (requisite) and
//! their order (preferred); both are sorted before they are turned, so that the same claim asks the same each time.

mod affinity;

use std::cmp::Ordering;
use std::collections::BTreeMap;

pub use affinity::{allows, node_affinity, reaches, selects};

use crate::class::TopologySelectorTerm;
use crate::{CSINode, Map, Node};

/// A place: labels and their values.
pub type Segments = BTreeMap<String, String>;

/// What CreateVolume is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopologyRequirement {
    /// Places that will do.
    pub requisite: Vec<Segments>,
    /// The same places, the best first.
    pub preferred: Vec<Segments>,
}

/// What is known of a claim's wish.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The claim's name, by which volumes of a StatefulSet are spread.
    pub claim: &'a str,
    /// The class's `allowedTopologies`.
    pub allowed: &'a [TopologySelectorTerm],
    /// The node that the scheduler chose, and its place.
    pub selected: Option<Selected<'a>>,
    /// `--strict-topology`: the chosen node's place and no other.
    pub strict: bool,
    /// `--immediate-topology`: tell the driver about places even if nobody asks for one.
    pub immediate: bool,
}

/// The node that the scheduler chose.
#[derive(Debug, Clone, Copy)]
pub struct Selected<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its place; see [`place_of`].
    pub place: &'a Segments,
}

/// Why there is no requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The chosen node is gone: the scheduler has to choose again.
    #[error(
        "there is no CSINode for the selected node {node}: it is gone, or no CSI driver ever registered there"
    )]
    NoCSINode {
        /// The node.
        node: String,
    },
    /// The driver is not on the chosen node, or tells no place there.
    #[error("the driver has registered no topology keys on node {node}: is it running there?")]
    NoKeys {
        /// The node.
        node: String,
    },
    /// The chosen node lacks labels that its CSINode names.
    #[error("node {node} lacks a label of the driver's topology keys {keys:?}")]
    NoLabels {
        /// The node.
        node: String,
        /// The keys.
        keys: Vec<String>,
    },
    /// Strict: the chosen node is not where the class allows.
    #[error("the selected node {node} is at {place:?}, which the class's allowedTopologies do not allow")]
    NotAllowed {
        /// The node.
        node: String,
        /// Its place.
        place: Segments,
    },
    /// The driver tells its place on no node.
    #[error("no available topology: the driver has registered topology keys on no node yet")]
    NoPlaces,
    /// No node has the labels of these keys.
    #[error("no node has labels for the driver's topology keys {keys:?}")]
    KeysOnNoNode {
        /// The keys.
        keys: Vec<String>,
    },
    /// The chosen node is in none of the places.
    #[error(
        "the selected node {node} is at {place:?}, which is none of the places that will do: {requisite:?}"
    )]
    NotInRequisite {
        /// The node.
        node: String,
        /// Its place.
        place: Segments,
        /// The places.
        requisite: Vec<Segments>,
    },
}

impl TopologyError {
    /// Whether the scheduler has to choose another node.
    pub fn reschedules(&self) -> bool {
        matches!(self, Self::NoCSINode { .. })
    }
}

/// The topology keys of a driver on a node; empty while it is not registered there.
pub fn keys<'a>(csi_node: &'a CSINode, driver: &str) -> &'a [String] {
    csi_node.driver(driver).map_or(&[], |driver| &driver.topology_keys)
}

/// The place of a node by these keys; `None` if it lacks one of the labels.
pub fn segments(labels: &Map, keys: &[String]) -> Option<Segments> {
    keys.iter().map(|key| labels.get(key).map(|value| (key.clone(), value.to_owned()))).collect()
}

/// The place of the node that the scheduler chose.
pub fn place_of(
    node: &str,
    driver: &str,
    csi_node: Option<&CSINode>,
    labels: Option<&Map>,
) -> Result<Segments, TopologyError> {
    let csi_node = csi_node.ok_or_else(|| TopologyError::NoCSINode { node: node.to_owned() })?;
    let keys = keys(csi_node, driver);
    if keys.is_empty() {
        return Err(TopologyError::NoKeys { node: node.to_owned() });
    }
    labels
        .and_then(|labels| segments(labels, keys))
        .ok_or_else(|| TopologyError::NoLabels { node: node.to_owned(), keys: keys.to_vec() })
}

/// All places of the cluster by these keys.
pub fn places<'a>(
    keys: &[String],
    nodes: impl IntoIterator<Item = &'a Node>,
) -> Result<Vec<Segments>, TopologyError> {
    if keys.is_empty() {
        return Err(TopologyError::NoPlaces);
    }
    let mut places: Vec<_> =
        nodes.into_iter().filter_map(|node| segments(&node.metadata.labels, keys)).collect();
    sort(&mut places);
    match places.is_empty() {
        true => Err(TopologyError::KeysOnNoNode { keys: keys.to_vec() }),
        false => Ok(places),
    }
}

/// The requirement for a claim; `None` if the driver is to be told nothing. All places of the cluster are only
/// asked for when they are needed.
pub fn requirement(
    ask: &Ask<'_>,
    all: impl FnOnce() -> Result<Vec<Segments>, TopologyError>,
) -> Result<Option<TopologyRequirement>, TopologyError> {
    let allowed = flatten(ask.allowed);
    let mut requisite = match ask.selected {
        Some(Selected { node, place }) if ask.strict => {
            if !ask.allowed.is_empty() && !allowed.iter().any(|term| is_within(term, place)) {
                return Err(TopologyError::NotAllowed { node: node.to_owned(), place: place.clone() });
            }
            vec![place.clone()]
        }
        _ if !ask.allowed.is_empty() => allowed,
        None if !ask.immediate => return Ok(None),
        _ => all()?,
    };
    // Allowed topologies that say nothing: as if the driver knew no places.
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
        Some(Selected { node, place }) => {
            let Some(best) = requisite.iter().position(|term| is_within(term, place)) else {
                return Err(TopologyError::NotInRequisite {
                    node: node.to_owned(),
                    place: place.clone(),
                    requisite,
                });
            };
            preferred.rotate_left(best);
        }
    }
    Ok(Some(TopologyRequirement { requisite, preferred }))
}

/// `allowedTopologies` as places: each combination of one value a label.
pub fn flatten(allowed: &[TopologySelectorTerm]) -> Vec<Segments> {
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
        // A term without expressions names no place.
        places.into_iter().filter(|place| !place.is_empty()).collect::<Vec<_>>()
    };
    allowed.iter().flat_map(of_term).collect()
}

/// Whether all that the term says is true of the place.
fn is_within(term: &Segments, place: &Segments) -> bool {
    term.iter().all(|(key, value)| place.get(key) == Some(value))
}

/// Upstream's order, which the rotation depends on: those with fewer labels first. Each place once.
fn sort(places: &mut Vec<Segments>) {
    let order = |a: &Segments, b: &Segments| -> Ordering { a.len().cmp(&b.len()).then_with(|| a.cmp(b)) };
    places.sort_by(order);
    places.dedup();
}

/// By how much a claim's volume is turned: a hash, and the ordinal of its StatefulSet's pod.
///
/// Claims of a StatefulSet are called `claim-set-ordinal`. Only the set's name is hashed, so that all the claims of
/// one pod go to the same place, and the next pod's to the next. Names that only look so are treated so too.
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

/// FNV-1 (not 1a) of 32 bits, as upstream has it.
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

#[cfg(test)]
mod tests;
