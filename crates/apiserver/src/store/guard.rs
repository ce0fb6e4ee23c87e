//! The lock of a store's directory, and in it the last revision that was acknowledged.
//!
//! A commit whose pages are torn is undone when the file is opened: the power failed, and nobody was told of it. One
//! whose pages went bad later looks the same, but somebody was told. So each commit is noted here after it is
//! durable, without waiting for the disk: the note is never ahead of the file, unless the file lost something.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use super::Revision;
use super::disk::OpenError;

const FILE: &str = "store.lock";
/// As many digits as a revision can have, and the end of the line.
const WIDTH: usize = 21;

/// The lock; held until it is dropped, or the process dies.
pub(super) struct Guard(File);

impl Guard {
    /// Makes the directory if need be, and holds it.
    pub(super) fn lock(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(FILE);
        let io = |source| OpenError::Io { path: path.clone(), source };
        // Secrets are in there.
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

    /// On a file of one's own, for stores that are not in a directory.
    #[cfg(test)]
    pub(super) fn on(file: File) -> Self {
        Self(file)
    }

    /// What is noted; none if nothing is, or nothing that can be read.
    pub(super) fn acknowledged(&self) -> Option<Revision> {
        let mut note = [0; WIDTH];
        self.0.read_exact_at(&mut note, 0).ok()?;
        std::str::from_utf8(&note).ok()?.trim_ascii_end().parse().ok()
    }

    /// Notes a revision. Without the note the store is no worse than without a guard, so it may fail.
    pub(super) fn acknowledge(&self, revision: Revision) {
        let _ = self.0.write_all_at(format!("{revision:020}\n").as_bytes(), 0);
    }

    /// A new store begins.
    pub(super) fn forget(&self) -> io::Result<()> {
        self.0.set_len(0)
    }
}
