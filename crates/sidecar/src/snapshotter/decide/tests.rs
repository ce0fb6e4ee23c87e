mod groups;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tonic::Code;
use wharf_cluster::Backoff;
use wharf_model::names::VolumeNaming;
use wharf_model::snapshot::names;
use wharf_model::{SecretRef, Time};

use super::*;
use crate::driver::Capabilities;
use crate::snapshotter::patches::{Member, SnapshotInfo};
use crate::snapshotter::state::{ContentState, FailedAttempt};
use crate::snapshotter::view::Rules;

/// The wall clock has nothing to do with the monotonic clock.
const TIME: Time = Time(10_000_000);
const NOW: Monotonic = Monotonic(5_000_000);
const GOING: &str = "2026-01-01T00:00:00Z";

fn rules() -> Rules {
    let naming = |prefix: &str| VolumeNaming { prefix: prefix.into(), uuid_length: None };
    Rules {
        driver: "d.test".into(),
        capabilities: Capabilities { list_snapshots: true, group_snapshot: true, ..Capabilities::default() },
        naming: naming("snapshot"),
        group_naming: naming("groupsnapshot"),
        extra_create_metadata: false,
        poll_interval_max: Duration::from_secs(300),
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

/// A content whose snapshot is to be created from volume v.
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

/// The next step with default rules and class parameters.
fn next(object: &Object, state: &ContentState) -> Step {
    next_with(object, state, &rules(), &[("pool", "fast")])
}

fn next_with(object: &Object, state: &ContentState, rules: &Rules, parameters: &[(&str, &str)]) -> Step {
    let parameters: BTreeMap<String, String> =
        parameters.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    let class = match object.class() {
        Some(_) => Class::Found { driver: "d.test", parameters: &parameters },
        None => Class::None,
    };
    in_class(object, state, rules, class)
}

fn in_class(object: &Object, state: &ContentState, rules: &Rules, class: Class<'_>) -> Step {
    decide(&View { rules, object, class, ownership: Ownership::Ours, state, confirmed: true }, NOW)
}

fn state_with_info(info: SnapshotInfo, at: Monotonic) -> ContentState {
    let mut state = ContentState::default();
    state.record_info(info, at);
    state
}

/// The state after a failed call under a mark that we set ourselves.
fn failed(action: Action, code: Code, at: Monotonic) -> ContentState {
    let mut state = ContentState { exclusive: true, ..ContentState::default() };
    let failed = FailedAttempt {
        action,
        message: "no".into(),
        code: Some(code),
        retry_soon: false,
        called_at_version: Some("7".into()),
        unwanted_at: None,
        api_failed: false,
    };
    state.record_failure(failed, Backoff { jitter: || 0.0, ..Backoff::default() }, TIME, at);
    state
}

fn is_create(step: &Step) -> Option<&wharf_csi::v1::CreateSnapshotRequest> {
    match step {
        Step::CallDriver { request: CallRequest { call: Call::Create(request), .. }, .. }
        | Step::MarkBeingCreated { request: CallRequest { call: Call::Create(request), .. }, .. } => {
            Some(request)
        }
        _ => None,
    }
}

/// A short name for a step.
fn step_name(step: &Step) -> &'static str {
    match step {
        Step::Idle => "idle",
        Step::Wait(_) => "wait",
        Step::LocateSnapshot { .. } => "locate",
        Step::ClaimForNode { .. } => "claim",
        Step::MarkBeingCreated { .. } => "mark",
        Step::ReadContent => "read",
        Step::CallDriver { request, .. } => request.call.method(),
        Step::WriteStatus { .. } => "write status",
        Step::UnmarkBeingCreated { .. } => "unmark",
        Step::Abandon { .. } => "abandon",
        Step::DeleteSnapshot { request } => request.call.method(),
        Step::ClearStatus { .. } => "clear",
        Step::RemoveFinalizer { .. } => "release",
        Step::Refuse { .. } => "refuse",
        Step::ReportFailure { .. } => "report",
    }
}

/// sidecars.md 1.5 "Create": finalizer and mark, the call, the status, the mark off.
#[test]
fn new_content_is_marked_created_and_unmarked() {
    let nothing = ContentState::default();
    let new = content(json!({"metadata": {"finalizers": ["other"]}}));
    let step = next(&new, &nothing);
    let Step::MarkBeingCreated { patch: Patch::Json(operations), .. } = &step else { panic!("{step:?}") };
    let mark = "/metadata/annotations/snapshot.storage.kubernetes.io~1volumesnapshot-being-created";
    let being_deleted = "/metadata/annotations/snapshot.storage.kubernetes.io~1volumesnapshot-being-deleted";
    assert_eq!(
        *operations,
        json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "add", "path": "/metadata/finalizers/-", "value": names::CONTENT_PROTECTION},
            {"op": "test", "path": being_deleted, "value": null},
            {"op": "test", "path": mark, "value": null},
            {"op": "add", "path": mark, "value": "yes"},
        ])
    );
    let marked = content(annotated(names::BEING_CREATED));
    let step = next(&marked, &nothing);
    assert!(matches!(step, Step::CallDriver { action: Action::Create, .. }), "{step:?}");
    let request = is_create(&step).unwrap();
    assert_eq!((request.name.as_str(), request.source_volume_id.as_str()), ("snapshot-vs", "v"));
    assert_eq!(request.parameters, [("pool".to_owned(), "fast".to_owned())].into());

    let info =
        SnapshotInfo { handle: "h".into(), ready: true, created: 5, size: 9, ..SnapshotInfo::default() };
    let state = state_with_info(info, NOW);
    let Step::WriteStatus { patch: Patch::Merge(body) } = next(&marked, &state) else {
        panic!("expected WriteStatus")
    };
    assert_eq!(
        body,
        json!({"metadata": {"uid": "u"}, "status": {
            "snapshotHandle": "h", "creationTime": 5, "restoreSize": 9, "readyToUse": true,
        }})
    );
    let status = json!({"status": {
        "snapshotHandle": "h", "creationTime": 5, "restoreSize": 9, "readyToUse": true,
    }});
    let written = content(both(annotated(names::BEING_CREATED), status.clone()));
    let Step::UnmarkBeingCreated { patch: Patch::Merge(body) } = next(&written, &state) else {
        panic!("expected UnmarkBeingCreated")
    };
    assert_eq!(body, json!({"metadata": {"uid": "u", "annotations": {names::BEING_CREATED: null}}}));
    assert_eq!(next(&content(status), &state), Step::Idle);
}

