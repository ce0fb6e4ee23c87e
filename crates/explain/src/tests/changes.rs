//! Bound claims that change: expansion and VolumeAttributesClass.

use super::*;

#[test]
fn expansion_names_who_acts_in_each_state() {
    for (status, waiting_for) in [
        (json!({}), "resizer of d.csi"),
        (json!({"storage": "ControllerResizeInProgress"}), "resizer of d.csi"),
        (json!({"storage": "ControllerResizeInfeasible"}), "you to request a smaller size"),
        (json!({"storage": "NodeResizePending"}), "kubelet on the node of a pod"),
        (json!({"storage": "NodeResizeInProgress"}), "kubelet on the node"),
        (json!({"storage": "NodeResizeInfeasible"}), "you to request a smaller size"),
    ] {
        let mut facts = bound();
        facts.claim = object(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "c"},
            "spec": {"volumeName": "pv", "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": status,
                "conditions": [
                    {"type": "Resizing", "status": "True", "lastTransitionTime": "1970-01-01T00:00:09Z"},
                ]},
        }));
        let explanation = explain_facts(&"pvc/data".parse().unwrap(), &of(facts.clone()), Time(0));
        assert_eq!(explanation.pending_step().unwrap().since, Some(Time(9000)), "{status}");
        let (state, actor, text) = first_pending("pvc/data", &of(facts));
        assert_eq!(state, Some(State::Waiting), "{text}");
        assert!(
            actor.contains(waiting_for) && text.contains("capacity is 1Gi, 2Gi requested"),
            "{actor} {text}"
        );
    }
    assert_eq!(first_pending("pvc/data", &of(bound())).0, None);
}

/// sidecars.md 1.3 "Modify": who has to act until the requested class is applied.
#[test]
fn modification_names_who_acts_in_each_state() {
    let with = |requested: &str, current: &str, status: Value, existing: Option<&[&str]>| {
        let named = |name: &str| if name.is_empty() { Value::Null } else { json!(name) };
        let mut facts = bound();
        facts.claim = object(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "c"},
            "spec": {"volumeName": "pv", "volumeAttributesClassName": named(requested)},
            "status": {"phase": "Bound", "currentVolumeAttributesClassName": named(current),
                "modifyVolumeStatus": status},
        }));
        facts.attributes_classes =
            existing.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        of(facts)
    };
    let is =
        |status: &str, target: &str| json!({"status": status, "targetVolumeAttributesClassName": target});
    let (waits, unknown) = (Some(State::Waiting), Some(State::Unknown));
    let (none, gold) = (Some(&[][..]), Some(&["gold"][..]));
    for (facts, state, waiting_for, message) in [
        (with("", "", Value::Null, none), None, "", "bound to volume pv"),
        (with("gold", "gold", Value::Null, none), None, "", "bound to volume pv"),
        // Not started.
        (
            with("gold", "slow", Value::Null, gold),
            waits,
            "the resizer of d.csi",
            "requests VolumeAttributesClass gold",
        ),
        (with("gold", "slow", Value::Null, none), waits, "you to create", "gold, which does not exist"),
        (with("gold", "slow", Value::Null, None), unknown, "", "whether it exists is unknown"),
        (
            with("gold", "slow", is("Pending", "gold"), none),
            waits,
            "you to create the class",
            "does not exist",
        ),
        (with("gold", "slow", is("InProgress", "gold"), gold), waits, "the resizer of d.csi", "changing to"),
        (
            with("gold", "slow", is("InProgress", "gold"), none),
            waits,
            "you to recreate the class",
            "no longer exists",
        ),
        (with("gold", "slow", is("Infeasible", "gold"), gold), waits, "you to name another", "cannot apply"),
        (with("gold", "slow", is("Infeasible", "old"), gold), waits, "the resizer of d.csi", "requests"),
        (with("", "slow", is("Infeasible", "gold"), none), None, "", "bound to volume pv"),
    ] {
        expect("pvc/data", &facts, state, waiting_for, message);
    }
    // The sidecar records modifications under their own role; the resizer's error is about sizes.
    let mut facts = with("gold", "slow", is("InProgress", "gold"), gold);
    facts.attempts =
        vec![attempt("resizer", "default/data", "no"), attempt("modifier", "default/data", "exact")];
    assert_eq!(last_error("pvc/data", &facts).as_deref(), Some("exact"));
}
