//! Places, as CreateVolume is told of them, and how they are written down: where each node is a place of its own, a
//! cluster of thousands has to fit into one intent. So each label is written once for all places, and the order in
//! which they are preferred as the place where it begins.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use wharf_model::topology::Segments;

/// Places that will do, and their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Paper", into = "Paper")]
pub(crate) struct Places {
    pub(crate) requisite: Vec<Segments>,
    pub(crate) preferred: Vec<Segments>,
}

/// The values of one place, in the order of the labels; none where it lacks one.
type Row = Vec<Option<String>>;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Paper {
    labels: Vec<String>,
    requisite: Vec<Row>,
    /// The same places are preferred, beginning with this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first: Option<usize>,
    /// Other places are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    preferred: Vec<Row>,
}

impl From<Places> for Paper {
    fn from(Places { requisite, preferred }: Places) -> Self {
        let all = requisite.iter().chain(&preferred).flat_map(Segments::keys);
        let labels: Vec<String> = all.collect::<BTreeSet<_>>().into_iter().cloned().collect();
        let rows = |places: &[Segments]| -> Vec<Row> {
            places
                .iter()
                .map(|place| labels.iter().map(|label| place.get(label).cloned()).collect())
                .collect()
        };
        let first = begins(&requisite, &preferred);
        let others = if first.is_some() { Vec::new() } else { rows(&preferred) };
        Self { requisite: rows(&requisite), first, preferred: others, labels }
    }
}

impl From<Paper> for Places {
    fn from(Paper { labels, requisite, first, preferred }: Paper) -> Self {
        let places = |rows: Vec<Row>| -> Vec<Segments> {
            let place = |row: Row| {
                labels.iter().cloned().zip(row).filter_map(|(label, value)| Some((label, value?))).collect()
            };
            rows.into_iter().map(place).collect()
        };
        let requisite = places(requisite);
        let preferred = match first {
            None => places(preferred),
            Some(first) => {
                let mut turned = requisite.clone();
                // Never past the end, whatever was read.
                turned.rotate_left(first.checked_rem(requisite.len()).unwrap_or_default());
                turned
            }
        };
        Self { requisite, preferred }
    }
}

/// With which of the places the same ones begin in another order.
fn begins(requisite: &[Segments], preferred: &[Segments]) -> Option<usize> {
    let first = match preferred.first() {
        None => 0,
        Some(best) => requisite.iter().position(|place| place == best)?,
    };
    let turned = requisite[first..].iter().chain(&requisite[..first]);
    turned.eq(preferred).then_some(first)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn place(labels: &[(&str, &str)]) -> Segments {
        labels.iter().map(|&(label, value)| (label.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let [a, b, c] = [("zone", "a"), ("zone", "b"), ("rack", "1")].map(|label| place(&[label]));
        let all =
            vec![a.clone(), b.clone(), c.clone(), place(&[("rack", "2"), ("zone", "a")]), Segments::new()];
        for (preferred, first) in [
            (all.clone(), Some(0)),
            ([&all[2..], &all[..2]].concat(), Some(2)),
            (vec![b.clone(), a.clone()], None),
            (vec![place(&[("host", "h")])], None),
            (Vec::new(), None),
        ] {
            let places = Places { requisite: all.clone(), preferred };
            let paper = serde_json::to_value(&places).unwrap();
            assert_eq!(paper.get("first"), first.map(|first| json!(first)).as_ref());
            assert_eq!(serde_json::from_value::<Places>(paper).unwrap(), places);
        }
        let empty = Places::default();
        let paper = serde_json::to_value(&empty).unwrap();
        assert_eq!(serde_json::from_value::<Places>(paper).unwrap(), empty);
        let odd = json!({"labels": ["zone"], "requisite": [["a"], []], "first": 7});
        let read: Places = serde_json::from_value(odd).unwrap();
        assert_eq!(read.preferred, [Segments::new(), a]);
    }

    /// Kubernetes goes up to 5,000 nodes, and allows 256 KiB of annotations.
    #[test]
    fn a_large_cluster_fits() {
        let node = |i: usize| {
            place(&[("topology.d.test/node", &format!("ip-10-0-{}-{}.internal", i / 256, i % 256))])
        };
        let requisite: Vec<_> = (0..5000).map(node).collect();
        let mut preferred = requisite.clone();
        preferred.rotate_left(4321);
        let bytes = serde_json::to_string(&Places { requisite, preferred }).unwrap().len();
        assert!(bytes < 150 << 10, "{bytes}");
    }
}
