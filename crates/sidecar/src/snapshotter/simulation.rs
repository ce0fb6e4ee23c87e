//! Simulation of the rules under a thousand random schedules. Contents are created and deleted at any time, caches
//! are stale, calls fail or succeed with a lost response, snapshots take time to become ready, classes are deleted,
//! the snapshotter crashes between any two steps, and the lease moves between two replicas while calls are in
//! flight. One seed determines one schedule.
//!
//! In two of three runs the driver then fails every call for hours. Asserted: each content in deletion goes, unless its
//! snapshot is known and has to be deleted first.
//!
//! Asserted in the end: every content that was not deleted is ready, every other one is gone, and the driver holds
//! exactly the snapshots of the remaining contents and, possibly, of retained ones and of recorded suspects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;
use wharf_cluster::Backoff;
use wharf_model::names::VolumeNaming;
use wharf_model::patch::Patch;
use wharf_model::snapshot::names;
use wharf_model::testing::{PatchResult, SeededRng, SimulatedApi};
use wharf_model::{Monotonic, Time};

use super::decide::{Step, decide};
use super::ownership::Ownership;
use super::patches::SnapshotInfo;
use super::request::{Call, DeleteCall};
use super::state::{Action, ContentState, FailedAttempt};
use super::view::{Class, Object, Rules, View};
use crate::driver::Capabilities;

mod contents;

const CONTENTS: u64 = 3;
const TICKS: usize = 240;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Content,
}

/// Bugs that can be planted into the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A final error counts at any resourceVersion, even if another process has called the driver since.
    AnyVersion,
    /// Mark and finalizer are changed regardless of the content's current state.
    Unguarded,
    /// The driver is called without a mark.
    NoMark,
    /// The rejection of an incomplete call counts as final.
    IncompleteCallProves,
    /// CreateSnapshot is called based on the cache alone.
    Unconfirmed,
    /// The final error of our own call is taken as the end of other processes' calls under the same mark.
    AnyCaller,
    /// A content in deletion waits without end for a conclusive answer.
    NoBound,
    /// The mark is removed without recording what may exist.
    SuspectNotRecorded,
}

/// A step in progress.
#[derive(Clone)]
struct Running {
    content: String,
    uid: String,
    version: String,
    confirmed: bool,
    /// The content is being deleted: a call only finds out what there is to delete.
    unwanted: bool,
    step: Step,
}

/// A snapshotter process: its state and the steps in progress.
#[derive(Default)]
struct Process {
    states: BTreeMap<String, ContentState>,
    running: Vec<Running>,
}

/// A violated end condition.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Violation {
    /// The driver has a snapshot that no content names.
    Leaked(BTreeSet<String>),
    /// A content is in the wrong state.
    Left(String),
}

/// A snapshot in the driver.
#[derive(Debug, Clone)]
struct DriverSnapshot {
    handle: String,
    polls_until_ready: u64,
}

struct Simulation {
    bug: Bug,
    chance: SeededRng,
    rules: Rules,
    world: SimulatedApi<Kind>,
    /// All contents that ever existed: names are not reused.
    known: BTreeSet<String>,
    /// Contents whose snapshots the driver may keep.
    retained: BTreeSet<String>,
    /// The names of snapshots that were recorded as suspects.
    suspects: BTreeSet<String>,
    /// The driver fails every call with this code.
    broken: Option<Code>,
    now: Monotonic,
    processes: [Process; 2],
    leader: usize,
    /// The driver's snapshots by name.
    snapshots: BTreeMap<String, DriverSnapshot>,
    created_count: u64,
    class: bool,
    parameters: BTreeMap<String, String>,
    /// Whether calls and writes may fail.
    faults: bool,
}

fn is_call(running: &Running) -> bool {
    matches!(running.step, Step::CallDriver { .. } | Step::DeleteSnapshot { .. })
}

/// Removes from a patch the tests of paths that end with `what`.
fn without(patch: Patch, what: &str) -> Patch {
    let what = what.replace('/', "~1");
    match patch {
        Patch::Json(Value::Array(mut operations)) => {
            operations.retain(|operation| {
                let path = operation["path"].as_str().unwrap_or_default();
                operation["op"] != "test" || !path.ends_with(&what)
            });
            Patch::Json(Value::Array(operations))
        }
        other => other,
    }
}

