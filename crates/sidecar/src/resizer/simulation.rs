//! The rules in a world that does what it likes: users change their minds, calls fail or get no answer, writes are
//! lost, the process crashes between any two steps, the lease moves. No server and no clock; a seed gives a tape of
//! choices, and a tape that breaks a promise is shortened before it is shown.

use std::time::Duration;

use wharf_csi::ErrorClass;
use wharf_model::claim::ResizeStatus;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Time, VolumeAttributesClass};

use super::decide::{Step, decide};
use super::memory::{ClassQuestion, Failure, Memory, SizeQuestion};
use super::view::{Can, Classes, Users, View, Where};
use super::write::{Write, write};
use world::{Call, Violation, World};

mod world;

/// Mistakes that the world must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// Expansion and modification of a claim have a queue key each.
    TwoKeys,
    /// A call without an answer counts as ended.
    UnknownIsFinal,
    /// The driver is asked before the claim says so.
    NoBegin,
    /// What was known before the lease was lost is known after.
    KeepsMemory,
    /// A size that was infeasible is tried again without saying so.
    InfeasibleUnmarked,
}

/// What an actor is about to do, or waits for.
#[derive(Clone)]
enum Doing {
    Nothing,
    Step(Step, Box<Snapshot>),
    Call(Call, Box<Snapshot>),
}

/// What it saw.
#[derive(Clone)]
struct Snapshot {
    claim: PersistentVolumeClaim,
    volume: PersistentVolume,
    users: Users,
    memory: Memory,
}

struct Simulation<'a> {
    world: World,
    bug: Bug,
    can: Can,
    now: Time,
    /// The store.
    claim: PersistentVolumeClaim,
    volume: PersistentVolume,
    memory: Memory,
    /// Of the process that held the lease before.
    spare: Memory,
    pods_watched: bool,
    actors: Vec<Doing>,
    tape: std::slice::Iter<'a, u8>,
    /// Nothing fails any more.
    healed: bool,
    trace: Option<Vec<String>>,
}

