//! The lock file of a store directory, which also records the last acknowledged revision.
//!
//! When the database is opened, a last commit with torn pages is rolled back. After a power failure that is correct,
//! because the commit was not acknowledged. A commit whose pages were damaged later looks the same, but was
//! acknowledged. To distinguish the two, the revision of each commit is written to the lock file after the commit is
//! durable, without fsync. If the recorded revision is ahead of the database, the database has lost acknowledged writes.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use super::Revision;
use super::disk::OpenError;

const FILE: &str = "store.lock";
/// The maximum number of digits of a revision, and a newline.
const WIDTH: usize = 21;

/// The lock of a store directory, held until it is dropped or the process exits.
pub(super) struct DirLock(File);

impl DirLock {
    /// Locks the directory, creating it if necessary.
    pub(super) fn acquire(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(FILE);
        let io = |source| OpenError::Io { path: path.clone(), source };
        // The directory contains Secrets.
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let file = options.open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked { dir: dir.into() }),
            Err(TryLockError::Error(source)) => Err(io(source)),
        }
    }

    /// Uses a given file, for stores that are not in a directory.
    #[cfg(test)]
    pub(super) fn from_file(file: File) -> Self {
        Self(file)
    }

    /// The recorded revision; `None` if it is missing or unreadable.
    pub(super) fn acknowledged(&self) -> Option<Revision> {
        let mut text = [0; WIDTH];
        self.0.read_exact_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text).ok()?.trim_ascii_end().parse().ok()
    }

    /// Records a revision: of a commit, or the first one of a new file before that exists. Without the record, damage
    /// is not detected, and a new store could begin with revisions that clients know.
    pub(super) fn acknowledge(&self, revision: Revision) -> io::Result<()> {
        self.0.write_all_at(format!("{revision:020}\n").as_bytes(), 0)
    }
}
