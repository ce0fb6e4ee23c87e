//! Performs one step, with a deadline, and records the result where the next view reads it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tonic::Code;
use wharf_cluster::{ApiError, monotonic, now};
use wharf_csi::{ErrorClass, Operation, classify, is_request_error, v1};
use wharf_model::names::annotation;
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass};

use self::events::{EventRecord, EventTarget, error_text};
use super::capacity::CapacityHandle;
use super::competition::{self, CompeteOutcome};
use super::decide::{self, ProvisionStep, Unselect, attributes_class};
use super::intent::Intent;
use super::journal::Journal;
use super::metrics::ProvisionerMetrics;
use super::reclaim::{self, ReclaimOutcome, ReclaimStep};
use super::source::{Source, fetch_snapshot};
use super::stores::Inputs;
use super::view::{AttributesClass, Exhausted, Fetched, ProvisionState, ProvisionerConfig, Transition};
use super::volume::InvalidVolume;
use super::{request, source};
use crate::context::Context;
use crate::driver::redacted_status_text;
use crate::secret::{self, SecretError};
use wharf_cluster::work::StepOutcome;

pub(crate) use self::suspected::RecordedSuspects;

mod events;
mod suspected;

/// The role's name in `/debug/attempts`.
pub(crate) const ROLE: &str = "provisioner";

/// The in-process state of each volume that is being provisioned. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct ProvisionStates(Arc<Mutex<HashMap<String, ProvisionState>>>);

impl ProvisionStates {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, ProvisionState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the volume's state.
    pub(crate) fn get(&self, volume: &str) -> ProvisionState {
        self.lock().get(volume).cloned().unwrap_or_default()
    }

    fn apply(&self, volume: &str, transition: Transition) {
        let mut states = self.lock();
        let state = states.entry(volume.to_owned()).or_default();
        state.apply(transition, monotonic());
        if *state == ProvisionState::default() {
            states.remove(volume);
        }
    }

