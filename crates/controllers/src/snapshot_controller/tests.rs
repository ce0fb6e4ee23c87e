//! Attempts in `/debug/attempts` of objects that are deleted during a reconcile.

use std::convert::Infallible;

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder};

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
    let cluster = Cluster::with_client(kube::Client::new(server, "default"));
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
