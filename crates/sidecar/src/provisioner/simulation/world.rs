//! What can happen, and what must hold at the end.

use std::sync::Arc;

use wharf_model::Time;
use wharf_model::volume::{ReclaimPolicy, VolumePhase};

use super::super::decide::Step;
use super::super::view::Made;
use super::super::volume;
use super::api::{Api, Controller};
use super::backend::{Backend, Mood};
use super::process::{Process, guarded, own};

/// Names of claims: few, so that they are used again.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const DAYS: i64 = 48 * 60 * 60 * 1000;
/// Rounds in which everything goes well, until nothing changes any more.
const CALM: usize = 60;

/// Mistakes that one could make, planted to show that they are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// The driver is asked before anything is written down.
    NoIntent,
    /// Two pieces of work on the same volume run side by side.
    WrongKey,
    /// The intent is forgotten when the driver has answered, not when the volume is written.
    ForgottenEarly,
    /// A call that was not answered is taken for one that failed.
    UnansweredIsFinal,
    /// Whatever ends a call is taken for the end of those before it.
    AnyCaller,
    /// What another volume object stands for is deleted all the same.
    HolderIgnored,
    /// Attached volumes are deleted.
    AttachmentsIgnored,
    /// A volume is deleted by what a cache says of it.
    StaleDeletion,
}

impl Bug {
    pub(super) const ALL: [Self; 8] = [
        Self::NoIntent,
        Self::WrongKey,
        Self::ForgottenEarly,
        Self::UnansweredIsFinal,
        Self::AnyCaller,
        Self::HolderIgnored,
        Self::AttachmentsIgnored,
        Self::StaleDeletion,
    ];
}

/// Something that can happen next.
#[derive(Debug, Clone)]
enum Event {
    Ask(&'static str),
    Leave(String),
    Keep(String),
    Attach(String),
    Detach(String),
    Kubernetes(String, Controller),
    /// A cache catches up with one volume object, or with all claims and attachments.
    SeesVolume(String),
    SeesOthers,
    Takes(String),
    Effect(usize, Mood),
    Answer(usize),
    Late(usize),
    Dies,
    /// Dies, and nobody of ours runs for two days.
    Sleeps,
    LosesLease,
    Upstream,
    GetsLease,
}

pub(super) struct World {
    bug: Option<Bug>,
    api: Api,
    backend: Backend,
    process: Process,
    leads: bool,
    now: Time,
    story: Vec<String>,
}

impl World {
    pub(super) fn new(bug: Option<Bug>) -> Self {
        let api = Api::default();
        let process = Process::start(&api);
        let now = Time(1_000_000);
        Self { bug, api, backend: Backend::default(), process, leads: true, now, story: Vec::new() }
    }

    pub(super) fn story(&self) -> String {
        self.story.join("\n")
    }

    fn possible(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for name in NAMES {
            match self.api.claims.get(name) {
                None => events.push(Event::Ask(name)),
                // Also while its volume is attached: the pod is gone, the detach is to come.
                Some(_) => events.push(Event::Leave(name.to_owned())),
            }
        }
        for (name, present) in &self.api.volumes {
            if let Some(what) = self.api.controller(name) {
                events.push(Event::Kubernetes(name.clone(), what));
            }
            let delete = present.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete;
            let late =
                present.spec.csi.as_ref().is_some_and(|csi| self.backend.is_doomed(&csi.volume_handle));
            let attached = self.api.attachments.contains_key(name);
            // By a pod, which keeps its claim from going.
            let claimed = self.api.claims.values().any(|claim| present.is_bound_to(&claim.metadata));
            match present.status.phase {
                VolumePhase::Bound if claimed && !attached => events.push(Event::Attach(name.clone())),
                VolumePhase::Released if delete && !late => {
                    events.push(Event::Keep(name.clone()));
                }
                _ => {}
            }
        }
        events.extend(self.api.attachments.keys().cloned().map(Event::Detach));
        let known = self.api.volumes.keys().chain(self.process.cache.volumes.keys());
        let stale = known.filter(|name| self.api.volumes.get(*name) != self.process.cache.volumes.get(*name));
        events.extend(stale.cloned().map(Event::SeesVolume));
        events.push(Event::SeesOthers);
        if self.backend.is_running() {
            events.push(Event::Late(0));
        }
        if self.leads {
            events.extend(self.process.volumes().into_iter().map(Event::Takes));
            for (which, work) in self.process.work.iter().enumerate() {
                match work.has_effect() {
                    true => events.push(Event::Answer(which)),
                    false => events.extend(Mood::ALL.map(|mood| Event::Effect(which, mood))),
                }
            }
            events.extend([Event::Dies, Event::Sleeps, Event::LosesLease]);
        } else {
            events.extend([Event::Upstream, Event::GetsLease]);
        }
        events
    }

    /// One of the things that can happen does.
    pub(super) fn happens(&mut self, choice: u16) -> Result<(), String> {
        let events = self.possible();
        let event = events[usize::from(choice) % events.len()].clone();
        self.now.0 += 1000;
        let outcome = self.occurs(&event);
        if let Err(wrong) = &outcome {
            self.story.push(format!("WRONG: {wrong}"));
        }
        outcome
    }

