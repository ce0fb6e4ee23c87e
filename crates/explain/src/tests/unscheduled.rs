//! Unscheduled pods: either the scheduler waits for their claims, or the claims wait for the scheduler.

use super::*;

/// A pod that the scheduler could not schedule.
fn unschedulable() -> Pod {
    let mut pod = user("p", "", "Pending");
    pod.status.conditions = serde_json::from_value(json!([{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "pod has unbound immediate PersistentVolumeClaims"}]))
    .unwrap();
    pod
}

fn of_pod(pod: Pod, claims: Vec<ClaimFacts>) -> Facts {
    let with = |claim: ClaimFacts| ClaimFacts { pods: Some(vec![pod.clone()]), ..claim };
    let claims = claims.into_iter().map(with).collect();
    Facts { pod: Lookup::Found(pod), claims, ..Facts::default() }
}

/// An unbound claim of a class with this binding mode.
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

/// A pending claim is reported before the scheduler, unless the claim itself waits for the scheduler or is only being
/// expanded.
#[test]
fn unscheduled_pod_names_who_acts() {
    let requested = json!({"volume.kubernetes.io/storage-provisioner": "d.csi"});
    let selected = json!({"volume.kubernetes.io/storage-provisioner": "d.csi",
        "volume.kubernetes.io/selected-node": "n"});
    let provisioning = || unbound("Immediate", requested.clone());
    let delayed = || unbound("WaitForFirstConsumer", json!({}));
    let growing = || {
        let mut facts = bound();
        let Lookup::Found(claim) = &mut facts.claim else { unreachable!() };
        claim.status.capacity.storage = Some("1Mi".parse().unwrap());
        facts
    };
    let gone = || ClaimFacts { volume: Lookup::Absent, ..bound() };
    let fresh = || user("p", "", "Pending");
    for (pod, claims, state, waiting_for) in [
        (unschedulable(), vec![provisioning()], State::Waiting, "the provisioner of d.csi"),
        (fresh(), vec![provisioning()], State::Waiting, "the provisioner of d.csi"),
        (unschedulable(), vec![delayed(), provisioning()], State::Waiting, "the provisioner of d.csi"),
        // A node is selected already; the pod's condition is outdated.
        (
            unschedulable(),
            vec![unbound("WaitForFirstConsumer", selected)],
            State::Waiting,
            "the provisioner of d.csi",
        ),
        (unschedulable(), vec![unbound("Immediate", json!({}))], State::Waiting, "binder"),
        (
            unschedulable(),
            vec![ClaimFacts { claim: Lookup::Absent, ..provisioning() }],
            State::Waiting,
            "you to create it",
        ),
        (unschedulable(), vec![gone()], State::Waiting, "you to delete the claim"),
        (unschedulable(), vec![delayed()], State::Failed, "the scheduler"),
        (fresh(), vec![delayed()], State::Waiting, "the scheduler"),
        (unschedulable(), vec![bound()], State::Failed, "the scheduler"),
        (fresh(), vec![bound()], State::Waiting, "the scheduler"),
        (unschedulable(), vec![growing()], State::Failed, "the scheduler"),
        (fresh(), vec![growing()], State::Waiting, "the scheduler"),
        (unschedulable(), vec![], State::Failed, "the scheduler"),
    ] {
        let facts = of_pod(pod, claims);
        let explanation = explain_facts(&"pod/p".parse().unwrap(), &facts, Time(0));
        let step = explanation.pending_step().unwrap();
        assert_eq!(step.state, state, "{explanation}");
        assert!(step.waiting_for.contains(waiting_for), "{explanation}");
        let unscheduled = |step: &crate::Step| step.message == "not scheduled to a node yet";
        assert_eq!(explanation.steps.iter().filter(|step| unscheduled(step)).count(), 1, "{explanation}");
    }
}

/// Our scheduler ignores pods with scheduling gates or another scheduler name. Claims of ephemeral volumes are created
/// by their controller.
#[test]
fn gated_or_foreign_pods_name_who_acts() {
    let with = |spec: Value| {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": spec});
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let gated = || with(json!({"schedulingGates": [{"name": "example.com/quota"}]}));
    let delayed = || unbound("WaitForFirstConsumer", json!({}));
    for (pod, waiting_for) in [
        (with(json!({})), "the scheduler"),
        (with(json!({"schedulerName": "default-scheduler"})), "the scheduler"),
        (with(json!({"schedulerName": "other"})), "scheduler other"),
        (gated(), "removal of its scheduling gates: example.com/quota"),
    ] {
        for claim in [bound(), delayed()] {
            let facts = of_pod(pod.clone(), vec![claim]);
            let explanation = explain_facts(&"pod/p".parse().unwrap(), &facts, Time(0));
            let step = explanation.pending_step().unwrap();
            assert_eq!(
                (step.waiting_for.as_str(), step.message.as_str()),
                (waiting_for, "not scheduled to a node yet"),
                "{explanation}"
            );
        }
        let facts = of(ClaimFacts { pods: Some(vec![pod]), ..delayed() });
        assert_eq!(first_pending("pvc/data", &facts).1, waiting_for);
    }

    let template = json!({"metadata": {"name": "p", "namespace": "default", "uid": "p"},
        "spec": {"volumes": [{"name": "v", "ephemeral": {}}]}});
    let absent = |name: &str| ClaimFacts {
        key: Some(wharf_model::Key::namespaced("default", name)),
        claim: Lookup::Absent,
        ..ClaimFacts::default()
    };
    let own = of_pod(serde_json::from_value(template).unwrap(), vec![absent("p-v")]);
    expect(
        "pod/p",
        &own,
        Some(State::Waiting),
        "the ephemeral volume controller",
        "default/p-v does not exist",
    );
    let named = of_pod(with(json!({})), vec![absent("data")]);
    expect(
        "pod/p",
        &named,
        Some(State::Waiting),
        "you to create it",
        "PersistentVolumeClaim default/data does not exist",
    );
}
