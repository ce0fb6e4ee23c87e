//! The events of the simulation, and the invariants at its end.

use std::sync::Arc;

use wharf_model::Time;
use wharf_model::volume::{ReclaimPolicy, VolumePhase};

use super::super::decide::ProvisionStep;
use super::super::view::CreatedVolume;
use super::super::volume;
use super::api::{Api, BindingAction};
use super::backend::{Backend, CallOutcome};
use super::process::{Process, check_unused, config};

/// Names of claims: few, so that they are reused.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const DAYS: i64 = 48 * 60 * 60 * 1000;
/// Rounds without faults, until nothing changes any more.
const CONVERGE_ROUNDS: usize = 60;
/// Rounds with a driver that never recovers, a minute each.
const BROKEN_ROUNDS: usize = 90;
const MINUTE: i64 = 60_000;

/// Planted mistakes that the simulation has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// CreateVolume is sent without an intent.
    NoIntent,
    /// Two steps for the same volume run concurrently.
    ConcurrentWork,
    /// The intent is removed when the driver responds, not when the PersistentVolume is saved.
    IntentDroppedEarly,
    /// A call without a response counts as failed.
    TimeoutIsFinal,
    /// The failure of a call counts for earlier calls, too.
    FailureCoversEarlierCalls,
    /// A volume whose handle another PersistentVolume has is deleted.
    HandleOwnerIgnored,
    /// Attached volumes are deleted.
    AttachmentsIgnored,
    /// A volume is deleted based on a stale cache.
    DeletesFromCache,
    /// A call with an unknown result is repeated without end.
    NoBound,
    /// An intent is dropped without recording what may exist.
    SuspectNotRecorded,
}

impl Bug {
    pub(super) const ALL: [Self; 10] = [
        Self::NoIntent,
        Self::ConcurrentWork,
        Self::IntentDroppedEarly,
        Self::TimeoutIsFinal,
        Self::FailureCoversEarlierCalls,
        Self::HandleOwnerIgnored,
        Self::AttachmentsIgnored,
        Self::DeletesFromCache,
        Self::NoBound,
        Self::SuspectNotRecorded,
    ];
}

/// An event that can happen next.
#[derive(Debug, Clone)]
enum Event {
    CreateClaim(&'static str),
    DeleteClaim(String),
    ReplaceClass,
    SetRetain(String),
    Attach(String),
    Detach(String),
    Bind(String, BindingAction),
    /// The cache catches up with one PersistentVolume, or with all claims and attachments.
    RefreshVolume(String),
    RefreshOthers,
    StartWork(String),
    Effect(usize, CallOutcome),
    DeliverResponse(usize),
    FinishDelayed(usize),
    Crash,
    /// Crashes, and does not run for two days.
    CrashForDays,
    LoseLease,
    UpstreamStep,
    AcquireLease,
}

pub(super) struct World {
    bug: Option<Bug>,
    api: Api,
    backend: Backend,
    process: Process,
    leader: bool,
    now: Time,
    trace: Vec<String>,
}

impl World {
    pub(super) fn new(bug: Option<Bug>) -> Self {
        let api = Api::default();
        let process = Process::start(&api);
        let now = Time(1_000_000);
        Self { bug, api, backend: Backend::default(), process, leader: true, now, trace: Vec::new() }
    }

    pub(super) fn trace(&self) -> String {
        self.trace.join("\n")
    }

    fn possible(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for name in NAMES {
            match self.api.claims.get(name) {
                None => events.push(Event::CreateClaim(name)),
                // Also while its volume is attached: the pod is gone, the detach follows.
                Some(_) => events.push(Event::DeleteClaim(name.to_owned())),
            }
        }
        for (name, pv) in &self.api.volumes {
            if let Some(what) = self.api.next_binding(name) {
                events.push(Event::Bind(name.clone(), what));
            }
            let delete = pv.spec.persistent_volume_reclaim_policy == ReclaimPolicy::Delete;
            let late =
                pv.spec.csi.as_ref().is_some_and(|csi| self.backend.deletion_requested(&csi.volume_handle));
            let attached = self.api.attachments.contains_key(name);
            // By a pod, which prevents the deletion of its claim.
            let claimed = self.api.claims.values().any(|claim| pv.is_bound_to(&claim.metadata));
            match pv.status.phase {
                VolumePhase::Bound if claimed && !attached => events.push(Event::Attach(name.clone())),
                VolumePhase::Released if delete && !late => {
                    events.push(Event::SetRetain(name.clone()));
                }
                _ => {}
            }
        }
        events.extend(self.api.attachments.keys().cloned().map(Event::Detach));
        let known = self.api.volumes.keys().chain(self.process.cache.volumes.keys());
        let stale = known.filter(|name| self.api.volumes.get(*name) != self.process.cache.volumes.get(*name));
        events.extend(stale.cloned().map(Event::RefreshVolume));
        events.push(Event::RefreshOthers);
        if !self.api.journal.is_empty() {
            events.push(Event::ReplaceClass);
        }
        if self.backend.is_running() {
            events.push(Event::FinishDelayed(0));
        }
        if self.leader {
            events.extend(self.process.volumes().into_iter().map(Event::StartWork));
            for (which, work) in self.process.work.iter().enumerate() {
                match work.has_effect() {
                    true => events.push(Event::DeliverResponse(which)),
                    false => events.extend(CallOutcome::ALL.map(|outcome| Event::Effect(which, outcome))),
                }
            }
            events.extend([Event::Crash, Event::CrashForDays, Event::LoseLease]);
        } else {
            events.extend([Event::UpstreamStep, Event::AcquireLease]);
        }
        events
    }

