//! The simulated provisioner: the real rules and state, with effects on the simulated world. Each piece of work has
//! three phases, between which anything can happen: it is decided, its effect takes place, its response arrives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use wharf_csi::{ErrorClass, Operation, classify, is_request_error};
use wharf_model::names::{VolumeNaming, finalizer};
use wharf_model::{Monotonic, PersistentVolume, PersistentVolumeClaim, Time};

use super::super::Settings;
use super::super::decide::{ProvisionStep, decide};
use super::super::intent::Intent;
use super::super::reclaim::ReclaimStep;
use super::super::view::{
    CreatedVolume, FixedNodes, Now, ProvisionState, ProvisionView, ProvisionerConfig, Transition, claimant,
};
use super::api::{Api, DRIVER};
use super::backend::{Backend, CallOutcome};
use super::world::Bug;
use crate::driver::Capabilities;

/// The configuration. A volume's name contains one digit of its claim's UID, so that names collide.
pub(super) fn config() -> ProvisionerConfig {
    let naming = VolumeNaming { uuid_length: Some(1), ..VolumeNaming::default() };
    let capabilities = Capabilities {
        controller_service: true,
        create_delete_volume: true,
        publish_unpublish_volume: true,
        ..Capabilities::default()
    };
    let settings = Settings { naming, ..Settings::default() };
    ProvisionerConfig {
        driver: DRIVER.to_owned(),
        capabilities,
        settings,
        node: None,
        identity: "sim".to_owned(),
    }
}

/// A step in progress.
pub(super) struct Work {
    pub(super) volume: String,
    pub(super) step: ProvisionStep,
    /// The PersistentVolume that the step was decided for.
    pv: Option<Arc<PersistentVolume>>,
    response: Option<Response>,
}

impl Work {
    pub(super) fn has_effect(&self) -> bool {
        self.response.is_some()
    }
}

/// The response to a step.
#[derive(Debug)]
enum Response {
    /// It succeeded with these transitions.
    Done(Vec<Transition>),
    /// The state can be dropped.
    Settled,
    /// It failed, or the result is unknown.
    Failed,
}

pub(super) struct Process {
    config: ProvisionerConfig,
    pub(super) cache: Api,
    /// The time of the last decision.
    now: Time,
    states: BTreeMap<String, ProvisionState>,
    pub(super) work: Vec<Work>,
}

impl Process {
    /// Starts with a synced cache.
    pub(super) fn start(api: &Api) -> Self {
        Self { config: config(), cache: api.clone(), now: Time(0), states: BTreeMap::new(), work: Vec::new() }
    }

    /// The lease was acquired again: the earlier state is void.
    pub(super) fn new_term(&mut self, api: &Api) {
        self.states.clear();
        self.work.clear();
        self.cache.journal.clone_from(&api.journal);
    }

    /// All volumes that could be reconciled.
    pub(super) fn volumes(&self) -> Vec<String> {
        let of_claims = self.cache.claims.values().filter_map(|claim| self.volume_name_for(claim));
        let mut all: Vec<String> = of_claims.collect();
        all.extend(self.cache.volumes.keys().cloned());
        all.extend(self.cache.journal.keys().cloned());
        all.sort();
        all.dedup();
        all
    }

    fn volume_name_for(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        self.config.settings.naming.name(&claim.metadata.uid).ok()
    }

    /// Finds the claim as the provisioner does.
    fn claim(&self, volume: &str, intent: Option<&Arc<Intent>>) -> Option<Arc<PersistentVolumeClaim>> {
        if let Some(intent) = intent {
            let claim = self.cache.claims.get(&intent.claim.name);
            return claim.filter(|claim| claim.metadata.uid == intent.claim.uid).cloned();
        }
        let pv = self.cache.volumes.get(volume);
        let named = |claim: &&Arc<PersistentVolumeClaim>| {
            claim.spec.volume_name.is_empty() && self.volume_name_for(claim).as_deref() == Some(volume)
        };
        let named = self.cache.claims.values().filter(named).cloned().collect();
        claimant(named, pv.map(|pv| &**pv))
    }

    fn by_handle(&self, handle: &str) -> Vec<Arc<PersistentVolume>> {
        let has = |volume: &&Arc<PersistentVolume>| {
            volume.spec.csi.as_ref().is_some_and(|csi| csi.volume_handle == handle)
        };
        self.cache.volumes.values().filter(has).cloned().collect()
    }

