//! The store's file: one redb database, one commit per batch.
//!
//! Tables: `meta` (schema, revision, compacted), `current` (key → revision, expiry, JSON) and `log` (revision → what
//! undoes that write). The value of an older event is what the next event of its key found, so each version of an
//! object is there once. The file is made aside and renamed, so it is there whole or not at all.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::base::Base;
use super::guard::Guard;
use super::state::{Expiry, Held, Row, State, Write};
use super::{Key, Revision};

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const CURRENT: TableDefinition<'_, &str, Object<'_>> = TableDefinition::new("current");
const LOG: TableDefinition<'_, u64, Undo<'_>> = TableDefinition::new("log");

/// Revision, expiry ([`NEVER`] for none), where the revision stands in the JSON, JSON.
type Object<'a> = (u64, i64, u32, &'a [u8]);
/// Key, revision and JSON before (0 and empty if created), whether deleted and what watchers are told then.
type Undo<'a> = (&'a str, u64, &'a [u8], bool, &'a [u8]);

const SCHEMA: u64 = 1;
const NEVER: i64 = i64::MAX;
/// A revision for the empty store, for clients take 0 for "any".
pub(super) const FIRST: Revision = 1;

const FILE: &str = "store.redb";

/// Why a store did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory, or a file in it, cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("{} is in use by another process: stop that one first", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// It was written by a later version.
    #[error(
        "{} has schema {found}, and this version knows up to {SCHEMA}: run the version that wrote it, or restore a \
         backup into another directory", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u64,
    },
    /// What is in it cannot be.
    #[error(
        "{} is damaged ({why}): restore a backup, or move the file away to begin with an empty store", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It has lost writes.
    #[error(
        "{} is at revision {found}, but revision {acknowledged} was acknowledged: its last pages are damaged, or it \
         is an older copy. Restore a backup, or this file, into another directory", path.display()
    )]
    Behind {
        /// The file.
        path: PathBuf,
        /// What it is at.
        found: Revision,
        /// What it was at.
        acknowledged: Revision,
    },
}

/// What a database is kept on. Tests have other kinds than files.
pub(super) type OpenMedium = Box<dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send>;

/// The open file.
pub(super) struct Disk {
    path: PathBuf,
    medium: OpenMedium,
    sync: bool,
    /// None after a failed attempt to open it again.
    base: Option<Base>,
    guard: Guard,
}

impl Disk {
    /// Opens or makes the file in a directory, and reads all of it.
    pub(super) fn open(dir: &Path, sync: bool) -> Result<(Self, State), OpenError> {
        let guard = Guard::lock(dir)?;
        let path = file(dir);
        let io = |source| OpenError::Io { path: path.clone(), source };
        if !path.try_exists().map_err(io)? {
            guard.forget().map_err(io)?;
            create(&path, FIRST, &BTreeMap::new())?;
        }
        let name = path.clone();
        let medium = Box::new(move || -> io::Result<Box<dyn StorageBackend>> {
            let file = OpenOptions::new().read(true).write(true).open(&name)?;
            Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
        });
        Self::open_on(path, medium, sync, guard)
    }

    /// The same on any medium.
    pub(super) fn open_on(
        path: PathBuf,
        medium: OpenMedium,
        sync: bool,
        guard: Guard,
    ) -> Result<(Self, State), OpenError> {
        let base = open(&path, &medium, sync)?;
        let state = load(&path, &base)?;
        let found = state.revision();
        if let Some(acknowledged) = guard.acknowledged().filter(|acknowledged| *acknowledged > found) {
            return Err(OpenError::Behind { path, found, acknowledged });
        }
        touch(&base).map_err(|error| failed(&path, error))?;
        Ok((Self { path, medium, sync, base: Some(base), guard }, state))
    }

    /// Makes all of the writes durable, or none; and forgets the log up to a revision.
    pub(super) fn commit(&self, writes: &[Write], compacted: Revision) -> Result<(), redb::Error> {
        let base = self.base.as_ref().ok_or(redb::Error::DatabaseClosed)?;
        let transaction = base.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            let mut current = transaction.open_table(CURRENT)?;
            let mut log = transaction.open_table(LOG)?;
            for Write { record, after } in writes {
                let event = &*record.event;
                match after {
                    Some(held) => current.insert(&*event.key, row(held))?,
                    None => current.remove(&*event.key)?,
                };
                let previous = event.previous.as_deref().unwrap_or_default();
                let last: &[u8] = if event.deleted { &event.value } else { &[] };
                log.insert(event.revision, (&*event.key, record.before, previous, event.deleted, last))?;
                meta.insert("revision", event.revision)?;
            }
            if meta.insert("compacted", compacted)?.is_none_or(|old| old.value() < compacted) {
                log.retain_in(..=compacted, |_, _| false)?;
            }
        }
        transaction.commit()?;
        if let Some(last) = writes.last() {
            self.guard.acknowledge(last.record.event.revision);
        }
        Ok(())
    }

    /// After an error, for redb does nothing more on a file that failed once. Returns the revision it is at.
    pub(super) fn reopen(&mut self) -> Result<Revision, OpenError> {
        self.base = None;
        let base = open(&self.path, &self.medium, self.sync)?;
        let revision = number(&self.path, &base, "revision")?;
        self.base = Some(base);
        Ok(revision)
    }
}