    /// Applies one of the possible events.
    pub(super) fn step(&mut self, choice: u16) -> Result<(), String> {
        let events = self.possible();
        let event = events[usize::from(choice) % events.len()].clone();
        self.now.0 += 1000;
        let outcome = self.apply_event(&event);
        if let Err(violation) = &outcome {
            self.trace.push(format!("WRONG: {violation}"));
        }
        outcome
    }

    fn apply_event(&mut self, event: &Event) -> Result<(), String> {
        if !matches!(event, Event::StartWork(_)) {
            self.trace.push(format!("{event:?}"));
        }
        match event {
            Event::CreateClaim(name) => self.api.create_claim(name),
            Event::DeleteClaim(name) => drop(self.api.claims.remove(name)),
            Event::ReplaceClass => self.api.replace_class(),
            Event::SetRetain(name) => {
                let uid = self.api.volumes[name].metadata.uid.clone();
                self.api.change(name, &uid, |volume| {
                    volume.spec.persistent_volume_reclaim_policy = ReclaimPolicy::Retain;
                });
            }
            Event::Attach(name) => drop(self.api.attachments.insert(name.clone(), name.clone())),
            Event::Detach(name) => drop(self.api.attachments.remove(name)),
            Event::Bind(name, what) => self.api.apply_binding(name, what),
            // A volume is released long after its last attachment was created: a cache that has the one has the other.
            Event::RefreshVolume(name) => {
                self.process.refresh(&self.api, name);
                self.process.cache.attachments.clone_from(&self.api.attachments);
            }
            Event::RefreshOthers => {
                self.process.cache.claims.clone_from(&self.api.claims);
                self.process.cache.copy_class(&self.api);
                self.process.cache.attachments.clone_from(&self.api.attachments);
            }
            Event::StartWork(name) => {
                if let Some(line) = self.process.start_work(name, self.bug, self.now) {
                    self.trace.push(line);
                }
            }
            Event::Effect(which, outcome) => {
                let Self { process, api, backend, bug, .. } = self;
                process.effect(*which, api, backend, *outcome, *bug)?;
            }
            Event::DeliverResponse(which) => self.process.deliver(*which),
            Event::FinishDelayed(which) => self.finish_delayed(*which)?,
            Event::Crash => self.process = Process::start(&self.api),
            Event::CrashForDays => {
                self.now.0 += DAYS;
                self.process = Process::start(&self.api);
            }
            Event::LoseLease => {
                self.leader = false;
                self.process.work.clear();
            }
            Event::UpstreamStep => self.upstream()?,
            Event::AcquireLease => {
                self.leader = true;
                self.process.new_term(&self.api);
            }
        }
        Ok(())
    }

    fn finish_delayed(&mut self, which: usize) -> Result<(), String> {
        match self.backend.finish_delayed(which) {
            // The deletion was right when it was requested, and nothing can have bound the volume since.
            Some(handle) => check_unused(&self.api, &handle),
            None => Ok(()),
        }
    }

