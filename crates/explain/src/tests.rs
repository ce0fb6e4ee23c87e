//! Stories as tables: from what is known to what is said.

use serde_json::{Value, json};
use wharf_model::Time;

use crate::facts::{ClaimFacts, Facts, Known, Told};
use crate::{Attempt, State, Subject, walk};

fn object<T: serde::de::DeserializeOwned>(value: Value) -> Known<T> {
    Known::There(serde_json::from_value(value).unwrap())
}

fn claim(spec: Value, status: Value) -> ClaimFacts {
    ClaimFacts {
        key: Some(wharf_model::Key::namespaced("default", "data")),
        claim: object(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "c"}, "spec": spec, "status": status,
        })),
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

fn of(claim: ClaimFacts) -> Facts {
    Facts { claims: vec![claim], ..Facts::default() }
}

/// co.md 1.1: what a claim without a volume waits for.
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
    let event = |uid: &str, last: i64, message: &str| Told {
        uid: uid.into(),
        warning: true,
        reason: "ProvisioningFailed".into(),
        message: message.into(),
        last: Time(last),
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

/// co.md 1.4: how far an expansion has come.
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
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": status},
        }));
        let (state, turn, text) = answer("pvc/data", &of(facts));
        assert_eq!(state, Some(State::Waits), "{text}");
        assert!(turn.contains(whose) && text.contains("it has 1Gi and wants 2Gi"), "{turn} {text}");
    }
    assert_eq!(answer("pvc/data", &of(bound())).0, None);
}

fn pod(phase: &str) -> Facts {
    Facts {
        pod: object(json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "p"},
            "spec": {"nodeName": "n", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
            "status": {"phase": phase},
        })),
        node: object(json!({
            "metadata": {"name": "n",
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "volumesAttached": [{"name": "kubernetes.io/csi/d.csi^h"}]},
        })),
        csi_node: object(
            json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d.csi", "nodeID": "n"}]}}),
        ),
        claims: vec![bound()],
        ..Facts::default()
    }
}

fn attachment(node: &str, status: Value) -> wharf_model::VolumeAttachment {
    serde_json::from_value(json!({
        "metadata": {"name": "a", "uid": "a"},
        "spec": {"attacher": "d.csi", "nodeName": node, "source": {"persistentVolumeName": "pv"}},
        "status": status,
    }))
    .unwrap()
}

/// co.md 1.3 and 1.8: a volume's way to a pod's node.
#[test]
fn ways_to_a_node() {
    let with = |attachments: Vec<_>, change: fn(&mut Facts)| {
        let mut facts = pod("Pending");
        facts.claims[0].attachments = Some(attachments);
        change(&mut facts);
        facts
    };
    let attached = || vec![attachment("n", json!({"attached": true}))];
    for (facts, state, whose, says) in [
        (with(Vec::new(), |_| {}), State::Waits, "attach/detach", "to be attached to node n"),
        (
            with(vec![attachment("other", json!({"attached": true}))], |_| {}),
            State::Waits,
            "the pod that uses it there",
            "still attached to node other",
        ),
        (
            with(Vec::new(), |facts| facts.node = object(json!({"metadata": {"name": "n"}}))),
            State::Waits,
            "kubelet",
            "lacks the annotation",
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
                let Known::There(node) = &mut facts.node else { unreachable!() };
                node.status.volumes_attached.clear();
            }),
            State::Waits,
            "attach/detach",
            "has not been told yet",
        ),
        (
            with(attached(), |facts| facts.csi_node = object(json!({"metadata": {"name": "n"}}))),
            State::Waits,
            "registrar",
            "not registered on node n",
        ),
        (with(attached(), |facts| facts.csi_node = Known::Unknown), State::Unknown, "", "not known"),
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

/// co.md 1.1 "Reclaim".
#[test]
fn volumes_at_their_end() {
    for (phase, state, whose) in [
        ("Bound", None, ""),
        ("Available", None, ""),
        ("Released", Some(State::Waits), "provisioner of d.csi"),
        ("Failed", Some(State::Waits), "provisioner"),
        ("Pending", Some(State::Waits), "binder"),
    ] {
        let facts = of(ClaimFacts { volume: volume(phase), ..ClaimFacts::default() });
        let (got, turn, text) = answer("pv/pv", &facts);
        assert_eq!(got, state, "{phase}: {text}");
        assert!(turn.contains(whose), "{phase}: {turn}");
    }
}

/// sidecars.md 1.4 and 1.5: a snapshot's way to being ready.
#[test]
fn snapshots() {
    let snapshot = |status: Value| Facts {
        snapshot: object(json!({
            "metadata": {"name": "s", "namespace": "default", "uid": "s"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
            "status": status,
        })),
        claims: vec![bound()],
        ..Facts::default()
    };
    let content = |status: Value| {
        object(json!({"metadata": {"name": "c"}, "spec": {"driver": "d.csi"}, "status": status}))
    };
    let bound_to = json!({"boundVolumeSnapshotContentName": "c"});
    for (facts, state, whose, says) in [
        (snapshot(Value::Null), Some(State::Waits), "snapshot controller", "no content yet"),
        (
            Facts { snapshot_class: Some(false), ..snapshot(Value::Null) },
            Some(State::Waits),
            "you: name a class",
            "no VolumeSnapshotClass",
        ),
        (
            snapshot(json!({"error": {"message": "no"}})),
            Some(State::Failed),
            "snapshot controller",
            "no content",
        ),
        (
            Facts { content: content(Value::Null), ..snapshot(bound_to.clone()) },
            Some(State::Waits),
            "snapshotter of d.csi",
            "asked to cut",
        ),
        (
            Facts { content: content(json!({"snapshotHandle": "h"})), ..snapshot(bound_to.clone()) },
            Some(State::Waits),
            "snapshotter of d.csi",
            "not ready to be used",
        ),
        (Facts { content: Known::Absent, ..snapshot(bound_to) }, Some(State::Waits), "you", "is gone"),
        (
            snapshot(json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true})),
            None,
            "",
            "ready, content c",
        ),
    ] {
        let (got, turn, text) = answer("volumesnapshot/s", &facts);
        assert_eq!(got, state, "{text}");
        assert!(
            turn.contains(whose) && text.contains(says),
            "{turn:?} {text:?}, expected {whose:?} {says:?}"
        );
    }
}
