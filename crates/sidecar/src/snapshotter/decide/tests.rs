mod groups;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tonic::Code;
use wharf_cluster::Backoff;
use wharf_model::SecretRef;
use wharf_model::names::VolumeNaming;
use wharf_model::snapshot::names;

use super::*;
use crate::driver::Capabilities;
use crate::snapshotter::memory::{Failed, Memory};
use crate::snapshotter::status::{Answer, Member};
use crate::snapshotter::view::Rules;

const NOW: Time = Time(10_000_000);
const GOING: &str = "2026-01-01T00:00:00Z";

fn rules() -> Rules {
    let naming = |prefix: &str| VolumeNaming { prefix: prefix.into(), uuid_length: None };
    Rules {
        driver: "d.test".into(),
        can: Capabilities { list_snapshots: true, group_snapshot: true, ..Capabilities::default() },
        naming: naming("snapshot"),
        group_naming: naming("groupsnapshot"),
        extra_create_metadata: false,
        node: None,
    }
}

fn merge(into: &mut Value, with: &Value) {
    match (into.as_object_mut(), with.as_object()) {
        (Some(into), Some(with)) => {
            for (key, value) in with {
                match into.get_mut(key) {
                    Some(there) if value.is_object() => merge(there, value),
                    _ => drop(into.insert(key.clone(), value.clone())),
                }
            }
        }
        _ => *into = with.clone(),
    }
}

/// A content that is to be taken of volume v.
fn content(with: Value) -> Object {
    let mut content = json!({
        "metadata": {
            "name": "c", "uid": "u", "resourceVersion": "7", "finalizers": [names::CONTENT_PROTECTION],
            "annotations": {"a": "b"},
        },
        "spec": {
            "driver": "d.test", "deletionPolicy": "Delete", "volumeSnapshotClassName": "k",
            "volumeSnapshotRef": {"name": "s", "namespace": "ns", "uid": "vs"},
            "source": {"volumeHandle": "v"},
        },
    });
    merge(&mut content, &with);
    Object::Snapshot(Arc::new(serde_json::from_value(content).unwrap()))
}

fn group(with: Value) -> Object {
    let mut content = json!({
        "metadata": {
            "name": "g", "uid": "u", "resourceVersion": "7", "finalizers": [names::GROUP_CONTENT_PROTECTION],
            "annotations": {"a": "b"},
        },
        "spec": {
            "driver": "d.test", "deletionPolicy": "Delete", "volumeGroupSnapshotClassName": "k",
            "volumeGroupSnapshotRef": {"name": "s", "namespace": "ns", "uid": "vgs"},
            "source": {"volumeHandles": ["v", "w"]},
        },
    });
    merge(&mut content, &with);
    Object::Group(Arc::new(serde_json::from_value(content).unwrap()))
}

fn annotated(key: &str) -> Value {
    json!({"metadata": {"annotations": {key: "yes"}}})
}

fn both(a: Value, b: Value) -> Value {
    let mut all = a;
    merge(&mut all, &b);
    all
}

fn there() -> Object {
    content(
        json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}, "volumeSnapshotClassName": null}}),
    )
}

/// Everything but the object is as it mostly is.
fn next(object: &Object, memory: &Memory) -> Step {
    next_with(object, memory, &rules(), &[("pool", "fast")])
}

fn next_with(object: &Object, memory: &Memory, rules: &Rules, parameters: &[(&str, &str)]) -> Step {
    let parameters: BTreeMap<String, String> =
        parameters.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    let class = match object.class() {
        Some(_) => Class::Found { driver: "d.test", parameters: &parameters },
        None => Class::None,
    };
    in_class(object, memory, rules, class)
}

fn in_class(object: &Object, memory: &Memory, rules: &Rules, class: Class<'_>) -> Step {
    decide(&View { rules, object, class, place: Place::Ours, memory, confirmed: true }, NOW)
}

fn answered(answer: Answer, at: Time) -> Memory {
    let mut memory = Memory::default();
    memory.has_answered(answer, at);
    memory
}

