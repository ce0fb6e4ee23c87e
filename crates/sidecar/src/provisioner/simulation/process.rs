//! The provisioner of the simulation: the real rules and memory, with effects on the simulated world. Each piece of
//! work has three moments, between which anything can happen: it is decided, its effect takes place, its answer
//! is heard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use wharf_csi::{ErrorClass, Operation, classify, speaks_of_the_request};
use wharf_model::names::{VolumeNaming, finalizer};
use wharf_model::{PersistentVolume, PersistentVolumeClaim, StorageClass, Time};

use super::super::Settings;
use super::super::decide::{Step, decide};
use super::super::intent::Intent;
use super::super::reclaim::ReclaimStep;
use super::super::view::{Happened, Made, Memory, Own, View, WrittenNodes, claimant};
use super::api::{Api, CLASS, DRIVER};
use super::backend::{Backend, Mood};
use super::world::Bug;
use crate::driver::Capabilities;

/// For whom volumes are made. One digit of a claim's identity is all of a volume's name, so that names clash.
pub(super) fn own() -> Own {
    let naming = VolumeNaming { uuid_length: Some(1), ..VolumeNaming::default() };
    let can = Capabilities {
        controller_service: true,
        create_delete_volume: true,
        publish_unpublish_volume: true,
        ..Capabilities::default()
    };
    let settings = Settings { naming, ..Settings::default() };
    Own { driver: DRIVER.to_owned(), can, settings, node: None, identity: "sim".to_owned() }
}

fn class() -> StorageClass {
    let mut class = StorageClass { provisioner: DRIVER.to_owned(), ..StorageClass::default() };
    class.metadata.name = CLASS.to_owned();
    class.metadata.uid = "class".to_owned();
    class
}

/// A piece of work that was decided.
pub(super) struct Work {
    pub(super) volume: String,
    pub(super) step: Step,
    /// The volume object as it was seen.
    seen: Option<Arc<PersistentVolume>>,
    heard: Option<Heard>,
}

impl Work {
    pub(super) fn has_effect(&self) -> bool {
        self.heard.is_some()
    }
}

/// What is heard of an effect.
#[derive(Debug)]
enum Heard {
    /// It happened, and these memories are to be kept.
    Done(Vec<Happened>),
    /// Nothing is left to remember.
    Settled,
    /// It did not, or nobody knows.
    Failed,
}

pub(super) struct Process {
    own: Own,
    class: StorageClass,
    pub(super) cache: Api,
    memories: BTreeMap<String, Memory>,
    pub(super) work: Vec<Work>,
}

impl Process {
    /// Starts with a full list of everything.
    pub(super) fn start(api: &Api) -> Self {
        Self { own: own(), class: class(), cache: api.clone(), memories: BTreeMap::new(), work: Vec::new() }
    }

    /// The lease is back: what was remembered is of another time.
    pub(super) fn new_term(&mut self, api: &Api) {
        self.memories.clear();
        self.work.clear();
        self.cache.journal.clone_from(&api.journal);
    }

    /// All volumes that could be looked at.
    pub(super) fn volumes(&self) -> Vec<String> {
        let of_claims = self.cache.claims.values().filter_map(|claim| self.volume_of(claim));
        let mut all: Vec<String> = of_claims.collect();
        all.extend(self.cache.volumes.keys().cloned());
        all.extend(self.cache.journal.keys().cloned());
        all.sort();
        all.dedup();
        all
    }

    fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        self.own.settings.naming.name(&claim.metadata.uid).ok()
    }

    /// As the real one finds it.
    fn claim(&self, volume: &str, intent: Option<&Arc<Intent>>) -> Option<Arc<PersistentVolumeClaim>> {
        if let Some(intent) = intent {
            let claim = self.cache.claims.get(&intent.claim.name);
            return claim.filter(|claim| claim.metadata.uid == intent.claim.uid).cloned();
        }
        let present = self.cache.volumes.get(volume);
        let named = |claim: &&Arc<PersistentVolumeClaim>| {
            claim.spec.volume_name.is_empty() && self.volume_of(claim).as_deref() == Some(volume)
        };
        let named = self.cache.claims.values().filter(named).cloned().collect();
        claimant(named, present.map(|present| &**present))
    }

    fn by_handle(&self, handle: &str) -> Vec<Arc<PersistentVolume>> {
        let has = |volume: &&Arc<PersistentVolume>| {
            volume.spec.csi.as_ref().is_some_and(|csi| csi.volume_handle == handle)
        };
        self.cache.volumes.values().filter(has).cloned().collect()
    }

    /// The rules' word on a volume, by what the cache shows.
    pub(super) fn decide(
        &self,
        volume: &str,
        bug: Option<Bug>,
        now: Time,
    ) -> (Step, Option<Arc<PersistentVolume>>) {
        let memory = self.memories.get(volume).cloned().unwrap_or_default();
        let intent = self.cache.journal.get(volume);
        let claim = self.claim(volume, intent);
        let present = self.cache.volumes.get(volume);
        let holder = memory.made().and_then(|made| self.by_handle(&made.handle).first().cloned());
        let handle =
            present.and_then(|present| present.spec.csi.as_ref()).map(|csi| csi.volume_handle.as_str());
        let siblings = handle.map(|handle| self.by_handle(handle)).unwrap_or_default();
        let attached = self.cache.attachments.iter().filter(|(_, of)| *of == volume);
        let attached: Vec<String> = match bug {
            Some(Bug::AttachmentsIgnored) => Vec::new(),
            _ => attached.map(|(name, _)| name.clone()).collect(),
        };
        let nodes = WrittenNodes::default();
        let view = View {
            volume,
            own: &self.own,
            present: present.map(|present| &**present),
            claim: claim.as_deref(),
            class: Some(&self.class),
            intent,
            holder: holder
                .as_ref()
                .filter(|_| bug != Some(Bug::HolderIgnored))
                .map(|holder| holder.metadata.name.as_str()),
            memory: &memory,
            source_claim: None,
            source_volume: None,
            nodes: &nodes,
            present_class: Some(&self.class),
            attached: &attached,
            siblings: &siblings,
        };
        (decide(&view, now), present.cloned())
    }

    /// Takes a volume up, unless it is being worked on.
    pub(super) fn take(&mut self, volume: &str, bug: Option<Bug>, now: Time) -> Option<String> {
        let busy = self.work.iter().any(|work| work.volume == volume);
        if busy && bug != Some(Bug::WrongKey) {
            return None;
        }
        let (step, seen) = self.decide(volume, bug, now);
        let told = format!("{volume}: {}", short(&step));
        self.work.push(Work { volume: volume.to_owned(), step, seen, heard: None });
        Some(told)
    }

    /// The effect of a piece of work takes place, or not.
    pub(super) fn effect(
        &mut self,
        which: usize,
        api: &mut Api,
        backend: &mut Backend,
        mood: Mood,
        bug: Option<Bug>,
    ) -> Result<(), String> {
        let (volume, step, seen) = {
            let work = &self.work[which];
            (work.volume.clone(), work.step.clone(), work.seen.clone())
        };
        let reached = mood != Mood::Away;
        // The server's answers are lost, too; it refuses nothing here, and is never late.
        let told = matches!(mood, Mood::Well | Mood::Refused);
        let heard = match step {
            Step::Write(intent) if reached => {
                if bug != Some(Bug::NoIntent) {
                    api.journal.insert(volume.clone(), Arc::new((*intent).clone()));
                }
                self.cache.journal.insert(volume.clone(), Arc::new(*intent));
                Heard::Done(vec![Happened::Wrote])
            }
            Step::Create(intent) => {
                self.remember(&volume, Happened::Calling);
                match backend.create(&volume, &intent.request, mood)? {
                    Ok(handle) => {
                        if bug == Some(Bug::ForgottenEarly) {
                            api.journal.remove(&volume);
                        }
                        Heard::Done(vec![Happened::Made(Arc::new(Made { handle, ..Made::default() }))])
                    }
                    Err(code) => Heard::Done(vec![failed(code, bug)]),
                }
            }
            Step::Save { object, .. } if reached => {
                api.create(&object);
                if told {
                    self.refresh(api, &volume);
                }
                Heard::Done(Vec::new())
            }
            Step::Undo { handle, beside, .. } if reached => {
                let there = api.volumes.get(&volume).map(|present| present.metadata.uid.clone());
                if there.is_some() && there != beside {
                    self.refresh(api, &volume);
                    Heard::Done(Vec::new())
                } else {
                    guarded(api, &handle)?;
                    match backend.delete(&handle, mood) {
                        Ok(()) => Heard::Done(vec![Happened::Undone]),
                        Err(_) => Heard::Failed,
                    }
                }
            }
            Step::GiveUp { .. } => {
                api.journal.remove(&volume);
                self.cache.journal.remove(&volume);
                Heard::Done(vec![Happened::GaveUp])
            }
            Step::Settle { .. } => {
                api.journal.remove(&volume);
                self.cache.journal.remove(&volume);
                Heard::Settled
            }
            Step::Forget => Heard::Settled,
            Step::Reclaim(step) if reached => self.reclaim(&volume, seen, step, api, backend, mood, bug)?,
            _ => Heard::Failed,
        };
        self.work[which].heard = Some(heard);
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "all of the world, handed on")]
    fn reclaim(
        &mut self,
        volume: &str,
        seen: Option<Arc<PersistentVolume>>,
        step: ReclaimStep,
        api: &mut Api,
        backend: &mut Backend,
        mood: Mood,
        bug: Option<Bug>,
    ) -> Result<Heard, String> {
        let Some(seen) = seen else { return Ok(Heard::Failed) };
        let uid = seen.metadata.uid.clone();
        let version = &seen.metadata.resource_version;
        let current = api.volumes.get(volume).is_some_and(|now| now.metadata.resource_version == *version);
        match step {
            ReclaimStep::Guard if current => {
                api.change(volume, &uid, |volume| {
                    volume.metadata.finalizers.push(finalizer::PROVISIONER.to_owned());
                });
            }
            ReclaimStep::Unguard | ReclaimStep::Release if current => {
                api.change(volume, &uid, |volume| volume.metadata.finalizers.clear());
            }
            ReclaimStep::DeleteObject => {
                api.change(volume, &uid, |volume| volume.metadata.deletion_timestamp = Some(Time(1)));
            }
            ReclaimStep::DeleteVolume { handle, .. } if current || bug == Some(Bug::StaleDeletion) => {
                guarded(api, &handle)?;
                if api.attachments.values().any(|of| of == volume) {
                    return Err(format!("{volume} was deleted while attached"));
                }
                return Ok(match backend.delete(&handle, mood) {
                    Ok(()) => Heard::Done(vec![Happened::Deleted { uid }]),
                    Err(_) => Heard::Failed,
                });
            }
            _ => {}
        }
        if mood == Mood::Well {
            self.refresh(api, volume);
        }
        Ok(Heard::Done(Vec::new()))
    }

    /// The answer comes in, and the volume is free for the next look.
    pub(super) fn answer(&mut self, which: usize) {
        let Work { volume, heard, .. } = self.work.remove(which);
        match heard {
            Some(Heard::Done(happened)) => {
                for happened in happened {
                    self.remember(&volume, happened);
                }
            }
            Some(Heard::Settled) => {
                self.memories.remove(&volume);
            }
            Some(Heard::Failed) | None => {}
        }
    }

    fn remember(&mut self, volume: &str, happened: Happened) {
        self.memories.entry(volume.to_owned()).or_default().after(happened, Time(0));
    }

    /// The cache sees one volume object as it is.
    pub(super) fn refresh(&mut self, api: &Api, volume: &str) {
        match api.volumes.get(volume) {
            Some(now) => self.cache.volumes.insert(volume.to_owned(), Arc::clone(now)),
            None => self.cache.volumes.remove(volume),
        };
    }
}

/// Nobody's data may be deleted.
pub(super) fn guarded(api: &Api, handle: &str) -> Result<(), String> {
    match api.in_use(handle) {
        Some(claim) => Err(format!("{handle} was deleted although claim {claim} is bound to it")),
        None => Ok(()),
    }
}

fn failed(code: Code, bug: Option<Bug>) -> Happened {
    let class = match classify(Operation::Create, code) {
        ErrorClass::StillRunning if bug == Some(Bug::UnansweredIsFinal) => ErrorClass::Final,
        class => class,
    };
    let believed = matches!(bug, Some(Bug::AnyCaller | Bug::UnansweredIsFinal));
    let vague = !speaks_of_the_request(code) && !believed;
    Happened::Failed { class, exhausted: false, vague, class_uid: "class".to_owned() }
}

/// A step, in few words.
fn short(step: &Step) -> String {
    let text = match step {
        Step::Wait { pause, .. } if *pause > Duration::ZERO => return format!("wait {pause:?}"),
        step => format!("{step:?}"),
    };
    text.split(['{', '(']).take(2).collect::<Vec<_>>().join(" ").chars().take(60).collect()
}
