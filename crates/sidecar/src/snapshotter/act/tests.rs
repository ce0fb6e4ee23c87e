//! Tests of the effects of a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use wharf_cluster::ApiError;
use wharf_model::snapshot::names;

use super::*;
use crate::provisioner::testing::context;
use crate::snapshotter::{Contents, Settings};
use crate::suspects::SuspectKind;

/// A content in deletion whose snapshot may exist.
fn object() -> Object {
    let content = json!({
        "metadata": {
            "name": "c", "uid": "u", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {names::BEING_CREATED: "yes", names::BEING_DELETED: "yes"},
        },
        "spec": {
            "driver": "d.test", "deletionPolicy": "Delete", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"name": "s", "namespace": "ns", "uid": "vs"},
        },
    });
    Object::Snapshot(Arc::new(serde_json::from_value(content).unwrap()))
}

fn snapshotter(
    respond: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> (Snapshotter, ContentKey) {
    let context = context(respond);
    let contents = Contents::new(&context);
    let key = ContentKey { kind: ContentKind::Snapshot, name: "c".into() };
    (Snapshotter::new(context, Settings::default(), contents), key)
}

/// The patch that follows may fail many times.
#[tokio::test]
async fn suspect_is_recorded_and_counted_once_although_unmark_is_retried() {
    for (response, recorded) in [
        ((201, json!({"metadata": {"uid": "l1"}})), 1),
        ((403, json!({"reason": "Forbidden"})), 1),
        ((409, json!({"reason": "AlreadyExists"})), 0),
    ] {
        let leases = Arc::new(AtomicUsize::new(0));
        let (created, reason) = (Arc::clone(&leases), response.1["reason"].clone());
        let (snapshotter, content_key) = snapshotter(move |method, path, _| match (method, path) {
            ("GET", path) if path.ends_with("/leases") => {
                (200, json!({"metadata": {"resourceVersion": "1"}, "items": []}))
            }
            ("POST", path) if path.ends_with("/leases") => {
                created.fetch_add(1, Ordering::Relaxed);
                response.clone()
            }
            _ => (503, json!({"kind": "Status", "reason": "ServiceUnavailable", "message": "no"})),
        });
        let object = object();
        let runner = StepRunner { snapshotter: &snapshotter, content_key: &content_key, object: &object };
        let suspect = Suspect {
            kind: SuspectKind::Snapshot,
            name: "snapshot-vs".into(),
            object: Key::namespaced("ns", "s"),
            uid: "vs".into(),
            sources: Vec::new(),
        };
        for _ in 0..3 {
            let step = Step::Abandon { patch: Patch::Merge(json!({})), suspect: Box::new(suspect.clone()) };
            assert_eq!(runner.act(step, &mut ReconcilePass::default()).await, StepOutcome::RETRY);
        }
        assert_eq!(leases.load(Ordering::Relaxed), 1, "{reason}");
        let line =
            format!(r#"wharf_suspected_orphans_total{{driver_name="d.test",kind="snapshot"}} {recorded}"#);
        let metrics = snapshotter.context.metrics.encode();
        assert_eq!(metrics.contains(&line), recorded > 0, "{reason} {metrics}");
        assert_eq!(metrics.contains("wharf_suspected_orphans_total{"), recorded > 0, "{reason}");
    }
}

/// A secret that is missing may never exist, an API server that fails will answer again.
#[tokio::test]
async fn only_secret_that_cannot_be_used_counts_towards_bound() {
    let missing = SecretError::Missing(Key::namespaced("ns", "s"));
    let unavailable =
        wharf_cluster::Refusal { method: "GET", object: "Secret ns/s".into(), message: "no".into() };
    let failed = SecretError::Api(ApiError::Unavailable(unavailable));
    for (error, counts) in [(missing, true), (failed, false)] {
        let (snapshotter, content_key) = snapshotter(|_, _, _| (503, json!({})));
        let object = object();
        let runner = StepRunner { snapshotter: &snapshotter, content_key: &content_key, object: &object };
        runner.secret_failed(Action::Check, &error);
        let state = snapshotter.states.get(&content_key, "u");
        assert_eq!((state.failure.is_some(), state.doubt.is_some()), (true, counts), "{error}");
    }
}
