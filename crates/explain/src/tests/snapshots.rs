//! Snapshots until they are ready, and until they are deleted.

use super::*;

/// sidecars.md 1.4 and 1.5: from a new snapshot to a ready one.
#[test]
fn snapshot_names_who_acts_until_it_is_ready() {
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
        let Lookup::Found(claim) = &mut facts.claims[0].claim else { unreachable!() };
        claim.status.capacity.storage = Some("1Mi".parse().unwrap());
        facts
    };
    let content = |status: Value| {
        object(json!({"metadata": {"name": "c"}, "spec": {"driver": "d.csi"}, "status": status}))
    };
    let bound_to = json!({"boundVolumeSnapshotContentName": "c"});
    for (facts, state, waiting_for, message) in [
        (snapshot(Value::Null), Some(State::Waiting), "snapshot controller", "no VolumeSnapshotContent yet"),
        (
            growing(snapshot(Value::Null)),
            Some(State::Waiting),
            "snapshot controller",
            "no VolumeSnapshotContent",
        ),
        (
            Facts { snapshot_class: Some(false), ..snapshot(Value::Null) },
            Some(State::Waiting),
            "you to name a class",
            "no VolumeSnapshotClass",
        ),
        (
            snapshot(json!({"error": {"message": "no"}})),
            Some(State::Failed),
            "snapshot controller",
            "no VolumeSnapshotContent",
        ),
        (
            Facts { content: content(Value::Null), ..snapshot(bound_to.clone()) },
            Some(State::Waiting),
            "snapshotter of d.csi",
            "taking the snapshot",
        ),
        (
            Facts { content: content(json!({"snapshotHandle": "h"})), ..snapshot(bound_to.clone()) },
            Some(State::Waiting),
            "snapshotter of d.csi",
            "not ready to use",
        ),
        (
            Facts { content: Lookup::Absent, ..snapshot(bound_to) },
            Some(State::Waiting),
            "you",
            "no longer exists",
        ),
        (
            Facts {
                content: Lookup::Absent,
                ..snapshot(json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true}))
            },
            Some(State::Waiting),
            "you to delete the snapshot",
            "no longer exists",
        ),
        (
            snapshot(json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true})),
            None,
            "",
            "ready to use, content c",
        ),
    ] {
        expect("volumesnapshot/s", &facts, state, waiting_for, message);
    }
}

/// A content with this volumeSnapshotRef and source.
fn content(reference: Value, source: Value, more: Value) -> Value {
    json!({
        "metadata": {"name": "c", "uid": "cu", "finalizers": more["finalizers"],
            "annotations": {"snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes"},
            "deletionTimestamp": more["deletionTimestamp"]},
        "spec": {"driver": "d.csi", "deletionPolicy": more["policy"], "volumeSnapshotRef": reference,
            "source": source},
    })
}

fn reference(name: &str, uid: &str) -> Value {
    json!({"namespace": "default", "name": name, "uid": uid})
}

/// sidecars.md 1.4 "Binding": a pre-provisioned snapshot needs its content, and no class.
#[test]
fn pre_provisioned_snapshot_needs_its_content() {
    let with = |found: Lookup<_>| Facts {
        snapshot: object(json!({
            "metadata": {"name": "s", "namespace": "default", "uid": "s"},
            "spec": {"source": {"volumeSnapshotContentName": "c"}},
        })),
        content: found,
        snapshot_class: Some(true),
        ..Facts::default()
    };
    let made = |to: Value, source: Value| with(object(content(to, source, json!({"finalizers": []}))));
    let existing = || json!({"snapshotHandle": "h"});
    let no_class = Facts { snapshot_class: Some(false), ..with(Lookup::Absent) };
    for (facts, state, waiting_for, message) in [
        (
            with(Lookup::Absent),
            State::Waiting,
            "you to create VolumeSnapshotContent c",
            "c, which does not exist",
        ),
        (with(Lookup::Unknown), State::Unknown, "", "could not be read"),
        (made(reference("s", ""), existing()), State::Waiting, "snapshot controller", "not bound to it yet"),
        (made(reference("s", "s"), existing()), State::Waiting, "snapshot controller", "not bound to it yet"),
        (
            made(reference("t", ""), existing()),
            State::Waiting,
            "you to name a content",
            "belongs to snapshot default/t",
        ),
        (made(reference("s", "old"), existing()), State::Waiting, "you to name a content", "(uid \"old\")"),
        (
            made(reference("s", ""), json!({"volumeHandle": "h"})),
            State::Waiting,
            "you to name a content",
            "no source.snapshotHandle",
        ),
        // A class that the snapshot names must still exist.
        (no_class, State::Waiting, "you to name a class", "no VolumeSnapshotClass"),
    ] {
        expect("volumesnapshot/s", &facts, Some(state), waiting_for, message);
    }
}