impl<'a> Simulation<'a> {
    fn new(tape: &'a [u8], bug: Bug, traced: bool) -> Self {
        let mut tape = tape.iter();
        let kind = *tape.next().unwrap_or(&0);
        let world = World::new(kind.is_multiple_of(2));
        let expand = Some(if kind < 32 { Where::Node } else { Where::Controller });
        let actors = if bug == Bug::TwoKeys { 2 } else { 1 };
        Self {
            claim: world.claim.view.clone(),
            volume: world.volume.view.clone(),
            world,
            bug,
            can: Can { expand, modify: true },
            now: Time(0),
            memory: Memory::default(),
            spare: Memory::default(),
            pods_watched: false,
            actors: vec![Doing::Nothing; actors],
            tape,
            healed: false,
            trace: traced.then(Vec::new),
        }
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    /// What the tape says; in the end, what lets everything go well.
    fn choice(&mut self) -> u8 {
        match self.healed {
            true => 255,
            false => self.tape.next().copied().unwrap_or(0),
        }
    }

    fn run(&mut self) -> Result<(), Violation> {
        while let Some(&event) = self.tape.next() {
            self.event(event)?;
        }
        self.healed = true;
        self.world.heals();
        self.note(|| "all is well from now on".to_owned());
        for _ in 0..100 {
            self.listens();
            let mut moved = self.world.kubelet(false);
            for actor in 0..self.actors.len() {
                moved |= self.turn(actor)?;
            }
            self.now = self.now.plus(Duration::from_secs(600));
            if !moved {
                return self.world.check(self.can.expand == Some(Where::Node));
            }
        }
        Err("it comes to no end".to_owned())
    }

    fn event(&mut self, event: u8) -> Result<(), Violation> {
        let choice = self.choice();
        match event % 24 {
            0..12 => {
                self.turn(usize::from(choice) % self.actors.len())?;
            }
            12 | 13 => self.listens(),
            14 | 15 => {
                let size = i64::from(choice % 12) * 2 + 4;
                self.note(|| format!("the user asks for {size}Gi"));
                self.world.user_asks_size(size);
            }
            16 => {
                let class = ["gold", "tin", "lost"][usize::from(choice) % 3];
                self.note(|| format!("the user asks for class {class}"));
                self.world.user_asks_class(class);
            }
            17 => {
                let class = ["tin", "lost"][usize::from(choice) % 2];
                if !self.world.classes.remove(class) {
                    self.world.classes.insert(class);
                }
            }
            18 | 19 => {
                self.world.kubelet(choice < 64);
            }
            20 => self.world.pod = choice < 128,
            21 => self.crashes(choice, false),
            22 => self.crashes(choice, true),
            _ => self.now = self.now.plus(Duration::from_secs(u64::from(choice) * 4)),
        }
        Ok(())
    }

    /// The watch delivers.
    fn listens(&mut self) {
        self.claim = self.world.claim.view.clone();
        self.volume = self.world.volume.view.clone();
    }

    /// The process ends, or another one takes the lease, with a store that may be behind.
    fn crashes(&mut self, choice: u8, moves: bool) {
        self.note(|| if moves { "the lease moves".to_owned() } else { "crash".to_owned() });
        for actor in &mut self.actors {
            if let Doing::Call(call, _) = std::mem::replace(actor, Doing::Nothing) {
                self.world.vanishes(&call, choice < 128);
            }
        }
        match moves && self.bug == Bug::KeepsMemory {
            true => std::mem::swap(&mut self.memory, &mut self.spare),
            false => self.memory = Memory::default(),
        }
        if choice.is_multiple_of(2) {
            self.listens();
        }
    }

    /// An actor goes on by one move: it looks and decides, does its step, or hears the driver's answer.
    fn turn(&mut self, actor: usize) -> Result<bool, Violation> {
        match std::mem::replace(&mut self.actors[actor], Doing::Nothing) {
            Doing::Nothing => Ok(self.looks(actor)),
            Doing::Step(step, seen) => self.does(actor, step, seen).map(|()| true),
            Doing::Call(call, seen) => {
                self.hears(&call, *seen);
                Ok(true)
            }
        }
    }

    fn looks(&mut self, actor: usize) -> bool {
        let users = match (self.pods_watched, self.world.pod) {
            (false, _) => Users::Unknown,
            (true, true) => Users::Some,
            (true, false) => Users::None,
        };
        let can = match (self.bug, actor) {
            (Bug::TwoKeys, 0) => Can { modify: false, ..self.can },
            (Bug::TwoKeys, _) => Can { expand: None, ..self.can },
            _ => self.can,
        };
        let class = |name: Option<&String>| {
            let name = self.world.classes.get(name?.as_str())?;
            let mut class = VolumeAttributesClass::default();
            class.metadata.name = (*name).to_owned();
            Some(class)
        };
        let asked = class(self.claim.spec.volume_attributes_class_name.as_ref());
        let status = self.claim.status.modify_volume_status.as_ref();
        let target = class(status.map(|status| &status.target_volume_attributes_class_name));
        let mut memory = self.memory.clone();
        if self.bug == Bug::NoBegin {
            memory.expansion.begun = self.claim.requested();
        }
        let mut claim = self.claim.clone();
        let begun = memory.expansion.begun;
        if self.bug == Bug::InfeasibleUnmarked
            && begun == claim.requested()
            && begun == claim.status.allocated_resources.storage
        {
            claim.status.allocated_resource_statuses.storage = Some(ResizeStatus::ControllerResizeInProgress);
        }
        let view = View {
            claim: Some(&claim),
            volume: Some(&self.volume),
            driver: "d",
            can,
            reached: true,
            users,
            classes: Classes { known: true, asked: asked.as_ref(), target: target.as_ref() },
            memory: &memory,
        };
        match decide(&view, self.now) {
            // A pause will end.
            Step::Wait(waiting) => waiting.until().is_some(),
            step => {
                self.note(|| format!("actor {actor} decides {step:?}"));
                let (claim, volume) = (self.claim.clone(), self.volume.clone());
                self.actors[actor] = Doing::Step(step, Box::new(Snapshot { claim, volume, users, memory }));
                true
            }
        }
    }

    fn does(&mut self, actor: usize, step: Step, mut seen: Box<Snapshot>) -> Result<(), Violation> {
        match &step {
            Step::Expand { size } if self.can.expand == Some(Where::Node) => {
                let (asked, size) = (*size, *size);
                seen.memory.expansion.succeeded(super::memory::Expanded { asked, size, on_node: true });
                self.memory = seen.memory;
                return Ok(());
            }
            Step::Expand { size } => {
                seen.memory.expansion.calling();
                return self.calls(actor, Call::Expand(*size), seen);
            }
            Step::Modify { target } => {
                seen.memory.modification.calling();
                return self.calls(actor, Call::Modify(target.clone()), seen);
            }
            _ => {}
        }
        if let Some(mut written) = write(&step, &seen.claim, &seen.volume, &seen.memory, self.now) {
            if self.bug == Bug::InfeasibleUnmarked
                && matches!(step, Step::BeginExpansion { fresh: false, .. })
                && let Write::Claim(wharf_model::patch::Patch::Strategic(body)) = &mut written
            {
                body["status"].as_object_mut().unwrap().remove("allocatedResourceStatuses");
            }
            let luck = self.choice();
            if luck < 10 {
                self.note(|| "the write is lost".to_owned());
                return Ok(());
            }
            let fits = self.world.write(&written);
            self.note(|| format!("written: {fits}"));
            if luck < 20 {
                self.note(|| "its answer is lost".to_owned());
                return Ok(());
            }
            // The answer enters the store; what did not fit is read anew.
            self.listens();
            if !fits {
                return Ok(());
            }
        }
        seen.memory.after(&step);
        self.memory = seen.memory;
        Ok(())
    }

    fn calls(&mut self, actor: usize, call: Call, seen: Box<Snapshot>) -> Result<(), Violation> {
        self.memory = seen.memory.clone();
        self.world.begins(call.clone())?;
        self.actors[actor] = Doing::Call(call, seen);
        Ok(())
    }

    fn hears(&mut self, call: &Call, mut seen: Snapshot) {
        let how = self.choice();
        let mut answer = self.world.answers(call, how);
        self.note(|| format!("{call:?} is answered {answer:?}"));
        if let (Err(failure), Bug::UnknownIsFinal) = (&mut answer, self.bug) {
            failure.class = Some(ErrorClass::Final);
        }
        let Snapshot { claim, users, memory, .. } = &mut seen;
        let pause = |_: &Failure, failures: u32| Duration::from_secs(1 << failures.min(8));
        match (call, answer) {
            (Call::Expand(_), Ok(expanded)) => memory.expansion.succeeded(expanded.unwrap()),
            (Call::Modify(class), Ok(_)) => memory.modification.succeeded(class),
            (Call::Expand(size), Err(failure)) => {
                self.pods_watched |= failure.is_in_use();
                let request = claim.requested().unwrap();
                let question = SizeQuestion { request, size: *size, users: *users };
                memory.expansion.failed(question, failure, self.now, pause);
            }
            (Call::Modify(class), Err(failure)) => {
                let asked = claim.spec.volume_attributes_class_name.clone();
                let question = ClassQuestion { asked, target: class.clone() };
                memory.modification.failed(question, failure, self.now, pause);
            }
        }
        self.memory = seen.memory;
    }
}

/// A tape of choices, from a seed.
fn tape(seed: u64) -> Vec<u8> {
    let mut state = seed;
    // SplitMix64.
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..24).flat_map(|_| next().to_le_bytes()).collect()
}

