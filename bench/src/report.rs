//! The results as a section of bench/RESULTS.md.

use std::fmt::Write as _;

use crate::environment::Cost;
use crate::measure::{Alone, Growth, Together};

/// All results. In pairs, the first is upstream's.
pub(crate) struct Results {
    pub(crate) defaults: Alone,
    pub(crate) tuned: Alone,
    pub(crate) ours: Alone,
    pub(crate) attached: (Cost, Cost),
    pub(crate) tuned_together: Together,
    pub(crate) ours_together: Together,
    pub(crate) defaults_slow: Together,
    pub(crate) ours_slow: Together,
    pub(crate) asked: (f64, f64),
    pub(crate) killed: (f64, f64),
    pub(crate) growth: Growth,
    pub(crate) pods: usize,
}

/// The goal of a measurement.
pub(crate) enum Goal {
    /// At least this many times the defaults, and no less than tuned.
    Faster(f64),
    /// At least this many times the defaults, and this many times tuned.
    Times { defaults: f64, tuned: f64 },
    /// At most this fraction of upstream's value (the tuned one if available).
    Part(f64),
    /// At most this.
    AtMost(f64),
    /// No goal: for information only.
    None,
}

/// A line of a table.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) defaults: Option<f64>,
    pub(crate) tuned: Option<f64>,
    pub(crate) ours: f64,
    pub(crate) goal: Goal,
}

impl Row {
    /// The goal and whether it is met.
    fn verdict(&self) -> String {
        let (words, met) = match self.goal {
            Goal::None => return "-".to_owned(),
            Goal::AtMost(most) => (format!("at most {most}"), self.ours <= most),
            Goal::Part(part) => {
                let theirs = self.tuned.or(self.defaults).unwrap_or(f64::NAN);
                let words = format!("1/{:.0} of upstream: 1/{:.1}", 1.0 / part, theirs / self.ours);
                (words, self.ours <= theirs * part)
            }
            Goal::Times { defaults, tuned } => {
                let ratio = |theirs: Option<f64>| self.ours / theirs.unwrap_or(f64::NAN);
                let (slow, fast) = (ratio(self.defaults), ratio(self.tuned));
                let words =
                    format!("{defaults:.0} times the defaults: {slow:.1}, {tuned:.0} times tuned: {fast:.2}");
                (words, slow >= defaults && fast >= tuned)
            }
            Goal::Faster(times) => {
                let over_defaults = self.defaults.map(|theirs| self.ours / theirs);
                let over_tuned = self.tuned.map(|theirs| self.ours / theirs);
                let mut words = Vec::new();
                if let Some(ratio) = over_defaults.filter(|_| times > 1.0) {
                    words.push(format!("{times:.0} times the defaults: {ratio:.1}"));
                }
                if let Some(ratio) = over_tuned {
                    words.push(format!("as fast as tuned: {ratio:.2}"));
                }
                // Rates differ by some percent between runs.
                let met = over_defaults.is_none_or(|ratio| ratio >= times)
                    && over_tuned.is_none_or(|ratio| ratio >= 0.95);
                (words.join(", "), met)
            }
        };
        format!("{words} ({})", if met { "met" } else { "missed" })
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(crate) fn table(rows: &[Row]) -> String {
    let mut text =
        "| measurement | upstream, defaults | upstream, tuned | wharf | goal |\n|---|---|---|---|---|\n"
            .to_owned();
    let optional = |value: Option<f64>| value.map_or("-".to_owned(), number);
    for row in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.what,
            optional(row.defaults),
            optional(row.tuned),
            number(row.ours),
            row.verdict()
        );
    }
    text
}

fn work_rows(found: &Results) -> Vec<Row> {
    let Results { defaults, tuned, ours, attached: (attach, detach), .. } = found;
    type Of = fn(&Alone) -> Cost;
    let kinds: [(&str, f64, Of); 3] = [
        ("created", 10.0, |alone| alone.create),
        ("expanded", 1.0, |alone| alone.expand),
        ("deleted", 1.0, |alone| alone.delete),
    ];
    let mut rows = Vec::new();
    for (what, times, of) in kinds {
        rows.push(Row {
            what: format!("volumes {what} per second"),
            defaults: Some(of(defaults).rate()),
            tuned: Some(of(tuned).rate()),
            ours: of(ours).rate(),
            goal: Goal::Faster(times),
        });
    }
    for (what, cost) in [("attached", attach), ("detached", detach)] {
        let what = format!("volumes {what} per second");
        rows.push(Row { what, defaults: None, tuned: None, ours: cost.rate(), goal: Goal::None });
    }
    for (what, _, of) in kinds {
        rows.push(Row {
            what: format!("API requests per volume {what}"),
            defaults: Some(of(defaults).requests_each()),
            tuned: Some(of(tuned).requests_each()),
            ours: of(ours).requests_each(),
            goal: Goal::None,
        });
    }
    for (what, cost) in [("attached", attach), ("detached", detach)] {
        let what = format!("API requests per volume {what}");
        rows.push(Row { what, defaults: None, tuned: None, ours: cost.requests_each(), goal: Goal::None });
    }
    let sum = |alone: &Alone| kinds.iter().map(|(.., of)| of(alone).cpu_ms_each()).sum::<f64>();
    rows.push(Row {
        what: "CPU time per volume created, expanded and deleted (ms)".to_owned(),
        defaults: Some(sum(defaults)),
        tuned: Some(sum(tuned)),
        ours: sum(ours),
        goal: Goal::Part(0.25),
    });
    rows
}

