//! A long random life of claims, snapshots, groups, copies and expansions, in which everything that could lose track of
//! them dies again and again: the sidecar, the snapshot controller, the driver, the API server, the controller manager.
//! Now and then, and when everything was deleted, the server, the driver and the journal have to agree with what was
//! asked for: nothing more, nothing less, of the right size and from the right source.
//!
//! On a real API server without nodes. `SOAK_SECONDS` says how long, an hour by default; `hack/test.sh leaks` takes ten
//! minutes of it. `SOAK_SEED` repeats the choices of a run.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod agree;
mod model;
mod steps;
mod world;

use std::path::Path;
use std::time::{Duration, Instant};

use steps::Life;
use world::World;

/// After so long everybody has to agree.
const ROUND: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs a cluster, and takes an hour: make test-all, and ten minutes of it in make test"]
fn random_lives_leave_nothing_behind() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(3600, |text| text.parse().unwrap());
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("leaks");
    let mut life = Life::new(World::new(&logs));
    let until = Instant::now() + Duration::from_secs(seconds);
    // Where the machine is slow, until everybody has died at least.
    while Instant::now() < until || !life.all_have_died() {
        life.another_fault();
        let round = Instant::now() + ROUND.min(until.saturating_duration_since(Instant::now()));
        while Instant::now() < round || !life.all_have_died() {
            life.step();
        }
        life.settle();
    }
    life.delete_everything();
    life.end();
}
