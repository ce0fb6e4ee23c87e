//! Adds and removes finalizers on raw objects with an optimistic update: read, edit, write back at the version that
//! was read. On a conflict the object is read again, so concurrent changes are never overwritten. Where RBAC allows
//! it, a single patch does the same (`FinalizerPatcher`).

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use wharf_model::patch::Patch;
use wharf_model::{ApiResource, Key};

use crate::{ApiError, Cluster};

/// Maximum update attempts. Many claims of one source may need the same finalizer at once.
const MAX_ATTEMPTS: usize = 10;

/// Why a finalizer could not be added.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
    /// The object does not exist, or another one has its name.
    #[error("{kind} {key} is gone")]
    Gone {
        /// The kind of the object.
        kind: &'static str,
        /// Its key.
        key: Key,
    },
    /// The object is being deleted and accepts no new finalizer.
    #[error("{kind} {key} is being deleted")]
    Deleting {
        /// The kind of the object.
        kind: &'static str,
        /// Its key.
        key: Key,
    },
    /// A request failed.
    #[error("failed to add finalizer: {0}")]
    Api(#[from] ApiError),
}

/// The result of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    /// The object already is as requested.
    Unchanged,
    /// The object has to be written back.
    Changed,
    /// The object is being deleted and accepts no new finalizer.
    Refused,
}

/// Sends finalizer patches for callers that have the object cached. Upstream's RBAC rules do not allow patching
/// claims: after the first Forbidden, no patch is sent any more and callers fall back to [`add`] and [`remove`].
#[derive(Debug, Default)]
pub struct FinalizerPatcher {
    forbidden: AtomicBool,
}

impl FinalizerPatcher {
    /// Sends the patch and returns whether it was applied. If not, [`add`] and [`remove`] report the error.
    pub async fn try_patch(
        &self,
        cluster: &Cluster,
        api: &ApiResource,
        key: &Key,
        patch: Option<Patch>,
    ) -> bool {
        let Some(patch) = patch.filter(|_| !self.forbidden.load(Ordering::Relaxed)) else { return false };
        let written = cluster.patch(api, key, None, patch).await;
        if matches!(written, Err(ApiError::Forbidden(_))) {
            self.forbidden.store(true, Ordering::Relaxed);
        }
        written.is_ok()
    }
}

/// Adds a finalizer to the object with this UID.
pub async fn add(
    cluster: &Cluster,
    api: &ApiResource,
    key: &Key,
    uid: &str,
    finalizer: &str,
) -> Result<(), ProtectError> {
    let edited = edit(cluster, api, key, uid, |object| with(object, finalizer)).await?;
    match edited {
        Some(Edit::Unchanged | Edit::Changed) => Ok(()),
        Some(Edit::Refused) => Err(ProtectError::Deleting { kind: api.kind, key: key.clone() }),
        None => Err(ProtectError::Gone { kind: api.kind, key: key.clone() }),
    }
}

/// Removes a finalizer from the object with this UID. An object that no longer exists is a success.
pub async fn remove(
    cluster: &Cluster,
    api: &ApiResource,
    key: &Key,
    uid: &str,
    finalizer: &str,
) -> Result<(), ApiError> {
    edit(cluster, api, key, uid, |object| without(object, finalizer)).await.map(drop)
}

