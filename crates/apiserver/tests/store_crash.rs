//! Kills the store a hundred times with SIGKILL during writes. After each crash, every acknowledged write is there,
//! none is partial, and a watcher that resumes receives each revision once.
//!
//! The killed process is this binary, running [`writes_until_killed`]. It reports acknowledged writes and watch events
//! on its standard error.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use wharf_apiserver::store::{Body, Change, Key, Options, Revision, Store, WatchItem};

const CRASHES: u64 = 100;
const WRITERS: usize = 8;
const DIRECTORY: &str = "STORE_CRASH_DIRECTORY";
/// The turns that each writer has completed, and the last revision that the watcher received.
const BEGIN: &str = "STORE_CRASH_BEGIN";

fn key(writer: usize) -> Key {
    format!("/pods/a/{writer}").into()
}

/// Whether the object exists after a writer's `turn`-th write: it creates, updates twice, deletes, and repeats.
fn exists(turn: u64) -> bool {
    !turn.is_multiple_of(4)
}

/// Texts of various sizes. A mixture of two texts equals neither.
fn text(writer: usize, turn: u64) -> String {
    format!("{writer}.{turn} ").repeat(1 + (turn as usize * 37 + writer) % 400)
}

fn body(writer: usize, turn: u64) -> Body {
    let text = text(writer, turn);
    let json = format!(r#"{{"metadata":{{"resourceVersion":""}},"turn":{turn},"text":"{text}"}}"#);
    let at = json.find(r#""""#).unwrap() + 1;
    Body { json: json.into(), revision_offset: at, expires: None }
}

/// The turn that wrote a value.
fn turn(writer: usize, revision: Revision, value: &[u8]) -> u64 {
    let value: Value = serde_json::from_slice(value).unwrap();
    let turn = value["turn"].as_u64().unwrap();
    assert_eq!(value["text"], text(writer, turn), "the value is partial or mixed");
    assert_eq!(value["metadata"]["resourceVersion"], revision.to_string());
    turn
}

/// Writes a line atomically: with one write to the pipe.
fn report(line: String) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}

async fn write(store: Store, writer: usize, mut done: u64) {
    loop {
        let next = done + 1;
        let on = store.get(&key(writer)).map(|entry| entry.revision);
        let change = match on {
            None => Change::Create(body(writer, next)),
            Some(on) if exists(next) => Change::Update(on, body(writer, next)),
            Some(on) => Change::Delete(on, body(writer, next)),
        };
        let entry = store.write(key(writer), change).await.unwrap();
        report(format!("acknowledged {writer} {next} {}\n", entry.revision));
        done = next;
    }
}

async fn watch(store: Store, from: Revision) {
    let mut watch = store.watch("", from).unwrap();
    loop {
        if let WatchItem::Event(event) = watch.next().await.unwrap() {
            let writer = event.key.rsplit('/').next().unwrap().parse().unwrap();
            report(format!(
                "saw {writer} {} {}\n",
                turn(writer, event.revision, &event.value),
                event.revision
            ));
        }
    }
}

#[test]
#[ignore = "the process to kill; crashes_lose_no_acknowledged_writes runs it"]
fn writes_until_killed() {
    let directory = std::env::var_os(DIRECTORY).expect("run by crashes_lose_no_acknowledged_writes");
    let begin: Vec<u64> =
        std::env::var(BEGIN).unwrap().split(' ').map(|number| number.parse().unwrap()).collect();
    let store = Store::open(Path::new(&directory), Options::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let from = match begin[WRITERS] {
            0 => store.stats().oldest,
            seen => seen,
        };
        let watching = tokio::spawn(watch(store.clone(), from));
        for (writer, done) in begin.iter().take(WRITERS).enumerate() {
            tokio::spawn(write(store.clone(), writer, *done));
        }
        watching.await.unwrap();
    });
}

/// Kills the process when the test ends.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the test knows about the store from the reports.
struct Expected {
    /// The acknowledged turns of each writer.
    done: [u64; WRITERS],
    /// The revision of the empty store; 0 until it is known.
    first: Revision,
    /// The last revision that the watcher received; 0 if none.
    seen: Revision,
    /// The last turn of each writer that the watcher received.
    last: [u64; WRITERS],
}

