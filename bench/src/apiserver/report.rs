//! The results as a section of bench/RESULTS.md.

use std::fmt::Write as _;

use wharf_bench::table::{Goal, figure};

use crate::{CLIENTS, Size};

/// All results of one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Results {
    /// Seconds until an empty server is ready.
    pub(crate) start_empty: f64,
    /// Seconds until a server with all volumes is ready after SIGKILL.
    pub(crate) start_full: f64,
    /// Writes per second by one client.
    pub(crate) writes_one_client: f64,
    /// Writes per second by [`CLIENTS`] clients.
    pub(crate) writes_all_clients: f64,
    /// CPU milliseconds per write.
    pub(crate) cpu: f64,
    /// Seconds for a list of all volumes.
    pub(crate) list: f64,
    /// Milliseconds from a write to its watch event: median and 99th percentile.
    pub(crate) latency: (f64, f64),
    /// RSS of an empty server in MiB.
    pub(crate) memory_empty: f64,
    /// RSS with all volumes after the benchmark, in MiB.
    pub(crate) memory_full: f64,
    /// RSS with all volumes after a restart, in MiB.
    pub(crate) memory_restarted: f64,
}

impl Results {
    /// The better of two results for each value, because other processes may use the machine.
    pub(crate) fn better(self, other: Self) -> Self {
        Self {
            start_empty: self.start_empty.min(other.start_empty),
            start_full: self.start_full.min(other.start_full),
            writes_one_client: self.writes_one_client.max(other.writes_one_client),
            writes_all_clients: self.writes_all_clients.max(other.writes_all_clients),
            cpu: self.cpu.min(other.cpu),
            list: self.list.min(other.list),
            latency: (self.latency.0.min(other.latency.0), self.latency.1.min(other.latency.1)),
            memory_empty: self.memory_empty.min(other.memory_empty),
            memory_full: self.memory_full.min(other.memory_full),
            memory_restarted: self.memory_restarted.min(other.memory_restarted),
        }
    }
}

/// The results of both sides as a Markdown section.
pub(crate) fn section(upstream: Option<&Results>, ours: &Results, size: &Size) -> String {
    let volumes = size.volumes;
    type Value = fn(&Results) -> f64;
    let rows: [(String, Value, Goal); 11] = [
        ("start until ready, empty (ms)".into(), |results| results.start_empty * 1e3, Goal::AtMost(100.0)),
        (
            format!("start until ready after kill -9, with {volumes} volumes (ms)"),
            |results| results.start_full * 1e3,
            Goal::AtMost(200.0),
        ),
        ("durable writes per second, 1 client".into(), |results| results.writes_one_client, Goal::None),
        (
            format!("durable writes per second, {CLIENTS} clients"),
            |results| results.writes_all_clients,
            Goal::Times(3.0),
        ),
        ("CPU time per write (ms)".into(), |results| results.cpu, Goal::None),
        (format!("list of {volumes} volumes (ms)"), |results| results.list * 1e3, Goal::None),
        (
            format!("write to event, {} watchers, median (ms)", size.watchers),
            |results| results.latency.0,
            Goal::None,
        ),
        (
            format!("write to event, {} watchers, 99th percentile (ms)", size.watchers),
            |results| results.latency.1,
            Goal::None,
        ),
        ("RSS, empty (MiB)".into(), |results| results.memory_empty, Goal::Part(10.0)),
        (
            format!("RSS, {volumes} volumes, after the benchmark (MiB)"),
            |results| results.memory_full,
            Goal::Part(6.0),
        ),
        (
            format!("RSS, started with {volumes} volumes (MiB)"),
            |results| results.memory_restarted,
            Goal::Part(6.0),
        ),
    ];
    let mut text = format!(
        "## The API server\n\n\
         One run of `bench/apiserver.sh` on {} processors, which servers and clients share. It compares `wharf apiserver`\n\
         with kube-apiserver 1.34 and etcd 3.6 with fsync, on the same disk, in turn; the better of {} rounds counts. Clients use TLS\n\
         and JSON, each on its own connection. A write is a ConfigMap of 1 KiB, durable when the response is sent. Memory and CPU time\n\
         include all processes of each side.\n\n\
         | measurement | upstream | wharf | goal |\n|---|---|---|---|\n",
        std::thread::available_parallelism().map_or(1, usize::from),
        size.rounds,
    );
    for (measurement, value, goal) in rows {
        let theirs = upstream.map(value);
        let upstream_text = theirs.map_or("-".to_owned(), figure);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {measurement} | {upstream_text} | {} | {} |",
            figure(value(ours)),
            goal.verdict(theirs, value(ours))
        );
    }
    text
}
