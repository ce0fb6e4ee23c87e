//! Simulates the rules without a server or a clock: users change their requests, calls fail or lose their response,
//! writes are lost, the process crashes between any two steps, the lease moves. A seed generates a tape of choices, and
//! a tape that violates an invariant is shortened before it is printed.

use std::sync::Arc;
use std::time::Duration;

use wharf_csi::ErrorClass;
use wharf_model::claim::ResizeStatus;
use wharf_model::testing::{PatchResult, SeededRng};
use wharf_model::{Monotonic, PersistentVolume, PersistentVolumeClaim, Time, VolumeAttributesClass};

use super::decide::{ResizeStep, decide};
use super::state::{ExpandRequest, Failure, ModifyRequest, ResizeState};
use super::view::{Classes, ExpandOn, PodUse, ResizerCapabilities, View};
use super::write::{Write, write};
use world::{Call, Violation, World};

mod world;

/// Planted mistakes that the simulation has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// Expansion and modification of a claim have separate queue keys.
    TwoKeys,
    /// A call without a response counts as ended.
    TimeoutIsFinal,
    /// The driver is called before the claim records it.
    NoBegin,
    /// The state survives the loss of the lease.
    KeepsState,
    /// An infeasible size is retried without recording it.
    InfeasibleUnmarked,
}

/// What an actor is about to do, or waits for.
#[derive(Clone)]
enum Doing {
    Nothing,
    Step(ResizeStep, Box<Snapshot>),
    Call(Call, Box<Snapshot>),
}

/// The inputs of its decision.
#[derive(Clone)]
struct Snapshot {
    claim: Arc<PersistentVolumeClaim>,
    volume: Arc<PersistentVolume>,
    pod_use: PodUse,
    state: ResizeState,
}

struct Simulation<'a> {
    world: World,
    bug: Bug,
    capabilities: ResizerCapabilities,
    now: Monotonic,
    state: ResizeState,
    /// The state of the process that held the lease before.
    spare: ResizeState,
    pods_watched: bool,
    actors: Vec<Doing>,
    tape: std::slice::Iter<'a, u8>,
    /// Whether faults have stopped.
    no_faults: bool,
    trace: Option<Vec<String>>,
}

impl<'a> Simulation<'a> {
    fn new(tape: &'a [u8], bug: Bug, traced: bool) -> Self {
        let mut tape = tape.iter();
        let kind = *tape.next().unwrap_or(&0);
        let world = World::new(kind.is_multiple_of(2));
        let expand = Some(if kind < 32 { ExpandOn::Node } else { ExpandOn::Controller });
        let actors = if bug == Bug::TwoKeys { 2 } else { 1 };
        Self {
            world,
            bug,
            capabilities: ResizerCapabilities { expand, modify: true },
            now: Monotonic(0),
            state: ResizeState::default(),
            spare: ResizeState::default(),
            pods_watched: false,
            actors: vec![Doing::Nothing; actors],
            tape,
            no_faults: false,
            trace: traced.then(Vec::new),
        }
    }

