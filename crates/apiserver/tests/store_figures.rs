//! Measures the speed and memory of the store on this machine: `cargo test --release --test store_figures -- --ignored
//! --nocapture`. It fails on wrong results, not on slow ones.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use wharf_apiserver::store::{Body, Change, Options, Store};

const OBJECTS: usize = 10_000;

fn body(seed: usize) -> Body {
    let json =
        format!(r#"{{"metadata":{{"resourceVersion":""}},"seed":{seed},"text":"{}"}}"#, "x".repeat(1150));
    let at = json.find(r#""""#).unwrap() + 1;
    Body { json: json.into(), revision_offset: at, expires: None }
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Writes all keys of a range once, with that many concurrent writers.
async fn writes(store: &Store, writers: usize, keys: Range<usize>) -> String {
    let started = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (store, mine) = (store.clone(), keys.clone().skip(writer).step_by(writers));
            tokio::spawn(async move {
                for i in mine {
                    let key = format!("/persistentvolumes//pv-{i:05}");
                    let change = match store.get(&key) {
                        None => Change::Create(body(i)),
                        Some(entry) => Change::Update(entry.revision, body(i)),
                    };
                    store.write(key.into(), change).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    format!("{writers} writers: {:.0}/s", keys.len() as f64 / started.elapsed().as_secs_f64())
}

fn ready(directory: &Path, what: &str) -> Store {
    let started = Instant::now();
    let store = Store::open(directory, Options::default()).unwrap();
    println!("{what}: ready in {:?}", started.elapsed());
    store
}

#[test]
#[ignore = "benchmark: run it alone, in release mode"]
fn figures() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    println!("RSS before: {} KiB", resident_kib());
    let store = ready(directory.path(), "new store");
    println!("RSS empty: {} KiB", resident_kib());
    println!("creates, {}", runtime.block_on(writes(&store, 1, 0..1000)));
    println!("creates, {}", runtime.block_on(writes(&store, 64, 1000..OBJECTS)));
    println!("RSS at {OBJECTS} objects: {} KiB; {:?}", resident_kib(), store.stats());
    // A copy of the file at this point is what a crash leaves.
    let crashed = tempfile::tempdir().unwrap();
    std::fs::copy(directory.path().join("store.redb"), crashed.path().join("store.redb")).unwrap();
    println!("updates, {}", runtime.block_on(writes(&store, 1, 0..1000)));
    println!("updates, {}", runtime.block_on(writes(&store, 64, 0..OBJECTS)));
    println!("RSS after updates: {} KiB; {:?}", resident_kib(), store.stats());
    let started = Instant::now();
    let page = store.list("/persistentvolumes/", None, None, 0).unwrap();
    println!("list of {}: {:?}", page.entries.len(), started.elapsed());
    drop((page, store));
    let file = directory.path().join("store.redb");
    println!("file: {} KiB", file.metadata().unwrap().len() >> 10);
    for (directory, what) in [(&crashed, "after a crash"), (&directory, "after a clean shutdown and updates")]
    {
        let store = ready(directory.path(), what);
        assert_eq!(store.stats().keys, OBJECTS);
        println!("RSS: {} KiB", resident_kib());
    }
}