    /// Decides from the cache.
    pub(super) fn decide(
        &self,
        volume: &str,
        bug: Option<Bug>,
        now: Time,
    ) -> (ProvisionStep, Option<Arc<PersistentVolume>>) {
        let state = self.states.get(volume).cloned().unwrap_or_default();
        let intent = self.cache.journal.get(volume);
        let claim = self.claim(volume, intent);
        let pv = self.cache.volumes.get(volume);
        let handle_owner =
            state.created().and_then(|created| self.by_handle(&created.handle).first().cloned());
        let handle = pv.and_then(|pv| pv.spec.csi.as_ref()).map(|csi| csi.volume_handle.as_str());
        let siblings = handle.map(|handle| self.by_handle(handle)).unwrap_or_default();
        let attached = self.cache.attachments.iter().filter(|(_, of)| *of == volume);
        let attached: Vec<String> = match bug {
            Some(Bug::AttachmentsIgnored) => Vec::new(),
            _ => attached.map(|(name, _)| name.clone()).collect(),
        };
        let (nodes, class) = (FixedNodes::default(), self.cache.class());
        let view = ProvisionView {
            volume,
            config: &self.config,
            pv: pv.map(|pv| &**pv),
            claim: claim.as_deref(),
            class: Some(&class),
            intent,
            handle_owner: handle_owner
                .as_ref()
                .filter(|_| bug != Some(Bug::HandleOwnerIgnored))
                .map(|handle_owner| handle_owner.metadata.name.as_str()),
            state: &state,
            source_claim: None,
            source_volume: None,
            nodes: &nodes,
            pv_class: Some(&class),
            attached: &attached,
            siblings: &siblings,
        };
        (decide(&view, Now { wall: now, monotonic: Monotonic(now.0) }), pv.cloned())
    }

    /// Starts a step for a volume, unless one is in progress.
    pub(super) fn start_work(&mut self, volume: &str, bug: Option<Bug>, now: Time) -> Option<String> {
        let busy = self.work.iter().any(|work| work.volume == volume);
        if busy && bug != Some(Bug::ConcurrentWork) {
            return None;
        }
        self.now = now;
        let (step, pv) = self.decide(volume, bug, now);
        let acknowledged = format!("{volume}: {}", summary(&step));
        self.work.push(Work { volume: volume.to_owned(), step, pv, response: None });
        Some(acknowledged)
    }