/// A snapshot created for a content that exists only in a stale cache would leak.
#[test]
fn create_is_called_only_after_content_was_read_from_server() {
    let polled = json!({"status": {"snapshotHandle": "h", "readyToUse": false}});
    for (object, confirmed, expected) in [
        (content(json!({})), false, "mark"),
        (content(annotated(names::BEING_CREATED)), false, "read"),
        (content(annotated(names::BEING_CREATED)), true, "CreateSnapshot"),
        (content(polled.clone()), false, "read"),
        (content(polled), true, "CreateSnapshot"),
        (there(), false, "ListSnapshots"),
    ] {
        let (rules, parameters, state) = (rules(), BTreeMap::new(), ContentState::default());
        let class = match object.class() {
            Some(_) => Class::Found { driver: "d.test", parameters: &parameters },
            None => Class::None,
        };
        let view = View {
            rules: &rules,
            object: &object,
            class,
            ownership: Ownership::Ours,
            state: &state,
            confirmed,
        };
        assert_eq!(step_name(&decide(&view, NOW)), expected, "{object:?} {confirmed}");
    }
}

/// While we hold the lease, only we remove our finalizer: a poll needs no read.
#[test]
fn snapshot_of_held_content_is_polled_without_reading_content() {
    let status = json!({"status": {"snapshotHandle": "h", "readyToUse": false}});
    let deleting = json!({"metadata": {"deletionTimestamp": GOING}});
    for (object, held, expected) in [
        (content(status.clone()), true, "CreateSnapshot"),
        (content(status.clone()), false, "read"),
        // Without a handle the call may create a snapshot.
        (content(annotated(names::BEING_CREATED)), true, "read"),
        (content(both(status.clone(), json!({"metadata": {"finalizers": ["other"]}}))), true, "read"),
        (content(both(status, deleting)), true, "read"),
    ] {
        let (rules, parameters) = (rules(), BTreeMap::new());
        let state = ContentState { held, ..ContentState::default() };
        let class = Class::Found { driver: "d.test", parameters: &parameters };
        let ownership = Ownership::Ours;
        let view = View { rules: &rules, object: &object, class, ownership, state: &state, confirmed: false };
        assert_eq!(step_name(&decide(&view, NOW)), expected, "{object:?} {held}");
    }
}

