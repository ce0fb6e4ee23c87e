//! Finalizers on raw objects: read, edit, write back at the version that was read. Whoever else changes the object
//! in between is not overwritten; it is read again. Where one may patch, one request does as well ([`Patching`]).

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster};
use wharf_model::patch::Patch;
use wharf_model::{Api, Key};

/// So often an object may change under our hands. Many claims of one source want the same finalizer at once.
const TRIES: usize = 10;

/// Why an object is not protected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtectError {
    #[error("{kind} {key} is gone")]
    Gone { kind: &'static str, key: Key },
    #[error("{kind} {key} is being deleted")]
    Deleting { kind: &'static str, key: Key },
    #[error("cannot protect it: {0}")]
    Api(#[from] ApiError),
}

/// What an edit came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    /// It is as it should be.
    Same,
    /// To be written back.
    Changed,
    /// An object in deletion takes no new finalizer.
    Refused,
}

/// The short way, for those who have the object at hand. Upstream's rules do not allow it of claims: the server's no is
/// remembered, and then there is only the long way.
#[derive(Debug, Default)]
pub(crate) struct Patching {
    forbidden: AtomicBool,
}

impl Patching {
    /// Whether the patch is written. If not, [`add`] and [`remove`] know why.
    pub(crate) async fn writes(&self, cluster: &Cluster, api: &Api, key: &Key, patch: Option<Patch>) -> bool {
        let Some(patch) = patch.filter(|_| !self.forbidden.load(Ordering::Relaxed)) else { return false };
        let written = cluster.patch(api, key, None, patch).await;
        if matches!(written, Err(ApiError::Forbidden(_))) {
            self.forbidden.store(true, Ordering::Relaxed);
        }
        written.is_ok()
    }
}

/// Puts a finalizer on the object of this identity.
pub(crate) async fn add(
    cluster: &Cluster,
    api: &Api,
    key: &Key,
    uid: &str,
    finalizer: &str,
) -> Result<(), ProtectError> {
    let edited = edit(cluster, api, key, uid, |object| with(object, finalizer)).await?;
    match edited {
        Some(Edit::Same | Edit::Changed) => Ok(()),
        Some(Edit::Refused) => Err(ProtectError::Deleting { kind: api.kind, key: key.clone() }),
        None => Err(ProtectError::Gone { kind: api.kind, key: key.clone() }),
    }
}

/// Takes a finalizer off the object of this identity. Well if there is none any more.
pub(crate) async fn remove(
    cluster: &Cluster,
    api: &Api,
    key: &Key,
    uid: &str,
    finalizer: &str,
) -> Result<(), ApiError> {
    edit(cluster, api, key, uid, |object| without(object, finalizer)).await.map(drop)
}

/// Edits the object of this identity; `None` if the server has no such.
async fn edit(
    cluster: &Cluster,
    api: &Api,
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
            Err(ApiError::Conflict(_)) if tries < TRIES => {}
            Err(ApiError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

fn with(object: &mut Value, finalizer: &str) -> Edit {
    let deleting = object.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null());
    let finalizers = &mut object["metadata"]["finalizers"];
    match finalizers {
        Value::Array(list) if list.iter().any(|present| present == finalizer) => Edit::Same,
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
    let Some(list) = list else { return Edit::Same };
    let before = list.len();
    list.retain(|present| present != finalizer);
    if list.len() == before { Edit::Same } else { Edit::Changed }
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

    /// A server that answers as written down, and what it was asked: the method, and the finalizers of what was sent.
    fn server(answers: Vec<(u16, Value)>) -> (Cluster, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answers, log) = (Arc::new(Mutex::new(VecDeque::from(answers))), Arc::clone(&asked));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (answers, log) = (Arc::clone(&answers), Arc::clone(&log));
            async move {
                let method = request.method().to_string();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let finalizers =
                    body.pointer("/metadata/finalizers").map(Value::to_string).unwrap_or_default();
                log.lock().unwrap().push(format!("{method} {finalizers}").trim_end().to_owned());
                let (status, answer) = answers.lock().unwrap().pop_front().unwrap();
                let body = Full::<Bytes>::from(answer.to_string());
                Ok::<_, Infallible>(http::Response::builder().status(status).body(body).unwrap())
            }
        });
        (Cluster::with_client(kube::Client::new(service, "default")), asked)
    }

    fn claim(uid: &str, finalizers: Value) -> (u16, Value) {
        (200, json!({"metadata": {"namespace": "ns", "name": "c", "uid": uid, "finalizers": finalizers}}))
    }

    fn refused(status: u16, reason: &str) -> (u16, Value) {
        (status, json!({"kind": "Status", "reason": reason, "details": {"name": "c"}}))
    }

    const API: Api = PersistentVolumeClaim::API;

    async fn adding(answers: Vec<(u16, Value)>) -> (Result<(), ProtectError>, Vec<String>) {
        let (cluster, asked) = server(answers);
        let added = add(&cluster, &API, &Key::namespaced("ns", "c"), "u", "f").await;
        let asked = asked.lock().unwrap().clone();
        (added, asked)
    }

    /// sidecars.md 1.1 "Clone finalizer": by reading and writing back, and never over somebody else's change.
    #[tokio::test]
    async fn a_finalizer_is_written_back_at_the_version_that_was_read() {
        let (added, asked) = adding(vec![
            claim("u", json!(["x"])),
            refused(409, "Conflict"),
            claim("u", json!(["y"])),
            claim("u", json!(["y", "f"])),
        ])
        .await;
        assert!(added.is_ok(), "{added:?}");
        assert_eq!(asked, ["GET", r#"PUT ["x","f"]"#, "GET", r#"PUT ["y","f"]"#]);
        // Another clone of the same source was quicker.
        let (added, asked) =
            adding(vec![claim("u", json!([])), refused(409, "Conflict"), claim("u", json!(["f"]))]).await;
        assert!(added.is_ok() && asked.len() == 3, "{added:?} {asked:?}");
    }

    #[tokio::test]
    async fn only_this_very_object_is_protected() {
        let (added, asked) = adding(vec![claim("u-another", json!([]))]).await;
        assert!(matches!(added, Err(ProtectError::Gone { .. })) && asked == ["GET"], "{added:?}");
        let (added, _) = adding(vec![refused(404, "NotFound")]).await;
        assert!(matches!(added, Err(ProtectError::Gone { .. })), "{added:?}");
        let (added, _) = adding(vec![claim("u", json!([])), refused(404, "NotFound")]).await;
        assert!(matches!(added, Err(ProtectError::Gone { .. })), "{added:?}");
        let (added, _) = adding(vec![claim("u", json!([])), refused(403, "Forbidden")]).await;
        assert!(matches!(added, Err(ProtectError::Api(ApiError::Forbidden(_)))), "{added:?}");
        let mut deleting = claim("u", json!(["x"]));
        deleting.1["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let (added, asked) = adding(vec![deleting]).await;
        assert!(matches!(added, Err(ProtectError::Deleting { .. })) && asked == ["GET"], "{added:?}");
        // A kind that is not served says nothing of the object.
        let (added, _) = adding(vec![(404, json!("404 page not found"))]).await;
        assert!(matches!(added, Err(ProtectError::Api(ApiError::NotServed(_)))), "{added:?}");
    }

    #[tokio::test]
    async fn it_does_not_try_for_ever() {
        let turn = || [claim("u", json!([])), refused(409, "Conflict")];
        let (added, asked) = adding((0..TRIES).flat_map(|_| turn()).collect()).await;
        assert!(matches!(added, Err(ProtectError::Api(ApiError::Conflict(_)))), "{added:?}");
        assert_eq!(asked.len(), 2 * TRIES);
    }

    #[tokio::test]
    async fn taking_it_off_what_is_gone_is_well() {
        let key = Key::namespaced("ns", "c");
        for (answers, expected) in [
            (vec![refused(404, "NotFound")], vec!["GET"]),
            (vec![claim("u-another", json!(["f"]))], vec!["GET"]),
            (vec![claim("u", json!(["x"]))], vec!["GET"]),
            (vec![claim("u", json!(["f", "x"])), claim("u", json!(["x"]))], vec!["GET", r#"PUT ["x"]"#]),
        ] {
            let (cluster, asked) = server(answers);
            remove(&cluster, &API, &key, "u", "f").await.unwrap();
            assert_eq!(*asked.lock().unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn the_short_way_is_tried_until_it_is_forbidden() {
        let (cluster, asked) =
            server(vec![claim("u", json!(["f"])), refused(409, "Conflict"), refused(403, "Forbidden")]);
        let (patching, key) = (Patching::default(), Key::namespaced("ns", "c"));
        let writes = |patch| patching.writes(&cluster, &API, &key, patch);
        let patch = || Some(Patch::Json(json!([])));
        assert!(!writes(None).await);
        let written =
            [writes(patch()).await, writes(patch()).await, writes(patch()).await, writes(patch()).await];
        assert_eq!(written, [true, false, false, false]);
        assert_eq!(*asked.lock().unwrap(), ["PATCH", "PATCH", "PATCH"]);
    }

    #[test]
    fn edits() {
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
            (json!(["f", "x"]), false, Edit::Same, json!(["f", "x"])),
            (json!(["f"]), true, Edit::Same, json!(["f"])),
            (json!(["x"]), true, Edit::Refused, json!(["x"])),
        ] {
            let mut edited = object(finalizers, deleting);
            assert_eq!(with(&mut edited, "f"), edit);
            assert_eq!(edited, object(after, deleting));
        }
        for (finalizers, edit, after) in [
            (Value::Null, Edit::Same, Value::Null),
            (json!(["x"]), Edit::Same, json!(["x"])),
            (json!(["x", "f", "y", "f"]), Edit::Changed, json!(["x", "y"])),
            (json!(["f"]), Edit::Changed, json!([])),
        ] {
            let mut edited = object(finalizers, true);
            assert_eq!(without(&mut edited, "f"), edit);
            assert_eq!(edited, object(after, true));
        }
    }
}