/// Edits the object with this UID. `None`: the server has no such object.
async fn edit(
    cluster: &Cluster,
    api: &ApiResource,
    key: &Key,
    uid: &str,
    edit: impl Fn(&mut Value) -> Edit,
) -> Result<Option<Edit>, ApiError> {
    let mut tries = 0;
    loop {
        let Some(mut object) = cluster.get_raw(api, key).await? else { return Ok(None) };
        if object.pointer("/metadata/uid").and_then(Value::as_str) != Some(uid) {
            return Ok(None);
        }
        let edited = edit(&mut object);
        if edited != Edit::Changed {
            return Ok(Some(edited));
        }
        tries += 1;
        match cluster.update(api, key, None, &object).await {
            Ok(_) => return Ok(Some(edited)),
            Err(ApiError::Conflict(_)) if tries < MAX_ATTEMPTS => {}
            Err(ApiError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

fn with(object: &mut Value, finalizer: &str) -> Edit {
    let deleting = object.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null());
    let finalizers = &mut object["metadata"]["finalizers"];
    match finalizers {
        Value::Array(list) if list.iter().any(|present| present == finalizer) => Edit::Unchanged,
        _ if deleting => Edit::Refused,
        Value::Array(list) => {
            list.push(json!(finalizer));
            Edit::Changed
        }
        _ => {
            *finalizers = json!([finalizer]);
            Edit::Changed
        }
    }
}

fn without(object: &mut Value, finalizer: &str) -> Edit {
    let list = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut);
    let Some(list) = list else { return Edit::Unchanged };
    let before = list.len();
    list.retain(|present| present != finalizer);
    if list.len() == before { Edit::Unchanged } else { Edit::Changed }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http_body_util::{BodyExt, Full};
    use hyper::body::Bytes;
    use wharf_model::{Kind, PersistentVolumeClaim};

    use super::*;

    /// A server that returns the given responses in turn, and a log of its requests: the method and the finalizers of
    /// the body.
    fn server(responses: Vec<(u16, Value)>) -> (Cluster, Arc<Mutex<Vec<String>>>) {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (responses, log) = (Arc::new(Mutex::new(VecDeque::from(responses))), Arc::clone(&requests));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (responses, log) = (Arc::clone(&responses), Arc::clone(&log));
            async move {
                let method = request.method().to_string();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let finalizers =
                    body.pointer("/metadata/finalizers").map(Value::to_string).unwrap_or_default();
                log.lock().unwrap().push(format!("{method} {finalizers}").trim_end().to_owned());
                let (status, response) = responses.lock().unwrap().pop_front().unwrap();
                let body = Full::<Bytes>::from(response.to_string());
                Ok::<_, Infallible>(http::Response::builder().status(status).body(body).unwrap())
            }
        });
        (Cluster::with_client(kube::Client::new(service, "default")), requests)
    }

    fn claim(uid: &str, finalizers: Value) -> (u16, Value) {
        (200, json!({"metadata": {"namespace": "ns", "name": "c", "uid": uid, "finalizers": finalizers}}))
    }

    fn refused(status: u16, reason: &str) -> (u16, Value) {
        (status, json!({"kind": "Status", "reason": reason, "details": {"name": "c"}}))
    }

    const API: ApiResource = PersistentVolumeClaim::API;

    async fn adding(responses: Vec<(u16, Value)>) -> (Result<(), ProtectError>, Vec<String>) {
        let (cluster, requests) = server(responses);
        let added = add(&cluster, &API, &Key::namespaced("ns", "c"), "u", "f").await;
        let requests = requests.lock().unwrap().clone();
        (added, requests)
    }

    /// sidecars.md 1.1 "Clone finalizer": read and written back, never over a concurrent change.
    #[tokio::test]
    async fn add_retries_on_conflict_with_fresh_object() {
        let (added, requests) = adding(vec![
            claim("u", json!(["x"])),
            refused(409, "Conflict"),
            claim("u", json!(["y"])),
            claim("u", json!(["y", "f"])),
        ])
        .await;
        assert!(added.is_ok(), "{added:?}");
        assert_eq!(requests, ["GET", r#"PUT ["x","f"]"#, "GET", r#"PUT ["y","f"]"#]);
        // Another clone of the same source added it first.
        let (added, requests) =
            adding(vec![claim("u", json!([])), refused(409, "Conflict"), claim("u", json!(["f"]))]).await;
        assert!(added.is_ok() && requests.len() == 3, "{added:?} {requests:?}");
    }

    #[tokio::test]
    async fn add_fails_for_missing_replaced_or_deleting_object() {
        let (added, requests) = adding(vec![claim("u-another", json!([]))]).await;
        assert!(matches!(added, Err(ProtectError::Gone { .. })) && requests == ["GET"], "{added:?}");
        let (added, _) = adding(vec![refused(404, "NotFound")]).await;
        assert!(matches!(added, Err(ProtectError::Gone { .. })), "{added:?}");
        let (added, _) = adding(vec![claim("u", json!([])), refused(404, "NotFound")]).await;
        assert!(matches!(added, Err(ProtectError::Gone { .. })), "{added:?}");
        let (added, _) = adding(vec![claim("u", json!([])), refused(403, "Forbidden")]).await;
        assert!(matches!(added, Err(ProtectError::Api(ApiError::Forbidden(_)))), "{added:?}");
        let mut deleting = claim("u", json!(["x"]));
        deleting.1["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let (added, requests) = adding(vec![deleting]).await;
        assert!(matches!(added, Err(ProtectError::Deleting { .. })) && requests == ["GET"], "{added:?}");
        // A kind that is not served does not prove that the object is gone.
        let (added, _) = adding(vec![(404, json!("404 page not found"))]).await;
        assert!(matches!(added, Err(ProtectError::Api(ApiError::NotServed(_)))), "{added:?}");
    }

    #[tokio::test]
    async fn add_gives_up_after_max_attempts() {
        let attempt = || [claim("u", json!([])), refused(409, "Conflict")];
        let (added, requests) = adding((0..MAX_ATTEMPTS).flat_map(|_| attempt()).collect()).await;
        assert!(matches!(added, Err(ProtectError::Api(ApiError::Conflict(_)))), "{added:?}");
        assert_eq!(requests.len(), 2 * MAX_ATTEMPTS);
    }

    #[tokio::test]
    async fn remove_succeeds_for_missing_object_or_finalizer() {
        let key = Key::namespaced("ns", "c");
        for (responses, expected) in [
            (vec![refused(404, "NotFound")], vec!["GET"]),
            (vec![claim("u-another", json!(["f"]))], vec!["GET"]),
            (vec![claim("u", json!(["x"]))], vec!["GET"]),
            (vec![claim("u", json!(["f", "x"])), claim("u", json!(["x"]))], vec!["GET", r#"PUT ["x"]"#]),
        ] {
            let (cluster, requests) = server(responses);
            remove(&cluster, &API, &key, "u", "f").await.unwrap();
            assert_eq!(*requests.lock().unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn patches_stop_after_forbidden() {
        let (cluster, requests) =
            server(vec![claim("u", json!(["f"])), refused(409, "Conflict"), refused(403, "Forbidden")]);
        let (patching, key) = (FinalizerPatcher::default(), Key::namespaced("ns", "c"));
        let writes = |patch| patching.try_patch(&cluster, &API, &key, patch);
        let patch = || Some(Patch::Json(json!([])));
        assert!(!writes(None).await);
        let written =
            [writes(patch()).await, writes(patch()).await, writes(patch()).await, writes(patch()).await];
        assert_eq!(written, [true, false, false, false]);
        assert_eq!(*requests.lock().unwrap(), ["PATCH", "PATCH", "PATCH"]);
    }

    #[test]
    fn edits_add_and_remove_one_finalizer() {
        let object = |finalizers: Value, deleting: bool| {
            let mut object = json!({"metadata": {"uid": "u", "labels": {"a": "b"}}, "spec": {"x": 1}});
            if !finalizers.is_null() {
                object["metadata"]["finalizers"] = finalizers;
            }
            if deleting {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            object
        };
        for (finalizers, deleting, edit, after) in [
            (Value::Null, false, Edit::Changed, json!(["f"])),
            (json!(["x"]), false, Edit::Changed, json!(["x", "f"])),
            (json!(["f", "x"]), false, Edit::Unchanged, json!(["f", "x"])),
            (json!(["f"]), true, Edit::Unchanged, json!(["f"])),
            (json!(["x"]), true, Edit::Refused, json!(["x"])),
        ] {
            let mut edited = object(finalizers, deleting);
            assert_eq!(with(&mut edited, "f"), edit);
            assert_eq!(edited, object(after, deleting));
        }
        for (finalizers, edit, after) in [
            (Value::Null, Edit::Unchanged, Value::Null),
            (json!(["x"]), Edit::Unchanged, json!(["x"])),
            (json!(["x", "f", "y", "f"]), Edit::Changed, json!(["x", "y"])),
            (json!(["f"]), Edit::Changed, json!([])),
        ] {
            let mut edited = object(finalizers, true);
            assert_eq!(without(&mut edited, "f"), edit);
            assert_eq!(edited, object(after, true));
        }
    }
}
