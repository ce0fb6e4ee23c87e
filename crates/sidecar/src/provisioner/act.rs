//! Does the one step it is given, with a deadline, and notes what came of it where the next view sees it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tonic::Code;
use wharf_cluster::{ApiError, now};
use wharf_csi::{ErrorClass, Operation, classify, speaks_of_the_request, v1};
use wharf_model::names::annotation;
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass};

use self::tell::{Told, Whom, refusal};
use super::capacity::CapacityHandle;
use super::claiming::{self, BidOutcome};
use super::decide::{self, Step, Unselect, attributes_class};
use super::intent::Intent;
use super::journal::Journal;
use super::metrics::Counts;
use super::reclaim::{self, Acted, ReclaimStep};
use super::source::{Source, gather};
use super::view::{Attributes, Happened, Looked, Memory, Own};
use super::volume::Flaw;
use super::world::Seen;
use super::{request, source};
use crate::context::Context;
use crate::driver::described;
use crate::secret::{self, SecretError};
use wharf_cluster::work::Outcome;

mod tell;

/// Whose attempts they are.
pub(crate) const ROLE: &str = "provisioner";

/// What is remembered of each volume under way; clones share it.
#[derive(Clone, Default)]
pub(crate) struct Memories(Arc<Mutex<HashMap<String, Memory>>>);

impl Memories {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of a volume.
    pub(crate) fn get(&self, volume: &str) -> Memory {
        self.lock().get(volume).cloned().unwrap_or_default()
    }

    fn note(&self, volume: &str, happened: Happened) {
        let mut memories = self.lock();
        let memory = memories.entry(volume.to_owned()).or_default();
        memory.after(happened, now());
        if *memory == Memory::default() {
            memories.remove(volume);
        }
    }

    fn forget(&self, volume: &str) {
        self.lock().remove(volume);
    }
}

