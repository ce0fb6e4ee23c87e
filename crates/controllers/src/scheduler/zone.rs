//! Volumes with zone or region labels, as in-tree plugins set them: upstream's VolumeZone.

use wharf_model::PersistentVolume;

use super::view::{NodeInfo, View};

pub(super) const ZONE_CONFLICT: &str = "node(s) had no available volume zone";

/// Labels of volumes, and the current label of nodes for each.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];
/// Separates several zones of a volume.
const DELIMITER: &str = "__";

/// Whether the node is in the zones of the pod's volumes. A node without zone labels matches all.
pub(super) fn matches_zones(view: &View, node_info: &NodeInfo) -> bool {
    if !LABELS.iter().any(|(label, _)| node_info.labels.contains_key(*label)) {
        return true;
    }
    let by_name = view.pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    by_name
        .filter_map(|volume| view.claims.get(&volume.claim_name))
        .filter_map(|claim| view.volumes.get(&claim.spec.volume_name))
        .all(|volume| is_in_zones(node_info, volume))
}

fn is_in_zones(node_info: &NodeInfo, volume: &PersistentVolume) -> bool {
    LABELS.iter().all(|(label, current)| {
        let Some(zones) = volume.metadata.labels.get(label).and_then(zones) else { return true };
        let zone = node_info.labels.get(*label).or_else(|| node_info.labels.get(*current));
        zone.is_some_and(|zone| zones.contains(&zone.as_str()))
    })
}

/// The zones of a label value; `None` for an invalid value, which is ignored.
fn zones(label: &str) -> Option<Vec<&str>> {
    let zones: Vec<&str> = label.split(DELIMITER).map(str::trim).collect();
    zones.iter().all(|zone| !zone.is_empty()).then_some(zones)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::{claim, node_info, pod, view, volume};
    use super::*;

    const ZONE: &str = "topology.kubernetes.io/zone";
    const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
    const REGION: &str = "topology.kubernetes.io/region";

    /// kubernetes.md 1.5 "Zones".
    #[test]
    fn node_must_be_in_the_zones_of_the_volumes() {
        for (rule, volume_labels, node_labels, expected) in [
            ("a volume without labels", json!({}), json!({ZONE: "a"}), true),
            ("a node without labels", json!({ZONE: "a"}), json!({"x": "y"}), true),
            ("the same zone", json!({ZONE: "a"}), json!({ZONE: "a", "x": "y"}), true),
            ("another zone", json!({ZONE: "a"}), json!({ZONE: "b"}), false),
            ("one of several", json!({BETA_ZONE: "a__b"}), json!({BETA_ZONE: "b"}), true),
            ("none of several", json!({BETA_ZONE: "a__b"}), json!({BETA_ZONE: "c"}), false),
            (
                "a beta label and a node with current labels",
                json!({BETA_ZONE: "a"}),
                json!({ZONE: "a"}),
                true,
            ),
            ("a beta label and another zone", json!({BETA_ZONE: "a"}), json!({ZONE: "b"}), false),
            (
                "a current label and a node with beta labels",
                json!({ZONE: "a"}),
                json!({BETA_ZONE: "a"}),
                false,
            ),
            ("zone and region", json!({ZONE: "a", REGION: "r"}), json!({ZONE: "a", REGION: "r"}), true),
            ("another region", json!({ZONE: "a", REGION: "r"}), json!({ZONE: "a", REGION: "s"}), false),
            ("a node without a region", json!({REGION: "r"}), json!({ZONE: "a"}), false),
            ("an invalid label", json!({ZONE: "a__"}), json!({ZONE: "b"}), true),
        ] {
            let labelled = |labels: Value| json!({"metadata": {"labels": labels}});
            let mut view =
                view(pod(json!({"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}})));
            view.claims.insert("c".into(), claim("c", json!({"spec": {"volumeName": "v"}})));
            view.volumes.insert("v".into(), volume("v", labelled(volume_labels)));
            assert_eq!(matches_zones(&view, &node_info(labelled(node_labels))), expected, "{rule}");
        }
    }
}