    /// The effect of a step takes place, or not.
    pub(super) fn effect(
        &mut self,
        which: usize,
        api: &mut Api,
        backend: &mut Backend,
        outcome: CallOutcome,
        bug: Option<Bug>,
    ) -> Result<(), String> {
        let (volume, step, pv) = {
            let work = &self.work[which];
            (work.volume.clone(), work.step.clone(), work.pv.clone())
        };
        let reached = outcome != CallOutcome::Unreachable;
        // The server's responses can be lost, too. It rejects nothing here and is never delayed.
        let acknowledged = matches!(outcome, CallOutcome::Succeeds | CallOutcome::Rejected);
        let response = match step {
            ProvisionStep::WriteIntent(intent) if reached => {
                if bug != Some(Bug::NoIntent) {
                    api.journal.insert(volume.clone(), Arc::new((*intent).clone()));
                }
                self.cache.journal.insert(volume.clone(), Arc::new(*intent));
                Response::Done(vec![Transition::IntentWritten])
            }
            ProvisionStep::CreateVolume { intent, wanted } => {
                self.apply(&volume, Transition::CreateSent);
                let unwanted_at = (!wanted && bug != Some(Bug::NoBound)).then_some(Monotonic(self.now.0));
                match backend.create(&volume, &intent.request, outcome)? {
                    Ok(handle) => {
                        if bug == Some(Bug::IntentDroppedEarly) {
                            api.journal.remove(&volume);
                        }
                        Response::Done(vec![Transition::Created(Arc::new(CreatedVolume {
                            handle,
                            ..CreatedVolume::default()
                        }))])
                    }
                    Err(code) => Response::Done(vec![failed(code, unwanted_at, bug)]),
                }
            }
            ProvisionStep::SavePv { object, .. } if reached => {
                api.create(&object);
                if acknowledged {
                    self.refresh(api, &volume);
                }
                Response::Done(Vec::new())
            }
            ProvisionStep::DeleteCreated { handle, other_pv_uid, .. } if reached => {
                let there = api.volumes.get(&volume).map(|pv| pv.metadata.uid.clone());
                if there.is_some() && there != other_pv_uid {
                    self.refresh(api, &volume);
                    Response::Done(Vec::new())
                } else {
                    check_unused(api, &handle)?;
                    match backend.delete(&handle, outcome) {
                        Ok(()) => Response::Done(vec![Transition::CleanedUp]),
                        Err(_) => Response::Failed,
                    }
                }
            }
            ProvisionStep::DropIntent { suspect, .. } => {
                if suspect && bug != Some(Bug::SuspectNotRecorded) {
                    api.suspects.insert(volume.clone());
                }
                api.journal.remove(&volume);
                self.cache.journal.remove(&volume);
                Response::Done(vec![Transition::IntentDropped])
            }
            ProvisionStep::FinishIntent { .. } => {
                api.journal.remove(&volume);
                self.cache.journal.remove(&volume);
                Response::Settled
            }
            ProvisionStep::DropState => Response::Settled,
            ProvisionStep::Reclaim(step) if reached => {
                self.reclaim(&volume, pv, step, api, backend, outcome, bug)?
            }
            _ => Response::Failed,
        };
        self.work[which].response = Some(response);
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "passes the whole simulated world")]
    fn reclaim(
        &mut self,
        volume: &str,
        pv: Option<Arc<PersistentVolume>>,
        step: ReclaimStep,
        api: &mut Api,
        backend: &mut Backend,
        outcome: CallOutcome,
        bug: Option<Bug>,
    ) -> Result<Response, String> {
        let Some(pv) = pv else { return Ok(Response::Failed) };
        let uid = pv.metadata.uid.clone();
        let version = &pv.metadata.resource_version;
        let current = api.volumes.get(volume).is_some_and(|now| now.metadata.resource_version == *version);
        match step {
            ReclaimStep::AddFinalizer if current => {
                api.change(volume, &uid, |volume| {
                    volume.metadata.finalizers.push(finalizer::PROVISIONER.to_owned());
                });
            }
            ReclaimStep::RemoveFinalizer | ReclaimStep::Release if current => {
                api.change(volume, &uid, |volume| volume.metadata.finalizers.clear());
            }
            ReclaimStep::DeleteObject => {
                api.change(volume, &uid, |volume| volume.metadata.deletion_timestamp = Some(Time(1)));
            }
            ReclaimStep::DeleteVolume { handle, .. } if current || bug == Some(Bug::DeletesFromCache) => {
                check_unused(api, &handle)?;
                if api.attachments.values().any(|of| of == volume) {
                    return Err(format!("{volume} was deleted while attached"));
                }
                return Ok(match backend.delete(&handle, outcome) {
                    Ok(()) => Response::Done(vec![Transition::VolumeDeleted { uid }]),
                    Err(_) => Response::Failed,
                });
            }
            _ => {}
        }
        if outcome == CallOutcome::Succeeds {
            self.refresh(api, volume);
        }
        Ok(Response::Done(Vec::new()))
    }

    /// The response arrives, and the volume is free for the next step.
    pub(super) fn deliver(&mut self, which: usize) {
        let Work { volume, response, .. } = self.work.remove(which);
        match response {
            Some(Response::Done(transitions)) => {
                for transitions in transitions {
                    self.apply(&volume, transitions);
                }
            }
            Some(Response::Settled) => {
                self.states.remove(&volume);
            }
            Some(Response::Failed) | None => {}
        }
    }

    fn apply(&mut self, volume: &str, transitions: Transition) {
        self.states.entry(volume.to_owned()).or_default().apply(transitions, Monotonic(self.now.0));
    }

    /// Whether the driver said that it created the volume: it only has to be saved or deleted.
    pub(super) fn knows(&self, volume: &str) -> bool {
        self.states.get(volume).is_some_and(|state| state.created().is_some())
    }

    /// Updates one PersistentVolume in the cache.
    pub(super) fn refresh(&mut self, api: &Api, volume: &str) {
        match api.volumes.get(volume) {
            Some(now) => self.cache.volumes.insert(volume.to_owned(), Arc::clone(now)),
            None => self.cache.volumes.remove(volume),
        };
    }
}

/// A volume that a claim is bound to must not be deleted.
pub(super) fn check_unused(api: &Api, handle: &str) -> Result<(), String> {
    match api.in_use(handle) {
        Some(claim) => Err(format!("{handle} was deleted although claim {claim} is bound to it")),
        None => Ok(()),
    }
}

fn failed(code: Code, unwanted_at: Option<Monotonic>, bug: Option<Bug>) -> Transition {
    let (class, inconclusive) = match (classify(Operation::Create, code), bug) {
        (ErrorClass::StillRunning, Some(Bug::TimeoutIsFinal)) => (ErrorClass::Final, false),
        (class, Some(Bug::TimeoutIsFinal | Bug::FailureCoversEarlierCalls)) => (class, false),
        (class, _) => (class, !is_request_error(code)),
    };
    Transition::CreateFailed {
        class,
        exhausted: None,
        inconclusive,
        class_uid: "class".to_owned(),
        unwanted_at,
    }
}

/// A short description of a step.
fn summary(step: &ProvisionStep) -> String {
    let text = match step {
        ProvisionStep::Wait { pause, .. } if *pause > Duration::ZERO => return format!("wait {pause:?}"),
        step => format!("{step:?}"),
    };
    text.split(['{', '(']).take(2).collect::<Vec<_>>().join(" ").chars().take(60).collect()
}
