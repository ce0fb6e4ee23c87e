//! What is in the directory: kept, locked, checked, copied.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use redb::{Database, TableDefinition};

use super::*;

async fn some(store: &Store) {
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
    let mut seen = Vec::new();
    while seen.len() as u64 + from < store.revision() {
        seen.push((*event(&mut watch).await).clone());
    }
    seen
}

#[tokio::test]
async fn all_is_there_when_it_is_opened_again() {
    let (store, dir) = open(QUICK);
    some(&store).await;
    let (page, seen) = (store.list("", None, None, 0).unwrap(), events(&store, 1).await);
    let middle = store.list("", Some(53), None, 0).unwrap();
    let figures = store.figures();
    drop(store);
    let store = Store::open(dir.path(), QUICK).unwrap();
    assert_eq!(store.list("", None, None, 0), Ok(page));
    assert_eq!(store.list("", Some(53), None, 0), Ok(middle));
    assert_eq!(events(&store, 1).await, seen);
    assert_eq!(Figures { last_commit: figures.last_commit, ..store.figures() }, figures);
}

#[tokio::test]
async fn one_process_at_a_time_and_nobody_else_reads_it() {
    let (store, dir) = open(QUICK);
    let error = Store::open(dir.path(), QUICK).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(matches!(
        Store::restore(&dir.path().join("store.redb"), dir.path()),
        Err(RestoreError::Write(_))
    ));
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{entry:?}");
    }
    let inner = dir.path().join("made/by/us");
    drop(Store::open(&inner, QUICK).unwrap());
    assert_eq!(fs::metadata(&inner).unwrap().permissions().mode() & 0o077, 0);
    drop(store);
    Store::open(dir.path(), QUICK).unwrap();
}

#[test]
fn a_later_schema_is_refused_in_words() {
    let (store, dir) = open(QUICK);
    drop(store);
    let database = Database::open(dir.path().join("store.redb")).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(TableDefinition::<&str, u64>::new("meta")).unwrap().insert("schema", 2).unwrap();
    write.commit().unwrap();
    drop(database);
    let error = Store::open(dir.path(), QUICK).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, .. }), "{error}");
    assert!(error.to_string().contains("run the version that wrote it"), "{error}");
}

#[test]
fn a_file_of_something_else_is_refused_in_words() {
    let (store, dir) = open(QUICK);
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
    for (what, bytes) in
        [("empty", &[][..]), ("text", b"hello"), ("zeroes", &[0; 9000]), ("half", half), ("other", &other)]
    {
        fs::write(&path, bytes).unwrap();
        let error = Store::open(dir.path(), QUICK).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{what}: {error}");
        assert!(error.to_string().contains("store.redb is damaged"), "{what}: {error}");
        assert_eq!(fs::read(&path).unwrap().len(), bytes.len(), "{what}: it is not ours to repair");
    }
}

/// A file of which part is lost or wrong is refused, or what is read is what was written: never something else,
/// and never a panic.
#[tokio::test]
async fn a_damaged_file_is_noticed() {
    let (store, dir) = open(QUICK);
    some(&store).await;
    let (page, seen) = (store.list("", None, None, 0).unwrap(), events(&store, 1).await);
    drop(store);
    let path = dir.path().join("store.redb");
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    let mut check = |what: String, bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        match Store::open(dir.path(), QUICK) {
            Ok(store) => assert_eq!(store.list("", None, None, 0).unwrap(), page, "{what}"),
            Err(OpenError::Damaged { .. } | OpenError::Behind { .. }) => refused += 1,
            Err(error) => panic!("{what}: {error}"),
        }
    };
    for part in 0..32 {
        let len = whole.len() * part / 32;
        check(format!("{len} bytes"), &whole[..len]);
    }
    // Inside of pages that are in use, wherever those are.
    for (page, at) in (0..whole.len()).step_by(4096).zip((0..4096).step_by(37).cycle()) {
        if whole[page..page + 4096].iter().any(|byte| *byte != 0) {
            let mut bytes = whole.clone();
            bytes[page + at] ^= 0x55;
            check(format!("byte {at} of page {page}"), &bytes);
        }
    }
    assert!(refused > 32, "{refused}");
    fs::write(&path, &whole).unwrap();
    let store = Store::open(dir.path(), QUICK).unwrap();
    assert_eq!(events(&store, 1).await, seen, "and the whole one is good");
}

