//! The journal's requests, and how their results map to the planner's outcomes.

use std::sync::Arc;
use wharf_cluster::{ApiError, Cluster, ObjectList, Preconditions, WatchOptions};
use wharf_model::{Key, Kind, Lease};

use super::planner::{LoadOutcome, WriteOutcome};
use super::removals::RemoveOutcome;
use super::segment::{self, Owner};

/// The journal's location and owner.
#[derive(Clone)]
pub(super) struct JournalStore {
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    pub(super) owner: Owner,
}

impl JournalStore {
    /// Reads all segments.
    pub(super) async fn load(&self) -> LoadOutcome {
        let options = WatchOptions {
            namespace: Some(self.namespace.clone()),
            label_selector: Some(self.owner.selector()),
            ..WatchOptions::default()
        };
        match self.cluster.list::<Lease>(&options).await {
            Ok(ObjectList { items, undecodable: unreadable }) => {
                for key in unreadable.into_iter().flatten() {
                    tracing::warn!(lease = %key, "failed to decode Lease of the intent journal; leaving it");
                }
                let found: Vec<_> = items.iter().map(segment::read).collect();
                for found in found.iter().filter(|found| found.unreadable > 0) {
                    tracing::warn!(
                        lease = found.name,
                        intents = found.unreadable,
                        "failed to decode intents; leaving the Lease for the version that wrote it"
                    );
                }
                LoadOutcome::All(found)
            }
            Err(error @ (ApiError::Forbidden(_) | ApiError::NotServed(_))) => LoadOutcome::Forbidden(error),
            Err(error) => {
                tracing::warn!(%error, "failed to read the intent journal; retrying");
                LoadOutcome::Failed
            }
        }
    }

    /// Creates a segment. The API client decides about timeouts: under client-side rate limiting a write waits for its
    /// turn, and aborting it before it is sent would only cost another turn.
    pub(super) async fn write(&self, name: &str, intents: &[Arc<str>]) -> WriteOutcome {
        let lease = self.owner.lease(name, intents.iter().map(|intent| &**intent));
        match self.cluster.create(&Lease::API, Some(&self.namespace), &lease).await {
            Ok(created) => {
                let uid = created.pointer("/metadata/uid").and_then(|uid| uid.as_str()).unwrap_or_default();
                WriteOutcome::Done { uid: uid.to_owned() }
            }
            Err(error) => outcome(error),
        }
    }

    /// Deletes a segment: the one with this UID or, without a UID, what a request without a response may have created.
    pub(super) async fn remove(&self, name: &str, uid: Option<String>) -> RemoveOutcome {
        match self.try_remove(name, uid).await {
            Ok(removed) => removed,
            Err(error) => {
                tracing::debug!(%error, "failed to delete finished Lease of the intent journal; retrying");
                RemoveOutcome::Failed
            }
        }
    }

    async fn try_remove(&self, name: &str, uid: Option<String>) -> Result<RemoveOutcome, ApiError> {
        let key = Key::namespaced(&self.namespace, name);
        let uid = match uid {
            Some(uid) => uid,
            None => match self.cluster.get::<Lease>(&key).await? {
                Some(lease) if self.is_ours(&lease) => lease.metadata.uid,
                // The name is random, so this is unlikely. It is not ours: leave it.
                Some(_) => return Ok(RemoveOutcome::Deleted),
                None => return Ok(RemoveOutcome::NotFound),
            },
        };
        let preconditions = Preconditions { uid: Some(uid), ..Preconditions::default() };
        match self.cluster.delete(&Lease::API, &key, preconditions).await {
            Ok(()) => Ok(RemoveOutcome::Deleted),
            // Another object has the name: ours is deleted.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(RemoveOutcome::Deleted),
            Err(error) => Err(error),
        }
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        let present = |label: &String| lease.metadata.labels.get(label);
        self.owner.labels().iter().all(|(label, value)| present(label) == Some(value.as_str()))
    }
}

/// Maps an error of a create.
fn outcome(error: ApiError) -> WriteOutcome {
    match error {
        ApiError::Forbidden(_) | ApiError::Terminating(_) | ApiError::NotServed(_) => {
            WriteOutcome::Forbidden(error)
        }
        ApiError::TooManyRequests { retry_after, .. } => WriteOutcome::Throttled(retry_after),
        // The name is random: only a retransmitted request of ours can have created it.
        ApiError::Unavailable(_) | ApiError::AlreadyExists(_) => WriteOutcome::Unknown(error),
        // No response, or a success that cannot be decoded.
        ApiError::Other { status: 0 | 200..=299, .. } => WriteOutcome::Unknown(error),
        ApiError::NotFound(_)
        | ApiError::Conflict(_)
        | ApiError::Invalid(_)
        | ApiError::Gone(_)
        | ApiError::Other { .. } => WriteOutcome::Rejected(error),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http_body_util::Full;
    use hyper::body::Bytes;
    use wharf_cluster::Refusal;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_write_is_not_aborted() {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            let result = r#"{"metadata": {"name": "s", "uid": "u"}}"#;
            Ok::<_, Infallible>(
                http::Response::builder().status(201).body(Full::<Bytes>::from(result)).unwrap(),
            )
        });
        let store = JournalStore {
            cluster: Cluster::with_client(kube::Client::new(service, "default")),
            namespace: "ns".into(),
            owner: Owner { driver: "d.test".into(), node: None },
        };
        assert_eq!(store.write("s", &["{}".into()]).await, WriteOutcome::Done { uid: "u".into() });
    }

    #[test]
    fn create_errors_map_to_outcomes() {
        let refusal = || Refusal { method: "POST", object: "Lease n/x".into(), message: "no".into() };
        let of = |error: ApiError| match outcome(error) {
            WriteOutcome::Done { .. } => "done",
            WriteOutcome::Unknown(_) => "unknown",
            WriteOutcome::Throttled(_) => "throttled",
            WriteOutcome::Forbidden(_) => "forbidden",
            WriteOutcome::Rejected(_) => "rejected",
        };
        for (error, expected) in [
            (ApiError::Forbidden(refusal()), "forbidden"),
            (ApiError::NotServed(refusal()), "forbidden"),
            (ApiError::Unavailable(refusal()), "unknown"),
            (ApiError::AlreadyExists(refusal()), "unknown"),
            (ApiError::Other { refusal: refusal(), status: 0 }, "unknown"),
            (ApiError::Other { refusal: refusal(), status: 201 }, "unknown"),
            (ApiError::Other { refusal: refusal(), status: 401 }, "rejected"),
            (ApiError::TooManyRequests { refusal: refusal(), retry_after: Duration::ZERO }, "throttled"),
            (ApiError::NotFound(refusal()), "rejected"),
            (ApiError::Conflict(refusal()), "rejected"),
            (ApiError::Invalid(refusal()), "rejected"),
            (ApiError::Gone(refusal()), "rejected"),
        ] {
            let text = format!("{error:?}");
            assert_eq!(of(error), expected, "{text}");
        }
    }
}
