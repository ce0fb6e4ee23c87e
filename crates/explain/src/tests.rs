//! Stories as tables: from what is known to what is said.

use serde_json::{Value, json};
use wharf_model::whole::Pod;
use wharf_model::{Event, Time};

use crate::facts::{ClaimFacts, Facts, Known, NodeFacts};
use crate::{Attempt, State, Subject, walk};

mod changes;
mod ending;
mod snapshots;
mod static_volumes;
mod unplaced;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> Known<T> {
    Known::There(serde_json::from_value(value).unwrap())
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

fn class(mode: &str) -> Known<wharf_model::StorageClass> {
    object(json!({"metadata": {"name": "fast"}, "provisioner": "d.csi", "volumeBindingMode": mode}))
}

fn volume(status: &str) -> Known<wharf_model::PersistentVolume> {
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

/// The step that is waited for: its state, whose turn, what it says.
fn answer(subject: &str, facts: &Facts) -> (Option<State>, String, String) {
    let subject: Subject = subject.parse().unwrap();
    let story = walk(&subject, facts, Time(0));
    match story.waits_for() {
        None => (None, String::new(), story.steps.last().map(|step| step.says.clone()).unwrap_or_default()),
        Some(step) => (Some(step.state), step.whose.clone(), step.says.clone()),
    }
}

/// Asserts that this is the answer; of whose turn it is and of what is said, a part.
fn expect(subject: &str, facts: &Facts, state: Option<State>, whose: &str, says: &str) {
    let (got, turn, text) = answer(subject, facts);
    assert_eq!(got, state, "{turn:?} {text:?}, expected {whose:?} {says:?}");
    assert!(turn.contains(whose) && text.contains(says), "{turn:?} {text:?}, expected {whose:?} {says:?}");
}

/// An attempt that failed.
fn attempt(role: &str, object: &str, error: &str) -> Attempt {
    Attempt { role: role.into(), object: object.into(), error: Some(error.into()), ..Attempt::default() }
}

/// What was said last of the step that is waited for.
fn last_said(subject: &str, facts: &Facts) -> Option<String> {
    let story = walk(&subject.parse().unwrap(), facts, Time(0));
    story.waits_for().and_then(|step| step.error.clone()).map(|said| said.text)
}

fn of(claim: ClaimFacts) -> Facts {
    Facts { claims: vec![claim], ..Facts::default() }
}

/// What a claim without a volume waits for.
#[test]
fn claims_without_a_volume() {
    let pending = || json!({"phase": "Pending"});
    let asks = |class: &str| json!({"storageClassName": class});
    let pod = |name: &str| {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/1 nodes are available"}]},
        }))
        .unwrap()
    };
    let asked = |claim: &mut ClaimFacts| {
        let Known::There(claim) = &mut claim.claim else { unreachable!() };
        *claim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "c",
                "annotations": {"volume.kubernetes.io/storage-provisioner": "d.csi"}},
            "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"},
        }))
        .unwrap();
    };
    let none = claim(json!({}), pending());
    let by_hand = claim(asks(""), pending());
    let no_class = ClaimFacts { class: Known::Absent, ..claim(asks("fast"), pending()) };
    let unread = claim(asks("fast"), pending());
    let fresh = ClaimFacts { class: class("Immediate"), ..claim(asks("fast"), pending()) };
    let lonely = ClaimFacts { class: class("WaitForFirstConsumer"), ..claim(asks("fast"), pending()) };
    let unplaced = ClaimFacts { pods: Some(vec![pod("p")]), ..lonely.clone() };
    let mut handed = fresh.clone();
    asked(&mut handed);
    let named = |volume| ClaimFacts { volume, ..claim(json!({"volumeName": "pv"}), pending()) };
    for (facts, state, whose, says) in [
        (ClaimFacts { default_class: Some(false), ..none.clone() }, State::Waits, "you", "no default one"),
        (ClaimFacts { default_class: Some(true), ..none.clone() }, State::Waits, "binder", "about to be set"),
        (none, State::Unknown, "", "not known"),
        (by_hand, State::Waits, "you", "by hand"),
        (no_class, State::Waits, "you", "fast does not exist"),
        (unread, State::Unknown, "", "could not be read"),
        (fresh, State::Waits, "binder", "nobody has asked d.csi"),
        (lonely, State::Waits, "you", "no pod uses this claim"),
        (unplaced, State::Failed, "scheduler", "until pod p has a node"),
        (handed, State::Waits, "provisioner of d.csi", "was asked for a volume"),
        (named(Known::Absent), State::Waits, "whoever", "does not exist"),
        (named(Known::Unknown), State::Unknown, "", "could not be read"),
        (named(volume("Available")), State::Waits, "binder", "not bound to it yet"),
    ] {
        let (got, turn, text) = answer("pvc/data", &of(facts));
        assert_eq!(got, Some(state), "{text}");
        assert!(
            turn.contains(whose) && text.contains(says),
            "{turn:?} {text:?}, expected {whose:?} {says:?}"
        );
    }
}

