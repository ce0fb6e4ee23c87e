//! A hundred deaths by SIGKILL in the middle of writes. After each: every acknowledged write is there, none is half
//! there, and a watcher that resumes where it was sees each revision once.
//!
//! The one who dies is this binary again, at [`writes_until_it_is_killed`]; it says on its standard error what was
//! acknowledged and what its watcher saw.

#![allow(clippy::unwrap_used)] // helpers of tests, where a panic is the answer

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use wharf_apiserver::store::{Body, Change, Key, Options, Revision, Seen, Store};

const DEATHS: u64 = 100;
const WRITERS: usize = 8;
const DIRECTORY: &str = "STORE_CRASH_DIRECTORY";
/// How often each writer wrote, and how far the watcher saw.
const BEGIN: &str = "STORE_CRASH_BEGIN";

fn key(writer: usize) -> Key {
    format!("/pods/a/{writer}").into()
}

/// A writer's `turn`-th write: creates, updates twice, deletes, and again.
fn exists(turn: u64) -> bool {
    !turn.is_multiple_of(4)
}

/// Of all sizes, and such that a mixture of two is neither.
fn text(writer: usize, turn: u64) -> String {
    format!("{writer}.{turn} ").repeat(1 + (turn as usize * 37 + writer) % 400)
}

fn body(writer: usize, turn: u64) -> Body {
    let text = text(writer, turn);
    let json = format!(r#"{{"metadata":{{"resourceVersion":""}},"turn":{turn},"text":"{text}"}}"#);
    let at = json.find(r#""""#).unwrap() + 1;
    Body { json: json.into(), at, expires: None }
}

/// The turn that left this behind.
fn turn(writer: usize, revision: Revision, value: &[u8]) -> u64 {
    let value: Value = serde_json::from_slice(value).unwrap();
    let turn = value["turn"].as_u64().unwrap();
    assert_eq!(value["text"], text(writer, turn), "it is whole");
    assert_eq!(value["metadata"]["resourceVersion"], revision.to_string());
    turn
}

/// One write of a pipe, so a line is there or not.
fn say(line: String) {
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
        say(format!("acknowledged {writer} {next} {}\n", entry.revision));
        done = next;
    }
}

async fn watch(store: Store, from: Revision) {
    let mut watch = store.watch("", from).unwrap();
    loop {
        if let Seen::Event(event) = watch.next().await.unwrap() {
            let writer = event.key.rsplit('/').next().unwrap().parse().unwrap();
            say(format!("saw {writer} {} {}\n", turn(writer, event.revision, &event.value), event.revision));
        }
    }
}

#[test]
#[ignore = "the one who dies; the test below runs it"]
fn writes_until_it_is_killed() {
    let directory = std::env::var_os(DIRECTORY).expect("run by the other test");
    let begin: Vec<u64> =
        std::env::var(BEGIN).unwrap().split(' ').map(|number| number.parse().unwrap()).collect();
    let store = Store::open(Path::new(&directory), Options::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let watching = tokio::spawn(watch(store.clone(), begin[WRITERS]));
        for (writer, done) in begin.iter().take(WRITERS).enumerate() {
            tokio::spawn(write(store.clone(), writer, *done));
        }
        watching.await.unwrap();
    });
}

/// Dies with the test, whatever becomes of that.
struct Doomed(Child);

impl Drop for Doomed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is known from outside.
struct Known {
    /// Turns of each writer that are done for certain.
    done: [u64; WRITERS],
    /// How far the watcher saw.
    seen: Revision,
    /// What it saw of each writer last.
    last: [u64; WRITERS],
}

impl Known {
    /// One life, up to so many lines and then a moment more.
    fn live(&mut self, directory: &Path, lines: usize, moment: Duration) -> String {
        let begin: Vec<String> = self.done.iter().chain([&self.seen]).map(u64::to_string).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "writes_until_it_is_killed", "--nocapture"])
            .env(DIRECTORY, directory)
            .env(BEGIN, begin.join(" "))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Doomed(child);
        let mut said = BufReader::new(child.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut other = String::new();
        for line in said.by_ref().take(lines) {
            self.hear(&line, &mut other);
        }
        std::thread::sleep(moment);
        child.0.kill().unwrap();
        // What it said before it died counts too.
        for line in said {
            self.hear(&line, &mut other);
        }
        other
    }

    fn hear(&mut self, line: &str, other: &mut String) {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<u64> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
        match (words[0], numbers.as_slice()) {
            ("acknowledged", [writer, turn, _]) => {
                let done = &mut self.done[*writer as usize];
                assert_eq!(*turn, *done + 1, "{line}");
                *done = *turn;
            }
            ("saw", [writer, turn, revision]) => {
                assert_eq!(*revision, self.seen + 1, "each once, and none missed: {line}");
                let last = &mut self.last[*writer as usize];
                assert_eq!(*turn, *last + 1, "{line}");
                (*last, self.seen) = (*turn, *revision);
            }
            _ => other.extend([line, "\n"]),
        }
    }

    /// What is on disk: at least what was acknowledged or seen, at most one more of each writer.
    fn check(&mut self, store: &Store) {
        assert!(store.revision() >= self.seen, "what was seen is there");
        for (writer, done) in self.done.iter_mut().enumerate() {
            let at_least = (*done).max(self.last[writer]);
            let found = match store.get(&key(writer)) {
                Some(entry) => turn(writer, entry.revision, &entry.value),
                None => at_least.next_multiple_of(4),
            };
            assert!(
                (at_least..=*done + 1).contains(&found),
                "writer {writer}: {done} acknowledged, {found} there"
            );
            *done = found;
        }
        let turns: u64 = self.done.iter().sum();
        assert_eq!(store.revision(), turns + 1, "each write took one revision");
    }
}

#[test]
fn a_hundred_deaths_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let here = Options { sync: false, ..Options::default() }; // Nobody kills this one.
    let mut known = Known { done: [0; WRITERS], seen: 1, last: [0; WRITERS] };
    let mut luck = 0x9e37_79b9_7f4a_7c15_u64;
    for death in 0..DEATHS {
        luck = luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Some die before they are ready, the first of them while it makes the file.
        let lines = if death % 10 == 0 { 0 } else { (luck >> 33) as usize % 150 };
        let moment = Duration::from_micros((luck >> 45) % 15_000);
        let before = (known.done, known.seen);
        let other = known.live(directory.path(), lines, moment);
        assert!(!other.contains("panicked"), "it died of something else: {other}");
        assert!(lines == 0 || (known.done, known.seen) != before, "it did nothing: {other}");
        known.check(&Store::open(directory.path(), here).unwrap());
    }
    // And the whole of it, as a watcher that was never cut off would have seen it.
    let store = Store::open(directory.path(), here).unwrap();
    let oldest = store.figures().oldest;
    let mut objects: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    for entry in store.list("", Some(oldest), None, 0).unwrap().entries {
        objects.insert(entry.key, entry.value.to_vec());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut watch = store.watch("", oldest).unwrap();
        for revision in oldest + 1..=store.revision() {
            let Seen::Event(event) = watch.next().await.unwrap() else { panic!("all are ours") };
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
    println!("{DEATHS} deaths, {} writes", store.revision() - 1);
}
