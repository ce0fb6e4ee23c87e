//! What is to go: volumes whose claim is gone, claims and pods that are being deleted.

use super::*;

/// What a node says.
fn unmount(step: &str, object: &str, error: &str) -> Attempt {
    Attempt { step: step.into(), ..attempt("node", object, error) }
}

/// A volume whose claim was not looked for, attached nowhere.
fn alone(volume: Known<wharf_model::PersistentVolume>) -> ClaimFacts {
    ClaimFacts {
        volume,
        driver: Known::Absent,
        pods: Some(Vec::new()),
        attachments: Some(Vec::new()),
        ..ClaimFacts::default()
    }
}

/// A volume that nobody wants on a node is to leave it, and the provisioner does nothing before that.
#[test]
fn volumes_that_leave() {
    let with = |attachments, pods: Vec<Pod>| {
        let mut facts = of(ClaimFacts { attachments, pods: Some(pods), ..alone(volume("Released")) });
        facts.nodes.insert("n".into(), node("n", &[]));
        facts
    };
    let attached = || Some(vec![attachment("n", json!({"attached": true}))]);
    let failed =
        || Some(vec![attachment("n", json!({"attached": true, "detachError": {"message": "busy"}}))]);
    let mut going = failed().unwrap();
    going[0].metadata.deletion_timestamp = Some(Time(0));
    for (facts, state, whose, says) in [
        (with(attached(), vec![]), State::Waits, "attach/detach", "it is to leave node n: the attach/detach"),
        (with(Some(going), vec![]), State::Failed, "attacher of d.csi", "it is to leave node n"),
        (
            with(attached(), vec![user("p", "n", "Running")]),
            State::Waits,
            "the pods that use it on node n",
            "it is to leave node n",
        ),
        (with(None, vec![]), State::Unknown, "", "could not be read"),
        (with(Some(vec![]), vec![]), State::Waits, "provisioner of d.csi", "it is to be deleted"),
    ] {
        expect("pv/pv", &facts, Some(state), whose, says);
        let story = walk(&"pv/pv".parse().unwrap(), &facts, Time(0));
        assert!(story.steps.iter().any(|step| step.whose == "the provisioner of d.csi"), "{story}");
    }
    // Attached nowhere, it is the provisioner's, whatever else is not known.
    let unread = of(ClaimFacts { driver: Known::Unknown, ..alone(volume("Released")) });
    expect("pv/pv", &unread, Some(State::Waits), "provisioner of d.csi", "it is to be deleted");
    // What the node said of its unmounting.
    let mut used = with(attached(), vec![]);
    let Known::There(machine) = &mut used.nodes.get_mut("n").unwrap().node else { unreachable!() };
    machine.status.volumes_in_use.push("kubernetes.io/csi/d.csi^h".into());
    used.attempts = vec![unmount("NodeUnstageVolume", "pv", "target is busy")];
    expect("pv/pv", &used, Some(State::Failed), "node n (kubelet)", "volumesInUse");
    assert_eq!(last_said("pv/pv", &used).as_deref(), Some("target is busy"));
}

/// What becomes of volumes whose claim is gone.
#[test]
fn volumes_at_their_end() {
    for (phase, state, whose) in [
        ("Bound", None, ""),
        ("Available", None, ""),
        ("Released", Some(State::Waits), "provisioner of d.csi"),
        ("Failed", Some(State::Waits), "you: delete it"),
        ("Pending", Some(State::Waits), "binder"),
    ] {
        expect("pv/pv", &of(alone(volume(phase))), state, whose, "");
    }
}