/// If the driver never says what an earlier call created, the deletion goes on after what may exist was recorded.
#[test]
fn deletion_ends_although_driver_never_answers_conclusively() {
    let minute = |minute: i64| Monotonic(minute * 60_000);
    let deleting = json!({"metadata": {"deletionTimestamp": GOING}});
    let being_deleted = both(annotated(names::BEING_DELETED), deleting);
    let marked = content(both(being_deleted.clone(), annotated(names::BEING_CREATED)));
    let after = |code: Option<Code>, minutes: i64, deleted: bool| {
        let mut state = ContentState::default();
        for at in 0..=minutes {
            assert_ne!(step_name(&next(&marked, &state)), "abandon", "{code:?} {at}");
            let failed = FailedAttempt {
                action: Action::Check,
                message: "no".into(),
                code,
                retry_soon: false,
                called_at_version: Some("7".into()),
                unwanted_at: deleted.then(|| minute(at)),
                api_failed: false,
            };
            state.record_failure(failed, Backoff { jitter: || 0.0, ..Backoff::default() }, TIME, NOW);
        }
        state
    };
    for (state, abandoned) in [
        (after(Some(Code::Internal), 9, true), false),
        (after(Some(Code::Internal), 10, true), true),
        // The driver cannot be called, such as without the secret.
        (after(None, 10, true), true),
        (after(Some(Code::Unavailable), 59, true), false),
        (after(Some(Code::Unavailable), 60, true), true),
        // The VolumeSnapshot waits for the snapshot.
        (after(Some(Code::Internal), 600, false), false),
    ] {
        let step = next(&marked, &state);
        assert_eq!(step_name(&step) == "abandon", abandoned, "{state:?} {step:?}");
        if let Step::Abandon { patch: Patch::Merge(body), suspect } = step {
            assert_eq!(body["metadata"]["resourceVersion"], "7", "applies to this version only");
            assert_eq!(
                (suspect.name.as_str(), suspect.sources.as_slice()),
                ("snapshot-vs", ["v".to_owned()].as_slice())
            );
            assert_eq!(suspect.object.to_string(), "ns/s");
        }
        assert_eq!(step_name(&next(&content(being_deleted.clone()), &state)), "release");
    }
    // A conclusive answer ends the doubt.
    let mut settled = after(Some(Code::Internal), 9, true);
    settled.record_info(SnapshotInfo { handle: "h".into(), ..SnapshotInfo::default() }, NOW);
    assert_eq!((settled.doubt, step_name(&next(&marked, &settled))), (None, "write status"));
}

/// An API server that fails says nothing about driver and secret. It neither counts towards the bound nor ends it.
#[test]
fn failure_of_api_server_leaves_bound_of_deletion_as_it_is() {
    let failed = |code, api_failed, minute: i64| FailedAttempt {
        action: Action::Check,
        message: "no".into(),
        code,
        retry_soon: api_failed,
        called_at_version: None,
        unwanted_at: Some(Monotonic(minute * 60_000)),
        api_failed,
    };
    let mut state = ContentState::default();
    let mut record = |attempt| {
        state.record_failure(attempt, Backoff { jitter: || 0.0, ..Backoff::default() }, TIME, NOW);
        (state.doubt, state.unknown)
    };
    (0..100).for_each(|minute| assert_eq!(record(failed(None, true, minute)), (None, false)));
    let first = record(failed(Some(Code::Internal), false, 100));
    assert!(first.0.is_some());
    assert_eq!(record(failed(None, true, 101)), first);
    for minute in 101..110 {
        assert!(!record(failed(Some(Code::Internal), false, minute)).1, "{minute}");
    }
    assert!(record(failed(Some(Code::Internal), false, 110)).1);
    assert!(record(failed(None, true, 111)).1);
}

