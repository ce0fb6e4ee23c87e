//! Performs one step and records the result where the next view reads it: in the stores, which the server's responses
//! update, and in the in-process state.

use std::collections::BTreeMap;

use tonic::Status;
use wharf_cluster::{Priority, monotonic, now};
use wharf_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use wharf_model::patch::Patch;
use wharf_model::{Key, PersistentVolume, SecretRef, VolumeAttachment};

use super::decide::AttachStep;
use super::references::{ReferenceCheck, ReferenceChecker};
use super::view::{
    AttachOperation, AttachState, AttachmentInputs, AttemptError, Published, RetryPace, Subject, VolumeView,
};
use super::{Attacher, REFERENCE_CHECK_DELAY, ROLE, VERSION_POLL_INTERVAL};
use crate::driver::redacted_status_text;
use crate::secret::{self, SecretError};
use wharf_cluster::work::{self, StepOutcome, WorkOutcome, WriteOutcome};

/// Carried from one step to the next, and dropped when the worker leaves the volume.
#[derive(Default)]
pub(super) struct StepContext {
    /// Read before the finalizer is added, to check that it exists, and used for the call.
    secret: Option<(SecretRef, BTreeMap<String, String>)>,
}

impl Attacher {
    /// Performs a step.
    pub(super) async fn act(
        &self,
        subject: &Subject,
        view: &VolumeView<'_>,
        step: AttachStep,
        step_context: &mut StepContext,
    ) -> StepOutcome {
        match step {
            AttachStep::Idle => StepOutcome::DONE,
            AttachStep::Wait(pause) => StepOutcome::retry_after(pause),
            AttachStep::CheckReferences { uid } => {
                if let Some(volume) = subject.volume() {
                    self.states.request_check(volume, uid);
                    self.queue.add_after(Subject::References, REFERENCE_CHECK_DELAY);
                }
                StepOutcome::DONE
            }
            AttachStep::RemoveVolumeFinalizer { patch } => self.remove_volume_finalizer(view, patch).await,
            AttachStep::AddVolumeFinalizer { ref attachment, .. }
            | AttachStep::PrepareAttachment { ref attachment, .. }
            | AttachStep::Publish { ref attachment, .. }
            | AttachStep::MarkAttached { ref attachment, .. }
            | AttachStep::Unpublish { ref attachment, .. }
            | AttachStep::RemoveAttachmentFinalizer { ref attachment, .. }
            | AttachStep::MarkDetached { ref attachment, .. }
            | AttachStep::Refuse { ref attachment, .. }
            | AttachStep::ReportError { ref attachment, .. } => {
                let named = |inputs: &&AttachmentInputs| inputs.attachment.metadata.name == *attachment;
                match view.attachments.iter().find(named) {
                    Some(inputs) => {
                        let volume = view.volume.as_deref();
                        AttachmentActor { attacher: self, subject, volume, inputs }
                            .act(step, step_context)
                            .await
                    }
                    None => StepOutcome::DONE,
                }
            }
        }
    }

    async fn remove_volume_finalizer(&self, view: &VolumeView<'_>, patch: Patch) -> StepOutcome {
        let Some(volume) = &view.volume else { return StepOutcome::DONE };
        let (cluster, meta) = (&self.context.cluster, &volume.metadata);
        let outcome = work::write::patch::<PersistentVolume>(cluster, meta, None, patch).await;
        let pv = meta.name.as_str();
        if outcome == WriteOutcome::Written {
            tracing::info!(pv, "removed finalizer from PersistentVolume; no attachment is left");
        }
        outcome.next_step(|error| {
            tracing::warn!(pv, %error, "failed to remove finalizer from PersistentVolume");
        })
    }