/// What the driver said last is part of the answer: the sidecar's own words before those of events.
#[test]
fn the_last_error_is_told() {
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
        last: Time(last),
        ..Event::default()
    };
    let mut all = of(facts);
    all.events = vec![event("c", 1, "old"), event("c", 2, "new"), event("other", 3, "not ours")];
    let said = |all: &Facts| {
        let story = walk(&"pvc/data".parse().unwrap(), all, Time(0));
        story.waits_for().and_then(|step| step.error.clone()).map(|said| said.text)
    };
    assert_eq!(said(&all).as_deref(), Some("new"));
    all.attempts = vec![Attempt {
        role: "provisioner".into(),
        object: "default/data".into(),
        error: Some("exact".into()),
        ..Attempt::default()
    }];
    assert_eq!(said(&all).as_deref(), Some("exact"));
}

fn pod(phase: &str) -> Facts {
    Facts {
        pod: Known::There(user("p", "n", phase)),
        nodes: [("n".to_owned(), node("n", &["kubernetes.io/csi/d.csi^h"]))].into(),
        claims: vec![ClaimFacts { pods: Some(vec![user("p", "n", phase)]), ..bound() }],
        ..Facts::default()
    }
}

/// A node that is well, has the driver, and knows of these volumes.
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
    let name = wharf_model::VolumeName { driver: "d.csi".into(), handle: "h".into() }.attachment(node);
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": "a"},
        "spec": {"attacher": "d.csi", "nodeName": node, "source": {"persistentVolumeName": "pv"}},
        "status": status,
    }))
    .unwrap()
}

/// A volume's way to a pod's node.
#[test]
fn ways_to_a_node() {
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
    for (facts, state, whose, says) in [
        (with(Vec::new(), |_| {}), State::Waits, "attach/detach", "to be attached to node n"),
        (
            with(elsewhere(), |facts| {
                let pods = facts.claims[0].pods.as_mut().unwrap();
                pods.push(user("q", "other", "Running"));
            }),
            State::Waits,
            "the pods that use it on node other",
            "used by default/q",
        ),
        (with(elsewhere(), |_| {}), State::Waits, "attach/detach", "has to leave node other"),
        (
            with(elsewhere(), |facts| {
                let Known::There(other) = &mut facts.nodes.get_mut("other").unwrap().node else { panic!() };
                other.status.volumes_in_use.push("kubernetes.io/csi/d.csi^h".into());
            }),
            State::Waits,
            "node other (kubelet)",
            "status.volumesInUse",
        ),
        (
            with(elsewhere(), |facts| facts.nodes.get_mut("other").unwrap().node = Known::Absent),
            State::Waits,
            "node other, which is not well",
            "out-of-service",
        ),
        (
            with(Vec::new(), |facts| machine(facts).node = object(json!({"metadata": {"name": "n"}}))),
            State::Waits,
            "kubelet",
            "no annotation",
        ),
        (
            with(Vec::new(), |facts| machine(facts).node = Known::Absent),
            State::Waits,
            "has to register",
            "does not exist",
        ),
        (
            with(Vec::new(), |facts| machine(facts).node = Known::Unknown),
            State::Unknown,
            "",
            "node n could not be read",
        ),
        (with(Vec::new(), |facts| facts.claims[0].pods = None), State::Unknown, "", "pods could not be read"),
        (
            with(Vec::new(), |facts| {
                let Known::There(volume) = &mut facts.claims[0].volume else { panic!() };
                volume.spec.claim_ref = None;
            }),
            State::Waits,
            "binder",
            "its volume pv names no claim",
        ),
        (
            with(attached(), |facts| facts.claims[0].volume = Known::Unknown),
            State::Unknown,
            "",
            "it could not be read",
        ),
        (
            with(attached(), |facts| facts.claims[0].volume = Known::Absent),
            State::Waits,
            "you: delete the claim",
            "its volume pv is gone",
        ),
        (with(vec![attachment("n", json!({}))], |_| {}), State::Waits, "attacher of d.csi", "to be attached"),
        (
            with(vec![attachment("n", json!({"attachError": {"message": "no room"}}))], |_| {}),
            State::Failed,
            "attacher of d.csi",
            "to be attached",
        ),
        (
            with(attached(), |facts| {
                let Known::There(node) = &mut machine(facts).node else { unreachable!() };
                node.status.volumes_attached.clear();
            }),
            State::Waits,
            "attach/detach",
            "was not told yet",
        ),
        (
            with(attached(), |facts| machine(facts).csi_node = object(json!({"metadata": {"name": "n"}}))),
            State::Waits,
            "registrar",
            "not registered on node n",
        ),
        (with(attached(), |facts| machine(facts).csi_node = Known::Unknown), State::Unknown, "", "not known"),
        (with(attached(), |_| {}), State::Waits, "node n (kubelet)", "volumes are mounted"),
        (
            with(attached(), |facts| facts.claims[0].attachments = None),
            State::Unknown,
            "",
            "could not be read",
        ),
    ] {
        let (got, turn, text) = answer("pod/p", &facts);
        assert_eq!(got, Some(state), "{text}");
        assert!(
            turn.contains(whose) && text.contains(says),
            "{turn:?} {text:?}, expected {whose:?} {says:?}"
        );
    }
    let mut running = pod("Running");
    running.claims[0].attachments = Some(attached());
    assert_eq!(answer("pod/p", &running), (None, String::new(), "it runs".to_owned()));
}

