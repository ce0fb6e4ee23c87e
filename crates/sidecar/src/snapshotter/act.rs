//! Executes one decided step and stores its result where the next view reads it: in the stores, through the API
//! server's responses, and in the content state.

use std::collections::BTreeMap;

use tonic::Code;
use wharf_cluster::{EventType, monotonic, now};
use wharf_model::patch::Patch;
use wharf_model::{Key, SecretRef, VolumeGroupSnapshotContent, VolumeSnapshotContent};

use super::decide::Step;
use super::patches::{event_reason, full_message};
use super::request::{Call, CallRequest, DeleteCall, Refusal};
use super::state::{Action, ContentState, FailedAttempt, Failure};
use super::view::{ContentKind, Object, Source};
use super::{ContentKey, ROLE, Snapshotter};
use crate::secret::{self, SecretError};
use crate::suspects::{self, Suspect};
use wharf_cluster::work::{self, StepOutcome, WriteOutcome};

/// Data carried from one step to the next during one reconcile, then dropped.
#[derive(Default)]
pub(super) struct ReconcilePass {
    /// Read before the content is marked, to know that the driver can be called, and reused for that call.
    secrets: Option<(Option<SecretRef>, Secrets)>,
    /// The API server returned the content or accepted a write to it.
    pub(super) confirmed: bool,
}

/// The values of a call's secret.
#[derive(Clone, Default)]
struct Secrets {
    values: BTreeMap<String, String>,
    /// The secret does not exist and the call is made without it.
    missing: bool,
}

/// Executes the steps for one content.
pub(super) struct StepRunner<'a> {
    pub(super) snapshotter: &'a Snapshotter,
    pub(super) content_key: &'a ContentKey,
    pub(super) object: &'a Object,
}

