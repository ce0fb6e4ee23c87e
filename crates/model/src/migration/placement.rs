//! Topology in labels and node affinity: in-tree volumes use Kubernetes' zone and region labels, CSI volumes the labels
//! of their driver.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::TranslationError;
use crate::selector::{NodeSelectorTerm, Operator, Requirement};
use crate::volume::NodeAffinity;

/// The zone label, and its name before Kubernetes 1.17.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
/// The region label, likewise.
const REGION: &str = "topology.kubernetes.io/region";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Between the zones in a label of a volume.
pub(super) const ZONE_SEPARATOR: &str = "__";

/// Derives the region of zones.
pub(super) type RegionOf = fn(&[String]) -> Result<String, TranslationError>;

/// Labels and node affinity of a volume.
pub(super) struct Placement {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) affinity: Option<NodeAffinity>,
}

impl Placement {
    /// To the driver's zone label. A zone in the node affinity has precedence over the volume's label.
    pub(super) fn use_driver_label(&mut self, driver_zone: &str) {
        let (zone, region) = self.kubernetes_labels();
        if !self.values(zone).is_empty() {
            self.rename(zone, driver_zone);
        } else if let Some(label) = self.labels.get(zone).cloned() {
            self.require(driver_zone, label.split(ZONE_SEPARATOR));
        }
        // New nodes do not have the old label.
        if region == BETA_REGION && !self.values(BETA_REGION).is_empty() {
            self.rename(BETA_REGION, REGION);
        }
    }

    /// To the driver's zone and region labels, each with a single value.
    pub(super) fn use_driver_labels_with_region(&mut self, driver_zone: &str, driver_region: &str) {
        let (zone, region) = self.kubernetes_labels();
        for (from, to) in [(zone, driver_zone), (region, driver_region)] {
            if !self.values(from).is_empty() {
                self.rename(from, to);
            } else if let Some(label) = self.labels.get(from).cloned() {
                self.require(to, [label.as_str()]);
            }
        }
    }

    /// From the driver's zone label, also to the volume's label. `region_of` adds the region of each term.
    pub(super) fn use_kubernetes_labels(
        &mut self,
        driver_zone: &str,
        region_of: Option<RegionOf>,
    ) -> Result<(), TranslationError> {
        let (zone, _) = self.kubernetes_labels();
        self.rename(driver_zone, zone);
        if let Some(region_of) = region_of {
            self.add_regions(region_of)?;
        }
        let zones = self.values(zone);
        if !zones.is_empty() {
            self.label(zone, zones.join(ZONE_SEPARATOR));
        }
        Ok(())
    }

    /// From the driver's zone and region labels. The volume's labels get the first value of each.
    pub(super) fn use_kubernetes_labels_with_region(&mut self, driver_zone: &str, driver_region: &str) {
        let (zone, region) = self.kubernetes_labels();
        self.rename(driver_zone, zone);
        self.rename(driver_region, region);
        for label in [zone, region] {
            if let Some(first) = self.values(label).into_iter().next() {
                self.label(label, first);
            }
        }
    }

    fn add_regions(&mut self, region_of: RegionOf) -> Result<(), TranslationError> {
        let (zone, region) = self.kubernetes_labels();
        let mut any = false;
        for term in self.terms_mut() {
            any = true;
            if term.match_expressions.iter().any(|requirement| requirement.key == region) {
                continue;
            }
            let zones = term.match_expressions.iter().filter(|requirement| requirement.key == zone);
            let zones: Vec<String> = zones.flat_map(|requirement| requirement.values.clone()).collect();
            term.match_expressions.push(Requirement {
                key: region.to_owned(),
                operator: Operator::In,
                values: vec![region_of(&zones)?],
            });
        }
        if any && let [only] = &self.values(region)[..] {
            self.label(region, only.clone());
        }
        Ok(())
    }

