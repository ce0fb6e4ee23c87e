//! Backup and restore. A backup is a store file with all objects of one revision and no history.

use std::path::{Path, PathBuf};

use super::dir_lock::DirLock;
use super::disk::{self, OpenError};
use super::{Revision, Shared};

/// Why a backup failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The target exists.
    #[error("{} exists: choose another file name", .0.display())]
    Exists(PathBuf),
    /// The backup could not be written.
    #[error("backup: {0}")]
    Write(#[source] OpenError),
    /// The process is shutting down.
    #[error("the backup was stopped")]
    Stopped,
}

/// Why a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The directory contains a store already.
    #[error("{} exists: restore into another directory, or move it away", .0.display())]
    Exists(PathBuf),
    /// The file is not a complete backup.
    #[error("backup: {0}")]
    Read(#[source] OpenError),
    /// The store could not be created.
    #[error(transparent)]
    Write(OpenError),
}

/// Writes continue during the backup: it copies handles to values under the lock.
pub(super) fn backup(shared: &Shared, to: &Path) -> Result<Revision, BackupError> {
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::Exists(to.into()));
    }
    let (revision, objects) = {
        let state = shared.read();
        (state.revision(), state.objects().clone())
    };
    disk::create(to, revision, &objects).map_err(BackupError::Write)?;
    Ok(revision)
}

pub(super) fn restore(from: &Path, dir: &Path) -> Result<Revision, RestoreError> {
    let backup = disk::read_backup(from).map_err(RestoreError::Read)?;
    let lock = DirLock::acquire(dir).map_err(RestoreError::Write)?;
    let path = disk::database_path(dir);
    if path.symlink_metadata().is_ok() {
        return Err(RestoreError::Exists(path));
    }
    disk::create_in_dir(&path, &lock, backup.revision(), backup.objects()).map_err(RestoreError::Write)
}