    /// Checks all volumes that wait for a reference check, with one request.
    pub(super) async fn check_references(&self) -> WorkOutcome {
        let (cluster, driver) = (&self.context.cluster, self.config.driver.as_str());
        let checker = ReferenceChecker { cluster, attachments: &self.attachments, driver };
        self.states.retain_checks(|volume, uid| {
            let volume = self.volumes.get(&Key::cluster(volume));
            volume.is_some_and(|volume| volume.metadata.uid == uid)
        });
        // They stay requested until they were made: a panic must not lose them.
        let checked = match self.states.awaited_version(monotonic()) {
            Some(awaited) => checker.resume(awaited).await,
            None => match self.states.checks() {
                checks if checks.is_empty() => return WorkOutcome::Done,
                checks => checker.start(checks).await,
            },
        };
        match checked {
            Ok(ReferenceCheck::Done { checked, unreferenced, blocked }) => {
                self.states.remove_checks(&checked);
                for (volume, uid) in unreferenced {
                    let subject = Subject::Volume(volume);
                    self.states.set_unreferenced(&subject, uid);
                    self.queue.add(subject, Priority::Normal);
                }
                if let Some(pv) = blocked.keys().next() {
                    tracing::warn!(
                        volumes = blocked.len(),
                        pv,
                        "failed to decode a VolumeAttachment that names a deleted volume; leaving the volume's finalizer"
                    );
                    return WorkOutcome::Retry;
                }
                match self.states.checks().is_empty() {
                    true => WorkOutcome::Done,
                    false => WorkOutcome::RetryAfter(REFERENCE_CHECK_DELAY),
                }
            }
            Ok(ReferenceCheck::Await(awaited)) => {
                self.states.await_version(awaited, monotonic());
                WorkOutcome::RetryAfter(VERSION_POLL_INTERVAL)
            }
            Err(error) => {
                let volumes = self.states.checks().len();
                tracing::warn!(
                    volumes,
                    %error,
                    "failed to check whether volumes are attached; leaving their finalizers"
                );
                WorkOutcome::Retry
            }
        }
    }
}

/// Performs steps on one attachment.
struct AttachmentActor<'a> {
    attacher: &'a Attacher,
    subject: &'a Subject,
    volume: Option<&'a PersistentVolume>,
    inputs: &'a AttachmentInputs,
}

