//! The results as a section of bench/RESULTS.md.

use std::fmt::Write as _;

use wharf_bench::table::{Goal, figure};

use crate::{CLIENTS, Size};

/// All results of one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Results {
    /// Seconds to ready, empty.
    pub(crate) first: f64,
    /// Seconds to ready after kill -9, with all volumes.
    pub(crate) again: f64,
    /// Writes per second.
    pub(crate) alone: f64,
    pub(crate) together: f64,
    /// Processor milliseconds per write.
    pub(crate) cpu: f64,
    /// Seconds.
    pub(crate) list: f64,
    /// Milliseconds.
    pub(crate) latency: (f64, f64),
    /// MiB.
    pub(crate) memory_empty: f64,
    pub(crate) memory_full: f64,
    pub(crate) memory_again: f64,
}

impl Results {
    /// The better of two results for each value, because other processes may use the machine.
    pub(crate) fn better(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            again: self.again.min(other.again),
            alone: self.alone.max(other.alone),
            together: self.together.max(other.together),
            cpu: self.cpu.min(other.cpu),
            list: self.list.min(other.list),
            latency: (self.latency.0.min(other.latency.0), self.latency.1.min(other.latency.1)),
            memory_empty: self.memory_empty.min(other.memory_empty),
            memory_full: self.memory_full.min(other.memory_full),
            memory_again: self.memory_again.min(other.memory_again),
        }
    }
}

pub(crate) fn section(upstream: Option<&Results>, ours: &Results, size: &Size) -> String {
    let volumes = size.volumes;
    type Of = fn(&Results) -> f64;
    let rows: [(String, Of, Goal); 11] = [
        ("start until ready, empty (ms)".into(), |it| it.first * 1e3, Goal::AtMost(100.0)),
        (
            format!("start until ready after kill -9, with {volumes} volumes (ms)"),
            |it| it.again * 1e3,
            Goal::AtMost(200.0),
        ),
        ("durable writes per second, 1 client".into(), |it| it.alone, Goal::None),
        (format!("durable writes per second, {CLIENTS} clients"), |it| it.together, Goal::Times(3.0)),
        ("CPU time per write (ms)".into(), |it| it.cpu, Goal::None),
        (format!("list of {volumes} volumes (ms)"), |it| it.list * 1e3, Goal::None),
        (format!("write to event, {} watchers, median (ms)", size.watchers), |it| it.latency.0, Goal::None),
        (
            format!("write to event, {} watchers, 99th percentile (ms)", size.watchers),
            |it| it.latency.1,
            Goal::None,
        ),
        ("RSS, empty (MiB)".into(), |it| it.memory_empty, Goal::Part(10.0)),
        (format!("RSS, {volumes} volumes, after the benchmark (MiB)"), |it| it.memory_full, Goal::Part(6.0)),
        (format!("RSS, started with {volumes} volumes (MiB)"), |it| it.memory_again, Goal::Part(6.0)),
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
    for (what, of, goal) in rows {
        let theirs = upstream.map(of);
        let shown = theirs.map_or("-".to_owned(), figure);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {what} | {shown} | {} | {} |",
            figure(of(ours)),
            goal.verdict(theirs, of(ours))
        );
    }
    text
}