/// After a call under a mark that we put there ourselves.
fn failed(doing: Doing, code: Code, at: Time) -> Memory {
    let mut memory = Memory { settled: true, ..Memory::default() };
    let failed =
        Failed { doing, message: "no".into(), code: Some(code), soon: false, asked_at: Some("7".into()) };
    memory.has_failed(failed, Backoff { jitter: || 0.0, ..Backoff::default() }, at);
    memory
}

fn is_create(step: &Step) -> Option<&wharf_csi::v1::CreateSnapshotRequest> {
    match step {
        Step::Ask { ask: Ask { call: Call::Create(request), .. }, .. }
        | Step::Mark { ask: Ask { call: Call::Create(request), .. }, .. } => Some(request),
        _ => None,
    }
}

/// What a step is, in a word.
fn word(step: &Step) -> &'static str {
    match step {
        Step::Done => "done",
        Step::Wait(_) => "wait",
        Step::Claim { .. } => "claim",
        Step::Mark { .. } => "mark",
        Step::Confirm => "confirm",
        Step::Ask { ask, .. } => ask.call.method(),
        Step::Tell { .. } => "tell",
        Step::Unmark { .. } => "unmark",
        Step::Delete { ask } => ask.call.method(),
        Step::Clear { .. } => "clear",
        Step::Release { .. } => "release",
        Step::Refuse { .. } => "refuse",
        Step::Report { .. } => "report",
    }
}

/// sidecars.md 1.5 "Create": finalizer and mark, the call, the status, the mark off.
#[test]
fn a_snapshot_is_taken() {
    let nothing = Memory::default();
    let new = content(json!({"metadata": {"finalizers": ["other"]}}));
    let step = next(&new, &nothing);
    let Step::Mark { patch: Patch::Json(operations), .. } = &step else { panic!("{step:?}") };
    let mark = "/metadata/annotations/snapshot.storage.kubernetes.io~1volumesnapshot-being-created";
    let going = "/metadata/annotations/snapshot.storage.kubernetes.io~1volumesnapshot-being-deleted";
    assert_eq!(
        *operations,
        json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "add", "path": "/metadata/finalizers/-", "value": names::CONTENT_PROTECTION},
            {"op": "test", "path": going, "value": null},
            {"op": "test", "path": mark, "value": null},
            {"op": "add", "path": mark, "value": "yes"},
        ])
    );
    let marked = content(annotated(names::BEING_CREATED));
    let step = next(&marked, &nothing);
    assert!(matches!(step, Step::Ask { doing: Doing::Create, .. }), "{step:?}");
    let request = is_create(&step).unwrap();
    assert_eq!((request.name.as_str(), request.source_volume_id.as_str()), ("snapshot-vs", "v"));
    assert_eq!(request.parameters, [("pool".to_owned(), "fast".to_owned())].into());

    let answer = Answer { handle: "h".into(), ready: true, created: 5, size: 9, ..Answer::default() };
    let memory = answered(answer, NOW);
    let Step::Tell { patch: Patch::Merge(body) } = next(&marked, &memory) else { panic!("no status") };
    assert_eq!(
        body,
        json!({"metadata": {"uid": "u"}, "status": {
            "snapshotHandle": "h", "creationTime": 5, "restoreSize": 9, "readyToUse": true,
        }})
    );
    let status = json!({"status": {
        "snapshotHandle": "h", "creationTime": 5, "restoreSize": 9, "readyToUse": true,
    }});
    let told = content(both(annotated(names::BEING_CREATED), status.clone()));
    let Step::Unmark { patch: Patch::Merge(body) } = next(&told, &memory) else { panic!("still marked") };
    assert_eq!(body, json!({"metadata": {"uid": "u", "annotations": {names::BEING_CREATED: null}}}));
    assert_eq!(next(&content(status), &memory), Step::Done);
}

