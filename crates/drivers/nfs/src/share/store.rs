//! Records that change by compare-and-swap, on a file system that may be shared by several controllers.
//!
//! A record is a directory with numbered files; the file with the highest number is the current content. To change it, a
//! writer links a complete file to the next number, which fails if that number exists. Because older files are removed, a
//! slow writer could link a number that was used before; so after linking, the writer reads the directory again and has
//! lost if a higher number exists. Numbers never start again while a slow writer may run: a deleted record is a tombstone
//! (a file without a record), which is removed only after the grace period.
//!
//! An uncertain link (`EEXIST` for an own success) is judged by the random ID in each file.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::error::During as _;
use super::files::none_if_missing;
use super::record::{Envelope, REPAIR, Record, VERSION, key_hash, parse, to_bytes};
use super::root::own;
use super::{ErrorKind, Share, ShareError};

/// How often a reader tries again when the record changes while it reads.
const ATTEMPTS: usize = 64;

/// The content of a record at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot<T> {
    /// The object's key.
    pub key: String,
    /// The number of the file; 0 if there is none.
    pub generation: u64,
    /// The record; `None` if there is none, or a tombstone.
    pub record: Option<T>,
}

/// All records of a store.
#[derive(Debug)]
pub struct Records<T> {
    /// The records, tombstones included.
    pub slots: Vec<Slot<T>>,
    /// Why others could not be read.
    pub unreadable: Vec<ShareError>,
}

/// The result of a compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap<T> {
    /// The new content is current.
    Done(Slot<T>),
    /// The record changed since it was read: read it again.
    Conflict,
}

impl Share {
    /// Reads a record.
    pub fn read_record<T: Record>(&self, key: &str) -> Result<Slot<T>, ShareError> {
        let dir = own([T::STORE, &key_hash(key)]);
        for _ in 0..ATTEMPTS {
            let Some(generation) = self.highest(&dir)? else {
                return Ok(Slot { key: key.to_owned(), generation: 0, record: None });
            };
            let file = generation_file(&dir, generation);
            let object = file.display().to_string();
            // A file that is gone was replaced by a newer one.
            let Some(bytes) = self.files.read(&file).during("read", &object)? else { continue };
            let envelope: Envelope<T> = parse(&object, key, &bytes).map_err(|error| {
                ShareError::new(ErrorKind::Internal, format!("failed to read the record of {key:?}: {error}"))
            })?;
            return Ok(Slot { key: key.to_owned(), generation, record: envelope.record });
        }
        Err(busy(key))
    }

    /// Replaces the record that `slot` was read from. Without a record, writes a tombstone.
    pub fn swap_record<T: Record>(&self, slot: &Slot<T>, record: Option<T>) -> Result<Swap<T>, ShareError> {
        let dir = own([T::STORE, &key_hash(&slot.key)]);
        if slot.generation == 0 {
            self.ensure_dir(&dir)?;
        }
        let generation = slot.generation + 1;
        let target = generation_file(&dir, generation);
        let envelope = Envelope { version: VERSION, write: self.new_id()?, key: slot.key.clone(), record };
        if !self.publish(&to_bytes(&envelope), &target)? {
            return Ok(Swap::Conflict);
        }
        if self.highest(&dir)? != Some(generation) {
            // A newer file exists: this one was never current, since readers take the highest number.
            self.remove(&target)?;
            return Ok(Swap::Conflict);
        }
        for older in self.generations(&dir)?.into_iter().filter(|older| *older < generation) {
            self.remove(&generation_file(&dir, older))?;
        }
        Ok(Swap::Done(Slot { key: slot.key.clone(), generation, record: envelope.record }))
    }

