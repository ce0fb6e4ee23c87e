//! Objects that are deleted during a reconcile, and resyncs.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder};
use wharf_model::Monotonic;

use super::*;

/// A bound content without a finalizer, single or of a group.
fn content(source: &Value, reference: &str) -> Value {
    let spec = json!({"driver": "d", "deletionPolicy": "Delete", "source": source, reference: {"name": "s", "namespace": "n", "uid": "u"}});
    json!({"metadata": {"name": "c", "uid": "cu", "resourceVersion": "1"}, "spec": spec})
}

/// A server that lists one content and one group content, and rejects every write with this status.
fn controller(code: u16, reason: &'static str) -> SnapshotController {
    let server = tower::service_fn(move |request: Request<Body>| async move {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if query.contains("watch=") {
            return std::future::pending().await;
        }
        let (code, body) = if request.method() == Method::GET {
            let items = match path.rsplit('/').next() {
                Some("volumesnapshotcontents") => {
                    vec![content(&json!({"volumeHandle": "h"}), "volumeSnapshotRef")]
                }
                Some("volumegroupsnapshotcontents") => {
                    vec![content(&json!({"volumeHandles": ["h"]}), "volumeGroupSnapshotRef")]
                }
                _ => Vec::new(),
            };
            (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
        } else {
            let status = json!({"kind": "Status", "code": code, "reason": reason, "message": reason, "details": {"name": "c"}});
            (code, status)
        };
        let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
        Ok::<_, Infallible>(response.unwrap())
    });
    with_client(kube::Client::new(server, "default"))
}

fn with_client(client: kube::Client) -> SnapshotController {
    let cluster = Cluster::with_client(client);
    let gate = Gate::new(None, CancellationToken::new());
    let events = EventRecorder::start(&cluster, "snapshot-controller", "test");
    let context = Context { gate, events, cluster };
    SnapshotController::new(
        context,
        Settings::default(),
        Metrics::register(&mut prometheus_client::registry::Registry::default()),
        Attempts::default(),
    )
}

async fn synced(code: u16, reason: &'static str) -> SnapshotController {
    let controller = controller(code, reason);
    controller.contents.wait_synced().await;
    controller.groups.as_ref().unwrap().settled().await;
    controller
}

fn items(name: &str) -> [WorkKey; 2] {
    [WorkKey::Content(Key::cluster(name)), WorkKey::GroupContent(Key::cluster(name))]
}

/// A content that is deleted before it gets its finalizer is no failure.
#[tokio::test]
async fn write_to_deleted_object_is_not_recorded() {
    let deleted = synced(404, "NotFound").await;
    for item in items("c") {
        assert_eq!(deleted.reconcile(item).await, WorkOutcome::Retry);
    }
    assert_eq!(deleted.attempts.list(), []);
    let forbidden = synced(403, "Forbidden").await;
    for item in items("c") {
        assert_eq!(forbidden.reconcile(item).await, WorkOutcome::Retry);
    }
    let failed = forbidden.attempts.list();
    let failed: Vec<_> = failed.iter().map(|attempt| attempt.object.as_str()).collect();
    assert_eq!(failed, ["group's content c", "content c"]);
}

#[tokio::test]
async fn attempts_of_deleted_objects_are_removed() {
    let controller = synced(404, "NotFound").await;
    let claim = WorkKey::Claim(Key::namespaced("n", "gone"));
    for item in items("gone").into_iter().chain([claim]) {
        controller.record_attempt(&item, Some("failed".to_owned()));
        assert_eq!(controller.attempts.list().len(), 1, "{item:?}");
        assert_eq!(controller.reconcile(item).await, WorkOutcome::Done);
        assert_eq!(controller.attempts.list(), []);
    }
}

/// A claim that restores the snapshot `s` of the namespace `n`, unless it is bound.
fn restoring(version: u64, is_bound: bool) -> Value {
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let (volume, phase) = if is_bound { ("pv", "Bound") } else { ("", "Pending") };
    json!({
        "metadata": {"name": "restore", "namespace": "n", "uid": "r", "resourceVersion": version.to_string()},
        "spec": {"dataSource": source, "dataSourceRef": source, "volumeName": volume}, "status": {"phase": phase},
    })
}

/// A controller of a snapshot in deletion that is being restored. Each GET of the claim returns a new version of it, in
/// which the restore has ended.
async fn restored_while_deleting() -> SnapshotController {
    let version = Arc::new(AtomicU64::new(1));
    let server = tower::service_fn(move |request: Request<Body>| {
        let version = Arc::clone(&version);
        async move {
            let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
            if query.contains("watch=") {
                return std::future::pending().await;
            }
            let items = match path.rsplit('/').next() {
                Some("volumesnapshots") => json!([{
                    "metadata": {
                        "name": "s", "namespace": "n", "uid": "u", "resourceVersion": "1",
                        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names::BOUND_PROTECTION],
                    },
                    "spec": {"source": {"persistentVolumeClaimName": "data"}},
                    "status": {"boundVolumeSnapshotContentName": "c", "readyToUse": true},
                }]),
                Some("volumesnapshotcontents") => {
                    json!([content(&json!({"volumeHandle": "h"}), "volumeSnapshotRef")])
                }
                Some("persistentvolumeclaims") => json!([restoring(1, false)]),
                _ => json!([]),
            };
            let body = match path.rsplit('/').next() {
                Some("restore") => restoring(version.fetch_add(1, Ordering::Relaxed) + 1, true),
                _ => json!({"metadata": {"resourceVersion": "1"}, "items": items}),
            };
            let response = Response::builder().status(200).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let controller = with_client(kube::Client::new(server, "default"));
    controller.wait_until_served().await;
    controller
}

/// Finding S-L4. The bound claim no longer shows that the snapshot waited for it, so only a resync of the snapshots
/// helps.
#[tokio::test(start_paused = true)]
async fn deletion_continues_after_the_change_that_ends_the_restore_was_dropped() {
    let controller = restored_while_deleting().await;
    let snapshot = WorkKey::Snapshot(Key::namespaced("n", "s"));
    let feed = controller.feed();
    tokio::pin!(feed);
    assert!(timeout(Duration::from_millis(1), &mut feed).await.is_err());
    while controller.queue.depth() > 0 {
        controller.queue.next().await.unwrap().done();
    }
    assert_eq!(controller.reconcile(snapshot.clone()).await, WorkOutcome::Done, "waits for the restore");
    // The feed is busy, and more changes arrive than it holds.
    let claim = Key::namespaced("n", "restore");
    for _ in 0..2000 {
        controller.context.cluster.get::<PersistentVolumeClaim>(&claim).await.unwrap();
    }
    assert!(timeout(Duration::from_millis(1), &mut feed).await.is_err());
    let mut woken = Vec::new();
    while controller.queue.depth() > 0 {
        let work = controller.queue.next().await.unwrap();
        woken.push(work.key().clone());
        work.done();
    }
    assert!(woken.contains(&snapshot), "{woken:?}");
    let inputs = controller.snapshots.get(&Key::namespaced("n", "s")).unwrap();
    assert!(controller.claims.get(&claim).unwrap().restore_sources().is_empty(), "{inputs:?}");
}

/// A controller of two members in deletion, with these API groups. The server does not serve the group of `s`, but that
/// of `served`. Returns the number of writes.
async fn member_without_group_kind(
    api_groups: &'static [&'static str],
) -> (SnapshotController, Arc<AtomicU64>) {
    let writes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&writes);
    let server = tower::service_fn(move |request: Request<Body>| {
        let counted = Arc::clone(&counted);
        async move {
            let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
            if query.contains("watch=") {
                return std::future::pending().await;
            }
            let member = |name: &str, group: &str| {
                json!({
                    "metadata": {
                        "name": name, "namespace": "n", "uid": "u", "resourceVersion": "1",
                        "ownerReferences": [{
                            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
                            "name": group, "uid": "gu",
                        }],
                        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names::IN_GROUP_PROTECTION],
                    },
                    "spec": {"source": {"volumeSnapshotContentName": format!("{name}-content")}},
                    "status": {"boundVolumeSnapshotContentName": format!("{name}-content"), "readyToUse": true},
                })
            };
            let content_of = |name: &str| {
                let mut content = content(&json!({"snapshotHandle": name}), "volumeSnapshotRef");
                content["metadata"]["name"] = json!(format!("{name}-content"));
                content["spec"]["volumeSnapshotRef"]["name"] = json!(name);
                content
            };
            let list = |items: Value| (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}));
            let (code, body) = match path.rsplit('/').next().unwrap_or_default() {
                "events" => (201, json!({})),
                _ if request.method() != Method::GET => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    (403, json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}))
                }
                "apis" => {
                    let groups: Vec<_> = api_groups.iter().map(|name| json!({"name": name})).collect();
                    (200, json!({"kind": "APIGroupList", "groups": groups}))
                }
                "served-group" => {
                    let meta = json!({"name": "served-group", "namespace": "n", "uid": "gu", "resourceVersion": "1"});
                    (200, json!({"metadata": meta, "spec": {"source": {}}}))
                }
                _ if path.contains("volumegroupsnapshot") => (404, json!("404 page not found")),
                "volumesnapshots" => list(json!([member("s", "g"), member("served", "served-group")])),
                "volumesnapshotcontents" => list(json!([content_of("s"), content_of("served")])),
                _ => list(json!([])),
            };
            let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let controller = with_client(kube::Client::new(server, "default"));
    controller.wait_until_served().await;
    (controller, writes)
}

