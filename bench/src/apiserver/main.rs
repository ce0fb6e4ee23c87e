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
    /// Number of starts of an empty server.
    starts: usize,
    /// Number of writes by one client.
    writes_one_client: usize,
    /// Number of writes by [`CLIENTS`] clients.
    writes_all_clients: usize,
    volumes: usize,
    lists: usize,
    watchers: usize,
    /// Number of writes that the watchers observe.
    watched_writes: usize,
    /// Wait before memory is measured.
    settle_time: Duration,
    /// Rounds of all measurements, alternating; the better result counts.
    rounds: usize,
}

const FULL: Size = Size {
    starts: 5,
    writes_one_client: 1000,
    writes_all_clients: 20_000,
    volumes: 10_000,
    lists: 7,
    watchers: 100,
    watched_writes: 200,
    settle_time: Duration::from_secs(10),
    rounds: 2,
};
const QUICK: Size = Size {
    starts: 2,
    writes_one_client: 100,
    writes_all_clients: 1000,
    volumes: 500,
    lists: 3,
    watchers: 20,
    watched_writes: 20,
    settle_time: Duration::from_secs(1),
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
    let mut results: [Option<Results>; 2] = [None, None];
    for round in 0..size.rounds {
        for (best, contender) in results.iter_mut().zip([Contender::Upstream, Contender::Ours]) {
            if requested("ours") && contender == Contender::Upstream {
                continue;
            }
            eprintln!("{contender:?}, round {}", round + 1);
            let measured = measure(&runtime, contender, &disk, &size);
            *best = Some(match best.take() {
                Some(before) => before.better(measured),
                None => measured,
            });
        }
    }
    let [upstream, ours] = results;
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
    let start_empty = median(starts);
    eprintln!("  ready after {:.0} ms", start_empty * 1e3);
    std::thread::sleep(size.settle_time);
    let memory_empty = side.memory();
    eprintln!("  {memory_empty:.1} MiB empty");

    let writes_one_client = runtime.block_on(load::writes(&side, "alone", 1, size.writes_one_client));
    eprintln!("  {writes_one_client:.0} writes per second by one client");
    let before = side.cpu();
    let writes_all_clients =
        runtime.block_on(load::writes(&side, "together", CLIENTS, size.writes_all_clients));
    let cpu = (side.cpu() - before) * 1e3 / size.writes_all_clients as f64;
    eprintln!(
        "  {writes_all_clients:.0} writes per second by {CLIENTS} clients, {cpu:.2} ms of CPU time each"
    );
    let latency = runtime.block_on(load::watch_latency(&side, size.watchers, size.watched_writes));
    eprintln!(
        "  {} watchers: {:.1} ms, {:.1} ms at the 99th percentile",
        size.watchers, latency.0, latency.1
    );
    runtime.block_on(load::clear(&side));

    runtime.block_on(load::volumes(&side, size.volumes));
    let list = runtime.block_on(load::list(&side, size.volumes, size.lists));
    eprintln!("  a list of {} volumes in {:.0} ms", size.volumes, list * 1e3);
    std::thread::sleep(size.settle_time);
    let memory_full = side.memory();
    eprintln!("  {memory_full:.1} MiB with all volumes");
    let start_full = median((0..3).map(|_| side.restart(runtime)).collect());
    eprintln!("  ready after {:.0} ms when restarted", start_full * 1e3);
    std::thread::sleep(size.settle_time);
    let memory_restarted = side.memory();
    eprintln!("  {memory_restarted:.1} MiB after the restart");
    Results {
        start_empty,
        start_full,
        writes_one_client,
        writes_all_clients,
        cpu,
        list,
        latency,
        memory_empty,
        memory_full,
        memory_restarted,
    }
}
