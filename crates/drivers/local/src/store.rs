//! The directory layout of a pool and durable access to its files. Every path consists of fixed names and validated
//! ids, and is opened beneath the pool's root without following symlinks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_linux::{FileStat, Kernel, PathBeneath, Result, write_durably};

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
pub(crate) const IMAGE: &str = "image";
/// Suffix of the file that an interrupted durable write leaves behind.
pub(crate) const UNFINISHED: &str = ".tmp";

/// Suffix of the record of a group that is being deleted.
pub(crate) const DELETING: &str = ".deleting";

/// Prefix of the files with which `wharf_linux` probes for reflink support.
pub(crate) const PROBE: &str = ".reflink-";

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
        match self.kernel.read_file(&self.at(path))? {
            None => Ok(None),
            Some(bytes) => Ok(Some(record::parse(&self.root.join(path), id, &bytes)?)),
        }
    }

    /// Replaces a record; durable when it returns.
    pub(crate) fn save<T: Record>(&self, path: &Path, record: &T) -> Result<()> {
        write_durably(&*self.kernel, &self.at(path), &record::to_bytes(record))
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
