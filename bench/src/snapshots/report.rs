//! The results as a section of bench/RESULTS.md.

use super::Results;
use crate::report::{Goal, Row, table};

fn rows(found: &Results) -> Vec<Row> {
    let [defaults, tuned, ours] = found.work;
    let all = |what: String, of: [f64; 3], goal: Goal| {
        let [defaults, tuned, ours] = of;
        Row { what, defaults: Some(defaults), tuned: Some(tuned), ours, goal }
    };
    let [slow, fast, own] = found.one_more;
    let existing = found.size.existing;
    vec![
        all(
            "snapshots ready per second".to_owned(),
            [defaults.take.rate(), tuned.take.rate(), ours.take.rate()],
            Goal::Times { defaults: 10.0, tuned: 2.0 },
        ),
        all(
            "snapshots deleted per second".to_owned(),
            [defaults.delete.rate(), tuned.delete.rate(), ours.delete.rate()],
            Goal::Times { defaults: 10.0, tuned: 2.0 },
        ),
        all(
            format!("one more snapshot with {existing} existing ones, after a restart (s)"),
            [slow.started, fast.started, own.started],
            Goal::None,
        ),
        all(
            format!("one more snapshot with {existing} existing ones, idle (s)"),
            [slow.at_rest, fast.at_rest, own.at_rest],
            Goal::None,
        ),
        all(
            "API requests per snapshot taken".to_owned(),
            [defaults.take.requests_each(), tuned.take.requests_each(), ours.take.requests_each()],
            Goal::None,
        ),
        all(
            "API requests per snapshot deleted".to_owned(),
            [defaults.delete.requests_each(), tuned.delete.requests_each(), ours.delete.requests_each()],
            Goal::None,
        ),
        all(
            "CPU time per snapshot taken and deleted (ms)".to_owned(),
            found.work.map(|work| work.take.cpu_ms_each() + work.delete.cpu_ms_each()),
            Goal::None,
        ),
    ]
}

fn rest_rows(found: &Results) -> Vec<Row> {
    let mib = |kib: u64| kib as f64 / 1024.0;
    let mut rows = vec![Row {
        what: "all eight roles, idle, RSS (MiB)".to_owned(),
        defaults: None,
        tuned: None,
        ours: mib(found.every_role),
        goal: Goal::AtMost(20.0),
    }];
    for (count, memory) in [0, found.size.objects].into_iter().zip(found.memory) {
        rows.push(Row {
            what: format!("RSS with {count} snapshots (MiB)"),
            defaults: Some(mib(memory.upstream)),
            tuned: None,
            ours: mib(memory.ours),
            goal: Goal::Part(0.125),
        });
    }
    rows
}

pub(crate) fn section(found: &Results) -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "## The sidecar: snapshots

One run of `bench/sidecar.sh --snapshots` on {processors} processors, in the same environment as above. It compares upstream's
csi-snapshotter and snapshot-controller 8.6.0 with `wharf sidecar --roles snapshotter,snapshot-controller`, with leader election.
Tuned upstream has 1,000 requests per second, bursts of 2,000 and 100 workers; Wharf runs with its defaults. Each side takes {}
snapshots, each of its own claim; for tuned upstream and Wharf, the better of two rounds counts. The driver takes a snapshot at once, and
the snapshot is ready immediately.

{}
**Idle.** Snapshots are API objects only, each with its content.

{}",
        found.size.many,
        table(&rows(found)),
        table(&rest_rows(found)),
    )
}