#[tokio::test]
async fn an_older_copy_is_not_taken_for_the_store() {
    let (store, dir) = open(QUICK);
    create(&store, "/x", "x").await;
    drop(store);
    let path = dir.path().join("store.redb");
    let older = fs::read(&path).unwrap();
    let store = Store::open(dir.path(), QUICK).unwrap();
    create(&store, "/y", "y").await;
    drop(store);
    fs::write(&path, older).unwrap();
    for attempt in 0..2 {
        let error = Store::open(dir.path(), QUICK).unwrap_err();
        assert!(matches!(error, OpenError::Behind { found: 2, acknowledged: 3, .. }), "{attempt}: {error}");
    }
    // The ways out that the words name.
    let new = dir.path().join("new");
    Store::restore(&path, &new).unwrap();
    assert_eq!(Store::open(&new, QUICK).unwrap().get("/x"), Some(entry("/x", "x", 2)));
    fs::rename(&path, dir.path().join("away")).unwrap();
    assert_eq!(Store::open(dir.path(), QUICK).unwrap().revision(), 1);
    fs::remove_file(&path).unwrap();
    Store::restore(&dir.path().join("away"), dir.path()).unwrap();
    assert_eq!(Store::open(dir.path(), QUICK).unwrap().figures().keys, 1);
}

#[tokio::test]
async fn a_backup_is_restored_into_a_life_of_its_own() {
    let (store, dir) = open(QUICK);
    some(&store).await;
    let expiring = Body { expires: Some(i64::MAX - 1), ..body("later") };
    store.write("/events/1".into(), Change::Create(expiring)).await.unwrap();
    let there = store.list("", None, None, 0).unwrap();
    let file = dir.path().join("backup");
    assert_eq!(store.backup(&file).await.unwrap(), there.revision);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0, "Secrets are in it");
    let bytes = fs::read(&file).unwrap();
    create(&store, "/lost", "after the backup").await;
    assert!(matches!(store.backup(&file).await, Err(BackupError::Exists(_))));
    let nowhere = store.backup(&dir.path().join("no/such/directory")).await;
    assert!(matches!(nowhere, Err(BackupError::Write(_))), "{nowhere:?}");

    let new = dir.path().join("new");
    let revision = Store::restore(&file, &new).unwrap();
    let restored = Store::open(&new, QUICK).unwrap();
    let page = restored.list("", None, None, 0).unwrap();
    assert_eq!((page.entries, page.revision), (there.entries, revision));
    assert!(revision > store.revision() + 1_000_000, "above all that anybody saw");
    for seen in [1, there.revision, store.revision()] {
        assert_eq!(restored.watch("", seen).err(), Some(ListError::Compacted { oldest: revision }), "{seen}");
    }
    let next = create(&restored, "/next", "x").await;
    assert_eq!(next, entry("/next", "x", revision + 1));
    drop(restored);
    assert!(matches!(Store::restore(&file, &new), Err(RestoreError::Exists(_))), "nothing is replaced");
    assert_eq!(fs::read(&file).unwrap(), bytes, "a backup is only read");
    let files: BTreeSet<_> = fs::read_dir(&new).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, BTreeSet::from(["store.lock".into(), "store.redb".into()]), "nothing is left over");
}

#[tokio::test]
async fn a_damaged_backup_is_refused_before_anything_is_made() {
    let (store, dir) = open(QUICK);
    some(&store).await;
    let (file, new) = (dir.path().join("backup"), dir.path().join("new"));
    store.backup(&file).await.unwrap();
    let whole = fs::read(&file).unwrap();
    let pod = whole.windows(6).position(|window| window == b"pod 42").unwrap();
    let mut flipped = whole.clone();
    flipped[pod] ^= 1;
    for (what, bytes) in [("empty", &[][..]), ("half", &whole[..whole.len() / 2]), ("flipped", &flipped)] {
        fs::write(&file, bytes).unwrap();
        let error = Store::restore(&file, &new).unwrap_err();
        assert!(matches!(error, RestoreError::Read(OpenError::Damaged { .. })), "{what}: {error}");
        assert!(!new.exists(), "{what}");
    }
    assert!(matches!(
        Store::restore(&dir.path().join("none"), &new),
        Err(RestoreError::Read(OpenError::Io { .. }))
    ));
}