impl Expected {
    /// Runs the process for `lines` lines of output and `delay`, then kills it. Returns its other output.
    fn run(&mut self, directory: &Path, lines: usize, delay: Duration) -> String {
        let begin: Vec<String> = self.done.iter().chain([&self.seen]).map(u64::to_string).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "writes_until_killed", "--nocapture"])
            .env(DIRECTORY, directory)
            .env(BEGIN, begin.join(" "))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = KillOnDrop(child);
        let mut reports = BufReader::new(child.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut other = String::new();
        for line in reports.by_ref().take(lines) {
            self.record(&line, &mut other);
        }
        std::thread::sleep(delay);
        child.0.kill().unwrap();
        // Reports from before the kill count too.
        for line in reports {
            self.record(&line, &mut other);
        }
        other
    }

    fn record(&mut self, line: &str, other: &mut String) {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<u64> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
        match (words[0], numbers.as_slice()) {
            ("acknowledged", [writer, turn, _]) => {
                let done = &mut self.done[*writer as usize];
                assert_eq!(*turn, *done + 1, "{line}");
                *done = *turn;
            }
            ("saw", [writer, turn, revision]) => {
                let follows = self.seen == 0 || *revision == self.seen + 1;
                assert!(follows, "revision missed or repeated after {}: {line}", self.seen);
                let last = &mut self.last[*writer as usize];
                assert_eq!(*turn, *last + 1, "{line}");
                (*last, self.seen) = (*turn, *revision);
            }
            _ => other.extend([line, "\n"]),
        }
    }

    /// Checks the store: it has at least what was acknowledged or received, and at most one more write of each writer.
    fn check(&mut self, store: &Store) {
        if self.first == 0 {
            self.first = store.stats().oldest;
        }
        self.seen = self.seen.max(self.first);
        assert!(store.revision() >= self.seen, "a revision that the watcher received is lost");
        for (writer, done) in self.done.iter_mut().enumerate() {
            let at_least = (*done).max(self.last[writer]);
            let found = match store.get(&key(writer)) {
                Some(entry) => turn(writer, entry.revision, &entry.value),
                None => at_least.next_multiple_of(4),
            };
            assert!(
                (at_least..=*done + 1).contains(&found),
                "writer {writer}: {done} acknowledged, {found} found"
            );
            *done = found;
        }
        let turns: u64 = self.done.iter().sum();
        assert_eq!(store.revision(), turns + self.first, "each write takes one revision");
    }
}

#[test]
fn crashes_lose_no_acknowledged_writes() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { sync: false, ..Options::default() }; // This process is not killed.
    let mut expected = Expected { done: [0; WRITERS], first: 0, seen: 0, last: [0; WRITERS] };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for crash in 0..CRASHES {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Some are killed before they are ready, the first while it creates the file.
        let lines = if crash % 10 == 0 { 0 } else { (random >> 33) as usize % 150 };
        let delay = Duration::from_micros((random >> 45) % 15_000);
        let before = (expected.done, expected.seen);
        let other = expected.run(directory.path(), lines, delay);
        assert!(!other.contains("panicked"), "the process panicked: {other}");
        assert!(lines == 0 || (expected.done, expected.seen) != before, "the process wrote nothing: {other}");
        expected.check(&Store::open(directory.path(), options).unwrap());
    }
    // The full log replays to the current state, as for a watcher that was never interrupted.
    let store = Store::open(directory.path(), options).unwrap();
    let oldest = store.stats().oldest;
    let mut objects: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    for entry in store.list("", Some(oldest), None, 0).unwrap().entries {
        objects.insert(entry.key, entry.value.to_vec());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut watch = store.watch("", oldest).unwrap();
        for revision in oldest + 1..=store.revision() {
            let WatchItem::Event(event) = watch.next().await.unwrap() else { panic!("not an event") };
            assert_eq!(event.revision, revision);
            let previous = objects.remove(&event.key);
            assert_eq!(event.previous.as_deref(), previous.as_deref());
            if !event.deleted {
                objects.insert(event.key.clone(), event.value.to_vec());
            }
        }
    });
    let now: BTreeMap<_, _> = store
        .list("", None, None, 0)
        .unwrap()
        .entries
        .into_iter()
        .map(|entry| (entry.key, entry.value.to_vec()))
        .collect();
    assert_eq!(objects, now);
    println!("{CRASHES} crashes, {} writes", store.revision() - expected.first);
}
