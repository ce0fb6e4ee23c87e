//! The files in the store directory: reopening, locking, damage, backup and restore.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use redb::{Database, TableDefinition};

use super::*;

async fn write_sample(store: &Store) {
    for i in 0..50 {
        create(store, &format!("/pods/a/{i:02}"), &format!("pod {i}")).await;
    }
    for i in 0..10 {
        let key = Key::from(format!("/pods/a/{i:02}"));
        let at = store.get(&key).unwrap().revision;
        let change =
            if i % 2 == 0 { Change::Update(at, body("new")) } else { Change::Delete(at, body("old")) };
        store.write(key, change).await.unwrap();
    }
}

async fn events(store: &Store, from: Revision) -> Vec<Event> {
    let mut watch = store.watch("", from).unwrap();
    let mut events_before = Vec::new();
    while events_before.len() as u64 + from < store.revision() {
        events_before.push((*event(&mut watch).await).clone());
    }
    events_before
}

#[tokio::test]
async fn reopened_store_has_all_objects_and_events() {
    let (store, dir) = open(NO_SYNC);
    write_sample(&store).await;
    let (page, events_before) = (store.list("", None, None, 0).unwrap(), events(&store, 1).await);
    let middle = store.list("", Some(53), None, 0).unwrap();
    let stats = store.stats();
    drop(store);
    let store = Store::open(dir.path(), NO_SYNC).unwrap();
    assert_eq!(store.list("", None, None, 0), Ok(page));
    assert_eq!(store.list("", Some(53), None, 0), Ok(middle));
    assert_eq!(events(&store, 1).await, events_before);
    assert_eq!(Stats { last_commit: stats.last_commit, ..store.stats() }, stats);
}

#[tokio::test]
async fn store_is_locked_and_private() {
    let (store, dir) = open(NO_SYNC);
    let error = Store::open(dir.path(), NO_SYNC).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(matches!(
        Store::restore(&dir.path().join("store.redb"), dir.path()),
        Err(RestoreError::Write(_))
    ));
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{entry:?}");
    }
    let inner = dir.path().join("created/by/us");
    drop(Store::open(&inner, NO_SYNC).unwrap());
    assert_eq!(fs::metadata(&inner).unwrap().permissions().mode() & 0o077, 0);
    drop(store);
    Store::open(dir.path(), NO_SYNC).unwrap();
}

#[test]
fn newer_schema_is_rejected_with_a_remedy() {
    let (store, dir) = open(NO_SYNC);
    drop(store);
    let database = Database::open(dir.path().join("store.redb")).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(TableDefinition::<&str, u64>::new("meta")).unwrap().insert("schema", 2).unwrap();
    write.commit().unwrap();
    drop(database);
    let error = Store::open(dir.path(), NO_SYNC).unwrap_err();
    assert!(matches!(error, OpenError::NewerSchema { found: 2, .. }), "{error}");
    assert!(error.to_string().contains("run the version that wrote it"), "{error}");
}

#[test]
fn foreign_file_is_reported_as_damaged() {
    let (store, dir) = open(NO_SYNC);
    drop(store);
    let path = dir.path().join("store.redb");
    let other = dir.path().join("other");
    let database = Database::create(&other).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(TableDefinition::<&str, &str>::new("meta")).unwrap();
    write.commit().unwrap();
    drop(database);
    let other = fs::read(other).unwrap();
    let half = fs::read(&path).unwrap();
    let half = &half[..half.len() / 2];
    for (case, bytes) in
        [("empty", &[][..]), ("text", b"hello"), ("zeroes", &[0; 9000]), ("half", half), ("other", &other)]
    {
        fs::write(&path, bytes).unwrap();
        let error = Store::open(dir.path(), NO_SYNC).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{case}: {error}");
        assert!(error.to_string().contains("store.redb is damaged"), "{case}: {error}");
        assert_eq!(fs::read(&path).unwrap().len(), bytes.len(), "{case}: a damaged file is not modified");
    }
}

