//! Measures `wharf sidecar` beside upstream's sidecars: the same cluster, the same driver, the same roles, one run.
//! What it finds goes to stdout as a section of bench/RESULTS.md, what it does to stderr.
//!
//! With `snapshots` as an argument, only snapshots are measured; with `quick`, everything is small: to see that it works.
//! With `memory`, only the memory that volumes take is measured, and told on stderr alone.

mod ground;
mod measure;
mod objects;
mod report;
mod side;
mod snapshots;

use ground::{CAPABILITIES, Ground};
use measure::End;
use side::Who;

/// How much of everything.
struct Size {
    many: usize,
    /// Upstream at its defaults takes a second for two of them.
    few: usize,
    attachments: usize,
    pods: usize,
    volumes: [usize; 3],
    rounds: usize,
    snapshots: snapshots::Size,
}

const WHOLE: Size = Size {
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
    let asked = |word: &str| arguments.iter().any(|argument| argument == word);
    let size = if asked("quick") { QUICK } else { WHOLE };
    if asked("memory") {
        return runtime.block_on(memory(&size));
    }
    if !asked("snapshots") {
        println!("{}", report::section(&runtime.block_on(run(&size))));
    }
    print!("{}", snapshots::section(&runtime.block_on(snapshots::run(size.snapshots))));
}

async fn memory(size: &Size) {
    let ground = Ground::start(true, CAPABILITIES).await;
    ground.controller_manager(false);
    measure::memory(&ground, size.pods, &size.volumes).await;
    ground.controller_manager(true);
}

async fn run(size: &Size) -> report::Found {
    let ground = Ground::start(true, CAPABILITIES).await;
    let tuned_together = measure::together(&ground, Who::Tuned, size.many).await;
    let ours_together = measure::together(&ground, Who::Ours, size.many).await;

    ground.controller_manager(false);
    let attached = measure::attach(&ground, size.attachments).await;
    let defaults = measure::alone(&ground, Who::Defaults, 0, size.few).await;
    // Twice and by turns, since others may work on the machine.
    let tuned = measure::alone(&ground, Who::Tuned, 0, size.many).await;
    let ours = measure::alone(&ground, Who::Ours, 0, size.many).await;
    let tuned = tuned.better(measure::alone(&ground, Who::Tuned, 1, size.many).await);
    let ours = ours.better(measure::alone(&ground, Who::Ours, 1, size.many).await);

    eprintln!("Replicas");
    let upstream_asked = measure::hand_over(&ground, Who::Tuned, End::Asked, 0).await;
    let upstream_killed = measure::hand_over(&ground, Who::Tuned, End::Killed, 0).await;
    let mut ours_asked: f64 = 0.0;
    for round in 0..size.rounds {
        ours_asked = ours_asked.max(measure::hand_over(&ground, Who::Ours, End::Asked, round).await);
    }
    let ours_killed = measure::hand_over(&ground, Who::Ours, End::Killed, 0).await;
    let growth = measure::memory(&ground, size.pods, &size.volumes).await;
    ground.controller_manager(true);
    drop(ground);

    let ground = Ground::start(false, CAPABILITIES).await;
    let defaults_slow = measure::together(&ground, Who::Defaults, size.few).await;
    let ours_slow = measure::together(&ground, Who::Ours, size.few).await;
    report::Found {
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
