//! The store's file: one redb database, one commit per batch.
//!
//! Tables: `meta` (schema, revision, compacted), `current` (key → revision, expiry, JSON) and `log` (revision → undo
//! record of that write). The value of an older event is the previous value in the next event of its key, so each
//! version of an object is stored once. A new file is written under another name and renamed, so that it is
//! complete or does not exist after a crash.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::database::CrashOnlyDatabase;
use super::dir_lock::DirLock;
use super::first_revision::first_revision;
use super::state::{Expiry, LogRow, State, StoredObject, Write};
use super::{Key, Revision};

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const CURRENT: TableDefinition<'_, &str, Object<'_>> = TableDefinition::new("current");
const LOG: TableDefinition<'_, u64, Undo<'_>> = TableDefinition::new("log");

/// Revision, expiry ([`NEVER`] for none), offset of the revision in the JSON, JSON.
type Object<'a> = (u64, i64, u32, &'a [u8]);
/// Key, previous revision and JSON (0 and empty if the write created the object), whether the write deleted the object,
/// and then the last state of the object, which watchers receive.
type Undo<'a> = (&'a str, u64, &'a [u8], bool, &'a [u8]);

const SCHEMA: u64 = 1;
const NEVER: i64 = i64::MAX;
/// The revision of an empty store in memory. Not 0, because clients use 0 for "any version".
pub(super) const FIRST_REVISION: Revision = 1;

const FILE: &str = "store.redb";

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory, or a file in it, cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process has the store open.
    #[error("{} is in use by another process: stop that process first", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// A later version of the program wrote the file.
    #[error(
        "{} has schema {found}, but this version supports up to {SCHEMA}: run the version that wrote it, or restore a \
         backup into another directory", path.display()
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u64,
    },
    /// The content of the file is inconsistent.
    #[error(
        "{} is damaged ({reason}): restore a backup, or move the file away to start with an empty store", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file lacks acknowledged writes.
    #[error(
        "{} is at revision {found}, but revision {acknowledged} was acknowledged: its last pages are damaged, or it \
         is an older copy. Restore a backup, or this file, into another directory", path.display()
    )]
    LostWrites {
        /// The file.
        path: PathBuf,
        /// The revision of the file.
        found: Revision,
        /// The last acknowledged revision.
        acknowledged: Revision,
    },
}

/// Opens the storage backend of the database. Tests use backends other than files.
pub(super) type OpenBackend = Box<dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send>;

/// The open database file.
pub(super) struct Disk {
    path: PathBuf,
    backend: OpenBackend,
    sync: bool,
    /// `None` after a failed attempt to reopen the file.
    database: Option<CrashOnlyDatabase>,
    lock: DirLock,
}

impl Disk {
    /// Opens or creates the file in a directory and loads all of it.
    pub(super) fn open(dir: &Path, sync: bool) -> Result<(Self, State), OpenError> {
        let lock = DirLock::acquire(dir)?;
        let path = database_path(dir);
        let io = |source| OpenError::Io { path: path.clone(), source };
        if !path.try_exists().map_err(io)? {
            create_in_dir(&path, &lock, 0, &BTreeMap::new())?;
        }
        let name = path.clone();
        let backend = Box::new(move || -> io::Result<Box<dyn StorageBackend>> {
            let file = OpenOptions::new().read(true).write(true).open(&name)?;
            Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
        });
        Self::open_on(path, backend, sync, lock)
    }

    /// Like [`Disk::open`], with a given backend.
    pub(super) fn open_on(
        path: PathBuf,
        backend: OpenBackend,
        sync: bool,
        lock: DirLock,
    ) -> Result<(Self, State), OpenError> {
        let database = open(&path, &backend, sync)?;
        let state = load(&path, &database)?;
        let found = state.revision();
        if let Some(acknowledged) = lock.acknowledged().filter(|acknowledged| *acknowledged > found) {
            return Err(OpenError::LostWrites { path, found, acknowledged });
        }
        commit_marker(&database).map_err(|error| open_error(&path, error))?;
        Ok((Self { path, backend, sync, database: Some(database), lock }, state))
    }