/// Another replica may have found the snapshot ready since our call.
#[test]
fn response_that_is_not_ready_leaves_ready_content_ready() {
    let info = |ready| SnapshotInfo { handle: "h".into(), created: 5, ready, ..SnapshotInfo::default() };
    for (status, ready, expected) in [
        (json!({"snapshotHandle": "h", "creationTime": 5, "readyToUse": true}), false, "idle"),
        (json!({"snapshotHandle": "h", "creationTime": 5, "readyToUse": true}), true, "idle"),
        (json!({"snapshotHandle": "h", "creationTime": 5, "readyToUse": false}), true, "write status"),
        (json!({"snapshotHandle": "h", "creationTime": 5}), false, "write status"),
    ] {
        let object = content(json!({"status": status}));
        assert_eq!(step_name(&next(&object, &state_with_info(info(ready), NOW))), expected, "{object:?}");
    }
}

/// sidecars.md 1.5 "Create": not ready is not a failure; upstream polls with its failure backoff.
#[test]
fn unready_snapshot_is_polled_with_its_own_interval() {
    let status = json!({"status": {"snapshotHandle": "h", "creationTime": 5, "readyToUse": false}});
    let object = content(status);
    let info = SnapshotInfo { handle: "h".into(), ready: false, created: 5, ..SnapshotInfo::default() };
    let mut state = ContentState::default();
    let mut pauses = Vec::new();
    // At these times, the first poll was so many seconds ago.
    for age in [0, 1, 8, 60, 600, 3600] {
        state.record_info(info.clone(), Monotonic(NOW.0 - 3_600_000 + age * 1000));
        let at = Monotonic(NOW.0 - 3_600_000 + age * 1000);
        let polls = state.polls.unwrap();
        pauses.push(polls.remaining(Duration::from_secs(300), at).unwrap().as_secs());
    }
    assert_eq!(pauses, [1, 1, 2, 15, 150, 300]);
    let max = |seconds| Rules { poll_interval_max: Duration::from_secs(seconds), ..rules() };
    for (seconds, pause) in [(300, 300), (60, 60)] {
        let step = next_with(&object, &state, &max(seconds), &[]);
        assert_eq!(step, Step::Wait(Duration::from_secs(pause)));
    }
    // A relevant change ends the wait, but not the slower pace.
    state.reset_backoff();
    assert_eq!(step_name(&next(&object, &state)), "CreateSnapshot");
    state.record_info(info.clone(), NOW);
    assert_eq!(next(&object, &state), Step::Wait(Duration::from_secs(300)));
    // The next call is the same, without a mark: the content has the handle.
    let step = next(&object, &ContentState::default());
    assert_eq!(is_create(&step).unwrap().name, "snapshot-vs");
    assert!(matches!(step, Step::CallDriver { action: Action::Check, .. }), "{step:?}");
    // Nothing is written while it is not ready. Then only readiness is set and the error removed.
    let failed = content(json!({"status": {
        "snapshotHandle": "h", "creationTime": 5, "readyToUse": false, "error": {"message": "no"},
    }}));
    let state = state_with_info(SnapshotInfo { ready: true, ..info }, NOW);
    let Step::WriteStatus { patch: Patch::Merge(body) } = next(&failed, &state) else {
        panic!("expected WriteStatus")
    };
    assert_eq!(body["status"], json!({"readyToUse": true, "error": null}));
}

