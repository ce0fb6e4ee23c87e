//! What changes enqueue.

use serde_json::{Value, json};

use super::*;

fn change<K: Kind>(old: Option<Value>, new: Option<Value>) -> Change<K> {
    let of = |value: Value| -> Arc<K> { Arc::new(serde_json::from_value(value).unwrap()) };
    let (old, new) = (old.map(of), new.map(of));
    let key = new.as_ref().or(old.as_ref()).unwrap().key();
    Change { key, old, new }
}

fn items(requests: Vec<EnqueueRequest<WorkKey>>) -> Vec<WorkKey> {
    requests.into_iter().map(|wish| wish.key).collect()
}

fn in_shop(name: &str) -> Key {
    Key::namespaced("shop", name)
}

fn snapshot(status: Value) -> Value {
    json!({
        "metadata": {"name": "s", "namespace": "shop", "uid": "u"},
        "spec": {"source": {"persistentVolumeClaimName": "data"}}, "status": status,
    })
}

/// Our own report of a failure does not end its backoff.
#[test]
fn snapshot_changes_enqueue_snapshot_and_claim() {
    let bound = || json!({"boundVolumeSnapshotContentName": "c", "readyToUse": false});
    let failed = || json!({"error": {"message": "no"}, "readyToUse": false});
    let ready = || json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true});
    let (itself, claim) = (WorkKey::Snapshot(in_shop("s")), WorkKey::Claim(in_shop("data")));
    let mut deleting = snapshot(bound());
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for (old, new, expected) in [
        (None, Some(snapshot(Value::Null)), vec![itself.clone()]),
        (Some(snapshot(Value::Null)), Some(snapshot(failed())), vec![]),
        (Some(snapshot(Value::Null)), Some(snapshot(bound())), vec![itself.clone()]),
        (Some(snapshot(bound())), Some(snapshot(ready())), vec![itself.clone(), claim.clone()]),
        (Some(snapshot(bound())), Some(deleting.clone()), vec![itself.clone()]),
        (Some(deleting), None, vec![itself.clone(), claim]),
        (Some(snapshot(ready())), None, vec![itself]),
    ] {
        let row = format!("{old:?} {new:?}");
        assert_eq!(items(on_snapshot(&change(old, new))), expected, "{row}");
    }
}

#[test]
fn content_changes_enqueue_content_and_snapshot() {
    let content = |status: Value, annotations: Value| {
        json!({
            "metadata": {"name": "c", "uid": "u", "annotations": annotations},
            "spec": {"volumeSnapshotRef": {"namespace": "shop", "name": "s"}}, "status": status,
        })
    };
    let plain = || content(Value::Null, json!({}));
    let (itself, snapshot) = (WorkKey::Content(Key::cluster("c")), WorkKey::Snapshot(in_shop("s")));
    for (old, new, expected) in [
        (None, Some(plain()), vec![itself.clone(), snapshot.clone()]),
        (
            Some(plain()),
            Some(content(json!({"readyToUse": true}), json!({}))),
            vec![itself.clone(), snapshot.clone()],
        ),
        // The snapshotter's own annotations.
        (Some(plain()), Some(content(Value::Null, json!({names::BEING_CREATED: "yes"}))), vec![itself]),
        (Some(plain()), None, vec![snapshot]),
    ] {
        let row = format!("{old:?} {new:?}");
        assert_eq!(items(on_content(&change(old, new))), expected, "{row}");
    }
}

/// sidecars.md 1.4 "Delete": the end of a restore unblocks the deletion of its snapshot.
#[test]
fn end_of_restore_enqueues_snapshot() {
    let claim = |phase: &str, finalizers: Value| {
        let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u", "finalizers": finalizers},
            "spec": {"dataSource": source, "dataSourceRef": source}, "status": {"phase": phase},
        })
    };
    let pending = || claim("Pending", json!([]));
    let (itself, snapshot) = (WorkKey::Claim(in_shop("data")), WorkKey::Snapshot(in_shop("s")));
    let protected = claim("Bound", json!([names::CLAIM_PROTECTION]));
    for (old, new, expected, bound) in [
        (None, Some(pending()), vec![], false),
        (Some(pending()), Some(claim("Bound", json!([]))), vec![snapshot.clone()], true),
        (Some(pending()), None, vec![snapshot], false),
        (Some(claim("Bound", json!([]))), None, vec![], false),
        (None, Some(protected), vec![itself], true),
    ] {
        let row = format!("{old:?} {new:?}");
        let change = change(old, new);
        assert_eq!(items(on_claim(&change)), expected, "{row}");
        assert_eq!(became_bound(&change), bound, "{row}");
    }
}

/// Lookups by index.
#[test]
fn finished_snapshots_are_not_indexed() {
    let of = |status: Value| -> VolumeSnapshot { serde_json::from_value(snapshot(status)).unwrap() };
    assert_eq!(claim_index(&of(Value::Null)), ["shop/data"]);
    assert!(claim_index(&of(json!({"readyToUse": true}))).is_empty());
    assert_eq!(class_index(&of(Value::Null)), [""]);
    assert!(class_index(&of(json!({"creationTime": "2026-01-01T00:00:00Z"}))).is_empty());
    // A pre-provisioned snapshot waits for no class unless it names one.
    let pre = |class: Value| -> VolumeSnapshot {
        let mut snapshot = snapshot(Value::Null);
        snapshot["spec"] = json!({
            "source": {"volumeSnapshotContentName": "c"}, "volumeSnapshotClassName": class,
        });
        serde_json::from_value(snapshot).unwrap()
    };
    assert!(class_index(&pre(Value::Null)).is_empty());
    assert_eq!(class_index(&pre(json!("late"))), ["late"]);
}