    fn occurs(&mut self, event: &Event) -> Result<(), String> {
        if !matches!(event, Event::Takes(_)) {
            self.story.push(format!("{event:?}"));
        }
        match event {
            Event::Ask(name) => self.api.ask(name),
            Event::Leave(name) => drop(self.api.claims.remove(name)),
            Event::Keep(name) => {
                let uid = self.api.volumes[name].metadata.uid.clone();
                self.api.change(name, &uid, |volume| {
                    volume.spec.persistent_volume_reclaim_policy = ReclaimPolicy::Retain;
                });
            }
            Event::Attach(name) => drop(self.api.attachments.insert(name.clone(), name.clone())),
            Event::Detach(name) => drop(self.api.attachments.remove(name)),
            Event::Kubernetes(name, what) => self.api.control(name, what),
            // A volume is released long after its last attachment was made: who sees the one has seen the other.
            Event::SeesVolume(name) => {
                self.process.refresh(&self.api, name);
                self.process.cache.attachments.clone_from(&self.api.attachments);
            }
            Event::SeesOthers => {
                self.process.cache.claims.clone_from(&self.api.claims);
                self.process.cache.attachments.clone_from(&self.api.attachments);
            }
            Event::Takes(name) => {
                if let Some(told) = self.process.take(name, self.bug, self.now) {
                    self.story.push(told);
                }
            }
            Event::Effect(which, mood) => {
                let Self { process, api, backend, bug, .. } = self;
                process.effect(*which, api, backend, *mood, *bug)?;
            }
            Event::Answer(which) => self.process.answer(*which),
            Event::Late(which) => self.late(*which)?,
            Event::Dies => self.process = Process::start(&self.api),
            Event::Sleeps => {
                self.now.0 += DAYS;
                self.process = Process::start(&self.api);
            }
            Event::LosesLease => {
                self.leads = false;
                self.process.work.clear();
            }
            Event::Upstream => self.upstream()?,
            Event::GetsLease => {
                self.leads = true;
                self.process.new_term(&self.api);
            }
        }
        Ok(())
    }

    fn late(&mut self, which: usize) -> Result<(), String> {
        match self.backend.ends(which) {
            // The deletion was right when it was asked for, and nobody can have bound the volume since.
            Some(handle) => guarded(&self.api, &handle),
            None => Ok(()),
        }
    }

    /// Upstream's provisioner, in a good mood: one claim gets its volume, one released volume goes.
    fn upstream(&mut self) -> Result<(), String> {
        let mut other = Process::start(&self.api);
        other.cache.journal.clear();
        for name in other.volumes() {
            match other.decide(&name, None, self.now) {
                (Step::Write(intent), _) => {
                    let Ok(handle) = self.backend.create(&name, &intent.request, Mood::Well)? else {
                        continue;
                    };
                    let made = Made { handle, ..Made::default() };
                    self.api.create(&volume::complete(&intent, &made, &own(), false));
                    return Ok(());
                }
                (Step::Reclaim(super::super::reclaim::ReclaimStep::DeleteVolume { handle, .. }), _) => {
                    guarded(&self.api, &handle)?;
                    if self.backend.delete(&handle, Mood::Well).is_ok() {
                        self.api.volumes.remove(&name);
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Users rest, everything works, and time goes by: then all must agree.
    pub(super) fn calms_down(&mut self) -> Result<(), String> {
        self.story.push("everything calms down".to_owned());
        self.api.attachments.clear();
        self.leads = true;
        self.process.new_term(&self.api);
        for _ in 0..CALM {
            while self.backend.is_running() {
                self.late(0)?;
            }
            for name in self.api.volumes.keys().cloned().collect::<Vec<_>>() {
                while let Some(what) = self.api.controller(&name) {
                    self.api.control(&name, &what);
                }
            }
            let known = std::mem::take(&mut self.process.cache.journal);
            self.process.cache = self.api.clone();
            self.process.cache.journal = known;
            for volume in self.process.volumes() {
                self.now.0 += 1000;
                if let Some(told) = self.process.take(&volume, self.bug, self.now)
                    && self.story.last() != Some(&told)
                {
                    self.story.push(told);
                }
                while let Some(which) = self.process.work.len().checked_sub(1) {
                    let Self { process, api, backend, bug, .. } = self;
                    process.effect(which, api, backend, Mood::Well, *bug)?;
                    process.answer(which);
                }
            }
        }
        self.agrees().inspect_err(|wrong| self.story.push(format!("WRONG: {wrong}")))
    }

    fn agrees(&self) -> Result<(), String> {
        let Api { claims, volumes, journal, .. } = &self.api;
        if let Some(volume) = journal.keys().next() {
            return Err(format!("the intent for {volume} is left"));
        }
        let handle_of = |volume: &Arc<wharf_model::PersistentVolume>| {
            volume.spec.csi.as_ref().map(|csi| csi.volume_handle.clone()).unwrap_or_default()
        };
        let standing: Vec<String> = volumes.values().map(handle_of).collect();
        let there = self.backend.handles();
        if let Some(leaked) = there.iter().find(|handle| !standing.iter().any(|of| of == *handle)) {
            return Err(format!("{leaked} leaked: no volume object stands for it"));
        }
        for (name, present) in volumes {
            let handle = handle_of(present);
            if !there.contains(&handle.as_str()) {
                return Err(format!("{name} stands for {handle}, which is gone"));
            }
            let claimed = claims.values().any(|claim| present.is_bound_to(&claim.metadata));
            let kept = present.spec.persistent_volume_reclaim_policy != ReclaimPolicy::Delete;
            if !claimed && !kept {
                return Err(format!("{name} has no claim and is not deleted"));
            }
            if present.metadata.is_deleting() {
                return Err(format!("{name} is stuck in its deletion"));
            }
        }
        for claim in claims.values() {
            let name = own().settings.naming.name(&claim.metadata.uid).unwrap_or_default();
            let taken = volumes.get(&name).is_some_and(|volume| !volume.is_bound_to(&claim.metadata));
            if claim.spec.volume_name.is_empty() && !taken {
                return Err(format!("claim {} ({}) got no volume", claim.metadata.name, claim.metadata.uid));
            }
        }
        Ok(())
    }
}