/// What is made for a content that only a store behind the server still has would be nobody's.
#[test]
fn the_server_has_the_last_word_before_anything_is_made() {
    let polled = json!({"status": {"snapshotHandle": "h", "readyToUse": false}});
    for (object, confirmed, expected) in [
        (content(json!({})), false, "mark"),
        (content(annotated(names::BEING_CREATED)), false, "confirm"),
        (content(annotated(names::BEING_CREATED)), true, "CreateSnapshot"),
        (content(polled.clone()), false, "confirm"),
        (content(polled), true, "CreateSnapshot"),
        (there(), false, "ListSnapshots"),
    ] {
        let (rules, parameters, memory) = (rules(), BTreeMap::new(), Memory::default());
        let class = match object.class() {
            Some(_) => Class::Found { driver: "d.test", parameters: &parameters },
            None => Class::None,
        };
        let view =
            View { rules: &rules, object: &object, class, place: Place::Ours, memory: &memory, confirmed };
        assert_eq!(word(&decide(&view, NOW)), expected, "{object:?} {confirmed}");
    }
}

/// sidecars.md 1.5 "Create": not ready is no failure; upstream asks with its failure backoff (user pain 14, 16).
#[test]
fn not_ready_is_asked_again_at_its_own_pace() {
    let status = json!({"status": {"snapshotHandle": "h", "creationTime": 5, "readyToUse": false}});
    let object = content(status);
    let answer = Answer { handle: "h".into(), ready: false, created: 5, ..Answer::default() };
    let mut memory = Memory::default();
    let mut pauses = Vec::new();
    for _ in 0..6 {
        memory.has_answered(answer.clone(), NOW);
        let Step::Wait(pause) = next(&object, &memory) else { panic!("no wait") };
        pauses.push(pause.as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 15, 15]);
    // Then the same call, without a mark: the content has the handle.
    let step = next(&object, &Memory::default());
    assert_eq!(is_create(&step).unwrap().name, "snapshot-vs");
    assert!(matches!(step, Step::Ask { doing: Doing::Check, .. }), "{step:?}");
    // Nothing is written for it, and once it is ready, only that and that the error is over.
    let failed = content(json!({"status": {
        "snapshotHandle": "h", "creationTime": 5, "readyToUse": false, "error": {"message": "no"},
    }}));
    let memory = answered(Answer { ready: true, ..answer }, NOW);
    let Step::Tell { patch: Patch::Merge(body) } = next(&failed, &memory) else { panic!("no status") };
    assert_eq!(body["status"], json!({"readyToUse": true, "error": null}));
}

/// sidecars.md 1.5 "Pre-provisioned / group member".
#[test]
fn what_is_there_is_looked_at() {
    let list = rules();
    let get = Rules { can: Capabilities { get_snapshot: true, ..list.can }, ..rules() };
    let neither = Rules { can: Capabilities::default(), ..rules() };
    for (rules, call) in [(&list, "ListSnapshots"), (&get, "GetSnapshot"), (&neither, "assume")] {
        let step = next_with(&there(), &Memory::default(), rules, &[]);
        assert!(matches!(step, Step::Ask { doing: Doing::Check, .. }) && word(&step) == call, "{step:?}");
    }
    let member = |status: Value| {
        content(json!({"metadata": {"annotations": {names::GROUP_HANDLE: "g"}}, "status": status,
            "spec": {"volumeSnapshotClassName": null}}))
    };
    for (status, expected) in [
        (Value::Null, "done"),
        (json!({"snapshotHandle": "h", "readyToUse": false}), "done"),
        (
            json!({"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g", "readyToUse": false}),
            "ListSnapshots",
        ),
        (json!({"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g", "readyToUse": true}), "done"),
    ] {
        assert_eq!(word(&next(&member(status.clone()), &Memory::default())), expected, "{status}");
    }
    // The class's own secret for it, and not the one for making snapshots.
    let classed = content(json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}},
        "metadata": {"annotations": {names::DELETION_SECRET_NAME: "x", names::DELETION_SECRET_NAMESPACE: "y"}}}));
    let parameters = [
        ("csi.storage.k8s.io/snapshotter-list-secret-name", "list-${volumesnapshotcontent.name}"),
        ("csi.storage.k8s.io/snapshotter-list-secret-namespace", "ns"),
    ];
    let Step::Ask { ask, .. } = next_with(&classed, &Memory::default(), &rules(), &parameters) else {
        panic!("not asked")
    };
    assert_eq!(ask.secret, Some(SecretRef { name: "list-c".into(), namespace: "ns".into() }));
}

