//! Tables from facts to the first step that is not done.

use serde_json::{Value, json};
use wharf_model::Pod;
use wharf_model::{Attempt, Event, Time};

use crate::facts::{ClaimFacts, Facts, Lookup, NodeFacts};
use crate::{State, Subject, explain_facts};

mod changes;
mod deletion;
mod same_handles;
mod snapshots;
mod static_volumes;
mod unscheduled;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> Lookup<T> {
    Lookup::Found(serde_json::from_value(value).unwrap())
}

fn claim(spec: Value, status: Value) -> ClaimFacts {
    ClaimFacts {
        key: Some(wharf_model::Key::namespaced("default", "data")),
        claim: object(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "c"}, "spec": spec, "status": status,
        })),
        candidates: Some(Vec::new()),
        pods: Some(Vec::new()),
        attachments: Some(Vec::new()),
        ..ClaimFacts::default()
    }
}

fn class(mode: &str) -> Lookup<wharf_model::StorageClass> {
    object(json!({"metadata": {"name": "fast"}, "provisioner": "d.csi", "volumeBindingMode": mode}))
}

fn volume(status: &str) -> Lookup<wharf_model::PersistentVolume> {
    object(json!({
        "metadata": {"name": "pv", "uid": "v"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d.csi", "volumeHandle": "h"},
            "claimRef": {"namespace": "default", "name": "data", "uid": "c"},
            "persistentVolumeReclaimPolicy": "Delete",
        },
        "status": {"phase": status},
    }))
}

fn bound() -> ClaimFacts {
    ClaimFacts {
        volume: volume("Bound"),
        driver: object(json!({"metadata": {"name": "d.csi"}, "spec": {"attachRequired": true}})),
        ..claim(
            json!({"volumeName": "pv", "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}),
            json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}),
        )
    }
}

/// The first step that is not done: its state, what it waits for, and its message.
fn first_pending(subject: &str, facts: &Facts) -> (Option<State>, String, String) {
    let subject: Subject = subject.parse().unwrap();
    let explanation = explain_facts(&subject, facts, Time(0));
    match explanation.pending_step() {
        None => (
            None,
            String::new(),
            explanation.steps.last().map(|step| step.message.clone()).unwrap_or_default(),
        ),
        Some(step) => (Some(step.state), step.waiting_for.clone(), step.message.clone()),
    }
}

/// Asserts the first step that is not done; `waiting_for` and `message` are substrings.
fn expect(subject: &str, facts: &Facts, state: Option<State>, waiting_for: &str, message: &str) {
    let (got, actor, text) = first_pending(subject, facts);
    assert_eq!(got, state, "{actor:?} {text:?}, expected {waiting_for:?} {message:?}");
    assert!(
        actor.contains(waiting_for) && text.contains(message),
        "{actor:?} {text:?}, expected {waiting_for:?} {message:?}"
    );
}

/// A failed attempt.
fn attempt(role: &str, object: &str, error: &str) -> Attempt {
    Attempt { role: role.into(), object: object.into(), error: Some(error.into()), ..Attempt::default() }
}

/// The last error of the first step that is not done.
fn last_error(subject: &str, facts: &Facts) -> Option<String> {
    let explanation = explain_facts(&subject.parse().unwrap(), facts, Time(0));
    explanation.pending_step().and_then(|step| step.error.clone()).map(|error| error.text)
}

fn of(claim: ClaimFacts) -> Facts {
    Facts { claims: vec![claim], ..Facts::default() }
}

