//! Performs one reclaim step.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use wharf_cluster::{ApiError, EventType};
use wharf_csi::v1;
use wharf_model::names::{finalizer, reason};
use wharf_model::patch::{self, Patch};
use wharf_model::{Kind, PersistentVolume, SecretRef};

use super::{BlockedBy, ReclaimStep};
use crate::context::Context;
use crate::driver::redacted_status_text;
use crate::secret::{self, SecretError};
use wharf_cluster::work::{self, StepOutcome, WriteOutcome};

const ROLE: &str = "provisioner";
/// A blocked volume is woken when the blocking object changes. A watch may skip changes under heavy load, so it is
/// also checked at this interval.
const RECHECK: Duration = Duration::from_secs(60);

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReclaimOutcome {
    /// Nothing to record.
    Next(StepOutcome),
    /// The driver deleted the volume in this time: record it, then decide again.
    Deleted(Duration),
    /// Deletion failed and was reported: retry after the backoff.
    Failed,
}

/// Why DeleteVolume failed.
#[derive(Debug, thiserror::Error)]
enum DeleteError {
    #[error("{0}")]
    Driver(String),
    #[error(transparent)]
    Secret(SecretError),
}

/// Performs a step. `volume` is the version that the step was decided for, and `timeout` limits a call to the driver.
pub(crate) async fn act(
    context: &Context,
    timeout: Duration,
    volume: &PersistentVolume,
    step: ReclaimStep,
) -> ReclaimOutcome {
    let meta = &volume.metadata;
    let name = meta.name.as_str();
    match step {
        ReclaimStep::Idle(reason) => {
            tracing::trace!(pv = name, ?reason, "nothing to reclaim");
            ReclaimOutcome::Next(StepOutcome::DONE)
        }
        ReclaimStep::Wait(BlockedBy::Attachments(attachments)) => {
            tracing::debug!(pv = name, ?attachments, "waiting for volume to be detached before deleting it");
            ReclaimOutcome::Next(StepOutcome::retry_after(RECHECK))
        }
        ReclaimStep::Wait(BlockedBy::Sibling(other)) => {
            tracing::debug!(
                pv = name,
                other,
                "waiting for another PersistentVolume with the same handle to be deleted"
            );
            ReclaimOutcome::Next(StepOutcome::retry_after(RECHECK))
        }
        ReclaimStep::Refuse(problem) => record_failure(context, volume, &problem.to_string()),
        ReclaimStep::AddFinalizer => {
            let patch = patch::add_finalizer(meta, finalizer::PROVISIONER);
            after_write(context, volume, "add finalizer", patch_volume(context, volume, patch).await)
        }
        ReclaimStep::RemoveFinalizer => {
            let patch = patch::remove_finalizer(meta, finalizer::PROVISIONER);
            after_write(context, volume, "remove finalizer", patch_volume(context, volume, patch).await)
        }
        ReclaimStep::DeleteVolume { handle, secret } => {
            // The watch may lag, and a deletion cannot be undone: check the current version on the server.
            match context.cluster.get::<PersistentVolume>(&volume.key()).await {
                Ok(Some(now)) if now.metadata.resource_version == meta.resource_version => {}
                Ok(Some(_)) => return ReclaimOutcome::Next(StepOutcome::Continue),
                Ok(None) => return ReclaimOutcome::Next(StepOutcome::DONE),
                Err(error) => {
                    return after_write(
                        context,
                        volume,
                        "get PersistentVolume before deletion",
                        WriteOutcome::Failed(error),
                    );
                }
            }
            let started = Instant::now();
            match delete_volume(context, timeout, volume, handle, secret).await {
                Ok(()) => {
                    tracing::info!(pv = name, "deleted volume");
                    context.attempts.record(ROLE, name, "DeleteVolume", None);
                    ReclaimOutcome::Deleted(started.elapsed())
                }
                Err(error) => record_failure(context, volume, &error.to_string()),
            }
        }
        ReclaimStep::DeleteObject => {
            let deleted = work::write::delete::<PersistentVolume>(&context.cluster, meta).await;
            after_write(context, volume, "delete PersistentVolume", deleted)
        }
        ReclaimStep::Release => {
            let patch = patch::remove_finalizer(meta, finalizer::PROVISIONER);
            let released = patch_volume(context, volume, patch).await;
            if released == WriteOutcome::Written {
                tracing::info!(pv = name, "deleted PersistentVolume");
                context.attempts.remove(ROLE, name);
            }
            after_write(context, volume, "remove finalizer", released)
        }
    }
}

/// Sends the patch, if one is needed.
async fn patch_volume(context: &Context, volume: &PersistentVolume, patch: Option<Patch>) -> WriteOutcome {
    let Some(patch) = patch else { return WriteOutcome::Written };
    work::write::patch::<PersistentVolume>(&context.cluster, &volume.metadata, None, patch).await
}

/// Maps the result of a write.
fn after_write(
    context: &Context,
    volume: &PersistentVolume,
    step: &'static str,
    written: WriteOutcome,
) -> ReclaimOutcome {
    let name = volume.metadata.name.as_str();
    ReclaimOutcome::Next(written.next_step(|error| {
        tracing::warn!(pv = name, step, %error, "failed to update PersistentVolume; retrying");
        context.attempts.record(ROLE, name, step, Some(error.to_string()));
    }))
}

fn record_failure(context: &Context, volume: &PersistentVolume, error: &str) -> ReclaimOutcome {
    let name = volume.metadata.name.as_str();
    tracing::warn!(pv = name, error, "failed to delete volume");
    context.attempts.record(ROLE, name, "DeleteVolume", Some(error.to_owned()));
    context.record_event(volume, EventType::Warning, reason::VOLUME_FAILED_DELETE, error);
    ReclaimOutcome::Failed
}

/// The secrets for DeleteVolume. Empty if the secret no longer exists.
pub(crate) async fn secrets(
    context: &Context,
    volume: &str,
    secret: Option<&SecretRef>,
) -> Result<BTreeMap<String, String>, SecretError> {
    match secret::read(&context.cluster, secret).await {
        // Transient: retry later.
        Err(error @ SecretError::Api(ApiError::Unavailable(_) | ApiError::TooManyRequests { .. })) => {
            Err(error)
        }
        // The secret may have been deleted with its namespace. The driver may not need it.
        Err(error) => {
            tracing::warn!(pv = volume, %error, "failed to read deletion secret; deleting volume without it");
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
        Err(status) => Err(DeleteError::Driver(redacted_status_text(&status, &secrets))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provisioner::testing::{context, volume};

    /// sidecars.md 1.1 "Delete": a change of the blocking object wakes the volume, but a relist may miss it.
    #[tokio::test]
    async fn blocked_volume_is_rechecked() {
        let context = context(|_, _, _| (500, json!({})));
        for hold in [BlockedBy::Attachments(vec!["a".into()]), BlockedBy::Sibling("b".into())] {
            let step = ReclaimStep::Wait(hold);
            let acted = act(&context, Duration::ZERO, &volume(json!({})), step).await;
            assert_eq!(acted, ReclaimOutcome::Next(StepOutcome::retry_after(RECHECK)));
        }
    }
}