/// sidecars.md 1.5 "Pre-provisioned / group member".
#[test]
fn existing_snapshots_are_read_not_created() {
    let list = rules();
    let get = Rules { capabilities: Capabilities { get_snapshot: true, ..list.capabilities }, ..rules() };
    let neither = Rules { capabilities: Capabilities::default(), ..rules() };
    for (rules, call) in [(&list, "ListSnapshots"), (&get, "GetSnapshot"), (&neither, "assume")] {
        let step = next_with(&there(), &ContentState::default(), rules, &[]);
        assert!(
            matches!(step, Step::CallDriver { action: Action::Check, .. }) && step_name(&step) == call,
            "{step:?}"
        );
    }
    let member = |status: Value| {
        content(json!({"metadata": {"annotations": {names::GROUP_HANDLE: "g"}}, "status": status,
            "spec": {"volumeSnapshotClassName": null}}))
    };
    for (status, expected) in [
        (Value::Null, "idle"),
        (json!({"snapshotHandle": "h", "readyToUse": false}), "idle"),
        (
            json!({"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g", "readyToUse": false}),
            "ListSnapshots",
        ),
        (json!({"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g", "readyToUse": true}), "idle"),
    ] {
        assert_eq!(step_name(&next(&member(status.clone()), &ContentState::default())), expected, "{status}");
    }
    // The class has a separate secret for reading the state.
    let classed = content(json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}},
        "metadata": {"annotations": {names::DELETION_SECRET_NAME: "x", names::DELETION_SECRET_NAMESPACE: "y"}}}));
    let parameters = [
        ("csi.storage.k8s.io/snapshotter-list-secret-name", "list-${volumesnapshotcontent.name}"),
        ("csi.storage.k8s.io/snapshotter-list-secret-namespace", "ns"),
    ];
    let Step::CallDriver { request, .. } =
        next_with(&classed, &ContentState::default(), &rules(), &parameters)
    else {
        panic!("expected CallDriver")
    };
    assert_eq!(request.secret, Some(SecretRef { name: "list-c".into(), namespace: "ns".into() }));
}

/// sidecars.md 1.5 "Errors": the mark stays while the driver may be creating the snapshot and is removed after
/// a final error. The first attempt and later ones have different event reasons.
#[test]
fn mark_is_removed_only_after_final_error() {
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
        let step = next(&marked, &failed(Action::Create, code, NOW));
        assert_eq!(step_name(&step), expected, "{code:?}");
        if let Step::UnmarkBeingCreated { patch: Patch::Merge(body) } = step {
            assert_eq!(body["metadata"]["resourceVersion"], "7", "applies to this version only");
        }
        // The content has changed since: another process may have called the driver.
        let later =
            content(both(annotated(names::BEING_CREATED), json!({"metadata": {"resourceVersion": "8"}})));
        assert_eq!(step_name(&next(&later, &failed(Action::Create, code, NOW))), "report", "{code:?}");
    }
    // The mark was found: an earlier process may have made a successful call.
    for (code, expected) in
        [(Code::Internal, "report"), (Code::Unknown, "report"), (Code::NotFound, "unmark")]
    {
        let mut found = ContentState::default();
        let called_at_version = Some("7".into());
        let failed = FailedAttempt {
            action: Action::Create,
            message: "no".into(),
            code: Some(code),
            retry_soon: false,
            called_at_version,
            unwanted_at: None,
            api_failed: false,
        };
        found.record_failure(failed, Backoff { jitter: || 0.0, ..Backoff::default() }, TIME, NOW);
        assert_eq!(step_name(&next(&marked, &found)), expected, "{code:?}");
    }
    for (action, reason, message) in [
        (Action::Create, "SnapshotCreationFailed", "Failed to create snapshot: no"),
        (
            Action::Check,
            "SnapshotContentCheckandUpdateFailed",
            "Failed to check and update snapshot content: no",
        ),
    ] {
        let state = failed(action, Code::Internal, NOW);
        let failure = state.failure.as_ref().unwrap();
        let object = content(json!({}));
        assert_eq!(patches::event_reason(&object, failure), reason);
        let Step::ReportFailure { patch: Some(Patch::Merge(body)) } = next(&object, &state) else {
            panic!("expected ReportFailure")
        };
        let error = json!({"time": "1970-01-01T02:46:40Z", "message": message});
        assert_eq!(
            body,
            json!({
                "metadata": {"uid": "u", "resourceVersion": "7"},
                "status": {"readyToUse": false, "error": error},
            })
        );
        // The same error is not written twice.
        let written = content(json!({"status": {"readyToUse": false, "error": {"message": message}}}));
        assert_eq!(next(&written, &state), Step::ReportFailure { patch: None });
    }
    let mut state = failed(Action::Check, Code::Internal, NOW);
    state.failure.as_mut().unwrap().reported = true;
    assert_eq!(next(&content(json!({})), &state), Step::Wait(Duration::from_secs(1)));
    state.reset_backoff();
    assert_eq!(step_name(&next(&content(json!({})), &state)), "mark");
}

