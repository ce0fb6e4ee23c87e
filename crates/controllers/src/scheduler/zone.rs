//! Volumes that carry the labels of a zone or region, as in-tree plugins put them there: upstream's VolumeZone.

use wharf_model::PersistentVolume;

use super::view::{Place, View};

pub(super) const NO_ZONE: &str = "node(s) had no available volume zone";

/// Labels of volumes, and the one that nodes have today.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];
/// Between several zones of a volume.
const DELIMITER: &str = "__";

/// Whether the node is in the zones of the pod's volumes. One that is in no zone at all is in all of them.
pub(super) fn is_there(view: &View, place: &Place) -> bool {
    if !LABELS.iter().any(|(label, _)| place.labels.contains_key(*label)) {
        return true;
    }
    let by_name = view.pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    by_name
        .filter_map(|volume| view.claims.get(&volume.claim_name))
        .filter_map(|claim| view.volumes.get(&claim.spec.volume_name))
        .all(|volume| is_in(place, volume))
}

fn is_in(place: &Place, volume: &PersistentVolume) -> bool {
    LABELS.iter().all(|(label, today)| {
        let Some(zones) = volume.metadata.labels.get(label).and_then(zones) else { return true };
        let zone = place.labels.get(*label).or_else(|| place.labels.get(*today));
        zone.is_some_and(|zone| zones.contains(&zone.as_str()))
    })
}

/// The zones of a label; `None` for a label that says nothing sensible, which is passed over.
fn zones(label: &str) -> Option<Vec<&str>> {
    let zones: Vec<&str> = label.split(DELIMITER).map(str::trim).collect();
    zones.iter().all(|zone| !zone.is_empty()).then_some(zones)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::{claim, place, pod, view, volume};
    use super::*;

    const ZONE: &str = "topology.kubernetes.io/zone";
    const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
    const REGION: &str = "topology.kubernetes.io/region";

    /// kubernetes.md 1.5 "Zones".
    #[test]
    fn zones_of_volumes() {
        for (rule, volume_labels, node_labels, expected) in [
            ("a volume without labels", json!({}), json!({ZONE: "a"}), true),
            ("a node without labels", json!({ZONE: "a"}), json!({"x": "y"}), true),
            ("the same zone", json!({ZONE: "a"}), json!({ZONE: "a", "x": "y"}), true),
            ("another zone", json!({ZONE: "a"}), json!({ZONE: "b"}), false),
            ("one of several", json!({OLD_ZONE: "a__b"}), json!({OLD_ZONE: "b"}), true),
            ("none of several", json!({OLD_ZONE: "a__b"}), json!({OLD_ZONE: "c"}), false),
            ("an old label and a node of today", json!({OLD_ZONE: "a"}), json!({ZONE: "a"}), true),
            ("an old label and another zone of today", json!({OLD_ZONE: "a"}), json!({ZONE: "b"}), false),
            ("a label of today and an old node", json!({ZONE: "a"}), json!({OLD_ZONE: "a"}), false),
            ("zone and region", json!({ZONE: "a", REGION: "r"}), json!({ZONE: "a", REGION: "r"}), true),
            ("another region", json!({ZONE: "a", REGION: "r"}), json!({ZONE: "a", REGION: "s"}), false),
            ("a node that tells no region", json!({REGION: "r"}), json!({ZONE: "a"}), false),
            ("a label that says nothing", json!({ZONE: "a__"}), json!({ZONE: "b"}), true),
        ] {
            let labelled = |labels: Value| json!({"metadata": {"labels": labels}});
            let mut view =
                view(pod(json!({"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}})));
            view.claims.insert("c".into(), claim("c", json!({"spec": {"volumeName": "v"}})));
            view.volumes.insert("v".into(), volume("v", labelled(volume_labels)));
            assert_eq!(is_there(&view, &place(labelled(node_labels))), expected, "{rule}");
        }
    }
}
