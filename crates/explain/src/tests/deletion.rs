//! Released volumes, and volumes, claims and pods that are being deleted.

use super::*;

/// A node's failed attempt.
fn unmount(step: &str, object: &str, error: &str) -> Attempt {
    Attempt { step: step.into(), ..attempt("node", object, error) }
}

/// Facts about a volume that is attached to no node, without its claim.
fn volume_only(volume: Lookup<wharf_model::PersistentVolume>) -> ClaimFacts {
    ClaimFacts {
        volume,
        driver: Lookup::Absent,
        pods: Some(Vec::new()),
        attachments: Some(Vec::new()),
        ..ClaimFacts::default()
    }
}

/// The provisioner deletes a volume only after it is detached.
#[test]
fn released_volume_is_detached_before_it_is_deleted() {
    let with = |attachments, pods: Vec<Pod>| {
        let mut facts = of(ClaimFacts { attachments, pods: Some(pods), ..volume_only(volume("Released")) });
        facts.nodes.insert("n".into(), node("n", &[]));
        facts
    };
    let attached = || Some(vec![attachment("n", json!({"attached": true}))]);
    let failed =
        || Some(vec![attachment("n", json!({"attached": true, "detachError": {"message": "busy"}}))]);
    let mut detaching = failed().unwrap();
    detaching[0].metadata.deletion_timestamp = Some(Time(0));
    for (facts, state, waiting_for, message) in [
        (with(attached(), vec![]), State::Waiting, "attach/detach", "detaching from node n"),
        (with(Some(detaching), vec![]), State::Failed, "attacher of d.csi", "detaching from node n"),
        (
            with(attached(), vec![user("p", "n", "Running")]),
            State::Waiting,
            "the pods that use it on node n",
            "detaching from node n",
        ),
        (with(None, vec![]), State::Unknown, "", "could not be read"),
        (with(Some(vec![]), vec![]), State::Waiting, "provisioner of d.csi", "reclaim policy Delete"),
    ] {
        expect("pv/pv", &facts, Some(state), waiting_for, message);
        let explanation = explain_facts(&"pv/pv".parse().unwrap(), &facts, Time(0));
        assert!(
            explanation.steps.iter().any(|step| step.waiting_for == "the provisioner of d.csi"),
            "{explanation}"
        );
    }
    // The volume is attached to no node: the provisioner has to act, even if other objects could not be read.
    let unread = of(ClaimFacts { driver: Lookup::Unknown, ..volume_only(volume("Released")) });
    expect("pv/pv", &unread, Some(State::Waiting), "provisioner of d.csi", "reclaim policy Delete");
    // The node's unmount error is reported.
    let mut used = with(attached(), vec![]);
    let Lookup::Found(machine) = &mut used.nodes.get_mut("n").unwrap().node else { unreachable!() };
    machine.status.volumes_in_use.push("kubernetes.io/csi/d.csi^h".into());
    used.attempts = vec![unmount("NodeUnstageVolume", "pv", "target is busy")];
    expect("pv/pv", &used, Some(State::Failed), "kubelet on node n", "volumesInUse");
    assert_eq!(last_error("pv/pv", &used).as_deref(), Some("target is busy"));
}

#[test]
fn volume_phase_decides_who_acts() {
    for (phase, state, waiting_for) in [
        ("Bound", None, ""),
        ("Available", None, ""),
        ("Released", Some(State::Waiting), "provisioner of d.csi"),
        ("Failed", Some(State::Waiting), "you to delete it"),
        ("Pending", Some(State::Waiting), "binder"),
    ] {
        expect("pv/pv", &of(volume_only(volume(phase))), state, waiting_for, "");
    }
}

/// kubernetes.md 1.1 "Reclaim": a volume that no component can delete waits for the user, before and after the binder
/// has reported so.
#[test]
fn volume_without_deleter_waits_for_user() {
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
        for (annotations, cause) in
            [(json!({}), "no volume plugin"), (by("kubernetes.io/nfs"), "kubernetes.io/nfs")]
        {
            let facts = of(volume_only(with(phase, annotations, false)));
            expect("pv/pv", &facts, Some(State::Waiting), "you to delete the storage behind it", cause);
        }
    }
    for (annotations, csi, waiting_for) in [
        (json!({}), true, "the provisioner of d.csi"),
        (by("d.csi"), true, "the provisioner of d.csi"),
        (by("example.com/nfs"), false, "the provisioner of example.com/nfs"),
        (migrated, false, "the provisioner of ebs.csi.aws.com"),
    ] {
        let facts = of(volume_only(with("Released", annotations, csi)));
        expect("pv/pv", &facts, Some(State::Waiting), waiting_for, "reclaim policy Delete");
    }
}

