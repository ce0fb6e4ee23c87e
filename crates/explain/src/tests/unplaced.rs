//! Pods without a node: the scheduler waits for their claims, or they for it.

use super::*;

/// A pod that the scheduler refused once.
fn refused() -> Pod {
    let mut pod = user("p", "", "Pending");
    pod.status.conditions = serde_json::from_value(json!([{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "pod has unbound immediate PersistentVolumeClaims"}]))
    .unwrap();
    pod
}

fn of_pod(pod: Pod, claims: Vec<ClaimFacts>) -> Facts {
    let with = |claim: ClaimFacts| ClaimFacts { pods: Some(vec![pod.clone()]), ..claim };
    let claims = claims.into_iter().map(with).collect();
    Facts { pod: Known::There(pod), claims, ..Facts::default() }
}

/// A claim of a class with this mode, annotated.
fn unbound(mode: &str, annotations: Value) -> ClaimFacts {
    ClaimFacts {
        claim: object(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "c", "annotations": annotations},
            "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"},
        })),
        class: class(mode),
        ..claim(json!({}), json!({}))
    }
}

/// Whose turn it is: a claim's first, unless it waits for the scheduler or merely changes.
#[test]
fn pods_without_a_node() {
    let asked = json!({"volume.kubernetes.io/storage-provisioner": "d.csi"});
    let chosen = json!({"volume.kubernetes.io/storage-provisioner": "d.csi",
        "volume.kubernetes.io/selected-node": "n"});
    let handed = || unbound("Immediate", asked.clone());
    let delayed = || unbound("WaitForFirstConsumer", json!({}));
    let growing = || {
        let mut facts = bound();
        let Known::There(claim) = &mut facts.claim else { unreachable!() };
        claim.status.capacity.storage = Some("1Mi".parse().unwrap());
        facts
    };
    let gone = || ClaimFacts { volume: Known::Absent, ..bound() };
    let fresh = || user("p", "", "Pending");
    for (pod, claims, state, whose) in [
        (refused(), vec![handed()], State::Waits, "the provisioner of d.csi"),
        (fresh(), vec![handed()], State::Waits, "the provisioner of d.csi"),
        (refused(), vec![delayed(), handed()], State::Waits, "the provisioner of d.csi"),
        // The node is chosen, and the condition is older than that.
        (refused(), vec![unbound("WaitForFirstConsumer", chosen)], State::Waits, "the provisioner of d.csi"),
        (refused(), vec![unbound("Immediate", json!({}))], State::Waits, "binder"),
        (refused(), vec![ClaimFacts { claim: Known::Absent, ..handed() }], State::Waits, "whoever"),
        (refused(), vec![gone()], State::Waits, "you: delete the claim"),
        (refused(), vec![delayed()], State::Failed, "the scheduler"),
        (fresh(), vec![delayed()], State::Waits, "the scheduler"),
        (refused(), vec![bound()], State::Failed, "the scheduler"),
        (fresh(), vec![bound()], State::Waits, "the scheduler"),
        (refused(), vec![growing()], State::Failed, "the scheduler"),
        (fresh(), vec![growing()], State::Waits, "the scheduler"),
        (refused(), vec![], State::Failed, "the scheduler"),
    ] {
        let facts = of_pod(pod, claims);
        let story = walk(&"pod/p".parse().unwrap(), &facts, Time(0));
        let step = story.waits_for().unwrap();
        assert_eq!(step.state, state, "{story}");
        assert!(step.whose.contains(whose), "{story}");
        let has_no_node = |step: &crate::Step| step.says == "it has no node yet";
        assert_eq!(story.steps.iter().filter(|step| has_no_node(step)).count(), 1, "{story}");
    }
}

/// Ours places neither a pod that has a gate nor one that is another's; a pod's own claims are made for it.
#[test]
fn pods_that_our_scheduler_leaves() {
    let with = |spec: Value| {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": spec});
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let gated = || with(json!({"schedulingGates": [{"name": "example.com/quota"}]}));
    let delayed = || unbound("WaitForFirstConsumer", json!({}));
    for (pod, whose) in [
        (with(json!({})), "the scheduler"),
        (with(json!({"schedulerName": "default-scheduler"})), "the scheduler"),
        (with(json!({"schedulerName": "other"})), "the scheduler other"),
        (gated(), "whoever is to take away its scheduling gates: example.com/quota"),
    ] {
        for claim in [bound(), delayed()] {
            let facts = of_pod(pod.clone(), vec![claim]);
            let story = walk(&"pod/p".parse().unwrap(), &facts, Time(0));
            let step = story.waits_for().unwrap();
            assert_eq!((step.whose.as_str(), step.says.as_str()), (whose, "it has no node yet"), "{story}");
        }
        let facts = of(ClaimFacts { pods: Some(vec![pod]), ..delayed() });
        assert_eq!(answer("pvc/data", &facts).1, whose);
    }

    let template = json!({"metadata": {"name": "p", "namespace": "default", "uid": "p"},
        "spec": {"volumes": [{"name": "v", "ephemeral": {}}]}});
    let absent = |name: &str| ClaimFacts {
        key: Some(wharf_model::Key::namespaced("default", name)),
        claim: Known::Absent,
        ..ClaimFacts::default()
    };
    let own = of_pod(serde_json::from_value(template).unwrap(), vec![absent("p-v")]);
    expect("pod/p", &own, Some(State::Waits), "the ephemeral volume controller", "no such claim");
    let named = of_pod(with(json!({})), vec![absent("data")]);
    expect("pod/p", &named, Some(State::Waits), "whoever is to make it", "no such claim");
}
