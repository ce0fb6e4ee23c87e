//! Claims that are bound and change: their size, and their attributes class.

use super::*;

/// How far an expansion has come.
#[test]
fn expansions() {
    for (status, whose) in [
        (json!({}), "resizer of d.csi"),
        (json!({"storage": "ControllerResizeInProgress"}), "resizer of d.csi"),
        (json!({"storage": "ControllerResizeInfeasible"}), "you: ask for less"),
        (json!({"storage": "NodeResizePending"}), "node of a pod"),
        (json!({"storage": "NodeResizeInProgress"}), "the node"),
        (json!({"storage": "NodeResizeInfeasible"}), "you: ask for less"),
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
        let story = walk(&"pvc/data".parse().unwrap(), &of(facts.clone()), Time(0));
        assert_eq!(story.waits_for().unwrap().since, Some(Time(9000)), "{status}");
        let (state, turn, text) = answer("pvc/data", &of(facts));
        assert_eq!(state, Some(State::Waits), "{text}");
        assert!(turn.contains(whose) && text.contains("it has 1Gi and wants 2Gi"), "{turn} {text}");
    }
    assert_eq!(answer("pvc/data", &of(bound())).0, None);
}

/// sidecars.md 1.3 "Modify": whose turn it is until the class that is asked for is in force.
#[test]
fn modifications() {
    let with = |asked: &str, current: &str, status: Value, there: Option<&[&str]>| {
        let named = |name: &str| if name.is_empty() { Value::Null } else { json!(name) };
        let mut facts = bound();
        facts.claim = object(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "c"},
            "spec": {"volumeName": "pv", "volumeAttributesClassName": named(asked)},
            "status": {"phase": "Bound", "currentVolumeAttributesClassName": named(current),
                "modifyVolumeStatus": status},
        }));
        facts.attributes_classes = there.map(|there| there.iter().map(|name| (*name).to_owned()).collect());
        of(facts)
    };
    let is =
        |status: &str, target: &str| json!({"status": status, "targetVolumeAttributesClassName": target});
    let (waits, unknown) = (Some(State::Waits), Some(State::Unknown));
    let (none, gold) = (Some(&[][..]), Some(&["gold"][..]));
    for (facts, state, whose, says) in [
        (with("", "", Value::Null, none), None, "", "bound to volume pv"),
        (with("gold", "gold", Value::Null, none), None, "", "bound to volume pv"),
        // Nobody has begun.
        (
            with("gold", "slow", Value::Null, gold),
            waits,
            "the resizer of d.csi",
            "wants attributes class gold",
        ),
        (with("gold", "slow", Value::Null, none), waits, "you: make the class", "gold, which does not exist"),
        (with("gold", "slow", Value::Null, None), unknown, "", "whether that exists is not known"),
        (with("gold", "slow", is("Pending", "gold"), none), waits, "you: make the class", "does not exist"),
        (
            with("gold", "slow", is("InProgress", "gold"), gold),
            waits,
            "the resizer of d.csi",
            "being changed",
        ),
        (with("gold", "slow", is("InProgress", "gold"), none), waits, "you: make the class anew", "is gone"),
        (with("gold", "slow", is("Infeasible", "gold"), gold), waits, "you: name another", "it never can"),
        (with("gold", "slow", is("Infeasible", "old"), gold), waits, "the resizer of d.csi", "wants"),
        (with("", "slow", is("Infeasible", "gold"), none), None, "", "bound to volume pv"),
    ] {
        expect("pvc/data", &facts, state, whose, says);
    }
    // Under the role that the sidecar notes it: the resizer's last word is about sizes.
    let mut facts = with("gold", "slow", is("InProgress", "gold"), gold);
    facts.attempts =
        vec![attempt("resizer", "default/data", "no"), attempt("modifier", "default/data", "exact")];
    assert_eq!(last_said("pvc/data", &facts).as_deref(), Some("exact"));
}
