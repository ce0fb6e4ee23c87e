//! What changes call for.

use serde_json::{Value, json};

use super::*;

fn change<K: Kind>(old: Option<Value>, new: Option<Value>) -> Change<K> {
    let of = |value: Value| -> Arc<K> { Arc::new(serde_json::from_value(value).unwrap()) };
    let (old, new) = (old.map(of), new.map(of));
    let key = new.as_ref().or(old.as_ref()).unwrap().key();
    Change { key, old, new }
}

fn subjects(wishes: Vec<Wish<Subject>>) -> Vec<Subject> {
    wishes.into_iter().map(|wish| wish.key).collect()
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

/// sidecars.md 3, item 17: our own words about a failure do not end its pause.
#[test]
fn snapshots() {
    let bound = || json!({"boundVolumeSnapshotContentName": "c", "readyToUse": false});
    let failed = || json!({"error": {"message": "no"}, "readyToUse": false});
    let ready = || json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true});
    let (itself, claim) = (Subject::Snapshot(in_shop("s")), Subject::Claim(in_shop("data")));
    let mut going = snapshot(bound());
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for (old, new, expected) in [
        (None, Some(snapshot(Value::Null)), vec![itself.clone()]),
        (Some(snapshot(Value::Null)), Some(snapshot(failed())), vec![]),
        (Some(snapshot(Value::Null)), Some(snapshot(bound())), vec![itself.clone()]),
        (Some(snapshot(bound())), Some(snapshot(ready())), vec![itself.clone(), claim.clone()]),
        (Some(snapshot(bound())), Some(going.clone()), vec![itself.clone()]),
        (Some(going), None, vec![itself.clone(), claim]),
        (Some(snapshot(ready())), None, vec![itself]),
    ] {
        let row = format!("{old:?} {new:?}");
        assert_eq!(subjects(of_snapshot(&change(old, new))), expected, "{row}");
    }
}

#[test]
fn contents() {
    let content = |status: Value, annotations: Value| {
        json!({
            "metadata": {"name": "c", "uid": "u", "annotations": annotations},
            "spec": {"volumeSnapshotRef": {"namespace": "shop", "name": "s"}}, "status": status,
        })
    };
    let plain = || content(Value::Null, json!({}));
    let (itself, snapshot) = (Subject::Content(Key::cluster("c")), Subject::Snapshot(in_shop("s")));
    for (old, new, expected) in [
        (None, Some(plain()), vec![itself.clone(), snapshot.clone()]),
        (
            Some(plain()),
            Some(content(json!({"readyToUse": true}), json!({}))),
            vec![itself.clone(), snapshot.clone()],
        ),
        // The snapshotter's own notes.
        (Some(plain()), Some(content(Value::Null, json!({names::BEING_CREATED: "yes"}))), vec![itself]),
        (Some(plain()), None, vec![snapshot]),
    ] {
        let row = format!("{old:?} {new:?}");
        assert_eq!(subjects(of_content(&change(old, new))), expected, "{row}");
    }
}

/// sidecars.md 1.4 "Delete": a restore that ends lets a snapshot go.
#[test]
fn claims() {
    let claim = |phase: &str, finalizers: Value| {
        let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u", "finalizers": finalizers},
            "spec": {"dataSource": source, "dataSourceRef": source}, "status": {"phase": phase},
        })
    };
    let pending = || claim("Pending", json!([]));
    let (itself, snapshot) = (Subject::Claim(in_shop("data")), Subject::Snapshot(in_shop("s")));
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
        assert_eq!(subjects(of_claim(&change)), expected, "{row}");
        assert_eq!(is_bound_now(&change), bound, "{row}");
    }
    // Another kind of source, and the snapshot of another namespace.
    let mut other = pending();
    other["spec"] = json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}});
    assert_eq!(snapshots_of(&serde_json::from_value(other).unwrap()), []);
    let mut crossing = pending();
    crossing["spec"]["dataSource"] = Value::Null;
    crossing["spec"]["dataSourceRef"]["namespace"] = json!("vault");
    assert_eq!(snapshots_of(&serde_json::from_value(crossing).unwrap()), [Key::namespaced("vault", "s")]);
}

