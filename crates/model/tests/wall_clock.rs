//! Checks that no component waits on the wall clock: only the listed files read it, each for a reason. Everything else
//! uses `wharf_model::system::monotonic` or tokio's clock, which cannot be set.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates");

/// The crates that reconcile objects. Others (the API server, the container runtime, drivers) keep records of their own.
const CRATES: [&str; 4] = ["cluster", "controllers", "node", "sidecar"];

/// The files that may read the wall clock.
const ALLOWED: [(&str, &str); 27] = [
    ("cluster/src/attempts.rs", "the time shown in /debug/attempts"),
    ("cluster/src/clock.rs", "exports the clocks"),
    ("cluster/src/events.rs", "times and names of events"),
    ("cluster/src/lease.rs", "acquireTime and renewTime of leases"),
    ("cluster/src/lib.rs", "exports the clocks"),
    ("controllers/src/node_lifecycle/act.rs", "times of conditions and taints, and the age of taints"),
    ("controllers/src/scheduler/report.rs", "times of conditions"),
    ("controllers/src/snapshot_controller/act.rs", "times of errors in a status"),
    ("controllers/src/snapshot_controller/groups/act.rs", "times of errors in a status"),
    ("node/src/machine.rs", "times of conditions"),
    ("node/src/machine/lease.rs", "renewTime of the node's lease"),
    ("node/src/pods.rs", "startTime of pods, and deadlines that refer to times in a pod"),
    ("node/src/pods/act.rs", "deadlines that refer to times in a pod, and exit times in a status"),
    ("node/src/pods/attend.rs", "the age of a container that an earlier agent started"),
    ("node/src/volumes/act.rs", "the time shown in /debug/attempts"),
    ("node/src/volumes/act/node_expand.rs", "times of conditions"),
    ("node/src/volumes/plain.rs", "names of directories, as the kubelet has them"),
    ("node/src/volumes/plain/sources.rs", "the age of service account tokens"),
    ("sidecar/src/attacher/act.rs", "times of errors in a status"),
    ("sidecar/src/health_monitor.rs", "the age of events of an earlier process"),
    ("sidecar/src/health_monitor/nodes.rs", "the age of a condition"),
    ("sidecar/src/provisioner.rs", "the time in an intent, whose age survives the process"),
    ("sidecar/src/provisioner/act.rs", "the age of an intent of an earlier process, for a metric"),
    ("sidecar/src/provisioner/journal.rs", "a unique name if there is no randomness"),
    ("sidecar/src/resizer/act.rs", "times of conditions"),
    ("sidecar/src/snapshotter/act.rs", "times of errors in a status"),
    ("sidecar/src/snapshotter/call.rs", "creation times of snapshots whose driver reports none"),
];

/// The source without comments, and without the unit tests at its end.
fn code(source: &str) -> String {
    let tests = source.find("#[cfg(test)]\nmod tests {").unwrap_or(source.len());
    let lines = source[..tests].lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Whether a source file reads the wall clock: it imports or names the function, or uses another library's.
fn reads_wall_clock(source: &str) -> bool {
    let code = code(source);
    let compact: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let imports = compact.split("use ").skip(1).filter_map(|rest| rest.split(';').next());
    let imported = imports
        .filter(|import| {
            let from = ["wharf_cluster::", "wharf_model::", "crate::", "clock::"];
            from.iter().any(|from| import.starts_with(from))
        })
        .any(|import| words(import).any(|word| word == "now"));
    let named =
        ["cluster::now", "crate::now", "system::now", "Timestamp::now", "SystemTime::now", "Zoned::now"];
    imported || named.iter().any(|name| compact.contains(name))
}

fn visit(directory: &Path, found: &mut BTreeMap<String, bool>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            visit(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests.rs")
            && !name.contains("/tests/")
        {
            found.insert(name, reads_wall_clock(&fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn only_listed_files_read_the_wall_clock() {
    let mut files = BTreeMap::new();
    for name in CRATES {
        visit(&Path::new(ROOT).join(name).join("src"), &mut files);
    }
    assert!(files.len() > 200, "only {} files found", files.len());
    let listed: BTreeMap<_, _> = ALLOWED.into_iter().collect();
    let readers = files.iter().filter(|(_, reads)| **reads).map(|(name, _)| name.as_str());
    let unlisted: Vec<_> = readers.filter(|name| !listed.contains_key(name)).collect();
    assert!(
        unlisted.is_empty(),
        "these files read the wall clock, which may be set at any time: {unlisted:?}\nUse `monotonic` for everything that \
         waits, or add the file to ALLOWED with the reason"
    );
    let stale: Vec<_> = listed.keys().filter(|name| files.get(**name) != Some(&true)).collect();
    assert!(stale.is_empty(), "these files are listed and do not read the wall clock: {stale:?}");
}

#[test]
fn reads_of_the_wall_clock_are_found() {
    for (source, expected) in [
        ("use wharf_cluster::{\n    Queue,\n    now,\n};", true),
        ("use wharf_model::system::now;", true),
        ("use crate::{Queue, now};", true),
        ("use wharf_cluster::now as clock;", true),
        ("let at = wharf_cluster::now();", true),
        ("let at = Some(wharf_model::system::now).map(|read| read());", true),
        ("let at = jiff::Timestamp::now();", true),
        ("let at = std::time::SystemTime::now();", true),
        ("use wharf_cluster::{Queue, monotonic};\nlet now = monotonic();", false),
        ("let at = tokio::time::Instant::now();", false),
        ("// use wharf_cluster::now;", false),
        ("fn f() {}\n#[cfg(test)]\nmod tests {\n    use wharf_cluster::now;\n}", false),
    ] {
        assert_eq!(reads_wall_clock(source), expected, "{source}");
    }
}
