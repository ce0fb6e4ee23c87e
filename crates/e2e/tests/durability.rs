//! `wharf apiserver`, killed repeatedly with SIGKILL while clients write and watch over HTTPS. Acknowledged writes
//! survive, other writes are complete or absent, and a watcher that resumes from its last resourceVersion observes
//! each write once.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use tokio_stream::StreamExt as _;
use wharf_testkit::{EmbeddedServer, SeededRng, connect};

const WRITERS: usize = 6;
const WATCHERS: usize = 3;
/// Objects per writer.
const OBJECTS: usize = 12;
/// Upper limit of acknowledged writes between two kills.
const WRITES: usize = 150;
/// The object that ends a watch: everything was observed.
const LAST: &str = "last";
/// The pause between two attempts while the server is down.
const PAUSE: Duration = Duration::from_millis(5);

#[test]
fn acknowledged_writes_survive_twenty_kills() {
    run_with_kills(20);
}

#[test]
#[ignore = "takes minutes: make test-all"]
fn acknowledged_writes_survive_a_hundred_kills() {
    run_with_kills(100);
}

/// The history of an object in order: a state, or its deletion.
type History = Vec<Option<u64>>;

fn run_with_kills(times: usize) {
    let mut seed = SeededRng::from_env("DURABILITY_SEED");
    let mut server = EmbeddedServer::start();
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients = {
        let (kubeconfig, seed) = (server.kubeconfig().to_owned(), seed.below(usize::MAX));
        let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(write_and_watch(&kubeconfig, seed, &stop, &acknowledged));
        })
    };
    for _ in 0..times {
        // Some servers are killed before any write, some during many writes.
        let enough = acknowledged.load(Ordering::Relaxed) + seed.below(WRITES);
        while acknowledged.load(Ordering::Relaxed) < enough && !clients.is_finished() {
            std::thread::sleep(Duration::from_micros(100));
        }
        server.restart();
    }
    stop.store(true, Ordering::Release);
    clients.join().unwrap();
    println!("{times} kills, {} acknowledged writes", acknowledged.load(Ordering::Relaxed));
}

/// Writes until stopped, then compares the stored objects, the acknowledged writes and what the watchers observed.
async fn write_and_watch(
    kubeconfig: &Path,
    seed: usize,
    stop: &Arc<AtomicBool>,
    acknowledged: &Arc<AtomicUsize>,
) {
    let api = || async { Api::<ConfigMap>::default_namespaced(connect(kubeconfig).await.unwrap()) };
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        watchers.push(tokio::spawn(watch(api().await)));
    }
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let (api, stop, acknowledged) = (api().await, stop.clone(), acknowledged.clone());
        let writer = Writer::new(number, api, acknowledged);
        writers.push(tokio::spawn(async move { writer.run(seed.wrapping_add(number), &stop).await }));
    }
    let mut histories: BTreeMap<String, History> = BTreeMap::new();
    for writer in writers {
        histories.extend(writer.await.unwrap());
    }
    let last = api().await;
    last.create(&PostParams::default(), &object(LAST, 0)).await.unwrap();
    histories.insert(LAST.to_owned(), vec![Some(0)]);

    let found = last.list(&ListParams::default().labels(OURS)).await.unwrap();
    let found: BTreeMap<String, u64> = found.items.iter().map(|found| (name(found), number(found))).collect();
    let expected = histories.iter().filter_map(|(name, history)| Some((name.clone(), (*history.last()?)?)));
    assert_eq!(found, expected.collect(), "the objects match the last acknowledged writes");
    for watcher in watchers {
        let seen = watcher.await.unwrap();
        for (name, history) in &histories {
            assert_eq!(
                seen.get(name).unwrap_or(&Vec::new()),
                history,
                "the history of {name} as observed by a watcher"
            );
        }
        assert_eq!(seen.len(), histories.values().filter(|history| !history.is_empty()).count());
    }
}