impl AttachmentActor<'_> {
    fn name(&self) -> &str {
        &self.inputs.attachment.metadata.name
    }

    fn node(&self) -> &str {
        &self.inputs.attachment.spec.node_name
    }

    async fn act(&self, step: AttachStep, step_context: &mut StepContext) -> StepOutcome {
        match step {
            AttachStep::AddVolumeFinalizer { patch, .. } => self.add_volume_finalizer(patch).await,
            AttachStep::PrepareAttachment { patch, secret, .. } => {
                self.prepare(patch, secret.as_ref(), step_context).await
            }
            AttachStep::Publish { request, secret, .. } => {
                self.publish(*request, secret.as_ref(), step_context).await
            }
            AttachStep::Unpublish { request, secret, .. } => {
                self.unpublish(request, secret.as_ref(), step_context).await
            }
            AttachStep::MarkAttached { patch, .. } => {
                let written = self.write(Some("status"), patch).await;
                if written == WriteOutcome::Written {
                    self.update_state(AttachState::record_written);
                    tracing::info!(volume_attachment = self.name(), node = self.node(), "attached volume");
                }
                self.after_write(written, "failed to mark VolumeAttachment as attached")
            }
            AttachStep::RemoveAttachmentFinalizer { patch, .. } => {
                let written = self.write(None, patch).await;
                if written == WriteOutcome::Written {
                    tracing::info!(volume_attachment = self.name(), node = self.node(), "detached volume");
                }
                self.after_write(written, "failed to remove finalizer from VolumeAttachment")
            }
            AttachStep::MarkDetached { patch, .. } => {
                let written = self.write(Some("status"), patch).await;
                if written == WriteOutcome::Written {
                    self.update_state(AttachState::record_written);
                }
                self.after_write(written, "failed to mark VolumeAttachment as detached")
            }
            AttachStep::Refuse { operation, reason, .. } => self.record_failure(
                operation,
                "check",
                AttemptError { operation, message: reason.to_string(), code: None, retry: RetryPace::Slowly },
            ),
            AttachStep::ReportError { patch, .. } => {
                // Best effort: the next attempt reports again.
                if let WriteOutcome::Failed(error) = self.write(Some("status"), patch).await {
                    tracing::warn!(volume_attachment = self.name(), %error, "failed to report error in VolumeAttachment");
                }
                self.update_state(|state| {
                    if let Some(failure) = &mut state.failure {
                        failure.reported = true;
                    }
                });
                StepOutcome::Continue
            }
            // These steps do not concern an attachment.
            AttachStep::Idle
            | AttachStep::Wait(_)
            | AttachStep::CheckReferences { .. }
            | AttachStep::RemoveVolumeFinalizer { .. } => StepOutcome::DONE,
        }
    }

    async fn add_volume_finalizer(&self, patch: Patch) -> StepOutcome {
        let Some(volume) = self.volume else { return StepOutcome::DONE };
        let step = "add PersistentVolume finalizer";
        let (cluster, meta) = (&self.attacher.context.cluster, &volume.metadata);
        let message = match work::write::patch::<PersistentVolume>(cluster, meta, None, patch).await {
            WriteOutcome::Written | WriteOutcome::Stale => return StepOutcome::Continue,
            WriteOutcome::NotFound => {
                format!("could not {step}: PersistentVolume {:?} not found", meta.name)
            }
            WriteOutcome::Failed(error) => format!("could not {step}: {error}"),
        };
        self.record_failure(AttachOperation::Attach, step, retry_soon(AttachOperation::Attach, message))
    }

    async fn prepare(
        &self,
        patch: Patch,
        secret: Option<&SecretRef>,
        step_context: &mut StepContext,
    ) -> StepOutcome {
        // Read the secret first: if the driver cannot be called, our finalizer must not block the attachment's
        // deletion.
        let values = match self.secret(secret, step_context).await {
            Ok(values) => values,
            Err(error) => {
                return self.record_failure(
                    AttachOperation::Attach,
                    "secret",
                    retry_soon(AttachOperation::Attach, error.to_string()),
                );
            }
        };
        step_context.secret = secret.cloned().map(|secret| (secret, values));
        match self.write(None, patch).await {
            WriteOutcome::Failed(error) => {
                let message = format!("could not save VolumeAttachment: {error}");
                self.record_failure(
                    AttachOperation::Attach,
                    "add finalizer",
                    retry_soon(AttachOperation::Attach, message),
                )
            }
            outcome => outcome.next_step(|_| {}),
        }
    }

    async fn publish(
        &self,
        request: ControllerPublishVolumeRequest,
        secret: Option<&SecretRef>,
        step_context: &mut StepContext,
    ) -> StepOutcome {
        let method = "ControllerPublishVolume";
        let secrets = match self.secret(secret, step_context).await {
            Ok(secrets) => secrets,
            Err(error) => {
                return self.record_failure(
                    AttachOperation::Attach,
                    "secret",
                    retry_soon(AttachOperation::Attach, error.to_string()),
                );
            }
        };
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        tracing::debug!(
            volume_handle = volume,
            node,
            volume_attachment = self.name(),
            "calling ControllerPublishVolume"
        );
        let request =
            ControllerPublishVolumeRequest { secrets: secrets.clone().into_iter().collect(), ..request };
        let Attacher { context, settings, .. } = self.attacher;
        let response =
            context.driver.controller(method, settings.worker_options.timeout, |mut client| async move {
                client.controller_publish_volume(request).await
            });
        match response.await {
            Ok(response) => {
                context.attempts.record(ROLE, self.name(), method, None);
                let context = response.publish_context.into_iter().collect();
                let version = self.inputs.attachment.metadata.resource_version.clone();
                self.update_state(|state| state.record_published(Published { context, version }));
                StepOutcome::Continue
            }
            Err(status) => self.record_failure(
                AttachOperation::Attach,
                method,
                driver_error(AttachOperation::Attach, &status, &secrets),
            ),
        }
    }

    async fn unpublish(
        &self,
        request: ControllerUnpublishVolumeRequest,
        secret: Option<&SecretRef>,
        step_context: &mut StepContext,
    ) -> StepOutcome {
        let method = "ControllerUnpublishVolume";
        let secrets = match self.secret(secret, step_context).await {
            Ok(secrets) => secrets,
            Err(error) => {
                return self.record_failure(
                    AttachOperation::Detach,
                    "secret",
                    retry_soon(AttachOperation::Detach, error.to_string()),
                );
            }
        };
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        tracing::debug!(
            volume_handle = volume,
            node,
            volume_attachment = self.name(),
            "calling ControllerUnpublishVolume"
        );
        let request =
            ControllerUnpublishVolumeRequest { secrets: secrets.clone().into_iter().collect(), ..request };
        let Attacher { context, settings, .. } = self.attacher;
        let response =
            context.driver.controller(method, settings.worker_options.timeout, |mut client| async move {
                client.controller_unpublish_volume(request).await
            });
        match response.await {
            Ok(_) => {
                context.attempts.record(ROLE, self.name(), method, None);
                self.update_state(AttachState::record_unpublished);
                StepOutcome::Continue
            }
            Err(status) => self.record_failure(
                AttachOperation::Detach,
                method,
                driver_error(AttachOperation::Detach, &status, &secrets),
            ),
        }
    }

    /// sidecars.md 1.0 "Secrets": read for each call.
    async fn secret(
        &self,
        secret: Option<&SecretRef>,
        step_context: &mut StepContext,
    ) -> Result<BTreeMap<String, String>, SecretError> {
        match step_context.secret.take() {
            Some((held, values)) if Some(&held) == secret => Ok(values),
            _ => secret::read(&self.attacher.context.cluster, secret).await,
        }
    }

    async fn write(&self, subresource: Option<&str>, patch: Patch) -> WriteOutcome {
        let (cluster, meta) = (&self.attacher.context.cluster, &self.inputs.attachment.metadata);
        work::write::patch::<VolumeAttachment>(cluster, meta, subresource, patch).await
    }

    /// Maps the result of a write that is retried until it succeeds.
    fn after_write(&self, written: WriteOutcome, what: &'static str) -> StepOutcome {
        written.next_step(|error| {
            tracing::warn!(volume_attachment = self.name(), node = self.node(), %error, "{what}");
        })
    }

    fn record_failure(
        &self,
        operation: AttachOperation,
        step: &'static str,
        failed: AttemptError,
    ) -> StepOutcome {
        let Attacher { context, backoff, .. } = self.attacher;
        let error = failed.message.as_str();
        let what = match operation {
            AttachOperation::Attach => "failed to attach volume",
            AttachOperation::Detach => "failed to detach volume",
        };
        tracing::warn!(volume_attachment = self.name(), node = self.node(), step, error, "{what}");
        context.attempts.record(ROLE, self.name(), step, Some(failed.message.clone()));
        self.update_state(|state| state.record_failure(failed, *backoff, now(), monotonic()));
        StepOutcome::Continue
    }

    fn update_state(&self, change: impl FnOnce(&mut AttachState)) {
        self.attacher.states.update(self.subject, &self.inputs.attachment, change);
    }
}

