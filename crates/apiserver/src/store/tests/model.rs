//! Random operations on a store, compared with a model that keeps every revision.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const KEYS: [&str; 6] = ["/a/1", "/a/2", "/a/3", "/b/1", "/b/2", "c/x/1"];

#[derive(Debug, Clone)]
enum Op {
    /// Writes that are all sent before the first reply.
    Burst(Vec<WriteRequest>),
    List {
        prefix: &'static str,
        back: u64,
        limit: usize,
    },
    /// The watcher that exists since the start reads all pending events.
    Follow,
    Reopen,
}

#[derive(Debug, Clone, Copy)]
struct WriteRequest {
    key: usize,
    operation: u8,
    /// How many revisions behind the expected revision is.
    stale: u64,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let request = (0..KEYS.len(), 0..3_u8, prop_oneof![6 => Just(0), 1 => 1..3_u64]);
    let request = request.prop_map(|(key, operation, stale)| WriteRequest { key, operation, stale });
    let prefix = prop_oneof![Just(""), Just("/a/"), Just("/b/"), Just("/a/1"), Just("none")];
    let list =
        (prefix, 0..30_u64, 0..4_usize).prop_map(|(prefix, back, limit)| Op::List { prefix, back, limit });
    let burst = prop::collection::vec(request, 1..12).prop_map(Op::Burst);
    prop::collection::vec(
        prop_oneof![8 => burst, 4 => list, 2 => Just(Op::Follow), 1 => Just(Op::Reopen)],
        1..30,
    )
}

type Objects = BTreeMap<Key, (Revision, Bytes)>;

/// All objects of every revision.
struct Model(BTreeMap<Revision, Objects>);

impl Model {
    fn now(&self) -> (Revision, &Objects) {
        self.0.last_key_value().map(|(revision, objects)| (*revision, objects)).unwrap()
    }

    /// Applies a request to the model. Returns the write for the store and its expected result.
    fn apply(
        &mut self,
        WriteRequest { key, operation, stale }: WriteRequest,
    ) -> (Key, Change, Result<Entry, WriteError>) {
        let key = Key::from(KEYS[key]);
        let (revision, objects) = self.now();
        let text = format!("written at {}", revision + 1);
        let existing = objects.get(&key).map(|(revision, value)| Entry {
            key: key.clone(),
            revision: *revision,
            value: value.clone(),
        });
        let on = existing.as_ref().map_or(revision, |entry| entry.revision).saturating_sub(stale);
        let change = match operation {
            0 => Change::Create(body(&text)),
            1 => Change::Update(on, body(&text)),
            _ => Change::Delete(on, body(&text)),
        };
        let result = match (&change, existing) {
            (Change::Create(_), Some(existing)) => Err(WriteError::AlreadyExists(existing)),
            (Change::Update(..) | Change::Delete(..), None) => Err(WriteError::NotFound),
            (Change::Update(on, _) | Change::Delete(on, _), Some(existing)) if *on != existing.revision => {
                Err(WriteError::Conflict(existing))
            }
            _ => Ok(entry(&key, &text, revision + 1)),
        };
        if let Ok(entry) = &result {
            let mut objects = objects.clone();
            if matches!(change, Change::Delete(..)) {
                objects.remove(&key);
            } else {
                objects.insert(key.clone(), (entry.revision, entry.value.clone()));
            }
            self.0.insert(entry.revision, objects);
        }
        (key, change, result)
    }

    fn list(&self, prefix: &str, at: Revision) -> Vec<Entry> {
        let objects = self.0[&at].iter().filter(|(key, _)| key.starts_with(prefix));
        objects
            .map(|(key, (revision, value))| Entry {
                key: key.clone(),
                revision: *revision,
                value: value.clone(),
            })
            .collect()
    }

    /// Checks that the event leads from the revision before it to its own.
    fn check(&self, event: &Event) {
        let (before, after) = (&self.0[&(event.revision - 1)], &self.0[&event.revision]);
        let previous = before.get(&event.key).map(|(_, value)| value);
        assert_eq!(event.previous.as_ref(), previous, "{event:?}");
        let mut replayed = before.clone();
        if event.deleted {
            replayed.remove(&event.key);
            assert_eq!(
                event.value,
                json(&format!("written at {}", event.revision), event.revision),
                "{event:?}"
            );
        } else {
            replayed.insert(event.key.clone(), (event.revision, event.value.clone()));
        }
        assert_eq!(&replayed, after, "{event:?}");
    }
}

