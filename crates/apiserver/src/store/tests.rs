//! The store on a real file. The submodules compare it with a model and run it on failing disks.

mod files;
mod media;
mod model;

use std::collections::{BTreeMap, BTreeSet};

use tempfile::TempDir;

use super::plan::Plan;
use super::*;

pub(super) const NO_SYNC: Options = Options { sync: false, history: 10_000, history_bytes: 32 << 20 };

pub(super) fn body(text: &str) -> Body {
    let json = format!(r#"{{"metadata":{{"resourceVersion":""}},"text":"{text}"}}"#);
    let at = json.find(r#""""#).unwrap() + 1;
    Body { json: json.into(), revision_offset: at, expires: None }
}

pub(super) fn json(text: &str, revision: Revision) -> Bytes {
    format!(r#"{{"metadata":{{"resourceVersion":"{revision}"}},"text":"{text}"}}"#).into()
}

pub(super) fn entry(key: &str, text: &str, revision: Revision) -> Entry {
    Entry { key: key.into(), revision, value: json(text, revision) }
}

/// A store that begins at revision 1, so that tests know its revisions.
pub(super) fn open(options: Options) -> (Store, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    disk::create(&disk::database_path(dir.path()), disk::FIRST_REVISION, &BTreeMap::new()).unwrap();
    (Store::open(dir.path(), options).unwrap(), dir)
}

pub(super) async fn create(store: &Store, key: &str, text: &str) -> Entry {
    store.write(key.into(), Change::Create(body(text))).await.unwrap()
}

async fn event(watch: &mut Watch) -> Arc<Event> {
    match watch.next().await.unwrap() {
        WatchItem::Event(event) => event,
        WatchItem::Progress(revision) => panic!("expected an event, got progress to {revision}"),
    }
}

fn keys(page: &ListPage) -> Vec<&str> {
    page.entries.iter().map(|entry| &*entry.key).collect()
}

#[tokio::test]
async fn write_contains_its_revision_and_is_visible_to_readers_and_watchers() {
    let (store, _dir) = open(NO_SYNC);
    assert_writes_are_visible(store).await;
    assert_writes_are_visible(Store::in_memory(NO_SYNC)).await;
}

async fn assert_writes_are_visible(store: Store) {
    let mut watch = store.watch("/pods/", store.revision()).unwrap();
    assert_eq!((store.revision(), store.get("/pods/a/x")), (1, None));

    let created = create(&store, "/pods/a/x", "one").await;
    assert_eq!(created, entry("/pods/a/x", "one", 2));
    assert_eq!(store.get("/pods/a/x"), Some(created.clone()));
    let updated = store.write("/pods/a/x".into(), Change::Update(2, body("two"))).await.unwrap();
    assert_eq!(updated, entry("/pods/a/x", "two", 3));
    let deleted = store.write("/pods/a/x".into(), Change::Delete(3, body("two"))).await.unwrap();
    assert_eq!(deleted, entry("/pods/a/x", "two", 4), "the last state, as watchers receive it");
    assert_eq!((store.revision(), store.get("/pods/a/x")), (4, None));

    for (entry, deleted, previous) in [
        (created.clone(), false, None),
        (updated.clone(), false, Some(created.value)),
        (deleted, true, Some(updated.value)),
    ] {
        let Entry { key, revision, value } = entry;
        assert_eq!(*event(&mut watch).await, Event { revision, key, value, deleted, previous });
    }
    drop(store);
    assert_eq!(watch.next().await, Err(WatchEnd::Closed));
}

#[tokio::test]
async fn write_with_failed_precondition_is_rejected() {
    let (store, _dir) = open(NO_SYNC);
    let existing = create(&store, "/x", "there").await;
    let changed = || WriteError::Conflict(existing.clone());
    let no_slot = Body { revision_offset: 3, ..body("bad") };
    let far = Body { revision_offset: usize::MAX, ..body("bad") };
    for (key, change, expected) in [
        ("/x", Change::Create(body("again")), WriteError::AlreadyExists(existing.clone())),
        ("/x", Change::Update(1, body("old")), changed()),
        ("/x", Change::Update(9, body("new")), changed()),
        ("/x", Change::Delete(1, body("old")), changed()),
        ("/y", Change::Update(2, body("none")), WriteError::NotFound),
        ("/y", Change::Delete(2, body("none")), WriteError::NotFound),
        ("/y", Change::Create(no_slot), Failure::NoRevisionSlot(3).into()),
        ("/x", Change::Update(2, far.clone()), Failure::NoRevisionSlot(usize::MAX).into()),
        ("/x", Change::Delete(2, far), Failure::NoRevisionSlot(usize::MAX).into()),
    ] {
        assert_eq!(store.write(key.into(), change.clone()).await, Err(expected), "{key} {change:?}");
    }
    assert_eq!((store.revision(), store.get("/x")), (2, Some(existing)), "rejected writes change nothing");
}

#[tokio::test]
async fn concurrent_creates_of_one_key_succeed_once() {
    let (store, _dir) = open(NO_SYNC);
    let tasks: Vec<_> = (0..64)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.write("/x".into(), Change::Create(body(&i.to_string()))).await })
        })
        .collect();
    let mut created = Vec::new();
    let mut refused = Vec::new();
    for task in tasks {
        match task.await.unwrap() {
            Ok(entry) => created.push(entry),
            Err(WriteError::AlreadyExists(entry)) => refused.push(entry),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((created.len(), refused.len(), store.revision()), (1, 63, 2));
    assert!(refused.iter().all(|entry| *entry == created[0]), "all others receive the created object");
}

#[test]
fn batch_is_checked_against_its_own_writes() {
    let state = State::rebuild(1, 1, Default::default(), Vec::new()).unwrap();
    let mut plan = Plan::new(&state);
    let key = || Key::from("/x");
    let mut expiring = body("four");
    expiring.expires = Some(100);
    assert_eq!(plan.stage(key(), &Change::Update(2, body("early"))), Err(WriteError::NotFound));
    assert_eq!(plan.stage(key(), &Change::Create(body("one"))), Ok(entry("/x", "one", 2)));
    let exists = Err(WriteError::AlreadyExists(entry("/x", "one", 2)));
    assert_eq!(plan.stage(key(), &Change::Create(body("again"))), exists);
    assert_eq!(plan.stage(key(), &Change::Update(2, body("two"))), Ok(entry("/x", "two", 3)));
    let changed = Err(WriteError::Conflict(entry("/x", "two", 3)));
    assert_eq!(plan.stage(key(), &Change::Update(2, body("stale"))), changed);
    plan.expire(&key(), 1000); // It has no deadline.
    assert_eq!(plan.stage(key(), &Change::Delete(3, body("two"))), Ok(entry("/x", "two", 4)));
    assert_eq!(plan.stage(key(), &Change::Delete(3, body("two"))), Err(WriteError::NotFound));
    assert_eq!(plan.stage(key(), &Change::Create(expiring)), Ok(entry("/x", "four", 5)));
    plan.expire(&key(), 99);
    plan.expire(&key(), 100);
    plan.expire(&key(), 100); // It is deleted already.
    let events: Vec<_> = plan.into_writes().into_iter().map(|write| write.record.event).collect();
    let seen: Vec<_> =
        events.iter().map(|event| (event.revision, event.deleted, event.value.clone())).collect();
    let expected = [("one", false), ("two", false), ("two", true), ("four", false), ("four", true)];
    let expected = expected.iter().zip(2..).map(|((text, deleted), at)| (at, *deleted, json(text, at)));
    assert_eq!(seen, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn pages_of_one_list_have_one_revision() {
    let (store, _dir) = open(NO_SYNC);
    for key in ["/pods/a/1", "/pods/a/2", "/pods/a/3", "/pods/b/1", "/podsx/a/1"] {
        create(&store, key, "first").await;
    }
    let first = store.list("/pods/", None, None, 2).unwrap();
    assert_eq!((keys(&first), first.more, first.remaining), (vec!["/pods/a/1", "/pods/a/2"], true, 2));

    create(&store, "/pods/a/25", "new").await;
    let three = store.get("/pods/a/3").unwrap().revision;
    store.write("/pods/a/3".into(), Change::Update(three, body("second"))).await.unwrap();
    let one = store.get("/pods/b/1").unwrap();
    store.write("/pods/b/1".into(), Change::Delete(one.revision, body("first"))).await.unwrap();

    let rest = store.list("/pods/", Some(first.revision), Some("/pods/a/2"), 2).unwrap();
    assert_eq!(rest.entries, [entry("/pods/a/3", "first", three), one]);
    assert_eq!((rest.revision, rest.more, rest.remaining), (first.revision, false, 0));
    let now = store.list("/pods/", None, Some("/pods/a/2"), 0).unwrap();
    assert_eq!((keys(&now), now.revision), (vec!["/pods/a/25", "/pods/a/3"], store.revision()));
    for (prefix, after, expected) in [
        ("/pods/a/", None, 4),
        ("/pods/a/", Some("/a"), 4),
        ("/pods/a/", Some("/pods/b"), 0),
        ("/pods/c/", None, 0),
        ("", None, 5),
    ] {
        assert_eq!(store.list(prefix, None, after, 0).unwrap().entries.len(), expected, "{prefix} {after:?}");
    }
}

#[tokio::test]
async fn compacted_and_future_revisions_are_rejected() {
    let (store, _dir) = open(Options { history: 8, ..NO_SYNC });
    let mut slow = store.watch("", 1).unwrap();
    for i in 0..20 {
        create(&store, &format!("/{i:02}"), "x").await;
    }
    let Stats { revision, oldest, log, .. } = store.stats();
    assert_eq!(revision, 21);
    assert!((8..=9).contains(&log) && oldest == revision - log as u64, "{log} {oldest}");
    let compacted = ListError::Compacted { oldest };
    let future = ListError::Future { current: 21 };
    for (at, expected) in [(oldest - 1, Some(compacted)), (oldest, None), (21, None), (22, Some(future))] {
        assert_eq!(store.list("", Some(at), None, 0).err(), expected, "{at}");
        assert_eq!(store.watch("", at).err(), expected, "{at}");
    }
    assert_eq!(slow.next().await, Err(WatchEnd::Compacted));
}

#[tokio::test]
async fn log_is_bounded_in_bytes() {
    let (store, _dir) = open(Options { history_bytes: 10_000, ..NO_SYNC });
    let text = "x".repeat(1000);
    let mut last = create(&store, "/x", &text).await;
    for _ in 0..30 {
        last = store.write("/x".into(), Change::Update(last.revision, body(&text))).await.unwrap();
    }
    let stats = store.stats();
    assert!(stats.log_bytes <= 10_000 * 9 / 8 && stats.log >= 8, "{stats:?}");
    assert_eq!((stats.keys, stats.bytes), (1, last.value.len()));
}

#[tokio::test]
async fn watch_reports_progress_without_matching_events() {
    let (store, _dir) = open(NO_SYNC);
    let mut watch = store.watch("/pods/", 1).unwrap();
    create(&store, "/nodes/1", "x").await;
    create(&store, "/nodes/2", "x").await;
    assert_eq!(watch.next().await, Ok(WatchItem::Progress(3)));
    create(&store, "/pods/1", "x").await;
    assert_eq!(event(&mut watch).await.revision, 4);
    create(&store, "/nodes/3", "x").await;
    assert_eq!(watch.next().await, Ok(WatchItem::Progress(5)));
    // Many at once: each is delivered once, in order, across batches.
    for i in 10..210 {
        create(&store, &format!("/pods/{i}"), "x").await;
    }
    for revision in 6..206 {
        assert_eq!(event(&mut watch).await.revision, revision);
    }
    assert_eq!(store.stats().watchers, 1);
    drop(store);
    assert_eq!(watch.next().await, Err(WatchEnd::Closed));
}

#[tokio::test]
async fn write_wakes_a_waiting_watcher() {
    let (store, _dir) = open(NO_SYNC);
    let mut watch = store.watch("", 1).unwrap();
    let waiting = tokio::spawn(async move { event(&mut watch).await.revision });
    tokio::task::yield_now().await;
    create(&store, "/x", "x").await;
    assert_eq!(waiting.await.unwrap(), 2);
}

#[tokio::test]
async fn expired_object_is_deleted_with_a_regular_event() {
    let now = jiff::Timestamp::now().as_millisecond();
    let expiring = |text: &str, after| Body { expires: Some(now + after), ..body(text) };
    let (store, dir) = open(NO_SYNC);
    let far = 3_600_000;
    for (key, body) in [
        ("/events/kept", expiring("kept", far)),
        ("/events/first", expiring("first", 2000)),
        ("/events/longer", expiring("longer", 1900)),
        ("/events/over", expiring("over", -far)),
    ] {
        store.write(key.into(), Change::Create(body)).await.unwrap();
    }
    let longer = store.get("/events/longer").unwrap().revision;
    store.write("/events/longer".into(), Change::Update(longer, expiring("longer", far))).await.unwrap();
    drop(store);

    // The deadline is on disk too.
    let store = Store::open(dir.path(), NO_SYNC).unwrap();
    let mut watch = store.watch("/events/", 1).unwrap();
    let mut gone = BTreeSet::new();
    while gone.len() < 2 {
        let WatchItem::Event(event) = watch.next().await.unwrap() else { continue };
        if event.deleted {
            let name = event.key.strip_prefix("/events/").unwrap();
            assert_eq!(
                event.value,
                json(name, event.revision),
                "the last state, at the revision of the deletion"
            );
            assert_eq!(event.previous.as_ref().unwrap().len(), json(name, 2).len());
            gone.insert(name.to_owned());
        }
    }
    assert_eq!(gone, BTreeSet::from(["first".into(), "over".into()]));
    assert_eq!(keys(&store.list("/events/", None, None, 0).unwrap()), ["/events/kept", "/events/longer"]);
}

#[tokio::test]
async fn debug_output_contains_no_values() {
    let (store, _dir) = open(NO_SYNC);
    let entry = create(&store, "/secrets/a/s", "hunter2").await;
    let change = Change::Update(2, body("hunter2"));
    let event = store.watch("", 1).unwrap().next().await;
    let exists = store.write("/secrets/a/s".into(), Change::Create(body("hunter2"))).await;
    let page = store.list("", None, None, 0);
    let output = format!("{entry:?} {change:?} {event:?} {exists:?} {page:?} {store:?}");
    assert!(output.contains("/secrets/a/s@2") && !output.contains("hunter2"), "{output}");
}