/// A claim's way goes on to the nodes whose pods use it, with the time since when and the last word of each step.
#[test]
fn a_claims_way_to_its_nodes() {
    let mut facts = pod("Pending");
    let story = |facts: &Facts| walk(&"pvc/data".parse().unwrap(), facts, Time(60_000));
    let steps =
        |facts: &Facts| -> Vec<String> { story(facts).steps.iter().map(|step| step.says.clone()).collect() };
    let waits = story(&facts).waits_for().cloned().unwrap();
    assert_eq!((waits.whose.as_str(), waits.since), ("the attach/detach controller", Some(Time(7000))));

    // Where a pod wants it and another node has it still: one is to come, the other to go.
    let error = json!({"detachError": {"message": "busy", "time": "1970-01-01T00:00:30Z"}});
    let mut leaving = attachment("old", error);
    leaving.metadata.deletion_timestamp = Some(Time(20_000));
    let name = leaving.metadata.name.clone();
    facts.claims[0].attachments = Some(vec![leaving]);
    facts.nodes.insert("old".into(), node("old", &[]));
    let story_now = story(&facts);
    let [_, comes, goes] = &story_now.steps[..] else { panic!("{story_now}") };
    assert!(
        comes.says.contains("has to leave node old") && goes.says.contains("is to leave node old"),
        "{story_now}"
    );
    for step in [comes, goes] {
        assert_eq!((step.state, step.since), (State::Failed, Some(Time(20_000))));
        assert_eq!(step.whose, "the attacher of d.csi");
        let said = step.error.as_ref().unwrap();
        assert_eq!((said.by.as_str(), said.text.as_str()), ("detachError", "busy"));
    }
    // What the sidecar says itself is more exact.
    facts.attempts = vec![Attempt {
        role: "attacher".into(),
        object: name,
        step: "ControllerUnpublishVolume".into(),
        error: Some("exact".into()),
        ..Attempt::default()
    }];
    assert_eq!(story(&facts).waits_for().unwrap().error.as_ref().unwrap().text, "exact");

    // Nobody has it: the claim is done.
    facts.claims[0].attachments = Some(Vec::new());
    facts.claims[0].pods = Some(Vec::new());
    assert_eq!(steps(&facts), ["bound to volume pv, 1Gi"]);
    // Unless its volume could not be read, or is gone and the binder has not said so.
    for (volume, says, status) in
        [(Known::Unknown, "it could not be read", 5), (Known::Absent, "its volume pv is gone", 3)]
    {
        let mut facts = facts.clone();
        facts.claims[0].volume = volume;
        assert_eq!(steps(&facts), ["bound to volume pv, 1Gi", says]);
        assert_eq!(story(&facts).exit_status(), status, "{says}");
    }
    // A driver that does not attach has to be there all the same.
    facts.claims[0].pods = Some(vec![user("p", "n", "Running")]);
    facts.claims[0].driver =
        object(json!({"metadata": {"name": "d.csi"}, "spec": {"attachRequired": false}}));
    assert_eq!(steps(&facts), ["bound to volume pv, 1Gi", "d.csi needs no attaching"]);
    facts.nodes.get_mut("n").unwrap().csi_node = Known::Absent;
    assert_eq!(steps(&facts)[2], "it is not registered on node n");
}

