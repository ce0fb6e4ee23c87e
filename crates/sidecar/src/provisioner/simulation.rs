//! The provisioner's rules in a world of their own: no server, no driver, no clock.
//!
//! A run is a list of numbers; each picks one of the things that can happen next: a user or Kubernetes changes
//! something, a cache catches up, a step is decided, its effect happens, its answer comes or is lost, the process
//! dies, or upstream's provisioner has the lease for a while. At the end everything calms down, and what is left
//! must agree: volumes, their objects and their claims. A list that fails is made shorter until it is a story.
//!
//! The bugs at the bottom are planted one by one, to show that this finds them.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use world::{Bug, World};

mod api;
mod backend;
mod process;
mod world;

/// Enough for a few claims to live and die, and for several crashes in between.
const LENGTH: usize = 160;

fn simulate(bug: Option<Bug>) -> Result<(), TestError<Vec<u16>>> {
    // A planted bug only has to be found.
    let max_shrink_iters = if bug.is_none() { 20_000 } else { 0 };
    let config = Config { cases: 1000, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let choices = proptest::collection::vec(any::<u16>(), 1..LENGTH);
    TestRunner::new_with_rng(config, rng).run(&choices, |choices| {
        let mut world = World::new(bug);
        let outcome =
            choices.iter().try_for_each(|choice| world.happens(*choice)).and_then(|()| world.calms_down());
        outcome.map_err(|wrong| TestCaseError::fail(format!("{wrong}\n{}", world.story())))
    })
}

#[test]
fn nothing_leaks_and_nothing_is_lost() {
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
