//! `wharf apiserver`, killed with -9 again and again while clients write and others watch, over HTTPS. What was
//! answered is there, what was not is there as a whole or not at all, and a watcher that resumes where it was sees each
//! write once.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use tokio_stream::StreamExt as _;
use wharf_testkit::{Dice, Embedded, connect};

const WRITERS: usize = 6;
const WATCHERS: usize = 3;
/// Objects of each writer.
const OBJECTS: usize = 12;
/// A server lives for less than so many answered writes.
const WRITES: usize = 150;
/// The object after which a watcher has seen all.
const LAST: &str = "last";
/// Between two tries of somebody whose server is away.
const PAUSE: Duration = Duration::from_millis(5);

#[test]
fn what_was_answered_survives_twenty_kills() {
    killed(20);
}

#[test]
#[ignore = "takes minutes: make test-all"]
fn what_was_answered_survives_a_hundred_kills() {
    killed(100);
}

/// What happened to an object, in its order: it became so, or it went.
type Story = Vec<Option<u64>>;

fn killed(times: usize) {
    let mut dice = Dice::seeded_by("DURABILITY_SEED");
    let mut server = Embedded::start();
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients = {
        let (kubeconfig, seed) = (server.kubeconfig().to_owned(), dice.roll(usize::MAX));
        let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(write_and_watch(&kubeconfig, seed, &stop, &acknowledged));
        })
    };
    for _ in 0..times {
        // Some die before anything was written, some in the midst of much.
        let enough = acknowledged.load(Ordering::Relaxed) + dice.roll(WRITES);
        while acknowledged.load(Ordering::Relaxed) < enough && !clients.is_finished() {
            std::thread::sleep(Duration::from_micros(100));
        }
        server.restart();
    }
    stop.store(true, Ordering::Release);
    clients.join().unwrap();
    println!("{times} kills, {} writes were answered", acknowledged.load(Ordering::Relaxed));
}

/// Writes until the stop, then compares what is there, what was answered and what watchers have seen.
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
    let mut stories: BTreeMap<String, Story> = BTreeMap::new();
    for writer in writers {
        stories.extend(writer.await.unwrap());
    }
    let last = api().await;
    last.create(&PostParams::default(), &object(LAST, 0)).await.unwrap();
    stories.insert(LAST.to_owned(), vec![Some(0)]);

    let found = last.list(&ListParams::default().labels(OURS)).await.unwrap();
    let found: BTreeMap<String, u64> = found.items.iter().map(|found| (name(found), number(found))).collect();
    let expected = stories.iter().filter_map(|(name, story)| Some((name.clone(), (*story.last()?)?)));
    assert_eq!(found, expected.collect(), "the objects are those of the last answers");
    for watcher in watchers {
        let seen = watcher.await.unwrap();
        for (name, story) in &stories {
            assert_eq!(seen.get(name).unwrap_or(&Vec::new()), story, "a watcher's story of {name}");
        }
        assert_eq!(seen.len(), stories.values().filter(|story| !story.is_empty()).count());
    }
}

/// An object in its n-th state. It says so in three places, one of them long, so that a part of it is seen to be one.
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

/// Those that are not the server's own.
const OURS: &str = "of=durability";

/// Its state; it is whole.
fn number(found: &ConfigMap) -> u64 {
    let number = found.data.as_ref().unwrap()["number"].parse().unwrap();
    assert_eq!(found.data, object("", number).data, "{} is half there", name(found));
    number
}

/// Whether the server said no. If it said nothing, nobody knows what became of the request.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(_))
}

struct Writer {
    api: Api<ConfigMap>,
    names: Vec<String>,
    /// As the server has them: the last state, if there is one.
    there: BTreeMap<String, ConfigMap>,
    stories: BTreeMap<String, Story>,
    written: u64,
    acknowledged: Arc<AtomicUsize>,
}

impl Writer {
    fn new(number: usize, api: Api<ConfigMap>, acknowledged: Arc<AtomicUsize>) -> Self {
        let names: Vec<String> = (0..OBJECTS).map(|at| format!("w{number}-{at}")).collect();
        let stories = names.iter().map(|name| (name.clone(), Story::new())).collect();
        Self { api, names, there: BTreeMap::new(), stories, written: 0, acknowledged }
    }

    async fn run(mut self, dice: usize, stop: &AtomicBool) -> BTreeMap<String, Story> {
        // Any sequence will do, if it is not the same for all.
        let mut at = dice % 7919;
        while !stop.load(Ordering::Acquire) {
            at = (at * 31 + 17) % 7919;
            let name = self.names[at % OBJECTS].clone();
            self.write(&name, at.is_multiple_of(5)).await;
        }
        self.stories
    }

    /// One write of an object: it is made, changed or deleted.
    async fn write(&mut self, name: &str, delete: bool) {
        self.written += 1;
        let mut next = object(name, self.written);
        let (wanted, done) = match self.there.get(name) {
            None => (Some(self.written), self.api.create(&PostParams::default(), &next).await.map(Some)),
            Some(_) if delete => (None, self.api.delete(name, &DeleteParams::default()).await.map(|_| None)),
            Some(there) => {
                next.metadata.resource_version = there.metadata.resource_version.clone();
                (Some(self.written), self.api.replace(name, &PostParams::default(), &next).await.map(Some))
            }
        };
        match done {
            Ok(there) => {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
                assert_eq!(there.as_ref().map(number), wanted);
                self.keep(name, there);
            }
            Err(error) if is_refused(&error) => panic!("{name}: {error}"),
            Err(_) => {
                let found = self.look(name).await;
                let (before, now) = (self.there.get(name).map(number), found.as_ref().map(number));
                assert!(now == before || now == wanted, "{name} was {before:?}, is {now:?}, not {wanted:?}");
                if now != before {
                    self.keep(name, found);
                }
            }
        }
    }

    fn keep(&mut self, name: &str, there: Option<ConfigMap>) {
        if let Some(story) = self.stories.get_mut(name) {
            story.push(there.as_ref().map(number));
        }
        match there {
            Some(there) => drop(self.there.insert(name.to_owned(), there)),
            None => drop(self.there.remove(name)),
        }
    }

    /// As it is, as soon as somebody answers.
    async fn look(&self, name: &str) -> Option<ConfigMap> {
        loop {
            match self.api.get_opt(name).await {
                Ok(found) => return found,
                Err(error) if is_refused(&error) => panic!("{name}: {error}"),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// All that happened, as a watcher sees it who begins before anything happened and resumes where it was.
async fn watch(api: Api<ConfigMap>) -> BTreeMap<String, Story> {
    let mut version = loop {
        match api.list(&ListParams::default().labels(OURS)).await {
            Ok(list) => break list.metadata.resource_version.unwrap(),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    let mut seen: BTreeMap<String, Story> = BTreeMap::new();
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
                WatchEvent::Error(error) => panic!("a watch from {version} cannot go on: {error:?}"),
            };
            let next = object.metadata.resource_version.clone().unwrap();
            let order = |version: &str| version.parse::<u64>().unwrap();
            assert!(order(&next) > order(&version), "{next} was told after {version}");
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