    /// The zone and region labels that the volume uses: the old ones only if it has no new one.
    fn kubernetes_labels(&self) -> (&'static str, &'static str) {
        let in_affinity =
            |key: &str| self.requirements().any(|requirement: &Requirement| requirement.key == key);
        let beta = match (in_affinity(ZONE), in_affinity(BETA_ZONE)) {
            (true, _) => false,
            (false, true) => true,
            (false, false) => !self.labels.contains_key(ZONE) && self.labels.contains_key(BETA_ZONE),
        };
        if beta { (BETA_ZONE, BETA_REGION) } else { (ZONE, REGION) }
    }

    /// The values of a label in all terms, sorted.
    fn values(&self, key: &str) -> Vec<String> {
        let values = self.requirements().filter(|requirement| requirement.key == key);
        let values: BTreeSet<_> = values.flat_map(|requirement| &requirement.values).cloned().collect();
        values.into_iter().collect()
    }

    fn rename(&mut self, from: &str, to: &str) {
        let requirements = self.terms_mut().flat_map(|term| &mut term.match_expressions);
        for requirement in requirements.filter(|requirement| requirement.key == from) {
            to.clone_into(&mut requirement.key);
        }
    }

    /// Adds a requirement to each term. Without a valid value there is nothing to add.
    fn require<'a>(&mut self, key: &str, values: impl IntoIterator<Item = &'a str>) {
        let values: BTreeSet<_> =
            values.into_iter().map(str::trim).filter(|value| !value.is_empty()).collect();
        if values.is_empty() {
            return;
        }
        let requirement = Requirement {
            key: key.to_owned(),
            operator: Operator::In,
            values: values.into_iter().map(str::to_owned).collect(),
        };
        let required = self.affinity.get_or_insert_default().required.get_or_insert_default();
        if required.node_selector_terms.is_empty() {
            required.node_selector_terms.push(NodeSelectorTerm::default());
        }
        for term in &mut required.node_selector_terms {
            term.match_expressions.push(requirement.clone());
        }
    }

    /// Sets a label that the volume does not have yet.
    fn label(&mut self, key: &str, value: String) {
        self.labels.entry(key.to_owned()).or_insert(value);
    }

    fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        let required = self.affinity.iter().filter_map(|affinity| affinity.required.as_ref());
        required.flat_map(|required| &required.node_selector_terms).flat_map(|term| &term.match_expressions)
    }

    fn terms_mut(&mut self) -> impl Iterator<Item = &mut NodeSelectorTerm> {
        let required = self.affinity.iter_mut().filter_map(|affinity| affinity.required.as_mut());
        required.flat_map(|required| &mut required.node_selector_terms)
    }
}

/// The single region of zones; `region_of` derives that of one zone.
pub(super) fn single_region(
    zones: &[String],
    region_of: impl Fn(&str) -> Option<String>,
) -> Result<String, TranslationError> {
    let region = |zone: &String| region_of(zone).ok_or_else(|| TranslationError::Zone(zone.clone()));
    let regions = zones.iter().map(region).collect::<Result<BTreeSet<_>, _>>()?;
    let mut regions = regions.into_iter();
    match (regions.next(), regions.next()) {
        (Some(region), None) => Ok(region),
        _ => Err(TranslationError::Region(zones.to_vec())),
    }
}

/// The node affinity as the API has it.
pub(super) fn to_json(affinity: &NodeAffinity) -> Value {
    let requirements = |requirements: &[Requirement]| -> Value {
        let requirement = |requirement: &Requirement| {
            let mut object = json!({"key": requirement.key, "operator": requirement.operator.as_str()});
            if !requirement.values.is_empty() {
                object["values"] = json!(requirement.values);
            }
            object
        };
        requirements.iter().map(requirement).collect()
    };
    let term = |term: &NodeSelectorTerm| {
        let mut object = Map::new();
        for (key, list) in
            [("matchExpressions", &term.match_expressions), ("matchFields", &term.match_fields)]
        {
            if !list.is_empty() {
                object.insert(key.to_owned(), requirements(list));
            }
        }
        Value::Object(object)
    };
    match &affinity.required {
        Some(required) => {
            let terms: Vec<_> = required.node_selector_terms.iter().map(term).collect();
            json!({"required": {"nodeSelectorTerms": terms}})
        }
        None => json!({}),
    }
}