impl StepRunner<'_> {
    fn name(&self) -> &str {
        &self.object.meta().name
    }

    /// Executes a step.
    pub(super) async fn act(&self, step: Step, pass: &mut ReconcilePass) -> StepOutcome {
        match step {
            Step::Idle => StepOutcome::DONE,
            Step::Wait(pause) => StepOutcome::retry_after(pause),
            Step::LocateSnapshot { request } => self.locate(request, pass).await,
            Step::ClaimForNode { patch } => {
                self.write_or_retry(None, patch, pass, "failed to label content with this node").await
            }
            Step::MarkBeingCreated { patch, request } => self.mark(patch, request, pass).await,
            Step::ReadContent => self.read_content(pass).await,
            Step::CallDriver { action, request } => self.call_driver(action, request, pass).await,
            Step::WriteStatus { patch } => {
                let next =
                    self.write_or_retry(Some("status"), patch, pass, "failed to update content status").await;
                if next == StepOutcome::Continue {
                    // If the content had changed, the driver is called again.
                    self.update_state(ContentState::info_written);
                }
                next
            }
            Step::UnmarkBeingCreated { patch } => {
                self.write_or_retry(None, patch, pass, "failed to remove being-created annotation").await
            }
            Step::Abandon { patch, suspect } => self.abandon(patch, &suspect, pass).await,
            Step::DeleteSnapshot { request } => self.delete(request, pass).await,
            Step::ClearStatus { patch } => {
                self.write_or_retry(Some("status"), patch, pass, "failed to clear content status").await
            }
            Step::RemoveFinalizer { patch } => {
                let next = self.write_or_retry(None, patch, pass, "failed to remove finalizer").await;
                tracing::debug!(snapshot_content = self.name(), "released content");
                next
            }
            Step::Refuse { action, refusal } => self.refuse(action, &refusal),
            Step::ReportFailure { patch } => self.report(patch, pass).await,
        }
    }

    /// Marks the content, provided that the secret for the call exists: a call that cannot be made now must not
    /// delay the content's deletion.
    async fn mark(&self, patch: Patch, request: CallRequest<Call>, pass: &mut ReconcilePass) -> StepOutcome {
        let secrets = match self.secrets(&request, pass).await {
            Ok(secrets) => secrets,
            Err(error) => return self.secret_failed(Action::Create, &error),
        };
        pass.secrets = Some((request.secret, secrets));
        let written = self.write(None, patch, pass).await;
        if written == WriteOutcome::Written {
            self.update_state(|state| (state.exclusive, state.held) = (true, true));
        }
        self.next_after_write(written, "failed to set being-created annotation")
    }

    /// Asks the driver for a snapshot that may be on another node. That it is not found is not a failure.
    async fn locate(&self, request: CallRequest<Call>, pass: &mut ReconcilePass) -> StepOutcome {
        let Snapshotter { context, settings, .. } = self.snapshotter;
        let secrets = match self.secrets(&request, pass).await {
            Ok(secrets) => secrets,
            Err(error) => {
                tracing::warn!(snapshot_content = self.name(), %error, "failed to read secret for snapshot");
                return StepOutcome::RETRY;
            }
        };
        let timeout = settings.worker_options.timeout;
        match request.call.send(&context.driver, timeout, &secrets.values).await {
            Ok(_) => self.update_state(|state| state.found = true),
            // A driver may refuse a handle of another node as malformed.
            Err(error) if matches!(error.code, None | Some(Code::NotFound | Code::InvalidArgument)) => {
                self.update_state(|state| state.not_found = Some(monotonic()));
            }
            Err(error) => {
                tracing::warn!(
                    snapshot_content = self.name(),
                    error = error.message,
                    "failed to find out whether the driver of this node knows the snapshot"
                );
                return StepOutcome::RETRY;
            }
        }
        StepOutcome::Continue
    }

    async fn read_content(&self, pass: &mut ReconcilePass) -> StepOutcome {
        let (cluster, key) = (&self.snapshotter.context.cluster, Key::cluster(self.name()));
        // The store takes over what is read.
        let exists = match self.object.kind() {
            ContentKind::Snapshot => {
                cluster.get::<VolumeSnapshotContent>(&key).await.map(|read| read.is_some())
            }
            ContentKind::Group => {
                cluster.get::<VolumeGroupSnapshotContent>(&key).await.map(|read| read.is_some())
            }
        };
        match exists {
            Ok(true) => {
                pass.confirmed = true;
                self.update_state(|state| state.held = true);
                StepOutcome::Continue
            }
            // The watch will report the deletion.
            Ok(false) => StepOutcome::DONE,
            Err(error) => {
                tracing::warn!(snapshot_content = self.name(), %error, "failed to get content");
                StepOutcome::RETRY
            }
        }
    }

    /// Records what may exist, then lets the deletion go on.
    async fn abandon(&self, patch: Patch, suspect: &Suspect, pass: &mut ReconcilePass) -> StepOutcome {
        let Snapshotter { context, states, .. } = self.snapshotter;
        if !states.get(self.content_key, &self.object.meta().uid).suspected {
            let recorded = match suspects::record(context, suspect).await {
                Ok(recorded) => recorded,
                Err(error) => {
                    tracing::warn!(snapshot_content = self.name(), %error, "failed to record suspected orphan");
                    return StepOutcome::RETRY;
                }
            };
            self.update_state(|state| state.suspected = true);
            if recorded.is_news() {
                self.warn(suspects::EVENT_REASON, suspect.note(context.driver.name()));
            }
        }
        self.write_or_retry(None, patch, pass, "failed to remove being-created annotation").await
    }

    async fn call_driver(
        &self,
        action: Action,
        request: CallRequest<Call>,
        pass: &mut ReconcilePass,
    ) -> StepOutcome {
        let secrets = match self.secrets(&request, pass).await {
            Ok(secrets) => secrets,
            Err(error) => return self.secret_failed(action, &error),
        };
        let Snapshotter { context, settings, .. } = self.snapshotter;
        let (method, complete) = (request.call.method(), request.complete && !secrets.missing);
        let is_create = matches!(request.call, Call::Create(_) | Call::CreateGroup(_));
        match request.call.send(&context.driver, settings.worker_options.timeout, &secrets.values).await {
            Ok(info) => {
                let (handle, ready) = (&info.handle, info.ready);
                tracing::debug!(
                    snapshot_content = self.name(),
                    snapshot_handle = handle,
                    ready,
                    method,
                    "driver responded"
                );
                context.attempts.record(ROLE, self.name(), method, None);
                self.update_state(|state| state.record_info(info, monotonic()));
                StepOutcome::Continue
            }
            Err(error) => {
                let mut message = self.error_message(is_create, &error.message);
                if !complete {
                    message.push_str(
                        " (called without the class or secret that the content names: create the missing object)",
                    );
                }
                // The driver may have rejected an incomplete call for what it lacks.
                let conclusive = is_create && (complete || error.code == Some(Code::NotFound));
                let called_at_version = conclusive.then(|| self.object.meta().resource_version.clone());
                let code = error.code;
                self.record_failure(
                    method,
                    FailedAttempt { called_at_version, ..self.failed(action, message, code) },
                )
            }
        }
    }

    /// The error message, as upstream words it.
    fn error_message(&self, is_create: bool, message: &str) -> String {
        let content = self.name();
        let volumes = match self.object.source() {
            Source::Volumes(volumes) => volumes.join(" "),
            Source::Existing { .. } | Source::GroupMember | Source::Unspecified => String::new(),
        };
        let what = match (is_create, self.object.kind()) {
            (true, ContentKind::Snapshot) => format!("failed to take snapshot of the volume {volumes}"),
            (true, ContentKind::Group) => format!("failed to take group snapshot of the volumes [{volumes}]"),
            (false, ContentKind::Snapshot) => format!("failed to list snapshot for content {content}"),
            (false, ContentKind::Group) => {
                format!("failed to list group snapshot for group snapshot content {content}")
            }
        };
        format!("{what}: {message:?}")
    }

    async fn delete(&self, request: CallRequest<DeleteCall>, pass: &mut ReconcilePass) -> StepOutcome {
        let secrets = match self.secrets(&request, pass).await {
            Ok(secrets) => secrets,
            Err(error) => return self.secret_failed(Action::Delete, &error),
        };
        let Snapshotter { context, settings, .. } = self.snapshotter;
        let method = request.call.method();
        match request.call.send(&context.driver, settings.worker_options.timeout, &secrets.values).await {
            Ok(()) => {
                context.attempts.record(ROLE, self.name(), method, None);
                self.update_state(ContentState::record_deletion);
                StepOutcome::Continue
            }
            Err(error) => self.record_failure(method, self.failed(Action::Delete, error.message, error.code)),
        }
    }

    /// sidecars.md 1.0 "Secrets": read for each call.
    async fn secrets<C>(
        &self,
        request: &CallRequest<C>,
        pass: &mut ReconcilePass,
    ) -> Result<Secrets, SecretError> {
        if let Some((held, secrets)) = pass.secrets.take()
            && held == request.secret
        {
            return Ok(secrets);
        }
        match secret::read(&self.snapshotter.context.cluster, request.secret.as_ref()).await {
            Ok(values) => Ok(Secrets { values, missing: false }),
            Err(SecretError::Missing(key)) if request.secret_optional => {
                tracing::warn!(
                    snapshot_content = self.name(),
                    secret = %key,
                    "secret not found; calling the driver without it"
                );
                Ok(Secrets { missing: true, ..Secrets::default() })
            }
            Err(error) => Err(error),
        }
    }

    fn secret_failed(&self, action: Action, error: &SecretError) -> StepOutcome {
        let (noun, content) = (self.object.constants().noun, self.name());
        let api_failed = matches!(error, SecretError::Api(_));
        let message = format!("cannot get credentials for {noun} content {content:?}: {error}");
        let message = match action {
            Action::Create => {
                format!("failed to get input parameters to create {noun} for content {content}: {message:?}")
            }
            Action::Check | Action::Delete => message,
        };
        self.record_failure(
            "secret",
            FailedAttempt { retry_soon: true, api_failed, ..self.failed(action, message, None) },
        )
    }

    fn refuse(&self, action: Action, refusal: &Refusal) -> StepOutcome {
        self.record_failure("check", self.failed(action, refusal.to_string(), None))
    }

    fn failed(&self, action: Action, message: String, code: Option<Code>) -> FailedAttempt {
        let unwanted = self.object.is_being_deleted() && self.object.is_being_created();
        let unwanted_at = (unwanted && action != Action::Delete).then(monotonic);
        FailedAttempt {
            action,
            message,
            code,
            retry_soon: false,
            called_at_version: None,
            unwanted_at,
            api_failed: false,
        }
    }

    fn record_failure(&self, step: &'static str, failed: FailedAttempt) -> StepOutcome {
        let Snapshotter { context, backoff, .. } = self.snapshotter;
        let (error, action) = (failed.message.clone(), failed.action);
        let what = self.object.constants().failed(action).1;
        tracing::warn!(snapshot_content = self.name(), step, error, "{what}");
        context.attempts.record(ROLE, self.name(), step, Some(error));
        self.update_state(|state| state.record_failure(failed, *backoff, now(), monotonic()));
        if action == Action::Delete {
            // Failed deletions are reported only by events.
            self.event();
        }
        StepOutcome::Continue
    }

    /// Records an event for the stored failure.
    fn event(&self) {
        let states = &self.snapshotter.states;
        let Some(failure) = states.get(self.content_key, &self.object.meta().uid).failure else { return };
        self.warn(event_reason(self.object, &failure), full_message(self.object, &failure));
    }

    fn warn(&self, reason: &str, note: String) {
        let context = &self.snapshotter.context;
        match self.object {
            Object::Snapshot(content) => context.record_event(&**content, EventType::Warning, reason, note),
            Object::Group(content) => context.record_event(&**content, EventType::Warning, reason, note),
        }
    }

    async fn report(&self, patch: Option<Patch>, pass: &mut ReconcilePass) -> StepOutcome {
        let reported = |failure: &mut Failure| failure.reported = true;
        let Some(patch) = patch else {
            // The status and an event have already reported this failure.
            self.update_state(|state| state.failure.iter_mut().for_each(reported));
            return StepOutcome::Continue;
        };
        match self.write(Some("status"), patch, pass).await {
            WriteOutcome::Stale => return StepOutcome::Continue,
            WriteOutcome::Written | WriteOutcome::NotFound => {}
            // Not retried: the next attempt reports again.
            WriteOutcome::Failed(error) => {
                tracing::warn!(snapshot_content = self.name(), %error, "failed to report failure in content status")
            }
        }
        self.event();
        self.update_state(|state| state.failure.iter_mut().for_each(reported));
        StepOutcome::Continue
    }

    /// Writes, and requeues the content if the write fails.
    async fn write_or_retry(
        &self,
        subresource: Option<&str>,
        patch: Patch,
        pass: &mut ReconcilePass,
        what: &'static str,
    ) -> StepOutcome {
        let written = self.write(subresource, patch, pass).await;
        self.next_after_write(written, what)
    }

    fn next_after_write(&self, written: WriteOutcome, what: &'static str) -> StepOutcome {
        written.next_step(|error| {
            tracing::warn!(snapshot_content = self.name(), %error, "{what}");
            self.snapshotter.context.attempts.record(ROLE, self.name(), what, Some(error.to_string()));
        })
    }

    async fn write(&self, subresource: Option<&str>, patch: Patch, pass: &mut ReconcilePass) -> WriteOutcome {
        let (cluster, meta) = (&self.snapshotter.context.cluster, self.object.meta());
        let outcome = match self.object.kind() {
            ContentKind::Snapshot => {
                work::write::patch::<VolumeSnapshotContent>(cluster, meta, subresource, patch).await
            }
            ContentKind::Group => {
                work::write::patch::<VolumeGroupSnapshotContent>(cluster, meta, subresource, patch).await
            }
        };
        pass.confirmed |= matches!(outcome, WriteOutcome::Written | WriteOutcome::Stale);
        outcome
    }

    fn update_state(&self, change: impl FnOnce(&mut ContentState)) {
        self.snapshotter.states.update(self.content_key, &self.object.meta().uid, change);
    }
}

#[cfg(test)]
mod tests;