/// Finding S-L5.
#[tokio::test(start_paused = true)]
async fn member_of_removed_group_crds_can_be_deleted() {
    let ago = |seconds: i64| Monotonic(wharf_cluster::monotonic().0 - seconds * 1000);
    for (api_groups, missing_for, deletes) in [
        (&["storage.k8s.io", "groupsnapshot.storage.k8s.io"][..], 3600, false),
        (&["storage.k8s.io"], 10, false),
        (&["storage.k8s.io"], 61, true),
    ] {
        let (controller, writes) = member_without_group_kind(api_groups).await;
        assert!(!controller.removed_groups.observe(false, ago(missing_for)));
        let outcome = controller.reconcile(WorkKey::Snapshot(Key::namespaced("n", "s"))).await;
        assert_eq!(outcome, WorkOutcome::Retry);
        assert_eq!(
            writes.load(Ordering::Relaxed) > 0,
            deletes,
            "{api_groups:?}, missing for {missing_for} s"
        );
    }
}

/// Two failed reads of a group and lists of API groups, far apart or with a successful read between them.
#[tokio::test(start_paused = true)]
async fn member_is_kept_if_groups_were_served_between_absences() {
    let ago = |seconds: i64| Monotonic(wharf_cluster::monotonic().0 - seconds * 1000);
    let reconcile = async |controller: &SnapshotController, name: &str| {
        controller.reconcile(WorkKey::Snapshot(Key::namespaced("n", name))).await
    };
    for (missing_for, is_served_between) in [(3600, false), (300, true), (3600, true)] {
        let (controller, writes) = member_without_group_kind(&["storage.k8s.io"]).await;
        assert!(!controller.removed_groups.observe(false, ago(missing_for)));
        if is_served_between {
            let outcome = reconcile(&controller, "served").await;
            assert_eq!((outcome, writes.load(Ordering::Relaxed)), (WorkOutcome::Done, 0));
        }
        assert_eq!(reconcile(&controller, "s").await, WorkOutcome::Retry);
        assert_eq!(writes.load(Ordering::Relaxed), 0, "{missing_for} s, {is_served_between}");
    }
}