#[test]
fn unbound_claim_names_what_it_waits_for() {
    let pending = || json!({"phase": "Pending"});
    let of_class = |class: &str| json!({"storageClassName": class});
    let pod = |name: &str| {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/1 nodes are available"}]},
        }))
        .unwrap()
    };
    let request_provisioning = |claim: &mut ClaimFacts| {
        let Lookup::Found(claim) = &mut claim.claim else { unreachable!() };
        *claim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "c",
                "annotations": {"volume.kubernetes.io/storage-provisioner": "d.csi"}},
            "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"},
        }))
        .unwrap();
    };
    let none = claim(json!({}), pending());
    let static_only = claim(of_class(""), pending());
    let no_class = ClaimFacts { class: Lookup::Absent, ..claim(of_class("fast"), pending()) };
    let unread = claim(of_class("fast"), pending());
    let unrequested = ClaimFacts { class: class("Immediate"), ..claim(of_class("fast"), pending()) };
    let unused = ClaimFacts { class: class("WaitForFirstConsumer"), ..claim(of_class("fast"), pending()) };
    let unscheduled = ClaimFacts { pods: Some(vec![pod("p")]), ..unused.clone() };
    let mut requested = unrequested.clone();
    request_provisioning(&mut requested);
    let named = |volume| ClaimFacts { volume, ..claim(json!({"volumeName": "pv"}), pending()) };
    for (facts, state, waiting_for, message) in [
        (
            ClaimFacts { default_class: Some(false), ..none.clone() },
            State::Waiting,
            "you",
            "no default StorageClass",
        ),
        (
            ClaimFacts { default_class: Some(true), ..none.clone() },
            State::Waiting,
            "binder",
            "about to be set",
        ),
        (none, State::Unknown, "", "is unknown"),
        (static_only, State::Waiting, "you", "storageClassName is empty"),
        (no_class, State::Waiting, "you", "fast does not exist"),
        (unread, State::Unknown, "", "could not be read"),
        (unrequested, State::Waiting, "binder", "provisioning by d.csi has not been requested"),
        (unused, State::Waiting, "you", "no pod uses this claim"),
        (unscheduled, State::Failed, "scheduler", "pod p is not scheduled yet"),
        (requested, State::Waiting, "provisioner of d.csi", "provisioning requested from d.csi"),
        (named(Lookup::Absent), State::Waiting, "you to create it", "does not exist"),
        (named(Lookup::Unknown), State::Unknown, "", "could not be read"),
        (named(volume("Available")), State::Waiting, "binder", "not bound to it yet"),
    ] {
        let (got, actor, text) = first_pending("pvc/data", &of(facts));
        assert_eq!(got, Some(state), "{text}");
        assert!(
            actor.contains(waiting_for) && text.contains(message),
            "{actor:?} {text:?}, expected {waiting_for:?} {message:?}"
        );
    }
}

/// A sidecar's attempt takes precedence over events.
#[test]
fn last_error_is_reported() {
    let mut facts = ClaimFacts { class: class("Immediate"), ..claim(json!({}), json!({})) };
    facts.claim = object(json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "c",
            "annotations": {"volume.kubernetes.io/storage-provisioner": "d.csi"}},
        "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"},
    }));
    let event = |uid: &str, last: i64, message: &str| Event {
        regarding_uid: uid.into(),
        warning: true,
        reason: "ProvisioningFailed".into(),
        message: message.into(),
        last_timestamp: Time(last),
        ..Event::default()
    };
    let mut all = of(facts);
    all.events = vec![event("c", 1, "old"), event("c", 2, "new"), event("other", 3, "not ours")];
    assert_eq!(last_error("pvc/data", &all).as_deref(), Some("new"));
    all.attempts = vec![Attempt {
        role: "provisioner".into(),
        object: "default/data".into(),
        error: Some("exact".into()),
        ..Attempt::default()
    }];
    assert_eq!(last_error("pvc/data", &all).as_deref(), Some("exact"));
}

fn pod(phase: &str) -> Facts {
    Facts {
        pod: Lookup::Found(user("p", "n", phase)),
        nodes: [("n".to_owned(), node("n", &["kubernetes.io/csi/d.csi^h"]))].into(),
        claims: vec![ClaimFacts { pods: Some(vec![user("p", "n", phase)]), ..bound() }],
        ..Facts::default()
    }
}

/// A ready node with the driver registered and these volumes in status.volumesAttached.
fn node(name: &str, attached: &[&str]) -> NodeFacts {
    let attached: Vec<Value> = attached.iter().map(|name| json!({"name": name})).collect();
    NodeFacts {
        node: object(json!({
            "metadata": {"name": name,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "volumesAttached": attached},
        })),
        csi_node: object(
            json!({"metadata": {"name": name}, "spec": {"drivers": [{"name": "d.csi", "nodeID": name}]}}),
        ),
    }
}

/// A pod that uses the claim.
fn user(name: &str, node: &str, phase: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"phase": phase, "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z"},
        ]},
    }))
    .unwrap()
}

