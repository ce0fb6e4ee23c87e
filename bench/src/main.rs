//! Compares `wharf sidecar` with upstream's sidecars: the same cluster, driver and roles, in one run. Prints the results
//! to stdout as a section of bench/RESULTS.md, and progress to stderr.
//!
//! Arguments: `snapshots` measures only snapshots; `quick` uses small sizes, to check that the benchmark works; `memory`
//! measures only the memory for volumes, and prints it to stderr only.

mod environment;
mod measure;
mod objects;
mod report;
mod side;
mod snapshots;

use environment::{CAPABILITIES, Environment};
use measure::End;
use side::Contender;

/// The sizes of the measurements.
struct Size {
    many: usize,
    /// For upstream at its defaults, which provisions two per second.
    few: usize,
    attachments: usize,
    pods: usize,
    volumes: [usize; 3],
    rounds: usize,
    snapshots: snapshots::Size,
}

const FULL: Size = Size {
    many: 1000,
    few: 60,
    attachments: 500,
    pods: 5000,
    volumes: [0, 1000, 10_000],
    rounds: 3,
    snapshots: snapshots::Size { many: 300, existing: 2000, objects: 10_000 },
};
const QUICK: Size = Size {
    many: 60,
    few: 20,
    attachments: 40,
    pods: 50,
    volumes: [0, 10, 100],
    rounds: 1,
    snapshots: snapshots::Size { many: 10, existing: 20, objects: 50 },
};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let requested = |word: &str| arguments.iter().any(|argument| argument == word);
    let size = if requested("quick") { QUICK } else { FULL };
    if requested("memory") {
        return runtime.block_on(memory(&size));
    }
    if !requested("snapshots") {
        println!("{}", report::section(&runtime.block_on(run(&size))));
    }
    print!("{}", snapshots::section(&runtime.block_on(snapshots::run(size.snapshots))));
}

async fn memory(size: &Size) {
    let environment = Environment::start(true, CAPABILITIES).await;
    environment.controller_manager(false);
    measure::memory(&environment, size.pods, &size.volumes).await;
    environment.controller_manager(true);
}

async fn run(size: &Size) -> report::Results {
    let environment = Environment::start(true, CAPABILITIES).await;
    let tuned_together = measure::together(&environment, Contender::Tuned, size.many).await;
    let ours_together = measure::together(&environment, Contender::Ours, size.many).await;

    environment.controller_manager(false);
    let attached = measure::attach(&environment, size.attachments).await;
    let defaults = measure::alone(&environment, Contender::Defaults, 0, size.few).await;
    // Twice and alternating, because other processes may use the machine.
    let tuned = measure::alone(&environment, Contender::Tuned, 0, size.many).await;
    let ours = measure::alone(&environment, Contender::Ours, 0, size.many).await;
    let tuned = tuned.better(measure::alone(&environment, Contender::Tuned, 1, size.many).await);
    let ours = ours.better(measure::alone(&environment, Contender::Ours, 1, size.many).await);

    eprintln!("Replicas");
    let upstream_asked = measure::failover(&environment, Contender::Tuned, End::Terminated, 0).await;
    let upstream_killed = measure::failover(&environment, Contender::Tuned, End::Killed, 0).await;
    let mut ours_asked: f64 = 0.0;
    for round in 0..size.rounds {
        ours_asked =
            ours_asked.max(measure::failover(&environment, Contender::Ours, End::Terminated, round).await);
    }
    let ours_killed = measure::failover(&environment, Contender::Ours, End::Killed, 0).await;
    let growth = measure::memory(&environment, size.pods, &size.volumes).await;
    environment.controller_manager(true);
    drop(environment);

    let environment = Environment::start(false, CAPABILITIES).await;
    let defaults_slow = measure::together(&environment, Contender::Defaults, size.few).await;
    let ours_slow = measure::together(&environment, Contender::Ours, size.few).await;
    report::Results {
        defaults,
        tuned,
        ours,
        attached,
        tuned_together,
        ours_together,
        defaults_slow,
        ours_slow,
        asked: (upstream_asked, ours_asked),
        killed: (upstream_killed, ours_killed),
        growth,
        pods: size.pods,
    }
}