/// Whether the response shows that the content exists.
fn is_confirmed(result: Option<PatchResult>) -> bool {
    matches!(result, Some(PatchResult::Applied | PatchResult::Rejected))
}

fn name_of(content: &str) -> String {
    format!("snapshot-vs-{content}")
}

impl Simulation {
    fn new(seed: u64, bug: Bug) -> Self {
        let capabilities = Capabilities {
            controller_service: true,
            create_delete_snapshot: true,
            ..Capabilities::default()
        };
        let naming = |prefix: &str| VolumeNaming { prefix: prefix.into(), uuid_length: None };
        let rules = Rules {
            driver: "d.test".into(),
            capabilities,
            naming: naming("snapshot"),
            group_naming: naming("groupsnapshot"),
            extra_create_metadata: false,
            poll_interval_max: Duration::from_secs(300),
            node: None,
        };
        Self {
            bug,
            chance: SeededRng::new(seed),
            rules,
            world: SimulatedApi::new(2),
            known: BTreeSet::new(),
            retained: BTreeSet::new(),
            suspects: BTreeSet::new(),
            broken: None,
            now: Monotonic(1_000_000),
            processes: Default::default(),
            leader: 0,
            snapshots: BTreeMap::new(),
            created_count: 0,
            class: true,
            parameters: BTreeMap::from([("pool".to_owned(), "fast".to_owned())]),
            faults: true,
        }
    }

    fn run(mut self) -> Result<(), Violation> {
        for _ in 0..TICKS {
            match self.chance.below(40) {
                0 | 1 => self.create(),
                2 | 3 => self.user_deletes(),
                4..=9 => self.deliver_event(),
                10..=22 => self.start(),
                23..=36 => self.finish(),
                37 => self.now = Monotonic(self.now.0 + self.chance.below(40_000) as i64),
                38 => self.class = self.chance.one_in(2),
                _ if self.chance.one_in(2) => self.lose_lease(),
                _ => self.crash(),
            }
        }
        self.end()
    }

    fn deliver_event(&mut self) {
        let replica = self.chance.below(2) as usize;
        self.world.deliver(replica, Kind::Content);
    }

    /// The lease moves to the other replica. A lease outlasts any write, so writes have either landed or never
    /// will. Calls continue in the driver.
    fn lose_lease(&mut self) {
        let replica = self.leader;
        let (calls, writes) =
            std::mem::take(&mut self.processes[replica].running).into_iter().partition(is_call);
        self.processes[replica].running = calls;
        let writes: Vec<Running> = writes;
        for running in writes {
            if self.chance.one_in(2) {
                self.effect(replica, &running, false);
            }
        }
        for state in self.processes[replica].states.values_mut() {
            let before = state.failure.clone();
            state.lease_lost();
            if self.bug == Bug::AnyVersion {
                state.failure = before;
            }
        }
        self.leader = 1 - replica;
    }

    fn crash(&mut self) {
        let replica = self.leader;
        for running in std::mem::take(&mut self.processes[replica].running) {
            // The driver may have received the call, the API server the write.
            if self.chance.one_in(2) {
                self.effect(replica, &running, true);
            }
        }
        self.processes[replica].states.clear();
        self.world.relist(replica);
        if self.chance.one_in(2) {
            self.leader = 1 - self.leader;
        }
    }

    /// A worker of the leader takes a content that no other worker handles.
    fn start(&mut self) {
        let replica = self.leader;
        let busy: BTreeSet<&String> =
            self.processes[replica].running.iter().map(|running| &running.content).collect();
        let mut free: Vec<String> = self
            .world
            .cached(replica)
            .keys()
            .map(|key| &key.1)
            .filter(|name| !busy.contains(name))
            .cloned()
            .collect();
        if free.is_empty() {
            return;
        }
        let content = free.swap_remove(self.chance.below(free.len() as u64) as usize);
        self.begin(replica, content, false);
    }

