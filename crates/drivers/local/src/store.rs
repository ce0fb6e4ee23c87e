//! The directory layout of a pool and durable access to its files. Every path consists of fixed names and validated
//! ids, and is opened beneath the pool's root without following symlinks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_linux::{FileStat, Kernel, PathBeneath, Result, replace_durably, write_durably};

use crate::ids::{self, Kind};
use crate::record::{self, Record, RecordError};

pub(crate) const POOL: &str = "pool.json";
pub(crate) const LOCK: &str = "lock";
pub(crate) const FREEZE: &str = "freeze.json";
pub(crate) const VOLUMES: &str = "volumes";
pub(crate) const SNAPSHOTS: &str = "snapshots";
pub(crate) const GROUPS: &str = "groups";
pub(crate) const TRASH: &str = "trash";
pub(crate) const RECORD: &str = "record.json";
/// A second file like `record.json`, with allocated blocks: a record is changed by exchanging the two, which needs no free
/// space. Its content has no meaning.
pub(crate) const SPARE: &str = "record.spare";
pub(crate) const IMAGE: &str = "image";
/// Suffix of the file that an interrupted durable write leaves behind.
pub(crate) const UNFINISHED: &str = ".tmp";

/// Suffix of the record of a group that is being deleted.
pub(crate) const DELETING: &str = ".deleting";

/// Prefix of the files with which `wharf_linux` probes for reflink support.
pub(crate) const PROBE: &str = ".reflink-";

/// The unit in which files of records are allocated: a block of all supported file systems.
const RECORD_BLOCK: usize = 4096;
/// How much a record may grow until its next change needs free space.
const RECORD_GROWTH: usize = 1024;

/// A pool's directory.
pub(crate) struct Store {
    pub kernel: Arc<dyn Kernel>,
    pub root: PathBuf,
}

/// Why a record could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Kernel(#[from] wharf_linux::Error),
}

/// The directory of a volume or snapshot. `id` was checked when it entered the index.
pub(crate) fn dir_of(id: &str) -> PathBuf {
    debug_assert!(matches!(ids::kind_of(id), Some(Kind::Volume | Kind::Snapshot)), "{id}");
    Path::new(collection_of(id)).join(id)
}

/// The parent directory of [`dir_of`].
pub(crate) fn collection_of(id: &str) -> &'static str {
    if ids::is(Kind::Snapshot, id) { SNAPSHOTS } else { VOLUMES }
}

/// The image of a volume or snapshot.
pub(crate) fn image_of(id: &str) -> PathBuf {
    dir_of(id).join(IMAGE)
}

/// The record of a volume, snapshot or group.
pub(crate) fn record_of(id: &str) -> PathBuf {
    if ids::is(Kind::Group, id) {
        return Path::new(GROUPS).join(format!("{id}.json"));
    }
    dir_of(id).join(RECORD)
}

/// The path to which a group's record is renamed before the group is deleted. A rename needs no free space, unlike
/// writing a new record: deletion must work on a full pool.
pub(crate) fn deleting_of(group: &str) -> PathBuf {
    Path::new(GROUPS).join(format!("{group}{DELETING}"))
}

impl Store {
    /// `path` beneath this pool.
    pub(crate) fn at<'a>(&'a self, path: &'a Path) -> PathBeneath<'a> {
        PathBeneath::new(&self.root, path)
    }

    /// Reads the record at `path`, which belongs to `id`.
    pub(crate) fn load<T: Record>(&self, path: &Path, id: Option<&str>) -> Result<Option<T>, LoadError> {
        let file = self.root.join(path);
        let read = || self.kernel.read_file(&self.at(path));
        let Some(bytes) = read()? else { return Ok(None) };
        match record::parse(&file, id, &bytes) {
            // `wharf local list` and `check` read while a driver runs, which overwrites the file that was the record two
            // changes ago. Damage is permanent.
            Err(RecordError::Damaged { .. }) => {
                let Some(bytes) = read()? else { return Ok(None) };
                Ok(Some(record::parse(&file, id, &bytes)?))
            }
            parsed => Ok(Some(parsed?)),
        }
    }

    /// Replaces a record; durable when it returns.
    pub(crate) fn save<T: Record>(&self, path: &Path, record: &T) -> Result<()> {
        write_durably(&*self.kernel, &self.at(path), &record::to_bytes(record))
    }

    /// Replaces the record of a volume; durable when it returns. Needs no free space if the record has reserved blocks.
    pub(crate) fn save_reserved<T: Record>(&self, path: &Path, record: &T) -> Result<()> {
        let mut bytes = record::to_bytes(record);
        let spare = path.with_file_name(SPARE);
        let size = self.stat(&spare)?.map_or(0, |stat| stat.size);
        if size < bytes.len() as u64 {
            return self.save(path, record);
        }
        pad(&mut bytes, size as usize);
        match replace_durably(&*self.kernel, &self.at(path), &self.at(&spare), &bytes) {
            Err(error) if cannot_exchange(&error) => {
                self.remove_file(&spare)?;
                self.save(path, record)
            }
            result => result,
        }
    }

    /// Reserves blocks for changes of a record: both its file and the spare get them. `path` exists. On a file system that
    /// cannot exchange files, for example ZFS before 2.2, a change needs free space: nothing is reserved.
    pub(crate) fn reserve<T: Record>(&self, path: &Path, record: &T) -> Result<()> {
        let mut bytes = record::to_bytes(record);
        let wanted = (bytes.len() + RECORD_GROWTH).next_multiple_of(RECORD_BLOCK);
        let spare = path.with_file_name(SPARE);
        let is_reserved = |path: &Path| Ok(self.stat(path)?.is_some_and(|stat| stat.size >= wanted as u64));
        if !is_reserved(&spare)? {
            self.kernel.create_reserved(&self.at(&spare), wanted as u64)?;
        }
        if !is_reserved(path)? {
            pad(&mut bytes, wanted);
            match replace_durably(&*self.kernel, &self.at(path), &self.at(&spare), &bytes) {
                Err(error) if cannot_exchange(&error) => return self.remove_file(&spare),
                result => result?,
            }
            self.kernel.create_reserved(&self.at(&spare), wanted as u64)?;
        }
        Ok(())
    }

    /// Stats `path`.
    pub(crate) fn stat(&self, path: &Path) -> Result<Option<FileStat>> {
        self.kernel.stat(&self.at(path))
    }

    /// Fsyncs `path`.
    pub(crate) fn sync(&self, path: &Path) -> Result<()> {
        self.kernel.sync(&self.at(path))
    }

    /// Names in a directory.
    pub(crate) fn list(&self, path: &Path) -> Result<Vec<String>> {
        self.kernel.list_dir(&self.at(path))
    }

    /// Removes a file.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<()> {
        self.kernel.remove_file(&self.at(path))
    }
}

/// Whether the file system does not support to exchange two files.
fn cannot_exchange(error: &wharf_linux::Error) -> bool {
    error.errno().is_some_and(|errno| {
        let kind = std::io::Error::from_raw_os_error(errno).kind();
        matches!(kind, std::io::ErrorKind::InvalidInput | std::io::ErrorKind::Unsupported)
    })
}

/// Fills up with spaces, which JSON ignores; the newline stays last.
fn pad(bytes: &mut Vec<u8>, size: usize) {
    bytes.pop_if(|last| *last == b'\n');
    bytes.resize(size.max(bytes.len() + 1) - 1, b' ');
    bytes.push(b'\n');
}