/// An object in its n-th state. The state is stored in three places, one of them long, so that a partial write is
/// detected.
fn object(name: &str, number: u64) -> ConfigMap {
    let long = format!("{number:08}").repeat(256);
    let data = [("number", number.to_string()), ("long", long), ("again", number.to_string())];
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([("of".to_owned(), "durability".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ..ConfigMap::default()
    }
}

fn name(object: &ConfigMap) -> String {
    object.metadata.name.clone().unwrap()
}

/// Selects the objects of this test.
const OURS: &str = "of=durability";

/// The state of an object; checks that the object is complete.
fn number(found: &ConfigMap) -> u64 {
    let number = found.data.as_ref().unwrap()["number"].parse().unwrap();
    assert_eq!(found.data, object("", number).data, "{} is incomplete", name(found));
    number
}

/// Whether the server rejected the request. Without a response, the result of the request is unknown.
fn is_rejected(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(_))
}

struct Writer {
    api: Api<ConfigMap>,
    names: Vec<String>,
    /// The last state of each object on the server, if it exists.
    current: BTreeMap<String, ConfigMap>,
    histories: BTreeMap<String, History>,
    written: u64,
    acknowledged: Arc<AtomicUsize>,
}

impl Writer {
    fn new(number: usize, api: Api<ConfigMap>, acknowledged: Arc<AtomicUsize>) -> Self {
        let names: Vec<String> = (0..OBJECTS).map(|at| format!("w{number}-{at}")).collect();
        let histories = names.iter().map(|name| (name.clone(), History::new())).collect();
        Self { api, names, current: BTreeMap::new(), histories, written: 0, acknowledged }
    }

    async fn run(mut self, seed: usize, stop: &AtomicBool) -> BTreeMap<String, History> {
        // Any sequence will do, as long as it differs between writers.
        let mut at = seed % 7919;
        while !stop.load(Ordering::Acquire) {
            at = (at * 31 + 17) % 7919;
            let name = self.names[at % OBJECTS].clone();
            self.write(&name, at.is_multiple_of(5)).await;
        }
        self.histories
    }

    /// One write: creates, updates or deletes an object.
    async fn write(&mut self, name: &str, delete: bool) {
        self.written += 1;
        let mut next = object(name, self.written);
        let (wanted, done) = match self.current.get(name) {
            None => (Some(self.written), self.api.create(&PostParams::default(), &next).await.map(Some)),
            Some(_) if delete => (None, self.api.delete(name, &DeleteParams::default()).await.map(|_| None)),
            Some(current) => {
                next.metadata.resource_version = current.metadata.resource_version.clone();
                (Some(self.written), self.api.replace(name, &PostParams::default(), &next).await.map(Some))
            }
        };
        match done {
            Ok(current) => {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
                assert_eq!(current.as_ref().map(number), wanted);
                self.record(name, current);
            }
            Err(error) if is_rejected(&error) => panic!("{name}: {error}"),
            Err(_) => {
                let found = self.read(name).await;
                let (before, now) = (self.current.get(name).map(number), found.as_ref().map(number));
                assert!(now == before || now == wanted, "{name} was {before:?}, is {now:?}, not {wanted:?}");
                if now != before {
                    self.record(name, found);
                }
            }
        }
    }

    fn record(&mut self, name: &str, current: Option<ConfigMap>) {
        if let Some(history) = self.histories.get_mut(name) {
            history.push(current.as_ref().map(number));
        }
        match current {
            Some(current) => drop(self.current.insert(name.to_owned(), current)),
            None => drop(self.current.remove(name)),
        }
    }

    /// Reads an object, retrying until the server responds.
    async fn read(&self, name: &str) -> Option<ConfigMap> {
        loop {
            match self.api.get_opt(name).await {
                Ok(found) => return found,
                Err(error) if is_rejected(&error) => panic!("{name}: {error}"),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// The complete history as observed by a watcher that starts before the first write and resumes from its last
/// resourceVersion.
async fn watch(api: Api<ConfigMap>) -> BTreeMap<String, History> {
    let mut version = loop {
        match api.list(&ListParams::default().labels(OURS)).await {
            Ok(list) => break list.metadata.resource_version.unwrap(),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    let mut seen: BTreeMap<String, History> = BTreeMap::new();
    loop {
        let Ok(events) = api.watch(&WatchParams::default().labels(OURS), &version).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let mut events = Box::pin(events);
        while let Some(Ok(event)) = events.next().await {
            let (state, object) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (Some(number(&object)), object),
                WatchEvent::Deleted(object) => (None, object),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(error) => panic!("cannot resume a watch from {version}: {error:?}"),
            };
            let next = object.metadata.resource_version.clone().unwrap();
            let order = |version: &str| version.parse::<u64>().unwrap();
            assert!(order(&next) > order(&version), "resourceVersion {next} was received after {version}");
            version = next;
            let name = name(&object);
            let is_last = name == LAST;
            seen.entry(name).or_default().push(state);
            if is_last {
                return seen;
            }
        }
    }
}