/// sidecars.md 1.5 "Delete".
#[test]
fn content_in_deletion_deletes_snapshot_and_releases_content() {
    let deleting = json!({"metadata": {"deletionTimestamp": GOING}});
    let being_deleted = || both(deleting.clone(), annotated(names::BEING_DELETED));
    let status = json!({"status": {"snapshotHandle": "h", "readyToUse": true, "creationTime": 1}});
    let retain = json!({"spec": {"deletionPolicy": "Retain"}});
    let in_group = json!({"status": {"volumeGroupSnapshotHandle": "g"}});
    let unbound = json!({"spec": {
        "source": {"volumeHandle": null, "snapshotHandle": "h"}, "volumeSnapshotRef": {"uid": ""},
    }});
    let mut deleted = ContentState::default();
    deleted.record_deletion();
    let nothing = ContentState::default();
    for (with, state, expected) in [
        // Its VolumeSnapshot still exists: nothing to do.
        (both(deleting.clone(), status.clone()), &nothing, "idle"),
        (both(being_deleted(), status.clone()), &nothing, "DeleteSnapshot"),
        (both(being_deleted(), status.clone()), &deleted, "release"),
        (both(both(being_deleted(), status.clone()), retain), &nothing, "release"),
        (both(both(being_deleted(), status.clone()), in_group), &nothing, "release"),
        (being_deleted(), &nothing, "release"),
        (both(deleting.clone(), unbound.clone()), &nothing, "release"),
        (both(both(deleting.clone(), unbound), status.clone()), &nothing, "DeleteSnapshot"),
        // Other finalizers hold the content.
        (
            both(
                both(being_deleted(), status.clone()),
                json!({"metadata": {"finalizers": ["other", names::CONTENT_PROTECTION]}}),
            ),
            &deleted,
            "clear",
        ),
        (
            both(both(being_deleted(), status), json!({"metadata": {"finalizers": ["other"]}})),
            &deleted,
            "idle",
        ),
    ] {
        let object = content(with.clone());
        assert_eq!(step_name(&next(&object, state)), expected, "{with}");
        // The class may have been re-created for another driver. Deletion does not depend on it.
        let others = Class::Found { driver: "other.test", parameters: &BTreeMap::new() };
        assert_eq!(step_name(&in_class(&object, state, &rules(), others)), expected, "{with}");
    }
    let Step::RemoveFinalizer { patch: Patch::Json(operations) } = next(&content(being_deleted()), &nothing)
    else {
        panic!("expected RemoveFinalizer")
    };
    let version = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
    assert_eq!(operations[1], version, "at another version there may be something to delete");
    let object = content(both(
        being_deleted(),
        json!({"status": {"snapshotHandle": "h", "error": {"message": "m"}},
            "metadata": {"annotations": {names::DELETION_SECRET_NAME: "x", names::DELETION_SECRET_NAMESPACE: "y"}}}),
    ));
    let Step::DeleteSnapshot { request } = next(&object, &nothing) else { panic!("expected DeleteSnapshot") };
    assert_eq!(request.secret, Some(SecretRef { name: "x".into(), namespace: "y".into() }));
    assert!(request.secret_optional, "deleting a namespace must not depend on a secret in it");
    // A failure is reported by an event and followed by a backoff.
    let state = failed(Action::Delete, Code::Internal, NOW);
    assert_eq!(patches::event_reason(&object, state.failure.as_ref().unwrap()), "SnapshotDeleteError");
    assert_eq!(next(&object, &state), Step::Wait(Duration::from_secs(1)));
}