/// The store's file in a directory.
pub(super) fn file(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Reads a whole file that is not to be touched.
pub(super) fn examine(path: &Path) -> Result<State, OpenError> {
    let io = |source| OpenError::Io { path: path.into(), source };
    let bytes = std::fs::read(path).map_err(io)?;
    if bytes.is_empty() {
        return Err(OpenError::Damaged { path: path.into(), why: "it is empty".into() });
    }
    let copy = InMemoryBackend::new();
    copy.set_len(bytes.len() as u64).and_then(|()| copy.write(0, &bytes)).map_err(io)?;
    drop(bytes);
    let base = Base::open(Box::new(copy), false).map_err(|error| failed(path, error.into()))?;
    load(path, &base)
}

/// A new file with these objects and no past, there whole or not at all, and never in place of another.
pub(super) fn create(
    path: &Path,
    revision: Revision,
    objects: &BTreeMap<Key, Held>,
) -> Result<(), OpenError> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".partial");
    let aside = PathBuf::from(aside);
    let made = fill(&aside, revision, objects)
        .map_err(|error| failed(&aside, error))
        .and_then(|()| publish(&aside, path).map_err(|source| OpenError::Io { path: path.into(), source }));
    if made.is_err() {
        let _ = std::fs::remove_file(&aside); // What is wrong is in the error already.
    }
    made
}

fn fill(aside: &Path, revision: Revision, objects: &BTreeMap<Key, Held>) -> Result<(), redb::Error> {
    // What a death in the middle left.
    let file =
        OpenOptions::new().create(true).truncate(true).read(true).write(true).mode(0o600).open(aside)?;
    let base = Base::open(Box::new(FileBackend::new(file)?), true)?;
    let transaction = base.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        let mut current = transaction.open_table(CURRENT)?;
        transaction.open_table(LOG)?;
        for (name, value) in [("schema", SCHEMA), ("revision", revision), ("compacted", revision)] {
            meta.insert(name, value)?;
        }
        for (key, held) in objects {
            current.insert(&**key, row(held))?;
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Gives a finished file its name, for good.
fn publish(aside: &Path, path: &Path) -> io::Result<()> {
    File::open(aside)?.sync_all()?;
    renameat_with(CWD, aside, CWD, path, RenameFlags::NOREPLACE)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

fn open(path: &Path, medium: &OpenMedium, sync: bool) -> Result<Base, OpenError> {
    let io = |source| OpenError::Io { path: path.into(), source };
    let medium = medium().map_err(io)?;
    // redb would make a new database of an empty file; ours is never empty.
    if medium.len().map_err(io)? == 0 {
        return Err(OpenError::Damaged { path: path.into(), why: "it is empty".into() });
    }
    Base::open(medium, sync).map_err(|error| failed(path, error.into()))
}

/// A commit that changes nothing. It shows that the disk takes one before anybody is served; and it puts one of ours
/// after redb's own of the recovery, which the next start would believe without a look at all pages.
fn touch(base: &Base) -> Result<(), redb::Error> {
    let transaction = base.begin_write()?;
    transaction.open_table(META)?.insert("schema", SCHEMA)?;
    transaction.commit()?;
    Ok(())
}

fn number(path: &Path, base: &Base, name: &str) -> Result<u64, OpenError> {
    let read = || -> Result<Option<u64>, redb::Error> {
        let meta = base.begin_read()?.open_table(META)?;
        Ok(meta.get(name)?.map(|value| value.value()))
    };
    let missing = || OpenError::Damaged { path: path.into(), why: format!("it has no {name}") };
    read().map_err(|error| failed(path, error))?.ok_or_else(missing)
}

fn load(path: &Path, base: &Base) -> Result<State, OpenError> {
    let found = number(path, base, "schema")?;
    if found > SCHEMA {
        return Err(OpenError::Newer { path: path.into(), found });
    }
    let (revision, compacted) = (number(path, base, "revision")?, number(path, base, "compacted")?);
    let (objects, rows) = read(base).map_err(|error| failed(path, error))?;
    let damaged = |why| OpenError::Damaged { path: path.into(), why };
    State::rebuild(revision, compacted, objects, rows).map_err(damaged)
}

fn read(base: &Base) -> Result<(BTreeMap<Key, Held>, Vec<Row>), redb::Error> {
    let transaction = base.begin_read()?;
    let mut objects = BTreeMap::new();
    for object in transaction.open_table(CURRENT)?.iter()? {
        let (key, value) = object?;
        let (revision, when, place, json) = value.value();
        let expires = (when != NEVER).then_some(Expiry { when, place });
        objects
            .insert(Key::from(key.value()), Held { revision, value: Bytes::copy_from_slice(json), expires });
    }
    let mut rows = Vec::new();
    for event in transaction.open_table(LOG)?.iter()? {
        let (revision, value) = event?;
        let (key, before, previous, deleted, last) = value.value();
        rows.push(Row {
            revision: revision.value(),
            key: Key::from(key),
            previous: (before != 0).then(|| (before, Bytes::copy_from_slice(previous))),
            deleted: deleted.then(|| Bytes::copy_from_slice(last)),
        });
    }
    Ok((objects, rows))
}

fn row(held: &Held) -> Object<'_> {
    let (when, place) = held.expires.map_or((NEVER, 0), |Expiry { when, place }| (when, place));
    (held.revision, when, place, &held.value)
}

/// What redb says, in our words. A file that is too short or has other things in it is damaged, not unreadable.
fn failed(path: &Path, error: redb::Error) -> OpenError {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    use redb::Error::{Corrupted, Io, TableDoesNotExist, TableTypeMismatch, UpgradeRequired};

    let path = path.to_path_buf();
    match error {
        Corrupted(why) => OpenError::Damaged { path, why },
        Io(source) if !matches!(source.kind(), InvalidData | InvalidInput | UnexpectedEof) => {
            OpenError::Io { path, source }
        }
        Io(_) | TableDoesNotExist(_) | TableTypeMismatch { .. } | UpgradeRequired(_) => {
            OpenError::Damaged { path, why: error.to_string() }
        }
        error => OpenError::Io { path, source: io::Error::other(error) },
    }
}