/// sidecars.md 1.5 "Errors": the mark stays while the driver may be at it, and goes after a final answer; the first
/// attempt and later ones have reasons of their own.
#[test]
fn failures() {
    let marked = content(annotated(names::BEING_CREATED));
    for (code, expected) in [
        (Code::Cancelled, "report"),
        (Code::DeadlineExceeded, "report"),
        (Code::Unavailable, "report"),
        (Code::ResourceExhausted, "report"),
        (Code::Aborted, "report"),
        (Code::Internal, "unmark"),
        (Code::InvalidArgument, "unmark"),
        (Code::NotFound, "unmark"),
        (Code::AlreadyExists, "unmark"),
        (Code::FailedPrecondition, "unmark"),
    ] {
        let step = next(&marked, &failed(Doing::Create, code, NOW));
        assert_eq!(word(&step), expected, "{code:?}");
        if let Step::Unmark { patch: Patch::Merge(body) } = step {
            assert_eq!(body["metadata"]["resourceVersion"], "7", "for this version only");
        }
        // Somebody has written to the content since: the driver may have been asked by another.
        let later =
            content(both(annotated(names::BEING_CREATED), json!({"metadata": {"resourceVersion": "8"}})));
        assert_eq!(word(&next(&later, &failed(Doing::Create, code, NOW))), "report", "{code:?}");
    }
    // A mark that was found: somebody before us may have asked, with success.
    for (code, expected) in
        [(Code::Internal, "report"), (Code::Unknown, "report"), (Code::NotFound, "unmark")]
    {
        let mut found = Memory::default();
        let asked_at = Some("7".into());
        let failed =
            Failed { doing: Doing::Create, message: "no".into(), code: Some(code), soon: false, asked_at };
        found.has_failed(failed, Backoff { jitter: || 0.0, ..Backoff::default() }, NOW);
        assert_eq!(word(&next(&marked, &found)), expected, "{code:?}");
    }
    for (doing, reason, words) in [
        (Doing::Create, "SnapshotCreationFailed", "Failed to create snapshot: no"),
        (
            Doing::Check,
            "SnapshotContentCheckandUpdateFailed",
            "Failed to check and update snapshot content: no",
        ),
    ] {
        let memory = failed(doing, Code::Internal, NOW);
        let failure = memory.failure.as_ref().unwrap();
        let object = content(json!({}));
        assert_eq!(status::reason(&object, failure), reason);
        let Step::Report { patch: Some(Patch::Merge(body)) } = next(&object, &memory) else {
            panic!("silent")
        };
        let error = json!({"time": "1970-01-01T02:46:40Z", "message": words});
        assert_eq!(
            body,
            json!({
                "metadata": {"uid": "u", "resourceVersion": "7"},
                "status": {"readyToUse": false, "error": error},
            })
        );
        // The same again is not written again.
        let told = content(json!({"status": {"readyToUse": false, "error": {"message": words}}}));
        assert_eq!(next(&told, &memory), Step::Report { patch: None });
    }
    let mut memory = failed(Doing::Check, Code::Internal, NOW);
    memory.failure.as_mut().unwrap().reported = true;
    assert_eq!(next(&content(json!({})), &memory), Step::Wait(Duration::from_secs(1)));
    memory.wake();
    assert_eq!(word(&next(&content(json!({})), &memory)), "mark");
}