#[test]
fn group_changes_enqueue_group() {
    let group = |status: Value| json!({"metadata": {"name": "g", "namespace": "shop", "uid": "u"}, "spec": {"source": {}}, "status": status});
    let itself = WorkKey::Group(in_shop("g"));
    for (old, new, expected) in [
        (None, Some(group(Value::Null)), vec![itself.clone()]),
        (
            Some(group(Value::Null)),
            Some(group(json!({"error": {"message": "no"}, "readyToUse": false}))),
            vec![],
        ),
        (Some(group(Value::Null)), Some(group(json!({"readyToUse": true}))), vec![itself.clone()]),
        (Some(group(Value::Null)), None, vec![itself.clone()]),
    ] {
        let row = format!("{old:?} {new:?}");
        assert_eq!(items(on_group(&change(old, new))), expected, "{row}");
    }
    let content = |status: Value| {
        let reference = json!({"namespace": "shop", "name": "g", "uid": "u"});
        json!({"metadata": {"name": "gc", "uid": "k"}, "spec": {"volumeGroupSnapshotRef": reference}, "status": status})
    };
    let guarded = WorkKey::GroupContent(Key::cluster("gc"));
    let handle = json!({"volumeGroupSnapshotHandle": "gh"});
    let with_handle = change(Some(content(Value::Null)), Some(content(handle)));
    assert_eq!(items(on_group_content(&with_handle)), [guarded, itself.clone()]);
    assert_eq!(group_handle_index(with_handle.new.as_ref().unwrap()), ["gh"]);
    let deleted = change(Some(content(Value::Null)), None);
    assert_eq!(items(on_group_content(&deleted)), [itself]);
}

/// sidecars.md 1.4 "Group": what a group and its members wait for enqueues them at once.
#[test]
fn waiting_groups_are_indexed_by_namespace() {
    let group = |source: Value, status: Value| -> VolumeGroupSnapshot {
        let metadata = json!({"name": "g", "namespace": "shop"});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"source": source}, "status": status}))
            .unwrap()
    };
    let selector = || json!({"selector": {"matchLabels": {"app": "db"}}});
    assert_eq!(waiting_group_index(&group(selector(), Value::Null)), ["shop"]);
    assert_eq!(waiting_group_index(&group(selector(), json!({"error": {"message": "no claims"}}))), ["shop"]);
    let bound = json!({"boundVolumeGroupSnapshotContentName": "gc"});
    assert!(waiting_group_index(&group(selector(), bound)).is_empty());
    assert!(
        waiting_group_index(&group(json!({"volumeGroupSnapshotContentName": "gc"}), Value::Null)).is_empty()
    );
    let content = |status: Value| json!({"metadata": {"name": "gc"}, "status": status});
    let with_handle = || content(json!({"volumeGroupSnapshotHandle": "gh"}));
    for (old, new, expected) in [
        (None, Some(with_handle()), Some("gh")),
        (Some(content(Value::Null)), Some(with_handle()), Some("gh")),
        (Some(with_handle()), Some(with_handle()), None),
        (Some(with_handle()), None, None),
    ] {
        assert_eq!(new_handle(&change(old, new)).as_deref(), expected);
    }
    let member: VolumeSnapshotContent = serde_json::from_value(with_handle()).unwrap();
    assert_eq!(member_group_handle_index(&member), ["gh"]);
}

/// sidecars.md 1.4 "Group", "Delete": pre-provisioned members are enqueued when their group appears, all members
/// when it is gone.
#[test]
fn deleted_group_enqueues_all_members() {
    let member = |name: &str, owners: Value, status: Value| -> Arc<VolumeSnapshot> {
        let metadata = json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": owners});
        let spec = json!({"source": {"volumeSnapshotContentName": "c"}});
        Arc::new(
            serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap(),
        )
    };
    let owner = json!([{
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot", "name": "g", "uid": "u",
    }]);
    let owned = member("owned", owner, Value::Null);
    let named = member("named", json!([]), json!({"volumeGroupSnapshotName": "g"}));
    assert_eq!(group_index(&owned), ["shop/g"]);
    assert_eq!(group_index(&named), ["shop/g"]);
    assert!(group_index(&member("alone", json!([]), Value::Null)).is_empty());
    let members = [owned, named];
    let group = |uid: &str| json!({"metadata": {"name": "g", "namespace": "shop", "uid": uid}, "spec": {"source": {}}});
    let all = ["owned", "named"];
    for (old, new, expected) in [
        (None, Some(group("u")), &all[1..]),
        (Some(group("u")), Some(group("u")), &all[1..]),
        (Some(group("u")), None, &all[..]),
        // A deletion and the creation of a successor were observed as one change.
        (Some(group("u")), Some(group("v")), &all[..]),
    ] {
        let row = format!("{old:?} {new:?}");
        let expected: Vec<WorkKey> = expected.iter().map(|name| WorkKey::Snapshot(in_shop(name))).collect();
        assert_eq!(items(on_group_members(&change(old, new), &members)), expected, "{row}");
    }
}