    fn begin(&mut self, replica: usize, content: String, confirmed: bool) {
        let Some(cached) = self.world.cached_object(replica, Kind::Content, &content) else { return };
        let object = Object::Snapshot(cached);
        let meta = object.meta().clone();
        let unwanted = object.is_being_deleted() && object.is_being_created();
        let mut state = self.processes[replica].states.get(&meta.uid).cloned().unwrap_or_default();
        if self.bug == Bug::AnyVersion
            && let Some(final_at_version) =
                state.failure.as_mut().and_then(|failure| failure.final_at_version.as_mut())
        {
            final_at_version.clone_from(&meta.resource_version);
        }
        let class = match self.class {
            true => Class::Found { driver: "d.test", parameters: &self.parameters },
            false => Class::NotFound("class"),
        };
        let confirmed = confirmed || self.bug == Bug::Unconfirmed;
        let ownership = Ownership::Ours;
        let view = View { rules: &self.rules, object: &object, class, ownership, state: &state, confirmed };
        let step = match decide(&view, self.now) {
            Step::Idle | Step::Wait(_) => return,
            Step::MarkBeingCreated { request, .. } if self.bug == Bug::NoMark => {
                Step::CallDriver { action: Action::Create, request }
            }
            Step::UnmarkBeingCreated { patch: Patch::Merge(mut body) } if self.bug == Bug::AnyVersion => {
                body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
                Step::UnmarkBeingCreated { patch: Patch::Merge(body) }
            }
            Step::MarkBeingCreated { patch, request } if self.bug == Bug::Unguarded => {
                Step::MarkBeingCreated { patch: without(patch, names::BEING_DELETED), request }
            }
            Step::RemoveFinalizer { patch } if self.bug == Bug::Unguarded => {
                Step::RemoveFinalizer { patch: without(patch, "resourceVersion") }
            }
            step => step,
        };
        self.processes[replica].running.push(Running {
            content,
            uid: meta.uid,
            version: meta.resource_version,
            confirmed,
            unwanted,
            step,
        });
    }

    /// A step ends. Its worker continues with the same content if the replica still holds the lease.
    fn finish(&mut self) {
        let replica = self.chance.below(2) as usize;
        if self.processes[replica].running.is_empty() {
            return;
        }
        let at = self.chance.below(self.processes[replica].running.len() as u64) as usize;
        let running = self.processes[replica].running.swap_remove(at);
        let content = running.content.clone();
        let confirmed = self.effect(replica, &running, false) || running.confirmed;
        if replica == self.leader {
            self.begin(replica, content, confirmed);
        }
    }

    /// Applies a step. With `response_lost` the process does not learn the result. Returns whether the API server
    /// returned the content.
    fn effect(&mut self, replica: usize, running: &Running, response_lost: bool) -> bool {
        match &running.step {
            // The simulation has one sidecar for all nodes, which locates nothing.
            Step::Idle | Step::Wait(_) | Step::LocateSnapshot { .. } => false,
            Step::ReadContent => {
                let exists = self.world.read(replica, Kind::Content, &running.content);
                if exists && !response_lost {
                    self.state_of(replica, running).held = true;
                }
                exists
            }
            Step::Abandon { patch, suspect } => {
                if self.bug != Bug::SuspectNotRecorded {
                    self.suspects.insert(suspect.name.clone());
                }
                is_confirmed(self.write(replica, running, patch, response_lost))
            }
            Step::CallDriver { action, request } => {
                self.create_called(replica, running, *action, &request.call, request.complete, response_lost);
                false
            }
            Step::DeleteSnapshot { request } => {
                self.delete_called(replica, running, &request.call, response_lost);
                false
            }
            Step::Refuse { action, refusal } => {
                self.failed(replica, running, *action, &refusal.to_string(), None, None, response_lost);
                false
            }
            Step::MarkBeingCreated { patch, .. } => {
                let result = self.write(replica, running, patch, response_lost);
                if result == Some(PatchResult::Applied) && !response_lost {
                    let state = self.state_of(replica, running);
                    (state.exclusive, state.held) = (true, true);
                }
                is_confirmed(result)
            }
            Step::ClaimForNode { patch }
            | Step::UnmarkBeingCreated { patch }
            | Step::ClearStatus { patch }
            | Step::RemoveFinalizer { patch } => {
                is_confirmed(self.write(replica, running, patch, response_lost))
            }
            Step::WriteStatus { patch } => {
                let written = is_confirmed(self.write(replica, running, patch, response_lost));
                if written && !response_lost {
                    self.state_of(replica, running).info_written();
                }
                written
            }
            Step::ReportFailure { patch } => {
                let result =
                    patch.as_ref().and_then(|patch| self.write(replica, running, patch, response_lost));
                if let Some(failure) =
                    self.state_of(replica, running).failure.as_mut().filter(|_| !response_lost)
                {
                    failure.reported = true;
                }
                is_confirmed(result)
            }
        }
    }

