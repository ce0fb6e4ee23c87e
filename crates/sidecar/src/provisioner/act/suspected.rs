//! Suspected volumes: recorded when an intent is dropped without a conclusive answer, and withdrawn when a later call
//! returned the volume.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wharf_model::PersistentVolumeClaim;

use super::Actor;
use super::events::{EventRecord, EventTarget};
use crate::provisioner::intent::{Intent, Request};
use crate::provisioner::view::Transition;
use crate::suspects::{self, MAX_SUSPECTS, Recorded, Suspect, SuspectKind};
use wharf_cluster::work::StepOutcome;

/// The suspects whose Leases this process created, by the volume's name. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct RecordedSuspects(Arc<Mutex<BTreeMap<String, RecordedSuspect>>>);

struct RecordedSuspect {
    /// The UID of the Lease.
    uid: String,
    /// What the call requested.
    request: Request,
}

impl RecordedSuspects {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, RecordedSuspect>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, intent: &Intent, recorded: &Recorded) {
        let mut suspects = self.lock();
        match recorded {
            Recorded::New { uid } => {
                let suspect = RecordedSuspect { uid: uid.clone(), request: intent.request.clone() };
                suspects.insert(intent.volume.clone(), suspect);
                // More Leases do not exist at once. A Lease that is forgotten here is left to the operator.
                while suspects.len() > MAX_SUSPECTS {
                    suspects.pop_first();
                }
            }
            // The Lease now stands for several calls, with different requests perhaps.
            Recorded::Before => drop(suspects.remove(&intent.volume)),
            Recorded::NotStored => {}
        }
    }

    /// Removes the suspect that the intent's call returned, and returns its Lease's UID. The same name is not enough: a
    /// request for another place or with other parameters may have created a second volume.
    fn take(&self, intent: &Intent) -> Option<String> {
        let mut suspects = self.lock();
        let is_same = suspects.get(&intent.volume)?.request == intent.request;
        is_same.then(|| suspects.remove(&intent.volume)).flatten().map(|suspect| suspect.uid)
    }
}

impl Actor {
    /// Removes the intent, after recording what may exist.
    pub(super) async fn drop_intent(
        &self,
        claim: Option<&PersistentVolumeClaim>,
        intent: &Intent,
        retry: bool,
        suspect: bool,
    ) -> StepOutcome {
        let volume = intent.volume.as_str();
        if suspect {
            let target = EventTarget::for_intent(intent, claim);
            let suspect = suspected(intent);
            let recorded = match suspects::record(&self.context, &suspect).await {
                Ok(recorded) => recorded,
                Err(error) => {
                    tracing::warn!(pv = volume, pvc = %target.claim, %error, "failed to record suspected orphan");
                    return StepOutcome::RETRY;
                }
            };
            self.suspects.note(intent, &recorded);
            if recorded.is_news() {
                let note = suspect.note(&self.config.driver);
                self.record_event(&target, &EventRecord::SuspectedOrphan(&note));
            }
        }
        self.journal.finish(volume);
        self.states.apply(volume, Transition::IntentDropped);
        tracing::debug!(pv = volume, suspect, "removed intent");
        if retry { StepOutcome::RETRY } else { StepOutcome::Continue }
    }

    /// The intent's PersistentVolume exists. If it has the handle that a suspect's own call returned, the suspect is no
    /// orphan. With node deployment, the PersistentVolume may be another node's.
    pub(super) async fn withdraw_suspect(&self, intent: &Intent) {
        if self.config.node.is_some() || self.states.get(&intent.volume).created().is_none() {
            return;
        }
        if let Some(uid) = self.suspects.take(intent) {
            suspects::withdraw(&self.context, &suspected(intent), &uid).await;
        }
    }
}

/// What the intent's call may have created.
fn suspected(intent: &Intent) -> Suspect {
    Suspect {
        kind: SuspectKind::Volume,
        name: intent.volume.clone(),
        object: intent.claim.key(),
        uid: intent.claim.uid.clone(),
        sources: Vec::new(),
    }
}