fn together_rows(found: &Results) -> Vec<Row> {
    type Of = fn(&Together) -> f64;
    let kinds: [(&str, Of); 3] = [
        ("created", |together| together.create),
        ("bound", |together| together.bind),
        ("deleted", |together| together.delete),
    ];
    let mut rows = Vec::new();
    for (what, of) in kinds {
        rows.push(Row {
            what: format!("claims {what} per second, controller manager tuned"),
            defaults: None,
            tuned: Some(of(&found.tuned_together)),
            ours: of(&found.ours_together),
            goal: Goal::Faster(1.0),
        });
    }
    for (what, of) in kinds {
        rows.push(Row {
            what: format!("claims {what} per second, controller manager at its defaults"),
            defaults: Some(of(&found.defaults_slow)),
            tuned: None,
            ours: of(&found.ours_slow),
            goal: Goal::None,
        });
    }
    rows
}

fn rest_rows(found: &Results) -> Vec<Row> {
    let mib = |kib: u64| kib as f64 / 1024.0;
    let growth = &found.growth;
    let row = |what: &str, theirs: f64, ours: f64, goal: Goal| Row {
        what: what.to_owned(),
        defaults: Some(theirs),
        tuned: None,
        ours,
        goal,
    };
    let mut rows = vec![Row {
        what: "all five volume roles, idle, RSS (MiB)".to_owned(),
        defaults: None,
        tuned: None,
        ours: mib(growth.all_roles),
        goal: Goal::AtMost(15.0),
    }];
    for (volumes, memory) in &growth.at {
        let what = format!("RSS with {volumes} volumes (MiB)");
        rows.push(row(&what, mib(memory.upstream), mib(memory.ours), Goal::Part(0.125)));
    }
    let most = growth.at.last().map_or(0, |(volumes, _)| *volumes);
    let (again, peak) = (&growth.again, &growth.again_peak);
    let what = format!("RSS when started with {most} volumes (MiB)");
    rows.push(row(&what, mib(again.upstream), mib(again.ours), Goal::Part(0.125)));
    rows.push(row("peak RSS until then (MiB)", mib(peak.upstream), mib(peak.ours), Goal::None));
    let what = format!("CPU time to load {most} volumes (s)");
    rows.push(row(&what, growth.cpu.0, growth.cpu.1, Goal::Part(0.25)));
    let what = "time from SIGTERM until the other replica starts work (s; wharf: worst case)";
    rows.push(row(what, found.asked.0, found.asked.1, Goal::AtMost(1.0)));
    rows.push(row(
        "time from kill -9 until the other replica starts work (s)",
        found.killed.0,
        found.killed.1,
        Goal::None,
    ));
    rows
}

pub(crate) fn section(found: &Results) -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "## The sidecar

One run of `bench/sidecar.sh` on {processors} processors, which the API server, etcd, the driver and the sidecars share. It
compares upstream's external-provisioner 5.1.0 and external-resizer 1.14.0 with `wharf sidecar --roles provisioner,resizer`, on a real
Kubernetes without nodes and the scripted driver of the tests, with leader election. Tuned upstream has 1,000 requests per second,
bursts of 2,000 and 100 workers; Wharf runs with its defaults. Wharf and tuned upstream process {} volumes, and the better of two rounds
counts; upstream at its defaults processes {}.

`test/upstream` does not build upstream's attacher, so only Wharf's is measured, with {} attachments. Upstream's attacher at its
defaults was measured earlier on the same kind of machine: 1.7 attached and 2.6 detached per second.

**The sidecars alone.** The controller manager is suspended, and the benchmark makes its writes. Wharf needs one more request for a
deletion: it reads the volume again before the driver deletes data irrevocably. Events are counted when they are written; Wharf spreads
them over the following seconds.

{}
**With the controller manager**, whose binder is the slowest part: it processes one claim at a time.

{}
**Idle.** The cluster has {} unrelated pods. Volumes are API objects only.

{}",
        found.ours.create.count,
        found.defaults.create.count,
        found.attached.0.count,
        table(&work_rows(found)),
        table(&together_rows(found)),
        found.pods,
        table(&rest_rows(found)),
    )
}