/// The binder releases a bound volume whose claim is gone or was replaced; a bound volume that is being deleted is held
/// by its finalizer.
#[test]
fn bound_volume_without_its_claim_waits_for_binder() {
    let its = |uid: &str, volume: &str| {
        object(json!({"metadata": {"name": "data", "namespace": "default", "uid": uid},
            "spec": {"volumeName": volume}, "status": {"phase": "Bound"}}))
    };
    let waits = Some(State::Waiting);
    for (claim, state, waiting_for, message) in [
        (its("c", "pv"), None, "", "bound to claim default/data"),
        (Lookup::Unknown, None, "", "bound to claim default/data"),
        (Lookup::Absent, waits, "binder", "claim default/data, which no longer exists"),
        (its("later", "pv"), waits, "binder", "another claim of that name (uid \"later\")"),
        (its("c", "other"), waits, "binder", "is bound to PersistentVolume other"),
    ] {
        let facts = of(ClaimFacts { claim, ..volume_only(volume("Bound")) });
        expect("pv/pv", &facts, state, waiting_for, message);
    }

    let deleted = |finalizer: &str, claim: Lookup<wharf_model::PersistentVolumeClaim>| {
        let Lookup::Found(mut volume) = volume("Bound") else { unreachable!() };
        volume.metadata.deletion_timestamp = Some(Time(0));
        volume.metadata.finalizers = vec![finalizer.to_owned()];
        let key = Some(wharf_model::Key::namespaced("default", "data"));
        of(ClaimFacts { claim, key, ..volume_only(Lookup::Found(volume)) })
    };
    let protected = "kubernetes.io/pv-protection";
    let facts = deleted(protected, its("c", "pv"));
    expect(
        "pv/pv",
        &facts,
        waits,
        "you to delete claim default/data",
        "held while it is bound to claim default/data",
    );
    let facts = deleted("example.com/mine", its("c", "pv"));
    let owner = "the controller that set it (finalizer example.com/mine)";
    expect("pv/pv", &facts, waits, owner, "held by finalizers example.com/mine");
    let Lookup::Found(mut claim) = its("c", "pv") else { unreachable!() };
    claim.metadata.deletion_timestamp = Some(Time(0));
    claim.metadata.finalizers = vec!["kubernetes.io/pvc-protection".into()];
    let mut facts = deleted(protected, Lookup::Found(claim));
    facts.claims[0].pods = Some(vec![user("p", "n", "Succeeded")]);
    expect("pv/pv", &facts, waits, "you to delete these pods", "still used by pod p");
}

/// Whether a pod uses a claim that is being deleted is known only if the pods could be listed.
#[test]
fn claim_in_deletion_names_what_holds_it() {
    let deleted = |finalizer: &str, pods| {
        let mut facts = bound();
        let Lookup::Found(claim) = &mut facts.claim else { unreachable!() };
        claim.metadata.deletion_timestamp = Some(Time(0));
        claim.metadata.finalizers = vec![finalizer.to_owned()];
        of(ClaimFacts { pods, ..facts })
    };
    let protection = "kubernetes.io/pvc-protection";
    let source = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
    let running = || user("p", "n", "Running");
    let mut terminating = user("q", "n", "Running");
    terminating.metadata.deletion_timestamp = Some(Time(0));
    for (finalizer, pods, state, waiting_for, message) in [
        (protection, None, State::Unknown, "", "whether a pod still uses it"),
        (
            protection,
            Some(vec![running()]),
            State::Waiting,
            "you to delete these pods",
            "still used by pod p",
        ),
        (
            protection,
            Some(vec![terminating.clone(), running()]),
            State::Waiting,
            "you to delete",
            "still used by pod p",
        ),
        (
            protection,
            Some(vec![terminating]),
            State::Waiting,
            "kubelet on node n",
            "used by terminating pod q",
        ),
        (protection, Some(vec![]), State::Waiting, "the claim protection controller", "held by finalizers"),
        ("example.com/f", None, State::Waiting, "the controller that set it", "finalizers example.com/f"),
        (source, None, State::Waiting, "snapshot controller (finalizer snapshot.", "held by finalizers"),
    ] {
        expect("pvc/data", &deleted(finalizer, pods), Some(state), waiting_for, message);
    }
}

/// A pod that is being deleted waits for its kubelet, which waits for the drivers of the pod's volumes. The pod's
/// claims do not matter.
#[test]
fn pod_in_deletion_waits_for_kubelet() {
    let deleted = |change: fn(&mut Facts)| {
        let mut facts = pod("Running");
        let Lookup::Found(pod) = &mut facts.pod else { unreachable!() };
        pod.metadata.deletion_timestamp = Some(Time(0));
        change(&mut facts);
        facts
    };
    fn machine(facts: &mut Facts) -> &mut NodeFacts {
        facts.nodes.get_mut("n").unwrap()
    }
    let running = |facts: &mut Facts| {
        machine(facts).csi_node = Lookup::Absent;
        let Lookup::Found(pod) = &mut facts.pod else { unreachable!() };
        let statuses = json!([{"name": "c", "state": {"running": {}}}]);
        pod.status.container_statuses = serde_json::from_value(statuses).unwrap();
    };
    let mut unmounting = deleted(|_| {});
    unmounting.attempts = vec![
        unmount("NodeUnpublishVolume", "p", "target is busy"),
        unmount("NodeUnpublishVolume", "other", "other pod"),
        unmount("NodeExpandVolume", "p", "other step"),
    ];
    for (facts, state, waiting_for, message) in [
        (deleted(|_| {}), State::Waiting, "kubelet on node n", "being deleted"),
        (
            deleted(|facts| machine(facts).csi_node = Lookup::Absent),
            State::Waiting,
            "registrar",
            "not registered",
        ),
        (deleted(running), State::Waiting, "kubelet on node n", "its containers are stopped"),
        (
            deleted(|facts| machine(facts).node = object(json!({"metadata": {"name": "n"}}))),
            State::Waiting,
            "node n, which is not ready",
            "being deleted",
        ),
        // A claim that is being deleted waits for this pod itself, so it is not reported.
        (
            deleted(|facts| {
                let Lookup::Found(claim) = &mut facts.claims[0].claim else { unreachable!() };
                claim.metadata.deletion_timestamp = Some(Time(0));
            }),
            State::Waiting,
            "kubelet on node n",
            "being deleted",
        ),
        (unmounting.clone(), State::Failed, "kubelet on node n", "its volumes are unmounted"),
    ] {
        expect("pod/p", &facts, Some(state), waiting_for, message);
    }
    assert_eq!(last_error("pod/p", &unmounting).as_deref(), Some("target is busy"));
}