    /// Upstream's provisioner, without faults: provisions one claim or deletes one released volume.
    fn upstream(&mut self) -> Result<(), String> {
        let mut other = Process::start(&self.api);
        other.cache.journal.clear();
        for name in other.volumes() {
            match other.decide(&name, None, self.now) {
                (ProvisionStep::WriteIntent(intent), _) => {
                    let Ok(handle) = self.backend.create(&name, &intent.request, CallOutcome::Succeeds)?
                    else {
                        continue;
                    };
                    let created = CreatedVolume { handle, ..CreatedVolume::default() };
                    self.api.create(&volume::build_pv(&intent, &created, &config(), false).unwrap());
                    return Ok(());
                }
                (
                    ProvisionStep::Reclaim(super::super::reclaim::ReclaimStep::DeleteVolume {
                        handle, ..
                    }),
                    _,
                ) => {
                    check_unused(&self.api, &handle)?;
                    if self.backend.delete(&handle, CallOutcome::Succeeds).is_ok() {
                        self.api.volumes.remove(&name);
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The driver fails every call from now on and never recovers. All waiting for it has to end, except for claims
    /// that need its answer.
    pub(super) fn break_driver(&mut self, outcome: CallOutcome) -> Result<(), String> {
        self.trace.push(format!("from now on every call is {outcome:?}"));
        self.leader = true;
        self.process.new_term(&self.api);
        for _ in 0..BROKEN_ROUNDS {
            self.now.0 += MINUTE;
            self.round(outcome)?;
        }
        let class = self.api.class().metadata.uid;
        let needed = |volume: &String| {
            let intent = &self.api.journal[volume];
            let claim = self.api.claims.get(&intent.claim.name);
            claim.is_some_and(|claim| claim.metadata.uid == intent.claim.uid) && intent.class_uid == class
        };
        match self.api.journal.keys().find(|volume| !needed(volume) && !self.process.knows(volume)) {
            Some(volume) => Err(format!("the intent for {volume} is never dropped")),
            None => Ok(()),
        }
        .inspect_err(|violation| self.trace.push(format!("WRONG: {violation}")))
    }

    /// Without user actions and faults the system has to converge to a consistent state.
    pub(super) fn converge(&mut self) -> Result<(), String> {
        self.trace.push("converge without faults".to_owned());
        self.leader = true;
        self.process.new_term(&self.api);
        for _ in 0..CONVERGE_ROUNDS {
            self.round(CallOutcome::Succeeds)?;
        }
        self.check_invariants().inspect_err(|violation| self.trace.push(format!("WRONG: {violation}")))
    }

    /// One step for each volume, after all that is pending has happened. The driver's calls have this outcome.
    fn round(&mut self, outcome: CallOutcome) -> Result<(), String> {
        self.api.attachments.clear();
        while self.backend.is_running() {
            self.finish_delayed(0)?;
        }
        for name in self.api.volumes.keys().cloned().collect::<Vec<_>>() {
            while let Some(what) = self.api.next_binding(&name) {
                self.api.apply_binding(&name, &what);
            }
        }
        let known = std::mem::take(&mut self.process.cache.journal);
        self.process.cache = self.api.clone();
        self.process.cache.journal = known;
        for volume in self.process.volumes() {
            self.now.0 += 1000;
            if let Some(line) = self.process.start_work(&volume, self.bug, self.now)
                && self.trace.last() != Some(&line)
            {
                self.trace.push(line);
            }
            while let Some(which) = self.process.work.len().checked_sub(1) {
                let Self { process, api, backend, bug, .. } = self;
                process.effect(which, api, backend, outcome, *bug)?;
                process.deliver(which);
            }
        }
        Ok(())
    }

    fn check_invariants(&self) -> Result<(), String> {
        let Api { claims, volumes, journal, .. } = &self.api;
        if let Some(volume) = journal.keys().next() {
            return Err(format!("the intent for {volume} was never removed"));
        }
        let handle_of = |volume: &Arc<wharf_model::PersistentVolume>| {
            volume.spec.csi.as_ref().map(|csi| csi.volume_handle.clone()).unwrap_or_default()
        };
        let recorded: Vec<String> = volumes.values().map(handle_of).collect();
        let handles = self.backend.handles();
        let suspected = |handle: &str| self.api.suspects.contains(self.backend.name_of(handle));
        let leaked = |handle: &&&str| !recorded.iter().any(|of| of == **handle) && !suspected(handle);
        if let Some(leaked) = handles.iter().find(leaked) {
            return Err(format!("{leaked} leaked: no PersistentVolume refers to it"));
        }
        for (name, pv) in volumes {
            let handle = handle_of(pv);
            if !handles.contains(&handle.as_str()) {
                return Err(format!("{name} refers to {handle}, which does not exist"));
            }
            let claimed = claims.values().any(|claim| pv.is_bound_to(&claim.metadata));
            let kept = pv.spec.persistent_volume_reclaim_policy != ReclaimPolicy::Delete;
            if !claimed && !kept {
                return Err(format!("{name} has no claim and was not deleted"));
            }
            if pv.metadata.is_deleting() {
                return Err(format!("the deletion of {name} never completes"));
            }
        }
        for claim in claims.values() {
            let name = config().settings.naming.name(&claim.metadata.uid).unwrap_or_default();
            let taken = volumes.get(&name).is_some_and(|volume| !volume.is_bound_to(&claim.metadata));
            if claim.spec.volume_name.is_empty() && !taken {
                return Err(format!("claim {} ({}) got no volume", claim.metadata.name, claim.metadata.uid));
            }
        }
        Ok(())
    }
}