    fn log(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    /// The next choice of the tape. After the faults have stopped, the one without a fault.
    fn choice(&mut self) -> u8 {
        match self.no_faults {
            true => 255,
            false => self.tape.next().copied().unwrap_or(0),
        }
    }

    fn run(&mut self) -> Result<(), Violation> {
        while let Some(&event) = self.tape.next() {
            self.event(event)?;
        }
        self.no_faults = true;
        self.world.make_feasible();
        self.log(|| "no faults from now on".to_owned());
        for _ in 0..100 {
            self.world.deliver_all();
            let mut moved = self.world.kubelet(false);
            for actor in 0..self.actors.len() {
                moved |= self.turn(actor)?;
            }
            self.now = self.now.plus(Duration::from_secs(600));
            if !moved {
                return self.world.check(self.capabilities.expand == Some(ExpandOn::Node));
            }
        }
        Err("the resizer does not converge".to_owned())
    }

    fn event(&mut self, event: u8) -> Result<(), Violation> {
        let choice = self.choice();
        match event % 24 {
            0..12 => {
                self.turn(usize::from(choice) % self.actors.len())?;
            }
            12 | 13 => self.world.deliver_all(),
            14 | 15 => {
                let size = i64::from(choice % 12) * 2 + 4;
                self.log(|| format!("the user requests {size}Gi"));
                self.world.user_requests_size(size);
            }
            16 => {
                let class = ["gold", "tin", "lost"][usize::from(choice) % 3];
                self.log(|| format!("the user requests class {class}"));
                self.world.user_requests_class(class);
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
            21 => self.crash(choice, false),
            22 => self.crash(choice, true),
            _ => self.now = self.now.plus(Duration::from_secs(u64::from(choice) * 4)),
        }
        Ok(())
    }

    /// The process crashes, or another one takes the lease, with a store that may lag.
    fn crash(&mut self, choice: u8, moves: bool) {
        self.log(|| if moves { "the lease moves".to_owned() } else { "crash".to_owned() });
        for actor in &mut self.actors {
            if let Doing::Call(call, _) = std::mem::replace(actor, Doing::Nothing) {
                self.world.abandon(&call, choice < 128);
            }
        }
        match moves && self.bug == Bug::KeepsState {
            true => std::mem::swap(&mut self.state, &mut self.spare),
            false => self.state = ResizeState::default(),
        }
        self.world.restart(!choice.is_multiple_of(2));
    }

    /// An actor makes one move: it decides, performs its step, or receives the driver's response.
    fn turn(&mut self, actor: usize) -> Result<bool, Violation> {
        match std::mem::replace(&mut self.actors[actor], Doing::Nothing) {
            Doing::Nothing => Ok(self.decide_next(actor)),
            Doing::Step(step, inputs) => self.perform(actor, step, inputs).map(|()| true),
            Doing::Call(call, inputs) => {
                self.receive(&call, *inputs);
                Ok(true)
            }
        }
    }

    fn decide_next(&mut self, actor: usize) -> bool {
        let pod_use = match (self.pods_watched, self.world.pod) {
            (false, _) => PodUse::Unknown,
            (true, true) => PodUse::InUse,
            (true, false) => PodUse::Unused,
        };
        let capabilities = match (self.bug, actor) {
            (Bug::TwoKeys, 0) => ResizerCapabilities { modify: false, ..self.capabilities },
            (Bug::TwoKeys, _) => ResizerCapabilities { expand: None, ..self.capabilities },
            _ => self.capabilities,
        };
        let class = |name: Option<&String>| {
            let name = self.world.classes.get(name?.as_str())?;
            let mut class = VolumeAttributesClass::default();
            class.metadata.name = (*name).to_owned();
            Some(class)
        };
        let (cached, volume) = (self.world.cached_claim(), self.world.cached_volume());
        let requested = class(cached.spec.volume_attributes_class_name.as_ref());
        let status = cached.status.modify_volume_status.as_ref();
        let target = class(status.map(|status| &status.target_volume_attributes_class_name));
        let mut state = self.state.clone();
        if self.bug == Bug::NoBegin {
            state.expansion.in_progress = cached.requested_storage();
        }
        let mut claim = PersistentVolumeClaim::clone(&cached);
        let in_progress = state.expansion.in_progress;
        if self.bug == Bug::InfeasibleUnmarked
            && in_progress == claim.requested_storage()
            && in_progress == claim.status.allocated_resources.storage
        {
            claim.status.allocated_resource_statuses.storage = Some(ResizeStatus::ControllerResizeInProgress);
        }
        let view = View {
            claim: Some(&claim),
            volume: Some(&volume),
            driver: "d",
            capabilities,
            is_local: true,
            pod_use,
            classes: Classes { known: true, requested: requested.as_ref(), target: target.as_ref() },
            state: &state,
        };
        match decide(&view, self.now) {
            // A backoff will end.
            ResizeStep::Wait(waiting) => waiting.until().is_some(),
            step => {
                self.log(|| format!("actor {actor} decides {step:?}"));
                let inputs = Snapshot { claim: cached, volume, pod_use, state };
                self.actors[actor] = Doing::Step(step, Box::new(inputs));
                true
            }
        }
    }

    fn perform(
        &mut self,
        actor: usize,
        step: ResizeStep,
        mut inputs: Box<Snapshot>,
    ) -> Result<(), Violation> {
        match &step {
            ResizeStep::Expand { size } if self.capabilities.expand == Some(ExpandOn::Node) => {
                let (requested, size) = (*size, *size);
                inputs.state.expansion.succeeded(super::state::Expanded {
                    requested,
                    size,
                    node_expansion_required: true,
                });
                self.state = inputs.state;
                return Ok(());
            }
            ResizeStep::Expand { size } => {
                inputs.state.expansion.call_started();
                return self.start_call(actor, Call::Expand(*size), inputs);
            }
            ResizeStep::Modify { target } => {
                inputs.state.modification.call_started();
                return self.start_call(actor, Call::Modify(target.clone()), inputs);
            }
            _ => {}
        }
        if let Some(mut written) =
            write(&step, &inputs.claim, &inputs.volume, &inputs.state, Time(self.now.0))
        {
            if self.bug == Bug::InfeasibleUnmarked
                && matches!(step, ResizeStep::BeginExpansion { fresh: false, .. })
                && let Write::Claim(wharf_model::patch::Patch::Strategic(body)) = &mut written
            {
                body["status"].as_object_mut().unwrap().remove("allocatedResourceStatuses");
            }
            let outcome = self.choice();
            if outcome < 10 {
                self.log(|| "the write is lost".to_owned());
                return Ok(());
            }
            let result = self.world.write(&written, outcome < 20);
            self.log(|| format!("the write returns {result:?}"));
            if result != Some(PatchResult::Applied) {
                return Ok(());
            }
        }
        inputs.state.apply(&step);
        self.state = inputs.state;
        Ok(())
    }

    fn start_call(&mut self, actor: usize, call: Call, inputs: Box<Snapshot>) -> Result<(), Violation> {
        self.state = inputs.state.clone();
        self.world.begin(call.clone())?;
        self.actors[actor] = Doing::Call(call, inputs);
        Ok(())
    }

    fn receive(&mut self, call: &Call, mut inputs: Snapshot) {
        let how = self.choice();
        let mut response = self.world.respond(call, how);
        self.log(|| format!("{call:?} returns {response:?}"));
        if let (Err(failure), Bug::TimeoutIsFinal) = (&mut response, self.bug) {
            failure.class = Some(ErrorClass::Final);
        }
        let Snapshot { claim, pod_use, state, .. } = &mut inputs;
        let backoff = |_: &Failure, failures: u32| Duration::from_secs(1 << failures.min(8));
        match (call, response) {
            (Call::Expand(_), Ok(expanded)) => state.expansion.succeeded(expanded.unwrap()),
            (Call::Modify(class), Ok(_)) => state.modification.succeeded(class),
            (Call::Expand(size), Err(failure)) => {
                self.pods_watched |= failure.is_in_use();
                let requested = claim.requested_storage().unwrap();
                let request = ExpandRequest { requested, size: *size, pod_use: *pod_use };
                state.expansion.failed(request, failure, self.now, backoff);
            }
            (Call::Modify(class), Err(failure)) => {
                let requested = claim.spec.volume_attributes_class_name.clone();
                let request = ModifyRequest { requested, target: class.clone() };
                state.modification.failed(request, failure, self.now, backoff);
            }
        }
        self.state = inputs.state;
    }
}

/// A tape of choices, from a seed.
fn tape(seed: u64) -> Vec<u8> {
    let mut rng = SeededRng::new(seed);
    (0..192).map(|_| rng.below(256) as u8).collect()
}

fn violation(tape: &[u8], bug: Bug) -> Option<Violation> {
    Simulation::new(tape, bug, false).run().err()
}

/// Shortens a tape that violates an invariant, and returns its trace.
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
/// "Modify (VAC GA)": sizes and classes agree in the end, nothing is stuck, and no call is sent while another one may
/// still run in the driver.
#[test]
fn invariants_hold_under_random_schedules() {
    for seed in 0..1000 {
        let tape = tape(seed);
        if violation(&tape, Bug::None).is_some() {
            panic!("seed {seed}:\n{}", shortened(tape, Bug::None));
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::TwoKeys, Bug::TimeoutIsFinal, Bug::NoBegin, Bug::KeepsState, Bug::InfeasibleUnmarked] {
        let found = (0..1000).find(|&seed| violation(&tape(seed), bug).is_some());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        let trace = shortened(tape(seed), bug);
        assert!(trace.lines().count() < 60, "{bug:?}:\n{trace}");
    }
}