/// sidecars.md 1.5 "Delete".
#[test]
fn deletion() {
    let deleting = json!({"metadata": {"deletionTimestamp": GOING}});
    let going = || both(deleting.clone(), annotated(names::BEING_DELETED));
    let status = json!({"status": {"snapshotHandle": "h", "readyToUse": true, "creationTime": 1}});
    let retain = json!({"spec": {"deletionPolicy": "Retain"}});
    let in_group = json!({"status": {"volumeGroupSnapshotHandle": "g"}});
    let unbound = json!({"spec": {
        "source": {"volumeHandle": null, "snapshotHandle": "h"}, "volumeSnapshotRef": {"uid": ""},
    }});
    let mut gone = Memory::default();
    gone.has_deleted();
    let nothing = Memory::default();
    for (with, memory, expected) in [
        // Its snapshot is still there: it stays as it is.
        (both(deleting.clone(), status.clone()), &nothing, "done"),
        (both(going(), status.clone()), &nothing, "DeleteSnapshot"),
        (both(going(), status.clone()), &gone, "release"),
        (both(both(going(), status.clone()), retain), &nothing, "release"),
        (both(both(going(), status.clone()), in_group), &nothing, "release"),
        (going(), &nothing, "release"),
        (both(deleting.clone(), unbound.clone()), &nothing, "release"),
        (both(both(deleting.clone(), unbound), status.clone()), &nothing, "DeleteSnapshot"),
        // Others keep the content.
        (
            both(
                both(going(), status.clone()),
                json!({"metadata": {"finalizers": ["other", names::CONTENT_PROTECTION]}}),
            ),
            &gone,
            "clear",
        ),
        (both(both(going(), status), json!({"metadata": {"finalizers": ["other"]}})), &gone, "done"),
    ] {
        let object = content(with.clone());
        assert_eq!(word(&next(&object, memory)), expected, "{with}");
        // Its class may be made anew for another driver: it has no part in the end.
        let others = Class::Found { driver: "other.test", parameters: &BTreeMap::new() };
        assert_eq!(word(&in_class(&object, memory, &rules(), others)), expected, "{with}");
    }
    let Step::Release { patch: Patch::Json(operations) } = next(&content(going()), &nothing) else {
        panic!("kept")
    };
    let version = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
    assert_eq!(operations[1], version, "in another version there may be something to delete");
    let object = content(both(
        going(),
        json!({"status": {"snapshotHandle": "h", "error": {"message": "m"}},
            "metadata": {"annotations": {names::DELETION_SECRET_NAME: "x", names::DELETION_SECRET_NAMESPACE: "y"}}}),
    ));
    let Step::Delete { ask } = next(&object, &nothing) else { panic!("kept") };
    assert_eq!(ask.secret, Some(SecretRef { name: "x".into(), namespace: "y".into() }));
    assert!(ask.without_secret, "what goes with its namespace must not hang on a secret in it");
    // A failure is told by an event, and waited for.
    let memory = failed(Doing::Delete, Code::Internal, NOW);
    assert_eq!(status::reason(&object, memory.failure.as_ref().unwrap()), "SnapshotDeleteError");
    assert_eq!(next(&object, &memory), Step::Wait(Duration::from_secs(1)));
}