fn violation(tape: &[u8], bug: Bug) -> Option<Violation> {
    Simulation::new(tape, bug, false).run().err()
}

/// The shortest tape we can find that still breaks a promise, and its story.
fn shortened(mut tape: Vec<u8>, bug: Bug) -> String {
    let mut chunk = tape.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < tape.len() {
            let mut shorter = tape.clone();
            shorter.drain(at..(at + chunk).min(tape.len()));
            match violation(&shorter, bug) {
                Some(_) => tape = shorter,
                None => at += chunk,
            }
        }
        chunk /= 2;
    }
    let mut simulation = Simulation::new(&tape, bug, true);
    let ended = simulation.run();
    format!("{}\n{ended:?}\n{tape:?}", simulation.trace.unwrap_or_default().join("\n"))
}

/// sidecars.md 1.3 "State machine (RecoverVolumeExpansionFailure GA)", sidecars.md 1.3 "Writes", sidecars.md 1.3
/// "Modify (VAC GA)": sizes and classes agree in the end, nothing is stuck, and nothing is asked of the driver while
/// something else may be under way there.
#[test]
fn promises_hold_in_any_order() {
    for seed in 0..1000 {
        let tape = tape(seed);
        if violation(&tape, Bug::None).is_some() {
            panic!("seed {seed}:\n{}", shortened(tape, Bug::None));
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::TwoKeys, Bug::UnknownIsFinal, Bug::NoBegin, Bug::KeepsMemory, Bug::InfeasibleUnmarked] {
        let found = (0..1000).find(|&seed| violation(&tape(seed), bug).is_some());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        let story = shortened(tape(seed), bug);
        assert!(story.lines().count() < 60, "{bug:?}:\n{story}");
    }
}
