//! A long random workload of claims, snapshots, groups, clones and expansions, in which every component that could
//! lose track of them is killed repeatedly: the sidecar, the snapshot controller, the driver, the API server, the
//! controller manager. Periodically, and after everything is deleted, the API server, the driver and the journal
//! must match what was requested: nothing more, nothing less, with the right size and source.
//!
//! Runs on a real API server without nodes. `SOAK_SECONDS` sets the duration, one hour by default; `hack/test.sh
//! leaks` runs three minutes. `SOAK_SEED` repeats the choices of a run.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod consistency;
mod environment;
mod model;
mod steps;

use std::path::Path;
use std::time::{Duration, Instant};

use environment::Environment;
use steps::Workload;

/// The interval between two consistency checks.
const ROUND: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs a cluster, and takes an hour: make test-all, and three minutes of it in make test"]
fn random_workload_leaves_nothing_behind() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(3600, |text| text.parse().unwrap());
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("leaks");
    let mut workload = Workload::new(Environment::new(&logs));
    let until = Instant::now() + Duration::from_secs(seconds);
    // On a slow machine, continue until every component was killed at least once.
    while Instant::now() < until || !workload.all_were_killed() {
        workload.set_random_faults();
        let round = Instant::now() + ROUND.min(until.saturating_duration_since(Instant::now()));
        while Instant::now() < round || !workload.all_were_killed() {
            workload.step();
        }
        workload.settle();
    }
    workload.delete_everything();
    workload.end();
}