/// The binder's and the protection's own rules: what does not fit, and who keeps a claim.
#[test]
fn the_controllers_rules() {
    let asks = json!({"volumeName": "pv", "accessModes": ["ReadWriteMany"]});
    let free = |volume: Known<wharf_model::PersistentVolume>| {
        let Known::There(mut volume) = volume else { unreachable!() };
        volume.spec.claim_ref = None;
        Known::There(volume)
    };
    let facts = ClaimFacts { volume: free(volume("Available")), ..claim(asks, json!({"phase": "Pending"})) };
    let (state, whose, says) = answer("pvc/data", &of(facts));
    assert_eq!(state, Some(State::Waits));
    assert!(
        whose.starts_with("you") && says.contains("does not fit: incompatible accessMode"),
        "{whose} {says}"
    );

    let mut other = claim(json!({"volumeName": "pv"}), json!({"phase": "Pending"}));
    other.volume = object(json!({"metadata": {"name": "pv"},
        "spec": {"claimRef": {"namespace": "default", "name": "first", "uid": "f"}}}));
    let (_, whose, says) = answer("pvc/data", &of(other));
    assert!(whose.starts_with("you") && says.contains("claim default/first's"), "{whose} {says}");

    let going = |pods: Vec<Pod>| {
        let mut facts = bound();
        let Known::There(claim) = &mut facts.claim else { unreachable!() };
        claim.metadata.deletion_timestamp = Some(Time(0));
        claim.metadata.finalizers = vec!["kubernetes.io/pvc-protection".into()];
        answer("pvc/data", &of(ClaimFacts { pods: Some(pods), ..facts })).2
    };
    let ended = user("ended", "n", "Succeeded");
    let unplaced = user("unplaced", "", "Pending");
    assert!(going(vec![ended]).contains("still used by pod ended"), "ended ones count");
    assert!(
        going(vec![unplaced]).contains("kept by kubernetes.io/pvc-protection"),
        "one without a node does not"
    );
}

/// What a node makes of a pod whose volumes have come: also of one whose volume is no driver's.
#[test]
fn pods_on_their_node() {
    let by_hand = |phase: &str| {
        let mut facts = pod(phase);
        let Known::There(volume) = &mut facts.claims[0].volume else { unreachable!() };
        volume.spec.csi = None;
        facts.claims[0].attachments = Some(Vec::new());
        facts
    };
    assert_eq!(answer("pod/p", &by_hand("Running")), (None, String::new(), "it runs".to_owned()));
    let mut pending = by_hand("Pending");
    expect("pod/p", &pending, Some(State::Waits), "node n (kubelet)", "volumes are mounted");
    pending.events = vec![Event {
        regarding_uid: "p".into(),
        warning: true,
        reason: "FailedMount".into(),
        message: "volume pv is not a CSI volume".into(),
        last: Time(1),
        ..Event::default()
    }];
    expect("pod/p", &pending, Some(State::Failed), "node n (kubelet)", "volumes are mounted");
    assert_eq!(last_said("pod/p", &pending).as_deref(), Some("volume pv is not a CSI volume"));

    // It does not wait for what changes about its claims.
    for (phase, whose) in [("Pending", "node n (kubelet)"), ("Running", "the resizer")] {
        let mut growing = by_hand(phase);
        let Known::There(claim) = &mut growing.claims[0].claim else { unreachable!() };
        claim.status.capacity.storage = Some("1Mi".parse().unwrap());
        expect("pod/p", &growing, Some(State::Waits), whose, "");
    }

    // The containers that run first are told first.
    let mut first = by_hand("Pending");
    let Known::There(pod) = &mut first.pod else { unreachable!() };
    let waits = |name: &str, reason: &str| json!([{"name": name, "state": {"waiting": {"reason": reason}}}]);
    pod.status.init_container_statuses = serde_json::from_value(waits("i", "ErrImagePull")).unwrap();
    pod.status.container_statuses = serde_json::from_value(waits("c", "PodInitializing")).unwrap();
    expect("pod/p", &first, Some(State::Waits), "node n", "container i waits: ErrImagePull");
}