/// sidecars.md 1.5 "Delete", user pain 16: what goes while the driver may be at it is asked for again, to learn what
/// there is to delete. Whatever else is missing by now does not hold it up; upstream hangs when the class is gone.
#[test]
fn what_goes_while_it_is_made() {
    let going = both(annotated(names::BEING_DELETED), json!({"metadata": {"deletionTimestamp": GOING}}));
    let marked = content(both(going.clone(), annotated(names::BEING_CREATED)));
    let (none, others) = (BTreeMap::new(), [("pool".to_owned(), "theirs".to_owned())].into());
    for (class, whole) in [
        (Class::Found { driver: "d.test", parameters: &none }, true),
        (Class::Gone("k"), false),
        // The class is another driver's by now, and so are its parameters.
        (Class::Found { driver: "other.test", parameters: &others }, false),
    ] {
        let step = in_class(&marked, &Memory::default(), &rules(), class);
        let request = is_create(&step).unwrap();
        assert_eq!((request.name.as_str(), request.parameters.len()), ("snapshot-vs", 0));
        let Step::Ask { ask, .. } = step else { panic!("not asked") };
        assert_eq!((ask.whole, ask.without_secret), (whole, true));
    }
    // It is there, ready or not: the content says so, and then it is deleted.
    let answer = Answer { handle: "h".into(), ready: false, created: 1, ..Answer::default() };
    assert_eq!(word(&next(&marked, &answered(answer, NOW))), "tell");
    let status = json!({"status": {"snapshotHandle": "h", "readyToUse": false, "creationTime": 1}});
    let told = content(both(both(going.clone(), annotated(names::BEING_CREATED)), status.clone()));
    assert_eq!(word(&next(&told, &Memory::default())), "unmark");
    assert_eq!(word(&next(&content(both(going, status)), &Memory::default())), "DeleteSnapshot");
    // Nothing is taken of a content that nothing keeps.
    let loose = content(json!({"metadata": {"deletionTimestamp": GOING, "finalizers": ["other"]}}));
    assert_eq!(next(&loose, &Memory::default()), Step::Done);
}

/// sidecars.md 1.5 "Params".
#[test]
fn parameters() {
    let all = [
        ("pool", "fast"),
        ("csi.storage.k8s.io/snapshotter-secret-name", "x"),
        ("csi.storage.k8s.io/snapshotter-secret-namespace", "x"),
        ("csi.storage.k8s.io/snapshotter-list-secret-name", "x"),
        ("csi.storage.k8s.io/snapshotter-list-secret-namespace", "x"),
        ("csi.storage.k8s.io/group-snapshotter-secret-name", "x"),
        ("csi.storage.k8s.io/group-snapshotter-secret-namespace", "x"),
        ("csi.storage.k8s.io/group-snapshotter-get-secret-name", "x"),
        ("csi.storage.k8s.io/group-snapshotter-get-secret-namespace", "x"),
    ];
    let named = Rules { extra_create_metadata: true, ..rules() };
    let step = next_with(&content(json!({})), &Memory::default(), &named, &all);
    let expected = [
        ("csi.storage.k8s.io/volumesnapshot/name", "s"),
        ("csi.storage.k8s.io/volumesnapshot/namespace", "ns"),
        ("csi.storage.k8s.io/volumesnapshotcontent/name", "c"),
        ("pool", "fast"),
    ];
    let got: BTreeMap<_, _> = is_create(&step).unwrap().parameters.clone().into_iter().collect();
    assert_eq!(got, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());

    let unclassed = content(json!({"spec": {"volumeSnapshotClassName": null}}));
    let unbound = content(json!({"spec": {"volumeSnapshotRef": {"uid": ""}}}));
    let nothing = Memory::default();
    for (step, said) in [
        (
            next_with(&content(json!({})), &nothing, &rules(), &[("csi.storage.k8s.io/fstype", "x")]),
            "found unknown parameter key \"csi.storage.k8s.io/fstype\" with reserved namespace csi.storage.k8s.io/",
        ),
        (next(&unclassed, &nothing), "failed to take snapshot c without a snapshot class"),
        (next(&unbound, &nothing), "not bound to a snapshot"),
        (
            in_class(&content(json!({})), &nothing, &rules(), Class::Gone("k")),
            r#""volumesnapshotclass.snapshot.storage.k8s.io \"k\" not found""#,
        ),
    ] {
        let Step::Refuse { doing: Doing::Create, why } = step else { panic!("{step:?}") };
        assert!(why.to_string().contains(said), "{why}");
    }
    assert_eq!(word(&in_class(&content(json!({})), &nothing, &rules(), Class::Unknown)), "wait");
    let others = Class::Found { driver: "other.test", parameters: &BTreeMap::new() };
    assert_eq!(in_class(&content(json!({})), &nothing, &rules(), others), Step::Done);
}