/// A controller that has created the content of snapshot `u`. The server has a snapshot `s` with this UID, if any, and a
/// content with these fields. Returns the writes.
fn after_creation(snapshot: Option<&'static str>, uid: &str, policy: &str) -> (SnapshotController, Writes) {
    let writes = Writes::default();
    let mut created = content(&json!({"volumeHandle": "h"}), "volumeSnapshotRef");
    created["metadata"]["name"] = json!("snapcontent-u");
    created["spec"]["volumeSnapshotRef"]["uid"] = json!(uid);
    created["spec"]["deletionPolicy"] = json!(policy);
    let (seen, created) = (Arc::clone(&writes), Arc::new(created));
    let server = tower::service_fn(move |request: Request<Body>| {
        let (seen, created) = (Arc::clone(&seen), Arc::clone(&created));
        async move {
            let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
            if query.contains("watch=") {
                return std::future::pending().await;
            }
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
            let (code, body) = match path.rsplit('/').next().unwrap_or_default() {
                "snapcontent-u" => {
                    if request.method() != Method::GET {
                        seen.lock().unwrap().push(request.method().clone());
                    }
                    (200, (*created).clone())
                }
                "s" => match snapshot {
                    Some(uid) => (200, snapshot_object(uid)),
                    None => (
                        404,
                        json!({"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": "s"}}),
                    ),
                },
                _ => (200, list),
            };
            let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let controller = with_client(kube::Client::new(server, "default"));
    controller.created.insert(&serde_json::from_value(snapshot_object("u")).unwrap());
    (controller, writes)
}

type Writes = Arc<std::sync::Mutex<Vec<Method>>>;

fn snapshot_object(uid: &str) -> Value {
    json!({
        "metadata": {"name": "s", "namespace": "n", "uid": uid, "resourceVersion": "1"},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
    })
}

/// kube-apiserver may remove a snapshot to which the finalizers were just added.
#[tokio::test(start_paused = true)]
async fn content_is_deleted_if_its_snapshot_vanished_during_the_creation() {
    let deleted = &[Method::PATCH, Method::DELETE][..];
    for (snapshot, uid, policy, expected) in [
        (None, "u", "Delete", deleted),
        (Some("another"), "u", "Delete", deleted),
        (Some("u"), "u", "Delete", &[]),
        (None, "imported", "Delete", &[]),
        (None, "u", "Retain", &[]),
    ] {
        let (controller, writes) = after_creation(snapshot, uid, policy);
        let key = Key::namespaced("n", "s");
        let outcome = controller.reconcile(WorkKey::Snapshot(key.clone())).await;
        assert_eq!(*writes.lock().unwrap(), expected, "{snapshot:?} {uid} {policy}");
        let is_stale = snapshot == Some("u");
        assert_eq!(outcome == WorkOutcome::Retry, is_stale, "{snapshot:?}");
        writes.lock().unwrap().clear();
        if !is_stale {
            controller.reconcile(WorkKey::Snapshot(key)).await;
            assert!(writes.lock().unwrap().is_empty(), "the creation is undone once");
        }
    }
}

/// What is ready or in deletion is never undone: a vanished snapshot that was ready may have data that somebody needs.
#[tokio::test(start_paused = true)]
async fn content_of_a_snapshot_that_was_ready_is_kept() {
    for change in [
        json!({"status": {"readyToUse": true, "boundVolumeSnapshotContentName": "snapcontent-u"}}),
        json!({"metadata": {
            "name": "s", "namespace": "n", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
        }}),
    ] {
        let (controller, writes) = after_creation(None, "u", "Delete");
        let mut snapshot = snapshot_object("u");
        snapshot.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let snapshot: VolumeSnapshot = serde_json::from_value(snapshot).unwrap();
        let key = Key::namespaced("n", "s");
        assert!(controller.undo_creation(&key, Some(&snapshot)).await.unwrap());
        assert!(controller.undo_creation(&key, None).await.unwrap());
        assert!(writes.lock().unwrap().is_empty(), "{snapshot:?}");
    }
}