/// A damaged file is either rejected or read exactly as written: never as something else, and never with a panic.
#[tokio::test]
async fn damaged_file_is_detected() {
    let (store, dir) = open(NO_SYNC);
    write_sample(&store).await;
    let (page, events_before) = (store.list("", None, None, 0).unwrap(), events(&store, 1).await);
    drop(store);
    let path = dir.path().join("store.redb");
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    let mut check = |case: String, bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        match Store::open(dir.path(), NO_SYNC) {
            Ok(store) => assert_eq!(store.list("", None, None, 0).unwrap(), page, "{case}"),
            Err(OpenError::Damaged { .. } | OpenError::LostWrites { .. }) => refused += 1,
            Err(error) => panic!("{case}: {error}"),
        }
    };
    for part in 0..32 {
        let len = whole.len() * part / 32;
        check(format!("{len} bytes"), &whole[..len]);
    }
    // One byte in each page that is in use.
    for (page, at) in (0..whole.len()).step_by(4096).zip((0..4096).step_by(37).cycle()) {
        if whole[page..page + 4096].iter().any(|byte| *byte != 0) {
            let mut bytes = whole.clone();
            bytes[page + at] ^= 0x55;
            check(format!("byte {at} of page {page}"), &bytes);
        }
    }
    assert!(refused > 32, "{refused}");
    fs::write(&path, &whole).unwrap();
    let store = Store::open(dir.path(), NO_SYNC).unwrap();
    assert_eq!(events(&store, 1).await, events_before, "the undamaged file is accepted");
}

#[tokio::test]
async fn older_copy_is_rejected() {
    let (store, dir) = open(NO_SYNC);
    create(&store, "/x", "x").await;
    drop(store);
    let path = dir.path().join("store.redb");
    let older = fs::read(&path).unwrap();
    let store = Store::open(dir.path(), NO_SYNC).unwrap();
    create(&store, "/y", "y").await;
    drop(store);
    fs::write(&path, older).unwrap();
    for attempt in 0..2 {
        let error = Store::open(dir.path(), NO_SYNC).unwrap_err();
        assert!(
            matches!(error, OpenError::LostWrites { found: 2, acknowledged: 3, .. }),
            "{attempt}: {error}"
        );
    }
    // The remedies that the error message names.
    let new = dir.path().join("new");
    Store::restore(&path, &new).unwrap();
    assert_eq!(Store::open(&new, NO_SYNC).unwrap().get("/x"), Some(entry("/x", "x", 2)));
    fs::rename(&path, dir.path().join("away")).unwrap();
    assert_eq!(Store::open(dir.path(), NO_SYNC).unwrap().stats().keys, 0);
    fs::remove_file(&path).unwrap();
    Store::restore(&dir.path().join("away"), dir.path()).unwrap();
    assert_eq!(Store::open(dir.path(), NO_SYNC).unwrap().stats().keys, 1);
}

/// A client that knows revisions of the lost store gets 410 Gone, even if the new store has written more than that one.
#[tokio::test]
async fn new_store_begins_above_all_revisions_of_a_lost_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = 0;
    for round in 0..3 {
        let store = Store::open(dir.path(), NO_SYNC).unwrap();
        let Stats { revision, oldest, .. } = store.stats();
        assert!(revision > before && revision == oldest, "round {round}: {revision} after {before}");
        write_sample(&store).await;
        for old in [1, before.saturating_sub(1), before] {
            let compacted = Some(ListError::Compacted { oldest });
            assert_eq!(store.watch("", old).err(), compacted, "round {round}: {old}");
            assert_eq!(store.list("", Some(old), None, 0).err(), compacted, "round {round}: {old}");
        }
        before = store.revision();
        drop(store);
        fs::remove_file(dir.path().join("store.redb")).unwrap();
        if round == 0 {
            // The whole directory is lost.
            fs::remove_file(dir.path().join("store.lock")).unwrap();
        }
    }
}