    /// A write, which fails at random.
    fn write(
        &mut self,
        replica: usize,
        running: &Running,
        patch: &Patch,
        response_lost: bool,
    ) -> Option<PatchResult> {
        if self.faults && self.chance.one_in(8) {
            return None;
        }
        let process = (!response_lost).then_some(replica);
        Some(self.world.patch(process, Kind::Content, &running.content, patch))
    }

    /// Whether another call for the same name is in flight: drivers reject the second one.
    fn is_pending(&self, replica: usize, running: &Running) -> bool {
        let same = |other: &Running| other.content == running.content && is_call(other);
        self.processes[1 - replica].running.iter().any(same)
    }

    fn create_called(
        &mut self,
        replica: usize,
        running: &Running,
        action: Action,
        call: &Call,
        complete: bool,
        response_lost: bool,
    ) {
        let Call::Create(request) = call else { panic!("unexpected call: {call:?}") };
        let conclusive = complete || self.bug == Bug::IncompleteCallProves;
        let fail = |this: &mut Self, code| {
            let called_at_version = conclusive.then(|| running.version.clone());
            this.failed(replica, running, action, "refused", Some(code), called_at_version, response_lost);
        };
        if self.is_pending(replica, running) {
            return fail(self, Code::Aborted);
        }
        if let Some(code) = self.broken {
            return fail(self, code);
        }
        if request.parameters.is_empty() && self.chance.one_in(2) {
            // A driver that validates its parameters first.
            return fail(self, Code::InvalidArgument);
        }
        let (before, after) = match self.chance.below(8) {
            _ if !self.faults => (None, None),
            0 => (Some(Code::Internal), None),
            1 => (Some(Code::Unavailable), None),
            2 => (None, Some(Code::DeadlineExceeded)),
            _ => (None, None),
        };
        // Also for an existing snapshot: the failure of this call says nothing about earlier ones.
        if let Some(code) = before {
            return fail(self, code);
        }
        self.created_count += 1;
        let (created_count, polls_until_ready) = (self.created_count, self.chance.below(4));
        let snapshot = self.snapshots.entry(request.name.clone()).or_insert_with(|| DriverSnapshot {
            handle: format!("{}#{created_count}", request.name),
            polls_until_ready,
        });
        let ready = snapshot.polls_until_ready == 0;
        snapshot.polls_until_ready = snapshot.polls_until_ready.saturating_sub(1);
        let info = SnapshotInfo {
            handle: snapshot.handle.clone(),
            ready,
            created: 1,
            size: 1,
            ..SnapshotInfo::default()
        };
        if let Some(code) = after {
            return fail(self, code);
        }
        if !response_lost {
            let now = self.now;
            self.state_of(replica, running).record_info(info, now);
        }
    }

    fn delete_called(&mut self, replica: usize, running: &Running, call: &DeleteCall, response_lost: bool) {
        let DeleteCall::Snapshot(request) = call else { panic!("unexpected group call: {call:?}") };
        let pending = self.is_pending(replica, running);
        let (fails, acts) = match self.chance.below(6) {
            _ if pending || self.broken.is_some() => (true, false),
            0 if self.faults => (true, false),
            1 if self.faults => (true, true),
            _ => (false, true),
        };
        if acts {
            self.snapshots.retain(|_, snapshot| snapshot.handle != request.snapshot_id);
        }
        if fails {
            return self.failed(
                replica,
                running,
                Action::Delete,
                "refused",
                Some(Code::Aborted),
                None,
                response_lost,
            );
        }
        if !response_lost {
            self.state_of(replica, running).record_deletion();
        }
    }

    fn state_of(&mut self, replica: usize, running: &Running) -> &mut ContentState {
        self.processes[replica].states.entry(running.uid.clone()).or_default()
    }

    #[allow(clippy::too_many_arguments, reason = "test helper; every argument is independent")]
    fn failed(
        &mut self,
        replica: usize,
        running: &Running,
        action: Action,
        message: &str,
        code: Option<Code>,
        called_at_version: Option<String>,
        response_lost: bool,
    ) {
        if response_lost {
            return;
        }
        let backoff = Backoff { jitter: || 0.0, ..Backoff::default() };
        let bounded = running.unwanted && action != Action::Delete && self.bug != Bug::NoBound;
        let failed = FailedAttempt {
            action,
            message: message.to_owned(),
            code,
            retry_soon: false,
            called_at_version,
            unwanted_at: bounded.then_some(self.now),
            api_failed: false,
        };
        let (now, any_caller) = (self.now, self.bug == Bug::AnyCaller);
        let state = self.state_of(replica, running);
        state.exclusive |= any_caller;
        state.record_failure(failed, backoff, Time(now.0), now);
    }