/// kubernetes.md 1.1 "Reclaim": what nobody can delete is yours, before and after the binder has said so.
#[test]
fn volumes_that_nobody_deletes() {
    let with = |phase: &str, annotations: Value, csi: bool| {
        let csi = if csi { json!({"driver": "d.csi", "volumeHandle": "h"}) } else { Value::Null };
        object(json!({
            "metadata": {"name": "pv", "uid": "v", "annotations": annotations},
            "spec": {"csi": csi, "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {"namespace": "default", "name": "data", "uid": "c"}},
            "status": {"phase": phase},
        }))
    };
    let by = |maker: &str| json!({"pv.kubernetes.io/provisioned-by": maker});
    let migrated = json!({"pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs",
        "pv.kubernetes.io/migrated-to": "ebs.csi.aws.com"});
    for phase in ["Released", "Failed"] {
        for (annotations, why) in
            [(json!({}), "no volume plugin"), (by("kubernetes.io/nfs"), "kubernetes.io/nfs")]
        {
            let facts = of(alone(with(phase, annotations, false)));
            expect("pv/pv", &facts, Some(State::Waits), "you: delete what is behind it", why);
        }
    }
    for (annotations, csi, whose) in [
        (json!({}), true, "the provisioner of d.csi"),
        (by("d.csi"), true, "the provisioner of d.csi"),
        (by("example.com/nfs"), false, "the provisioner of example.com/nfs"),
        (migrated, false, "the provisioner of ebs.csi.aws.com"),
    ] {
        let facts = of(alone(with("Released", annotations, csi)));
        expect("pv/pv", &facts, Some(State::Waits), whose, "it is to be deleted");
    }
}

/// A bound volume whose claim is gone, or another, is the binder's to release; one that is bound is not deleted.
#[test]
fn volumes_and_their_claims() {
    let its = |uid: &str, volume: &str| {
        object(json!({"metadata": {"name": "data", "namespace": "default", "uid": uid},
            "spec": {"volumeName": volume}, "status": {"phase": "Bound"}}))
    };
    let waits = Some(State::Waits);
    for (claim, state, whose, says) in [
        (its("c", "pv"), None, "", "claim default/data's"),
        (Known::Unknown, None, "", "claim default/data's"),
        (Known::Absent, waits, "binder", "claim default/data, which is gone"),
        (its("later", "pv"), waits, "binder", "another of that name is there, of uid \"later\""),
        (its("c", "other"), waits, "binder", "has volume other"),
    ] {
        let facts = of(ClaimFacts { claim, ..alone(volume("Bound")) });
        expect("pv/pv", &facts, state, whose, says);
    }

    let going = |finalizer: &str, claim: Known<wharf_model::PersistentVolumeClaim>| {
        let Known::There(mut volume) = volume("Bound") else { unreachable!() };
        volume.metadata.deletion_timestamp = Some(Time(0));
        volume.metadata.finalizers = vec![finalizer.to_owned()];
        let key = Some(wharf_model::Key::namespaced("default", "data"));
        of(ClaimFacts { claim, key, ..alone(Known::There(volume)) })
    };
    let protected = "kubernetes.io/pv-protection";
    let facts = going(protected, its("c", "pv"));
    expect("pv/pv", &facts, waits, "you: delete claim default/data", "kept while it is claim default/data's");
    expect("pv/pv", &going("example.com/mine", its("c", "pv")), waits, "whoever", "kept by example.com/mine");
    let Known::There(mut claim) = its("c", "pv") else { unreachable!() };
    claim.metadata.deletion_timestamp = Some(Time(0));
    claim.metadata.finalizers = vec!["kubernetes.io/pvc-protection".into()];
    let mut facts = going(protected, Known::There(claim));
    facts.claims[0].pods = Some(vec![user("p", "n", "Succeeded")]);
    expect("pv/pv", &facts, waits, "you: delete these pods", "still used by pod p");
}

/// That nobody uses a claim that is to go is known only if pods were read.
#[test]
fn claims_that_are_kept() {
    let going = |finalizer: &str, pods| {
        let mut facts = bound();
        let Known::There(claim) = &mut facts.claim else { unreachable!() };
        claim.metadata.deletion_timestamp = Some(Time(0));
        claim.metadata.finalizers = vec![finalizer.to_owned()];
        of(ClaimFacts { pods, ..facts })
    };
    let protection = "kubernetes.io/pvc-protection";
    let stays = || user("p", "n", "Running");
    let mut ends = user("q", "n", "Running");
    ends.metadata.deletion_timestamp = Some(Time(0));
    for (finalizer, pods, state, whose, says) in [
        (protection, None, State::Unknown, "", "whether a pod still uses it"),
        (protection, Some(vec![stays()]), State::Waits, "you: delete these pods", "still used by pod p"),
        (protection, Some(vec![ends.clone(), stays()]), State::Waits, "you: delete", "still used by pod p"),
        (protection, Some(vec![ends]), State::Waits, "node n (kubelet)", "used by pod q, which is going"),
        (protection, Some(vec![]), State::Waits, "the claim protection controller", "kept by kubernetes.io"),
        ("example.com/f", None, State::Waits, "whoever", "kept by example.com/f"),
    ] {
        expect("pvc/data", &going(finalizer, pods), Some(state), whose, says);
    }
}

/// A pod that is to go waits for its node, and that for the drivers of its volumes; its claims have no part in it.
#[test]
fn pods_that_end() {
    let going = |change: fn(&mut Facts)| {
        let mut facts = pod("Running");
        let Known::There(pod) = &mut facts.pod else { unreachable!() };
        pod.metadata.deletion_timestamp = Some(Time(0));
        change(&mut facts);
        facts
    };
    fn machine(facts: &mut Facts) -> &mut NodeFacts {
        facts.nodes.get_mut("n").unwrap()
    }
    let runs = |facts: &mut Facts| {
        machine(facts).csi_node = Known::Absent;
        let Known::There(pod) = &mut facts.pod else { unreachable!() };
        let statuses = json!([{"name": "c", "state": {"running": {}}}]);
        pod.status.container_statuses = serde_json::from_value(statuses).unwrap();
    };
    let mut unmounts = going(|_| {});
    unmounts.attempts = vec![
        unmount("NodeUnpublishVolume", "p", "target is busy"),
        unmount("NodeUnpublishVolume", "other", "not ours"),
        unmount("NodeExpandVolume", "p", "no part in it"),
    ];
    for (facts, state, whose, says) in [
        (going(|_| {}), State::Waits, "node n (kubelet)", "it is being deleted"),
        (going(|facts| machine(facts).csi_node = Known::Absent), State::Waits, "registrar", "not registered"),
        (going(runs), State::Waits, "node n (kubelet)", "its containers end"),
        (
            going(|facts| machine(facts).node = object(json!({"metadata": {"name": "n"}}))),
            State::Waits,
            "node n, which is not ready",
            "it is being deleted",
        ),
        // To delete the pod would be no news.
        (
            going(|facts| {
                let Known::There(claim) = &mut facts.claims[0].claim else { unreachable!() };
                claim.metadata.deletion_timestamp = Some(Time(0));
            }),
            State::Waits,
            "node n (kubelet)",
            "it is being deleted",
        ),
        (unmounts.clone(), State::Failed, "node n (kubelet)", "its volumes are unmounted"),
    ] {
        expect("pod/p", &facts, Some(state), whose, says);
    }
    assert_eq!(last_said("pod/p", &unmounts).as_deref(), Some("target is busy"));
}
