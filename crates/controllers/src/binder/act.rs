//! Performs the one step that was decided, and records its result where the next view reads it: the API server's
//! responses enter the stores, live reads are kept in [`LiveReads`].

use wharf_cluster::work::WorkOutcome;
use wharf_cluster::{ApiError, EventType};
use wharf_model::volume::VolumePhase;
use wharf_model::{Key, Kind, Node, PersistentVolume, PersistentVolumeClaim};

use super::Binder;
use super::decide::{EventRecord, EventTarget, Idle, Step};
use super::offers::Reservation;
use super::view::{LiveObject, LiveReads, View};
use super::write::{Part, Write, write};
use wharf_cluster::Patch;

/// How many conflicts in a row are answered by a re-read before a conflict counts as a failure.
const MAX_CONFLICTS: u32 = 10;

/// State that lasts from one step to the next, until the reconcile of a claim ends.
pub(super) struct BindState {
    /// What was read from the API server.
    pub(super) live: LiveReads,
    /// The volume that is reserved for the claim.
    pub(super) reservation: Reservation,
    /// Conflicts so far.
    stale: u32,
}

impl BindState {
    pub(super) fn new(reservation: Reservation) -> Self {
        Self { live: LiveReads::default(), reservation, stale: 0 }
    }
}

/// What the control loop does next.
pub(super) enum StepOutcome {
    /// Build a new view and decide again.
    Continue,
    /// End this reconcile.
    Finish(WorkOutcome),
}

impl Binder {
    /// Performs a step for a claim and its volumes.
    pub(super) async fn act(
        &self,
        claim: &Key,
        view: &View,
        step: Step,
        state: &mut BindState,
    ) -> StepOutcome {
        let fetched = match &step {
            Step::Idle(idle) => return self.idle(claim, view, idle),
            Step::FetchClaim => {
                let found = self.get_live::<PersistentVolumeClaim>(claim).await;
                found.map(|found| state.live.claim = Some(found))
            }
            Step::FetchVolume { name } => {
                let found = self.get_live::<PersistentVolume>(&Key::cluster(name)).await;
                found.map(|found| state.live.volume = Some((name.clone(), found)))
            }
            Step::FetchNode { name } => {
                let found = self.get_live::<Node>(&Key::cluster(name)).await;
                found.map(|found| state.live.node = Some((name.clone(), found)))
            }
            _ => match write(&step, view) {
                Some(write) => return self.write(claim, view, &step, write, state).await,
                // The object that the step is about is no longer in the view.
                None => return StepOutcome::Finish(WorkOutcome::Retry),
            },
        };
        match fetched {
            Ok(()) => StepOutcome::Continue,
            Err(error) => {
                tracing::warn!(pvc = %claim, %error, "failed to get object; retrying");
                StepOutcome::Finish(WorkOutcome::Retry)
            }
        }
    }

    fn idle(&self, claim: &Key, view: &View, Idle { events, problem }: &Idle) -> StepOutcome {
        for event in events {
            self.record_event(view, event);
        }
        match problem {
            None => StepOutcome::Finish(WorkOutcome::Done),
            Some(problem) => {
                tracing::warn!(pvc = %claim, error = %problem, "failed to bind claim");
                StepOutcome::Finish(WorkOutcome::Retry)
            }
        }
    }

    pub(super) fn record_event(&self, view: &View, EventRecord { target, kind, reason, note }: &EventRecord) {
        match target {
            EventTarget::Claim => {
                if let Some(claim) = &view.claim {
                    self.context.events.record_for(&**claim, *kind, reason, note);
                }
            }
            EventTarget::Volume(name) => {
                if let Some(volume) = view.volume(name) {
                    self.context.events.record_for(volume, *kind, reason, note);
                }
            }
        }
    }

    async fn get_live<K: Kind>(&self, key: &Key) -> Result<LiveObject, ApiError> {
        let found = self.context.cluster.get::<K>(key).await?;
        Ok(found.map_or(LiveObject::Absent, |object| LiveObject::Present(object.meta().uid.clone())))
    }