    /// Stops the faults and runs the schedule to its end.
    fn end(mut self) -> Result<(), Violation> {
        (self.faults, self.class) = (false, true);
        for name in self.names() {
            // If either the snapshot or the content was deleted, delete the other, too.
            if self.is_deleting(&name) || self.has_annotation(&name, names::BEING_DELETED) {
                self.mark_being_deleted(&name);
                self.world.delete(None, Kind::Content, &name);
                self.remove_other_finalizer(&name);
            }
        }
        self.broken = [None, Some(Code::Internal), Some(Code::Unavailable)][self.chance.below(3) as usize];
        if self.broken.is_some() {
            for _ in 0..1_500 {
                self.now = Monotonic(self.now.0 + 20_000);
                self.deliver_event();
                self.start();
                self.finish();
            }
            self.check_deletions()?;
            self.broken = None;
        }
        for round in 0..1_000 {
            self.now = Monotonic(self.now.0 + 20_000);
            self.deliver_event();
            self.start();
            self.finish();
            if round % 20 == 0 && self.is_quiescent() {
                break;
            }
        }
        self.check_end_state()
    }

    /// Whether no step is in progress and all events are delivered.
    fn is_quiescent(&self) -> bool {
        let busy = self.processes.iter().any(|process| !process.running.is_empty());
        !busy && self.world.all_delivered() && self.check_end_state().is_ok()
    }

    /// The driver does not recover: only a snapshot that is known to exist may delay the deletion of its content.
    fn check_deletions(&self) -> Result<(), Violation> {
        let waits = |((_, name), object): (&(Kind, String), &Value)| {
            let ends = self.is_deleting(name) && self.has_annotation(name, names::BEING_DELETED);
            (ends && object["status"]["snapshotHandle"].is_null()).then(|| name.clone())
        };
        match self.world.objects.iter().find_map(waits) {
            Some(name) => Err(Violation::Left(format!("the deletion of {name} never ends"))),
            None => Ok(()),
        }
    }

    fn check_end_state(&self) -> Result<(), Violation> {
        let mut allowed: BTreeSet<String> = self.retained.iter().map(|name| name_of(name)).collect();
        allowed.extend(self.suspects.iter().cloned());
        for ((_, name), object) in &self.world.objects {
            let status = &object["status"];
            let handle = self.snapshots.get(&name_of(name)).map(|snapshot| snapshot.handle.as_str());
            let complete = handle.is_some()
                && status["readyToUse"] == json!(true)
                && status["snapshotHandle"].as_str() == handle
                && !self.has_annotation(name, names::BEING_CREATED)
                && !self.is_deleting(name);
            if !complete {
                return Err(Violation::Left(format!("{object}; the driver has {handle:?}")));
            }
            allowed.insert(name_of(name));
        }
        let leaked: BTreeSet<String> =
            self.snapshots.keys().filter(|name| !allowed.contains(*name)).cloned().collect();
        if leaked.is_empty() { Ok(()) } else { Err(Violation::Leaked(leaked)) }
    }
}

#[test]
fn random_schedules_end_without_leaks() {
    for seed in 0..1_000 {
        if let Err(violation) = Simulation::new(seed, Bug::None).run() {
            panic!("seed {seed}: {violation:?}");
        }
    }
}

/// The simulation detects the bugs it was written for.
#[test]
fn planted_bugs_leak_snapshots() {
    for bug in [
        Bug::AnyVersion,
        Bug::Unguarded,
        Bug::NoMark,
        Bug::IncompleteCallProves,
        Bug::Unconfirmed,
        Bug::AnyCaller,
        Bug::SuspectNotRecorded,
    ] {
        let leaks =
            (0..1_000).any(|seed| matches!(Simulation::new(seed, bug).run(), Err(Violation::Leaked(_))));
        assert!(leaks, "{bug:?} leaks nothing in a thousand schedules");
    }
    let blocks = |seed| matches!(Simulation::new(seed, Bug::NoBound).run(), Err(Violation::Left(_)));
    assert!((0..1_000).any(blocks), "without a bound no deletion waits in a thousand schedules");
}
