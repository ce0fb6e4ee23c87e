//! The rules under a thousand schedules: contents come and go at any time, watches are behind, calls fail or succeed
//! unheard, snapshots need time to be ready, classes vanish, the snapshotter dies between any two steps, and the lease
//! moves between two of them while calls are under way. One seed, one story.
//!
//! Asserted: in the end every content that stays is ready, every other one is gone, and the driver has exactly the
//! snapshots of those that stay and, maybe, of those that were retained.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tonic::Code;
use wharf_cluster::Backoff;
use wharf_model::Time;
use wharf_model::names::VolumeNaming;
use wharf_model::patch::Patch;
use wharf_model::snapshot::names;

use super::decide::{Step, decide};
use super::groups::Place;
use super::memory::{Doing, Failed, Memory};
use super::request::{Call, Deletion};
use super::status::Answer;
use super::view::{Class, Object, Rules, View};
use crate::attacher::simulate::Chance;
use crate::driver::Capabilities;
use world::World;

mod world;

const CONTENTS: u64 = 3;
const TICKS: usize = 240;

/// What can be wrong with the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A final answer counts for ever, whoever has asked the driver since.
    AnyVersion,
    /// The mark comes and the finalizer goes whatever the content says by now.
    Unguarded,
    /// The driver is asked without a mark.
    NoMark,
    /// A refusal of a call that lacks its class counts.
    LackingProves,
    /// The driver is asked to make what the store believes in.
    Unconfirmed,
    /// Whatever ends a call is taken for the end of those that somebody else made under the mark.
    AnyCaller,
}

/// A step that a worker is at.
#[derive(Clone)]
struct Running {
    content: String,
    uid: String,
    version: String,
    confirmed: bool,
    step: Step,
}

/// A snapshotter: what it remembers and is at.
#[derive(Default)]
struct Process {
    memories: BTreeMap<String, Memory>,
    running: Vec<Running>,
}

/// What must not be in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Trouble {
    /// A snapshot that nobody knows.
    Leaked(BTreeSet<String>),
    /// A content that is not as it should be.
    Left(String),
}

/// A snapshot in the driver.
#[derive(Debug, Clone)]
struct Cut {
    handle: String,
    looks: u64,
}

struct Simulation {
    bug: Bug,
    chance: Chance,
    rules: Rules,
    world: World,
    now: Time,
    processes: [Process; 2],
    leader: usize,
    /// The driver's, by name.
    cuts: BTreeMap<String, Cut>,
    made: u64,
    class: bool,
    parameters: BTreeMap<String, String>,
    /// Whether calls and writes may fail.
    trouble: bool,
}

fn is_call(running: &Running) -> bool {
    matches!(running.step, Step::Ask { .. } | Step::Delete { .. })
}

/// A patch without the test of what its path ends with.
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

fn name_of(content: &str) -> String {
    format!("snapshot-vs-{content}")
}

impl Simulation {
    fn new(seed: u64, bug: Bug) -> Self {
        let can = Capabilities {
            controller_service: true,
            create_delete_snapshot: true,
            ..Capabilities::default()
        };
        let naming = |prefix: &str| VolumeNaming { prefix: prefix.into(), uuid_length: None };
        let rules = Rules {
            driver: "d.test".into(),
            can,
            naming: naming("snapshot"),
            group_naming: naming("groupsnapshot"),
            extra_create_metadata: false,
            node: None,
        };
        Self {
            bug,
            chance: Chance(seed),
            rules,
            world: World::default(),
            now: Time(1_000_000),
            processes: Default::default(),
            leader: 0,
            cuts: BTreeMap::new(),
            made: 0,
            class: true,
            parameters: BTreeMap::from([("pool".to_owned(), "fast".to_owned())]),
            trouble: true,
        }
    }

    fn run(mut self) -> Result<(), Trouble> {
        for _ in 0..TICKS {
            match self.chance.below(40) {
                0 | 1 => self.create(),
                2 | 3 => self.go(),
                4..=9 => self.tell(),
                10..=22 => self.start(),
                23..=36 => self.finish(),
                37 => self.now = Time(self.now.0 + self.chance.below(40_000) as i64),
                38 => self.class = self.chance.one_in(2),
                _ if self.chance.one_in(2) => self.lose_lease(),
                _ => self.crash(),
            }
        }
        self.end()
    }