    /// Makes all writes durable, or none of them, and removes log entries up to the revision `compacted`.
    pub(super) fn commit(&self, writes: &[Write], compacted: Revision) -> Result<(), redb::Error> {
        let database = self.database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
        let transaction = database.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            let mut current = transaction.open_table(CURRENT)?;
            let mut log = transaction.open_table(LOG)?;
            for Write { record, after } in writes {
                let event = &*record.event;
                match after {
                    Some(object) => current.insert(&*event.key, encode_object(object))?,
                    None => current.remove(&*event.key)?,
                };
                let previous = event.previous.as_deref().unwrap_or_default();
                let last: &[u8] = if event.deleted { &event.value } else { &[] };
                log.insert(
                    event.revision,
                    (&*event.key, record.previous_revision, previous, event.deleted, last),
                )?;
                meta.insert("revision", event.revision)?;
            }
            if meta.insert("compacted", compacted)?.is_none_or(|old| old.value() < compacted) {
                log.retain_in(..=compacted, |_, _| false)?;
            }
        }
        transaction.commit()?;
        if let Some(last) = writes.last() {
            // Without the record, only damage detection is lost.
            let _ = self.lock.acknowledge(last.record.event.revision);
        }
        Ok(())
    }

    /// Reopens the file after an error, because redb stops using a file that failed once. Returns the file's revision.
    pub(super) fn reopen(&mut self) -> Result<Revision, OpenError> {
        self.database = None;
        let database = open(&self.path, &self.backend, self.sync)?;
        let revision = read_meta(&self.path, &database, "revision")?;
        self.database = Some(database);
        Ok(revision)
    }
}

/// The path of the store's file in a directory.
pub(super) fn database_path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Loads a backup file without modifying it.
pub(super) fn read_backup(path: &Path) -> Result<State, OpenError> {
    let io = |source| OpenError::Io { path: path.into(), source };
    let bytes = std::fs::read(path).map_err(io)?;
    if bytes.is_empty() {
        return Err(OpenError::Damaged { path: path.into(), reason: "the file is empty".into() });
    }
    let copy = InMemoryBackend::new();
    copy.set_len(bytes.len() as u64).and_then(|()| copy.write(0, &bytes)).map_err(io)?;
    drop(bytes);
    let database =
        CrashOnlyDatabase::open(Box::new(copy), false).map_err(|error| open_error(path, error.into()))?;
    load(path, &database)
}

/// Creates the store's file in its directory. `backup` is the revision of the objects; 0 if there are none. The new
/// revision is recorded first, so that after a crash the next file begins above this one. If the file cannot be created,
/// an earlier one may come back, so the record is what it was.
pub(super) fn create_in_dir(
    path: &Path,
    lock: &DirLock,
    backup: Revision,
    objects: &BTreeMap<Key, StoredObject>,
) -> Result<Revision, OpenError> {
    let (before, revision) = (lock.acknowledged(), first_revision(backup, lock));
    lock.acknowledge(revision).map_err(|source| OpenError::Io { path: path.into(), source })?;
    create(path, revision, objects).inspect_err(|_| {
        if let Some(before) = before {
            let _ = lock.acknowledge(before); // The first error is returned.
        }
    })?;
    Ok(revision)
}

/// Creates a file with these objects and no history. After a crash the file is complete or does not exist. An existing
/// file is never replaced.
pub(super) fn create(
    path: &Path,
    revision: Revision,
    objects: &BTreeMap<Key, StoredObject>,
) -> Result<(), OpenError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let created = write_new_database(&partial, revision, objects)
        .map_err(|error| open_error(&partial, error))
        .and_then(|()| {
            rename_into_place(&partial, path).map_err(|source| OpenError::Io { path: path.into(), source })
        });
    if created.is_err() {
        let _ = std::fs::remove_file(&partial); // The first error is returned.
    }
    created
}