/// How it goes on after a step.
pub(crate) enum Progress {
    /// With a fresh view.
    Again,
    /// Not now.
    End(Outcome),
}

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Source(#[from] source::GatherError),
    #[error(transparent)]
    Protection(#[from] super::protection::ProtectError),
    #[error(transparent)]
    Journal(#[from] super::journal::JournalError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("the driver answered CreateVolume without a volume id, so the volume cannot be found again")]
    NoHandle,
    #[error("{flaw}. Cleanup of volume {volume} failed, it is tried again: {reason}")]
    Cleanup { flaw: Flaw, volume: String, reason: String },
}

/// Does steps.
#[derive(Clone)]
pub(crate) struct Actor {
    pub(crate) context: Context,
    pub(crate) own: Arc<Own>,
    pub(crate) journal: Journal,
    pub(crate) memories: Memories,
    pub(crate) counts: Counts,
    /// Who wants to know that there may be less room than before.
    pub(crate) capacity: CapacityHandle,
}

impl Actor {
    /// Does a step of a volume, for which it was decided from what was seen.
    pub(crate) async fn act(&self, volume: &str, seen: &Seen, step: Step) -> Progress {
        let claim = seen.claim.as_deref();
        match step {
            Step::Reclaim(step) => match &seen.present {
                Some(present) => self.reclaim(present, step).await,
                None => Progress::Again,
            },
            Step::Rest(reason) => {
                tracing::debug!(volume, %reason, "nothing to do");
                Progress::End(Outcome::Done)
            }
            Step::Forget => {
                self.memories.forget(volume);
                Progress::End(Outcome::Done)
            }
            Step::Wait { reason, pause, competing } => {
                tracing::debug!(volume, %reason, ?pause, "waiting");
                if competing {
                    self.memories.note(volume, Happened::Competing);
                }
                Progress::End(Outcome::After(pause))
            }
            Step::LeaveToPopulator => {
                if let Some(claim) = claim {
                    self.tell(&Whom::waits(volume, claim), &Told::Left);
                }
                Progress::End(Outcome::Done)
            }
            Step::Create(intent) => self.create(claim, &intent).await,
            Step::Save { intent, object, kept } => self.save(claim, &intent, &object, kept).await,
            Step::Undo { intent, handle, flaw, beside } => {
                self.undo(claim, &intent, handle, flaw, beside).await
            }
            Step::GiveUp { intent, retry } => {
                self.journal.finish(&intent.volume);
                self.memories.note(volume, Happened::GaveUp);
                tracing::debug!(volume, "there is no volume, the intent is forgotten");
                if retry { Progress::End(Outcome::Retry) } else { Progress::Again }
            }
            Step::Settle { intent, held_by } => {
                let held = held_by.is_some();
                if let Some(holder) = held_by {
                    tracing::warn!(
                        volume,
                        holder,
                        "another PersistentVolume stands for what the driver made for this one: it is left alone"
                    );
                }
                self.journal.finish(&intent.volume);
                self.memories.forget(volume);
                // The claim would get the same answer again, and again.
                if held { Progress::End(Outcome::Retry) } else { Progress::Again }
            }
            // The rest is for a claim that is there.
            step => match claim {
                Some(claim) => self.begin(volume, claim, seen, step).await,
                None => Progress::End(Outcome::Done),
            },
        }
    }

    /// The steps until the intent is written.
    async fn begin(&self, volume: &str, claim: &PersistentVolumeClaim, seen: &Seen, step: Step) -> Progress {
        let whom = Whom::waits(volume, claim);
        let done = match step {
            Step::Bid => return self.bid(&whom, claim, seen).await,
            Step::Look => self.look(claim).await.map(Happened::Looked),
            Step::Protect(source) => self.protect(&source).await.map(|()| Happened::Protected),
            Step::Write(intent) => {
                self.tell(&whom, &Told::Beginning);
                self.journal.write(*intent).await.map(|()| Happened::Wrote).map_err(StepError::from)
            }
            Step::Refuse(refusal) => {
                self.tell(&whom, &Told::Beginning);
                self.memories.note(volume, Happened::Stopped);
                self.failed(&whom, "prepare", &refusal.to_string());
                return Progress::End(Outcome::Retry);
            }
            Step::Unselect(why) => {
                if let Unselect::Topology(_) = why {
                    self.tell(&whom, &Told::Beginning);
                    self.failed(&whom, "prepare", &why.to_string());
                }
                match self.unselect(claim).await {
                    // The watch will tell.
                    Ok(false) => return Progress::End(Outcome::Done),
                    Ok(true) => Ok(Happened::Unselected),
                    Err(error) => Err(error),
                }
            }
            _ => return Progress::End(Outcome::Done),
        };
        match done {
            Ok(happened) => {
                self.memories.note(volume, happened);
                Progress::Again
            }
            // The lease was lost meanwhile: nothing that a claim's owner should read.
            Err(_) if !self.context.gate.is_open() => Progress::End(Outcome::After(Duration::ZERO)),
            Err(error) => {
                self.memories.note(volume, Happened::Stopped);
                self.failed(&whom, "prepare", &error.to_string());
                Progress::End(Outcome::Retry)
            }
        }
    }

    async fn bid(&self, whom: &Whom<'_>, claim: &PersistentVolumeClaim, seen: &Seen) -> Progress {
        // Nobody bids without a node, or for a claim without a class.
        let (Some(node), Some(class)) = (&self.own.node, &seen.class) else {
            return Progress::End(Outcome::Done);
        };
        let timeout = self.own.settings.pace.timeout;
        match claiming::bid(&self.context, timeout, claim, class, node).await {
            Ok(BidOutcome::Won) => Progress::Again,
            // The watch tells how, and wakes us. Until it does we would ask the same again and again.
            Ok(BidOutcome::Changed) => Progress::End(Outcome::Retry),
            Ok(BidOutcome::NoRoom) => {
                tracing::debug!(claim = %whom.claim, "no room for the claim on this node");
                Progress::End(Outcome::Retry)
            }
            Err(error) => {
                self.failed(whom, "compete for the claim", &error.to_string());
                Progress::End(Outcome::Retry)
            }
        }
    }

    async fn look(&self, claim: &PersistentVolumeClaim) -> Result<Arc<Looked>, StepError> {
        let cluster = &self.context.cluster;
        let attributes = match attributes_class(claim) {
            None => Attributes::None,
            Some(name) => match cluster.get::<VolumeAttributesClass>(&Key::cluster(name)).await {
                Ok(Some(class)) => Attributes::Found(Arc::new(class)),
                Ok(None) => Attributes::Missing,
                // An API server from before this kind: it is as if the claim named none.
                Err(ApiError::NotServed(_)) => Attributes::None,
                Err(error) => return Err(error.into()),
            },
        };
        let source::Gathered { snapshot, content } = gather(cluster, claim).await?;
        Ok(Arc::new(Looked { attributes, snapshot, content }))
    }

    async fn protect(&self, source: &Source) -> Result<(), StepError> {
        Ok(super::protection::protect(&self.context, source).await?)
    }

    /// Takes the chosen node off the claim, so that the scheduler chooses again; `false` if the claim is gone.
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
            // Somebody has chosen another one meanwhile, which is what we want.
            _ => return Ok(true),
        }
        self.context.cluster.update(api, &key, None, &raw).await?;
        tracing::info!(claim = %key, node, "the scheduler is to choose another node");
        Ok(true)
    }

    async fn create(&self, claim: Option<&PersistentVolumeClaim>, intent: &Arc<Intent>) -> Progress {
        let whom = Whom::intended(intent, claim);
        let volume = intent.volume.as_str();
        let happened = |class, exhausted, vague| {
            let class_uid = intent.class_uid.clone();
            Happened::Failed { class, exhausted, vague, class_uid }
        };
        let secrets = match secret::read(&self.context.cluster, decide::secret(intent).as_ref()).await {
            Ok(secrets) => secrets,
            Err(error) => {
                // An earlier call may have made the volume, and a call without the secret proves nothing: the
                // intent stays until there is one. Unless there was no call.
                let api = matches!(error, SecretError::Api(_));
                let never = self.memories.get(volume).uncalled && !api;
                self.failed(&whom, "CreateVolume", &error.to_string());
                if never {
                    self.memories.note(volume, happened(ErrorClass::Final, false, false));
                    return Progress::Again;
                }
                return Progress::End(Outcome::Retry);
            }
        };
        self.memories.note(volume, Happened::Calling);
        let given = secrets.clone();
        tracing::debug!(volume, claim = %whom.claim, "asking the driver for the volume");
        let request = request::create(intent, secrets);
        let answer = self
            .context
            .driver
            .controller("CreateVolume", self.own.settings.pace.timeout, |mut driver| async move {
                driver.create_volume(request).await
            })
            .await;
        match answer {
            Ok(answer) => match request::made(answer) {
                Some(made) => {
                    tracing::info!(volume, claim = %whom.claim, handle = made.handle, "the driver has made the volume");
                    self.memories.note(volume, Happened::Made(Arc::new(made)));
                    Progress::Again
                }
                None => {
                    self.failed(&whom, "CreateVolume", &StepError::NoHandle.to_string());
                    Progress::End(Outcome::Retry)
                }
            },
            Err(status) => {
                let class = classify(Operation::Create, status.code());
                self.failed(&whom, "CreateVolume", &refusal(&status, class, &given));
                let (exhausted, vague) =
                    (status.code() == Code::ResourceExhausted, !speaks_of_the_request(status.code()));
                self.memories.note(volume, happened(class, exhausted, vague));
                // Without an answer that counts it is asked again, and not at once.
                match self.memories.get(volume).answer {
                    None => Progress::End(Outcome::Retry),
                    Some(_) => Progress::Again,
                }
            }
        }
    }

    async fn save(
        &self,
        claim: Option<&PersistentVolumeClaim>,
        intent: &Arc<Intent>,
        object: &Value,
        kept: bool,
    ) -> Progress {
        let whom = Whom::intended(intent, claim);
        let volume = intent.volume.as_str();
        match self.context.cluster.create(&PersistentVolume::API, None, object).await {
            Ok(_) => {
                tracing::info!(volume, claim = %whom.claim, "the volume is written");
                if kept {
                    tracing::warn!(
                        volume,
                        claim = %whom.claim,
                        "the claim is gone and the intent is old: the volume is kept (Retain) for somebody to \
                         look at; delete the PersistentVolume and the volume behind it if it is of no use"
                    );
                }
                let took = Duration::from_millis(u64::try_from(now().0 - intent.written).unwrap_or(0));
                self.counts.made(&whom.class, whom.source, took);
                self.context.attempts.note(ROLE, &whom.claim.to_string(), "write the volume", None);
                self.tell(&whom, &Told::Made);
                Progress::Again
            }
            // Perhaps ours, perhaps not: the next view compares.
            Err(ApiError::AlreadyExists(_)) => {
                match self.context.cluster.get::<PersistentVolume>(&Key::cluster(volume)).await {
                    Ok(_) => Progress::Again,
                    Err(error) => self.not_saved(&whom, &error),
                }
            }
            // It will be refused the next time too: nothing can stand for what was made.
            Err(error @ ApiError::Invalid(_)) => {
                self.memories.note(volume, Happened::Unsaved(error.to_string()));
                Progress::Again
            }
            Err(error) => self.not_saved(&whom, &error),
        }
    }

    /// The driver's answer is remembered, and the intent stays: only writing is tried again.
    fn not_saved(&self, whom: &Whom<'_>, error: &ApiError) -> Progress {
        tracing::warn!(volume = whom.volume, claim = %whom.claim, %error, "the volume could not be written");
        self.context.attempts.note(
            ROLE,
            &whom.claim.to_string(),
            "write the volume",
            Some(error.to_string()),
        );
        Progress::End(Outcome::Retry)
    }

    async fn undo(
        &self,
        claim: Option<&PersistentVolumeClaim>,
        intent: &Arc<Intent>,
        handle: String,
        flaw: Flaw,
        beside: Option<String>,
    ) -> Progress {
        let whom = Whom::intended(intent, claim);
        let volume = intent.volume.as_str();
        // A cache that shows no volume is no proof that there is none; what stands for the handle stays.
        match self.context.cluster.get::<PersistentVolume>(&Key::cluster(volume)).await {
            Ok(Some(present)) if Some(&present.metadata.uid) != beside.as_ref() => return Progress::Again,
            Ok(_) => {}
            Err(error) => return self.not_undone(&whom, flaw, error.to_string()),
        }
        let secrets = match reclaim::secrets(&self.context, volume, decide::secret(intent).as_ref()).await {
            Ok(secrets) => secrets,
            Err(error) => return self.not_undone(&whom, flaw, error.to_string()),
        };
        let given = secrets.clone();
        let request = v1::DeleteVolumeRequest { volume_id: handle.clone(), secrets };
        let answer = self
            .context
            .driver
            .controller("DeleteVolume", self.own.settings.pace.timeout, |mut driver| async move {
                driver.delete_volume(request).await
            })
            .await;
        match answer {
            Ok(_) => {
                tracing::info!(volume, handle, %flaw, "what the driver made is deleted again");
                self.failed(&whom, "CreateVolume", &flaw.to_string());
                self.memories.note(volume, Happened::Undone);
                Progress::Again
            }
            Err(status) => self.not_undone(&whom, flaw, described(&status, &given)),
        }
    }

    fn not_undone(&self, whom: &Whom<'_>, flaw: Flaw, reason: String) -> Progress {
        let error = StepError::Cleanup { flaw, volume: whom.volume.to_owned(), reason };
        self.failed(whom, "DeleteVolume", &error.to_string());
        Progress::End(Outcome::Retry)
    }

    async fn reclaim(&self, present: &PersistentVolume, step: ReclaimStep) -> Progress {
        let (volume, class) = (present.metadata.name.as_str(), present.spec.storage_class_name.as_str());
        match reclaim::act(&self.context, self.own.settings.pace.timeout, present, step).await {
            Acted::Again => Progress::Again,
            Acted::Deleted(took) => {
                self.counts.deleted(class, took);
                self.memories.note(volume, Happened::Deleted { uid: present.metadata.uid.clone() });
                Progress::Again
            }
            Acted::Failed => {
                self.counts.not_deleted(class);
                Progress::End(Outcome::Retry)
            }
            Acted::End(outcome) => Progress::End(outcome),
        }
    }

    /// Tells that an attempt failed, wherever one may look for it.
    fn failed(&self, whom: &Whom<'_>, step: &'static str, error: &str) {
        tracing::warn!(volume = whom.volume, claim = %whom.claim, step, error, "no volume yet");
        self.counts.not_made(&whom.class, whom.source);
        self.context.attempts.note(ROLE, &whom.claim.to_string(), step, Some(error.to_owned()));
        self.tell(whom, &Told::Failed(error));
        // Perhaps there is no room.
        self.capacity.touched_class(&whom.class);
    }

    fn tell(&self, whom: &Whom<'_>, told: &Told<'_>) {
        if whom.there {
            self.context.events.record(whom.event(told));
        }
    }
}

#[cfg(test)]
mod tests;
