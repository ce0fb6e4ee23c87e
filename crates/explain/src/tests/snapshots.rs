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
            snapshot(json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true})),
            None,
            "",
            "ready, content c",
        ),
    ] {
        expect("volumesnapshot/s", &facts, state, whose, says);
    }
}
