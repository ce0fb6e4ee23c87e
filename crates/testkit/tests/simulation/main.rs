//! The whole stack in simulation: API server, controllers, scheduler, sidecar and node agents in one thread on virtual time,
//! with a driver whose state is the truth. One seed decides everything: what users do, who dies when, which call of the API
//! or of the driver fails, before or after it was done, and how long it takes.
//!
//! Held at every call to the driver: no volume is attached for writing to two nodes, deleted while it is in use, staged where
//! it is not attached, published where it is not staged, or detached or unstaged where it is in use. Held at the end: all
//! pods run and all claims are bound and as large as asked once nothing fails any more, and when all is deleted, nothing is
//! left. Held along the way: `wharf explain` says of each claim, pod and volume that is not done whose turn it is.
//!
//! Not in it: containers, plugin registration, the node's own object and lease, snapshots, and a disk under the API.
//!
//! `WHARF_SIMULATION_SEED=7 cargo test -p wharf-testkit --test simulation one_seed -- --nocapture` tells the story of a seed.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod api;
mod driver;
mod ground;
mod judge;
mod kernel;
mod kubelet;
mod planted;
mod processes;
mod sim;
mod story;
mod turns;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ground::Ground;
use planted::Bug;
use sim::{Product, Sim};

const SEEDS: u64 = 1000;
/// Seeds that fail before the rest is left out.
const ENOUGH: usize = 3;

/// What came of a seed.
struct Told {
    trace: String,
    outcome: Result<(), String>,
}

/// Runs a seed from its beginning to its end.
fn run(seed: u64, bug: Option<Bug>) -> Told {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let sim = Sim::new(seed, bug);
        let _standing = wharf_model::chance::stand_in(Product(sim.clone()));
        let mut ground = Ground::new(sim.clone()).await;
        let outcome = story::tell(&mut ground).await;
        Told { trace: sim.trace(), outcome }
    })
}

/// The last lines of a trace, which say how it came to this.
fn tail(trace: &str) -> String {
    let lines: Vec<&str> = trace.lines().collect();
    lines[lines.len().saturating_sub(120)..].join("\n")
}

/// Each seed on its own, as many at once as there are processors, until so many have something wrong with them.
fn for_seeds(
    seeds: std::ops::Range<u64>,
    enough: usize,
    each: impl Fn(u64) -> Result<(), String> + Sync,
) -> Vec<String> {
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || failed.lock().unwrap().len() >= enough {
                        return;
                    }
                    if let Err(wrong) = each(seed) {
                        failed.lock().unwrap().push(format!("seed {seed}: {wrong}"));
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

#[test]
fn nothing_goes_wrong_in_a_thousand_seeds() {
    let failed = for_seeds(0..SEEDS, ENOUGH, |seed| {
        let Told { trace, outcome } = run(seed, None);
        outcome.map_err(|wrong| format!("{wrong}\n{}", tail(&trace)))
    });
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Without this, a seed that fails could not be looked into.
#[test]
fn the_same_seed_gives_the_same_trace() {
    let failed = for_seeds(0..20, ENOUGH, |seed| {
        let (first, second) = (run(seed, None).trace, run(seed, None).trace);
        assert!(first.lines().count() > 50, "seed {seed} is an empty story:\n{first}");
        let differs = first.lines().zip(second.lines()).position(|(first, second)| first != second);
        match first == second {
            true => Ok(()),
            false => Err(format!("differs at line {differs:?} of\n{first}\n\n{second}")),
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// A simulation that finds nothing proves nothing, and neither does one that finds something else.
#[test]
fn planted_bugs_are_found() {
    for bug in Bug::ALL {
        let found = for_seeds(0..SEEDS, 1, |seed| run(seed, Some(bug)).outcome);
        assert!(!found.is_empty(), "{bug:?} is not found");
        assert!(found[0].contains(bug.shows()), "{bug:?} shows otherwise: {}", found[0]);
        println!("{bug:?}: {}", found[0]);
    }
}

/// For looking into a seed.
#[test]
fn one_seed() {
    let given = std::env::var("WHARF_SIMULATION_SEED").ok().map(|seed| seed.parse().unwrap());
    let Told { trace, outcome } = run(given.unwrap_or(0), None);
    if given.is_some() {
        println!("{trace}");
    }
    outcome.unwrap();
}
