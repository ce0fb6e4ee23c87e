//! Snapshots on their way to being ready, and to their end.

use super::*;

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
    let growing = |mut facts: Facts| {
        let Known::There(claim) = &mut facts.claims[0].claim else { unreachable!() };
        claim.status.capacity.storage = Some("1Mi".parse().unwrap());
        facts
    };
    let content = |status: Value| {
        object(json!({"metadata": {"name": "c"}, "spec": {"driver": "d.csi"}, "status": status}))
    };
    let bound_to = json!({"boundVolumeSnapshotContentName": "c"});
    for (facts, state, whose, says) in [
        (snapshot(Value::Null), Some(State::Waits), "snapshot controller", "no content yet"),
        (growing(snapshot(Value::Null)), Some(State::Waits), "snapshot controller", "no content yet"),
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
            Facts {
                content: Known::Absent,
                ..snapshot(json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true}))
            },
            Some(State::Waits),
            "you: delete the snapshot",
            "is gone",
        ),
        (
            snapshot(json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true})),
            None,
            "",
            "ready, content c",
        ),
    ] {
        expect("volumesnapshot/s", &facts, state, whose, says);
    }
}

/// A content of snapshot `s`, or of another.
fn content(reference: Value, source: Value, more: Value) -> Value {
    json!({
        "metadata": {"name": "c", "uid": "cu", "finalizers": more["finalizers"],
            "deletionTimestamp": more["deletionTimestamp"]},
        "spec": {"driver": "d.csi", "deletionPolicy": more["policy"], "volumeSnapshotRef": reference,
            "source": source},
    })
}

fn reference(name: &str, uid: &str) -> Value {
    json!({"namespace": "default", "name": name, "uid": uid})
}

/// sidecars.md 1.4 "Binding": a snapshot of what is there already needs its content, and no class.
#[test]
fn snapshots_of_what_is_there() {
    let with = |found: Known<_>| Facts {
        snapshot: object(json!({
            "metadata": {"name": "s", "namespace": "default", "uid": "s"},
            "spec": {"source": {"volumeSnapshotContentName": "c"}},
        })),
        content: found,
        snapshot_class: Some(true),
        ..Facts::default()
    };
    let made = |to: Value, source: Value| with(object(content(to, source, json!({"finalizers": []}))));
    let there = || json!({"snapshotHandle": "h"});
    let no_class = Facts { snapshot_class: Some(false), ..with(Known::Absent) };
    for (facts, state, whose, says) in [
        (with(Known::Absent), State::Waits, "you: make content c", "c, which does not exist"),
        (with(Known::Unknown), State::Unknown, "", "could not be read"),
        (made(reference("s", ""), there()), State::Waits, "snapshot controller", "not bound to it yet"),
        (made(reference("s", "s"), there()), State::Waits, "snapshot controller", "not bound to it yet"),
        (made(reference("t", ""), there()), State::Waits, "you: ask for", "snapshot default/t's"),
        (made(reference("s", "old"), there()), State::Waits, "you: ask for", "of uid \"old\""),
        (
            made(reference("s", ""), json!({"volumeHandle": "h"})),
            State::Waits,
            "snapshotHandle",
            "to be taken",
        ),
        // One that it names has to be there all the same.
        (no_class, State::Waits, "you: name a class", "no VolumeSnapshotClass"),
    ] {
        expect("volumesnapshot/s", &facts, Some(state), whose, says);
    }
}

/// sidecars.md 1.4 "Delete": the controller waits for the snapshotter, for claims that are restored and for the group.
#[test]
fn snapshots_that_go() {
    let guard = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
    let with = |finalizer: &str, found: Known<_>| Facts {
        snapshot: object(json!({
            "metadata": {"name": "s", "namespace": "default", "uid": "s", "finalizers": [finalizer],
                "deletionTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
        })),
        content: found,
        restored: Some(Vec::new()),
        ..Facts::default()
    };
    let kept = |policy: &str, deleting: bool, finalizer: &str| {
        let deleted = if deleting { json!("1970-01-01T00:00:00Z") } else { Value::Null };
        let more = json!({"policy": policy, "deletionTimestamp": deleted, "finalizers": [finalizer]});
        object(content(reference("s", "s"), json!({"volumeHandle": "h"}), more))
    };
    let of_content = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
    let going = || with(guard, kept("Delete", true, of_content));
    let group = |deleting: bool| {
        let deleted = if deleting { json!("1970-01-01T00:00:00Z") } else { Value::Null };
        object(json!({"metadata": {"name": "g", "namespace": "default", "deletionTimestamp": deleted}}))
    };
    let waits = State::Waits;
    for (facts, state, whose, says) in [
        (with(guard, Known::Absent), waits, "snapshot controller", "kept by snapshot.storage"),
        (with(guard, Known::Unknown), State::Unknown, "", "could not be read"),
        (with(guard, kept("Delete", false, of_content)), waits, "snapshot controller", "kept by"),
        (with(guard, kept("Retain", true, of_content)), waits, "snapshot controller", "kept by"),
        (going(), waits, "the snapshotter of d.csi", "behind content c"),
        (
            with(guard, kept("Delete", true, "example.com/f")),
            waits,
            "whoever",
            "content c is kept by example.com/f",
        ),
        (with("example.com/f", Known::Absent), waits, "whoever", "kept by example.com/f"),
        (
            Facts { restored: Some(vec!["new".into()]), ..going() },
            waits,
            "you: delete them",
            "claim new is restored",
        ),
        (Facts { restored: None, ..going() }, State::Unknown, "", "not known"),
        (
            Facts { group: group(false), ..going() },
            waits,
            "you: delete the group snapshot",
            "group snapshot default/g",
        ),
        (Facts { group: group(true), ..going() }, waits, "snapshot controller", "group snapshot default/g"),
    ] {
        expect("volumesnapshot/s", &facts, Some(state), whose, says);
    }
    let mut facts = going();
    let event = |uid: &str, message: &str| Event {
        regarding_uid: uid.into(),
        warning: true,
        reason: "SnapshotDeleteError".into(),
        message: message.into(),
        last: Time(1),
        ..Event::default()
    };
    facts.events = vec![event("cu", "has dependents")];
    assert_eq!(last_said("volumesnapshot/s", &facts).as_deref(), Some("has dependents"));
    facts.attempts = vec![attempt("snapshotter", "c", "exact")];
    assert_eq!(last_said("volumesnapshot/s", &facts).as_deref(), Some("exact"));
}