fn attachment(node: &str, status: Value) -> wharf_model::VolumeAttachment {
    let name =
        wharf_model::UniqueVolumeName { driver: "d.csi".into(), handle: "h".into() }.attachment_name(node);
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": "a"},
        "spec": {"attacher": "d.csi", "nodeName": node, "source": {"persistentVolumeName": "pv"}},
        "status": status,
    }))
    .unwrap()
}

#[test]
fn pod_waits_for_its_volume_on_the_node() {
    let with = |attachments: Vec<_>, change: fn(&mut Facts)| {
        let mut facts = pod("Pending");
        facts.claims[0].attachments = Some(attachments);
        facts.nodes.insert("other".into(), node("other", &[]));
        change(&mut facts);
        facts
    };
    fn machine(facts: &mut Facts) -> &mut NodeFacts {
        facts.nodes.get_mut("n").unwrap()
    }
    let attached = || vec![attachment("n", json!({"attached": true}))];
    let elsewhere = || vec![attachment("other", json!({"attached": true}))];
    for (facts, state, waiting_for, message) in [
        (with(Vec::new(), |_| {}), State::Waiting, "attach/detach", "attaching to node n"),
        (
            with(elsewhere(), |facts| {
                let pods = facts.claims[0].pods.as_mut().unwrap();
                pods.push(user("q", "other", "Running"));
            }),
            State::Waiting,
            "the pods that use it on node other",
            "default/q",
        ),
        (with(elsewhere(), |_| {}), State::Waiting, "attach/detach", "node other"),
        (
            with(elsewhere(), |facts| {
                let Lookup::Found(other) = &mut facts.nodes.get_mut("other").unwrap().node else { panic!() };
                other.status.volumes_in_use.push("kubernetes.io/csi/d.csi^h".into());
            }),
            State::Waiting,
            "kubelet on node other",
            "status.volumesInUse",
        ),
        (
            with(elsewhere(), |facts| facts.nodes.get_mut("other").unwrap().node = Lookup::Absent),
            State::Waiting,
            "node other, which is not ready",
            "out-of-service",
        ),
        (
            with(Vec::new(), |facts| machine(facts).node = object(json!({"metadata": {"name": "n"}}))),
            State::Waiting,
            "kubelet",
            "controller-managed-attach-detach",
        ),
        (
            with(Vec::new(), |facts| machine(facts).node = Lookup::Absent),
            State::Waiting,
            "node n to register",
            "attaching to node n",
        ),
        (
            with(Vec::new(), |facts| machine(facts).node = Lookup::Unknown),
            State::Unknown,
            "",
            "node n could not be read",
        ),
        (with(Vec::new(), |facts| facts.claims[0].pods = None), State::Unknown, "", "pods could not be read"),
        (
            with(Vec::new(), |facts| {
                let Lookup::Found(volume) = &mut facts.claims[0].volume else { panic!() };
                volume.spec.claim_ref = None;
            }),
            State::Waiting,
            "binder",
            "PersistentVolume pv has no claimRef",
        ),
        (
            with(attached(), |facts| facts.claims[0].volume = Lookup::Unknown),
            State::Unknown,
            "",
            "could not be read",
        ),
        (
            with(attached(), |facts| facts.claims[0].volume = Lookup::Absent),
            State::Waiting,
            "you to delete the claim",
            "PersistentVolume pv no longer exists",
        ),
        (
            with(vec![attachment("n", json!({}))], |_| {}),
            State::Waiting,
            "attacher of d.csi",
            "attaching to node n",
        ),
        (
            with(vec![attachment("n", json!({"attachError": {"message": "no room"}}))], |_| {}),
            State::Failed,
            "attacher of d.csi",
            "attaching to node n",
        ),
        (
            with(attached(), |facts| {
                let Lookup::Found(node) = &mut machine(facts).node else { unreachable!() };
                node.status.volumes_attached.clear();
            }),
            State::Waiting,
            "attach/detach",
            "status.volumesAttached yet",
        ),
        (
            with(attached(), |facts| machine(facts).csi_node = object(json!({"metadata": {"name": "n"}}))),
            State::Waiting,
            "registrar",
            "not registered on node n",
        ),
        (
            with(attached(), |facts| machine(facts).csi_node = Lookup::Unknown),
            State::Unknown,
            "",
            "is unknown",
        ),
        (with(attached(), |_| {}), State::Waiting, "kubelet on node n", "mounting its volumes"),
        (
            with(attached(), |facts| facts.claims[0].attachments = None),
            State::Unknown,
            "",
            "could not be read",
        ),
    ] {
        let (got, actor, text) = first_pending("pod/p", &facts);
        assert_eq!(got, Some(state), "{text}");
        assert!(
            actor.contains(waiting_for) && text.contains(message),
            "{actor:?} {text:?}, expected {waiting_for:?} {message:?}"
        );
    }
    let mut running = pod("Running");
    running.claims[0].attachments = Some(attached());
    assert_eq!(first_pending("pod/p", &running), (None, String::new(), "running".to_owned()));
}

