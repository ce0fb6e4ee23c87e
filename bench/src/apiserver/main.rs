//! Compares `wharf apiserver` with kube-apiserver and etcd: the same disk and client, alternating in one run. Prints the
//! results to stdout as a section of bench/RESULTS.md, and progress to stderr.
//!
//! Arguments: `quick` uses small sizes, to check that the benchmark works; `ours` skips kube-apiserver.

mod load;
mod report;
mod sides;

use std::path::PathBuf;
use std::time::Duration;

use report::Results;
use sides::{Contender, Side};
use wharf_bench::table::median;

/// The sizes of the measurements.
struct Size {
    /// Starts of an empty server.
    starts: usize,
    /// Writes by one client.
    alone: usize,
    /// Writes by all of many.
    together: usize,
    volumes: usize,
    lists: usize,
    watchers: usize,
    /// Writes that the watchers observe.
    seen: usize,
    /// Wait before memory is measured.
    rest: Duration,
    /// Rounds of all measurements, alternating; the better result counts.
    rounds: usize,
}

const FULL: Size = Size {
    starts: 5,
    alone: 1000,
    together: 20_000,
    volumes: 10_000,
    lists: 7,
    watchers: 100,
    seen: 200,
    rest: Duration::from_secs(10),
    rounds: 2,
};
const QUICK: Size = Size {
    starts: 2,
    alone: 100,
    together: 1000,
    volumes: 500,
    lists: 3,
    watchers: 20,
    seen: 20,
    rest: Duration::from_secs(1),
    rounds: 1,
};

/// Number of concurrent writers.
const CLIENTS: usize = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let requested = |word: &str| arguments.iter().any(|argument| argument == word);
    let size = if requested("quick") { QUICK } else { FULL };
    let disk = PathBuf::from(
        std::env::var_os("DISK").expect("DISK must be set to the directory for the servers' files"),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut found: [Option<Results>; 2] = [None, None];
    for round in 0..size.rounds {
        for (place, contender) in found.iter_mut().zip([Contender::Upstream, Contender::Ours]) {
            if requested("ours") && contender == Contender::Upstream {
                continue;
            }
            eprintln!("{contender:?}, round {}", round + 1);
            let now = measure(&runtime, contender, &disk, &size);
            *place = Some(match place.take() {
                Some(before) => before.better(now),
                None => now,
            });
        }
    }
    let [upstream, ours] = found;
    if let Some(ours) = ours {
        print!("{}", report::section(upstream.as_ref(), &ours, &size));
    }
}

/// Measures one side, starting with an empty disk.
fn measure(
    runtime: &tokio::runtime::Runtime,
    contender: Contender,
    disk: &std::path::Path,
    size: &Size,
) -> Results {
    let mut starts = Vec::new();
    for _ in 1..size.starts {
        starts.push(Side::start(runtime, contender, disk).1);
    }
    let (mut side, took) = Side::start(runtime, contender, disk);
    starts.push(took);
    let first = median(starts);
    eprintln!("  ready after {:.0} ms", first * 1e3);
    std::thread::sleep(size.rest);
    let memory_empty = side.memory();
    eprintln!("  {memory_empty:.1} MiB");

    let alone = runtime.block_on(load::writes(&side, "alone", 1, size.alone));
    eprintln!("  {alone:.0} writes a second by one client");
    let before = side.cpu();
    let together = runtime.block_on(load::writes(&side, "together", CLIENTS, size.together));
    let cpu = (side.cpu() - before) * 1e3 / size.together as f64;
    eprintln!("  {together:.0} writes a second by {CLIENTS}, {cpu:.2} ms of processor each");
    let latency = runtime.block_on(load::watch_latency(&side, size.watchers, size.seen));
    eprintln!(
        "  {} watchers: {:.1} ms, {:.1} ms at the 99th percentile",
        size.watchers, latency.0, latency.1
    );
    runtime.block_on(load::clear(&side));

    runtime.block_on(load::volumes(&side, size.volumes));
    let list = runtime.block_on(load::list(&side, size.volumes, size.lists));
    eprintln!("  a list of {} volumes in {:.0} ms", size.volumes, list * 1e3);
    std::thread::sleep(size.rest);
    let memory_full = side.memory();
    eprintln!("  {memory_full:.1} MiB with them");
    let again = median((0..3).map(|_| side.restart(runtime)).collect());
    eprintln!("  ready again after {:.0} ms", again * 1e3);
    std::thread::sleep(size.rest);
    let memory_again = side.memory();
    eprintln!("  {memory_again:.1} MiB then");
    Results { first, again, alone, together, cpu, list, latency, memory_empty, memory_full, memory_again }
}