/// Reads a watch up to revision `now`. Returns the revisions received, or why the watch ended.
async fn drain(watch: &mut Watch, model: &Model, now: Revision) -> Result<Vec<Revision>, WatchEnd> {
    let mut seen = Vec::new();
    loop {
        let reached = match watch.next().await? {
            WatchItem::Event(event) => {
                model.check(&event);
                seen.push(event.revision);
                event.revision
            }
            WatchItem::Progress(revision) => revision,
        };
        if reached == now {
            return Ok(seen);
        }
    }
}

fn revisions(model: &Model, prefix: &str, from: Revision) -> Vec<Revision> {
    let changed = |at: Revision| model.list(prefix, at) != model.list(prefix, at - 1);
    (from + 1..=model.now().0).filter(|at| changed(*at)).collect()
}

async fn run_against_model(ops: Vec<Op>, history: usize) {
    let options = Options { history, ..NO_SYNC };
    let (mut store, dir) = open(options);
    let mut model = Model(BTreeMap::from([(1, Objects::new())]));
    let mut follower = (store.watch("/a/", 1).unwrap(), 1);
    for op in ops {
        match op {
            Op::Burst(requests) => {
                let mut results = Vec::new();
                for request in requests {
                    let (key, change, expected) = model.apply(request);
                    let store = store.clone();
                    results.push((tokio::spawn(async move { store.write(key, change).await }), expected));
                }
                for (result, expected) in results {
                    assert_eq!(result.await.unwrap(), expected);
                }
            }
            Op::List { prefix, back, limit } => {
                let at = model.now().0.saturating_sub(back);
                let oldest = store.stats().oldest;
                let expected = if at < oldest {
                    Err(ListError::Compacted { oldest })
                } else {
                    Ok(model.list(prefix, at))
                };
                assert_eq!(pages(&store, prefix, at, limit), expected, "{prefix} at {at} by {limit}");
            }
            Op::Follow => {
                let (watch, from) = &mut follower;
                if *from < model.now().0 {
                    match drain(watch, &model, model.now().0).await {
                        Ok(seen) => {
                            assert_eq!(seen, revisions(&model, "/a/", *from));
                            *from = model.now().0;
                        }
                        Err(end) => {
                            assert_eq!(end, WatchEnd::Compacted);
                            assert!(*from < store.stats().oldest);
                            *from = model.now().0;
                            *watch = store.watch("/a/", *from).unwrap();
                        }
                    }
                }
            }
            Op::Reopen => {
                let before = store.stats();
                drop(store);
                store = Store::open(dir.path(), options).unwrap();
                assert_eq!(Stats { watchers: 0, last_commit: Duration::ZERO, ..before }, store.stats());
                let from = follower.1;
                let again = store.watch("/a/", from);
                assert_eq!(again.is_ok(), from >= before.oldest);
                follower = again.map_or_else(
                    |_| (store.watch("/a/", before.revision).unwrap(), before.revision),
                    |watch| (watch, from),
                );
            }
        }
        let (revision, objects) = model.now();
        let stats = store.stats();
        assert_eq!((store.revision(), stats.keys), (revision, objects.len()));
        assert_eq!(stats.bytes, objects.values().map(|(_, value)| value.len()).sum::<usize>());
        assert!(stats.log <= history + history / 8 && stats.log as u64 == revision - stats.oldest);
        for key in KEYS {
            assert_eq!(store.get(key), model.list("", revision).into_iter().find(|entry| &*entry.key == key));
        }
    }
    // A watch from any revision replays the lists from there on.
    let (now, _) = model.now();
    for from in store.stats().oldest..now {
        for prefix in ["", "/a/", "/b/1", "none"] {
            let mut watch = store.watch(prefix, from).unwrap();
            assert_eq!(
                drain(&mut watch, &model, now).await,
                Ok(revisions(&model, prefix, from)),
                "{prefix} {from}"
            );
        }
        assert_eq!(pages(&store, "", from, 0), Ok(model.list("", from)));
    }
}

fn pages(store: &Store, prefix: &str, at: Revision, limit: usize) -> Result<Vec<Entry>, ListError> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let after = all.last().map(|entry| entry.key.clone());
        let page = store.list(prefix, Some(at), after.as_deref(), limit)?;
        assert_eq!((page.revision, page.more), (at, page.remaining > 0));
        assert!(limit == 0 || page.entries.len() <= limit);
        assert!(!page.more || page.entries.len() == limit);
        all.extend(page.entries);
        if !page.more {
            return Ok(all);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn store_behaves_like_its_model(ops in ops(), history in prop_oneof![Just(8_usize), Just(40), Just(10_000)]) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run_against_model(ops, history));
    }
}