    /// Reads all records of a store, tombstones included. One that is damaged does not keep the others from being read.
    pub fn list_records<T: Record>(&self) -> Result<Records<T>, ShareError> {
        let store = own([T::STORE]);
        let mut records = Records { slots: Vec::new(), unreadable: Vec::new() };
        for name in self.names(&store)? {
            self.tick();
            let dir = store.join(&name);
            match self.listed(&dir, &name) {
                Ok(slot) => records.slots.extend(slot),
                Err(error) if error.kind == ErrorKind::Internal => {
                    tracing::warn!(record = %dir.display(), %error, "failed to read a record");
                    records.unreadable.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(records)
    }

    fn listed<T: Record>(&self, dir: &Path, name: &str) -> Result<Option<Slot<T>>, ShareError> {
        let Some(key) = self.key_of(dir)? else { return Ok(None) };
        if key_hash(&key) != name {
            let reason = format!("{} has the record of {key:?}; {REPAIR}", dir.display());
            return Err(ShareError::new(ErrorKind::Internal, reason));
        }
        self.read_record::<T>(&key).map(Some)
    }

    /// The file of a record that exists.
    pub(super) fn record_file<T: Record>(&self, slot: &Slot<T>) -> PathBuf {
        generation_file(&own([T::STORE, &key_hash(&slot.key)]), slot.generation)
    }

    /// The key in the current file of a record's directory; `None` if it has no file.
    fn key_of(&self, dir: &Path) -> Result<Option<String>, ShareError> {
        #[derive(serde::Deserialize)]
        struct KeyOnly {
            key: String,
        }
        for _ in 0..ATTEMPTS {
            let Some(generation) = self.highest(dir)? else { return Ok(None) };
            let file = generation_file(dir, generation);
            let object = file.display().to_string();
            let Some(bytes) = self.files.read(&file).during("read", &object)? else { continue };
            let KeyOnly { key } = serde_json::from_slice(&bytes).map_err(|error| {
                let reason = format!("{object} is damaged: {error}; {REPAIR}");
                ShareError::new(ErrorKind::Internal, reason)
            })?;
            return Ok(Some(key));
        }
        Err(busy(&dir.display().to_string()))
    }

    /// Makes a complete file appear at `target`. False if another file is there.
    pub(super) fn publish(&self, bytes: &[u8], target: &Path) -> Result<bool, ShareError> {
        let object = target.display().to_string();
        let temporary = own(["tmp", &self.new_id()?]);
        // The name is random: EEXIST is an own success whose response was lost, perhaps with the content missing.
        match self.files.create_file(&temporary, bytes) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if self.files.read(&temporary).during("read", &object)?.as_deref() != Some(bytes) {
                    return Err(error).during("write", &object);
                }
            }
            created => self.or_remove(created, &temporary).during("write", &object)?,
        }
        self.or_remove(self.files.sync(&temporary), &temporary).during("sync", &object)?;
        let linked = match self.files.link(&temporary, target) {
            Ok(()) => true,
            // Either someone else's, or ours: the content has a random ID.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.files.read(target).during("read", &object)?.as_deref() == Some(bytes)
            }
            // The directory was removed with its tombstone: the record changed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.read(target).during("read", &object)?.as_deref() == Some(bytes)
            }
            Err(error) if matches!(error.raw_os_error(), Some(EPERM | EOPNOTSUPP | EMLINK)) => {
                let reason = format!(
                    "failed to link {object}: {error}; the driver needs a share with hard links for its records"
                );
                return Err(ShareError::new(ErrorKind::Precondition, reason));
            }
            Err(error) => return Err(error).during("link", &object),
        };
        self.remove(&temporary)?;
        if linked && let Some(parent) = target.parent() {
            // Another controller used it already, and removed the directory.
            none_if_missing(self.files.sync(parent)).during("sync", &object)?;
        }
        Ok(linked)
    }

    /// After a failed write, removes what it wrote: a full share must not be filled further by repeats.
    fn or_remove(&self, written: io::Result<()>, file: &Path) -> io::Result<()> {
        if written.is_err() {
            let _ = self.files.remove_file(file);
        }
        written
    }

    /// Removes one of the driver's own files; a missing one is success.
    pub(super) fn remove(&self, file: &Path) -> Result<(), ShareError> {
        let removed = none_if_missing(self.files.remove_file(file));
        removed.map(drop).during("remove", &file.display().to_string())
    }

    /// The names in one of the driver's own directories. Names that are not UTF-8 are not the driver's.
    pub(super) fn names(&self, dir: &Path) -> Result<Vec<String>, ShareError> {
        let names = self.files.list(dir).during("list", &dir.display().to_string())?.unwrap_or_default();
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    fn highest(&self, dir: &Path) -> Result<Option<u64>, ShareError> {
        Ok(self.generations(dir)?.into_iter().max())
    }

    fn generations(&self, dir: &Path) -> Result<Vec<u64>, ShareError> {
        let names = self.files.list(dir).during("list", &dir.display().to_string())?.unwrap_or_default();
        Ok(names.iter().filter_map(|name| generation_of(name)).collect())
    }
}

/// Errno values of servers without hard links.
const EPERM: i32 = 1;
const EMLINK: i32 = 31;
const EOPNOTSUPP: i32 = 95;

fn generation_file(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{generation:010}.json"))
}

/// The number of a record file; `None` for any other name.
fn generation_of(name: &OsStr) -> Option<u64> {
    let digits = name.to_str()?.strip_suffix(".json")?;
    let plain = digits.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| plain && *number > 0)
}

fn busy(key: &str) -> ShareError {
    let reason = format!("the record of {key:?} changes too often to be read; try again");
    ShareError::new(ErrorKind::Unavailable, reason)
}
