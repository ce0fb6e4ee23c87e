//! Does the one step of a volume's end.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use wharf_cluster::{ApiError, EventType, Preconditions};
use wharf_csi::v1;
use wharf_model::names::{finalizer, reason};
use wharf_model::patch::{self, Patch};
use wharf_model::{Kind, PersistentVolume, SecretRef};

use super::{Hold, ReclaimStep};
use crate::context::Context;
use crate::driver::described;
use crate::secret::{self, SecretError};
use wharf_cluster::work::Outcome;

const ROLE: &str = "provisioner";
/// Until a newer version, which the server has told, is looked at.
const CATCH_UP: Duration = Duration::from_millis(50);
/// Who has to let go wakes us by a change. A change may be left out when very many come at once, so one looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// How it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acted {
    /// With a fresh view.
    Again,
    /// The driver has deleted the volume, and took this long: to be remembered, then with a fresh view.
    Deleted(Duration),
    /// Deleting it failed and was told: after the backoff.
    Failed,
    /// Not now.
    End(Outcome),
}

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum DeleteError {
    #[error("{0}")]
    Driver(String),
    #[error(transparent)]
    Secret(SecretError),
}

/// Does a step of a volume, as it was when the step was decided. A call to the driver may take `timeout`.
pub(crate) async fn act(
    context: &Context,
    timeout: Duration,
    volume: &PersistentVolume,
    step: ReclaimStep,
) -> Acted {
    let meta = &volume.metadata;
    let name = meta.name.as_str();
    match step {
        ReclaimStep::Nothing(why) => {
            tracing::trace!(volume = name, ?why, "nothing to reclaim");
            Acted::End(Outcome::Done)
        }
        ReclaimStep::Wait(Hold::Attached(attachments)) => {
            tracing::debug!(
                volume = name,
                ?attachments,
                "still attached: it is deleted when it no longer is"
            );
            Acted::End(Outcome::After(LOOK_AGAIN))
        }
        ReclaimStep::Wait(Hold::Sibling(other)) => {
            tracing::debug!(volume = name, other, "another volume with the same handle goes first");
            Acted::End(Outcome::After(LOOK_AGAIN))
        }
        ReclaimStep::Refuse(fault) => failed(context, volume, &fault.to_string()),
        ReclaimStep::Guard => {
            let patch = patch::add_finalizer(meta, finalizer::PROVISIONER);
            written(context, volume, "guard", patched(context, volume, patch).await)
        }
        ReclaimStep::Unguard => {
            let patch = patch::remove_finalizer(meta, finalizer::PROVISIONER);
            written(context, volume, "unguard", patched(context, volume, patch).await)
        }
        ReclaimStep::DeleteVolume { handle, secret } => {
            // A watch may be behind, and what is deleted cannot be had back: the server has the last word.
            match context.cluster.get::<PersistentVolume>(&volume.key()).await {
                Ok(Some(now)) if now.metadata.resource_version == meta.resource_version => {}
                Ok(Some(_)) => return Acted::End(Outcome::After(CATCH_UP)),
                Ok(None) => return Acted::End(Outcome::Done),
                Err(error) => return written(context, volume, "look at it before it is deleted", Err(error)),
            }
            let began = Instant::now();
            match delete_volume(context, timeout, volume, handle, secret).await {
                Ok(()) => {
                    tracing::info!(volume = name, "the driver has deleted the volume");
                    context.attempts.note(ROLE, name, "DeleteVolume", None);
                    Acted::Deleted(began.elapsed())
                }
                Err(error) => failed(context, volume, &error.to_string()),
            }
        }
        ReclaimStep::DeleteObject => {
            let only = Preconditions { uid: Some(meta.uid.clone()), ..Preconditions::default() };
            let deleted = context.cluster.delete(&PersistentVolume::API, &volume.key(), only).await;
            written(context, volume, "delete the object", deleted)
        }
        ReclaimStep::Release => {
            let patch = patch::remove_finalizer(meta, finalizer::PROVISIONER);
            let released = patched(context, volume, patch).await;
            if released.is_ok() {
                tracing::info!(volume = name, "the volume is gone");
                context.attempts.forget(ROLE, name);
            }
            written(context, volume, "release", released)
        }
    }
}

