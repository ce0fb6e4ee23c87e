//! Compares `wharf up` with a real Kubernetes: the same driver and objects, in one run. Prints the results to stdout as a
//! section of bench/RESULTS.md, and progress to stderr.
//!
//! Arguments: `quick` uses small sizes, to check that the benchmark works; `ours` skips Kubernetes.

mod objects;
mod report;
mod sides;
mod work;

use std::time::Duration;

use report::Results;
use sides::{Contender, Side};
use wharf_bench::table::median;
use work::Work;

/// The sizes of the measurements.
struct Size {
    /// Claims with a pod each, one after the other.
    single: usize,
    /// Claims with a pod each, all at once. A node runs up to 110 pods.
    many: usize,
    /// Volumes that no pod uses.
    volumes: usize,
    /// Wait before memory is measured.
    rest: Duration,
}

const FULL: Size = Size { single: 7, many: 100, volumes: 1000, rest: Duration::from_secs(15) };
const QUICK: Size = Size { single: 2, many: 4, volumes: 20, rest: Duration::from_secs(2) };

/// A shell that has just started ignores SIGTERM, and would delay the deletion until the end of its grace period.
const SETTLE: Duration = Duration::from_secs(2);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let requested = |word: &str| arguments.iter().any(|argument| argument == word);
    let size = if requested("quick") { QUICK } else { FULL };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut found = Vec::new();
    for contender in [Contender::Kubernetes, Contender::Wharf, Contender::Local] {
        if requested("ours") && contender == Contender::Kubernetes {
            continue;
        }
        eprintln!("{contender:?}");
        found.push((contender, runtime.block_on(measure(contender, &size))));
    }
    print!("{}", report::section(&found, &size));
}

/// Measures one side, starting from scratch.
async fn measure(contender: Contender, size: &Size) -> Results {
    let (side, up) = Side::start(contender);
    eprintln!("  up after {up:.2} s");
    let work = Work::new(&side).await;
    tokio::time::sleep(size.rest).await;
    let memory_idle = side.memory();
    eprintln!("  {memory_idle:.1} MiB at rest");

    let (mut started, mut ended) = (Vec::new(), Vec::new());
    // The first one is not counted: both sides read programs from disk for it.
    for round in 0..=size.single {
        let name = [format!("single-{round}")];
        let start = work.start(&name).await;
        tokio::time::sleep(SETTLE).await;
        let end = work.end(&name).await;
        if round > 0 {
            started.push(start);
            ended.push(end);
        }
    }
    let (single, single_end) = (median(started), median(ended));
    eprintln!("  claim and pod ready after {single:.3} s, gone after {single_end:.3} s");

    let names: Vec<String> = (0..size.many).map(|number| format!("many-{number}")).collect();
    let (cpu, many) = (side.cpu(), work.start(&names).await);
    let cpu = (side.cpu() - cpu) * 1e3 / size.many as f64;
    eprintln!("  {} of them ready after {many:.1} s, {cpu:.0} ms of processor each", size.many);
    let memory_pods = side.memory();
    tokio::time::sleep(SETTLE).await;
    let many_end = work.end(&names).await;
    eprintln!("  gone after {many_end:.1} s");

    let names: Vec<String> = (0..size.volumes).map(|number| format!("volume-{number}")).collect();
    let volumes = work.volumes(&names).await;
    tokio::time::sleep(size.rest).await;
    let memory_volumes = side.memory();
    eprintln!("  {} volumes after {volumes:.1} s, {memory_volumes:.1} MiB with them", size.volumes);
    Results { up, memory_idle, single, single_end, many, cpu, memory_pods, many_end, volumes, memory_volumes }
}