    async fn write(
        &self,
        claim: &Key,
        view: &View,
        step: &Step,
        write: Write,
        state: &mut BindState,
    ) -> StepOutcome {
        let result = match write {
            Write::Claim(part, patch) => {
                self.patch_object::<PersistentVolumeClaim>(claim, part, patch, &mut state.stale).await
            }
            Write::Volume(name, part, patch) => {
                let key = Key::cluster(&name);
                let sent = self.patch_object::<PersistentVolume>(&key, part, patch, &mut state.stale).await;
                // The watch updates the offers too, only later: until then a bound or deleted volume must not be
                // offered.
                let now = self.volumes.get(&key).filter(|_| !matches!(sent, Ok(PatchResult::NotFound)));
                self.offers.update(&name, now.as_deref());
                sent
            }
        };
        match result {
            Ok(PatchResult::Applied) => {
                if let Step::SetVolumePhase { event: Some(event), .. }
                | Step::SetClaimPhase { event: Some(event), .. } = step
                {
                    self.record_event(view, event);
                }
                log_step(claim, step);
                StepOutcome::Continue
            }
            Ok(PatchResult::Stale) => StepOutcome::Continue,
            // The watch will have removed the object from the store by the next reconcile.
            Ok(PatchResult::NotFound) => StepOutcome::Finish(WorkOutcome::Retry),
            Err(error) => {
                self.record_write_failure(claim, view, step, &error);
                StepOutcome::Finish(WorkOutcome::Retry)
            }
        }
    }

    fn record_write_failure(&self, claim: &Key, view: &View, step: &Step, error: &ApiError) {
        tracing::warn!(pvc = %claim, %error, ?step, "failed to update claim or volume");
        if let Step::SetProvisioner { .. } = step {
            let event = EventRecord {
                target: EventTarget::Claim,
                kind: EventType::Warning,
                reason: wharf_model::names::reason::PROVISIONING_FAILED,
                note: format!("Error saving claim: {error}"),
            };
            self.record_event(view, &event);
        }
    }

    /// Performs a step for a volume that references no claim.
    pub(super) async fn act_on_volume(&self, view: &View, step: Step, stale: &mut u32) -> StepOutcome {
        let Some(Write::Volume(name, part, patch)) = write(&step, view) else {
            return StepOutcome::Finish(WorkOutcome::Done);
        };
        match self.patch_object::<PersistentVolume>(&Key::cluster(&name), part, patch, stale).await {
            Ok(PatchResult::Applied | PatchResult::Stale) => StepOutcome::Continue,
            Ok(PatchResult::NotFound) => StepOutcome::Finish(WorkOutcome::Done),
            Err(error) => {
                tracing::warn!(pv = name, %error, "failed to update volume");
                StepOutcome::Finish(WorkOutcome::Retry)
            }
        }
    }

    async fn patch_object<K: Kind>(
        &self,
        key: &Key,
        part: Part,
        patch: Patch,
        stale: &mut u32,
    ) -> Result<PatchResult, ApiError> {
        let cluster = &self.context.cluster;
        match cluster.patch(&K::API, key, part.subresource(), patch).await {
            Ok(_) => Ok(PatchResult::Applied),
            Err(ApiError::NotFound(_)) => Ok(PatchResult::NotFound),
            // The store is behind: this read updates it.
            Err(ApiError::Conflict(_) | ApiError::Invalid(_)) if *stale < MAX_CONFLICTS => {
                *stale += 1;
                Ok(if cluster.get::<K>(key).await?.is_some() {
                    PatchResult::Stale
                } else {
                    PatchResult::NotFound
                })
            }
            Err(error) => Err(error),
        }
    }
}

/// The result of a patch.
enum PatchResult {
    Applied,
    /// The object had changed; the store now has its current version.
    Stale,
    /// The object does not exist.
    NotFound,
}

fn log_step(claim: &Key, step: &Step) {
    match step {
        Step::MarkClaimBound { volume } => tracing::info!(pvc = %claim, pv = volume, "bound claim"),
        Step::SetClaimPhase { phase, .. } => tracing::info!(pvc = %claim, %phase, "claim has no volume"),
        Step::SetVolumePhase {
            volume, phase: phase @ (VolumePhase::Released | VolumePhase::Failed), ..
        } => {
            tracing::info!(pvc = %claim, pv = volume, %phase, "claim of volume was deleted");
        }
        Step::Unbind { volume } => {
            tracing::info!(pvc = %claim, pv = volume, "unbound volume: the claim has another volume")
        }
        Step::AssignClass { class } => {
            tracing::info!(pvc = %claim, storage_class = class, "assigned default storage class")
        }
        Step::SetProvisioner { provisioner } => {
            tracing::info!(pvc = %claim, driver = provisioner, "assigned claim to external provisioner")
        }
        Step::ClearSelectedNode => {
            tracing::info!(pvc = %claim, "cleared selected node: the node was deleted")
        }
        _ => {}
    }
}