/// sidecars.md 3, item 15: what is found by an index.
#[test]
fn indexes() {
    let of = |status: Value| -> VolumeSnapshot { serde_json::from_value(snapshot(status)).unwrap() };
    assert_eq!(claims_of(&of(Value::Null)), ["shop/data"]);
    assert!(claims_of(&of(json!({"readyToUse": true}))).is_empty());
    assert_eq!(classes_of(&of(Value::Null)), [""]);
    assert!(classes_of(&of(json!({"creationTime": "2026-01-01T00:00:00Z"}))).is_empty());
    // One whose content was there before waits for no class but the one that it names.
    let pre = |class: Value| -> VolumeSnapshot {
        let mut snapshot = snapshot(Value::Null);
        snapshot["spec"] = json!({
            "source": {"volumeSnapshotContentName": "c"}, "volumeSnapshotClassName": class,
        });
        serde_json::from_value(snapshot).unwrap()
    };
    assert!(classes_of(&pre(Value::Null)).is_empty());
    assert_eq!(classes_of(&pre(json!("late"))), ["late"]);
    let marked = |value: &str| {
        let meta: Meta =
            serde_json::from_value(json!({"annotations": {names::IS_DEFAULT_CLASS: value}})).unwrap();
        is_default(&meta, names::IS_DEFAULT_CLASS).len()
    };
    assert_eq!((marked("true"), marked("false")), (1, 0));
}

#[test]
fn groups() {
    let group = |status: Value| json!({"metadata": {"name": "g", "namespace": "shop", "uid": "u"}, "spec": {"source": {}}, "status": status});
    let itself = Subject::Group(in_shop("g"));
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
        assert_eq!(subjects(of_group(&change(old, new))), expected, "{row}");
    }
    let content = |status: Value| {
        let reference = json!({"namespace": "shop", "name": "g", "uid": "u"});
        json!({"metadata": {"name": "gc", "uid": "k"}, "spec": {"volumeGroupSnapshotRef": reference}, "status": status})
    };
    let guarded = Subject::GroupContent(Key::cluster("gc"));
    let handle = json!({"volumeGroupSnapshotHandle": "gh"});
    let told = change(Some(content(Value::Null)), Some(content(handle)));
    assert_eq!(subjects(of_group_content(&told)), [guarded, itself.clone()]);
    assert_eq!(handle_of(told.new.as_ref().unwrap()), ["gh"]);
    let gone = change(Some(content(Value::Null)), None);
    assert_eq!(subjects(of_group_content(&gone)), [itself]);
}

/// sidecars.md 1.4 "Group": what a group waits for, and what its members wait for, is told at once.
#[test]
fn groups_and_what_they_wait_for() {
    let group = |source: Value, status: Value| -> VolumeGroupSnapshot {
        let metadata = json!({"name": "g", "namespace": "shop"});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"source": source}, "status": status}))
            .unwrap()
    };
    let selector = || json!({"selector": {"matchLabels": {"app": "db"}}});
    assert_eq!(namespace_of(&group(selector(), Value::Null)), ["shop"]);
    assert_eq!(namespace_of(&group(selector(), json!({"error": {"message": "no claims"}}))), ["shop"]);
    let bound = json!({"boundVolumeGroupSnapshotContentName": "gc"});
    assert!(namespace_of(&group(selector(), bound)).is_empty());
    assert!(namespace_of(&group(json!({"volumeGroupSnapshotContentName": "gc"}), Value::Null)).is_empty());
    let content = |status: Value| json!({"metadata": {"name": "gc"}, "status": status});
    let told = || content(json!({"volumeGroupSnapshotHandle": "gh"}));
    for (old, new, expected) in [
        (None, Some(told()), Some("gh")),
        (Some(content(Value::Null)), Some(told()), Some("gh")),
        (Some(told()), Some(told()), None),
        (Some(told()), None, None),
    ] {
        assert_eq!(new_handle(&change(old, new)).as_deref(), expected);
    }
    let member: VolumeSnapshotContent = serde_json::from_value(told()).unwrap();
    assert_eq!(group_handle_of(&member), ["gh"]);
}

/// sidecars.md 1.4 "Group", "Delete": members that were there before their group hear of it, and all hear of its end.
#[test]
fn members_of_groups() {
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
    assert_eq!(groups_of(&owned), ["shop/g"]);
    assert_eq!(groups_of(&named), ["shop/g"]);
    assert!(groups_of(&member("alone", json!([]), Value::Null)).is_empty());
    let members = [owned, named];
    let group = |uid: &str| json!({"metadata": {"name": "g", "namespace": "shop", "uid": uid}, "spec": {"source": {}}});
    let all = ["owned", "named"];
    for (old, new, expected) in [
        (None, Some(group("u")), &all[1..]),
        (Some(group("u")), Some(group("u")), &all[1..]),
        (Some(group("u")), None, &all[..]),
        // Its end and its successor's beginning were seen as one.
        (Some(group("u")), Some(group("v")), &all[..]),
    ] {
        let row = format!("{old:?} {new:?}");
        let expected: Vec<Subject> = expected.iter().map(|name| Subject::Snapshot(in_shop(name))).collect();
        assert_eq!(subjects(members_of(&change(old, new), &members)), expected, "{row}");
    }
}
