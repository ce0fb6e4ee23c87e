//! API writes of a step: the write applies to the object that the step was decided on, or not at all.
//!
//! A rejected write usually means that the store is behind. The object is read again, which updates the store, and the
//! next step is decided on what it is now. There is no limit on the number of such reads besides the [step
//! limit](super::StepLimit): each of them needs another change by somebody else.

use wharf_model::patch::Patch;
use wharf_model::{Kind, Meta};

use super::StepOutcome;
use crate::{ApiError, Cluster, Preconditions, is_newer_version};

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The server accepted it. The store has the new version.
    Written,
    /// The object had changed. The store has the current version.
    Stale,
    /// The object does not exist. The watch reports it soon.
    NotFound,
    /// The server rejected it or is unavailable.
    Failed(ApiError),
}

impl WriteOutcome {
    /// What follows a write that is repeated until it succeeds; `report` gets the error of a failed one.
    ///
    /// If the object does not exist, the reconcile ends until the watch has reported that: the store still has the
    /// object, so a step that is decided now would write again.
    pub fn next_step(self, report: impl FnOnce(&ApiError)) -> StepOutcome {
        match self {
            Self::Written | Self::Stale => StepOutcome::Continue,
            Self::NotFound => StepOutcome::RETRY,
            Self::Failed(error) => {
                report(&error);
                StepOutcome::RETRY
            }
        }
    }
}

/// Patches an object, or one of its subresources. `seen` is the version that the patch was computed from.
pub async fn patch<K: Kind>(
    cluster: &Cluster,
    seen: &Meta,
    subresource: Option<&str>,
    patch: Patch,
) -> WriteOutcome {
    let patched = cluster.patch(&K::API, &seen.key(), subresource, patch).await;
    outcome::<K>(cluster, seen, patched.map(drop)).await
}

/// Deletes an object, but no other one of the same name.
pub async fn delete<K: Kind>(cluster: &Cluster, seen: &Meta) -> WriteOutcome {
    let preconditions = Preconditions { uid: Some(seen.uid.clone()), resource_version: None };
    let deleted = cluster.delete(&K::API, &seen.key(), preconditions).await;
    outcome::<K>(cluster, seen, deleted).await
}

async fn outcome<K: Kind>(cluster: &Cluster, seen: &Meta, written: Result<(), ApiError>) -> WriteOutcome {
    match written {
        Ok(()) => WriteOutcome::Written,
        Err(ApiError::NotFound(_)) => WriteOutcome::NotFound,
        // Invalid: a JSON patch whose `test` operation does not hold.
        Err(error @ (ApiError::Conflict(_) | ApiError::Invalid(_))) => {
            match cluster.get::<K>(&seen.key()).await {
                Ok(None) => WriteOutcome::NotFound,
                Ok(Some(now)) if is_newer_version(&now.meta().resource_version, &seen.resource_version) => {
                    WriteOutcome::Stale
                }
                // Nothing changed, so the same write would be rejected again. The same applies to an older version
                // (a server restored from a backup): the store ignores it.
                Ok(Some(_)) => WriteOutcome::Failed(error),
                Err(error) => WriteOutcome::Failed(error),
            }
        }
        Err(error) => WriteOutcome::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Reply, Thing, decoded, scripted, status, thing};

    fn found(version: u64) -> Reply {
        Reply::Json(200, thing("a", version, "red"))
    }

    /// An outcome in words; errors by their reason.
    fn text(outcome: &WriteOutcome) -> String {
        match outcome {
            WriteOutcome::Failed(error) => format!("failed: {}", error.reason()),
            other => format!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn rejected_write_is_explained_by_a_read() {
        let seen = decoded(thing("a", 3, "red")).metadata;
        let table: [(&str, Vec<Reply>, &str, &[&str]); 11] = [
            ("accepted", vec![found(4)], "Written", &["PATCH"]),
            ("gone", vec![status(404, "NotFound", "a")], "NotFound", &["PATCH"]),
            ("not served", vec![Reply::Text(404, "")], "failed: NotServed", &["PATCH"]),
            ("forbidden", vec![status(403, "Forbidden", "a")], "failed: Forbidden", &["PATCH"]),
            ("changed", vec![status(409, "Conflict", "a"), found(4)], "Stale", &["PATCH", "GET"]),
            ("test failed", vec![status(422, "Invalid", "a"), found(4)], "Stale", &["PATCH", "GET"]),
            ("invalid", vec![status(422, "Invalid", "a"), found(3)], "failed: Invalid", &["PATCH", "GET"]),
            ("restored", vec![status(409, "Conflict", "a"), found(2)], "failed: Conflict", &["PATCH", "GET"]),
            ("refused", vec![status(409, "Conflict", "a"), found(3)], "failed: Conflict", &["PATCH", "GET"]),
            (
                "deleted meanwhile",
                vec![status(409, "Conflict", "a"), status(404, "NotFound", "a")],
                "NotFound",
                &["PATCH", "GET"],
            ),
            (
                "unreadable",
                vec![status(409, "Conflict", "a"), status(403, "Forbidden", "a")],
                "failed: Forbidden",
                &["PATCH", "GET"],
            ),
        ];
        for (what, replies, expected, methods) in table {
            let (cluster, requests) = scripted(replies);
            let sent = Patch::Merge(json!({"color": "blue"}));
            let outcome = patch::<Thing>(&cluster, &seen, None, sent).await;
            assert_eq!(text(&outcome), expected, "{what}");
            let sent: Vec<String> = requests.lock().unwrap().iter().map(|one| one.method.clone()).collect();
            assert_eq!(sent, methods, "{what}");
        }
    }

    #[tokio::test]
    async fn delete_names_the_uid_and_spares_a_successor() {
        let seen = decoded(thing("a", 3, "red")).metadata;
        let (cluster, requests) = scripted(vec![status(409, "Conflict", "a"), found(4)]);
        assert_eq!(delete::<Thing>(&cluster, &seen).await, WriteOutcome::Stale);
        assert_eq!(requests.lock().unwrap()[0].body["preconditions"], json!({"uid": "u-a"}));
    }

    #[test]
    fn only_a_failed_write_is_reported() {
        let refusal = crate::Refusal { method: "PATCH", object: String::new(), message: String::new() };
        for (outcome, expected, reported) in [
            (WriteOutcome::Written, StepOutcome::Continue, false),
            (WriteOutcome::Stale, StepOutcome::Continue, false),
            (WriteOutcome::NotFound, StepOutcome::RETRY, false),
            (WriteOutcome::Failed(ApiError::Forbidden(refusal)), StepOutcome::RETRY, true),
        ] {
            let (what, mut reports) = (text(&outcome), 0);
            assert_eq!(outcome.next_step(|_| reports += 1), expected, "{what}");
            assert_eq!(reports > 0, reported, "{what}");
        }
    }
}