/// sidecars.md 1.4 "Delete": the controller waits for the snapshotter, for claims that are being restored and for the group.
#[test]
fn snapshot_in_deletion_names_what_holds_it() {
    let bound_protection = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
    let with = |finalizer: &str, found: Lookup<_>| Facts {
        snapshot: object(json!({
            "metadata": {"name": "s", "namespace": "default", "uid": "s", "finalizers": [finalizer],
                "deletionTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
        })),
        content: found,
        restoring_claims: Some(Vec::new()),
        ..Facts::default()
    };
    let held = |policy: &str, deleting: bool, finalizer: &str| {
        let deleted = if deleting { json!("1970-01-01T00:00:00Z") } else { Value::Null };
        let more = json!({"policy": policy, "deletionTimestamp": deleted, "finalizers": [finalizer]});
        object(content(reference("s", "s"), json!({"volumeHandle": "h"}), more))
    };
    let of_content = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
    let deleted = || with(bound_protection, held("Delete", true, of_content));
    let group = |deleting: bool| {
        let deleted = if deleting { json!("1970-01-01T00:00:00Z") } else { Value::Null };
        object(json!({"metadata": {"name": "g", "namespace": "default", "deletionTimestamp": deleted}}))
    };
    let waits = State::Waiting;
    for (facts, state, waiting_for, message) in [
        (
            with(bound_protection, Lookup::Absent),
            waits,
            "snapshot controller",
            "held by finalizers snapshot.storage",
        ),
        (with(bound_protection, Lookup::Unknown), State::Unknown, "", "could not be read"),
        (with(bound_protection, held("Delete", false, of_content)), waits, "snapshot controller", "held by"),
        (with(bound_protection, held("Retain", true, of_content)), waits, "snapshot controller", "held by"),
        (deleted(), waits, "the snapshotter of d.csi", "deleting the snapshot of content c"),
        (
            with(bound_protection, held("Delete", true, "example.com/f")),
            waits,
            "the controller that set it (finalizer example.com/f)",
            "content c is held by finalizers example.com/f",
        ),
        (
            with("example.com/f", Lookup::Absent),
            waits,
            "the controller that set it",
            "finalizers example.com/f",
        ),
        (
            Facts { restoring_claims: Some(vec!["new".into()]), ..deleted() },
            waits,
            "you to delete them",
            "claim new is being restored",
        ),
        (Facts { restoring_claims: None, ..deleted() }, State::Unknown, "", "is unknown"),
        (
            Facts { group: group(false), ..deleted() },
            waits,
            "you to delete the group snapshot",
            "group snapshot default/g",
        ),
        (Facts { group: group(true), ..deleted() }, waits, "snapshot controller", "group snapshot default/g"),
    ] {
        expect("volumesnapshot/s", &facts, Some(state), waiting_for, message);
    }
    let mut facts = deleted();
    let event = |uid: &str, message: &str| Event {
        regarding_uid: uid.into(),
        warning: true,
        reason: "SnapshotDeleteError".into(),
        message: message.into(),
        last_timestamp: Time(1),
        ..Event::default()
    };
    facts.events = vec![event("cu", "has dependents")];
    assert_eq!(last_error("volumesnapshot/s", &facts).as_deref(), Some("has dependents"));
    facts.attempts = vec![attempt("snapshotter", "c", "exact")];
    assert_eq!(last_error("volumesnapshot/s", &facts).as_deref(), Some("exact"));
}