/// sidecars.md 1.5 "Delete": if a content is deleted while the driver may be creating its snapshot,
/// the create call is repeated to learn what there is to delete. A missing class or secret does not block this;
/// upstream hangs when the class is gone.
#[test]
fn deletion_during_creation_repeats_create_call() {
    let being_deleted =
        both(annotated(names::BEING_DELETED), json!({"metadata": {"deletionTimestamp": GOING}}));
    let marked = content(both(being_deleted.clone(), annotated(names::BEING_CREATED)));
    let (none, others) = (BTreeMap::new(), [("pool".to_owned(), "theirs".to_owned())].into());
    for (class, complete) in [
        (Class::Found { driver: "d.test", parameters: &none }, true),
        (Class::NotFound("k"), false),
        // The class belongs to another driver by now, and so do its parameters.
        (Class::Found { driver: "other.test", parameters: &others }, false),
    ] {
        let step = in_class(&marked, &ContentState::default(), &rules(), class);
        let request = is_create(&step).unwrap();
        assert_eq!((request.name.as_str(), request.parameters.len()), ("snapshot-vs", 0));
        let Step::CallDriver { request, .. } = step else { panic!("expected CallDriver") };
        assert_eq!((request.complete, request.secret_optional), (complete, true));
    }
    // The snapshot exists, ready or not: the handle is written to the status, then the snapshot is deleted.
    let info = SnapshotInfo { handle: "h".into(), ready: false, created: 1, ..SnapshotInfo::default() };
    assert_eq!(step_name(&next(&marked, &state_with_info(info, NOW))), "write status");
    let status = json!({"status": {"snapshotHandle": "h", "readyToUse": false, "creationTime": 1}});
    let written = content(both(both(being_deleted.clone(), annotated(names::BEING_CREATED)), status.clone()));
    assert_eq!(step_name(&next(&written, &ContentState::default())), "unmark");
    assert_eq!(
        step_name(&next(&content(both(being_deleted, status)), &ContentState::default())),
        "DeleteSnapshot"
    );
    // No snapshot is created for a content in deletion without our finalizer.
    let unprotected = content(json!({"metadata": {"deletionTimestamp": GOING, "finalizers": ["other"]}}));
    assert_eq!(next(&unprotected, &ContentState::default()), Step::Idle);
}

/// sidecars.md 1.5 "Params".
#[test]
fn class_parameters_are_filtered_and_validated() {
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
    let step = next_with(&content(json!({})), &ContentState::default(), &named, &all);
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
    let nothing = ContentState::default();
    for (step, message) in [
        (
            next_with(&content(json!({})), &nothing, &rules(), &[("csi.storage.k8s.io/fstype", "x")]),
            "found unknown parameter key \"csi.storage.k8s.io/fstype\" with reserved namespace csi.storage.k8s.io/",
        ),
        (next(&unclassed, &nothing), "failed to take snapshot c without a snapshot class"),
        (next(&unbound, &nothing), "not bound to a snapshot"),
        (
            in_class(&content(json!({})), &nothing, &rules(), Class::NotFound("k")),
            r#""volumesnapshotclass.snapshot.storage.k8s.io \"k\" not found""#,
        ),
    ] {
        let Step::Refuse { action: Action::Create, refusal } = step else { panic!("{step:?}") };
        assert!(refusal.to_string().contains(message), "{refusal}");
    }
    assert_eq!(step_name(&in_class(&content(json!({})), &nothing, &rules(), Class::NotListed)), "wait");
    let others = Class::Found { driver: "other.test", parameters: &BTreeMap::new() };
    assert_eq!(in_class(&content(json!({})), &nothing, &rules(), others), Step::Idle);
}