/// The clock was set back, so that it is no lower limit.
#[tokio::test]
async fn acknowledged_revision_is_kept_if_the_file_cannot_be_created() {
    let (store, backups) = open(NO_SYNC);
    let backup = backups.path().join("backup");
    store.backup(&backup).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (path, partial) = (dir.path().join("store.redb"), dir.path().join("store.redb.partial"));
    let mut acknowledged: Revision = 1 << 52;
    fs::write(dir.path().join("store.lock"), format!("{acknowledged:020}\n")).unwrap();
    for round in 0..2 {
        fs::create_dir(&partial).unwrap();
        Store::open(dir.path(), NO_SYNC).unwrap_err();
        Store::restore(&backup, dir.path()).unwrap_err();
        let recorded = fs::read_to_string(dir.path().join("store.lock")).unwrap();
        assert_eq!(recorded, format!("{acknowledged:020}\n"), "an earlier file can come back");
        fs::remove_dir(&partial).unwrap();
        if round == 1 {
            Store::restore(&backup, dir.path()).unwrap();
        }
        let revision = Store::open(dir.path(), NO_SYNC).unwrap().stats().revision;
        assert!(revision > acknowledged, "{round}: {revision} {acknowledged}");
        acknowledged = revision;
        fs::remove_file(&path).unwrap();
    }
}

#[tokio::test]
async fn restored_backup_continues_above_all_seen_revisions() {
    let (store, dir) = open(NO_SYNC);
    write_sample(&store).await;
    let expiring = Body { expires: Some(i64::MAX - 1), ..body("later") };
    store.write("/events/1".into(), Change::Create(expiring)).await.unwrap();
    let existing = store.list("", None, None, 0).unwrap();
    let file = dir.path().join("backup");
    assert_eq!(store.backup(&file).await.unwrap(), existing.revision);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0, "the backup contains Secrets");
    let bytes = fs::read(&file).unwrap();
    create(&store, "/lost", "after the backup").await;
    assert!(matches!(store.backup(&file).await, Err(BackupError::Exists(_))));
    let nowhere = store.backup(&dir.path().join("no/such/directory")).await;
    assert!(matches!(nowhere, Err(BackupError::Write(_))), "{nowhere:?}");

    let new = dir.path().join("new");
    let revision = Store::restore(&file, &new).unwrap();
    let restored = Store::open(&new, NO_SYNC).unwrap();
    let page = restored.list("", None, None, 0).unwrap();
    assert_eq!((page.entries, page.revision), (existing.entries, revision));
    assert!(revision > store.revision() + 1_000_000, "above every revision that a client can have seen");
    for events_before in [1, existing.revision, store.revision()] {
        assert_eq!(
            restored.watch("", events_before).err(),
            Some(ListError::Compacted { oldest: revision }),
            "{events_before}"
        );
    }
    let next = create(&restored, "/next", "x").await;
    assert_eq!(next, entry("/next", "x", revision + 1));
    drop(restored);
    assert!(
        matches!(Store::restore(&file, &new), Err(RestoreError::Exists(_))),
        "an existing store is not replaced"
    );
    assert_eq!(fs::read(&file).unwrap(), bytes, "the backup is not modified");
    let files: BTreeSet<_> = fs::read_dir(&new).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(
        files,
        BTreeSet::from(["store.lock".into(), "store.redb".into()]),
        "no temporary files remain"
    );
}

#[tokio::test]
async fn damaged_backup_is_rejected_before_anything_is_created() {
    let (store, dir) = open(NO_SYNC);
    write_sample(&store).await;
    let (file, new) = (dir.path().join("backup"), dir.path().join("new"));
    store.backup(&file).await.unwrap();
    let whole = fs::read(&file).unwrap();
    let pod = whole.windows(6).position(|window| window == b"pod 42").unwrap();
    let mut flipped = whole.clone();
    flipped[pod] ^= 1;
    for (case, bytes) in [("empty", &[][..]), ("half", &whole[..whole.len() / 2]), ("flipped", &flipped)] {
        fs::write(&file, bytes).unwrap();
        let error = Store::restore(&file, &new).unwrap_err();
        assert!(matches!(error, RestoreError::Read(OpenError::Damaged { .. })), "{case}: {error}");
        assert!(!new.exists(), "{case}");
    }
    assert!(matches!(
        Store::restore(&dir.path().join("none"), &new),
        Err(RestoreError::Read(OpenError::Io { .. }))
    ));
}
