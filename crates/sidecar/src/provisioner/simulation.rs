//! Simulates the provisioner's rules without a server, a driver or a clock.
//!
//! A run is a list of numbers. Each selects one of the events that can happen next: a user or Kubernetes changes
//! something, a cache catches up, a step is decided, its effect takes place, its response arrives or is lost, the
//! process crashes, or upstream's provisioner holds the lease for a while. Then, in most runs, the driver fails for
//! longer than anything may wait for it: the intents that no claim needs must end. At the end the system converges
//! without faults, and volumes, PersistentVolumes and claims must be consistent: every volume has a PersistentVolume or
//! is recorded as a suspect. A failing list is shrunk to a short trace.
//!
//! [`Bug`] lists defects that a test injects one at a time, to show that the simulation detects them.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use backend::CallOutcome;
use world::{Bug, World};

mod api;
mod backend;
mod process;
mod world;

/// Long enough for several claims to be created and deleted, with several crashes in between.
const LENGTH: usize = 160;

fn simulate(bug: Option<Bug>) -> Result<(), TestError<Vec<u16>>> {
    // An injected bug only has to be detected: its trace needs no shrinking.
    let (cases, max_shrink_iters) = if bug.is_none() { (1000, 20_000) } else { (5000, 0) };
    let config = Config { cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let choices = proptest::collection::vec(any::<u16>(), 1..LENGTH);
    TestRunner::new_with_rng(config, rng).run(&choices, |choices| {
        let mut world = World::new(bug);
        // In two of three runs the driver breaks for longer than anything may wait for it.
        let broken = [None, Some(CallOutcome::Rejected), Some(CallOutcome::Unreachable)];
        let outcome = choices
            .iter()
            .try_for_each(|choice| world.step(*choice))
            .and_then(|()| broken[choices.len() % 3].map_or(Ok(()), |outcome| world.break_driver(outcome)))
            .and_then(|()| world.converge());
        outcome.map_err(|violation| TestCaseError::fail(format!("{violation}\n{}", world.trace())))
    })
}

#[test]
fn no_volume_leaks_or_is_lost() {
    if let Err(error) = simulate(None) {
        panic!("{error}");
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in Bug::ALL {
        assert!(simulate(Some(bug)).is_err(), "{bug:?} was not found");
    }
}