fn retry_soon(operation: AttachOperation, message: String) -> AttemptError {
    AttemptError { operation, message, code: None, retry: RetryPace::Soon }
}

/// The driver's error, formatted as upstream's attacher does.
fn driver_error(
    operation: AttachOperation,
    status: &Status,
    secrets: &BTreeMap<String, String>,
) -> AttemptError {
    let message = redacted_status_text(status, secrets);
    AttemptError {
        operation,
        message,
        code: Some(status.code() as i32),
        retry: RetryPace::after(status.code()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provisioner::testing::{DRIVER, context};

    /// The store reports no change when an attachment that it could not decode is deleted.
    #[tokio::test]
    async fn volume_of_undecodable_attachment_is_checked_again() {
        let context = context(|_, path, _| {
            let attachment = json!({
                "metadata": {"name": "a", "uid": "a", "resourceVersion": "1"},
                "spec": {"attacher": DRIVER, "nodeName": [], "source": {"persistentVolumeName": "used"}},
            });
            let volume = json!({"metadata": {"name": "used", "uid": "u", "resourceVersion": "1"}});
            let list = |items| (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}));
            match path.rsplit('/').next() {
                Some("volumeattachments") => list(json!([attachment])),
                Some("persistentvolumes") => list(json!([volume])),
                Some("a") => (200, attachment),
                _ => list(json!([])),
            }
        });
        let attacher = Attacher::new(context, super::super::Settings::default());
        attacher.synced().await;
        // The second volume was deleted meanwhile.
        for (volume, uid) in [("used", "u"), ("gone", "g")] {
            attacher.states.request_check(volume, uid.to_owned());
        }
        for _ in 0..2 {
            assert_eq!(attacher.check_references().await, WorkOutcome::Retry);
            let waiting: Vec<_> = attacher.states.checks().into_iter().collect();
            assert_eq!(waiting, [("used".to_owned(), "u".to_owned())]);
        }
        attacher.states.request_check("used", "replaced".to_owned());
        assert_eq!(attacher.check_references().await, WorkOutcome::Done);
        assert!(attacher.states.checks().is_empty());
    }

    /// sidecars.md 1.2 "Errors": the message is upstream's, the code gRPC's, and secrets are redacted.
    #[test]
    fn driver_error_is_formatted_like_upstream_without_secrets() {
        let secrets = BTreeMap::from([("password".to_owned(), "hunter2".to_owned())]);
        let status = Status::resource_exhausted("hunter2 is no password of node n1");
        let failed = driver_error(AttachOperation::Attach, &status, &secrets);
        assert_eq!(
            failed,
            AttemptError {
                operation: AttachOperation::Attach,
                message: "rpc error: code = ResourceExhausted desc = *** is no password of node n1".into(),
                code: Some(8),
                retry: RetryPace::Soon,
            }
        );
    }
}
