//! Performs the one step that was decided, and records its result where the next view reads it: the API server's
//! responses enter the stores, live reads are kept in [`LiveReads`].

use wharf_cluster::work::{self, StepOutcome, WriteOutcome};
use wharf_cluster::{ApiError, EventType};
use wharf_model::volume::VolumePhase;
use wharf_model::{Key, Kind, Node, PersistentVolume, PersistentVolumeClaim};

use super::Binder;
use super::decide::{EventRecord, EventTarget, Idle, Step};
use super::offers::Reservation;
use super::view::{LiveObject, LiveReads, View};
use super::write::{Write, write};

/// State that lasts from one step to the next, until the reconcile of a claim ends.
pub(super) struct BindState {
    /// What was read from the API server.
    pub(super) live: LiveReads,
    /// The volume that is reserved for the claim.
    pub(super) reservation: Reservation,
}

impl BindState {
    pub(super) fn new(reservation: Reservation) -> Self {
        Self { live: LiveReads::default(), reservation }
    }
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
                Some(write) => return self.write(claim, view, &step, write).await,
                // The object that the step is about is no longer in the view.
                None => return StepOutcome::RETRY,
            },
        };
        match fetched {
            Ok(()) => StepOutcome::Continue,
            Err(error) => {
                tracing::warn!(pvc = %claim, %error, "failed to get object; retrying");
                StepOutcome::RETRY
            }
        }
    }

    fn idle(&self, claim: &Key, view: &View, Idle { events, problem }: &Idle) -> StepOutcome {
        for event in events {
            self.record_event(view, event);
        }
        match problem {
            None => StepOutcome::DONE,
            Some(problem) => {
                tracing::warn!(pvc = %claim, error = %problem, "failed to bind claim");
                StepOutcome::RETRY
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

    async fn write(&self, claim: &Key, view: &View, step: &Step, write: Write) -> StepOutcome {
        let cluster = &self.context.cluster;
        let outcome = match write {
            Write::Claim(part, patch) => {
                let Some(seen) = &view.claim else { return StepOutcome::RETRY };
                let subresource = part.subresource();
                work::write::patch::<PersistentVolumeClaim>(cluster, &seen.metadata, subresource, patch).await
            }
            Write::Volume(name, part, patch) => {
                let Some(seen) = view.volume(&name) else { return StepOutcome::RETRY };
                let subresource = part.subresource();
                let outcome =
                    work::write::patch::<PersistentVolume>(cluster, &seen.metadata, subresource, patch).await;
                // The watch updates the offers too, only later: until then a bound or deleted volume must not be
                // offered.
                let now = self.volumes.get(&seen.key()).filter(|_| outcome != WriteOutcome::NotFound);
                self.offers.update(&name, now.as_deref());
                outcome
            }
        };
        if outcome == WriteOutcome::Written {
            if let Step::SetVolumePhase { event: Some(event), .. }
            | Step::SetClaimPhase { event: Some(event), .. } = step
            {
                self.record_event(view, event);
            }
            log_step(claim, step);
        }
        outcome.next_step(|error| self.record_write_failure(claim, view, step, error))
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
    pub(super) async fn act_on_volume(&self, view: &View, step: Step) -> StepOutcome {
        let Some(Write::Volume(name, part, patch)) = write(&step, view) else { return StepOutcome::DONE };
        let Some(seen) = view.volume(&name) else { return StepOutcome::DONE };
        let (cluster, subresource) = (&self.context.cluster, part.subresource());
        let outcome =
            work::write::patch::<PersistentVolume>(cluster, &seen.metadata, subresource, patch).await;
        outcome.next_step(|error| tracing::warn!(pv = name, %error, "failed to update volume"))
    }
}

fn log_step(claim: &Key, step: &Step) {
    match step {
        Step::MarkClaimBound { volume } => tracing::info!(pvc = %claim, pv = volume, "bound claim"),
        Step::SetClaimPhase { phase, .. } => {
            tracing::info!(pvc = %claim, %phase, "set phase of claim without a volume")
        }
        Step::SetVolumePhase {
            volume, phase: phase @ (VolumePhase::Released | VolumePhase::Failed), ..
        } => {
            tracing::info!(pvc = %claim, pv = volume, %phase, "released volume: its claim was deleted");
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
