//! The journal's requests, and what each answer means for the book.

use std::sync::Arc;
use wharf_cluster::{ApiError, Cluster, Listed, Preconditions, WatchOptions};
use wharf_model::{Key, Kind, Lease};

use super::book::{Loaded, Written};
use super::removals::Removed;
use super::segment::{self, Owner};

/// Where the journal is and whose it is.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    pub(super) owner: Owner,
}

impl Place {
    /// Reads all segments.
    pub(super) async fn load(&self) -> Loaded {
        let options = WatchOptions {
            namespace: Some(self.namespace.clone()),
            label_selector: Some(self.owner.selector()),
            ..WatchOptions::default()
        };
        match self.cluster.list::<Lease>(&options).await {
            Ok(Listed { items, unreadable }) => {
                for key in unreadable.into_iter().flatten() {
                    tracing::warn!(lease = %key, "this part of the intent journal cannot be read and is left as it is");
                }
                let found: Vec<_> = items.iter().map(segment::read).collect();
                for found in found.iter().filter(|found| found.unreadable > 0) {
                    tracing::warn!(
                        lease = found.name,
                        intents = found.unreadable,
                        "intents of the journal cannot be read; the lease is left for the version that wrote it"
                    );
                }
                Loaded::All(found)
            }
            Err(error @ (ApiError::Forbidden(_) | ApiError::NotServed(_))) => Loaded::NotAllowed(error),
            Err(error) => {
                tracing::warn!(%error, "cannot read the intent journal, trying on");
                Loaded::Failed
            }
        }
    }

    /// Creates a segment. Who waits too long for an answer is the API layer's to say: under a limit of requests a
    /// write waits for its turn, and one that was given up before it was sent would only cost another turn.
    pub(super) async fn write(&self, name: &str, intents: &[Arc<str>]) -> Written {
        let lease = self.owner.lease(name, intents.iter().map(|intent| &**intent));
        match self.cluster.create(&Lease::API, Some(&self.namespace), &lease).await {
            Ok(made) => {
                let uid = made.pointer("/metadata/uid").and_then(|uid| uid.as_str()).unwrap_or_default();
                Written::Done { uid: uid.to_owned() }
            }
            Err(error) => outcome(error),
        }
    }

    /// Deletes a segment: this very one, or whatever a lost request of ours has left under the name.
    pub(super) async fn remove(&self, name: &str, uid: Option<String>) -> Removed {
        match self.try_remove(name, uid).await {
            Ok(removed) => removed,
            Err(error) => {
                tracing::debug!(%error, "cannot delete a finished part of the intent journal yet");
                Removed::Failed
            }
        }
    }

    async fn try_remove(&self, name: &str, uid: Option<String>) -> Result<Removed, ApiError> {
        let key = Key::namespaced(&self.namespace, name);
        let uid = match uid {
            Some(uid) => uid,
            None => match self.cluster.get::<Lease>(&key).await? {
                Some(lease) if self.is_ours(&lease) => lease.metadata.uid,
                // Nobody else makes such names; but if somebody did, it is theirs.
                Some(_) => return Ok(Removed::Gone),
                None => return Ok(Removed::NotThere),
            },
        };
        let preconditions = Preconditions { uid: Some(uid), ..Preconditions::default() };
        match self.cluster.delete(&Lease::API, &key, preconditions).await {
            Ok(()) => Ok(Removed::Gone),
            // Another object has the name: ours is gone.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(Removed::Gone),
            Err(error) => Err(error),
        }
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        let present = |label: &String| lease.metadata.labels.get(label);
        self.owner.labels().iter().all(|(label, value)| present(label) == Some(value.as_str()))
    }
}

/// What an error says of a create.
fn outcome(error: ApiError) -> Written {
    match error {
        ApiError::Forbidden(_) | ApiError::Terminating(_) | ApiError::NotServed(_) => {
            Written::NotAllowed(error)
        }
        ApiError::TooManyRequests { retry_after, .. } => Written::Busy(retry_after),
        // The name is random: only a request of ours that was repeated on its way can have used it.
        ApiError::Unavailable(_) | ApiError::AlreadyExists(_) => Written::Doubtful(error),
        // No answer, or a success that cannot be read.
        ApiError::Other { status: 0 | 200..=299, .. } => Written::Doubtful(error),
        ApiError::NotFound(_)
        | ApiError::Conflict(_)
        | ApiError::Invalid(_)
        | ApiError::Gone(_)
        | ApiError::Other { .. } => Written::Refused(error),
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
    async fn a_write_that_waits_for_its_turn_is_not_given_up() {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            let answer = r#"{"metadata": {"name": "s", "uid": "u"}}"#;
            Ok::<_, Infallible>(
                http::Response::builder().status(201).body(Full::<Bytes>::from(answer)).unwrap(),
            )
        });
        let place = Place {
            cluster: Cluster::with_client(kube::Client::new(service, "default")),
            namespace: "ns".into(),
            owner: Owner { driver: "d.test".into(), node: None },
        };
        assert_eq!(place.write("s", &["{}".into()]).await, Written::Done { uid: "u".into() });
    }

    #[test]
    fn what_an_error_says_of_a_create() {
        let refusal = || Refusal { method: "POST", object: "Lease n/x".into(), message: "no".into() };
        let of = |error: ApiError| match outcome(error) {
            Written::Done { .. } => "done",
            Written::Doubtful(_) => "doubtful",
            Written::Busy(_) => "busy",
            Written::NotAllowed(_) => "not allowed",
            Written::Refused(_) => "refused",
        };
        for (error, expected) in [
            (ApiError::Forbidden(refusal()), "not allowed"),
            (ApiError::NotServed(refusal()), "not allowed"),
            (ApiError::Unavailable(refusal()), "doubtful"),
            (ApiError::AlreadyExists(refusal()), "doubtful"),
            (ApiError::Other { refusal: refusal(), status: 0 }, "doubtful"),
            (ApiError::Other { refusal: refusal(), status: 201 }, "doubtful"),
            (ApiError::Other { refusal: refusal(), status: 401 }, "refused"),
            (ApiError::TooManyRequests { refusal: refusal(), retry_after: Duration::ZERO }, "busy"),
            (ApiError::NotFound(refusal()), "refused"),
            (ApiError::Conflict(refusal()), "refused"),
            (ApiError::Invalid(refusal()), "refused"),
            (ApiError::Gone(refusal()), "refused"),
        ] {
            let text = format!("{error:?}");
            assert_eq!(of(error), expected, "{text}");
        }
    }
}