    pub(super) fn remove(&self, volume: &str) {
        self.lock().remove(volume);
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Source(#[from] source::FetchError),
    #[error(transparent)]
    Protection(#[from] super::protection::ProtectError),
    #[error(transparent)]
    Journal(#[from] super::journal::JournalError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("CreateVolume returned no volume_id, so the volume cannot be identified")]
    NoHandle,
    #[error("{problem}. Cleanup of volume {volume} failed, retrying: {reason}")]
    Cleanup { problem: InvalidVolume, volume: String, reason: String },
}

/// Performs steps.
#[derive(Clone)]
pub(crate) struct Actor {
    pub(crate) context: Context,
    pub(crate) config: Arc<ProvisionerConfig>,
    pub(crate) journal: Journal,
    pub(crate) states: ProvisionStates,
    pub(crate) metrics: ProvisionerMetrics,
    /// Notified when the capacity of a class may have changed.
    pub(crate) capacity: CapacityHandle,
    pub(crate) suspects: RecordedSuspects,
}

impl Actor {
    /// Performs a step that was decided from these inputs.
    pub(crate) async fn act(&self, volume: &str, inputs: &Inputs, step: ProvisionStep) -> StepOutcome {
        let claim = inputs.claim.as_deref();
        match step {
            ProvisionStep::Reclaim(step) => match &inputs.pv {
                Some(pv) => self.reclaim(pv, step).await,
                None => StepOutcome::Continue,
            },
            ProvisionStep::Idle(reason) => {
                tracing::debug!(pv = volume, %reason, "nothing to do");
                StepOutcome::DONE
            }
            ProvisionStep::DropState => {
                self.states.remove(volume);
                StepOutcome::DONE
            }
            ProvisionStep::Wait { reason, pause, competing } => {
                tracing::debug!(pv = volume, %reason, retry_in = ?pause, "waiting");
                if competing {
                    self.states.apply(volume, Transition::CompetitionStarted);
                }
                StepOutcome::retry_after(pause)
            }
            ProvisionStep::LeaveToPopulator => {
                if let Some(claim) = claim {
                    self.record_event(&EventTarget::for_claim(volume, claim), &EventRecord::LeftToPopulator);
                }
                StepOutcome::DONE
            }
            ProvisionStep::CreateVolume { intent, wanted } => self.create(claim, &intent, wanted).await,
            ProvisionStep::SavePv { intent, object, retain } => {
                self.save(claim, &intent, &object, retain).await
            }
            ProvisionStep::DeleteCreated { intent, handle, problem, other_pv_uid } => {
                self.delete_created(claim, &intent, handle, problem, other_pv_uid).await
            }
            ProvisionStep::DropIntent { intent, retry, suspect } => {
                self.drop_intent(claim, &intent, retry, suspect).await
            }
            ProvisionStep::FinishIntent { intent, handle_owner } => {
                let held = handle_owner.is_some();
                if let Some(handle_owner) = handle_owner {
                    tracing::warn!(
                        pv = volume,
                        handle_owner,
                        "another PersistentVolume uses the handle of the created volume; leaving it alone"
                    );
                }
                self.journal.finish(&intent.volume);
                if !held {
                    self.withdraw_suspect(&intent).await;
                }
                self.states.remove(volume);
                // The claim would get the same result again: back off.
                if held { StepOutcome::RETRY } else { StepOutcome::Continue }
            }
            // All other steps need the claim.
            step => match claim {
                Some(claim) => self.prepare(volume, claim, inputs, step).await,
                None => StepOutcome::DONE,
            },
        }
    }

    /// Performs a step that precedes or writes the intent.
    async fn prepare(
        &self,
        volume: &str,
        claim: &PersistentVolumeClaim,
        inputs: &Inputs,
        step: ProvisionStep,
    ) -> StepOutcome {
        let target = EventTarget::for_claim(volume, claim);
        let done = match step {
            ProvisionStep::CompeteForClaim => return self.compete(&target, claim, inputs).await,
            ProvisionStep::FetchSources => self.fetch(claim).await.map(Transition::Fetched),
            ProvisionStep::ProtectSource(source) => {
                self.protect(&source).await.map(|()| Transition::SourceProtected)
            }
            ProvisionStep::WriteIntent(intent) => {
                self.record_event(&target, &EventRecord::Provisioning);
                self.journal.write(*intent).await.map(|()| Transition::IntentWritten).map_err(StepError::from)
            }
            ProvisionStep::Refuse(refusal) => {
                self.record_event(&target, &EventRecord::Provisioning);
                self.states.apply(volume, Transition::AttemptEnded);
                self.record_failure(&target, "prepare", &refusal.to_string());
                return StepOutcome::RETRY;
            }
            ProvisionStep::UnselectNode(reason) => {
                if let Unselect::Topology(_) = reason {
                    self.record_event(&target, &EventRecord::Provisioning);
                    self.record_failure(&target, "prepare", &reason.to_string());
                }
                match self.unselect(claim).await {
                    // The claim is gone; the watch reports it.
                    Ok(false) => return StepOutcome::DONE,
                    Ok(true) => Ok(Transition::NodeUnselected),
                    Err(error) => Err(error),
                }
            }
            _ => return StepOutcome::DONE,
        };
        match done {
            Ok(transition) => {
                self.states.apply(volume, transition);
                StepOutcome::Continue
            }
            // The lease was lost: not an error that the claim's owner should see.
            Err(_) if !self.context.gate.is_open() => StepOutcome::retry_after(Duration::ZERO),
            Err(error) => {
                self.states.apply(volume, Transition::AttemptEnded);
                self.record_failure(&target, "prepare", &error.to_string());
                StepOutcome::RETRY
            }
        }
    }

    async fn compete(
        &self,
        target: &EventTarget<'_>,
        claim: &PersistentVolumeClaim,
        inputs: &Inputs,
    ) -> StepOutcome {
        // Only node deployment competes, and only for claims with a class.
        let (Some(node), Some(class)) = (&self.config.node, &inputs.class) else {
            return StepOutcome::DONE;
        };
        match competition::compete(&self.context, &self.config, claim, class, node).await {
            Ok(CompeteOutcome::Won) => StepOutcome::Continue,
            // The watch reports the change and wakes the claim. An immediate retry would read the same stale claim.
            Ok(CompeteOutcome::Conflict) => StepOutcome::RETRY,
            Ok(CompeteOutcome::NoCapacity) => {
                tracing::debug!(pvc = %target.claim, "not enough capacity on this node for the claim");
                StepOutcome::RETRY
            }
            Err(error) => {
                self.record_failure(target, "compete for the claim", &error.to_string());
                StepOutcome::RETRY
            }
        }
    }

    async fn fetch(&self, claim: &PersistentVolumeClaim) -> Result<Arc<Fetched>, StepError> {
        let cluster = &self.context.cluster;
        let attributes = match attributes_class(claim) {
            None => AttributesClass::None,
            Some(name) => match cluster.get::<VolumeAttributesClass>(&Key::cluster(name)).await {
                Ok(Some(class)) => AttributesClass::Found(Arc::new(class)),
                Ok(None) => AttributesClass::Missing,
                // The API server does not serve this kind: treat the claim as if it named no class.
                Err(ApiError::NotServed(_)) => AttributesClass::None,
                Err(error) => return Err(error.into()),
            },
        };
        let source::FetchedSnapshot { snapshot, content } = fetch_snapshot(cluster, claim).await?;
        Ok(Arc::new(Fetched { attributes, snapshot, content }))
    }

    async fn protect(&self, source: &Source) -> Result<(), StepError> {
        Ok(super::protection::protect(&self.context, source).await?)
    }

    /// Removes the selected node from the claim, so that the scheduler chooses again. `false`: the claim is gone.
    async fn unselect(&self, claim: &PersistentVolumeClaim) -> Result<bool, StepError> {
        let (api, key) = (&PersistentVolumeClaim::API, claim.key());
        let Some(mut raw) = self.context.cluster.get_raw(api, &key).await? else { return Ok(false) };
        if raw.pointer("/metadata/uid").and_then(Value::as_str) != Some(&claim.metadata.uid) {
            return Ok(false);
        }
        let annotations = raw.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        let node = claim.selected_node().unwrap_or_default();
        let keys = [annotation::SELECTED_NODE, annotation::ALPHA_SELECTED_NODE];
        let selects = |key: &&str, annotations: &Map<String, Value>| {
            annotations.get(*key).and_then(Value::as_str) == Some(node)
        };
        match annotations {
            Some(annotations) if keys.iter().any(|key| selects(key, annotations)) => {
                annotations.retain(|key, _| !keys.contains(&key.as_str()));
            }
            // Another node is selected already.
            _ => return Ok(true),
        }
        self.context.cluster.update(api, &key, None, &raw).await?;
        tracing::info!(pvc = %key, node, "removed selected node; the scheduler chooses another");
        Ok(true)
    }

    async fn create(
        &self,
        claim: Option<&PersistentVolumeClaim>,
        intent: &Arc<Intent>,
        wanted: bool,
    ) -> StepOutcome {
        let target = EventTarget::for_intent(intent, claim);
        let volume = intent.volume.as_str();
        let can_move = !wanted || claim.is_some_and(|claim| decide::can_reschedule(&self.config, claim));
        let transition = |class, exhausted: bool, inconclusive| {
            let class_uid = intent.class_uid.clone();
            let at = monotonic();
            let exhausted = exhausted.then_some(Exhausted { at, can_move });
            let unwanted_at = (!wanted).then_some(at);
            Transition::CreateFailed { class, exhausted, inconclusive, class_uid, unwanted_at }
        };
        let secrets = match secret::read(&self.context.cluster, decide::secret(intent).as_ref()).await {
            Ok(secrets) => secrets,
            Err(error) => {
                // An earlier call may have created the volume, and a call without the secret proves nothing: keep
                // the intent until the secret exists, or as long as without an answer. If CreateVolume was never
                // sent, the intent can be dropped. An API server that fails says nothing about driver and secret.
                let api = matches!(error, SecretError::Api(_));
                let unsent = self.states.get(volume).create_unsent;
                self.record_failure(&target, "CreateVolume", &error.to_string());
                return match (api, unsent) {
                    (true, _) => StepOutcome::RETRY,
                    (false, true) => self.create_failed(volume, transition(ErrorClass::Final, false, false)),
                    (false, false) => {
                        self.create_failed(volume, transition(ErrorClass::StillRunning, false, true))
                    }
                };
            }
        };
        self.states.apply(volume, Transition::CreateSent);
        let sent_secrets = secrets.clone();
        tracing::debug!(pv = volume, pvc = %target.claim, "calling CreateVolume");
        let request = request::create_volume_request(intent, secrets);
        let response = self
            .context
            .driver
            .controller(
                "CreateVolume",
                self.config.settings.worker_options.timeout,
                |mut driver| async move { driver.create_volume(request).await },
            )
            .await;
        match response {
            Ok(response) => match request::created_volume(response) {
                Some(created) => {
                    tracing::info!(pv = volume, pvc = %target.claim, volume_handle = created.handle, "created volume");
                    self.states.apply(volume, Transition::Created(Arc::new(created)));
                    StepOutcome::Continue
                }
                None => {
                    // Something was created, but what is not known yet.
                    self.record_failure(&target, "CreateVolume", &StepError::NoHandle.to_string());
                    self.create_failed(volume, transition(ErrorClass::StillRunning, false, true))
                }
            },
            Err(status) => {
                let class = classify(Operation::Create, status.code());
                self.record_failure(&target, "CreateVolume", &error_text(&status, class, &sent_secrets));
                let (exhausted, inconclusive) =
                    (status.code() == Code::ResourceExhausted, !is_request_error(status.code()));
                self.create_failed(volume, transition(class, exhausted, inconclusive))
            }
        }
    }

    /// Without a final response the call is repeated after a backoff.
    fn create_failed(&self, volume: &str, failed: Transition) -> StepOutcome {
        self.states.apply(volume, failed);
        match self.states.get(volume).outcome {
            None => StepOutcome::RETRY,
            Some(_) => StepOutcome::Continue,
        }
    }

    async fn save(
        &self,
        claim: Option<&PersistentVolumeClaim>,
        intent: &Arc<Intent>,
        object: &Value,
        retain: bool,
    ) -> StepOutcome {
        let target = EventTarget::for_intent(intent, claim);
        let volume = intent.volume.as_str();
        match self.context.cluster.create(&PersistentVolume::API, None, object).await {
            Ok(_) => {
                tracing::info!(pv = volume, pvc = %target.claim, "created PersistentVolume");
                if retain {
                    tracing::warn!(
                        pv = volume,
                        pvc = %target.claim,
                        "set reclaim policy Retain: the claim is gone and its intent is old; if the data is not \
                        needed, delete the PersistentVolume and its volume"
                    );
                }
                let took = Duration::from_millis(u64::try_from(now().0 - intent.written).unwrap_or(0));
                self.metrics.provisioned(&target.class, target.source, took);
                self.context.attempts.record(
                    ROLE,
                    &target.claim.to_string(),
                    "create PersistentVolume",
                    None,
                );
                self.record_event(&target, &EventRecord::Provisioned);
                StepOutcome::Continue
            }
            // It may be ours or not: the next view compares them.
            Err(ApiError::AlreadyExists(_)) => {
                match self.context.cluster.get::<PersistentVolume>(&Key::cluster(volume)).await {
                    Ok(_) => StepOutcome::Continue,
                    Err(error) => self.save_failed(&target, &error),
                }
            }
            // A retry would be rejected, too: no PersistentVolume can represent the created volume.
            Err(error @ ApiError::Invalid(_)) => {
                self.states.apply(volume, Transition::SaveRejected(error.to_string()));
                StepOutcome::Continue
            }
            Err(error) => self.save_failed(&target, &error),
        }
    }

    /// The driver's response and the intent are kept: only creating the PersistentVolume is retried.
    fn save_failed(&self, target: &EventTarget<'_>, error: &ApiError) -> StepOutcome {
        tracing::warn!(pv = target.volume, pvc = %target.claim, %error, "failed to create PersistentVolume");
        self.context.attempts.record(
            ROLE,
            &target.claim.to_string(),
            "create PersistentVolume",
            Some(error.to_string()),
        );
        StepOutcome::RETRY
    }

    async fn delete_created(
        &self,
        claim: Option<&PersistentVolumeClaim>,
        intent: &Arc<Intent>,
        handle: String,
        problem: InvalidVolume,
        other_pv_uid: Option<String>,
    ) -> StepOutcome {
        let target = EventTarget::for_intent(intent, claim);
        let volume = intent.volume.as_str();
        // A missing object in the cache does not prove that there is none, so read from the server: a volume that a
        // PersistentVolume refers to must stay.
        match self.context.cluster.get::<PersistentVolume>(&Key::cluster(volume)).await {
            Ok(Some(pv)) if Some(&pv.metadata.uid) != other_pv_uid.as_ref() => return StepOutcome::Continue,
            Ok(_) => {}
            Err(error) => return self.cleanup_failed(&target, problem, error.to_string()),
        }
        let secrets = match reclaim::secrets(&self.context, volume, decide::secret(intent).as_ref()).await {
            Ok(secrets) => secrets,
            Err(error) => return self.cleanup_failed(&target, problem, error.to_string()),
        };
        let sent_secrets = secrets.clone();
        let request = v1::DeleteVolumeRequest { volume_id: handle.clone(), secrets };
        let response = self
            .context
            .driver
            .controller(
                "DeleteVolume",
                self.config.settings.worker_options.timeout,
                |mut driver| async move { driver.delete_volume(request).await },
            )
            .await;
        match response {
            Ok(_) => {
                tracing::info!(pv = volume, volume_handle = handle, %problem, "deleted invalid volume");
                self.record_failure(&target, "CreateVolume", &problem.to_string());
                self.states.apply(volume, Transition::CleanedUp);
                StepOutcome::Continue
            }
            Err(status) => {
                self.cleanup_failed(&target, problem, redacted_status_text(&status, &sent_secrets))
            }
        }
    }

    fn cleanup_failed(
        &self,
        target: &EventTarget<'_>,
        problem: InvalidVolume,
        reason: String,
    ) -> StepOutcome {
        let error = StepError::Cleanup { problem, volume: target.volume.to_owned(), reason };
        self.record_failure(target, "DeleteVolume", &error.to_string());
        StepOutcome::RETRY
    }

    async fn reclaim(&self, pv: &PersistentVolume, step: ReclaimStep) -> StepOutcome {
        let (volume, class) = (pv.metadata.name.as_str(), pv.spec.storage_class_name.as_str());
        match reclaim::act(&self.context, self.config.settings.worker_options.timeout, pv, step).await {
            ReclaimOutcome::Next(outcome) => outcome,
            ReclaimOutcome::Deleted(took) => {
                self.metrics.deleted(class, took);
                self.states.apply(volume, Transition::VolumeDeleted { uid: pv.metadata.uid.clone() });
                StepOutcome::Continue
            }
            ReclaimOutcome::Failed => {
                self.metrics.delete_failed(class);
                StepOutcome::RETRY
            }
        }
    }

    /// Records a failed attempt in the log, metrics, attempts and events.
    fn record_failure(&self, target: &EventTarget<'_>, step: &'static str, error: &str) {
        tracing::warn!(pv = target.volume, pvc = %target.claim, step, error, "failed to provision volume");
        self.metrics.provision_failed(&target.class, target.source);
        self.context.attempts.record(ROLE, &target.claim.to_string(), step, Some(error.to_owned()));
        self.record_event(target, &EventRecord::Failed(error));
        // The capacity may be exhausted.
        self.capacity.refresh_class(&target.class);
    }

    fn record_event(&self, target: &EventTarget<'_>, event: &EventRecord<'_>) {
        if target.claim_exists {
            self.context.events.record(target.event(event));
        }
    }
}

#[cfg(test)]
mod tests;