    /// The controller makes a content, sometimes with its finalizer.
    fn create(&mut self) {
        let name = format!("c{}", self.chance.below(CONTENTS));
        if self.world.objects.contains_key(&name) || self.world.known.contains(&name) {
            return;
        }
        let finalizers = if self.chance.one_in(2) { json!([names::CONTENT_PROTECTION]) } else { json!([]) };
        let others = self.chance.one_in(8);
        let policy = if self.chance.one_in(5) { "Retain" } else { "Delete" };
        let mut content = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "finalizers": finalizers},
            "spec": {
                "driver": "d.test", "deletionPolicy": policy, "volumeSnapshotClassName": "class",
                "volumeSnapshotRef": {"name": "s", "namespace": "ns", "uid": format!("vs-{name}")},
                "source": {"volumeHandle": format!("v-{name}")},
            },
        });
        if others {
            content["metadata"]["finalizers"] = json!([names::CONTENT_PROTECTION, "others/own"]);
        }
        self.world.put(content);
    }

    /// The snapshot of a content goes, or somebody deletes the content before.
    fn go(&mut self) {
        let names: Vec<String> = self.world.objects.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = &names[self.chance.below(names.len() as u64) as usize];
        if self.chance.one_in(2) {
            self.world.annotate(name, names::BEING_DELETED);
        }
        if self.chance.one_in(2) {
            self.world.delete(name);
        }
        if self.chance.one_in(4) {
            self.world.let_go(name, "others/own");
        }
    }

    fn tell(&mut self) {
        let who = self.chance.below(2) as usize;
        self.world.tell(who);
    }

    /// The other one leads. A lease is longer than a write: those have landed, or will not. Calls go on in the driver.
    fn lose_lease(&mut self) {
        let who = self.leader;
        let (calls, writes) = std::mem::take(&mut self.processes[who].running).into_iter().partition(is_call);
        self.processes[who].running = calls;
        let writes: Vec<Running> = writes;
        for running in writes {
            if self.chance.one_in(2) {
                self.effect(who, &running, false);
            }
        }
        for memory in self.processes[who].memories.values_mut() {
            memory.settled = false;
        }
        self.leader = 1 - who;
    }

    fn crash(&mut self) {
        let who = self.leader;
        for running in std::mem::take(&mut self.processes[who].running) {
            // The driver may have got the call, the server the write.
            if self.chance.one_in(2) {
                self.effect(who, &running, true);
            }
        }
        self.processes[who].memories.clear();
        self.world.relist(who);
        if self.chance.one_in(2) {
            self.leader = 1 - self.leader;
        }
    }

    /// A worker of the leader takes a content that none of its workers is at.
    fn start(&mut self) {
        let who = self.leader;
        let busy: BTreeSet<&String> =
            self.processes[who].running.iter().map(|running| &running.content).collect();
        let mut free: Vec<String> =
            self.world.seen[who].keys().filter(|name| !busy.contains(name)).cloned().collect();
        if free.is_empty() {
            return;
        }
        let content = free.swap_remove(self.chance.below(free.len() as u64) as usize);
        self.begin(who, content, false);
    }

    fn begin(&mut self, who: usize, content: String, confirmed: bool) {
        let Some(seen) = self.world.seen[who].get(&content) else { return };
        let object = Object::Snapshot(seen.clone());
        let meta = object.meta().clone();
        let mut memory = self.processes[who].memories.get(&meta.uid).cloned().unwrap_or_default();
        if self.bug == Bug::AnyVersion
            && let Some(ended) = memory.failure.as_mut().and_then(|failure| failure.ended.as_mut())
        {
            ended.clone_from(&meta.resource_version);
        }
        let class = match self.class {
            true => Class::Found { driver: "d.test", parameters: &self.parameters },
            false => Class::Gone("class"),
        };
        let confirmed = confirmed || self.bug == Bug::Unconfirmed;
        let place = Place::Ours;
        let view = View { rules: &self.rules, object: &object, class, place, memory: &memory, confirmed };
        let step = match decide(&view, self.now) {
            Step::Done | Step::Wait(_) => return,
            Step::Mark { ask, .. } if self.bug == Bug::NoMark => Step::Ask { doing: Doing::Create, ask },
            Step::Unmark { patch: Patch::Merge(mut body) } if self.bug == Bug::AnyVersion => {
                body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
                Step::Unmark { patch: Patch::Merge(body) }
            }
            Step::Mark { patch, ask } if self.bug == Bug::Unguarded => {
                Step::Mark { patch: without(patch, names::BEING_DELETED), ask }
            }
            Step::Release { patch } if self.bug == Bug::Unguarded => {
                Step::Release { patch: without(patch, "resourceVersion") }
            }
            step => step,
        };
        self.processes[who].running.push(Running {
            content,
            uid: meta.uid,
            version: meta.resource_version,
            confirmed,
            step,
        });
    }

    /// A step ends; its worker goes on with the same content if it still has the lease.
    fn finish(&mut self) {
        let who = self.chance.below(2) as usize;
        if self.processes[who].running.is_empty() {
            return;
        }
        let at = self.chance.below(self.processes[who].running.len() as u64) as usize;
        let running = self.processes[who].running.swap_remove(at);
        let content = running.content.clone();
        let confirmed = self.effect(who, &running, false) || running.confirmed;
        if who == self.leader {
            self.begin(who, content, confirmed);
        }
    }

    /// What a step does; with `lost` nobody hears of it. Says whether the server has shown the content.
    fn effect(&mut self, who: usize, running: &Running, lost: bool) -> bool {
        match &running.step {
            Step::Done | Step::Wait(_) => false,
            Step::Confirm => self.world.read(who, &running.content),
            Step::Ask { doing, ask } => {
                self.asked(who, running, *doing, &ask.call, ask.whole, lost);
                false
            }
            Step::Delete { ask } => {
                self.deleted(who, running, &ask.call, lost);
                false
            }
            Step::Refuse { doing, why } => {
                self.failed(who, running, *doing, &why.to_string(), None, None, lost);
                false
            }
            Step::Mark { patch, .. } => {
                let fits = self.world.fits(&running.content, patch);
                let written = self.write(who, running, patch, lost);
                if written && fits && !lost {
                    self.remember(who, running).settled = true;
                }
                written
            }
            Step::Claim { patch }
            | Step::Unmark { patch }
            | Step::Clear { patch }
            | Step::Release { patch } => self.write(who, running, patch, lost),
            Step::Tell { patch } => {
                let written = self.write(who, running, patch, lost);
                if written && !lost {
                    self.remember(who, running).is_written();
                }
                written
            }
            Step::Report { patch } => {
                let written = patch.as_ref().is_some_and(|patch| self.write(who, running, patch, lost));
                if let Some(failure) = self.remember(who, running).failure.as_mut().filter(|_| !lost) {
                    failure.reported = true;
                }
                written
            }
        }
    }

    /// A write; the server may be away.
    fn write(&mut self, who: usize, running: &Running, patch: &Patch, lost: bool) -> bool {
        if self.trouble && self.chance.one_in(8) {
            return false;
        }
        self.world.patch(if lost { None } else { Some(who) }, &running.content, patch)
    }

    /// Whether another call of the same name is under way: drivers refuse the second one.
    fn is_pending(&self, who: usize, running: &Running) -> bool {
        let same = |other: &Running| other.content == running.content && is_call(other);
        self.processes[1 - who].running.iter().any(same)
    }

    fn asked(&mut self, who: usize, running: &Running, doing: Doing, call: &Call, whole: bool, lost: bool) {
        let Call::Create(request) = call else { panic!("nothing else is asked here: {call:?}") };
        let proves = whole || self.bug == Bug::LackingProves;
        let fail = |this: &mut Self, code| {
            let asked_at = proves.then(|| running.version.clone());
            this.failed(who, running, doing, "refused", Some(code), asked_at, lost);
        };
        if self.is_pending(who, running) {
            return fail(self, Code::Aborted);
        }
        if request.parameters.is_empty() && self.chance.one_in(2) {
            // A driver that wants its parameters before anything else.
            return fail(self, Code::InvalidArgument);
        }
        let (before, after) = match self.chance.below(8) {
            _ if !self.trouble => (None, None),
            0 => (Some(Code::Internal), None),
            1 => (Some(Code::Unavailable), None),
            2 => (None, Some(Code::DeadlineExceeded)),
            _ => (None, None),
        };
        // Also of what is there: that this call went wrong says nothing of those before it.
        if let Some(code) = before {
            return fail(self, code);
        }
        self.made += 1;
        let (made, looks) = (self.made, self.chance.below(4));
        let cut = self
            .cuts
            .entry(request.name.clone())
            .or_insert_with(|| Cut { handle: format!("{}#{made}", request.name), looks });
        let ready = cut.looks == 0;
        cut.looks = cut.looks.saturating_sub(1);
        let answer = Answer { handle: cut.handle.clone(), ready, created: 1, size: 1, ..Answer::default() };
        if let Some(code) = after {
            return fail(self, code);
        }
        if !lost {
            let now = self.now;
            self.remember(who, running).has_answered(answer, now);
        }
    }

    fn deleted(&mut self, who: usize, running: &Running, call: &Deletion, lost: bool) {
        let Deletion::Snapshot(request) = call else { panic!("no groups here: {call:?}") };
        let pending = self.is_pending(who, running);
        let (fails, acts) = match self.chance.below(6) {
            _ if pending => (true, false),
            0 if self.trouble => (true, false),
            1 if self.trouble => (true, true),
            _ => (false, true),
        };
        if acts {
            self.cuts.retain(|_, cut| cut.handle != request.snapshot_id);
        }
        if fails {
            return self.failed(who, running, Doing::Delete, "refused", Some(Code::Aborted), None, lost);
        }
        if !lost {
            self.remember(who, running).has_deleted();
        }
    }

    fn remember(&mut self, who: usize, running: &Running) -> &mut Memory {
        self.processes[who].memories.entry(running.uid.clone()).or_default()
    }

    #[allow(clippy::too_many_arguments, reason = "each is said once")]
    fn failed(
        &mut self,
        who: usize,
        running: &Running,
        doing: Doing,
        message: &str,
        code: Option<Code>,
        asked_at: Option<String>,
        lost: bool,
    ) {
        if lost {
            return;
        }
        let backoff = Backoff { jitter: || 0.0, ..Backoff::default() };
        let failed = Failed { doing, message: message.to_owned(), code, soon: false, asked_at };
        let (now, any_caller) = (self.now, self.bug == Bug::AnyCaller);
        let memory = self.remember(who, running);
        memory.settled |= any_caller;
        memory.has_failed(failed, backoff, now);
    }

    /// What was begun is ended, and nobody is in trouble any more.
    fn end(mut self) -> Result<(), Trouble> {
        (self.trouble, self.class) = (false, true);
        for name in self.world.objects.keys().cloned().collect::<Vec<_>>() {
            // Who has lost its snapshot or its content loses the other.
            if self.world.is_deleting(&name) || self.world.has(&name, names::BEING_DELETED) {
                self.world.annotate(&name, names::BEING_DELETED);
                self.world.delete(&name);
                self.world.let_go(&name, "others/own");
            }
        }
        for round in 0..1_000 {
            self.now = Time(self.now.0 + 20_000);
            self.tell();
            self.start();
            self.finish();
            if round % 20 == 0 && self.is_at_rest() {
                break;
            }
        }
        self.verdict()
    }

    /// Whether nobody is at anything, and everybody knows all.
    fn is_at_rest(&self) -> bool {
        let busy = self.processes.iter().any(|process| !process.running.is_empty());
        !busy && self.world.is_told() && self.verdict().is_ok()
    }

    fn verdict(&self) -> Result<(), Trouble> {
        let mut allowed = self.world.retained();
        for (name, object) in &self.world.objects {
            let status = &object["status"];
            let handle = self.cuts.get(&name_of(name)).map(|cut| cut.handle.as_str());
            let whole = handle.is_some()
                && status["readyToUse"] == json!(true)
                && status["snapshotHandle"].as_str() == handle
                && !self.world.has(name, names::BEING_CREATED)
                && !self.world.is_deleting(name);
            if !whole {
                return Err(Trouble::Left(format!("{object} and the driver has {handle:?}")));
            }
            allowed.insert(name_of(name));
        }
        let leaked: BTreeSet<String> =
            self.cuts.keys().filter(|name| !allowed.contains(*name)).cloned().collect();
        if leaked.is_empty() { Ok(()) } else { Err(Trouble::Leaked(leaked)) }
    }
}

#[test]
fn a_thousand_stories_end_well() {
    for seed in 0..1_000 {
        if let Err(trouble) = Simulation::new(seed, Bug::None).run() {
            panic!("seed {seed}: {trouble:?}");
        }
    }
}

/// The simulation finds what it is for.
#[test]
fn planted_bugs_are_found() {
    for bug in
        [Bug::AnyVersion, Bug::Unguarded, Bug::NoMark, Bug::LackingProves, Bug::Unconfirmed, Bug::AnyCaller]
    {
        let leaks =
            (0..1_000).any(|seed| matches!(Simulation::new(seed, bug).run(), Err(Trouble::Leaked(_))));
        assert!(leaks, "{bug:?} leaks nothing in a thousand stories");
    }
}