async fn patched(context: &Context, volume: &PersistentVolume, patch: Option<Patch>) -> Result<(), ApiError> {
    let Some(patch) = patch else { return Ok(()) };
    context.cluster.patch(&PersistentVolume::API, &volume.key(), None, patch).await.map(drop)
}

/// How it goes on after a write.
fn written(
    context: &Context,
    volume: &PersistentVolume,
    step: &'static str,
    written: Result<(), ApiError>,
) -> Acted {
    let name = volume.metadata.name.as_str();
    match written {
        Ok(()) => Acted::Again,
        // It is gone, which the watch will tell.
        Err(ApiError::NotFound(_)) => Acted::End(Outcome::Done),
        // Somebody else changed it too, as those do who let go of an object in deletion. The watch tells what it is
        // like now, and wakes us.
        Err(error @ (ApiError::Conflict(_) | ApiError::Invalid(_))) => {
            tracing::debug!(volume = name, step, %error, "the volume is not as it was seen, looking again");
            Acted::End(Outcome::Retry)
        }
        Err(error) => {
            tracing::warn!(volume = name, step, %error, "the volume could not be changed, trying again");
            context.attempts.note(ROLE, name, step, Some(error.to_string()));
            Acted::End(Outcome::Retry)
        }
    }
}

fn failed(context: &Context, volume: &PersistentVolume, error: &str) -> Acted {
    let name = volume.metadata.name.as_str();
    tracing::warn!(volume = name, error, "the volume could not be deleted");
    context.attempts.note(ROLE, name, "DeleteVolume", Some(error.to_owned()));
    context.event(volume, EventType::Warning, reason::VOLUME_FAILED_DELETE, error);
    Acted::Failed
}

/// The secrets to delete a volume with; none where there are none any more.
pub(crate) async fn secrets(
    context: &Context,
    volume: &str,
    secret: Option<&SecretRef>,
) -> Result<BTreeMap<String, String>, SecretError> {
    match secret::read(&context.cluster, secret).await {
        // The server may answer another time.
        Err(error @ SecretError::Api(ApiError::Unavailable(_) | ApiError::TooManyRequests { .. })) => {
            Err(error)
        }
        // Perhaps the secret went with its namespace; the driver may not need it.
        Err(error) => {
            tracing::warn!(volume, %error, "deleting without the secret");
            Ok(BTreeMap::new())
        }
        read => read,
    }
}

async fn delete_volume(
    context: &Context,
    timeout: Duration,
    volume: &PersistentVolume,
    handle: String,
    secret: Option<SecretRef>,
) -> Result<(), DeleteError> {
    let name = volume.metadata.name.as_str();
    let secrets = secrets(context, name, secret.as_ref()).await.map_err(DeleteError::Secret)?;
    let request = v1::DeleteVolumeRequest { volume_id: handle, secrets: secrets.clone() };
    let call = |mut driver: wharf_csi::v1::controller_client::ControllerClient<_>| async move {
        driver.delete_volume(request).await
    };
    match context.driver.controller("DeleteVolume", timeout, call).await {
        Ok(v1::DeleteVolumeResponse {}) => Ok(()),
        Err(status) => Err(DeleteError::Driver(described(&status, &secrets))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provisioner::testing::{context, volume};

    /// sidecars.md 1.1 "Delete": who lets go wakes us, but a change may be missed, as by a list after a lost watch.
    #[tokio::test]
    async fn what_is_held_is_looked_at_again() {
        let context = context(|_, _, _| (500, json!({})));
        for hold in [Hold::Attached(vec!["a".into()]), Hold::Sibling("b".into())] {
            let step = ReclaimStep::Wait(hold);
            let acted = act(&context, Duration::ZERO, &volume(json!({})), step).await;
            assert_eq!(acted, Acted::End(Outcome::After(LOOK_AGAIN)));
        }
    }
}
