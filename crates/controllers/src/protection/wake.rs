//! Which changes may have made an object unused.

use std::collections::BTreeSet;

use wharf_cluster::Change;
use wharf_model::Pod;

use super::decide::is_stopped;

/// VolumeAttributesClasses that an object named and names no longer.
pub(super) fn dropped_classes<K>(
    change: &Change<K>,
    classes: impl Fn(&K) -> BTreeSet<String>,
) -> Vec<String> {
    let old = change.old.as_deref().map(&classes).unwrap_or_default();
    let new = change.new.as_deref().map(&classes).unwrap_or_default();
    old.difference(&new).cloned().collect()
}

/// Claims that a pod may no longer use: the pod was deleted, is stopped, or was replaced by another of that name.
pub(super) fn dropped_claims(change: &Change<Pod>) -> Vec<String> {
    let Some(old) = change.old.as_deref() else { return Vec::new() };
    let ended = change
        .new
        .as_deref()
        .is_none_or(|new| new.metadata.uid != old.metadata.uid || (is_stopped(new) && !is_stopped(old)));
    if ended { old.claims.to_vec() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use wharf_model::{Key, PersistentVolumeClaim};

    use super::super::decide::classes_of_claim;
    use super::*;

    fn change<K: serde::de::DeserializeOwned>(old: Value, new: Value) -> Change<K> {
        let of = |value: Value| (!value.is_null()).then(|| Arc::new(serde_json::from_value(value).unwrap()));
        Change { key: Key::namespaced("ns", "o"), old: of(old), new: of(new) }
    }

    /// Upstream's "pod delete and create with same namespaced name seen as an update", "deleted running Pod".
    #[test]
    fn deleted_or_stopped_pod_drops_its_claims() {
        let pod = |uid: &str, metadata: Value| {
            let mut pod = json!({
                "metadata": metadata,
                "spec": {"nodeName": "n", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": uid}}]},
            });
            pod["metadata"]["uid"] = json!(uid);
            pod
        };
        let stopped = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0});
        for (old, new, expected) in [
            (Value::Null, pod("1", json!({})), &[][..]),
            (pod("1", json!({})), pod("1", json!({})), &[]),
            (pod("1", json!({})), pod("1", stopped.clone()), &["1"]),
            (pod("1", stopped.clone()), pod("1", stopped), &[]),
            (pod("1", json!({})), pod("2", json!({})), &["1"]),
            (pod("1", json!({})), Value::Null, &["1"]),
        ] {
            let row = format!("{old} {new}");
            assert_eq!(dropped_claims(&change(old, new)), expected, "{row}");
        }
    }

    /// Upstream's "pvc changes vac", "pvc is deleted".
    #[test]
    fn changed_or_deleted_claim_drops_its_classes() {
        let claim = |wanted: &str, current: &str| {
            json!({
                "spec": {"volumeAttributesClassName": wanted}, "status": {"currentVolumeAttributesClassName": current},
            })
        };
        for (old, new, expected) in [
            (Value::Null, claim("a", "a"), &[][..]),
            (claim("a", "a"), claim("b", "a"), &[]),
            (claim("b", "a"), claim("b", "b"), &["a"]),
            (claim("b", "a"), Value::Null, &["a", "b"]),
        ] {
            let row = format!("{old} {new}");
            let change = change::<PersistentVolumeClaim>(old, new);
            assert_eq!(dropped_classes(&change, classes_of_claim), expected, "{row}");
        }
    }
}