/// A claim's steps include those of its volume to the nodes, each with its age and last error.
#[test]
fn bound_claim_includes_attach_steps() {
    let mut facts = pod("Pending");
    let explanation = |facts: &Facts| explain_facts(&"pvc/data".parse().unwrap(), facts, Time(60_000));
    let steps = |facts: &Facts| -> Vec<String> {
        explanation(facts).steps.iter().map(|step| step.message.clone()).collect()
    };
    let waits = explanation(&facts).pending_step().cloned().unwrap();
    assert_eq!((waits.waiting_for.as_str(), waits.since), ("the attach/detach controller", Some(Time(7000))));

    // A pod needs it on one node while it is still attached to another: attach here, detach there.
    let error = json!({"detachError": {"message": "busy", "time": "1970-01-01T00:00:30Z"}});
    let mut leaving = attachment("old", error);
    leaving.metadata.deletion_timestamp = Some(Time(20_000));
    let name = leaving.metadata.name.clone();
    facts.claims[0].attachments = Some(vec![leaving]);
    facts.nodes.insert("old".into(), node("old", &[]));
    let later = explanation(&facts);
    let [_, attaching, detaching] = &later.steps[..] else { panic!("{later}") };
    assert!(
        attaching.message.contains("node old") && detaching.message.contains("detaching from node old"),
        "{later}"
    );
    for step in [attaching, detaching] {
        assert_eq!((step.state, step.since), (State::Failed, Some(Time(20_000))));
        assert_eq!(step.waiting_for, "the attacher of d.csi");
        let error = step.error.as_ref().unwrap();
        assert_eq!((error.source.as_str(), error.text.as_str()), ("detachError", "busy"));
    }
    // The sidecar's own error is more precise.
    facts.attempts = vec![Attempt {
        role: "attacher".into(),
        object: name,
        step: "ControllerUnpublishVolume".into(),
        error: Some("exact".into()),
        ..Attempt::default()
    }];
    assert_eq!(explanation(&facts).pending_step().unwrap().error.as_ref().unwrap().text, "exact");

    // Attached nowhere and not used: the claim is done.
    facts.claims[0].attachments = Some(Vec::new());
    facts.claims[0].pods = Some(Vec::new());
    assert_eq!(steps(&facts), ["bound to volume pv, 1Gi"]);
    // Unless its volume could not be read, or is gone and the binder has not reacted yet.
    for (volume, message, status) in [
        (Lookup::Unknown, "could not be read", 5),
        (Lookup::Absent, "PersistentVolume pv no longer exists", 3),
    ] {
        let mut facts = facts.clone();
        facts.claims[0].volume = volume;
        assert_eq!(steps(&facts), ["bound to volume pv, 1Gi", message]);
        assert_eq!(explanation(&facts).exit_status(), status, "{message}");
    }
    // A driver that does not require attach must still be registered.
    facts.claims[0].pods = Some(vec![user("p", "n", "Running")]);
    facts.claims[0].driver =
        object(json!({"metadata": {"name": "d.csi"}, "spec": {"attachRequired": false}}));
    assert_eq!(steps(&facts), ["bound to volume pv, 1Gi", "d.csi does not require attach"]);
    facts.nodes.get_mut("n").unwrap().csi_node = Lookup::Absent;
    assert_eq!(steps(&facts)[2], "not registered on node n");
}