fn write_new_database(
    partial: &Path,
    revision: Revision,
    objects: &BTreeMap<Key, StoredObject>,
) -> Result<(), redb::Error> {
    // `truncate` discards what a crash left behind.
    let file =
        OpenOptions::new().create(true).truncate(true).read(true).write(true).mode(0o600).open(partial)?;
    let database = CrashOnlyDatabase::open(Box::new(FileBackend::new(file)?), true)?;
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        let mut current = transaction.open_table(CURRENT)?;
        transaction.open_table(LOG)?;
        for (name, value) in [("schema", SCHEMA), ("revision", revision), ("compacted", revision)] {
            meta.insert(name, value)?;
        }
        for (key, object) in objects {
            current.insert(&**key, encode_object(object))?;
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Durably renames a finished file.
fn rename_into_place(partial: &Path, path: &Path) -> io::Result<()> {
    File::open(partial)?.sync_all()?;
    renameat_with(CWD, partial, CWD, path, RenameFlags::NOREPLACE)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

fn open(path: &Path, backend: &OpenBackend, sync: bool) -> Result<CrashOnlyDatabase, OpenError> {
    let io = |source| OpenError::Io { path: path.into(), source };
    let backend = backend().map_err(io)?;
    // redb creates a new database in an empty file. A valid file of the store is never empty.
    if backend.len().map_err(io)? == 0 {
        return Err(OpenError::Damaged { path: path.into(), reason: "the file is empty".into() });
    }
    CrashOnlyDatabase::open(backend, sync).map_err(|error| open_error(path, error.into()))
}

/// Commits a transaction that changes nothing. This proves that the disk accepts commits before requests are served.
/// It also supersedes redb's own recovery commit, which the next start would trust without verifying all pages.
fn commit_marker(database: &CrashOnlyDatabase) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(META)?.insert("schema", SCHEMA)?;
    transaction.commit()?;
    Ok(())
}

fn read_meta(path: &Path, database: &CrashOnlyDatabase, name: &str) -> Result<u64, OpenError> {
    let read = || -> Result<Option<u64>, redb::Error> {
        let meta = database.begin_read()?.open_table(META)?;
        Ok(meta.get(name)?.map(|value| value.value()))
    };
    let missing = || OpenError::Damaged { path: path.into(), reason: format!("the key {name:?} is missing") };
    read().map_err(|error| open_error(path, error))?.ok_or_else(missing)
}

fn load(path: &Path, database: &CrashOnlyDatabase) -> Result<State, OpenError> {
    let found = read_meta(path, database, "schema")?;
    if found > SCHEMA {
        return Err(OpenError::NewerSchema { path: path.into(), found });
    }
    let (revision, compacted) =
        (read_meta(path, database, "revision")?, read_meta(path, database, "compacted")?);
    let (objects, rows) = read(database).map_err(|error| open_error(path, error))?;
    let damaged = |reason| OpenError::Damaged { path: path.into(), reason };
    State::rebuild(revision, compacted, objects, rows).map_err(damaged)
}

fn read(database: &CrashOnlyDatabase) -> Result<(BTreeMap<Key, StoredObject>, Vec<LogRow>), redb::Error> {
    let transaction = database.begin_read()?;
    let mut objects = BTreeMap::new();
    for object in transaction.open_table(CURRENT)?.iter()? {
        let (key, value) = object?;
        let (revision, deadline, revision_offset, json) = value.value();
        let expires = (deadline != NEVER).then_some(Expiry { deadline, revision_offset });
        objects.insert(
            Key::from(key.value()),
            StoredObject { revision, value: Bytes::copy_from_slice(json), expires },
        );
    }
    let mut rows = Vec::new();
    for event in transaction.open_table(LOG)?.iter()? {
        let (revision, value) = event?;
        let (key, previous_revision, previous, deleted, last) = value.value();
        rows.push(LogRow {
            revision: revision.value(),
            key: Key::from(key),
            previous: (previous_revision != 0).then(|| (previous_revision, Bytes::copy_from_slice(previous))),
            deleted: deleted.then(|| Bytes::copy_from_slice(last)),
        });
    }
    Ok((objects, rows))
}

fn encode_object(object: &StoredObject) -> Object<'_> {
    let (deadline, revision_offset) =
        object.expires.map_or((NEVER, 0), |Expiry { deadline, revision_offset }| (deadline, revision_offset));
    (object.revision, deadline, revision_offset, &object.value)
}

/// Maps a redb error. A file that is truncated or not a store is reported as damaged, not as an I/O error.
fn open_error(path: &Path, error: redb::Error) -> OpenError {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    use redb::Error::{Corrupted, Io, TableDoesNotExist, TableTypeMismatch, UpgradeRequired};

    let path = path.to_path_buf();
    match error {
        Corrupted(reason) => OpenError::Damaged { path, reason },
        Io(source) if !matches!(source.kind(), InvalidData | InvalidInput | UnexpectedEof) => {
            OpenError::Io { path, source }
        }
        Io(_) | TableDoesNotExist(_) | TableTypeMismatch { .. } | UpgradeRequired(_) => {
            OpenError::Damaged { path, reason: error.to_string() }
        }
        error => OpenError::Io { path, source: io::Error::other(error) },
    }
}
