//! The topology requirement of CreateVolume and its compact encoding. If each node is a topology segment of its own, a
//! cluster with thousands of nodes has to fit into one intent. So each label is written once for all segments, and the
//! preferred order, usually a rotation of the requisite one, as the index where it starts.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use wharf_model::topology::{Segments, TopologyRequirement};

/// Requisite and preferred topologies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Encoded", into = "Encoded")]
pub(crate) struct IntentTopology {
    pub(crate) requisite: Vec<Segments>,
    pub(crate) preferred: Vec<Segments>,
}

impl From<TopologyRequirement> for IntentTopology {
    fn from(TopologyRequirement { requisite, preferred }: TopologyRequirement) -> Self {
        Self { requisite, preferred }
    }
}

impl IntentTopology {
    /// Whether a volume that was requested with this topology is still what a request with the other topology is for:
    /// for the same selected node or, without one, for any topology that still exists. Nodes that join or leave
    /// change the lists without changing that.
    pub(crate) fn is_for(&self, needed: &Self, node_selected: bool) -> bool {
        match node_selected {
            true => self.preferred.first() == needed.preferred.first(),
            false => self.requisite.iter().any(|topology| needed.requisite.contains(topology)),
        }
    }
}

/// The values of one topology, in the order of the labels. `None`: the label is missing.
type Row = Vec<Option<String>>;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Encoded {
    labels: Vec<String>,
    requisite: Vec<Row>,
    /// The preferred list is the requisite one, rotated to start at this index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first: Option<usize>,
    /// The preferred list, if it is not a rotation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    preferred: Vec<Row>,
}

impl From<IntentTopology> for Encoded {
    fn from(IntentTopology { requisite, preferred }: IntentTopology) -> Self {
        let all = requisite.iter().chain(&preferred).flat_map(Segments::keys);
        let labels: Vec<String> = all.collect::<BTreeSet<_>>().into_iter().cloned().collect();
        let rows = |topologies: &[Segments]| -> Vec<Row> {
            topologies
                .iter()
                .map(|segments| labels.iter().map(|label| segments.get(label).cloned()).collect())
                .collect()
        };
        let first = rotation(&requisite, &preferred);
        let others = if first.is_some() { Vec::new() } else { rows(&preferred) };
        Self { requisite: rows(&requisite), first, preferred: others, labels }
    }
}

impl From<Encoded> for IntentTopology {
    fn from(Encoded { labels, requisite, first, preferred }: Encoded) -> Self {
        let topologies = |rows: Vec<Row>| -> Vec<Segments> {
            let segments = |row: Row| {
                labels.iter().cloned().zip(row).filter_map(|(label, value)| Some((label, value?))).collect()
            };
            rows.into_iter().map(segments).collect()
        };
        let requisite = topologies(requisite);
        let preferred = match first {
            None => topologies(preferred),
            Some(first) => {
                let mut rotated = requisite.clone();
                // Whatever was read, never rotate past the end.
                rotated.rotate_left(first.checked_rem(requisite.len()).unwrap_or_default());
                rotated
            }
        };
        Self { requisite, preferred }
    }
}

/// The index at which `preferred` starts, if it is a rotation of `requisite`.
fn rotation(requisite: &[Segments], preferred: &[Segments]) -> Option<usize> {
    let first = match preferred.first() {
        None => 0,
        Some(best) => requisite.iter().position(|segments| segments == best)?,
    };
    let rotated = requisite[first..].iter().chain(&requisite[..first]);
    rotated.eq(preferred).then_some(first)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn segments(labels: &[(&str, &str)]) -> Segments {
        labels.iter().map(|&(label, value)| (label.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn encoding_round_trips() {
        let [a, b, c] = [("zone", "a"), ("zone", "b"), ("rack", "1")].map(|label| segments(&[label]));
        let all =
            vec![a.clone(), b.clone(), c.clone(), segments(&[("rack", "2"), ("zone", "a")]), Segments::new()];
        for (preferred, first) in [
            (all.clone(), Some(0)),
            ([&all[2..], &all[..2]].concat(), Some(2)),
            (vec![b.clone(), a.clone()], None),
            (vec![segments(&[("host", "h")])], None),
            (Vec::new(), None),
        ] {
            let topologies = IntentTopology { requisite: all.clone(), preferred };
            let encoded = serde_json::to_value(&topologies).unwrap();
            assert_eq!(encoded.get("first"), first.map(|first| json!(first)).as_ref());
            assert_eq!(serde_json::from_value::<IntentTopology>(encoded).unwrap(), topologies);
        }
        let empty = IntentTopology::default();
        let encoded = serde_json::to_value(&empty).unwrap();
        assert_eq!(serde_json::from_value::<IntentTopology>(encoded).unwrap(), empty);
        let odd = json!({"labels": ["zone"], "requisite": [["a"], []], "first": 7});
        let read: IntentTopology = serde_json::from_value(odd).unwrap();
        assert_eq!(read.preferred, [Segments::new(), a]);
    }

    /// Kubernetes supports 5,000 nodes and allows 256 KiB of annotations.
    #[test]
    fn topology_of_large_cluster_fits_annotation_limit() {
        let node = |i: usize| {
            segments(&[("topology.d.test/node", &format!("ip-10-0-{}-{}.internal", i / 256, i % 256))])
        };
        let requisite: Vec<_> = (0..5000).map(node).collect();
        let mut preferred = requisite.clone();
        preferred.rotate_left(4321);
        let bytes = serde_json::to_string(&IntentTopology { requisite, preferred }).unwrap().len();
        assert!(bytes < 150 << 10, "{bytes}");
    }
}
