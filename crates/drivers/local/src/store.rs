//! Where things are in a pool, and how they get there durably. Every path is made of fixed words and ids that
//! were checked, and is opened beneath the pool's root without following a symlink.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_linux::{Beneath, FileStat, Kernel, Result, write_durably};

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
/// What a durable write that was cut short leaves behind.
pub(crate) const UNFINISHED: &str = ".tmp";

/// How the name of the record of a group ends that is to go.
pub(crate) const DELETING: &str = ".deleting";

/// How the files begin with which the kernel seam tries whether extents can be shared.
pub(crate) const PROBE: &str = ".reflink-";

/// A pool's directory.
pub(crate) struct Store {
    pub kernel: Arc<dyn Kernel>,
    pub root: PathBuf,
}

/// Why a record is not there to be used.
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

/// The directory that [`dir_of`] is in.
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

/// What the record of a group is renamed to when the group is to go. The name tells it and not another record,
/// because a rename needs no room: what makes room must work where there is none.
pub(crate) fn deleting_of(group: &str) -> PathBuf {
    Path::new(GROUPS).join(format!("{group}{DELETING}"))
}

impl Store {
    /// `path` beneath this pool.
    pub(crate) fn at<'a>(&'a self, path: &'a Path) -> Beneath<'a> {
        Beneath::new(&self.root, path)
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

    /// What `stat` says of `path`.
    pub(crate) fn stat(&self, path: &Path) -> Result<Option<FileStat>> {
        self.kernel.stat(&self.at(path))
    }

    /// fsync of `path`.
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