/// The rules of the binder and the claim protection controller apply.
#[test]
fn mismatched_volumes_and_protected_claims() {
    let spec = json!({"volumeName": "pv", "accessModes": ["ReadWriteMany"]});
    let free = |volume: Lookup<wharf_model::PersistentVolume>| {
        let Lookup::Found(mut volume) = volume else { unreachable!() };
        volume.spec.claim_ref = None;
        Lookup::Found(volume)
    };
    let facts = ClaimFacts { volume: free(volume("Available")), ..claim(spec, json!({"phase": "Pending"})) };
    let (state, waiting_for, message) = first_pending("pvc/data", &of(facts));
    assert_eq!(state, Some(State::Waiting));
    assert!(
        waiting_for.starts_with("you") && message.contains("does not match: incompatible accessMode"),
        "{waiting_for} {message}"
    );

    let mut other = claim(json!({"volumeName": "pv"}), json!({"phase": "Pending"}));
    other.volume = object(json!({"metadata": {"name": "pv"},
        "spec": {"claimRef": {"namespace": "default", "name": "first", "uid": "f"}}}));
    let (_, waiting_for, message) = first_pending("pvc/data", &of(other));
    assert!(
        waiting_for.starts_with("you") && message.contains("belongs to claim default/first"),
        "{waiting_for} {message}"
    );

    let deleted = |pods: Vec<Pod>| {
        let mut facts = bound();
        let Lookup::Found(claim) = &mut facts.claim else { unreachable!() };
        claim.metadata.deletion_timestamp = Some(Time(0));
        claim.metadata.finalizers = vec!["kubernetes.io/pvc-protection".into()];
        first_pending("pvc/data", &of(ClaimFacts { pods: Some(pods), ..facts })).2
    };
    let finished = user("finished", "n", "Succeeded");
    let unscheduled = user("unscheduled", "", "Pending");
    assert!(deleted(vec![finished]).contains("still used by pod finished"), "finished pods count");
    assert!(
        deleted(vec![unscheduled]).contains("held by finalizers kubernetes.io/pvc-protection"),
        "unscheduled pods do not"
    );
}

/// Also for volumes that are not CSI volumes.
#[test]
fn pod_with_attached_volumes_waits_for_kubelet() {
    let in_tree = |phase: &str| {
        let mut facts = pod(phase);
        let Lookup::Found(volume) = &mut facts.claims[0].volume else { unreachable!() };
        volume.spec.csi = None;
        facts.claims[0].attachments = Some(Vec::new());
        facts
    };
    assert_eq!(first_pending("pod/p", &in_tree("Running")), (None, String::new(), "running".to_owned()));
    let mut pending = in_tree("Pending");
    expect("pod/p", &pending, Some(State::Waiting), "kubelet on node n", "mounting its volumes");
    pending.events = vec![Event {
        regarding_uid: "p".into(),
        warning: true,
        reason: "FailedMount".into(),
        message: "volume pv is not a CSI volume".into(),
        last_timestamp: Time(1),
        ..Event::default()
    }];
    expect("pod/p", &pending, Some(State::Failed), "kubelet on node n", "mounting its volumes");
    assert_eq!(last_error("pod/p", &pending).as_deref(), Some("volume pv is not a CSI volume"));

    // The pod does not wait for changes of its claims.
    for (phase, waiting_for) in [("Pending", "kubelet on node n"), ("Running", "the resizer")] {
        let mut growing = in_tree(phase);
        let Lookup::Found(claim) = &mut growing.claims[0].claim else { unreachable!() };
        claim.status.capacity.storage = Some("1Mi".parse().unwrap());
        expect("pod/p", &growing, Some(State::Waiting), waiting_for, "");
    }

    // Init containers are reported first.
    let mut first = in_tree("Pending");
    let Lookup::Found(pod) = &mut first.pod else { unreachable!() };
    let waits = |name: &str, reason: &str| json!([{"name": name, "state": {"waiting": {"reason": reason}}}]);
    pod.status.init_container_statuses = serde_json::from_value(waits("i", "ErrImagePull")).unwrap();
    pod.status.container_statuses = serde_json::from_value(waits("c", "PodInitializing")).unwrap();
    expect("pod/p", &first, Some(State::Waiting), "node n", "container i is waiting: ErrImagePull");
}
